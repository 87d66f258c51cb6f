"""Pipelines of least period, with proof: every way to group units into stages and devices into sets.

Source: ours; what PICO's conclusion asks for ("balance the workload across different stages").
Names: cut, units → the chain of `PricedChain`; set → a multiset of device types.
Complexity: to try a period P, the search finds for every segment the smallest sets of devices that run it within P.
States are (cut, set used), at most (units + 1) · Π(devices of a type + 1); a state is kept only if no smaller set
reaches the same cut. Bisection finds the least P, down to the period of a plan that meets the bound. If links differ
from pair to pair, a state also names the leader in front of the cut. Under a latency limit it has labels of period and
latency, of which none beats another. With more than 4096 multisets, devices of similar speed are first taken as alike,
all as slow as the slowest (for a plan) and all as fast as the fastest (for a bound); with more than 65536 the search
ends there.
Space: stages of consecutive units; any device may stay idle. In a stage the devices lie in order of falling speed (of
equal ones source and sink last) from the top row down, each with any number of rows, also none; any of them may lead.
By resources a stage is one fused block (`search_by_loads`). If messages or weights take processor time, the bound
leaves it out, and plans are searched under guides that count it (`message_guides`, `_by_weights`).
By the paper's equations a stage may be several blocks (`search_by_rounds`). On links without overlap the search covers
all of them; elsewhere it bounds them and tries those that the bounds leave.
Plans of other planners with several blocks, tiles with columns or halo exchange are compared; the proof does not cover
their kind. They are compared on fewer devices too, for a tenth of the time limit. A set of devices that is tried stays
a candidate when a device is added to the cluster, so an added device never makes the plan worse.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace

from downset.budget import Clock
from downset.clusters.model import Cluster, Link, MessageCosts, Network
from downset.errors import InfeasibleError, LimitReached
from downset.messages import Message
from downset.pipelines.accounting import Accounting
from downset.pipelines.coedge import coedge
from downset.pipelines.direct.search import direct
from downset.pipelines.drafts import FoundPipeline, StageDraft, StageDrafts, on_cuts, on_devices
from downset.pipelines.exhaustive import exhaustive
from downset.pipelines.floors import least_weights, slowest_unit_s, total_bound_s
from downset.pipelines.incumbents import EVERY_DEVICE, INSIDE, OUTSIDE, QUICK, Incumbents, fewer_devices
from downset.pipelines.judging import timed_plan, too_slow
from downset.pipelines.latency import least_latency, plans_by_latency
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import SplitOp
from downset.pipelines.set_search import ExactRequest, SetSearchResult, search_by_loads, search_by_rounds
from downset.text import format_bytes

__all__ = ["exact", "message_guides"]

_ONE_BLOCK = (
    "stages of consecutive units of one chain on disjoint sets of devices, one fused block each, strips from the "
    "fastest device down (of equal ones source and sink last), one leader a stage"
)
"""The space of plans by resources for which a bound and a proof hold."""
_SHARE = 0.1
"""The share of the time limit for plans on fewer devices."""
_GUIDED = 0.25
"""The share of the remaining time for each guide to the cost of messages."""
_CLOSE = 1e-9
_LAST_S = 1.0
"""The least seconds for the orders of a plan of the search."""


def exact(
    problem: PricedChain,
    cluster: Cluster,
    *,
    clock: Clock,
    accounting: Accounting | None = None,
    several_blocks: bool = True,
    forbidden: frozenset[tuple[int, int, int]] = frozenset(),
) -> FoundPipeline:
    """The pipeline of least period within the latency limit, or the best found until the end of the clock, with a
    bound.

    Baselines plan on the problem's `baseline_cuts`. Raises InfeasibleError if it is proven that no plan is within the
    limits, and LimitReached if none was found; both state the least latency known."""
    request = ExactRequest(problem, cluster, accounting or Accounting(), several_blocks, forbidden)
    if problem.beginnings is not None:
        return _further(request, problem.beginnings, clock)
    if request.accounting.topology == "direct":
        return _direct(request, clock)
    plan = _by_resources if request.accounting.comm == "resources" else _by_equations
    return plan(request, clock)


def _by_resources(request: ExactRequest, clock: Clock) -> FoundPipeline:
    """The plan by resources. The search by loads comes first, so that plans of a larger load need not be scheduled."""
    best = Incumbents(request, clock)
    searched = search_by_loads(request, clock)
    bound = max(slowest_unit_s(request.problem, request.cluster), searched.bound_s)
    if searched.stages:  # transfers form a tree, so orders are found at once even after the end
        best.offer(searched.stages, clock=clock.at_least(max(best.limit_s, _LAST_S)))
    guides = [replace(request, cluster=guide) for guide in message_guides(request.cluster)]
    for guided in (*guides, *_by_weights(request)):  # their plans are priced on the problem and the cluster themselves
        result = search_by_loads(guided, clock.within(clock.left() * _GUIDED))
        if result.stages:
            best.offer(result.stages)
    best.ask(QUICK)

    def met() -> bool:  # then all plans of the space are covered
        return searched.finished and best.period_s <= bound * (1 + _CLOSE)

    best.ask((*(() if met() else INSIDE), *OUTSIDE))
    for drafts in (
        plans_by_latency(request, clock) if request.accounting.max_latency_s is not None and not met() else ()
    ):
        best.offer(drafts)
    for devices in best.sets_of_devices(_SHARE):
        if not met():
            _search_on(best, devices)
            best.ask([planner for planner in INSIDE if planner.plan is not exhaustive], devices)
        best.ask(EVERY_DEVICE, devices)
    if not best.drafts:
        return _none_found(request, clock, finished=searched.finished)
    return _concluded(request, best, searched, bound)


def _search_on(best: Incumbents, devices: tuple[int, ...]) -> None:
    """Offer the plan of least load on fewer devices: under a limit on window or latency more devices may be slower."""
    result = search_by_loads(best.request.on(devices), best.clock, incumbent_s=best.period_s)
    if result.stages:
        best.offer(on_devices(result.stages, devices))


def _concluded(request: ExactRequest, best: Incumbents, searched: SetSearchResult, bound: float) -> FoundPipeline:
    """The plan by resources with its bound. A plan from outside the space may have a period below the space's bound."""
    outside = best.period_s < bound * (1 - _CLOSE)
    everything = total_bound_s(request.problem, request.cluster, comm="resources")
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
    elif not proven and any(device.messages is not None for device in request.cluster.devices):
        note = "the bound leaves out what messages and frames take of processors; the period counts it"
    elif not proven and any(device.weight_byte_s for device in request.cluster.devices):
        note = "the bound leaves out the time for reading weights; the period counts it"
    stopped = not proven and (best.late or not (searched.finished or searched.rounded))
    return FoundPipeline(best.drafts, least, proven, searched.states, note, stopped, best.timed, _ONE_BLOCK)


