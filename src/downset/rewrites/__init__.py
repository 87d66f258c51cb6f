"""Rewrites: functions from a graph to another graph that computes the same outputs."""
