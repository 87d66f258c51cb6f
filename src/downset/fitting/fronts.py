"""Writes and measures a few plans of the front of partial execution, from the cheapest to the one of least memory."""

from __future__ import annotations

from dataclasses import replace

from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.fitting.measuring import measure
from downset.fitting.strips import StripSearch, files_of
from downset.fitting.trials import Trials
from downset.graph.cost import macs
from downset.partial.front import PartialPlan
from downset.results.fit import FrontRow

__all__ = ["measured_front"]

_ROWS = 8
"""The most plans that are written and measured."""


def measured_front(job: Job, search: StripSearch, trials: Trials, chosen: Candidate) -> tuple[FrontRow, ...]:
    """The plans are spread over the front, with those of the most and the least memory; the shipped file
    is added if it computes in strips. Rows that another beats in memory, arithmetic and file size are left out, except
    that of the shipped file."""
    rows: list[FrontRow] = []
    for plan in _spread([plan for plan in search.front.plans if plan.segments]):
        if plan not in search.placing.files_of and not job.may_search("plans are left out of the front"):
            continue
        files = files_of(job, search, plan, "front")
        if any(file.rewrites == chosen.rewrites for file in files):
            continue  # it was measured before, and its row follows
        measured = measure(job, files, original=trials.original)
        best = min(measured or files, key=Candidate.cost)
        rows.append(_timed(trials, best, _row(search, best)))
        trials.forget(best)
        for file in files:
            file.path.unlink()
    if any(rewrite.kind == "row-wise" for rewrite in chosen.rewrites):
        rows.append(replace(_timed(trials, chosen, _row(search, chosen)), ships=True))
    kept = [row for row in rows if row.ships or not any(_beats(other, row) for other in rows)]
    return tuple(sorted(kept, key=lambda row: (-row.arena_bytes, row.extra_macs)))


def _beats(one: FrontRow, other: FrontRow) -> bool:
    """Whether a row is at least as good in every figure that is compared, and better in one."""

    def weighed(row: FrontRow) -> tuple[int, ...]:
        parts = ("head_bytes", "total_bytes")
        return (row.arena_bytes, row.extra_macs, row.file_bytes, *(row.measured.get(part, 0) for part in parts))

    return weighed(one) != weighed(other) and all(map(int.__le__, weighed(one), weighed(other)))


def _spread(plans: list[PartialPlan]) -> list[PartialPlan]:
    by_bytes = sorted(plans, key=lambda plan: (-plan.price.peak_bytes, plan.cost))
    if len(by_bytes) <= _ROWS:
        return by_bytes
    steps = [number * (len(by_bytes) - 1) // (_ROWS - 1) for number in range(_ROWS)]
    return [by_bytes[step] for step in steps]


def _row(search: StripSearch, file: Candidate) -> FrontRow:
    assert file.plan is not None
    graph = file.plan.graph
    extra = macs(graph) - macs(search.graph)
    return FrontRow(
        tuple(rewrite.name for rewrite in file.rewrites),
        file.plan.together.order.peak_bytes,
        file.arena_bytes,
        extra,
        extra / max(macs(search.graph), 1),
        len(graph.ops),
        file.path.stat().st_size,
        dict(file.measured or {}),
    )


def _timed(trials: Trials, file: Candidate, row: FrontRow) -> FrontRow:
    """The row with the times of both files in the target's runtime, if it runs them."""
    latency = trials.timed(file).latency
    return row if latency is None else replace(row, before_s=latency.usual_s, latency=latency)
