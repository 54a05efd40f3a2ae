"""Loads agents from files."""
