"""Stages chosen by measurement: search, timings, kept profiles."""
