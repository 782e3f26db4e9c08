"""Training on pairs of texts: splits, batches, negatives, towers of two sides."""
