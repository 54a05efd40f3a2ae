"""Records of episodes, and their statistics, spaces, masks and random streams."""
