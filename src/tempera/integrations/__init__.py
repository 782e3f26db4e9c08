"""Tempera's objectives in the trainers of other libraries."""
