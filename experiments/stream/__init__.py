"""Streams: networks that are called on overlapping windows and compute only what is new."""
