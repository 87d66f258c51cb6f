"""Measurements of candidates: their memory as the runtime reports it, their times, and the candidate that takes least.

Figures of different runtimes are not compared. Where a runtime opens files with settings, a candidate is a file with
its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from downset.errors import DownsetError
from downset.fitting.candidates import NOT_MEASURED, Candidate, Job
from downset.formats.reading import load
from downset.messages import Message, Setting
from downset.results.sessions import Latency, SessionTaken
from downset.runtimes import tflm
from downset.runtimes.targets import Sessions, Taken
from downset.text import format_bytes

__all__ = [
    "front_of",
    "known_slower",
    "least",
    "measure",
    "run_times",
    "runs_s",
    "taken_of",
    "tell_apart",
    "time",
    "without_slower",
]

PROCESS_NOISE = (1 << 20, 0.02)
"""By chance the resident memory of two processes differs by up to this many bytes, or this share."""
TIMING_S = 2.0
DECIDING_S = 8.0
"""Seconds of timing where the times decide about a limit."""


def runs_s(job: Job, original_s: float, others: int, *, deciding: bool) -> float:
    """The seconds, about, that runs in the runtime take in all, from those in which the original was measured: its own,
    those of `others` candidates and of the written program, those that compare outputs, and the rounds that compare
    times, whose last one may end late. `deciding`: as in `time`."""
    sessions = job.target.sessions
    each_s = original_s if sessions is None else original_s * len(sessions.fitted) / 2
    rounds_s = (DECIDING_S if deciding else TIMING_S) + (0.0 if sessions is None else TIMING_S + original_s)
    return original_s + each_s * (others + 2) + rounds_s


def measure(
    job: Job, candidates: Sequence[Candidate], *, original: Candidate | None = None
) -> tuple[list[Candidate], list[str]]:
    """(the candidates with their measured memory, notes). Either all are measured or none. A rewritten file that the
    runtime does not run is left out. `original`: the original as it was measured before; without a measurement of it,
    nothing is run."""
    notes: list[str] = []
    if not job.target.measures or (original is not None and original.measured is None):
        return list(candidates), notes
    measured: list[Candidate] = []
    for candidate in candidates:
        try:
            rows = _measured(job, candidate, is_first=original is None and candidate is candidates[0])
        except DownsetError as error:
            if not candidate.rewrites:
                return list(candidates), [*notes, Message(NOT_MEASURED, error.message)]
            notes.append(Message(f"the {candidate.name} file is left out: ", error.message))
            continue
        for one, taken in rows:
            if one.plan is not None and taken.executed and (one.settings is None or one.settings.follows_file):
                # The file is read back, since nodes without a name are named by their place in it.
                notes += _departures([op.name for op in load(one.path, shapes=job.shapes).ops], taken.executed)
            measured.append(replace(one, measured=taken.nbytes, workspaces=taken.workspaces))
    return measured, notes


def _measured(job: Job, candidate: Candidate, *, is_first: bool) -> list[tuple[Candidate, Taken]]:
    sessions = job.target.sessions
    if sessions is None:
        assert job.target.measure is not None
        taken = job.target.measure(candidate.path, shapes=job.shapes, seed=job.seed, trust=job.trust)
        return [(candidate, taken)]
    settings = (sessions.default, sessions.fitted[0]) if is_first else sessions.fitted
    each = sessions.measure(candidate.path, settings, shapes=job.shapes, seed=job.seed)
    return [(replace(candidate, settings=one), measurement) for one, measurement in zip(settings, each, strict=True)]


def _departures(planned: Sequence[str], executed: Sequence[str]) -> list[str]:
    """A note where ONNX Runtime did not follow the file's order (it moves Shape and Size forward)."""
    ran = [name for name in executed if name in set(planned)]
    expected = [name for name in planned if name in set(ran)]
    if ran == expected:
        return []
    first = next(one for one, other in zip(ran, expected, strict=True) if one != other)
    return [f"ONNX Runtime did not follow the order: {first!r} ran early; the measured figures are of that run"]


def time(job: Job, candidates: Sequence[Candidate], *, deciding: bool) -> tuple[list[Candidate], list[str]]:
    """(the candidates with their latencies, notes). Timing takes longer where the times are `deciding`. Candidates with
    as many bytes in use as the original's arena holds, or more, are left out, since they gain nothing."""
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
        return list(candidates), [Message("not timed: ", error.message)]
    return [replace(item, latency=latency) for item, latency in zip(candidates, latencies, strict=True)], []


def _with_processes(job: Job, sessions: Sessions, candidates: Sequence[Candidate]) -> list[Candidate]:
    pairs = [(item.path, item.settings) for item in candidates]
    grown = sessions.processes(pairs, shapes=job.shapes, seed=job.seed)
    return [replace(item, process_bytes=process) for item, process in zip(candidates, grown, strict=True)]


def run_times(original: Candidate, chosen: Candidate, *, seed: int) -> tuple[float | None, Latency | None]:
    """(seconds of a run of the original in TFLite Micro on this host, the latency of the chosen file in the same
    rounds); None where it does not run them."""
    files = list(dict.fromkeys((original.path, chosen.path)))
    try:
        timed = tflm.time_runs(files, seed=seed)
    except DownsetError:
        return None, None
    return timed[-1].usual_s, timed[-1]


