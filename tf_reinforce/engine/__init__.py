"""Trains agents: the epoch loop, updates, checkpoints and signals."""
