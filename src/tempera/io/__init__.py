"""Files written whole, locks, and what others wrote: tables, JSON, names."""
