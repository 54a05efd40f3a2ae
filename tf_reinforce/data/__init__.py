"""Stores episodes, reads spaces and action masks, and derives all random numbers."""
