"""Pipelines in action: the simulator."""
