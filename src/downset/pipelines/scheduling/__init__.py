"""Cyclic schedules of tasks that hold resources: event graph, period, load bound and orders."""
