"""The paper's optimal configuration: tries every pipeline, within a time limit.

Source: PICO, section 6.5 (BFS), Tables VI and VII.
Names: optimal pipeline → the best of all (cuts, assignments of devices to stages).
Complexity: Σ over stages s of C(units - 1, s - 1) · s! · S(devices, s) assignments, by resources times the choices of
leaders, each priced; partial plans are not remembered.
Deviations: the search is depth first, which tries the configurations of the paper's breadth-first search with the
memory of one path. Prices of stages are kept (the paper does not say), and strips are balanced as in Algorithm 3. By
the paper's equations the leader of a stage is the one of least transfer, which is best there; by resources every
leader is tried, and each plan is priced by its schedule. Devices may stay idle. Every assignment of equal devices is
still tried, as the paper's times suggest.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, StageDrafts
from downset.pipelines.judging import timed_plan
from downset.pipelines.paper_timing import period_and_latency, stage_of, stages_of
from downset.pipelines.prices import PricedChain
from downset.pipelines.single import single
from downset.pipelines.strips import balanced_rows, tiles

__all__ = ["exhaustive"]


class _Stop(Exception):
    pass


def exhaustive(
    problem: PricedChain,
    cluster: Cluster,
    *,
    clock: Clock,
    accounting: Accounting | None = None,
) -> FoundPipeline:
    """The best of all pipelines with balanced strips. At the end of the clock the search ends with the best so far, and
    the result says so."""
    run = _Enumeration(problem, cluster, accounting or Accounting(), clock)
    stopped = False
    try:
        run.extend(0, (1 << len(cluster.devices)) - 1, ())
    except _Stop:
        stopped = True
    stages = run.stages or single(problem, cluster).stages
    return FoundPipeline(stages, 0.0, states=run.tried, stopped=stopped)


class _Enumeration:
    def __init__(self, problem: PricedChain, cluster: Cluster, accounting: Accounting, clock: Clock) -> None:
        self.problem, self.cluster, self.accounting, self.clock = problem, cluster, accounting, clock
        self.latency_limit_s = math.inf if accounting.max_latency_s is None else accounting.max_latency_s
        self.least_s, self.stages = math.inf, ()
        self.tried = 0
        self.drafts: dict[tuple[int, int, int], Sequence[StageDraft]] = {}

    stages: StageDrafts

    def extend(self, cut: int, free: int, drafts: StageDrafts) -> None:
        if cut == self.problem.cuts:
            self.tried += 1
            if self.tried % 64 == 0 and self.clock.late():
                raise _Stop
            self.judge(drafts)
            return
        devices = free
        while devices:
            for stop in range(cut + 1, self.problem.cuts + 1):
                for draft in self.stage(cut, stop, devices):
                    self.extend(stop, free & ~devices, (*drafts, draft))
            devices = (devices - 1) & free

    def judge(self, drafts: StageDrafts) -> None:
        if self.accounting.comm == "paper":
            stages = stages_of(self.problem, self.cluster, drafts, comm="paper")
            period, latency = period_and_latency(self.cluster, stages)
        else:
            timed = timed_plan(
                self.problem,
                self.cluster,
                drafts,
                self.accounting,
                below_s=self.least_s,
                clock=self.clock,
            )
            if timed is None:
                return
            period, latency = timed.period_s, timed.latency_s
        if period < self.least_s and latency <= self.latency_limit_s:
            self.least_s, self.stages = period, drafts

    def stage(self, start: int, stop: int, devices: int) -> Sequence[StageDraft]:
        """The stage on these devices: with the leader of least transfer, or by resources with every leader."""
        key = (start, stop, devices)
        if key not in self.drafts:
            speeds = [device.speed for device in self.cluster.devices]
            members = [device for device in range(len(speeds)) if devices >> device & 1]
            members.sort(key=lambda device: (-speeds[device], device))
            bounds = balanced_rows(self.problem.segment(start, stop), [speeds[device] for device in members])
            split = (Split(start, stop, tiles(members, bounds)),)
            choices = [StageDraft(leader, split) for leader in members]
            if self.accounting.comm == "paper":
                timed = [stage_of(self.problem, self.cluster, one, comm="paper") for one in choices]
                choices = [choices[min(range(len(timed)), key=lambda place: timed[place].transfer_s)]]
            self.drafts[key] = choices
        return self.drafts[key]
