"""Provides pure functions for returns, losses, eligibilities and explanations."""
