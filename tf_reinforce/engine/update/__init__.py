"""Computes the gradients of an update, and makes the update."""
