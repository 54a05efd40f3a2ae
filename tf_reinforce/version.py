"""The version of the package, for it, its command line and its build."""

VERSION = "0.1.0"
