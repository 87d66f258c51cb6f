"""Algorithm 1 of PICO: a network as a chain of pieces with the least redundant work in the worst one."""
