"""Stages for one network on one device: search with few measurements, then time whole candidates and keep the best.

Sequential execution of the same kernels is among the candidates and is left only for a win beyond the measured spread,
so the chosen schedule is never slower than running the same kernels one after another, as far as measuring can tell.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from downset.errors import UnsupportedError, UsageError
from downset.executor.device import Device
from downset.graph.core import Graph
from downset.graph.fingerprint import fingerprint
from downset.plans import Evidence, Stage, StagePlan
from downset.rewrites.rebatch import batch_or_one
from downset.stages.variants import VARIANTS
from downset.tuning.choice import Candidate, choose, longest_path, noise, timed_candidates, work
from downset.tuning.profiles import Profiles
from downset.tuning.search import Limits, Progress, Variant

__all__ = ["Candidate", "Limits", "StageResult", "stage"]


@dataclass(frozen=True, slots=True)
class StageResult:
    """`bound_s`: the longest path of units timed alone, or all their multiply-adds at the highest rate that one of them
    reached, whichever is more: no schedule of these kernels is expected below it. None where a candidate was faster
    (its p10): then the units were measured too slow, and nothing is known. `speedup`: sequential over chosen, the
    median of fresh interleaved rounds (1 if sequential was chosen). `why`: what decided."""

    plan: StagePlan
    candidates: tuple[Candidate, ...]
    timings_used: int
    bound_s: float | None
    speedup: float
    why: str
    notes: tuple[str, ...] = ()


def _silent(what: str, done: int, total: int) -> None:
    """Nobody watches."""


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
    UnsupportedError for an operator without a kernel or an empty graph, UsageError for bad limits.
    """
    from downset.executor.arena import seeded_inputs

    limits = limits or Limits()
    progress = progress or _silent
    if runs < 1:
        raise UsageError(f"candidates are timed in at least 1 round; given {runs}")
    if not graph.ops:
        raise UnsupportedError(f"{graph.name} has no operators: there is nothing to stage")
    plain = Variant("", graph, device, profiles, limits, progress)
    if not plain.units.units:
        raise UnsupportedError(f"{graph.name} computes only constants: there is nothing to stage")
    alone = []
    for unit in range(len(plain.units.units)):
        progress("timing units", unit, len(plain.units.units))
        alone.append(plain.timer(Stage(((unit,),))))
    deadline = plain.search.deadline = time.monotonic() + limits.all_seconds
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
        other = variants[name] = Variant(name, changed, device, None, limits, progress, shared=plain.timer)
        other.search.deadline = deadline
        found += [
            Candidate(f"sequential, {name}", other.sequence, barriers=False, variant=name),
            Candidate(f"greedy, {name}", other.ready(limits), barriers=False, variant=name),
        ]
        if other.search.families != plain.search.families and plain.timer.used < limits.timings:
            found.append(Candidate(f"both, {name}", other.search.stages("both"), barriers=False, variant=name))
    candidates: dict[tuple[object, ...], Candidate] = {}
    for candidate in found:
        flat = all(len(stage.groups) == 1 or stage.merged for stage in candidate.stages)
        single = all(len(stage.units) == 1 for stage in candidate.stages)
        # Chains of groups one after another are the same program with barriers and without, and those of single units
        # are sequential, in whatever order blocks have them.
        stages = () if single else candidate.stages
        candidates.setdefault((candidate.variant, stages, candidate.barriers and not flat), candidate)
    values = seeded_inputs(graph, seed=seed)
    timed = timed_candidates(variants, device, list(candidates.values()), values, runs, progress)
    chosen, speedup, why = choose(timed)
    bound = max(longest_path(plain.units, alone), work(graph, plain.units, alone))
    # Units timed alone, at another moment, can come out above the whole: that is no bound.
    fastest = min(candidate.percentile(0.1) for candidate in timed.candidates)
    known = bound <= fastest
    evidence = Evidence(chosen.name, chosen.percentile(0.5), bound if known else 0.0, False, plain.timer.used)
    plan = StagePlan(
        variants[chosen.variant].units.units, chosen.stages, chosen.barriers, device.kind, device.name, device.versions,
        device.dtype, batch_or_one(graph), device.threads, fingerprint(graph), evidence, chosen.variant,
    )  # fmt: skip
    notes = [note for variant in variants.values() for note in variant.search.notes]
    notes += [*plain.timer.notes, *timed.notes, *(profiles.notes if profiles is not None else ())]
    spread = noise(timed)
    if spread is not None:
        notes.append(spread)
    if not known:
        notes.append(
            f"no bound is known: units timed alone make one of {bound * 1e3:.3f} ms, but the whole network took "
            f"{fastest * 1e3:.3f} ms (p10 of the fastest candidate): alone they were measured too slow"
        )
    return StageResult(
        plan, timed.candidates, plain.timer.used, bound if known else None, speedup, why, tuple(dict.fromkeys(notes))
    )
