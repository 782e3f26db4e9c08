"""One batch on several processes: gathered rows, divided weights and tables."""
