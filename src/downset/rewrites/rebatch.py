"""The same network for another batch size."""

from __future__ import annotations

from dataclasses import replace

from downset.errors import UnsupportedError, UsageError
from downset.graph.core import ABSENT, Graph, tensor_bytes

__all__ = ["batch_of", "batch_or_one", "rebatch"]


def batch_of(graph: Graph) -> int:
    """The leading dimension that all inputs share. Raises UnsupportedError where they share none."""
    leading = {graph.tensors[tensor].shape[:1] for tensor in graph.inputs}
    if len(leading) != 1 or leading == {()}:
        raise UnsupportedError(f"{graph.name}: the inputs share no leading dimension, so there is no batch")
    (((batch,)),) = leading
    return batch


def batch_or_one(graph: Graph) -> int:
    """The leading dimension that all inputs share, or 1 where they share none."""
    try:
        return batch_of(graph)
    except UnsupportedError:
        return 1


def rebatch(graph: Graph, batch: int) -> Graph:
    """The graph with `batch` as the leading dimension of every activation. Raises UsageError for a batch below 1, and
    UnsupportedError that names an operator that reads nothing, or the first activation whose leading dimension is not
    the present batch. O(tensors)."""
    if batch < 1:
        raise UsageError(f"batch must be at least 1; given {batch}")
    before = batch_of(graph)
    if batch == before:
        return graph
    for op in graph.ops:
        if not op.inputs and not all(tensor in graph.constants for tensor in op.outputs):
            raise UnsupportedError(
                f"operator {op.name!r} makes its values of numbers alone, which may be for batch {before} only; the "
                f"network cannot be planned for batch {batch}"
            )
    results = {tensor for op in graph.ops for tensor in op.outputs if tensor != ABSENT} | set(graph.inputs)
    tensors = list(graph.tensors)
    for index in sorted(results - set(graph.constants)):
        tensor = tensors[index]
        if tensor.dtype == "opaque":
            continue  # a further output that no operator reads
        if tensor.shape[:1] != (before,):
            raise UnsupportedError(
                f"tensor {tensor.name!r} of shape {list(tensor.shape)} does not lead with the batch {before}; "
                f"the network cannot be planned for batch {batch}"
            )
        shape = (batch, *tensor.shape[1:])
        tensors[index] = replace(tensor, shape=shape, nbytes=tensor_bytes(shape, tensor.dtype))
    return replace(graph, tensors=tuple(tensors))
