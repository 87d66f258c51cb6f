"""Cyclic schedules of tasks that hold resources: their event graph, period, load bound, and the orders themselves."""
