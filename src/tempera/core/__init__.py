"""The objective: tensors in, tensors out. No I/O, no devices, no text, no model."""
