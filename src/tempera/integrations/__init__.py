"""The same objectives in other libraries' training."""
