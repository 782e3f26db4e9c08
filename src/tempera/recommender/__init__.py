"""A finished recommender: opened from its run folder, asked, exported, and extended."""
