"""Networks in strips of rows that may need less traffic between two memories than the network as it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from downset.errors import DownsetError
from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from downset.partial.front import PartialPlan
from downset.partial.memory_form import tflm_persistent
from downset.partial.rewrite import in_strips
from downset.partial.search import PartialLimits, partial_front
from downset.rewrites.tflite_form import tflite_form, writable_rows

__all__ = ["networks_in_strips"]

_ENDS_SLOW = replace(
    TFLM_WITHOUT_OFFSETS, name="tflm, ends in slow memory", inputs="not counted", outputs_counted=False
)
"""Rows that strips cut out are copied, which brings them into fast memory; the network's inputs and outputs lie in slow
memory."""
_TRIED = 3
"""Plans in strips that are tried."""


def networks_in_strips(graph: Graph, capacity: int, limits: PartialLimits) -> Iterator[Graph]:
    """Yields the network in strips, in a form that a .tflite file can state: by the cheapest plan whose peak is within
    the capacity without inputs and outputs, or that of least peak, and by plans of less peak. Nothing where the network
    has no segment that strips compute."""
    try:
        rows = writable_rows(graph, row_form(graph, halos_required=False))
        front = partial_front(graph, memory=_ENDS_SLOW, limits=limits, form=rows, persistent=tflm_persistent(graph))
    except DownsetError:
        return
    for plan in _tried(front.plans, capacity):
        try:
            yield tflite_form(in_strips(graph, plan.segments, form=rows), in_place="nothing")
        except DownsetError:
            continue


def _tried(plans: tuple[PartialPlan, ...], capacity: int) -> list[PartialPlan]:
    """Plans in strips that fit with what TFLite Micro keeps for their operators, the fewest operators first; else the
    one that takes least of both."""
    least = min((plan.price.persistent_bytes for plan in plans), default=0)

    def taken(plan: PartialPlan) -> int:
        return plan.price.peak_bytes + plan.price.persistent_bytes - least

    by_operators = sorted(
        (plan for plan in plans if plan.segments), key=lambda plan: (plan.price.extra_operators, plan.cost)
    )
    within = [plan for plan in by_operators if taken(plan) <= capacity]
    if not within:
        return sorted(by_operators, key=taken)[:1]
    step = max(1, (len(within) - 1) // (_TRIED - 1))
    return within[::step][:_TRIED]
