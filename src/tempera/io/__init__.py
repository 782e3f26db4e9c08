"""Files written whole, locks, files from untrusted writers, and Tempera's ids."""
