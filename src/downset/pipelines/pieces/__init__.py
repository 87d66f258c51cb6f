"""Algorithm 1 of PICO: divides a network into a chain of pieces whose worst one has the least redundant work."""
