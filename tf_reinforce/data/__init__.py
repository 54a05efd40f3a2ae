"""Defines records of episodes, statistics, spaces, action masks and random streams."""
