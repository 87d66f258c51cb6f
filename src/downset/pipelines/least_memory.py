"""The least memory with which pipelines of equal fused strips can run: a plan, and lower bounds for all plans.

Source: ours. A device of a stage holds the stage's weights and a strip of its activations. So the plan whose most
loaded device holds least is a bottleneck path over (cut, devices left). What the devices really hold, one frame after
another, is counted only for the stages of the best path, which is then searched again with these counts. Until then a
stage costs its weights plus the larger of its strip's inputs and outputs, which is a lower bound.
Complexity: O(units² · devices²) for each path.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from downset.budget import Clock
from downset.clusters.model import Cluster, Device
from downset.errors import InfeasibleError, LimitReached
from downset.graph.core import Graph
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import Split, StageDraft, StageDrafts
from downset.pipelines.judging import timed_plan
from downset.pipelines.memory import MemoryCount, PlanMemory
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import price
from downset.pipelines.strips import equal_rows, tiles
from downset.text import format_bytes, printable

__all__ = ["LeanPlan", "check_floors", "lean_pipeline", "least_memory", "weights_floor"]

Path = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class LeanPlan:
    """`stages`: (first cut, last cut, number of devices). `needs[i]`: the most bytes that a device of stage i holds,
    without its runtime."""

    stages: Path
    needs: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return max(self.needs)


def check_floors(
    problem: PricedChain, cluster: Cluster, accounting: Accounting, graph: Graph | None, clock: Clock
) -> None:
    """Raise InfeasibleError, with an amount of memory that is enough, if it is certain that no plan fits.

    A unit's weights are together on the device that computes its last rows; every weight is on some device; by
    resources the whole frame is at the entry, and the whole result at the exit."""
    room = [_room_bytes(cluster, device) for device in range(len(cluster.devices))]
    why = ""
    heaviest = max(problem.weight_bytes(unit, unit + 1) for unit in range(problem.cuts))
    ends = (("frame", 0, accounting.source), ("result", problem.cuts, accounting.sink))
    taken = next((device for device in cluster.devices if device.memory_bytes is not None), None)
    if max(room) <= 0 and taken is not None:
        why = (
            f"the runtime of {printable(taken.name)} takes {format_bytes(taken.runtime_bytes)} bytes (runtime_memory), "
            f"all of its memory of {format_bytes(taken.memory_bytes or 0)}, and so on every device"
        )
    elif heaviest > max(room):
        why = (
            f"some operators together have {format_bytes(heaviest)} bytes of weights, more than any device has room for"
        )
    elif (whole := problem.weight_bytes(0, problem.cuts)) > sum(room):
        why = f"all weights are {format_bytes(whole)} bytes, more than all devices have room for"
    elif accounting.comm == "resources":
        for what, cut, device in ends:
            nbytes, most = problem.cut_bytes()[cut], max(room) if device is None else room[device]
            if nbytes > most and not why:
                where = "any device" if device is None else cluster.devices[device].name
                why = f"a {what} is {format_bytes(nbytes)} bytes, more than {where} has room for"
    if why:
        raise InfeasibleError(
            f"no pipeline fits the devices' memory: {why}{_advice(problem, cluster, accounting, graph, clock)}"
        )


def _advice(problem: PricedChain, cluster: Cluster, accounting: Accounting, graph: Graph | None, clock: Clock) -> str:
    """A text on how much memory would be enough, as far as it is known with source and sink outside."""
    if graph is None or (accounting.source, accounting.sink) != (None, None):
        return ""
    overhead = max(device.runtime_bytes for device in cluster.devices)
    count, seconds = MemoryCount(problem, graph, cluster, accounting, clock), clock.left()
    count_found = least_memory(count, devices=len(cluster.devices), clock=clock.within(seconds / 2))
    used = sum(devices for _, _, devices in count_found.stages)
    alone = least_memory(count, devices=1, clock=clock.within(seconds / 2))
    other = f", or {format_bytes(alone.nbytes + overhead)} on one" if used > 1 else ""
    floor = weights_floor(problem, len(cluster.devices))
    runtime = f", in addition to its runtime's {format_bytes(overhead)}" if overhead else ""
    return (
        f"; {format_bytes(count_found.nbytes + overhead)} bytes on each of {used} devices are enough{other} (the least "
        f"found; in every plan some device holds {format_bytes(floor)} bytes of weights or more{runtime})"
    )


def _room_bytes(cluster: Cluster, device: int) -> float:
    described = cluster.devices[device]
    return math.inf if described.memory_bytes is None else described.memory_bytes - described.runtime_bytes


def weights_floor(problem: PricedChain, devices: int) -> int:
    """A lower bound of the weights on the device that holds most: each unit's weights are together, and all weights are
    somewhere. (A stage of several blocks may leave a device out of some, so the units of a device need not be
    consecutive.)"""
    largest = max(problem.weight_bytes(unit, unit + 1) for unit in range(problem.cuts))
    return max(largest, -(-problem.weight_bytes(0, problem.cuts) // devices))


def least_memory(count: MemoryCount, *, devices: int, clock: Clock) -> LeanPlan:
    """The plan on at most `devices` devices whose most loaded device holds least, or the best found until the end of
    the clock."""
    problem = count.problem
    costs = _at_least(problem, devices)
    least_bytes: dict[tuple[int, int, int], int] = {}
    best: Path = ((0, problem.cuts, 1),)
    least = _plan_stages(count, best, costs, least_bytes)
    while not clock.late():
        path = _bottleneck(costs, devices)
        seen = all(stage in least_bytes for stage in path)
        needs = _plan_stages(count, path, costs, least_bytes)
        if max(needs) < max(least):
            best, least = path, needs
        if seen:
            break
    return LeanPlan(best, least)


def lean_pipeline(count: MemoryCount, graph: Graph, clock: Clock) -> PlanMemory:
    """A pipeline that fits the devices' memory, chosen for memory alone, with as many frames inside as fit. Raises
    LimitReached that states how much memory is enough."""
    problem, cluster, seconds = count.problem, count.cluster, clock.left()
    room = [_room_bytes(cluster, device) for device in range(len(cluster.devices))]
    for cut, device in ((0, count.accounting.source), (problem.cuts, count.accounting.sink)):
        if device is not None:
            room[device] -= problem.cut_bytes()[cut]
    # The k devices with most memory, for each k at which the least memory among them changes.
    chosen = sorted({sum(other >= nbytes for other in room) for nbytes in room}, reverse=True)
    for devices in chosen:
        plan = least_memory(count, devices=devices, clock=clock.within(seconds / len(chosen)))
        drafts = _placed(problem, cluster, plan, room, led=count.accounting.topology == "leader")
        if drafts is None:
            continue
        priced = timed_plan(problem, cluster, drafts, count.accounting, clock=count.clock)
        assert priced is not None  # a plan without limits always has a price
        counted = count.counted(priced)
        if not counted.broken(cluster):
            return counted
        for smaller in count.at_smaller_windows(drafts, priced):
            if not smaller.broken(cluster):
                return smaller
    raise LimitReached(
        "no pipeline was found that fits the devices' memory"
        + _advice(problem, cluster, count.accounting, graph, clock.at_least(seconds))
    )


def _placed(
    problem: PricedChain, cluster: Cluster, plan: LeanPlan, room: Sequence[float], *, led: bool
) -> StageDrafts | None:
    """The plan on the cluster's devices; stages that need most are on the devices that have most. None if it does not
    fit. In a stage the fastest device has the top strip, and leads."""
    free = sorted(range(len(room)), key=lambda device: (-room[device], device))
    members_of: dict[int, list[int]] = {}
    for place in sorted(range(len(plan.stages)), key=lambda place: -plan.needs[place]):
        count = plan.stages[place][2]
        members_of[place], free = free[:count], free[count:]
        if len(members_of[place]) < count or any(room[device] < plan.needs[place] for device in members_of[place]):
            return None
    return tuple(_draft(problem, cluster, stage, members_of[place], led=led) for place, stage in enumerate(plan.stages))


def _draft(
    problem: PricedChain, cluster: Cluster, stage: tuple[int, int, int], devices: Sequence[int], *, led: bool
) -> StageDraft:
    start, stop, count = stage
    order = sorted(devices, key=lambda device: (-cluster.devices[device].speed, device))
    parts = tiles(order, equal_rows(problem.segment(start, stop).rows, count))
    return StageDraft(parts[0].device if led else -1, (Split(start, stop, parts, halo=not led),))


def _at_least(problem: PricedChain, devices: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    """Lower bounds, by (start, stop, devices), on the bytes of some device of the stage."""
    costs = np.full((problem.cuts + 1, problem.cuts + 1, devices + 1), math.inf)
    for start in range(problem.cuts):
        for stop in range(start + 1, problem.cuts + 1):
            segment, weights = problem.segment(start, stop), problem.weight_bytes(start, stop)
            for count in range(1, min(devices, segment.rows) + 1):
                rows = equal_rows(segment.rows, count)
                bytes_of = max(max(price(segment, rows[k], rows[k + 1])[1:]) for k in range(count))
                costs[start, stop, count] = weights + bytes_of
    return costs


def _bottleneck(costs: np.ndarray[tuple[int, int, int], np.dtype[np.float64]], devices: int) -> Path:
    """The stages of least maximum cost on at most `devices` devices; of equals those on fewer devices."""
    cuts, most = costs.shape[0] - 1, costs.shape[2] - 1
    best = np.full((devices + 1, cuts + 1), math.inf)
    best[:, 0] = 0.0
    came: dict[tuple[int, int], tuple[int, int]] = {}
    for stop in range(1, cuts + 1):
        for left in range(1, devices + 1):
            for count in range(1, min(left, most) + 1):
                through = np.maximum(best[left - count, :stop], costs[:stop, stop, count])
                start = int(through.argmin())
                if through[start] < best[left, stop]:
                    best[left, stop] = through[start]
                    came[left, stop] = (start, count)
    path: list[tuple[int, int, int]] = []
    left, stop = devices, cuts
    while stop > 0:
        start, count = came[left, stop]
        path.insert(0, (start, stop, count))
        left, stop = left - count, start
    return tuple(path)


def _plan_stages(
    count: MemoryCount,
    path: Path,
    costs: np.ndarray[tuple[int, int, int], np.dtype[np.float64]],
    least_bytes: dict[tuple[int, int, int], int],
) -> tuple[int, ...]:
    """Count the memory of a path's stages with one frame inside, and enter it into `least_bytes` and `costs`. Source
    and sink are additional devices here."""
    first, drafts, terms = 0, [], count.accounting
    for stage in path:
        members = range(first, first + stage[2])
        drafts.append(_draft(count.problem, count.cluster, stage, members, led=terms.topology == "leader"))
        first += stage[2]
    before = len(count.cluster.devices)
    ends = tuple(Device(name, 1.0) for name in ("source", "sink"))
    apart = replace(count, cluster=replace(count.cluster, devices=(*count.cluster.devices, *ends)))
    if terms.comm == "resources":
        terms = replace(
            terms,
            source=None if terms.source is None else before,
            sink=None if terms.sink is None else before + 1,
            window=1,
        )
    plan = timed_plan(count.problem, apart.cluster, tuple(drafts), terms)
    assert plan is not None  # a plan without limits always has a price
    bytes_of = {one.device: one.weights_bytes + one.arena_bytes for one in apart.counted(plan).memory}
    needs, first = [], 0
    for stage in path:
        start, stop, devices = stage
        nbytes = max(bytes_of[device] for device in range(first, first + devices))
        first += devices
        needs.append(nbytes)
        least_bytes[stage] = max(least_bytes.get(stage, 0), nbytes)
        costs[start, stop, devices] = max(costs[start, stop, devices], nbytes)
    return tuple(needs)
