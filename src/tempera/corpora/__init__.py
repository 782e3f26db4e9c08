"""Corpora in shards: the vectors of any saved model, written shard by shard by any number of
workers, and read in memory that does not grow with the rows."""
