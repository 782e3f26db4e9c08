"""Recommending items to users: its data, towers, judge, and task."""