_ROUNDED = "there are many different devices: planning and bound take those of similar speed as equal"


def _by_equations(request: ExactRequest, clock: Clock) -> FoundPipeline:
    best = Incumbents(request, clock)
    best.ask(QUICK)
    searched = search_by_rounds(request, clock, incumbent_s=best.period_s)
    bound = max(slowest_unit_s(request.problem, request.cluster), searched.bound_s)
    if searched.period_s < best.period_s:
        best.take(searched.period_s, searched.stages, None)
    # A search that finished covers the planners of its space; of the others only shorter plans matter.
    covered = searched.finished and not request.cluster.network.links and request.accounting.max_latency_s is None
    best.ask((*(() if covered else INSIDE), *OUTSIDE))
    for devices in best.sets_of_devices(_SHARE):
        best.ask(EVERY_DEVICE, devices)
    if not best.drafts:
        return _none_found(request, clock, finished=searched.finished)
    everything = total_bound_s(request.problem, request.cluster, comm="paper")
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
    return FoundPipeline(best.drafts, least, proven, searched.states, note, stopped, best.timed)


def _none_found(request: ExactRequest, clock: Clock, *, finished: bool) -> FoundPipeline:
    """The plan of least latency if it is within the limit. Raises InfeasibleError or LimitReached otherwise."""
    if request.accounting.max_latency_s is None and finished:
        needed = format_bytes(least_weights(request.problem, len(request.cluster.devices)))
        raise InfeasibleError(
            "no pipeline fits the devices' memory: in every split some device holds more weights and activations "
            f"than it has; weights alone need {needed} bytes on one of them"
        )
    if not finished or request.accounting.max_latency_s is None:
        wanted = (
            ""
            if request.accounting.max_latency_s is None
            else f" of latency {request.accounting.max_latency_s:g} s or less"
        )
        raise LimitReached(f"no pipeline{wanted} was found in {clock.budget}; allow more")
    least, plan = least_latency(request, clock.at_least(1.0))
    if not request.forbidden and least <= request.accounting.max_latency_s:
        everything = total_bound_s(request.problem, request.cluster, comm=request.accounting.comm)
        return FoundPipeline(plan, everything, note="planned for latency alone: no faster plan within it was found")
    raise too_slow(request.problem, request.cluster, request.accounting, least)


