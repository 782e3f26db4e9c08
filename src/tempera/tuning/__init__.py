"""Tunings by Optuna, and learning curves."""
