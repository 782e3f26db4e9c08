"""Interactions from files, folders and objects in memory, in the order of time."""
