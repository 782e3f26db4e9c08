"""Reasons of a score: the parts that add up to it."""
