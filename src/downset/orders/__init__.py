"""Orders of least peak memory. `plan` makes an order by any method; `planners` lists the methods; `check` verifies an
order and imports no planner."""
