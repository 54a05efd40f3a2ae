"""Policies: default networks, memories, normalization and action selection."""
