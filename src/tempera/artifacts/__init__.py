"""A finished run on disk: open, search, recommend, export, card and report."""
