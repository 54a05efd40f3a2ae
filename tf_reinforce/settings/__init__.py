"""The settings of agents and runs: arguments, preset files, overrides."""
