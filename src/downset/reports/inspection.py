"""Tables of a network's operators and tensors, and of the memory that each operator needs."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

from downset.errors import LimitReached
from downset.graph.core import Graph
from downset.graph.width import width
from downset.lattice import count_downsets, divided, estimate_downsets, masks
from downset.memory.liveness import check_graph, order_problem, profile
from downset.memory.models import MemoryModel, memory_model
from downset.reports.naming import kind_name
from downset.results.fit import Inspection, StepNeed

__all__ = ["inspect"]

_DOWNSET_LIMIT = 100_000
"""Downsets are counted exactly up to here (about a second); beyond it the number is estimated."""
_COUNTED_OPERATORS = 4_000
"""The most operators in a part of the network whose downsets are counted. In larger parts each takes too many bits."""
_WALKED = 100_000
"""Operators that the random walks of the estimate add in all (a second or two)."""
_MEMORY = {"tflite": "tflm", "onnx": "ort", "torch": "torch"}
"""The memory model of a file's usual runtime, by its format."""


def inspect(graph: Graph, *, memory: str | MemoryModel | None = None) -> Inspection:
    """Operators, tensors, bytes, width and number of downsets of a network, and the live bytes in the order of its
    file.

    `memory`: a memory model; default tflm for a .tflite file, ort for .onnx, torch for .pt2, else live. Up to 100,000
    downsets are counted; beyond, their number is estimated from seeded random walks. Raises UsageError for an unknown
    memory model.
    """
    check_graph(graph)
    model = memory_model(_MEMORY.get(graph.source.format, "live") if memory is None else memory)
    problem = order_problem(graph, model)
    downsets, exact = _count(problem.predecessors)
    needs = profile(problem, range(len(graph.ops)))
    activations = [tensor for tensor in graph.tensors if tensor.role == "activation"]
    constants = [tensor for tensor in graph.tensors if tensor.role == "constant"]
    return Inspection(
        model=graph.source.path or graph.name,
        format=graph.source.format,
        memory=model.name,
        operators=len(graph.ops),
        tensors=len(activations),
        activation_bytes=sum(tensor.nbytes for tensor in activations),
        weight_bytes=sum(tensor.nbytes for tensor in constants),
        width=width(problem.predecessors),
        downsets=downsets if exact else min(downsets, int(sys.float_info.max)),
        downsets_log10=math.log10(downsets),
        downsets_exact=exact,
        peak_bytes=max([problem.floor_bytes, *needs]),
        inputs=tuple(graph.tensors[tensor] for tensor in graph.inputs),
        outputs=tuple(graph.tensors[tensor] for tensor in graph.outputs),
        steps=tuple(
            StepNeed(step, kind_name(graph, op), op.name, live)
            for step, (op, live) in enumerate(zip(graph.ops, needs, strict=True))
        ),
    )


def _count(predecessors: Sequence[Sequence[int]]) -> tuple[int, bool]:
    """The number of downsets, and whether all of it was counted. It is the sum over the parts of the network; in parts
    with too many operators or downsets it is estimated."""
    total, exact = 1, True
    for part in divided(predecessors):
        try:
            if len(part) > _COUNTED_OPERATORS:
                raise LimitReached(f"{len(part)} operators")
            total += count_downsets(masks(part), limit=_DOWNSET_LIMIT) - 1
        except LimitReached:
            exact = False
            samples = min(max(_WALKED // len(part), 10), 200)
            total += max(estimate_downsets(part, samples=samples, seed=0) - 1, len(part))
    return total, exact
