"""PICO's planner: a pipeline for devices of average speed, then an assignment of the devices to its stages.

Source: PICO, section 5, Algorithms 2 and 3. Units are its pieces (Algorithm 1).
Names: P, T → period, latency; Ts[i][j][p] → stage seconds; T_lim → max_latency_s; 𝔻' → devices of average speed (eq.
14); Θ'/|𝒟'| → average requirement; "Divide And Conquer" adjustment of strips → balanced_rows.
Complexity: O(units² · devices²) for Algorithm 2, O(devices · stages) for Algorithm 3, plus the prices.
Deviations, where the paper as printed is ambiguous or wrong:
- Line 13 of Algorithm 2 subtracts the last stage's time from T_lim inside the loops and never adds it back, so that
  every further candidate has a smaller limit. Here each candidate has the limit less its own stage.
- Its memo of P and T ignores T_lim: results found under one limit are returned under another. This is kept as printed.
  The latencies of whole plans are checked instead; if the limit binds, the result may miss plans that exist.
- Line 9 tests m = 1 where it must mean p = 1, and j = i + 1 where it must mean j = i (eq. 15 also divides two pieces);
  line 17 tests T[i][j][p-m] where it must mean T[i][s][p-m].
- Algorithm 3 line 6 takes the stage of "minimum" average requirement, its text the "maximum". Here it is the maximum:
  the fastest device goes to the stage with the highest requirement for each device.
- d_f is not defined. Here it is the device whose strip has most bytes, so that eq. 10 leaves out the largest term, or
  the first device of the stage if asked for.
- Every stage uses all devices given to it; Algorithm 2 always gives out all devices.
- Many pipelines of average devices have the least period, and Algorithm 3 makes different plans of them. The first in
  the order of the printed loops is kept (s, then m, ascending; line 20 is strict); `ties="last devices first"` takes m
  from p - 1 down. On VGG16 and the paper's cluster at 4 MAC a cycle the printed order gives 0.434 s, the other 0.462 s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Literal, get_args

from downset.budget import Clock
from downset.clusters.model import Cluster, Device
from downset.errors import LimitReached
from downset.methods import check_choice
from downset.pipelines.accounting import Accounting
from downset.pipelines.device_order import by_speed
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.paper_timing import stage_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.segment_prices import price
from downset.pipelines.strips import balanced_rows, equal_rows, tiles

__all__ = ["Leader", "Ties", "pico"]

Leader = Literal["most bytes", "first"]
"""Which device leads a stage: the one whose strip has most bytes, or the stage's first."""
Ties = Literal["printed", "last devices first"]
"""Which of the pipelines of equal period is kept; see the deviations."""


_Stages = tuple[tuple[int, int, int], ...]
"""The stages: first unit, the unit behind the last, and the number of devices of each."""


def pico(
    problem: PricedChain,
    cluster: Cluster,
    *,
    accounting: Accounting | None = None,
    leader: Leader = "most bytes",
    ties: Ties = "printed",
    deadline: Clock | None = None,
) -> FoundPipeline:
    """Algorithm 2 on devices of average speed, then Algorithm 3. `leader`: "most bytes" or "first" (of the stage);
    `ties`: "printed" or "last devices first". Raises LimitReached at the deadline."""
    check_choice("leader", leader, get_args(Leader))
    check_choice("tie rule", ties, get_args(Ties))
    terms = accounting or Accounting()
    comm, limit = terms.comm, float("inf") if terms.max_latency_s is None else terms.max_latency_s
    count = len(cluster.devices)
    average = sum(device.speed for device in cluster.devices) / count  # eq. 14
    timed = cluster.occupied if comm == "resources" and terms.max_latency_s is None else cluster
    network = replace(timed.network, links=())
    equal = Cluster(tuple(Device(f"average {k}", average) for k in range(count)), network)

    @cache
    def stage_seconds(start: int, stop: int, devices: int) -> float:
        rows = problem.segment(start, stop).rows
        draft = _stage(problem, start, stop, list(range(devices)), equal_rows(rows, devices), leader)
        sender = -1 if start == 0 else count - 1
        return stage_of(problem, equal, draft, comm=comm, sender=sender).seconds

    def in_time(start: int, stop: int, devices: int) -> float:
        if start == 0 and deadline is not None and deadline.late():
            raise LimitReached("pico found no pipeline within the time limit; allow more time")
        return stage_seconds(start, stop, devices)

    stages, states = dynamic_programming_for_pipeline_inference(problem.cuts, count, limit, in_time, ties=ties)
    return FoundPipeline(adjust_stage_configuration(problem, cluster, stages, leader), 0.0, states=states)


