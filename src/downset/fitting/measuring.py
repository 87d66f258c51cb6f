"""Measurements of candidates: memory by the runtime's own report, the least of them, and the cost of the others.

Figures are only compared within one runtime. Where it opens files by settings, a candidate is a file and its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from downset.errors import DownsetError
from downset.fitting.candidates import NOT_MEASURED, Candidate, Job
from downset.formats.reading import load
from downset.runtimes import tflm
from downset.runtimes.targets import Sessions, Taken
from downset.sessions import SessionTaken

__all__ = ["front_of", "known_slower", "least", "measure", "run_times", "tell_apart", "time", "without_slower"]

PROCESS_NOISE = (1 << 20, 0.02)
"""Resident memory of two processes differs by so many bytes, or so large a share, by chance."""
TIMING_S = 2.0
DECIDING_S = 8.0
"""The most seconds that timing takes where a limit is judged by it."""


def measure(
    job: Job, candidates: Sequence[Candidate], *, original: Candidate | None = None
) -> tuple[list[Candidate], list[str]]:
    """The candidates with what the runtime says that each takes, and notes. All or none: figures are only compared
    within one runtime. A rewritten file that the runtime does not run is not a candidate. `original`: as it was
    measured before; where it has no measurement, nothing is run."""
    notes: list[str] = []
    if not job.target.measures or (original is not None and original.measured is None):
        return list(candidates), notes
    measured: list[Candidate] = []
    for candidate in candidates:
        try:
            rows = _measured(job, candidate, is_first=original is None and candidate is candidates[0])
        except DownsetError as error:
            if not candidate.rewrites:
                return list(candidates), [*notes, f"{NOT_MEASURED}{error}"]
            notes.append(f"the {candidate.name} file is left out: {error}")
            continue
        for one, taken in rows:
            if one.plan is not None and taken.executed and (one.settings is None or one.settings.follows_file):
                # The file is read back: nodes without a name are known by their place in it.
                notes += _departures([op.name for op in load(one.path, shapes=job.shapes).ops], taken.executed)
            measured.append(replace(one, measured=taken.nbytes))
    return measured, notes


def _measured(job: Job, candidate: Candidate, *, is_first: bool) -> list[tuple[Candidate, Taken]]:
    sessions = job.target.sessions
    if sessions is None:
        assert job.target.measure is not None
        return [(candidate, job.target.measure(candidate.path, shapes=job.shapes, seed=job.seed))]
    settings = (sessions.default, sessions.fitted[0]) if is_first else sessions.fitted
    taken = sessions.measure(candidate.path, settings, shapes=job.shapes, seed=job.seed)
    return [(replace(candidate, settings=one), measurement) for one, measurement in zip(settings, taken, strict=True)]


def _departures(planned: Sequence[str], executed: Sequence[str]) -> list[str]:
    """A note where ONNX Runtime did not follow the file's order (it moves Shape and Size forward)."""
    ran = [name for name in executed if name in set(planned)]
    expected = [name for name in planned if name in set(ran)]
    if ran == expected:
        return []
    first = next(one for one, other in zip(ran, expected, strict=True) if one != other)
    return [f"ONNX Runtime did not follow the order: {first!r} ran early; the measured figures are of that run"]


def time(job: Job, candidates: Sequence[Candidate], *, deciding: bool) -> tuple[list[Candidate], list[str]]:
    """The candidates with how long a run takes, and notes. More time is spent where the times are `deciding`.
    Candidates with more bytes in use than the original's arena holds are left out: they cannot be a gain."""
    sessions, first = job.target.sessions, candidates[0]
    if sessions is None or first.measured is None:
        return list(candidates), []
    limit = first.measured["held_bytes"]
    left = [first, *(item for item in candidates[1:] if item.measured and item.measured["in_use_bytes"] < limit)]
    return _timed(job, sessions, left, budget_s=DECIDING_S if deciding else TIMING_S)


def _timed(
    job: Job, sessions: Sessions, candidates: Sequence[Candidate], *, budget_s: float = TIMING_S
) -> tuple[list[Candidate], list[str]]:
    pairs = [(item.path, item.settings) for item in candidates]
    try:
        latencies = sessions.time(pairs, shapes=job.shapes, seed=job.seed, budget_s=budget_s)
    except DownsetError as error:
        return list(candidates), [f"not timed: {error}"]
    return [replace(item, latency=latency) for item, latency in zip(candidates, latencies, strict=True)], []


def _with_processes(job: Job, sessions: Sessions, candidates: Sequence[Candidate]) -> list[Candidate]:
    pairs = [(item.path, item.settings) for item in candidates]
    grown = sessions.processes(pairs, shapes=job.shapes, seed=job.seed)
    return [replace(item, process_bytes=process) for item, process in zip(candidates, grown, strict=True)]


def run_times(original: Candidate, chosen: Candidate, *, seed: int) -> tuple[float | None, float | None]:
    """Seconds of a run of the two files in TFLite Micro on this host; None where it does not run them."""
    files = list(dict.fromkeys((original.path, chosen.path)))
    try:
        seconds = tflm.time_runs(files, seed=seed)
    except DownsetError:
        return None, None
    return seconds[0], seconds[-1]


def without_slower(candidates: Sequence[Candidate], slower: float | None) -> tuple[list[Candidate], list[str]]:
    """The candidates without those of which it is known that they are more than `slower` times as slow as the original:
    the lower end of their confidence interval is above it. And a note of what was left out."""
    if slower is None:
        return list(candidates), []
    refused = [item for item in candidates[1:] if item.latency and item.latency.ratio_low > slower]
    if not refused:
        return list(candidates), []
    least_refused = min(refused, key=Candidate.cost)
    assert least_refused.latency is not None
    latency = least_refused.latency
    note = (
        f"{len(refused)} candidates are left out by --slower {slower:g}x, {least_refused.label} among them: "
        f"{latency.ratio:.2f}x ({latency.ratio_low:.2f} to {latency.ratio_high:.2f}) as slow as the original"
    )
    return [item for item in candidates if item not in refused], [note]


