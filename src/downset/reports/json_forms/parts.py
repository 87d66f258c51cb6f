"""Parts of JSON forms that more than one command prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from downset.graph.core import Graph
from downset.reports.naming import kind_name
from downset.reports.peak import peak_cause

__all__ = ["named", "peak_json"]


def named(value: object, *names: str) -> dict[str, Any]:
    """Attributes of a value, by their names."""
    return {name: getattr(value, name) for name in names}


def peak_json(graph: Graph, steps: Sequence[int], memory: str) -> dict[str, Any] | None:
    """The cause of an order's peak, with every tensor that lives then."""
    cause = peak_cause(graph, steps, memory)
    if cause is None:
        return None
    return {
        "step": cause.step,
        "operator": graph.ops[cause.operator].name,
        "kind": kind_name(graph, graph.ops[cause.operator]),
        "bytes": cause.nbytes,
        "tensors": [{"name": name, "bytes": nbytes} for name, nbytes in cause.live],
    }
