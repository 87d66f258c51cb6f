"""Plans as text: pure functions from a graph and its plans to words and numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.graph.core import Graph
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import MemoryModel
from downset.plans import Arena, Order
from downset.text import format_bytes, printable

__all__ = ["PeakCause", "peak_cause", "report"]


@dataclass(frozen=True, slots=True)
class PeakCause:
    """Where an order needs most: the step, its operator, and the live tensors, largest first."""

    step: int
    operator: int
    nbytes: int
    live: tuple[tuple[str, int], ...]


def peak_cause(graph: Graph, steps: Sequence[int], memory: str | MemoryModel) -> PeakCause | None:
    """The first step of greatest need under the memory model; None for a graph without operators."""
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return None
    step = max(range(len(needs)), key=needs.__getitem__)
    records = lifetimes(graph, steps, memory).records
    alive = [(record.id, record.nbytes) for record in records if record.start <= step < record.stop]
    alive.sort(key=lambda item: -item[1])
    return PeakCause(step, steps[step], needs[step], tuple(alive))


def report(graph: Graph, order: Order, arena: Arena | None = None) -> str:
    """One screen of plain text: peak, arena, bounds, and what makes the peak."""
    evidence = order.evidence
    lines = [
        f"{printable(graph.name)}: {len(graph.ops)} operators, memory model {order.memory}",
        f"peak   {format_bytes(order.peak_bytes):>14} B  bound {format_bytes(evidence.bound)}"
        f"{'  proven optimal' if evidence.proven else ''}  ({evidence.method}, {evidence.states} states)",
    ]
    if arena is not None:
        lines.append(
            f"arena  {format_bytes(arena.arena_bytes):>14} B  bound {format_bytes(arena.evidence.bound)}"
            f"{'  proven optimal' if arena.evidence.proven else ''}  ({arena.evidence.method})"
        )
    cause = peak_cause(graph, order.steps, order.memory)
    if cause is not None:
        lines.append(f"the peak is at step {cause.step}, {graph.ops[cause.operator].name!r}, where these live:")
        lines += [f"  {format_bytes(nbytes):>14} B  {printable(name)}" for name, nbytes in cause.live]
    return "\n".join(lines)
