"""Exports trained policies as functions that do not need this library."""
