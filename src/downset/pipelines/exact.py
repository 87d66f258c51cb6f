"""Pipelines of least period, with proof: every way to group units into stages and devices into sets.

Source: ours; what PICO's conclusion asks for ("balance the workload across different stages").
Names: cut, units → the chain of `SplitProblem`; set → a multiset of device types.
Complexity: a period P is tried by asking of every segment which smallest sets of devices can run it within P; states
are (cut, set used), at most (units + 1) · Π(devices of a type + 1), those kept that no smaller set matches.
The least P is found by bisection, down to the period of a plan that none is below. Where links differ from pair to
pair a state also names the leader in front of the cut; under a latency limit it is a label of period and latency that
no other beats.
With more than 4096 multisets devices of like speed are first taken as alike, all as slow as the slowest (a plan) and
all as fast as the fastest (a bound); with more than 65536 that is all.
Space: stages of consecutive units; any device may stay idle; in a stage the devices lie in order of falling speed (then
of name) from the top row down, each with any number of rows, none included; any of them leads. By resources a stage is
one fused block (`load_search`). By the paper's equations it may be several (`exact_search`): on links without overlap
the search is whole for them, elsewhere they are bounded and worked out as far as the bounds leave a plan. Other
planners' plans of several blocks, of tiles with columns and of halo exchange are compared, and nothing of their kind is
proven.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace

from downset.clusters.model import Cluster
from downset.errors import InfeasibleError, LimitReached
from downset.methods import EngineName, Method, check_engine
from downset.pipelines.accounting import Accounting, judged, latency_s, too_slow
from downset.pipelines.baselines import INSIDE, MOMENT_S, OUTSIDE, QUICK, baselines
from downset.pipelines.coedge import coedge
from downset.pipelines.device_order import canonical, sub_cluster
from downset.pipelines.direct.search import Limits, direct
from downset.pipelines.drafts import Drafted, FoundPipeline, Judged, on_cuts, on_devices
from downset.pipelines.early_fused import early_fused
from downset.pipelines.exact_search import search
from downset.pipelines.load_search import search_by_loads
from downset.pipelines.paper_timing import CommName
from downset.pipelines.problem import SplitProblem, joined
from downset.pipelines.single import single_draft
from downset.pipelines.strips import balanced_rows, slowest_strip_s
from downset.text import format_bytes

__all__ = ["exact", "least_latency"]

_ONE_BLOCK = (
    "stages of consecutive units on devices apart, one fused block each, strips from the fastest device down, one "
    "leader a stage"
)
"""Of which plans by resources a bound speaks, and a proof."""


def exact(
    problem: SplitProblem,
    cluster: Cluster,
    *,
    comm: CommName = "resources",
    accounting: Accounting | None = None,
    max_latency_s: float | None = None,
    time_limit_s: float = 10.0,
    engine: EngineName = "native",
    several_blocks: bool = True,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
    strict: tuple[int, ...] | None = None,
) -> FoundPipeline:
    """The pipeline of least period within the latency limit, or the best found in `time_limit_s` with a bound.

    `accounting`: how plans are priced (default: by `comm`, source and sink outside). `strict`: the cuts that the rivals
    plan on, where they know no relays. Raises InfeasibleError, with the least
    latency, where no plan is within the limit."""
    check_engine(engine)
    begin = time.monotonic()
    accounting = accounting or Accounting(comm=comm)
    if accounting.topology == "direct":
        return _direct(
            problem, cluster, accounting, max_latency_s=max_latency_s, time_limit_s=time_limit_s, engine=engine,
            several_blocks=several_blocks, forbidden=forbidden, strict=strict,
        )  # fmt: skip
    comm, by_resources = accounting.comm, accounting.comm == "resources"
    coarse, cuts = _without_relays(problem, strict)
    everything = total_bound_s(problem, cluster)
    best: tuple[float, Drafted] = (math.inf, ())
    kept: Judged | None = None
    outside = False

    def offer(drafts: Drafted, late_s: float = 0.0) -> bool:
        """Whether it is the best so far. Its orders are searched until `late_s`, if that is behind the limit."""
        nonlocal best, kept
        deadline = max(late_s, begin + time_limit_s)
        found = judged(
            problem, cluster, drafts, accounting, below_s=best[0], deadline=deadline, max_latency_s=max_latency_s
        )
        if found is None or any(
            not _allowed(forbidden, stage.blocks[0].start, stage.blocks[-1].stop, stage.devices)
            for stage in found.frame.stages
        ):
            return False
        if (max_latency_s is None or found.latency_s <= max_latency_s) and found.period_s < best[0]:
            best, kept = (found.period_s, drafts), found
            return True
        return False

    def rival(planner: Method, devices: Sequence[int]) -> None:
        nonlocal outside
        some = sub_cluster(cluster, devices)
        if planner in OUTSIDE and not _by_kind(some) and OUTSIDE[planner](coarse, some) >= best[0]:
            return
        below = math.inf if by_resources else best[0]  # papers' own sums are above what resources can do
        late_s = begin + max(time_limit_s, 1.0)
        asked = {"comm": comm, "below_s": below, "deadline": late_s, "time_limit_s": MOMENT_S}
        found = planner(coarse, some, **planner.taken(**asked))
        if offer(on_devices(on_cuts(found.stages, cuts), devices)):
            outside = planner in OUTSIDE

    order = canonical(cluster).order
    bound, finished, searched = slowest_unit_s(problem, cluster), True, None
    if by_resources:  # first what is hard to better: plans of a larger load are then not scheduled
        searched = search_by_loads(
            problem, cluster, accounting, time_limit_s=time_limit_s, engine=engine, forbidden=forbidden
        )
        bound, finished = max(bound, searched.bound_s), searched.finished
        if searched.stages:  # a tree of transfers: its orders are found at once, however late it is
            offer(searched.stages, time.monotonic() + max(time_limit_s, 1.0))
    for planner in QUICK:
        rival(planner, order)
    if searched is None or max_latency_s is not None:
        limited = search(
            problem,
            cluster,
            comm=comm,
            max_latency_s=max_latency_s,
            incumbent_s=math.inf if by_resources else best[0],
            time_limit_s=time_limit_s,
            engine=engine,
            several_blocks=several_blocks,
            forbidden=forbidden,
        )
        finished = finished and limited.finished
        if searched is not None:
            if limited.stages:
                offer(limited.stages)
        else:
            searched, bound = limited, max(bound, limited.bound_s)
            if searched.period_s < best[0]:
                best, kept, outside = (searched.period_s, searched.stages), None, False
    # What a search that is whole has covered need not be planned; of the others only what could be shorter.
    covered = finished and not cluster.network.links and max_latency_s is None
    if by_resources:
        covered = covered and best[0] <= bound * (1 + 1e-9)
    late = False
    for planner in (*(() if covered else INSIDE), *OUTSIDE):
        # Tiles are one for each device: of a slow one more may be too many.
        for count in range(1, len(order) + 1) if planner.plan is early_fused else (len(order),):
            try:
                rival(planner, order[:count])
            except LimitReached:
                late = True
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
        least, plan = least_latency(
            problem, cluster, accounting=accounting, engine=engine, time_limit_s=known_s, strict=strict
        )
        if not forbidden and max_latency_s is not None and least <= max_latency_s:
            return FoundPipeline(plan, everything, note="planned for latency alone: no faster plan within it was found")
        assert max_latency_s is not None
        raise too_slow(problem, cluster, accounting, max_latency_s, least, proven=True)
    value, note = best[0], ""
    if by_resources:  # a plan from outside the space may be below the bound of the space
        outside = value < bound * (1 - 1e-9)
    bound = min(value, max(everything, 0.0 if outside else bound))
    proven = not outside and bound >= value * (1 - 1e-9)
    if outside and bound < value and finished:
        shorter = "several blocks a stage, halo exchange or tiles" if by_resources else "halo exchange or tiles"
        note = f"a plan of {shorter} is shorter than all plans of the space searched; of its kind nothing is proven"
    elif finished and not proven and not by_resources:
        note = "stages of several blocks are worked out only in part on such a network; the bound holds for them"
    elif searched.rounded and not proven:
        note = "many different devices: planned as if those of like speed were alike, and bounded likewise"
    stopped = not proven and (late or not (finished or searched.rounded))
    space = _ONE_BLOCK if by_resources else ""
    return FoundPipeline(best[1], bound, proven, searched.states, note, stopped, kept, space)


def _direct(
    problem: SplitProblem, cluster: Cluster, accounting: Accounting, *, max_latency_s: float | None,
    time_limit_s: float, engine: EngineName, several_blocks: bool, forbidden: frozenset[tuple[int, int, int]],
    strict: tuple[int, ...] | None,
) -> FoundPipeline:  # fmt: skip
    """Stages handed over directly, or the best plan with leaders where none is better. With leaders first; what they
    leave of the time is spent on direct hand-over."""
    deadline = time.monotonic() + time_limit_s
    led, refused = None, None
    try:
        led = exact(
            problem, cluster, accounting=replace(accounting, topology="leader"), max_latency_s=max_latency_s,
            time_limit_s=time_limit_s, engine=engine, several_blocks=several_blocks, forbidden=forbidden,
            strict=strict,
        )  # fmt: skip
    except (InfeasibleError, LimitReached) as error:
        refused = error
    limits = Limits(deadline, math.inf if max_latency_s is None else max_latency_s, forbidden)
    known = [led.stages] if led is not None else []
    if not limits.late():
        coarse, cuts = _without_relays(problem, strict)
        known += [
            on_cuts(planner(coarse, cluster, **planner.taken(comm="resources")).stages, cuts) for planner in QUICK
        ]
        with contextlib.suppress(LimitReached):
            known.append(on_cuts(coedge(coarse, cluster, deadline=deadline).stages, cuts))
    best = direct(
        problem, cluster, accounting, limits, total_bound_s=total_bound_s(problem, cluster), known=known, incumbent=led
    )
    if best is not None:
        return best
    raise LimitReached(f"no pipeline found in {time_limit_s:g} s with direct hand-over; with leaders: {refused}")


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
    return problem.least_macs_before()[-1] / sum(device.peak_speed for device in cluster.devices)


def _by_kind(cluster: Cluster) -> bool:
    """Whether a device computes some kinds of operators faster or slower than others."""
    return any(device.alpha_of for device in cluster.devices)


def rival_plans(
    problem: SplitProblem, cluster: Cluster, *, comm: CommName, strict: tuple[int, ...] | None
) -> Iterator[Drafted]:
    """What the other planners make of the problem, and every device by itself."""
    coarse, cuts = _without_relays(problem, strict)
    yield from ((single_draft(problem, device),) for device in range(len(cluster.devices)))
    for _, found in baselines(coarse, cluster, comm=comm):
        yield on_cuts(found.stages, cuts)


def _without_relays(problem: SplitProblem, strict: tuple[int, ...] | None) -> tuple[SplitProblem, tuple[int, ...]]:
    """The chain that rivals plan on, and its cuts in the whole one."""
    if strict is None:
        return problem, tuple(range(problem.cuts + 1))
    return joined(problem, strict), strict


def slowest_unit_s(problem: SplitProblem, cluster: Cluster) -> float:
    """No pipeline of strips is faster than all devices together compute a single unit: in any block that it is part of
    its strips cover it. (Left out are units of which a stride passes rows over, and those that make several tensors: a
    block may divide these differently.)"""
    speeds = sorted((device.peak_speed for device in cluster.devices), reverse=True)
    slowest = 0.0
    macs, least = problem.macs_before(), problem.least_macs_before()
    for unit in range(problem.cuts):
        whole = macs[unit + 1] - macs[unit] == least[unit + 1] - least[unit]
        if whole and len(problem.sinks(unit, unit + 1)) == 1:
            segment = problem.segment(unit, unit + 1)
            bounds = balanced_rows(segment, speeds)
            slowest = max(slowest, slowest_strip_s(segment, speeds, bounds))
    return slowest * (1 - 1e-10)


def least_latency(
    problem: SplitProblem, cluster: Cluster, *, accounting: Accounting, engine: EngineName = "native",
    time_limit_s: float = 30.0, strict: tuple[int, ...] | None = None,
) -> tuple[float, Drafted]:  # fmt: skip
    """The least latency of any pipeline of the space or a rival (or what is known in the time), and its stages.
    `strict`: the cuts that the rivals plan on, as for `exact`."""

    def timed(plan: Drafted) -> tuple[float, Drafted]:
        return latency_s(problem, cluster, plan, accounting), plan

    comm = accounting.comm
    best = min(
        (timed(plan) for plan in rival_plans(problem, cluster, comm=comm, strict=strict)), key=lambda item: item[0]
    )
    drafts = search(
        problem, cluster, comm=comm, max_latency_s=best[0], time_limit_s=time_limit_s, engine=engine, least_latency=True
    ).stages
    return min([best, *([timed(drafts)] if drafts else [])], key=lambda item: item[0])
