"""Mining of hard negatives, and guides against false ones."""
