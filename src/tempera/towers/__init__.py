"""Towers: features in, embeddings out. The only floor that knows sentence-transformers."""
