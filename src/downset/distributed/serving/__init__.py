"""Runs pipelines on real devices: decides what each device does next, and carries it out in a thin layer on Ray."""
