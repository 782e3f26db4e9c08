"""Negatives worth having."""