def _further(request: ExactRequest, beginnings: Sequence[StageDrafts], clock: Clock) -> FoundPipeline:
    """The best plan by resources on a further chain: by the search, and from the plans that are known there."""
    led = replace(request, accounting=replace(request.accounting, topology="leader"))
    best = Incumbents(led, clock)
    for drafts in beginnings:
        best.offer(tuple(_led(stage) for stage in drafts))
    searched = search_by_loads(led, clock)
    if searched.stages:
        best.offer(searched.stages, clock=clock.at_least(_LAST_S))
    bound = max(slowest_unit_s(request.problem, request.cluster), searched.bound_s)
    plan = _concluded(led, best, searched, bound) if best.drafts else None
    if request.accounting.topology == "direct":
        everything = _everything_s(request)
        guides = [*beginnings, *([plan.stages] if plan is not None else [])]
        plan = direct(request, clock, total_bound_s=everything, led_drafts=guides, incumbent=plan, offered=beginnings)
    if plan is None:
        raise LimitReached(f"no pipeline found in {clock.budget} on this chain")
    return plan


def _led(stage: StageDraft) -> StageDraft:
    """A stage of one device that leads itself."""
    splits = tuple(replace(split, halo=False) for split in stage.splits)
    return StageDraft(splits[0].tiles[0].device, splits)


def _direct(request: ExactRequest, clock: Clock) -> FoundPipeline:
    """The best plan with direct hand-over, also on fewer devices, for a share of the time limit: the descent on all
    devices may end at a longer period."""
    best, reason = _direct_on(request, clock)
    if best is None:
        raise LimitReached(f"no pipeline found in {clock.budget} with direct hand-over; with leaders: ", reason)
    part = clock.within(clock.left() * _SHARE)
    for devices in fewer_devices(request.cluster, (request.accounting.source, request.accounting.sink)):
        if part.late():
            break
        some = request.on(devices)
        if best.timed is None or _everything_s(some) >= best.timed.period_s * (1 - _CLOSE):
            continue
        fewer, _ = _direct_on(some, part)
        if fewer is not None:
            best = _shorter(request, best, fewer, on_devices(fewer.stages, devices), part)
    return best


def _everything_s(request: ExactRequest) -> float:
    """A lower bound on the period of all pipelines."""
    return total_bound_s(request.problem, request.cluster, comm="resources")


def _shorter(
    request: ExactRequest, best: FoundPipeline, fewer: FoundPipeline, drafts: StageDrafts, clock: Clock
) -> FoundPipeline:
    """The best plan, or `drafts`, the stages of the plan `fewer` on the devices of the whole cluster, if its period is
    shorter. The bound of the best plan holds for both if they are of one space."""
    assert best.timed is not None
    below_s = best.timed.period_s * (1 - _CLOSE)
    timed = timed_plan(request.problem, request.cluster, drafts, request.accounting, below_s=below_s, clock=clock)
    limit_s = request.accounting.max_latency_s
    if timed is None or timed.period_s >= below_s or (limit_s is not None and timed.latency_s > limit_s):
        return best
    bound_s = best.bound_s if best.space == fewer.space else _everything_s(request)
    return FoundPipeline(drafts, min(bound_s, timed.period_s), states=best.states, timed=timed, space=fewer.space)


