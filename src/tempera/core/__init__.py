"""The objective: tensors in, tensors out. No files, no text, no model; of devices, what they can
do."""
