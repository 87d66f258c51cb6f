"""Which rows of an input an operator reads, clipped to what there is: what tests hold kernels and costs to."""

from downset.graph.halos import extent, input_map


def input_interval(op, graph, position, wanted, axis=0):
    """For the rows `wanted` of the outputs. Kinds that need everything read the whole extent."""
    found = input_map(graph, op, position, axis)
    rows = extent(graph, op.inputs[position], axis)
    if wanted[0] >= wanted[1]:
        return (0, 0)
    return (0, rows) if found is None else found(wanted, rows)
