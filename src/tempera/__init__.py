"""Tempera trains retrieval models by contrast."""
