"""Plans pipelines over several devices. `planners` names every method, `plan` plans by one of them, and `check`
verifies plans without a planner."""
