"""The search behind `exact` in one of its engines: the compiled one, or the Python one that specifies it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from downset.cluster import Cluster
from downset.errors import UsageError
from downset.native import native_module
from downset.pipelines import exact_python
from downset.pipelines.device_order import canonical
from downset.pipelines.drafts import Drafted, Split, StageDraft
from downset.pipelines.problem import SplitProblem
from downset.pipelines.strips import tiles

__all__ = ["Searched", "search"]

_STATES = 200_000_000


class Searched(NamedTuple):
    """`period_s` is infinite where nothing below the incumbent was found; `bound_s` holds for every plan of the space
    asked for, whether the search `finished` or not."""

    period_s: float
    bound_s: float
    finished: bool
    states: int
    stages: Drafted


def search(
    problem: SplitProblem,
    cluster: Cluster,
    *,
    comm: str = "full",
    max_latency_s: float | None = None,
    incumbent_s: float = math.inf,
    time_limit_s: float = 10.0,
    engine: str = "native",
    several_blocks: bool = True,
    least_latency: bool = False,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> Searched:
    """The pipeline of least period below the incumbent's, or with `least_latency` that of least latency.

    `several_blocks`: stages may be several fused blocks; the compiled search finds such on links without overlap and
    bounds them elsewhere. `forbidden`: (start, stop, device) that no stage may be."""
    form = canonical(cluster)
    handover = [0 if comm == "paper" else nbytes for nbytes in problem.cut_bytes()]
    limit = math.inf if max_latency_s is None else max_latency_s
    shared = cluster.network.kind == "shared"
    banned = sorted((start, stop, form.order.index(device)) for start, stop, device in forbidden)
    if engine == "python":
        found = exact_python.search(
            problem,
            form,
            handover,
            cluster.network.overlap,
            shared,
            limit,
            several_blocks,
            least_latency,
            incumbent_s,
            time_limit_s,
            banned,
        )
    elif engine == "native":
        found = native_module().pipeline_search(
            problem.cuts, _tables(problem), list(problem.least_macs_before()), handover,
            list(form.speed), list(form.type),
            [list(line) for line in form.per_byte], [list(line) for line in form.latency], form.uniform,
            cluster.network.overlap, shared, limit, several_blocks, least_latency, incumbent_s, time_limit_s, _STATES,
            banned,
        )  # fmt: skip
    else:
        raise UsageError(f"unknown engine {engine!r}; choose native or python")
    period, bound, finished, states, stages = found
    return Searched(period, bound, finished, states, _drafts(stages, form.order))


def _tables(problem: SplitProblem) -> list[tuple[Any, ...]]:
    lines = problem.cuts + 1
    tables: list[tuple[Any, ...]] = [(0, [], [], [], [], [], [])] * (lines * lines)
    for start in range(problem.cuts):
        for stop in range(start + 1, lines):
            segment = problem.segment(start, stop)
            macs = [table[0].tolist() for table in (segment.upper, segment.lower, segment.final)]
            moved = [(table[1] + table[2]).tolist() for table in (segment.upper, segment.lower, segment.final)]
            tables[start * lines + stop] = (segment.rows, *macs, *moved)
    return tables


def _drafts(stages: Sequence[Any], order: Sequence[int]) -> Drafted:
    drafts = []
    for leader, blocks, devices in stages:
        names = [order[device] for device in devices]
        splits = tuple(Split(start, stop, tiles(names, bounds)) for start, stop, bounds in blocks)
        drafts.append(StageDraft(order[leader], splits))
    return tuple(drafts)
