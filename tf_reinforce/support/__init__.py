"""Files, locks, start-up, compilation: what knows nothing of policy gradients."""
