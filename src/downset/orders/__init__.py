"""Orders of least peak memory. `planners` names every method; `plan` is the front door; `check` knows no planner."""
