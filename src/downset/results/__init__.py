"""Values that jobs return: plans with their evidence, and what was measured, simulated or proven of them."""
