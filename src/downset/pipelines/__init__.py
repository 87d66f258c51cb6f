"""Planners of pipelines: which device computes which operators on which rows."""
