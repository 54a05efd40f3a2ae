"""The epoch loop, the collector and the learner."""
