"""Runs worker processes on the machines of a Ray cluster."""
