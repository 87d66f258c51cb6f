"""Pipelines that run: simulated event by event, and on real devices."""
