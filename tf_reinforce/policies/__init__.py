"""Default policies, recurrent policies, normalization, and the selection of actions."""
