"""Pairs of texts from files, folders and objects in memory."""
