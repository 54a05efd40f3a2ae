"""Provides default policies, recurrent policies, normalization and action selection."""
