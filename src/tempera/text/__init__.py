"""Retrieval of texts: the data, the training, the judge, and the task of a run."""
