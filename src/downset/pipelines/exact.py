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
one fused block (`load_search`). Where messages take a part of processors' time, the bound leaves that part out, and
plans are searched under guides that count it (`message_guides`).
By the paper's equations a stage may be several blocks (`exact_search`). On links without overlap the search is whole
for them; elsewhere they are bounded, and worked out as far as the bounds leave a plan.
Other planners' plans of several blocks, of tiles with columns and of halo exchange are compared, and nothing of their
kind is proven. They are compared on fewer devices too, for a tenth of the time limit: a set of devices that is tried
stays one when another device comes, so that this device never makes the plan worse.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace

from downset import clock
from downset.clusters.model import Cluster
from downset.errors import InfeasibleError, LimitReached
from downset.methods import EngineName, check_engine
from downset.pipelines.accounting import Accounting, too_slow
from downset.pipelines.baselines import EVERY_DEVICE, INSIDE, OUTSIDE, QUICK, without_relays
from downset.pipelines.coedge import coedge
from downset.pipelines.device_order import sub_cluster
from downset.pipelines.direct.search import DirectLimits, direct
from downset.pipelines.drafts import FoundPipeline, on_cuts, on_devices
from downset.pipelines.exact_search import Searched, search
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.floors import least_weights, slowest_unit_s, total_bound_s
from downset.pipelines.incumbents import Incumbents, PlanRequest
from downset.pipelines.latency import least_latency, plans_by_latency
from downset.pipelines.load_search import search_by_loads
from downset.pipelines.message_guides import message_guides
from downset.pipelines.paper_timing import CommName
from downset.pipelines.problem import SplitProblem
from downset.text import format_bytes

__all__ = ["exact"]

_ONE_BLOCK = (
    "stages of consecutive units on devices apart, one fused block each, strips from the fastest device down, one "
    "leader a stage"
)
"""The plans by resources of which a bound and a proof speak."""
_SHARE = 0.1
"""The part of the time limit that plans on fewer devices have."""
_GUIDED = 0.25
"""The part of the time that is left that each guide for the cost of messages has."""
_CLOSE = 1e-9


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
    baseline_cuts: tuple[int, ...] | None = None,
) -> FoundPipeline:
    """The pipeline of least period within the latency limit, or the best found in `time_limit_s` with a bound.

    `accounting`: how plans are priced (default: by `comm`, source and sink outside). `baseline_cuts`: the cuts that
    baselines plan on, where they know no relays. Raises InfeasibleError where it is proven that no plan is within the
    limits, LimitReached where none was found, both with the least latency known."""
    check_engine(engine)
    asked = PlanRequest(
        problem, cluster, accounting or Accounting(comm=comm), max_latency_s, time_limit_s, engine, several_blocks,
        forbidden, baseline_cuts,
    )  # fmt: skip
    if asked.accounting.topology == "direct":
        return _direct(asked)
    return _by_resources(asked) if asked.accounting.comm == "resources" else _by_equations(asked)


def _by_resources(asked: PlanRequest) -> FoundPipeline:
    """The plan by resources. The search by loads comes first: plans of a larger load are then not scheduled."""
    best = Incumbents(asked)
    searched = search_by_loads(
        asked.problem, asked.cluster, asked.accounting, time_limit_s=asked.time_limit_s, engine=asked.engine,
        forbidden=asked.forbidden,
    )  # fmt: skip
    bound = max(slowest_unit_s(asked.problem, asked.cluster), searched.bound_s)
    if searched.stages:  # a tree of transfers: its orders are found at once, however late it is
        best.offer(searched.stages, late_s=clock.now() + max(asked.time_limit_s, 1.0))
    for guide in message_guides(asked.cluster):  # what they find is priced on the cluster itself
        result = search_by_loads(
            asked.problem, guide, asked.accounting, time_limit_s=best.left_s() * _GUIDED, engine=asked.engine,
            forbidden=asked.forbidden,
        )  # fmt: skip
        if result.stages:
            best.offer(result.stages)
    best.ask(QUICK)

    def met() -> bool:  # then all plans of the space are covered
        return searched.finished and best.period_s <= bound * (1 + _CLOSE)

    best.ask((*(() if met() else INSIDE), *OUTSIDE))
    for drafts in plans_by_latency(asked, best.left_s) if asked.max_latency_s is not None and not met() else ():
        best.offer(drafts)
    for devices in best.sets_of_devices(_SHARE):
        if not met():
            _search_on(best, devices)
            best.ask([planner for planner in INSIDE if planner.plan is not exhaustive], devices)
        best.ask(EVERY_DEVICE, devices)
    if not best.drafts:
        return _none_found(asked, finished=searched.finished)
    return _concluded(asked, best, searched, bound)


def _search_on(best: Incumbents, devices: tuple[int, ...]) -> None:
    """An offer of the least load on fewer devices: under a limit on window or latency more may be slower."""
    asked = best.asked
    place = {device: k for k, device in enumerate(devices)}
    ends = asked.accounting.source, asked.accounting.sink
    source, sink = (None if end is None else place.get(end) for end in ends)
    forbidden = frozenset((start, stop, place[one]) for start, stop, one in asked.forbidden if one in place)
    result = search_by_loads(
        asked.problem, sub_cluster(asked.cluster, devices), replace(asked.accounting, source=source, sink=sink),
        incumbent_s=best.period_s, time_limit_s=best.left_s(), engine=asked.engine, forbidden=forbidden,
    )  # fmt: skip
    if result.stages:
        best.offer(on_devices(result.stages, devices))


