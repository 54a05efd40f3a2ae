"""Trains agents: the epoch loop, the collector and the learner."""
