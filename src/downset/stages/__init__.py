"""Stages of least latency. `planners` names every method; `plan` is the front door; `check` knows no planner."""
