"""The paper's optimal configuration: tries every pipeline, within a time limit.

Source: PICO, section 6.5 (BFS), Tables VI and VII.
Names: optimal pipeline → the best of all (cuts, assignments of devices to stages).
Complexity: Σ over stages s of C(units - 1, s - 1) · s! · S(devices, s) assignments, each priced; partial plans are not
remembered.
Deviations: the search is depth first, which tries the configurations of the paper's breadth-first search with the
memory of one path. Prices of stages are kept (the paper does not say), strips are balanced as in Algorithm 3, and the
leader is the one of least transfer. Devices may stay idle. Every assignment of equal devices is still tried, as the
paper's times suggest.
"""

from __future__ import annotations

from downset import clock
from downset.clusters.model import Cluster
from downset.pipelines.drafts import Drafted, FoundPipeline, Split, StageDraft
from downset.pipelines.paper_timing import CommName, period_and_latency, stage_of, stages_of
from downset.pipelines.problem import SplitProblem
from downset.pipelines.single import single
from downset.pipelines.strips import balanced_rows, tiles

__all__ = ["exhaustive"]


class _Stop(Exception):
    pass


def exhaustive(
    problem: SplitProblem,
    cluster: Cluster,
    *,
    comm: CommName = "resources",
    max_latency_s: float | None = None,
    time_limit_s: float = 10.0,
) -> FoundPipeline:
    """The best of all pipelines with balanced strips. At the time limit the search ends with the best so far, and the
    result says so."""
    timed = cluster.occupied if comm == "resources" and max_latency_s is None else cluster
    run = _Enumeration(problem, timed, comm, max_latency_s)
    run.deadline = clock.now() + time_limit_s
    stopped = False
    try:
        run.extend(0, (1 << len(cluster.devices)) - 1, ())
    except _Stop:
        stopped = True
    stages = run.stages or single(problem, cluster).stages
    return FoundPipeline(stages, 0.0, states=run.tried, stopped=stopped)


class _Enumeration:
    deadline = float("inf")

    def __init__(self, problem: SplitProblem, cluster: Cluster, comm: CommName, max_latency_s: float | None) -> None:
        self.problem, self.cluster, self.comm = problem, cluster, comm
        self.latency_limit_s = float("inf") if max_latency_s is None else max_latency_s
        self.best, self.stages, self.tried = float("inf"), (), 0
        self.drafts: dict[tuple[int, int, int], StageDraft] = {}

    stages: Drafted

    def extend(self, cut: int, free: int, drafts: Drafted) -> None:
        if cut == self.problem.cuts:
            self.tried += 1
            if self.tried % 64 == 0 and clock.now() > self.deadline:
                raise _Stop
            period, latency = period_and_latency(
                self.cluster, stages_of(self.problem, self.cluster, drafts, comm=self.comm)
            )
            if latency <= self.latency_limit_s and period < self.best:
                self.best, self.stages = period, drafts
            return
        devices = free
        while devices:
            for stop in range(cut + 1, self.problem.cuts + 1):
                self.extend(stop, free & ~devices, (*drafts, self.stage(cut, stop, devices)))
            devices = (devices - 1) & free

    def stage(self, start: int, stop: int, devices: int) -> StageDraft:
        key = (start, stop, devices)
        if key not in self.drafts:
            speeds = [device.speed for device in self.cluster.devices]
            members = [device for device in range(len(speeds)) if devices >> device & 1]
            members.sort(key=lambda device: (-speeds[device], device))
            bounds = balanced_rows(self.problem.segment(start, stop), [speeds[device] for device in members])
            split = (Split(start, stop, tiles(members, bounds)),)
            choices = [StageDraft(leader, split) for leader in members]
            self.drafts[key] = min(
                choices, key=lambda draft: stage_of(self.problem, self.cluster, draft, comm=self.comm).transfer_s
            )
        return self.drafts[key]