def _direct_on(request: ExactRequest, clock: Clock) -> tuple[FoundPipeline | None, Message]:
    """The best plan with direct hand-over, or the best one with leaders if that is at least as good; None with the
    reason if there is none. Plans with leaders are searched first, direct hand-over in the remaining time."""
    problem, cluster = request.problem, request.cluster
    led, reason = None, Message()
    try:
        led = _by_resources(replace(request, accounting=replace(request.accounting, topology="leader")), clock)
    except (InfeasibleError, LimitReached) as error:
        reason = error.message
    guides = [led.stages] if led is not None else []
    if not clock.late():
        coarse, cuts = problem.without_relays()
        guides += [on_cuts(planner(coarse, cluster).stages, cuts) for planner in QUICK]
        with contextlib.suppress(LimitReached):
            guides.append(on_cuts(coedge(coarse, cluster, deadline=clock).stages, cuts))
    best = direct(
        request,
        clock,
        total_bound_s=total_bound_s(problem, cluster, comm="resources"),
        led_drafts=guides,
        incumbent=led,
    )
    return best, reason


def _by_weights(request: ExactRequest) -> list[ExactRequest]:
    """Two requests whose MACs stand for weights, which the search by loads leaves out: a strip reads them whatever rows
    it has. In one, an operator has as many more MACs as take the median device the time for its weights; in the other,
    devices are as fast as they read weights, and each byte of weights is a MAC."""
    devices, split = request.cluster.devices, request.problem.problem
    ratios = sorted(device.speed * device.weight_byte_s for device in devices)
    ratio = ratios[len(ratios) // 2]
    if not ratio:
        return []

    def weighed(mac: float, byte: float) -> PricedChain:
        def of(op: SplitOp) -> SplitOp:
            nbytes = sum(nbytes for _, nbytes in op.weights) / split.tensors[op.outputs[0]].rows
            return replace(op, macs_per_row=math.ceil(mac * op.macs_per_row + byte * nbytes)) if op.macs_per_row else op

        return PricedChain(replace(split, ops=tuple(map(of, split.ops))))

    readers = [
        replace(one, mac_per_s=one.weight_bytes_per_s or one.speed / ratio, alpha=1.0, alpha_of={}) for one in devices
    ]
    return [
        replace(request, problem=weighed(1.0, ratio)),
        replace(request, problem=weighed(1.0 / ratio, 1.0), cluster=replace(request.cluster, devices=tuple(readers))),
    ]


_FASTEST = 1e24


def message_guides(cluster: Cluster) -> tuple[Cluster, ...]:
    """Clusters that count the processor time of messages in a way that the search by loads knows. On the cluster itself
    that search gives a bound, and plans for messages that take no processor time; the plans found under a guide are
    priced on the cluster like every other plan.

    Two guides: the cluster in which only processors are loaded, and the cluster whose devices do one thing at a
    time. Empty if messages take no processor time, or if devices do one thing at a time already."""
    if not cluster.network.overlap or all(device.messages is None for device in cluster.devices):
        return ()
    cluster = cluster.occupied
    return (_by_processors(cluster), replace(cluster, network=replace(cluster.network, overlap=False)))


def _by_processors(cluster: Cluster) -> Cluster:
    """The cluster in which a message takes both devices for the mean of its processor times, and no time on a link."""
    costs = [device.messages or MessageCosts() for device in cluster.devices]
    links = []
    for one in range(len(costs)):
        for two in range(one + 1, len(costs)):
            ends = [costs[one].send, costs[two].receive, costs[two].send, costs[one].receive]
            byte_s = sum(end.byte_s for end in ends) / 4
            rate = min(1 / byte_s, _FASTEST) if byte_s else _FASTEST
            links.append(Link((one, two), rate, sum(end.each_s for end in ends) / 4))
    alike = len({(link.bytes_per_s, link.latency_s) for link in links}) < 2
    common = links[0] if links else Link((0, 0), _FASTEST, 0.0)
    network = Network("links", common.bytes_per_s, common.latency_s, links=() if alike else tuple(links))
    return replace(cluster, network=network)
