"""Offsets and shared objects. `planners` names every method; `plan` is the front door; `check` knows no planner."""
