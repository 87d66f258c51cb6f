"""The notes of a fit about strips: the arithmetic of those that ship, and what more of them would reach."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from downset.fitting.candidates import Candidate, PlannedGraph
from downset.fitting.job import Job
from downset.fitting.strips import StripSearch, writable_form
from downset.graph.core import Graph
from downset.graph.cost import macs
from downset.graph.kinds import kind_of
from downset.graph.row_form import RowForm
from downset.memory.liveness import order_problem, profile
from downset.messages import Message, Setting
from downset.partial.front import PartialPlan
from downset.partial.search import partial_front
from downset.results.next_step import NextStep
from downset.rewrites.folding import folded_operators
from downset.rewrites.two_passes import has_row_means, in_two_passes
from downset.text import counted, format_bytes, operator_name

__all__ = ["arithmetic", "note_arithmetic", "remedies"]

_SMALL = 0.1
"""Changes of the arithmetic below this many percent are reported as less than that."""


def note_arithmetic(job: Job, graph: Graph, files: Sequence[Candidate]) -> None:
    """Add notes about a network in strips, the same in all its files: about its MACs, its sums, and an operator at its
    peak that needs all rows of its input."""
    if files and files[0].plan is not None:
        job.notes.add(arithmetic(graph, files[0].plan.graph))
        job.notes.add(*_whole_at_peak(graph, files[0].plan))
        gone = folded_operators(graph, files[0].plan.graph)
        if gone:
            count = counted(len(gone), "operator")
            job.notes.add(f"constants took the place of {count} that compute sizes (folded); open sizes stay open")
        if in_two_passes(files[0].plan.graph):
            job.notes.add("normalisations run in two passes, statistics of rows first: equal up to rounding")
        if has_row_means(files[0].plan.graph):
            job.notes.add("global means are taken of the means of rows: equal up to rounding")


def _whole_at_peak(graph: Graph, plan: PlannedGraph) -> list[str]:
    """A line that names the operator at the peak of a network in strips, if it needs all rows of an input."""
    striped, order = plan.graph, plan.together.order
    live = profile(order_problem(striped, order.memory), order.steps)
    peak = striped.ops[order.steps[max(range(len(live)), key=live.__getitem__)]]
    index = next((number for number, op in enumerate(graph.ops) if op.name == peak.name), None)
    if index is None or not _reads_all_rows(writable_form(graph), index):
        return []
    sums = kind_of(peak.kind).macs in ("gemm", "matmul")
    exact = order.memory.startswith("tflm") and striped.tensors[peak.outputs[0]].dtype == "float32"
    rounded = ", and the sums of its parts would be rounded" if sums and not exact else ""
    return [f"the peak is at {peak.kind} {operator_name(peak.name)}: it needs all rows of its input at once{rounded}"]


def _reads_all_rows(form: RowForm, index: int) -> bool:
    op = form.ops[index]
    return any(
        form.rows[item.tensor] > 1
        and (op.whole or item.map is None or item.map((0, 1), form.rows[item.tensor]) == (0, form.rows[item.tensor]))
        for item in op.inputs
    )


def arithmetic(graph: Graph, striped: Graph) -> str:
    """A note about the MACs of a network in strips. They may be fewer than before, as strips can leave rows out."""
    share = 100 * (macs(striped) - macs(graph)) / max(macs(graph), 1)
    if not share:
        return "in strips the network computes as much as before"
    percent = f"{abs(share):.1f}%" if abs(share) >= _SMALL else f"less than {_SMALL}%"
    return f"in strips the network computes {percent} {'more' if share > 0 else 'less'}"


def remedies(search: StripSearch, needed_bytes: int, limit_bytes: int) -> list[NextStep]:
    """Ways to make the network fit, with numbers. In the search time that is left, plans with more strips are
    searched."""
    search_time = search.placing.search_time
    beside = max(needed_bytes - search.front.least.price.peak_bytes, 0)
    ways: list[NextStep] = []
    more: Sequence[PartialPlan] = search.front.beyond
    if search.limits.max_strips is not None and not search_time.over:
        seconds = min(search.limits.time_limit_s, search_time.left_s)
        limits = replace(search.limits, max_recompute=None, max_strips=None, time_limit_s=seconds)
        with search_time.running():
            more = partial_front(
                search.graph, memory=search.memory, limits=limits, form=search.form, persistent=search.persistent
            ).plans
    elif search.limits.max_strips is not None:
        above = f" above {search.limits.max_strips} (no time was left to search there)."
        ways.append(NextStep(Message(Setting("strips"), above)))
    fitting = [plan for plan in more if plan.price.peak_bytes + beside <= limit_bytes]
    least = min(fitting or more, key=lambda plan: plan.cost if fitting else (plan.price.peak_bytes,), default=None)
    if least is not None and least.price.peak_bytes + beside < needed_bytes:
        share = least.price.extra_macs / max(macs(search.graph), 1)
        most = max((part.strips for part in least.segments), default=1)
        reached = least.price.peak_bytes + beside
        allowed = math.ceil(1000 * max(share, 0)) / 1000
        settings = Setting("max_recompute", allowed), " and ", Setting("strips", most)
        text = Message(*settings, f": about {format_bytes(reached)} B.")
        ways.append(NextStep(text, needed_bytes - reached, suffices=reached <= limit_bytes))
    for tensor in search.graph.inputs:
        shape = search.graph.tensors[tensor].shape
        if len(shape) == 4 and limit_bytes > beside:
            share = (limit_bytes - beside) / max(needed_bytes - beside, 1)
            rows = int(max(search.form.rows[tensor], 1) * share**0.5)
            smaller = f"Take an input of about {rows} rows and columns, not {search.form.rows[tensor]} (estimated)."
            ways.append(NextStep(smaller, needed_bytes - limit_bytes, suffices=True))
            break
    return ways
