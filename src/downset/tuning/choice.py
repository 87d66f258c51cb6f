"""Times whole candidates end to end on the device, in interleaved rounds, and chooses one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.executor.device import TorchDevice
from downset.executor.lane_program import lower, possibly_live_bytes
from downset.graph.core import Graph
from downset.graph.cost import op_macs
from downset.graph.float_types import coarsest
from downset.lattice import bits
from downset.messages import Message
from downset.results.stages import StageCandidate, is_steady
from downset.runtimes.differences import allowed_difference, as_array, difference
from downset.stages.unit_graph import UnitGraph
from downset.tuning.search import Progress, Variant

__all__ = ["Timed", "TimingRounds", "choose", "longest_path", "noise", "timed_candidates", "work"]

_WINS = 0.8
"""The share of interleaved rounds in which a candidate must be faster than sequential to be chosen."""


@dataclass(frozen=True, slots=True)
class Timed:
    """Candidates with their latencies, sequential first. `best`: the name of the fastest other candidate. `pairs`:
    seconds (sequential, best) of further rounds of these two, because the rounds in which `best` won among several
    flatter it. `notes`: candidates that were left out, because the device cannot run them or their outputs differ from
    sequential's."""

    candidates: tuple[StageCandidate, ...]
    best: str = ""
    pairs: tuple[tuple[float, float], ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TimingRounds:
    """The timing of whole networks: `runs` interleaved rounds on the device, on these inputs."""

    device: TorchDevice
    values: Sequence[Any]
    runs: int
    progress: Progress


def timed_candidates(
    variants: Mapping[str, Variant],
    candidates: Sequence[StageCandidate],
    rounds: TimingRounds,
    *,
    required: str | None = None,
) -> Timed:
    """Time the candidates in interleaved rounds; the first must be sequential. Each other candidate runs once before
    and is left out if its outputs differ from sequential's. `required`: the name of the candidate that takes turns with
    sequential in further rounds, in place of the fastest one. Raises UnsupportedError if sequential cannot run, or if
    the required candidate is left out."""
    device, values, progress = rounds.device, rounds.values, rounds.progress
    ready: dict[str, StageCandidate] = {}
    engines: dict[str, Any] = {}
    notes: list[str] = []
    plain = variants[""]
    placed = list(map(plain.binder.place, values, plain.graph.inputs))
    outputs: list[Any] = []
    allowed = allowed_difference(device.kind, coarsest(plain.graph, device.dtype))
    try:
        for index, candidate in enumerate(candidates):
            progress("building candidates", index, len(candidates))
            variant = variants[candidate.variant]
            graph, units = variant.graph, variant.units
            program = lower(units, candidate.stages, barriers=candidate.barriers, max_lanes=device.max_lanes)
            try:
                engine = device.engine(
                    variant.binder, program, inputs=graph.inputs, outputs=graph.outputs, values=values
                )
            except UnsupportedError as error:
                if not ready:
                    raise
                notes.append(Message(f"candidate {candidate.name!r} was left out: ", error.message))
                continue
            engines[candidate.name] = engine
            results = [as_array(value) for value in engine(placed)]
            outputs = outputs or results
            apart = difference(results, outputs)
            if not apart <= allowed:
                _close(engines.pop(candidate.name))
                notes.append(
                    f"candidate {candidate.name!r} was left out: its outputs differ from sequential's by {apart:.2g} "
                    f"of the largest value (allowed: {allowed}); please report it"
                )
                continue
            live = possibly_live_bytes(graph, program, dtype=device.dtype)
            ready[candidate.name] = replace(candidate, live_bytes=live)
        if required is not None and required not in ready:
            raise UnsupportedError(next(note for note in notes if note.startswith(f"candidate {required!r} ")))
        samples = device.time_whole(engines, placed, runs=rounds.runs, progress=partial(progress, "timing candidates"))
        first, *others = engines
        best = min(others, key=lambda name: median(samples[name]), default=first) if required is None else required
        pairs: list[tuple[float, float]] = []
        if best != first:
            both = {first: engines[first], best: engines[best]}
            again = device.time_whole(both, placed, runs=rounds.runs, progress=partial(progress, "confirming the best"))
            pairs = list(zip(again[first], again[best], strict=True))
    finally:
        for engine in engines.values():
            _close(engine)
    timed = tuple(replace(candidate, seconds=tuple(samples[name])) for name, candidate in ready.items())
    return Timed(timed, best, tuple(pairs), tuple(notes))


def _close(engine: Any) -> None:
    """End the threads of an engine, if it has any."""
    close = getattr(engine, "close", None)
    if close is not None:
        close()


def choose(timed: Timed, *, required: bool = False) -> tuple[StageCandidate, float, str]:
    """(the chosen candidate, its speed-up over sequential, the reason for the choice as text). `required`: the
    candidate that ran in the same rounds as sequential is chosen whatever its times are."""
    sequential = timed.candidates[0]
    if not timed.pairs:
        return sequential, 1.0, "it was asked for" if required else "there is no other schedule"
    best = next(candidate for candidate in timed.candidates if candidate.name == timed.best)
    ratios = [ours / theirs for ours, theirs in timed.pairs]
    gain = median(ratios)
    faster, text = _compared(sequential, timed.pairs, ratios)
    if required:
        return best, gain, f"it was asked for, and was {text}"
    if faster:
        return best, gain, f"{best.name} was {text}"
    return sequential, 1.0, f"the best other, {best.name}, was {text}"


def _compared(
    sequential: StageCandidate, pairs: Sequence[tuple[float, float]], ratios: Sequence[float]
) -> tuple[bool, str]:
    """(whether a candidate is known to be faster than sequential, what its rounds with sequential tell)."""
    rounds, gain = len(ratios), median(ratios)
    wins, losses = sum(ratio > 1.0 for ratio in ratios), sum(ratio < 1.0 for ratio in ratios)
    where = f"of {rounds} fresh interleaved rounds, {gain:.3f}x in the median"
    if losses >= _WINS * rounds and gain < 1.0:
        # Both run in each round, so the count of rounds tells this however far the times spread.
        return False, f"slower than sequential in {'each' if losses == rounds else losses} {where}"
    text = f"faster than sequential in {wins} {where}"
    if not (is_steady(sequential.seconds) and is_steady([seconds for seconds, _ in pairs])):
        return False, f"{text}; sequential's own times vary too much for a verdict: measure again on a quiet machine"
    if wins >= _WINS * rounds and gain > 1.0:
        return True, text
    if not is_steady(ratios):
        low, high = (float(np.quantile(ratios, share)) for share in (0.1, 0.9))
        return False, (
            f"{text}; the rounds vary too much for a verdict (p10 {low:.2f}x, p90 {high:.2f}x): measure again on a "
            "quiet machine"
        )
    return False, f"{text}: not beyond the spread"


def noise(timed: Timed) -> str | None:
    """A warning if the timings vary too much to show small differences, else None."""
    sequential = timed.candidates[0]
    if is_steady(sequential.seconds):
        return None
    low, high = sequential.percentile(0.1), sequential.percentile(0.9)
    return (
        f"timings are noisy: sequential alone took {low * 1e3:.3f} ms (p10) to {high * 1e3:.3f} ms (p90); differences "
        "below that mean nothing (something else may be using the device)"
    )


def work(graph: Graph, units: UnitGraph, alone: Sequence[float]) -> float:
    """Seconds for all MACs of the network at the highest rate that a unit alone reached."""
    macs = [sum(op_macs(graph, graph.ops[op]) for op in ops) for ops in units.units]
    rate = max(count / seconds if seconds else 0.0 for count, seconds in zip(macs, alone, strict=True))
    return sum(macs) / rate if rate else 0.0


def longest_path(units: UnitGraph, alone: Sequence[float]) -> float:
    ends: list[float] = []
    for unit, before in enumerate(units.predecessors):
        ends.append(alone[unit] + max((ends[earlier] for earlier in bits(before)), default=0.0))
    return max(ends)
