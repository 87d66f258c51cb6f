"""Pipelines of least period, with proof: every way to group units into stages and devices into sets.

Source: ours; what PICO's conclusion asks for ("balance the workload across different stages").
Names: cut, units → the chain of `SplitProblem`; set → a multiset of device types.
Complexity: states are (cut, multiset of devices used), at most (units + 1) · Π(devices of a type + 1), times the sets
that can follow; pruned by the MACs that must come before and after at the best period so far.
Space: stages of consecutive units; any device may stay idle; in a stage the devices lie in order of falling speed (then
of name) from the top row down, each with any number of rows, none included; any of them leads. On links without overlap
a stage may be several fused blocks one after another. On overlapping or shared networks stages of several blocks are
not searched: there the better of the best one-block plan and the rivals' is returned, and called proven only where it
meets the bound that holds for every plan. Tiles with columns and halo exchange (rivals) lie outside on every network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from downset.cluster import Cluster
from downset.errors import InfeasibleError, LimitReached, UsageError
from downset.native import native_module
from downset.pipelines.drafts import Drafted, FoundPipeline, Split, StageDraft, on_cuts
from downset.pipelines.problem import SplitProblem, joined
from downset.pipelines.rivals import INSIDE, OUTSIDE, QUICK, rivals
from downset.pipelines.strips import tiles
from downset.pipelines.timing import period_and_latency, stages_of
from downset.units import format_bytes

__all__ = ["Canonical", "canonical", "exact", "least_latency"]

_STATES = 200_000_000


@dataclass(frozen=True, slots=True)
class Canonical:
    """Devices in the order that strips lie in. `type` numbers interchangeable ones alike, ascending."""

    order: tuple[int, ...]
    speed: tuple[float, ...]
    type: tuple[int, ...]
    per_byte: tuple[tuple[float, ...], ...]
    latency: tuple[tuple[float, ...], ...]
    uniform: bool


def canonical(cluster: Cluster) -> Canonical:
    """Devices sorted by falling speed, then name; alike where speed is equal and all pairs have one rate."""
    devices = cluster.devices
    uniform = not cluster.network.links
    order = sorted(
        range(len(devices)), key=lambda k: (-devices[k].speed, devices[k].memory_bytes or 0, devices[k].name)
    )
    types: list[int] = []
    for place, device in enumerate(order):
        before = devices[order[place - 1]]
        alike = (
            uniform
            and place > 0
            and (before.speed, before.memory_bytes) == (devices[device].speed, devices[device].memory_bytes)
        )
        types.append(types[-1] if alike else len(set(types)))
    pairs = [[cluster.link(first, second) for second in order] for first in order]
    return Canonical(
        tuple(order),
        tuple(devices[device].speed for device in order),
        tuple(types),
        tuple(tuple(1.0 / rate for rate, _ in line) for line in pairs),
        tuple(tuple(latency for _, latency in line) for line in pairs),
        uniform,
    )


def exact(
    problem: SplitProblem,
    cluster: Cluster,
    *,
    comm: str = "full",
    max_latency_s: float | None = None,
    time_limit_s: float = 10.0,
    engine: str = "native",
    several_blocks: bool = True,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
    strict: tuple[int, ...] | None = None,
    **_: Any,
) -> FoundPipeline:
    """The pipeline of least period within the latency limit, or the best found in `time_limit_s` with a bound.

    `strict`: the cuts that the rivals plan on, where they know no relays. Raises InfeasibleError, with the least
    latency, where no plan is within the limit."""
    cuts = strict or tuple(range(problem.cuts + 1))
    coarse = problem if strict is None else joined(problem, strict)
    everything = total_bound_s(problem, cluster)
    best: tuple[float, Drafted] = (math.inf, ())
    outside = False

    def rival(planner: Callable[..., FoundPipeline]) -> None:
        nonlocal best, outside
        drafts = on_cuts(planner(coarse, cluster, comm=comm).stages, cuts)
        stages = stages_of(problem, cluster, drafts, comm=comm)
        period, latency = period_and_latency(cluster, stages)
        if any(
            not _allowed(forbidden, stage.blocks[0].start, stage.blocks[-1].stop, stage.devices) for stage in stages
        ):
            return
        if (max_latency_s is None or latency <= max_latency_s) and period < best[0]:
            best, outside = (period, drafts), planner in OUTSIDE

    for planner in QUICK:
        rival(planner)
    period, bound, finished, states, drafts = _search(
        problem, cluster, comm, max_latency_s, best[0], time_limit_s, engine, several_blocks, forbidden=forbidden
    )
    if period < best[0]:
        best = (period, drafts)
    # What a search that is whole has covered need not be planned; of the others only what could be shorter.
    covered = finished and not cluster.network.links and max_latency_s is None
    for planner in (*(() if covered else INSIDE), *OUTSIDE):
        if planner not in OUTSIDE or OUTSIDE[planner](coarse, cluster) < best[0]:
            rival(planner)
    if not best[1]:
        if max_latency_s is None and finished:
            needed = format_bytes(least_weights(problem, len(cluster.devices)))
            raise InfeasibleError(
                "no pipeline fits the devices' memory: in every split some device holds more weights and activations "
                f"than it has; weights alone need {needed} bytes on one of them"
            )
        if not finished:
            wanted = "" if max_latency_s is None else f" of latency {max_latency_s:g} s or less"
            raise LimitReached(f"no pipeline{wanted} found in {time_limit_s:g} s; allow more time")
        known_s = max(time_limit_s, 1.0)
        least = least_latency(problem, cluster, comm=comm, engine=engine, time_limit_s=known_s, strict=strict)[0]
        raise InfeasibleError(
            f"no pipeline has a latency of {max_latency_s:g} s or less; the least is {least:.6g} s (--max-latency)"
        )
    value = best[0]
    bound = min(value, max(everything, 0.0 if outside else bound))
    proven = finished and not outside and bound >= value * (1 - 1e-9)
    note = ""
    if outside and bound < value:
        note = "a rival's plan of halo exchange or tiles beats all plans of fused strips; of its like nothing is proven"
    elif finished and not proven:
        note = "stages of several blocks are not searched on such a network; the bound holds for them too"
    return FoundPipeline(best[1], bound, proven, states, note, stopped=not finished)


def least_weights(problem: SplitProblem, devices: int) -> int:
    """The least that the device with most weights must hold, in any division of the chain into stages."""
    best = [0] + [1 << 62] * problem.cuts
    for _ in range(devices):
        best = [
            min(
                best[stop],
                *(max(best[start], problem.weight_bytes(start, stop)) for start in range(stop)),
            )
            if stop
            else 0
            for stop in range(problem.cuts + 1)
        ]
    return best[problem.cuts]


def _allowed(forbidden: frozenset[tuple[int, int, int]], start: int, stop: int, devices: Sequence[int]) -> bool:
    return not any((start, stop, device) in forbidden for device in devices)


def total_bound_s(problem: SplitProblem, cluster: Cluster) -> float:
    """No pipeline is faster than all MACs at the speed of all devices together."""
    return problem.least_macs_before()[-1] / sum(device.speed for device in cluster.devices)


def least_latency(
    problem: SplitProblem, cluster: Cluster, *, comm: str = "full", engine: str = "native", time_limit_s: float = 30.0,
    strict: tuple[int, ...] | None = None,
) -> tuple[float, Drafted]:  # fmt: skip
    """The least latency of any pipeline of the space or a rival (or what is known in the time), and its stages.
    `strict`: the cuts that the rivals plan on, as for `exact`."""
    cuts = strict or tuple(range(problem.cuts + 1))
    coarse = problem if strict is None else joined(problem, strict)
    _, _, _, _, drafts = _search(problem, cluster, comm, None, math.inf, time_limit_s, engine, True, least=True)
    plans = [drafts] if drafts else []
    plans += [on_cuts(found.stages, cuts) for _, found in rivals(coarse, cluster, comm=comm)]
    timed = [(period_and_latency(cluster, stages_of(problem, cluster, plan, comm=comm))[1], plan) for plan in plans]
    return min(timed, key=lambda item: item[0])


def _search(
    problem: SplitProblem, cluster: Cluster, comm: str, max_latency_s: float | None, incumbent_s: float,
    time_limit_s: float, engine: str, several_blocks: bool, *, least: bool = False,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> tuple[float, float, bool, int, Drafted]:  # fmt: skip
    """(period, bound, finished, states, stages) of the search in one engine."""
    form = canonical(cluster)
    handover = [0 if comm == "paper" else nbytes for nbytes in problem.cut_bytes()]
    limit = math.inf if max_latency_s is None else max_latency_s
    shared = cluster.network.kind == "shared"
    banned = sorted((start, stop, form.order.index(device)) for start, stop, device in forbidden)
    if engine == "python":
        from downset.pipelines.exact_python import search

        found = search(
            problem,
            form,
            handover,
            cluster.network.overlap,
            shared,
            limit,
            several_blocks,
            least,
            incumbent_s,
            time_limit_s,
            banned,
        )
    elif engine == "native":
        found = native_module().pipeline_search(
            problem.cuts, _tables(problem), list(problem.least_macs_before()), handover,
            list(form.speed), list(form.type),
            [list(line) for line in form.per_byte], [list(line) for line in form.latency], form.uniform,
            cluster.network.overlap, shared, limit, several_blocks, least, incumbent_s, time_limit_s, _STATES,
            banned,
        )  # fmt: skip
    else:
        raise UsageError(f"unknown engine {engine!r}; choose native or python")
    period, bound, finished, states, stages = found
    return period, bound, finished, states, _drafts(stages, form.order)


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
