"""Finds the best plan for which the devices have memory.

A plan that does not fit is tried with fewer frames inside. Then its stages are forbidden on the devices that have too
little memory for them, and the method is asked again, until it finds nothing faster than the best plan that fits. Plans
of the other methods are tried in the same way. This forbids more than is known not to fit, so the result is not proven,
and that nothing fits is not proven either: only `check_floors` proves that.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from downset.budget import Clock
from downset.clusters.model import Cluster
from downset.errors import DownsetError, InfeasibleError, LimitReached
from downset.graph.core import Graph
from downset.methods import Chosen
from downset.pipelines.accounting import Accounting
from downset.pipelines.drafts import FoundPipeline, StageDrafts, TimedPlan
from downset.pipelines.incumbents import baseline_plans
from downset.pipelines.judging import timed_plan, too_slow
from downset.pipelines.latency import least_latency
from downset.pipelines.least_memory import lean_pipeline
from downset.pipelines.memory import LAST_S, MemoryCount, PlanMemory
from downset.pipelines.prices import PricedChain
from downset.pipelines.set_search import ExactRequest
from downset.results.pipelines import DeviceMemory
from downset.text import format_bytes

__all__ = ["SearchWithinMemory"]

_TRIES = 40
"""How often a plan that breaks a memory limit is searched again with its stages forbidden."""
Forbidden = set[tuple[int, int, int]]


@dataclass(slots=True)
class SearchWithinMemory:
    """The search for the best plan that the devices have memory for: a method with its arguments, and the best plan so
    far."""

    problem: PricedChain
    graph: Graph | None
    cluster: Cluster
    accounting: Accounting
    planner: Chosen
    clock: Clock
    count: MemoryCount = field(init=False)
    fits: PlanMemory | None = None
    limit_s: float = field(init=False)
    """The length of the clock."""
    late: bool = False
    """Whether the time ended the search for plans that fit."""

    def __post_init__(self) -> None:
        self.count = MemoryCount(
            self.problem, self.graph, self.cluster, replace(self.accounting, max_latency_s=None), self.clock
        )
        self.limit_s = self.clock.left()

    def best(self) -> tuple[FoundPipeline, PlanMemory]:
        """The method's result and a plan that fits. Raises InfeasibleError or LimitReached if none was found."""
        can, first = self.planner.method, None
        forbidden = _too_heavy(self.problem, self.cluster)
        for attempt in range(_TRIES):
            if attempt and self.clock.late():
                self.late = True
                break
            try:
                answer = self._ask(forbidden)
            except (InfeasibleError, LimitReached) as error:
                if self.fits is not None:
                    break
                if not can.proves:
                    raise (LimitReached(error.message) if attempt else error) from None
                return self._without_search(error, heavy=bool(forbidden))
            first = first or answer
            plan = answer.timed or self._timed(answer.stages)
            if self.fits is not None and plan.period_s >= self.fits.timed.period_s:
                break
            counted = self.count.counted(plan)
            broken = counted.broken(self.cluster)
            if not broken and self._in_time(counted):
                self.fits = counted
                if not attempt:
                    return answer, counted
                break
            self._at_smaller_windows(answer.stages, plan)
            if "forbidden" not in can.options:
                break
            more = self._too_much(counted, broken) - forbidden
            if not more:
                break
            forbidden |= more
        return self._what_fits(first)

    def at_once(self) -> tuple[FoundPipeline, PlanMemory] | None:
        """The method's first plan, if it fits and is within the limits; None otherwise."""
        try:
            answer = self._ask(_too_heavy(self.problem, self.cluster))
        except (InfeasibleError, LimitReached):
            return None
        counted = self.count.counted(answer.timed or self._timed(answer.stages))
        return (answer, counted) if not counted.broken(self.cluster) and self._in_time(counted) else None

    def _ask(self, forbidden: Forbidden) -> FoundPipeline:
        answer: FoundPipeline = self.planner(
            self.problem,
            self.cluster,
            comm=self.accounting.comm,
            accounting=self.accounting,
            max_latency_s=self.accounting.max_latency_s,
            clock=self.clock,
            forbidden=frozenset(forbidden),
        )
        return answer

    def _timed(self, drafts: StageDrafts) -> TimedPlan:
        # The orders are searched even if the method used up all the time.
        timed = timed_plan(
            self.problem,
            self.cluster,
            drafts,
            self.accounting,
            clock=self.clock.at_least(LAST_S),
        )
        assert timed is not None  # a plan without limits always has a price
        return timed

    def _in_time(self, counted: PlanMemory) -> bool:
        limit = math.inf if self.accounting.max_latency_s is None else self.accounting.max_latency_s
        return counted.timed.latency_s <= limit * (1 + 1e-12)

    def _at_smaller_windows(self, drafts: StageDrafts, plan: TimedPlan) -> None:
        below = math.inf if self.fits is None else self.fits.timed.period_s
        for counted in self.count.at_smaller_windows(drafts, plan, below_s=below):
            if not counted.broken(self.cluster) and self._in_time(counted):
                self.fits = counted
                return

    def _too_much(self, counted: PlanMemory, broken: list[DeviceMemory]) -> Forbidden:
        """The stages to forbid on devices whose memory they exceed. A smaller strip of the same segment, or of a longer
        one, might fit, so this forbids more than is known not to fit."""
        too_much: Forbidden = set()
        stages = counted.timed.frame.stages
        for device in [too_large.device for too_large in broken]:
            blocks = next((stage.blocks for stage in stages if device in stage.devices), stages[0].blocks)
            first, last = blocks[0].start, blocks[-1].stop
            too_much |= {
                (start, stop, device) for start in range(first + 1) for stop in range(last, self.problem.cuts + 1)
            }
        return too_much

    def _what_fits(self, first: FoundPipeline | None) -> tuple[FoundPipeline, PlanMemory]:
        """The fastest plan that fits, if the method's first plan does not."""
        assert first is not None
        self.clock = self.count.go_on()
        note, stopped = "faster plans that were found do not fit", first.stopped or self.late
        missed = replace(first, proven=False, timed=None, note=note, stopped=stopped)
        if self.planner.method.proves and self.graph is not None:
            self._try_all(baseline_plans(self.problem, self.cluster, self.accounting.comm, self.clock))
            if self.fits is None:
                self._lean()
        if self.fits is None:
            raise self._too_large(first)
        return missed, self.fits

    def _try_all(self, plans: Iterator[StageDrafts]) -> None:
        """Keep the fastest of these plans that fits, if it is faster than the best so far."""
        for drafts in plans:
            below = math.inf if self.fits is None else self.fits.timed.period_s
            other = timed_plan(
                self.problem,
                self.cluster,
                drafts,
                self.accounting,
                below_s=below,
                clock=self.clock,
            )
            if other is None or other.period_s >= below:
                continue
            counted = self.count.counted(other)
            if not counted.broken(self.cluster) and self._in_time(counted):
                self.fits = counted
            elif counted.broken(self.cluster):
                self._at_smaller_windows(drafts, other)

    def _lean(self) -> None:
        """Keep a plan for memory alone. Raises InfeasibleError or LimitReached if that does not fit or is too slow."""
        assert self.graph is not None
        counted = lean_pipeline(self.count, self.graph, self.clock.at_least(self.limit_s))
        if not self._in_time(counted):
            raise LimitReached(
                f"no pipeline was found that fits the devices' memory within {self.accounting.max_latency_s:g} s; one "
                f"that fits has a latency of {counted.timed.latency_s:.6g} s"
            )
        self.fits = counted

    def _without_search(self, error: DownsetError, *, heavy: bool) -> tuple[FoundPipeline, PlanMemory]:
        """A plan for latency alone, or for memory alone, if the search found none. The search may miss plans, because
        it forbids more than memory does and, on shared networks, tries only a sample."""
        if not heavy and isinstance(error, InfeasibleError):
            raise error
        if self.accounting.max_latency_s is not None:
            least, drafts = self._least_latency()
            if least > self.accounting.max_latency_s:
                raise error
            counted = self.count.counted(self._timed(drafts))
            if not counted.broken(self.cluster) and self._in_time(counted):
                self.fits = counted
                note = "planned for latency alone: no faster plan within it was found"
                return FoundPipeline(drafts, 0.0, note=note), counted
        if self.graph is None or not heavy:
            raise LimitReached(error.message) if heavy else error
        self._try_all(baseline_plans(self.problem, self.cluster, self.accounting.comm, self.clock))
        note = "planned by other methods: the search found no plan that fits"
        if self.fits is None:
            self._lean()
            note = "planned for memory alone: faster plans did not fit, or were not found"
        assert self.fits is not None
        return FoundPipeline((), 0.0, note=note), self.fits

    def _least_latency(self) -> tuple[float, StageDrafts]:
        request = ExactRequest(self.problem, self.cluster, self.accounting)
        return least_latency(request, self.clock.at_least(1.0))

    def _too_large(self, answer: FoundPipeline) -> DownsetError:
        counted = self.count.counted(answer.timed or self._timed(answer.stages))
        broken = counted.broken(self.cluster)
        if not broken:
            assert self.accounting.max_latency_s is not None
            least = self._least_latency()[0]
            prefix = f"{self.planner.name}'s pipeline has a latency of {counted.timed.latency_s:.6g} s; "
            return too_slow(self.problem, self.cluster, self.accounting, least, prefix=prefix)
        too_large, described = broken[0], self.cluster.devices[broken[0].device]
        return LimitReached(
            f"{self.planner.name}: device {described.name!r} would need {format_bytes(too_large.total_bytes)} bytes, "
            f"more than its {format_bytes(described.memory_bytes or 0)}, and no plan that fits was found; give it "
            "that much, more devices, or method exact"
        )


def _too_heavy(problem: PricedChain, cluster: Cluster) -> Forbidden:
    """(start, stop, device) of segments whose weights alone exceed the device's memory, whatever its strip."""
    too_heavy = set()
    for device, described in enumerate(cluster.devices):
        if described.memory_bytes is None:
            continue
        for start in range(problem.cuts):
            for stop in range(start + 1, problem.cuts + 1):
                room = described.memory_bytes - described.runtime_bytes
                if problem.weight_bytes(start, stop) > room < problem.strip_weight_bytes(start, stop):
                    too_heavy.add((start, stop, device))
    return too_heavy
