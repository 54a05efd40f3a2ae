"""Pure functions: returns, losses, eligibility, and the explanation of one update."""