def dynamic_programming_for_pipeline_inference(
    units: int, devices: int, limit_s: float, stage_seconds: Callable[[int, int, int], float], *, ties: Ties
) -> tuple[_Stages, int]:
    """Algorithm 2: the stages of least period for equal devices, and the number of sub-problems solved.

    `stage_seconds(start, stop, devices)` returns a stage's time T. `limit_s`: the latency limit T_lim."""
    memo: dict[tuple[int, int], tuple[float, float, _Stages]] = {}

    def best(stop: int, devices: int, left: float) -> tuple[float, float, _Stages]:
        """(period, latency, stages) of units [0, stop) on `devices` devices: DP(0, stop, devices, T_lim)."""
        if (stop, devices) in memo:
            return memo[stop, devices]
        whole = stage_seconds(0, stop, devices)
        best_cut: tuple[float, float, _Stages] = (whole, whole, ((0, stop, devices),))
        if devices > 1 and stop > 1:
            for cut in range(1, stop):
                for last in range(1, devices) if ties == "printed" else range(devices - 1, 0, -1):
                    seconds = stage_seconds(cut, stop, last)
                    if seconds > left:
                        continue
                    period, latency, stages = best(cut, devices - last, left - seconds)
                    if latency > left - seconds:
                        continue
                    if max(period, seconds) < best_cut[0]:
                        best_cut = (max(period, seconds), latency + seconds, (*stages, (cut, stop, last)))
        memo[stop, devices] = best_cut
        return best_cut

    return best(units, devices, limit_s)[2], len(memo)


def adjust_stage_configuration(
    problem: PricedChain, cluster: Cluster, shape: _Stages, leader: Leader
) -> tuple[StageDraft, ...]:
    """Algorithm 3: the fastest devices go to the stages with the highest requirement for each device; then the strips
    of each stage are balanced."""
    requirement = []
    for start, stop, count in shape:
        segment = problem.segment(start, stop)
        bounds = equal_rows(segment.rows, count)
        theta = sum(price(segment, bounds[k], bounds[k + 1])[0] for k in range(count))  # eq. 16
        requirement.append(theta / count)
    room = [count for _, _, count in shape]
    members_of: list[list[int]] = [[] for _ in shape]
    speeds = [device.speed for device in cluster.devices]
    for device in by_speed(cluster):
        open_stages = [stage for stage in range(len(shape)) if len(members_of[stage]) < room[stage]]
        stage = max(open_stages, key=lambda stage: (requirement[stage], -stage))
        members_of[stage].append(device)
    drafts = []
    for (start, stop, _), devices in zip(shape, members_of, strict=True):
        bounds = balanced_rows(problem.segment(start, stop), [speeds[device] for device in devices])
        drafts.append(_stage(problem, start, stop, devices, bounds, leader))
    return tuple(drafts)


def _stage(
    problem: PricedChain, start: int, stop: int, devices: list[int], bounds: list[int], leader: Leader
) -> StageDraft:
    segment = problem.segment(start, stop)
    parts: tuple[Tile, ...] = tiles(devices, bounds)
    most = max(parts, key=lambda tile: sum(price(segment, tile.start, tile.stop)[1:])).device
    return StageDraft(parts[0].device if leader == "first" else most, (Split(start, stop, parts),))
