"""The float types in which a graph's operators are computed: the model's own, or one to which all are cast."""

from __future__ import annotations

from collections.abc import Iterator

from downset.graph.core import ABSENT, Graph
from downset.graph.kinds import kind_of

__all__ = ["FLOATS", "OWN", "cast_text", "coarsest", "float_types", "numpy_type", "type_in_common"]

FLOATS = ("float64", "float32", "float16", "bfloat16")
"""Float types, the coarsest last."""
OWN = "model"
"""The name of the choice that each tensor is computed in the type that the model states."""


def numpy_type(dtype: str) -> str:
    """The element type of numpy in which constants of an element type are read: numpy has no bfloat16, and float32
    holds each of its values."""
    return "float32" if dtype == "bfloat16" else dtype


def _computed(graph: Graph) -> Iterator[int]:
    """The tensors that operators compute with: not shapes and other numbers that they read as parameters, and nothing
    of operators whose results are constants."""
    yield from graph.inputs
    yield from graph.outputs
    for op in graph.ops:
        results = [tensor for tensor in op.outputs if tensor != ABSENT]
        if all(tensor in graph.constants for tensor in results):
            continue
        numbers = kind_of(op.kind).further == "numbers"
        yield from (tensor for place, tensor in enumerate(op.inputs) if tensor != ABSENT and not (place and numbers))
        yield from results


def float_types(graph: Graph) -> dict[str, list[int]]:
    """The float types of the tensors that operators compute with, the coarsest last, each with its tensors."""
    by_type: dict[str, list[int]] = {name: [] for name in FLOATS}
    for tensor in dict.fromkeys(_computed(graph)):
        if graph.tensors[tensor].dtype in by_type:
            by_type[graph.tensors[tensor].dtype].append(tensor)
    return {name: tensors for name, tensors in by_type.items() if tensors}


def type_in_common(graph: Graph, dtype: str) -> str:
    """The one float type in which all floats of a graph are computed: `dtype`, or for "model" the type that all of them
    have; "model" where they have several types or there are none."""
    types = float_types(graph) if dtype == OWN else {}
    return next(iter(types)) if len(types) == 1 else dtype


def coarsest(graph: Graph, dtype: str) -> str:
    """The coarsest float type of the graph and of its computation in `dtype`; float32 where there are no floats."""
    types = {*float_types(graph), dtype} - {OWN}
    return max(types, key=FLOATS.index, default="float32")


def cast_text(graph: Graph, dtype: str) -> str:
    """A sentence on the floats that are computed in `dtype` and have another type, with the first of each type; empty
    where nothing is cast."""
    others = {} if dtype == OWN else {name: tensors for name, tensors in float_types(graph).items() if name != dtype}
    texts = []
    for name, tensors in others.items():
        more = f" and {len(tensors) - 1} more" if len(tensors) > 1 else ""
        texts.append(f"{name} ({graph.tensors[tensors[0]].name!r}{more})")
    return f"cast to {dtype}, the plan's element type: floats of {' and of '.join(texts)}" if texts else ""
