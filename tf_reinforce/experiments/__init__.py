"""Manages run directories, and trains many seeds."""
