"""The policy gradient of a batch, and the update made with it."""
