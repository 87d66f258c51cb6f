"""Stages for one network on one device: search with few measurements, then time whole candidates and keep the best.

Sequential execution of the same kernels is among the candidates and is left only for a win beyond the measured spread,
so the chosen schedule is never slower than running the same kernels one after another, as far as measuring can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

import numpy as np

from downset.cost import op_macs
from downset.errors import LimitReached, UsageError
from downset.graph import Graph
from downset.lattice import bits
from downset.plans import Evidence, Stage, StagePlan
from downset.rewrite.rebatch import batch_or_one
from downset.run.bound import Binder
from downset.run.device import Device
from downset.run.profiles import Profiles
from downset.run.program import lower, possibly_live_bytes
from downset.stage_timer import StageTimer, block_problem, merge_families, renamed
from downset.staged import fingerprint
from downset.stages.endings import ENDINGS
from downset.stages.greedy import greedy
from downset.stages.lazy import lazy
from downset.stages.problem import FoundStages, StageProblem
from downset.stages.sequential import sequential
from downset.stages.unit_graph import UnitGraph, blocks, group_units
from downset.stages.variants import VARIANTS

__all__ = ["Candidate", "Limits", "StageResult", "stage"]

Progress = Callable[[str, int, int], None]
_WINS = 0.8
"""The share of interleaved rounds that a candidate must win against sequential to be taken instead."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Of the search: `max_ops` operators (units) in a group, `max_groups` groups in a stage, `timings` of stages."""

    max_ops: int = 3
    max_groups: int = 8
    timings: int = 200
    seconds: float = 60.0
    endings: str = "all"

    def __post_init__(self) -> None:
        for name in ("max_ops", "max_groups", "timings"):
            if getattr(self, name) < 1:
                raise UsageError(f"limit {name} is at least 1; given {getattr(self, name)}")
        if self.endings not in ENDINGS:
            raise UsageError(f"unknown endings {self.endings!r}; known: {', '.join(ENDINGS)}")
        if not self.seconds > 0:
            raise UsageError(f"a time limit is above 0 s; given {self.seconds:g}")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A whole schedule and its measured latencies in seconds, one a round. `live_bytes`: analytic."""

    name: str
    stages: tuple[Stage, ...]
    barriers: bool
    seconds: tuple[float, ...] = ()
    live_bytes: int = 0
    variant: str = ""

    def percentile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


@dataclass(frozen=True, slots=True)
class StageResult:
    """`bound_s`: the longest path of units timed alone, or all their multiply-adds at the highest rate that one of them
    reached, whichever is more: no schedule of these kernels is expected below it. `speedup`: sequential over chosen,
    the median of fresh interleaved rounds (1 if sequential was chosen). `why`: what decided."""

    plan: StagePlan
    candidates: tuple[Candidate, ...]
    timings_used: int
    bound_s: float
    speedup: float
    why: str
    notes: tuple[str, ...] = ()


def _silent(what: str, done: int, total: int) -> None:
    """Nobody watches."""


@dataclass(slots=True)
class _Search:
    """Chains of stages by strategy, block by block, with one budget for all."""

    units: UnitGraph
    families: tuple[int, ...]
    timer: StageTimer
    limits: Limits
    progress: Progress
    notes: list[str] = field(default_factory=list)

    def stages(self, strategy: str) -> tuple[Stage, ...]:
        parts = blocks(self.units.predecessors)
        wide = sum(len(block) > 1 for block in parts)
        found: list[Stage] = []
        for at, block in enumerate(parts):
            self.progress(f"searching ({strategy})", at, len(parts))
            problem = block_problem(self.units, self.families, block)
            left = max(0, self.limits.timings - self.timer.used)
            share = left if wide <= 1 else -(-left // wide)
            wide -= len(block) > 1
            found += renamed(self._block(problem, block, strategy, share).stages, block)
        return tuple(found)

    def _block(self, problem: StageProblem, block: Sequence[int], strategy: str, share: int) -> FoundStages:
        def price(stage: Stage) -> float:
            return self.timer(renamed([stage], block)[0])

        def free(stage: Stage) -> bool:
            return self.timer.is_free(renamed([stage], block)[0])

        if len(block) > 64:
            return self._unsearched(problem, strategy, f"it has {len(block)} units, more than 64, and no place to cut")
        try:
            return lazy(
                problem,
                price,
                max_ops=self.limits.max_ops,
                max_groups=self.limits.max_groups,
                endings=self.limits.endings,
                strategy=strategy,
                budget=share,
                free=free,
                time_limit_s=self.limits.seconds,
            )
        except LimitReached as error:
            return self._unsearched(problem, strategy, str(error))

    def _unsearched(self, problem: StageProblem, strategy: str, why: str) -> FoundStages:
        how = "sequential" if strategy == "merge" else "greedy"
        self.notes.append(f"a block of {len(problem.predecessors)} units was not searched ({why}): {how} there")
        if strategy == "merge":
            return sequential(problem, lambda _: 0.0)
        return greedy(problem, lambda _: 0.0, max_groups=self.limits.max_groups)


def stage(
    graph: Graph,
    device: Device,
    *,
    limits: Limits | None = None,
    profiles: Profiles | None = None,
    runs: int = 15,
    seed: int = 0,
    progress: Progress | None = None,
) -> StageResult:
    """Search stages for a prepared graph, time whole candidates end to end, interleaved, and choose.

    `runs`: rounds in which each candidate runs once (at least 15 where the choice shall mean something). Raises
    UnsupportedError for an operator without a kernel, UsageError for an empty graph or bad limits.
    """
    from downset.run.arena import seeded_inputs

    limits = limits or Limits()
    progress = progress or _silent
    if not graph.ops:
        raise UsageError(f"{graph.name} has no operators: there is nothing to stage")
    plain = _Variant("", graph, device, profiles, limits, progress)
    if not plain.units.units:
        raise UsageError(f"{graph.name} computes only constants: there is nothing to stage")
    alone = []
    for unit in range(len(plain.units.units)):
        progress("timing units", unit, len(plain.units.units))
        alone.append(plain.timer(Stage(((unit,),))))
    both, parallel = plain.search.stages("both"), plain.search.stages("parallel")
    merge = plain.search.stages("merge") if plain.search.families else plain.sequence
    variants = {"": plain}
    found = [
        Candidate("sequential", plain.sequence, barriers=False),
        Candidate("greedy", plain.ready(limits), barriers=False),
        Candidate("parallel, barriers", parallel, barriers=True),
        Candidate("parallel", parallel, barriers=False),
        Candidate("merge", merge, barriers=False),
        Candidate("both, barriers", both, barriers=True),
        Candidate("both", both, barriers=False),
    ]
    for name, change in VARIANTS.items():
        changed = change(graph)
        if changed is graph:
            continue
        other = variants[name] = _Variant(name, changed, device, None, limits, progress, shared=plain.timer)
        found += [
            Candidate(f"sequential, {name}", other.sequence, barriers=False, variant=name),
            Candidate(f"greedy, {name}", other.ready(limits), barriers=False, variant=name),
        ]
        if other.search.families != plain.search.families and plain.timer.used < limits.timings:
            found.append(Candidate(f"both, {name}", other.search.stages("both"), barriers=False, variant=name))
    candidates: dict[tuple[object, ...], Candidate] = {}
    for candidate in found:
        flat = all(len(stage.groups) == 1 or stage.merged for stage in candidate.stages)
        # Chains of one unit and one group after another are the same program with barriers and without.
        candidates.setdefault((candidate.variant, candidate.stages, candidate.barriers and not flat), candidate)
    values = seeded_inputs(graph, seed=seed)
    timed, confirmed = _timed(variants, device, list(candidates.values()), values, runs, progress)
    chosen, speedup, why = _choose(timed, confirmed)
    bound = max(_longest_path(plain.units, alone), _work(graph, plain.units, alone))
    evidence = Evidence(chosen.name, chosen.percentile(0.5), bound, False, plain.timer.used)
    plan = StagePlan(
        variants[chosen.variant].units.units, chosen.stages, chosen.barriers, device.kind, device.name, device.versions,
        device.dtype, batch_or_one(graph), device.threads, fingerprint(graph), evidence, chosen.variant,
    )  # fmt: skip
    notes = [note for variant in variants.values() for note in variant.search.notes]
    notes += profiles.notes if profiles is not None else ()
    if bound > chosen.percentile(0.5):
        notes.append("timings are noisy: the units of the longest path took longer alone than the whole network did")
    return StageResult(plan, tuple(timed), plain.timer.used, bound, speedup, why, tuple(notes))


class _Variant:
    """One graph to stage, ready to be timed and searched."""

    def __init__(
        self,
        name: str,
        graph: Graph,
        device: Device,
        profiles: Profiles | None,
        limits: Limits,
        progress: Progress,
        *,
        shared: StageTimer | None = None,
    ) -> None:
        self.graph = graph
        self.units = group_units(graph)
        self.binder = Binder(graph, device=device.kind, dtype=device.dtype)
        self.timer = StageTimer(graph, self.units, device, self.binder, profiles, shared=shared)
        labelled = _labelled(progress, name)
        self.search = _Search(self.units, merge_families(graph, self.units), self.timer, limits, labelled)
        self.sequence = tuple(Stage(((unit,),)) for unit in range(len(self.units.units)))

    def ready(self, limits: Limits) -> tuple[Stage, ...]:
        problem = StageProblem(self.units.predecessors)
        return greedy(problem, lambda _: 0.0, max_groups=limits.max_groups).stages


def _labelled(progress: Progress, name: str) -> Progress:
    return lambda what, done, total: progress(f"{what}, {name}" if name else what, done, total)


def _timed(
    variants: Mapping[str, _Variant],
    device: Device,
    candidates: Sequence[Candidate],
    values: Sequence[Any],
    runs: int,
    progress: Progress,
) -> tuple[list[Candidate], tuple[str, list[tuple[float, float]]]]:
    """All candidates with their latencies; and of the best beside sequential its name and fresh rounds of the two,
    (sequential, best): a winner among several would be judged too kindly by the rounds that it was chosen in."""
    engines: dict[str, Any] = {}
    live: dict[str, int] = {}
    for at, candidate in enumerate(candidates):
        progress("building candidates", at, len(candidates))
        variant = variants[candidate.variant]
        graph, units = variant.graph, variant.units
        program = lower(units, candidate.stages, barriers=candidate.barriers, max_lanes=device.max_lanes)
        live[candidate.name] = possibly_live_bytes(graph, units, program)
        engines[candidate.name] = device.engine(
            variant.binder, units, program, inputs=graph.inputs, outputs=graph.outputs, values=values
        )
    progress("timing candidates", 0, 1)
    try:
        placed = [variants[""].binder.place(value) for value in values]
        samples = device.time_whole(engines, placed, runs=runs)
        first, *others = engines
        best = min(others, key=lambda name: median(samples[name]), default=first)
        pairs: list[tuple[float, float]] = []
        if best != first:
            progress("confirming the best", 0, 1)
            again = device.time_whole({first: engines[first], best: engines[best]}, placed, runs=runs)
            pairs = list(zip(again[first], again[best], strict=True))
    finally:
        for engine in engines.values():
            close = getattr(engine, "close", None)
            if close is not None:
                close()
    progress("timing candidates", 1, 1)
    timed = [replace(c, seconds=tuple(samples[c.name]), live_bytes=live[c.name]) for c in candidates]
    return timed, (best, pairs)


def _choose(
    timed: Sequence[Candidate], confirmed: tuple[str, list[tuple[float, float]]]
) -> tuple[Candidate, float, str]:
    """(chosen, its speed-up over sequential, what decided)."""
    name, rounds = confirmed
    if not rounds:
        return timed[0], 1.0, "there is no other schedule"
    best = next(candidate for candidate in timed if candidate.name == name)
    wins = sum(theirs < ours for ours, theirs in rounds)
    gain = median(ours / theirs for ours, theirs in rounds)
    text = f"faster than sequential in {wins} of {len(rounds)} fresh interleaved rounds, {gain:.3f}x in the median"
    if wins >= _WINS * len(rounds) and gain > 1.0:
        return best, gain, f"{name} was {text}"
    return timed[0], 1.0, f"the best other, {name}, was {text}: not beyond the spread"


def _work(graph: Graph, units: UnitGraph, alone: Sequence[float]) -> float:
    """All multiply-adds at the highest rate that any unit alone reached."""
    macs = [sum(op_macs(graph, graph.ops[op]) for op in ops) for ops in units.units]
    rate = max(count / seconds if seconds else 0.0 for count, seconds in zip(macs, alone, strict=True))
    return sum(macs) / rate if rate else 0.0


def _longest_path(units: UnitGraph, alone: Sequence[float]) -> float:
    ends: list[float] = []
    for unit, before in enumerate(units.predecessors):
        ends.append(alone[unit] + max((ends[earlier] for earlier in bits(before)), default=0.0))
    return max(ends)