def known_slower(rows: Sequence[SessionTaken], chosen: Candidate, slower: float | None) -> bool:
    """Whether the chosen candidate, timed again, is known to take more than so many times as long."""
    latency = next((row.latency for row in rows[::-1] if row.settings == chosen.settings), None)
    return slower is not None and latency is not None and latency.ratio_low > slower


def least(job: Job, candidates: Sequence[Candidate], narrowed: Callable[[Candidate], Candidate]) -> Candidate:
    """The candidate that takes least, among equals the first. Of those with the same settings it is the one whose arena
    holds least; of these the one whose arena holds least among those whose process grows no more than that of the
    smallest, but for what chance explains. `narrowed` gives a candidate its least arena."""
    sessions = job.target.sessions
    if sessions is None or candidates[0].measured is None:
        return min(candidates, key=Candidate.cost)
    by_settings: dict[str, list[Candidate]] = {}
    for item in candidates:
        assert item.settings is not None
        by_settings.setdefault(item.settings.name, []).append(item)
    best = _with_processes(job, sessions, [_least_held(group, narrowed) for group in by_settings.values()])
    grown = [item.process_bytes for item in best if item.process_bytes is not None]
    most = _with_noise(min(grown)) if grown else 0
    return min((item for item in best if item.process_bytes is None or item.process_bytes <= most), key=Candidate.cost)


def _least_held(candidates: Sequence[Candidate], narrowed: Callable[[Candidate], Candidate]) -> Candidate:
    """The candidate whose arena holds least. Bytes in use bound bytes held, so few are asked for their least arena."""
    least: Candidate | None = None
    for item in sorted(candidates, key=_in_use):
        if least is not None and _in_use(item) >= least.cost()[0]:
            break
        tried = narrowed(item)
        if least is None or tried.cost() < least.cost():
            least = tried
    assert least is not None
    return least


def _in_use(item: Candidate) -> int:
    assert item.measured is not None
    return item.measured["in_use_bytes"]


def _held(item: Candidate) -> int:
    assert item.measured is not None
    return item.measured["held_bytes"]


def _with_noise(nbytes: int) -> int:
    return nbytes + max(PROCESS_NOISE[0], int(PROCESS_NOISE[1] * nbytes))


def front_of(candidates: Sequence[Candidate], nbytes: Callable[[Candidate], int] = _in_use) -> list[Candidate]:
    """Those that no other is better than in bytes and time together, the fastest first. `nbytes`: in use, which the
    first region of an arena does not change, or held, by which one is chosen."""
    front = [
        one
        for index, one in enumerate(candidates)
        if one.latency
        and not any(_beats(other, one, nbytes, other_at < index) for other_at, other in enumerate(candidates))
    ]
    return sorted(front, key=lambda one: one.latency.median_s if one.latency else 0.0)


def _beats(other: Candidate, one: Candidate, nbytes: Callable[[Candidate], int], earlier: bool) -> bool:
    """Whether it takes fewer bytes, or as many and stands earlier, and is not known to be slower."""
    if other is one or not (other.latency and one.latency):
        return False
    fewer = nbytes(other) < nbytes(one) or (nbytes(other) == nbytes(one) and earlier)
    return fewer and other.latency.ratio_low <= one.latency.ratio


def tell_apart(
    job: Job, chosen: Candidate, candidates: Sequence[Candidate], narrowed: Callable[[Candidate], Candidate]
) -> tuple[tuple[SessionTaken, ...], tuple[SessionTaken, ...], list[str]]:
    """Tell apart what the file gains and what its settings gain: rows of the original and of the shipped file, each by
    default and by the settings of what is shipped; the first two only where both are one file. Then the front of the
    candidates (the first of which is the original) in bytes held and time; and notes. All are timed together, once
    more. Both are empty where sessions were not measured."""
    sessions, original = job.target.sessions, candidates[0]
    if sessions is None or original.measured is None:
        return (), (), []
    assert chosen.settings is not None
    by_default = chosen.settings == sessions.default
    asked = [replace(original, settings=sessions.fitted[0] if by_default else chosen.settings)]
    if chosen.name != "original":
        asked.append(replace(chosen, settings=sessions.default))
    try:
        first, *rest = [narrowed(_measured_anew(job, sessions, item)) for item in asked]
        rows = [original, first, *rest, *([chosen] if rest else [])]
        others = [narrowed(item) for item in front_of(candidates) if item.label not in (original.label, chosen.label)]
        timed, notes = _timed(job, sessions, _with_processes(job, sessions, [*rows, *others]))
    except DownsetError as error:
        return (), (), [f"the gains of the file and of its settings could not be measured separately: {error}"]
    ends = [timed[0]] if by_default else [timed[0], timed[len(rows) - 1]]
    front = front_of([*ends, *timed[len(rows) :]], _held)
    return tuple(map(_taken, timed[: len(rows)])), tuple(map(_taken, front)), notes


def _measured_anew(job: Job, sessions: Sessions, item: Candidate) -> Candidate:
    (measurement,) = sessions.measure(item.path, [item.settings], shapes=job.shapes, seed=job.seed)
    return replace(item, measured=measurement.nbytes)


def _taken(candidate: Candidate) -> SessionTaken:
    assert candidate.measured is not None
    assert candidate.settings is not None
    return SessionTaken(
        candidate.name,
        candidate.settings,
        candidate.measured["in_use_bytes"],
        candidate.measured["held_bytes"],
        candidate.process_bytes,
        candidate.latency,
    )
