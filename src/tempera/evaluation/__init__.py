"""Is it better? Rankings, their metrics, and what a difference is worth."""
