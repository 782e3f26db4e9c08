"""Faster layers of a tower in place of torch's: linear layers, dropout, lookups."""
