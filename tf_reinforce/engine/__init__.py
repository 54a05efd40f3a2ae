"""Training: the epoch loop, updates, checkpoints and signals."""
