"""Fast memory with slow memory behind it: order, residency and moves, planned together."""
