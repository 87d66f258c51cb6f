"""A network and what its operators mean: the graph, operator kinds, costs, and which rows an operator reads."""
