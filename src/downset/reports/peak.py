"""The operator and the tensors at the peak of an order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.graph.core import Graph
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel
from downset.text import abridged

__all__ = ["PeakCause", "peak_cause"]


@dataclass(frozen=True, slots=True)
class PeakCause:
    """The cause of an order's peak: the step, its operator, and the live tensors, largest first."""

    step: int
    operator: int
    nbytes: int
    live: tuple[tuple[str, int], ...]

    __repr__ = abridged


def peak_cause(graph: Graph, steps: Sequence[int], memory: str | MemoryModel) -> PeakCause | None:
    """The first step with the largest transient under the memory model; None for a graph without operators."""
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return None
    step = max(range(len(needs)), key=needs.__getitem__)
    records = lifetimes(graph, steps, memory).records
    alive = [(record.id, record.nbytes) for record in records if record.start <= step < record.stop]
    alive.sort(key=lambda item: -item[1])
    return PeakCause(step, steps[step], needs[step], tuple(alive))
