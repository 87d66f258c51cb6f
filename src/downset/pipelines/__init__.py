"""Pipelines over several devices. `planners` names every method; `plan` is the front door; `check` knows no planner."""
