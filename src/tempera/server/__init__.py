"""A server for finished runs on one machine."""
