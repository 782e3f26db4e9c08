"""Recommendation of items to users: data, towers, evaluation and task."""
