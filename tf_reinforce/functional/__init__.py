"""Pure functions: returns, losses and eligibilities (d ln π / d parameter)."""
