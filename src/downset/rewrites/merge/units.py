"""Which units of a schedule can run as one convolution."""

from __future__ import annotations

from collections.abc import Sequence

from downset.graph.core import Graph
from downset.graph.kinds import kind_of
from downset.rewrites.merge.convolutions import mergeable

__all__ = ["why_not_merged"]


def why_not_merged(graph: Graph, units: Sequence[Sequence[int]]) -> str | None:
    """Why these units cannot run as one convolution, or None where they can. Each must be a convolution, alone or with
    the ReLU behind it."""
    for ops in units:
        first = graph.ops[ops[0]]
        if kind_of(first.kind).category != "convolution" or len(graph.tensors[first.outputs[0]].shape) != 4:
            return f"operator {first.name!r} is not a convolution of an image"
        alone = len(ops) == 1 or (graph.ops[ops[1]].kind == "Relu" and not first.attrs.get("activation"))
        if len(ops) > 2 or not alone or first.attrs.get("activation") not in (None, "", "Relu"):
            return f"operator {first.name!r} has more behind it than a ReLU"
    return mergeable(graph, [ops[0] for ops in units])
