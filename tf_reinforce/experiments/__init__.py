"""Run directories, and the training of many seeds."""
