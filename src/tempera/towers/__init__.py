"""Towers: features in, embeddings out. Here, and in integrations, sentence-transformers is
known."""
