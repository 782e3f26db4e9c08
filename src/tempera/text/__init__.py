"""Retrieval of texts: its data, its judge, and its task."""