def _concluded(asked: PlanRequest, best: Incumbents, searched: Searched, bound: float) -> FoundPipeline:
    """The plan by resources; one from outside of the space may be below the bound of the space."""
    outside = best.period_s < bound * (1 - _CLOSE)
    everything = total_bound_s(asked.problem, asked.cluster, comm="resources")
    least = min(best.period_s, max(everything, 0.0 if outside else bound))
    proven = not outside and bound >= best.period_s * (1 - _CLOSE)
    note = ""
    if outside and least < best.period_s and searched.finished:
        note = (
            "a plan of several blocks a stage, halo exchange or tiles has a shorter period than all plans of one fused "
            "block a stage; no bound is known for plans of its kind"
        )
    elif searched.rounded and not proven:
        note = _ROUNDED
    elif not proven and any(device.messages is not None for device in asked.cluster.devices):
        note = "the bound leaves out what messages and frames take of processors; the period counts it"
    stopped = not proven and (best.late or not (searched.finished or searched.rounded))
    return FoundPipeline(best.drafts, least, proven, searched.states, note, stopped, best.judged, _ONE_BLOCK)


_ROUNDED = "there are many different devices: planning and bound take those of similar speed as equal"


def _by_equations(asked: PlanRequest) -> FoundPipeline:
    best = Incumbents(asked)
    best.ask(QUICK)
    searched = search(
        asked.problem, asked.cluster, comm="paper", max_latency_s=asked.max_latency_s, incumbent_s=best.period_s,
        time_limit_s=asked.time_limit_s, engine=asked.engine, several_blocks=asked.several_blocks,
        forbidden=asked.forbidden,
    )  # fmt: skip
    bound = max(slowest_unit_s(asked.problem, asked.cluster), searched.bound_s)
    if searched.period_s < best.period_s:
        best.take(searched.period_s, searched.stages, None)
    # What a search that is whole has covered need not be planned; of the others only what could be shorter.
    covered = searched.finished and not asked.cluster.network.links and asked.max_latency_s is None
    best.ask((*(() if covered else INSIDE), *OUTSIDE))
    for devices in best.sets_of_devices(_SHARE):
        best.ask(EVERY_DEVICE, devices)
    if not best.drafts:
        return _none_found(asked, finished=searched.finished)
    everything = total_bound_s(asked.problem, asked.cluster, comm="paper")
    least = min(best.period_s, max(everything, 0.0 if best.outside else bound))
    proven = not best.outside and bound >= best.period_s * (1 - _CLOSE)
    note = ""
    if best.outside and least < best.period_s and searched.finished:
        note = (
            "a plan of halo exchange or tiles has a shorter period than all plans that were searched; no bound is "
            "known for plans of its kind"
        )
    elif searched.finished and not proven:
        note = "stages of several blocks were searched only in part on this network; the bound holds for them, too"
    elif searched.rounded and not proven:
        note = _ROUNDED
    stopped = not proven and (best.late or not (searched.finished or searched.rounded))
    return FoundPipeline(best.drafts, least, proven, searched.states, note, stopped, best.judged)


def _none_found(asked: PlanRequest, *, finished: bool) -> FoundPipeline:
    """The plan of least latency, if that is within the limit. Raises InfeasibleError or LimitReached if not."""
    if asked.max_latency_s is None and finished:
        needed = format_bytes(least_weights(asked.problem, len(asked.cluster.devices)))
        raise InfeasibleError(
            "no pipeline fits the devices' memory: in every split some device holds more weights and activations "
            f"than it has; weights alone need {needed} bytes on one of them"
        )
    if not finished or asked.max_latency_s is None:
        wanted = "" if asked.max_latency_s is None else f" of latency {asked.max_latency_s:g} s or less"
        raise LimitReached(f"no pipeline{wanted} was found in {clock.told(asked.time_limit_s)}; allow more")
    least, plan = least_latency(replace(asked, time_limit_s=max(asked.time_limit_s, 1.0)))
    if not asked.forbidden and least <= asked.max_latency_s:
        everything = total_bound_s(asked.problem, asked.cluster, comm=asked.accounting.comm)
        return FoundPipeline(plan, everything, note="planned for latency alone: no faster plan within it was found")
    raise too_slow(asked.problem, asked.cluster, asked.accounting, asked.max_latency_s, least)


def _direct(asked: PlanRequest) -> FoundPipeline:
    """Stages handed over directly, or the best plan with leaders where none is better. Plans with leaders are searched
    first; direct hand-over has what they leave of the time."""
    deadline = clock.now() + asked.time_limit_s
    problem, cluster = asked.problem, asked.cluster
    led, refused = None, None
    try:
        led = _by_resources(replace(asked, accounting=replace(asked.accounting, topology="leader")))
    except (InfeasibleError, LimitReached) as error:
        refused = error
    latency_s = math.inf if asked.max_latency_s is None else asked.max_latency_s
    limits = DirectLimits(deadline, latency_s, asked.forbidden)
    guides = [led.stages] if led is not None else []
    if not limits.late():
        coarse, cuts = without_relays(problem, asked.baseline_cuts)
        guides += [
            on_cuts(planner(coarse, cluster, **planner.taken(comm="resources")).stages, cuts) for planner in QUICK
        ]
        with contextlib.suppress(LimitReached):
            guides.append(on_cuts(coedge(coarse, cluster, deadline=deadline).stages, cuts))
    best = direct(
        problem, cluster, asked.accounting, limits,
        total_bound_s=total_bound_s(problem, cluster, comm="resources"), led_drafts=guides, incumbent=led,
    )  # fmt: skip
    if best is not None:
        return best
    raise LimitReached(
        f"no pipeline found in {clock.told(asked.time_limit_s)} with direct hand-over; with leaders: {refused}"
    )
