"""Judging a recommender: full rankings, baselines, counts beside vectors."""
