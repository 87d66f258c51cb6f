"""Segments in strips of rows: what they save, and what they cost, measured."""
