"""Networks in strips of rows all of which fits in fast memory, so that little goes to slow memory or comes from it."""

from __future__ import annotations

from dataclasses import replace

from downset.errors import DownsetError
from downset.graph.core import Graph
from downset.graph.cost import row_form
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from downset.partial.memory_form import tflm_persistent
from downset.partial.rewrite import in_strips
from downset.partial.search import PartialLimits, partial_front
from downset.rewrites.tflite_form import tflite_form, writable_rows

__all__ = ["network_in_strips"]

_ENDS_SLOW = replace(
    TFLM_WITHOUT_OFFSETS, name="tflm, ends in slow memory", inputs="not counted", outputs_counted=False
)
"""Rows that strips cut out are copied, which brings them into fast memory; the network's inputs and outputs lie in slow
memory."""


def network_in_strips(graph: Graph, capacity: int, limits: PartialLimits, *, counted: bool) -> Graph | None:
    """The network in strips, in a form that a .tflite file can state, by the plan of fewest operators whose peak is
    within the capacity without inputs and outputs, where `counted` with what TFLite Micro keeps for its further
    operators. None where there is no such plan."""
    try:
        rows = writable_rows(graph, row_form(graph, halos_required=False))
        persistent = tflm_persistent(graph) if counted else None
        front = partial_front(graph, memory=_ENDS_SLOW, limits=limits, form=rows, persistent=persistent)
        least = min((plan.price.persistent_bytes for plan in front.plans), default=0)
        within = [
            plan
            for plan in front.plans
            if plan.segments and plan.price.peak_bytes + plan.price.persistent_bytes - least <= capacity
        ]
        if not within:
            return None
        plan = min(within, key=lambda plan: (plan.price.extra_operators, plan.cost))
        return tflite_form(in_strips(graph, plan.segments, form=rows), in_place="nothing")
    except DownsetError:
        return None
