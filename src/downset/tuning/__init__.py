"""Chooses stages by measurement: searches them, times candidates and keeps the timings."""
