"""Collecting: the only rooms that talk to environments."""
