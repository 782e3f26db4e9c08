"""Pairs and where they come from. Rows in, batches of features out; no model."""
