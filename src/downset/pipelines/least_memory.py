"""The least memory that pipelines of fused equal strips can do with: a plan, and a floor for all plans.

Source: ours. A stage's devices hold its weights and a strip of its activations, so the least maximum over stages is a
bottleneck path over (cut, devices left). What a strip's activations take is planned (order and arena) only for stages
on the best path, which is searched again with what was found; before that a stage counts with its weights and the
larger of its strip's inputs and outputs, which it holds at once. Complexity: O(units² · devices²) for each path.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from downset.clusters.model import Cluster
from downset.errors import InfeasibleError
from downset.graph.core import Graph
from downset.pipelines.drafts import Drafted, FoundPipeline, Split, StageDraft
from downset.pipelines.memory import activation_bytes
from downset.pipelines.problem import SplitProblem, price
from downset.pipelines.strip_prices import strips_of
from downset.pipelines.strips import equal_rows, tiles
from downset.plans import Block
from downset.text import format_bytes

__all__ = ["LeanPlan", "lean_pipeline", "least_memory", "weights_floor"]

Path = tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, slots=True)
class LeanPlan:
    """`stages`: (first cut, last cut, devices). `needs[i]`: bytes that each device of stage i holds at most."""

    stages: Path
    needs: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return max(self.needs)


def weights_floor(problem: SplitProblem, devices: int) -> int:
    """No plan has less weights on the device that holds most: a unit's are together, and all are somewhere. (Stages of
    several blocks may leave a device out of some of them, so that what it holds need not be consecutive.)"""
    largest = max(problem.weight_bytes(unit, unit + 1) for unit in range(problem.cuts))
    return max(largest, -(-problem.weight_bytes(0, problem.cuts) // devices))


def least_memory(problem: SplitProblem, graph: Graph, cluster: Cluster, *, devices: int, seconds: float) -> LeanPlan:
    """The plan on at most `devices` devices whose most loaded one holds least, or the best found in the time."""
    deadline = time.perf_counter() + seconds
    costs = _at_least(problem, devices)
    known: dict[tuple[int, int, int], int] = {}
    best: Path = ((0, problem.cuts, 1),)
    _plan_stages(problem, graph, cluster, best, costs, known)
    while time.perf_counter() < deadline:
        path = _bottleneck(costs, devices)
        if all(stage in known for stage in path):
            best = path
            break
        _plan_stages(problem, graph, cluster, path, costs, known)
        best = min(best, path, key=lambda stages: max(known[stage] for stage in stages))
    return LeanPlan(best, tuple(known[stage] for stage in best))


def lean_pipeline(problem: SplitProblem, graph: Graph, cluster: Cluster, *, seconds: float) -> FoundPipeline:
    """A pipeline that fits the devices' memory, found by need alone. Raises InfeasibleError with what would do."""
    count = len(cluster.devices)
    room = [math.inf if device.memory_bytes is None else device.memory_bytes for device in cluster.devices]
    # The k devices that have most, for every k at which what the least of them has changes.
    chosen = sorted({sum(other >= nbytes for other in room) for nbytes in room}, reverse=True)
    plans = [
        least_memory(problem, graph, cluster, devices=devices, seconds=seconds / len(chosen)) for devices in chosen
    ]
    for plan in plans:
        drafts = _placed(problem, cluster, plan)
        if drafts is not None:
            return FoundPipeline(
                drafts, 0.0, note="planned for memory alone: faster plans did not fit, or were not found"
            )
    used = sum(devices for _, _, devices in plans[0].stages)
    alone = least_memory(problem, graph, cluster, devices=1, seconds=seconds)
    needed, floor = format_bytes(plans[0].nbytes), format_bytes(weights_floor(problem, count))
    other = f", or {format_bytes(alone.nbytes)} on one" if used > 1 else ""
    raise InfeasibleError(
        f"no pipeline found fits the devices' memory; {needed} bytes on each of {used} devices would do{other} (the "
        f"least found; in every plan some device holds {floor} bytes of weights or more)"
    )


def _placed(problem: SplitProblem, cluster: Cluster, plan: LeanPlan) -> Drafted | None:
    """The plan on the cluster's devices, stages that need most on those that have most; None where that does not fit.
    In a stage the fastest device has the top strip, and leads."""
    room = [math.inf if device.memory_bytes is None else device.memory_bytes for device in cluster.devices]
    free = sorted(range(len(room)), key=lambda device: (-room[device], device))
    given: dict[int, list[int]] = {}
    for place in sorted(range(len(plan.stages)), key=lambda place: -plan.needs[place]):
        count = plan.stages[place][2]
        given[place], free = free[:count], free[count:]
        if len(given[place]) < count or any(room[device] < plan.needs[place] for device in given[place]):
            return None
    return tuple(_draft(problem, cluster, stage, given[place]) for place, stage in enumerate(plan.stages))


def _draft(problem: SplitProblem, cluster: Cluster, stage: tuple[int, int, int], devices: Sequence[int]) -> StageDraft:
    start, stop, count = stage
    order = sorted(devices, key=lambda device: (-cluster.devices[device].speed, device))
    parts = tiles(order, equal_rows(problem.segment(start, stop).rows, count))
    return StageDraft(parts[0].device, (Split(start, stop, parts),))


def _at_least(problem: SplitProblem, devices: int) -> np.ndarray[tuple[int, int, int], np.dtype[np.float64]]:
    """By (start, stop, devices): bytes that some device holds for certain."""
    costs = np.full((problem.cuts + 1, problem.cuts + 1, devices + 1), math.inf)
    for start in range(problem.cuts):
        for stop in range(start + 1, problem.cuts + 1):
            segment, weights = problem.segment(start, stop), problem.weight_bytes(start, stop)
            for count in range(1, min(devices, segment.rows) + 1):
                rows = equal_rows(segment.rows, count)
                held = max(max(price(segment, rows[k], rows[k + 1])[1:]) for k in range(count))
                costs[start, stop, count] = weights + held
    return costs


def _bottleneck(costs: np.ndarray[tuple[int, int, int], np.dtype[np.float64]], devices: int) -> Path:
    """The stages of least maximum cost on at most `devices` devices; fewer devices among equals."""
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
    problem: SplitProblem, graph: Graph, cluster: Cluster, path: Path,
    costs: np.ndarray[tuple[int, int, int], np.dtype[np.float64]], known: dict[tuple[int, int, int], int],
) -> None:  # fmt: skip
    """What the stages of a path hold, planned, into `known` and `costs`."""
    for stage in path:
        if stage in known:
            continue
        start, stop, count = stage
        (split,) = _draft(problem, cluster, stage, range(count)).splits
        rows = problem.segment(start, stop).rows
        strips = strips_of(problem, cluster, split)
        block = Block(start, stop, problem.covered(start, stop), problem.axis, rows, "leader", strips)
        held = max(activation_bytes(problem, graph, block, strip, room_bytes=0) for strip in block.strips)
        known[stage] = problem.weight_bytes(start, stop) + held
        costs[start, stop, count] = max(costs[start, stop, count], known[stage])
