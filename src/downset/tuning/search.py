"""Searches stages of one network block by block; all strategies share one budget of timings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from downset.budget import Budget, Clock, check_work_limit
from downset.errors import LimitReached, UsageError
from downset.executor.binder import Binder
from downset.executor.device import TorchDevice
from downset.graph.core import Graph
from downset.messages import Message, Setting, joined
from downset.methods import check_choice
from downset.reports.more_search import longer_s, more_work
from downset.results.plans import Stage
from downset.stages.endings import ENDINGS, EndingsName
from downset.stages.greedy import greedy
from downset.stages.ios import StrategyName
from downset.stages.lazy import lazy
from downset.stages.problem import FoundStages, StageProblem
from downset.stages.sequential import sequential
from downset.stages.unit_graph import PATTERNS, Pattern, UnitGraph, group_units, search_blocks
from downset.text import unheard
from downset.tuning.profiles import Profiles
from downset.tuning.timer import StageTimer, block_problem, merge_families, renamed

__all__ = ["Progress", "StageLimits", "Tuning", "Variant", "further_limits"]

Progress = Callable[[str, int, int], None]


_LARGEST = 2**31 - 1
"""The largest limit that the compiled search takes."""
_TIMES_MORE = 2
"""A search that a limit on timings ended is proposed to have so many times as many."""
_LOOKED_AT = 1_000_000
"""States of a block that are visited to learn whether wider limits leave more stages to time."""
_LOOK_S = 2.0


@dataclass(frozen=True, slots=True)
class StageLimits:
    """Limits of the search: `max_ops` units in a group, `max_groups` groups in a stage, `timings` of stages, `seconds`
    for each block, and `all_seconds` for all blocks and strategies. The seconds do not bound the timing of single units
    and of whole candidates. `work`: how many states the search of a block may visit (None: any number); the same number
    and timings give the same candidates under any load. `patterns`: which operators form a unit."""

    max_ops: int = 3
    max_groups: int = 8
    timings: int = 200
    seconds: float = 60.0
    endings: EndingsName = "all"
    all_seconds: float = math.inf
    work: int | None = None
    patterns: tuple[Pattern, ...] = PATTERNS

    def __post_init__(self) -> None:
        for name in ("max_ops", "max_groups", "timings"):
            if not 1 <= getattr(self, name) <= _LARGEST:
                raise UsageError(Setting(name), f" must be from 1 to {_LARGEST}; given {getattr(self, name)}")
        check_choice("endings", self.endings, ENDINGS)
        check_work_limit(self.work)
        for name in ("seconds", "all_seconds"):
            if not getattr(self, name) > 0:
                raise UsageError(Setting(name), f" must be above 0 s; given {getattr(self, name):g}")


@dataclass(slots=True)
class StageSearch:
    """Finds chains of stages for each strategy, block by block, with one budget for all."""

    units: UnitGraph
    families: tuple[int, ...]
    timer: StageTimer
    limits: StageLimits
    progress: Progress
    clock: Clock = field(default_factory=Budget(math.inf).start)
    """The time of all blocks and strategies."""
    parts: list[tuple[int, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    at: int = 0
    """The block that is searched now."""
    ended_by: set[str] = field(default_factory=set)
    """Fields of StageLimits that ended the search of a block early."""

    def stages(self, strategy: StrategyName) -> tuple[Stage, ...]:
        self.parts = self.parts or list(search_blocks(self.units.predecessors))
        stages: list[Stage] = []
        position = 0
        while position < len(self.parts):
            self.at = position
            self._tell(strategy)
            block = self.parts[position]
            problem = block_problem(self.units, self.families, block)
            wide = sum(len(later) > 1 for later in self.parts[position:])
            left = max(0, self.limits.timings - self.timer.used)
            try:
                chain = self._block(problem, block, strategy, left if wide <= 1 else -(-left // wide))
            except LimitReached as error:
                pieces = search_blocks(problem.predecessors, largest=-(-len(block) // 2))
                if len(pieces) > 1 and self.clock.left_s() > 0:
                    self._cut(position, pieces, error.message)
                    continue
                chain = self._unsearched(problem, strategy, error.message)
            stages += renamed(chain.stages, block)
            position += 1
        return tuple(stages)

    def _tell(self, strategy: StrategyName) -> None:
        timed = f"{self.timer.used} of at most {max(self.limits.timings, self.timer.used)} stages timed"
        self.progress(f"searching ({strategy}), {timed}", self.at, len(self.parts))

    def _cut(self, unit: int, pieces: Sequence[Sequence[int]], why: str) -> None:
        """Replace a block by the pieces it is cut into, for this and all later strategies."""
        block = self.parts[unit]
        self.parts[unit : unit + 1] = [tuple(block[unit] for unit in piece) for piece in pieces]
        sizes = " + ".join(str(len(piece)) for piece in pieces if len(piece) > 1)
        fewer = joined(" or ", (Setting("max_ops"), Setting("max_groups")))
        self.notes.append(Message(why, f": they were cut into {sizes} (fewer ", fewer, " would spare the cut)"))

    def _block(self, problem: StageProblem, block: Sequence[int], strategy: StrategyName, share: int) -> FoundStages:
        """Search one block. Raises LimitReached if the block is too large or no time is left."""

        def price(stage: Stage) -> float:
            own = renamed([stage], block)[0]
            if not self.timer.is_free(own):
                self._tell(strategy)
            return self.timer(own)

        def free(stage: Stage) -> bool:
            return self.timer.is_free(renamed([stage], block)[0])

        left_s = self.clock.left_s()
        if left_s == 0:
            if len(block) > 1:
                self.ended_by.add("all_seconds")
            raise LimitReached("no time was left")
        if len(block) > 64:
            raise LimitReached(f"a block of {len(block)} units is too large to be searched")
        shorter = "seconds" if self.limits.seconds <= left_s else "all_seconds"
        of_limit = {"timings": "timings", "time": shorter, "work": "work"}
        clock = Budget(min(self.limits.seconds, left_s), self.limits.work).start(real_time=True)
        try:
            stages = lazy(
                problem,
                price,
                clock=clock,
                max_ops=self.limits.max_ops,
                max_groups=self.limits.max_groups,
                endings=self.limits.endings,
                strategy=strategy,
                budget=share,
                free=free,
            )
        except LimitReached:
            if clock.late():
                self.ended_by.add(of_limit[clock.stopped_by()])
            raise
        if stages.ended_by:
            self.ended_by.add(of_limit[stages.ended_by])
        return stages

    def wider(self) -> dict[str, Any]:
        """Fields of StageLimits with wider values, with each of which alone more stages of these blocks are timed. A
        block that would take long to look at counts as if it had none."""
        limits = self.limits
        tried: dict[str, Any] = {"endings": "all"} if limits.endings != "all" else {}
        tried |= {"max_ops": limits.max_ops + 1, "max_groups": limits.max_groups + 1}
        least = {"endings": 2, "max_ops": limits.max_ops + 1, "max_groups": limits.max_groups + 1}
        clock = Budget(_LOOK_S).start()
        return {
            name: value
            for name, value in tried.items()
            if any(
                self._leaves_some(block, replace(limits, **{name: value}), clock)
                for block in self.parts
                if len(block) >= least[name]
            )
        }

    def _leaves_some(self, block: Sequence[int], limits: StageLimits, clock: Clock) -> bool:
        """Whether a search of the block within these limits asks for a stage that is not timed yet."""
        search = StageSearch(self.units, self.families, self.timer, replace(limits, work=_LOOKED_AT), unheard, clock)
        try:
            search._block(block_problem(self.units, self.families, block), block, "both", 0)
        except LimitReached:
            return False
        return "timings" in search.ended_by

    def _unsearched(self, problem: StageProblem, strategy: StrategyName, why: str) -> FoundStages:
        how = "sequential" if strategy == "merge" else "greedy"
        block = f"a block of {len(problem.predecessors)} units was not searched ("
        self.notes.append(Message(block, why, f"): {how} there"))
        if strategy == "merge":
            return sequential(problem, lambda _: 0.0)
        return greedy(problem, lambda _: 0.0, max_groups=self.limits.max_groups)


@dataclass(frozen=True, slots=True)
class Tuning:
    """The device, limits, kept timings and progress function that the searches of all variants share."""

    device: TorchDevice
    limits: StageLimits
    profiles: Profiles | None
    progress: Progress


class Variant:
    """A variant of the prepared graph, with its units, their timer and their search. `shared`: the timer of the plain
    graph, which keeps the timings; None for the plain graph itself."""

    def __init__(self, tuning: Tuning, name: str, graph: Graph, *, shared: StageTimer | None = None) -> None:
        device, limits = tuning.device, tuning.limits
        self.name, self.graph = name, graph
        self.units = group_units(graph, limits.patterns)
        self.binder = Binder(graph, device=device.kind, dtype=device.dtype)
        profiles = tuning.profiles if shared is None else None
        self.timer = StageTimer(graph, self.units, device, self.binder, profiles, shared=shared)
        labelled = _labelled(tuning.progress, name)
        self.search = StageSearch(self.units, merge_families(graph, self.units), self.timer, limits, labelled)
        self.sequence = tuple(Stage(((unit,),)) for unit in range(len(self.units.units)))

    def ready(self) -> tuple[Stage, ...]:
        """Stages of all units that are ready."""
        problem = StageProblem(self.units.predecessors)
        return greedy(problem, lambda _: 0.0, max_groups=self.search.limits.max_groups).stages


def further_limits(limits: StageLimits, searches: Sequence[StageSearch], used: int) -> dict[str, float | int | str]:
    """Fields of StageLimits that ended or narrowed these searches, each with a value with which more stages are timed;
    empty where the searches came to their end and no limit left out a stage that would be timed. `used`: the stages
    timed so far."""
    ended = set().union(*(search.ended_by for search in searches))
    more: dict[str, float | int | str] = {}
    if not ended:
        for search in searches:
            more |= search.wider()
    if "timings" in ended or (more and used >= limits.timings):
        more["timings"] = _TIMES_MORE * max(limits.timings, used)
    if "seconds" in ended:
        more["seconds"] = longer_s(limits.seconds)
    if "all_seconds" in ended:
        more["all_seconds"] = longer_s(limits.all_seconds)
    if "work" in ended and limits.work is not None:
        more["work"] = max(_LOOKED_AT, more_work(limits.work))
    return more


def _labelled(progress: Progress, name: str) -> Progress:
    return lambda what, done, total: progress(f"{what}, {name}" if name else what, done, total)