def without_slower(candidates: Sequence[Candidate], slower: float | None) -> tuple[list[Candidate], list[str]]:
    """(the candidates that are not known to take more than `slower` times as long as the original, a note about the
    others). A candidate is known to if the lower end of its confidence interval is above `slower`."""
    if slower is None:
        return list(candidates), []
    refused = [item for item in candidates[1:] if item.latency and item.latency.ratio_low > slower]
    if not refused:
        return list(candidates), []
    least_refused = min(refused, key=Candidate.cost)
    assert least_refused.latency is not None
    latency = least_refused.latency
    note = Message(
        f"{len(refused)} candidates are left out by ",
        Setting("slower", slower),
        f", {least_refused.label} among them: {latency.ratio:.2f}x "
        f"({latency.ratio_low:.2f} to {latency.ratio_high:.2f}) as slow as the original",
    )
    return [item for item in candidates if item not in refused], [note]


def known_slower(rows: Sequence[SessionTaken], chosen: Candidate, slower: float | None) -> bool:
    """Whether the chosen candidate, timed again, is known to take more than `slower` times as long as the original."""
    latency = next((row.latency for row in rows[::-1] if row.settings == chosen.settings), None)
    return slower is not None and latency is not None and latency.ratio_low > slower


def least(
    job: Job,
    candidates: Sequence[Candidate],
    narrowed: Callable[[Candidate], Candidate],
    ram_bytes: int | None = None,
) -> Candidate:
    """The candidate that takes least; of equals the first, so that the original ships where nothing measures less and
    the runtime's planner is not known. Where sessions were measured, first the candidate whose
    arena holds least is found for each of the settings, among files with concatenations taken apart and among the
    others. Of these, candidates are dropped whose process grows more than the smallest growth, beyond chance. The one
    whose arena holds least is the result. With `ram_bytes` only candidates that hold no more count; where there are
    none, the one that holds least is the result. `narrowed` gives a candidate its least arena. Files in strips are
    candidates only where they were asked for, so that they stand among the others; `note_growth` tells what they
    cost."""
    sessions = job.target.sessions
    if sessions is None or candidates[0].measured is None:
        told = job.target.place is None and candidates[0].measured is not None
        return min(candidates, key=Candidate.measured_bytes if told else Candidate.cost)
    groups: dict[tuple[str, bool], list[Candidate]] = {}
    for item in candidates:
        assert item.settings is not None
        apart = any(rewrite.kind != "row-wise" for rewrite in item.rewrites)
        groups.setdefault((item.settings.name, apart), []).append(item)
    least_held = [_least_held(group, narrowed) for group in groups.values()]
    if ram_bytes is not None:
        within = [item for item in least_held if _held(item) <= ram_bytes]
        least_held = within or [min(least_held, key=Candidate.cost)]
    best = _with_processes(job, sessions, least_held)
    grown = [item.process_bytes for item in best if item.process_bytes is not None]
    most = _with_noise(min(grown)) if grown else 0
    return min((item for item in best if item.process_bytes is None or item.process_bytes <= most), key=Candidate.cost)


def _least_held(candidates: Sequence[Candidate], narrowed: Callable[[Candidate], Candidate]) -> Candidate:
    """The candidate whose arena holds least. Bytes in use are a lower bound of bytes held, so that only a few
    candidates are narrowed."""
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
    """The candidates that no other beats in bytes and time together, the fastest first. `nbytes`: bytes in use, which
    do not depend on the first region of the arena, or bytes held, by which a candidate is chosen."""
    front = [
        one
        for index, one in enumerate(candidates)
        if one.latency
        and not any(_beats(other, one, nbytes, other_at < index) for other_at, other in enumerate(candidates))
    ]
    return sorted(front, key=lambda one: one.latency.run_s if one.latency else 0.0)


def _beats(other: Candidate, one: Candidate, nbytes: Callable[[Candidate], int], earlier: bool) -> bool:
    """Whether `other` is not known to be slower than `one` and takes fewer bytes, or equal bytes if it is `earlier`."""
    if other is one or not (other.latency and one.latency):
        return False
    fewer = nbytes(other) < nbytes(one) or (nbytes(other) == nbytes(one) and earlier)
    return fewer and other.latency.ratio_low <= one.latency.ratio


def tell_apart(
    job: Job, chosen: Candidate, candidates: Sequence[Candidate], narrowed: Callable[[Candidate], Candidate]
) -> tuple[tuple[SessionTaken, ...], tuple[SessionTaken, ...], list[str]]:
    """(rows, front, notes). The rows separate the gain of the file from that of its settings: the original and the
    shipped file, each by default and with the shipped settings; only the first two if both are one file. The front is
    that of the candidates (the original first) in bytes held and time. All are timed together once more. Rows and front
    are empty where sessions were not measured."""
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
        apart = "the gains of the file and of its settings could not be measured separately: "
        return (), (), [Message(apart, error.message)]
    ends = [timed[0]] if by_default else [timed[0], timed[len(rows) - 1]]
    front = front_of([*ends, *timed[len(rows) :]], _held)
    return tuple(map(taken_of, timed[: len(rows)])), tuple(map(taken_of, front)), notes


def note_growth(rows: Sequence[SessionTaken]) -> list[str]:
    """A note where a process grows more, beyond chance, with the shipped file than with the original by the same
    settings: a file of more operators takes more memory outside its arena. `rows`: as `tell_apart` returns them."""
    if len(rows) < 4:
        return []
    before, after = rows[1].process_bytes, rows[-1].process_bytes
    if before is None or after is None or after <= _with_noise(before):
        return []
    return [
        f"a process grows by {format_bytes(after - before)} B more with this file than with the original by the same "
        "settings: it has more operators, which take memory outside the arena"
    ]


def _measured_anew(job: Job, sessions: Sessions, item: Candidate) -> Candidate:
    (measurement,) = sessions.measure(item.path, [item.settings], shapes=job.shapes, seed=job.seed)
    return replace(item, measured=measurement.nbytes)


def taken_of(candidate: Candidate) -> SessionTaken:
    """The row of a candidate that was measured in a session."""
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
