"""The searched corpus of a run: documents or items with vectors, and the layout of run folders."""
