"""Steps that a user can take next about a network's memory, each with its gain, the largest first."""

from __future__ import annotations

from dataclasses import dataclass

from downset.memory.liveness import lifetimes, order_problem, profile
from downset.results import Fit
from downset.text import format_bytes, printable, shortened

__all__ = ["NextStep", "next_steps"]

_LARGEST = 3
"""How many of the tensors at the peak are looked at."""
_QUARTER = ("tflm", "litert")
"""Targets that run int8 networks of a quarter of the bytes."""


@dataclass(frozen=True, slots=True)
class NextStep:
    """`gained_bytes` of the arena, analytic; None where it is not known."""

    text: str
    gained_bytes: int | None


def next_steps(fit: Fit) -> list[NextStep]:
    """Ranked: more search where it is not proven least, smaller tensors at the peak, int8 where floats are planned."""
    found = _more_search(fit) + _smaller_tensors(fit) + _quantised(fit)
    return sorted(found, key=lambda step: -(step.gained_bytes or 0))


def _more_search(fit: Fit) -> list[NextStep]:
    gap = fit.arena.after - fit.arena.bound
    if fit.arena.proven or gap <= 0:
        return []
    return [
        NextStep(
            f"Search longer (--time-limit 60s): the arena is not proven least, at most {format_bytes(gap)} B may still "
            f"be saved; the bound is {format_bytes(fit.arena.bound)} B.",
            gap,
        )
    ]


def _smaller_tensors(fit: Fit) -> list[NextStep]:
    """Steps that halve a tensor at the peak, with the peak of this order that is left."""
    graph = fit.graph
    steps = fit.together.order.steps if fit.ships_plan else tuple(range(len(graph.ops)))
    memory = fit.memory if fit.ships_plan else fit.target
    needs = profile(order_problem(graph, memory), steps)
    if not needs:
        return []
    peak = max(needs)
    step = needs.index(peak)
    live = [record for record in lifetimes(graph, steps, memory).records if record.start <= step < record.stop]
    found = []
    for record in sorted(live, key=lambda one: -one.nbytes)[:_LARGEST]:
        half = record.nbytes // 2
        left = max(need - half if record.start <= at < record.stop else need for at, need in enumerate(needs))
        if left < peak:
            found.append(
                NextStep(
                    f"Halve tensor {shortened(printable(record.id), 60)} ({format_bytes(record.nbytes)} B; fewer "
                    f"channels or a smaller input): this order would peak at {format_bytes(left)} B, "
                    f"{format_bytes(peak - left)} B less (analytic).",
                    peak - left,
                )
            )
    return found


def _quantised(fit: Fit) -> list[NextStep]:
    kinds = {tensor.dtype for tensor in fit.graph.tensors if tensor.role == "activation" and tensor.nbytes}
    if fit.target not in _QUARTER or kinds != {"float32"}:
        return []
    gained = fit.arena.after - fit.arena.after // 4
    return [
        NextStep(
            f"Quantise to int8: the same plan takes about a quarter, {format_bytes(fit.arena.after // 4)} B (analytic; "
            "it changes results).",
            gained,
        )
    ]
