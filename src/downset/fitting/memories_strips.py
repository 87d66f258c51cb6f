"""A network in strips of rows that fits in fast memory, or nearly, so that little goes to slow memory or comes from
it."""

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
    within the capacity without inputs and outputs, else by the plan of least peak; `counted`: with what TFLite Micro
    keeps for its further operators. None where no segment is computed in strips."""
    try:
        rows = writable_rows(graph, row_form(graph, halos_required=False))
        persistent = tflm_persistent(graph) if counted else None
        front = partial_front(graph, memory=_ENDS_SLOW, limits=limits, form=rows, persistent=persistent)
        plans = [plan for plan in front.plans if plan.segments]
        if not plans:
            return None
        least = min(plan.price.persistent_bytes for plan in front.plans)
        taken = {plan: plan.price.peak_bytes + plan.price.persistent_bytes - least for plan in plans}
        plan = min(plans, key=lambda one: (max(taken[one], capacity), one.price.extra_operators, one.cost))
        return tflite_form(in_strips(graph, plan.segments, form=rows), in_place="nothing")
    except DownsetError:
        return None
