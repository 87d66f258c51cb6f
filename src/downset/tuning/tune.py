"""Chooses stages for one network on one device: searches with few measurements, then times whole candidates.

Sequential execution of the same kernels is among the candidates. Another candidate is chosen only if it is faster
beyond the measured spread. So the chosen plan is not slower than sequential execution, as far as measurements show.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches

from downset.budget import Budget
from downset.errors import UnsupportedError, UsageError
from downset.executor.device import TorchDevice, open_device
from downset.graph.core import Graph, fingerprint
from downset.graph.float_types import cast_text, type_in_common
from downset.messages import Setting
from downset.results.plans import Evidence, Stage, StagePlan
from downset.results.stages import StageCandidate, StageResult
from downset.rewrites.rebatch import batch_or_one
from downset.stages.check import verify_stages
from downset.stages.prepared import VARIANTS, prepare
from downset.text import unheard
from downset.tuning.choice import Timed, TimingRounds, choose, longest_path, noise, timed_candidates, work
from downset.tuning.peers import time_peers
from downset.tuning.profiles import Profiles
from downset.tuning.search import Progress, StageLimits, Tuning, Variant, further_limits

__all__ = ["check_candidate", "tune_stages"]

CANDIDATES = (
    "sequential",
    "greedy",
    "parallel, barriers",
    "parallel",
    "merge",
    "both, barriers",
    "both",
    *(f"{name}, {variant}" for variant in VARIANTS if variant for name in ("sequential", "greedy", "both")),
)
"""The names of all candidates that a network can have."""


def check_candidate(name: str) -> None:
    """Raise UsageError for a name that no candidate has, with the close one."""
    if name not in CANDIDATES:
        close = get_close_matches(name, CANDIDATES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        listed = ", ".join(map(repr, CANDIDATES))
        raise UsageError(Setting("candidate"), f" must be one of {listed}; given {name!r}{hint}")


def tune_stages(  # noqa: PLR0913 - users know its keywords
    graph: Graph,
    device: TorchDevice | str = "cpu",
    *,
    batch: int | None = None,
    limits: StageLimits | None = None,
    profiles: Profiles | None = None,
    runs: int = 15,
    seed: int = 0,
    progress: Progress | None = None,
    peers: bool = False,
    candidate: str | None = None,
) -> StageResult:
    """Search stages for a network on a device, time whole candidates end to end in interleaved rounds, and choose one.

    The graph is prepared first (`prepare`), for `batch` samples if given. `device`: from `open_device`, or a kind,
    "cpu" or "cuda", which computes each tensor in its own element type. `runs`: rounds in which each candidate runs
    once; fewer than 15 make the choice unreliable. `profiles` keeps timings of stages from one call to the next.
    `progress` is called with what is done, how much of it is done, and how much there is. Times are measured, in
    seconds, on inputs drawn from `seed`. The plan is verified. `peers`: also time other runtimes in turns with the
    chosen plan, on a CPU only: PyTorch, operator by operator, and for a .onnx file ONNX Runtime. `candidate`: the name
    of the candidate to take, whatever the times are (CANDIDATES); None takes what measurements choose.

    Raises UnsupportedError for an operator without a kernel, a graph with nothing to run, or a `candidate` that the
    device cannot run, UsageError for bad limits and for a `candidate` that this network does not have.
    """
    from downset.executor.arena import seeded_inputs

    limits, progress = limits or StageLimits(), progress or unheard
    if candidate is not None:
        check_candidate(candidate)
    if runs < 1:
        raise UsageError(f"runs must be at least 1; given {runs}")
    if not graph.ops:
        raise UnsupportedError(f"{graph.name} has no operators: there is nothing to stage")
    loaded, graph = graph, prepare(graph, batch=batch)
    device = open_device(device) if isinstance(device, str) else device
    tuning = Tuning(device, limits, profiles, progress)
    plain = Variant(tuning, "", graph)
    if not plain.units.units:
        raise UnsupportedError(f"{graph.name} computes only constants: there is nothing to stage")
    alone = _timed_alone(plain, progress)
    variants, offered = _searched(plain, tuning)
    further = further_limits(limits, [variant.search for variant in variants.values()], plain.timer.used)
    candidates, kept_as = _different(offered)
    if candidate is not None and candidate not in kept_as:
        raise UsageError(f"candidate {candidate!r} is not one of this network's: {', '.join(map(repr, kept_as))}")
    required = None if candidate is None else kept_as[candidate]
    rounds = TimingRounds(device, seeded_inputs(graph, seed=seed), runs, progress)
    timed = timed_candidates(variants, candidates, rounds, required=required)
    chosen, speedup, why = choose(timed, required=required is not None)
    if required != candidate:
        why = f"{candidate} has the same stages here; {why}"
    plain.timer.settle(alone, timed.candidates[0].percentile(0.5), quiet=noise(timed) is None)
    bound, bound_notes = _bound(plain, alone, timed)
    evidence = Evidence(chosen.name, chosen.percentile(0.5), bound or 0.0, False, plain.timer.used)
    plan = _plan(variants[chosen.variant], chosen, device, graph, evidence)
    verify_stages(variants[chosen.variant].graph, plan)
    cast = cast_text(graph, device.dtype)
    notes = [cast] if cast else []
    notes += [note for variant in variants.values() for note in variant.search.notes]
    notes += [*plain.timer.notes, *timed.notes, *(profiles.notes if profiles is not None else ())]
    spread = noise(timed)
    notes += [*([] if spread is None else [spread]), *bound_notes]
    peer_seconds: dict[str, tuple[float, ...]] = {}
    if peers:
        peer_seconds, peer_notes = time_peers(loaded, graph, plan, rounds)
        notes += peer_notes
        if cast and len(peer_seconds) > 2:
            notes.append(f"ONNX Runtime was timed in the file's own element types, not in {plan.dtype}")
    return StageResult(
        plan,
        timed.candidates,
        plain.timer.used,
        bound,
        speedup,
        why,
        tuple(dict.fromkeys(notes)),
        () if chosen.variant else tuple(alone),
        peer_seconds,
        () if chosen.variant else _unit_names(graph, plan.units),
        required is not None,
        further,
    )


def _timed_alone(plain: Variant, progress: Progress) -> list[float]:
    """Measured seconds of each unit alone."""
    alone = []
    for unit in range(len(plain.units.units)):
        progress("timing units", unit, len(plain.units.units))
        alone.append(plain.timer(Stage(((unit,),))))
    return alone


def _searched(plain: Variant, tuning: Tuning) -> tuple[dict[str, Variant], list[StageCandidate]]:
    """(the variants of the network by name, the candidates that the searches find for them)."""
    limits = tuning.limits
    clock = plain.search.clock = Budget(limits.all_seconds).start(real_time=True)
    both, parallel = plain.search.stages("both"), plain.search.stages("parallel")
    merge = plain.search.stages("merge") if plain.search.families else plain.sequence
    variants = {"": plain}
    offered = [
        StageCandidate("sequential", plain.sequence, barriers=False),
        StageCandidate("greedy", plain.ready(), barriers=False),
        StageCandidate("parallel, barriers", parallel, barriers=True),
        StageCandidate("parallel", parallel, barriers=False),
        StageCandidate("merge", merge, barriers=False),
        StageCandidate("both, barriers", both, barriers=True),
        StageCandidate("both", both, barriers=False),
    ]
    for name, change in VARIANTS.items():
        changed = change(plain.graph)
        if changed is plain.graph:
            continue
        other = variants[name] = Variant(tuning, name, changed, shared=plain.timer)
        other.search.clock = clock
        offered += [
            StageCandidate(f"sequential, {name}", other.sequence, barriers=False, variant=name),
            StageCandidate(f"greedy, {name}", other.ready(), barriers=False, variant=name),
        ]
        if other.search.families != plain.search.families:
            if plain.timer.used < limits.timings:
                both = other.search.stages("both")
                offered.append(StageCandidate(f"both, {name}", both, barriers=False, variant=name))
            else:
                other.search.ended_by.add("timings")
    return variants, offered


def _bound(plain: Variant, alone: Sequence[float], timed: Timed) -> tuple[float | None, list[str]]:
    """(seconds that no stages stay below, or None; a note where there is none).

    Units are timed alone, at another moment: a sum above the time of the whole network is not a bound."""
    bound = max(longest_path(plain.units, alone), work(plain.graph, plain.units, alone))
    fastest = min(one.percentile(0.1) for one in timed.candidates)
    if bound <= fastest:
        return bound, []
    return None, [
        f"no bound is known: from units timed alone it would be {bound * 1e3:.3f} ms, but the whole network took "
        f"{fastest * 1e3:.3f} ms (p10 of the fastest candidate): the units were measured too slow"
    ]


def _plan(variant: Variant, chosen: StageCandidate, device: TorchDevice, graph: Graph, evidence: Evidence) -> StagePlan:
    """The plan of a candidate for the prepared graph, on the device where it was measured."""
    return StagePlan(
        variant.units.units,
        chosen.stages,
        chosen.barriers,
        device.kind,
        device.name,
        device.versions,
        type_in_common(graph, device.dtype),
        batch_or_one(graph),
        device.threads,
        fingerprint(graph),
        evidence,
        chosen.variant,
    )


def _different(offered: Sequence[StageCandidate]) -> tuple[list[StageCandidate], dict[str, str]]:
    """(the candidates that differ, the first of each kind; by the name of each candidate, that of the one kept)."""
    kept: dict[tuple[object, ...], StageCandidate] = {}
    kept_as = {}
    for candidate in offered:
        sequential = all(len(stage.groups) == 1 or stage.merged for stage in candidate.stages)
        single = all(len(stage.units) == 1 for stage in candidate.stages)
        # If every stage is one group, barriers change nothing; if every stage is one unit, the chain is sequential.
        stages = () if single else candidate.stages
        key = (candidate.variant, stages, candidate.barriers and not sequential)
        kept_as[candidate.name] = kept.setdefault(key, candidate).name
    return list(kept.values()), kept_as


def _unit_names(graph: Graph, units: Sequence[Sequence[int]]) -> tuple[str, ...]:
    """A name for each unit: its first operator, and its last one if it has several."""
    ends = [dict.fromkeys((graph.ops[unit[0]].name, graph.ops[unit[-1]].name)) for unit in units]
    return tuple(" … ".join(names) for names in ends)
