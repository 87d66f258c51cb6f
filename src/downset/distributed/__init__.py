"""Runs pipelines: in simulation, event by event, and on real devices."""
