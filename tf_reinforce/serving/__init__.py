"""Functions of a trained policy, and the formats that need none of this library."""
