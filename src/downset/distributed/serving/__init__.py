"""Pipelines on real devices: what a device does next, and the thin layer on Ray that carries it out."""
