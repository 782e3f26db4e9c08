"""Arithmetic below everything: products, rows of different lengths, tables of vectors."""
