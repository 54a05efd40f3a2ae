"""The mathematics of one update."""
