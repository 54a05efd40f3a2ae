"""Manages run directories, trains many seeds, and draws and compares runs."""
