"""Policies: default and recurrent networks, normalization and action selection."""
