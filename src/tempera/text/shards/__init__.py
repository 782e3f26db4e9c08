"""Training from pairs in shards: one pass that divides them, and windows of rows to train on."""
