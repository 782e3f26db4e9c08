"""Judging models of texts: rankings, words beside vectors, graded pairs."""
