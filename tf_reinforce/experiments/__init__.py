"""Run directories, training of many seeds, learning curves, comparisons and searches."""
