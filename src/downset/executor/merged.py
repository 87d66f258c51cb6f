"""Runs several convolutions of one input as one: weights are stacked, and each result is a slice of the channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from downset.errors import UnsupportedError
from downset.executor.binder import Binder, KernelCall
from downset.executor.convolutions import ConvolutionGeometry
from downset.extras import torch_library
from downset.graph.core import ABSENT, Graph
from downset.graph.edit import Edit
from downset.rewrites.merge.units import why_not_merged
from downset.rewrites.merge.window import joined_conv, windows

__all__ = ["bind_merged"]


def _relu(graph: Graph, ops: Sequence[int]) -> bool:
    return len(ops) == 2 or graph.ops[ops[0]].attrs.get("activation") == "Relu"


def bind_merged(binder: Binder, units: Sequence[Sequence[int]], *, threads: int) -> tuple[KernelCall, ...]:
    """One call that makes the results of all units, those with a ReLU first. If only some units have a ReLU, one ReLU
    runs over their channels together. Raises UnsupportedError if the units cannot be merged."""
    graph, torch = binder.graph, torch_library()
    reason = why_not_merged(graph, units)
    if reason is not None:
        raise UnsupportedError(f"{len(units)} units cannot run as one: {reason}")
    units = sorted(units, key=lambda ops: not _relu(graph, ops))
    ops = [ops[0] for ops in units]
    results = tuple(graph.ops[ops[-1]].outputs[0] for ops in units)
    source = graph.ops[ops[0]].inputs[0]
    edit = Edit(graph)
    joined = joined_conv(edit, graph, ops, source, ABSENT)
    weights, *bias = (binder.place_weights(edit.constants[tensor]()) for tensor in joined.inputs[1:])
    relus = [_relu(graph, unit) for unit in units]
    geometry = ConvolutionGeometry(
        graph.tensors[source].shape,
        tuple(joined.attrs["pads"]),
        tuple(joined.attrs["strides"]),
        tuple(joined.attrs["dilations"]),
        1,
        (0.0, math.inf) if all(relus) else None,
    )
    # Operators may share weights. `windows` says where their taps lie in the joined weights, so the key has it too.
    key = ("merged", *((graph.ops[op].inputs[1], windows(graph, op)) for op in ops))
    convolve = binder.convolutions.bind(key, weights, bias[0] if bias else None, geometry, threads=threads)
    parts = [graph.tensors[result].shape[1] for result in results]
    behind = sum(part for part, relu in zip(parts, relus, strict=True) if relu)

    def run(values: list[Any]) -> Sequence[Any]:
        (whole,) = convolve(values)
        if behind and not geometry.relu:
            whole.narrow(1, 0, behind).relu_()
        return list(torch.split(whole, parts, dim=1))

    return (KernelCall((source,), results, run),)
