"""Provides functions for returns, losses and eligibilities (d ln π / d parameter)."""
