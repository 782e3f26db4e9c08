"""Layers of a tower that compute in another way than torch does: linear layers, dropout, lookups."""
