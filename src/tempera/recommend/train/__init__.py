"""Training a recommender: features, histories, batches."""
