"""What a network is made of, and what each operator needs while it runs."""

from __future__ import annotations

import math
import sys

from downset.errors import LimitReached
from downset.graph.core import Graph
from downset.lattice import count_downsets, estimate_downsets, width
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MemoryModel, memory_model
from downset.results import Inspection, StepNeed

__all__ = ["inspect"]

_DOWNSET_LIMIT = 100_000
"""Downsets are counted exactly up to here (about a second); beyond it the number is estimated."""
_WALKED = 100_000
"""Operators that the random walks of the estimate add in all (a second or two)."""
_MEMORY = {"tflite": "tflm", "onnx": "ort", "torch": "torch"}
"""The memory model of a file's usual runtime, by its format."""


def inspect(graph: Graph, *, memory: str | MemoryModel | None = None) -> Inspection:
    """Operators, tensors, bytes, width and number of downsets of a network, and the live bytes of its file's order.

    `memory`: default tflm for a .tflite file, ort for .onnx, torch for .pt2, else live. Downsets are counted up to
    100,000 and estimated from seeded random walks beyond. Raises UsageError for an unknown memory model.
    """
    model = memory_model(_MEMORY.get(graph.source.format, "live") if memory is None else memory)
    problem = order_problem(graph, model)
    try:
        downsets, exact = count_downsets(problem.predecessors, limit=_DOWNSET_LIMIT), True
    except LimitReached:
        samples = min(max(_WALKED // max(len(graph.ops), 1), 10), 200)
        downsets, exact = estimate_downsets(problem.predecessors, samples=samples, seed=0), False
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
            StepNeed(step, op.kind, op.name, live) for step, (op, live) in enumerate(zip(graph.ops, needs, strict=True))
        ),
    )
