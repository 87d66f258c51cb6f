"""Measurements of candidates: their memory and their times as the runtime reports them.

Figures of different runtimes are not compared. Where a runtime opens files with settings, a candidate is a file with
its settings.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from downset.arenas.plan import plan_arena
from downset.errors import DownsetError, LoadError
from downset.fitting.candidates import Candidate, Original
from downset.fitting.job import Job, policy_of
from downset.formats.kernel_scratch import kernel_bytes
from downset.formats.reading import load
from downset.graph.edit import with_workspaces
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import memory_model
from downset.messages import Message
from downset.results.plans import Together
from downset.results.sessions import SessionTaken
from downset.runtimes.targets import Sessions, Taken
from downset.text import counted, format_bytes, format_seconds

__all__ = [
    "Narrowed",
    "Processes",
    "estimate_runs",
    "front_of",
    "growth",
    "held_bytes",
    "in_use",
    "measure",
    "measure_all",
    "narrowing",
    "processes_of",
    "taken_of",
    "tell_apart",
    "time",
    "with_noise",
]

PROCESS_NOISE = (1 << 20, 0.02)
"""By chance the resident memory of two processes differs by up to this many bytes, or this share."""

TIMING_S = 2.0
_LATER, _LATER_RUNS = 11.0, 40
"""Sessions of the chosen file are opened about 40 times more: their arenas narrowed, in fresh processes, timed, in the
written program. The original is measured in 4 sessions; the last round of times may end late by as much."""
_FORMS = 12
"""Sessions in addition to those of processes that decide: forms are made and compared with what they are made from, and
the written program runs."""
DECIDING_S = 8.0
"""Seconds of timing where the times decide about a limit."""

Narrowed = Callable[[Candidate], Candidate]
"""Gives a candidate the settings by which its arena holds least."""


@dataclass(frozen=True, slots=True)
class Processes:
    """The processes that decide: at most `most`, each of which takes about `each_s`."""

    most: int
    each_s: float


def estimate_runs(job: Job, original_s: float, others: int, processes: Processes | None = None) -> tuple[int, float]:
    """(about how many runs in the runtime follow, about how many seconds they take), estimated from those in which the
    original was measured: its own, those of `others` candidates and of the written program, those that compare outputs,
    and the rounds that compare times, whose last one may end late. `processes`: those that decide, where they do."""
    sessions = job.target.sessions
    if processes is not None:  # each other file is opened in one session, and forms are compared
        opened = others + _FORMS
        return processes.most + opened, processes.most * processes.each_s + opened * original_s / 2
    each_s = original_s if sessions is None else original_s * len(sessions.fitted) / 2
    rounds_s = _timing_s(job) + (0.0 if sessions is None else TIMING_S + _LATER * original_s)
    runs = others + 2 if sessions is None else (others + 2) * len(sessions.fitted) + _LATER_RUNS
    return runs, original_s + each_s * (others + 2) + rounds_s


def _timing_s(job: Job) -> float:
    """Seconds of timing, which takes longer where the times decide about a limit."""
    return TIMING_S if policy_of(job.options, job.target).slower is None else DECIDING_S


def measure(job: Job, candidates: Sequence[Candidate], *, original: Candidate | None = None) -> list[Candidate]:
    """The candidates with their measured memory. Either all are measured or none. A rewritten file that the runtime
    does not run is left out. `original`: the original as it was measured before; without a measurement of it, nothing
    is run."""
    if not job.target.measures or (original is not None and original.measured is None):
        return list(candidates)
    measured: list[Candidate] = []
    for candidate in candidates:
        try:
            rows = _measured(job, candidate, is_first=original is None and candidate is candidates[0])
        except DownsetError as error:
            if not candidate.rewrites:
                if isinstance(error, LoadError):  # the file is damaged
                    raise
                job.notes.add_not_measured(error.message)
                return list(candidates)
            job.notes.add(Message(f"the {candidate.name} file is left out: ", error.message))
            continue
        for one, taken in rows:
            if one.plan is not None and taken.executed and (one.settings is None or one.settings.follows_file):
                # The file is read back, since nodes without a name are named by their place in it.
                _note_departures(job, [op.name for op in load(one.path, shapes=job.options.shapes).ops], taken.executed)
            one = replace(one, measured=taken.nbytes, workspaces=taken.workspaces)
            measured.append(_with_kernels(job, _planned_as_held(job, one)))
    return measured


def _planned_as_held(job: Job, candidate: Candidate) -> Candidate:
    """The rewritten candidate planned with what its own kernels held. Before, an operator in a strip had its share of
    what the operator held, though kernels hold some bytes for any number of rows."""
    plan = candidate.plan
    if plan is None or not plan.rewrites or not candidate.workspaces:
        return candidate
    order, memory = plan.together.order, memory_model(plan.together.order.memory)
    held = {step: candidate.workspaces.get(place, 0) for place, step in enumerate(order.steps)}
    graph = with_workspaces(plan.graph, held)
    peak = peak_bytes(order_problem(graph, memory), order.steps)
    evidence = replace(order.evidence, value=peak, bound=min(peak, int(order.evidence.bound)), proven=False)
    arena = plan_arena(graph, order.steps, method="best", memory=memory, time_limit_s=job.search_time.left_s)
    together = Together(replace(order, evidence=evidence), arena)
    return replace(candidate, arena_bytes=arena.arena_bytes, plan=replace(plan, graph=graph, together=together))


def _with_kernels(job: Job, candidate: Candidate) -> Candidate:
    """The measured candidate with what the kernels take, by formula, that the firmware runs."""
    kernels, measured = job.options.kernels, candidate.measured
    if kernels is None or kernels == "reference" or measured is None:
        return candidate
    plan = candidate.plan
    graph = load(candidate.path) if plan is None else plan.graph
    steps = tuple(range(len(graph.ops))) if plan is None else plan.together.order.steps
    arena = plan.together.arena if plan is not None and candidate.name.endswith("+offsets") else None
    nbytes = kernel_bytes(candidate.path, graph, steps, arena, kernels, measured["head_bytes"])
    return replace(candidate, measured={**measured, "kernel_bytes": nbytes})


def measure_all(
    job: Job, original: Original, others: Sequence[Candidate], processes: Processes | None = None
) -> list[Candidate]:
    """The candidates, the original first as it was measured before. All are measured, or none. `processes`: those that
    decide afterwards, where they do. How many runs follow and what they take is told first."""
    if original.file.measured is not None:
        runs, runs_s = estimate_runs(job, original.measured_in_s, len(others), processes)
        job.listener.takes_longer(runs_s)
        job.listener.measuring(runs, runs_s)
        running = f"running {counted(len(others), 'candidate')} in {job.target.name}"
        job.listener.progress(f"{running}; measuring takes about {format_seconds(runs_s)}")
    measured = measure(job, others, original=original.file)
    if any(item.measured is None for item in measured):
        return [replace(original.file, measured=None, settings=None), *measured]
    return [*original.files, *measured]


def _measured(job: Job, candidate: Candidate, *, is_first: bool) -> list[tuple[Candidate, Taken]]:
    sessions = job.target.sessions
    if sessions is None:
        assert job.target.measure is not None
        taken = job.target.measure(
            candidate.path, shapes=job.options.shapes, seed=job.options.seed, trust=job.options.trust
        )
        return [(candidate, taken)]
    settings = (sessions.default, sessions.fitted[0]) if is_first else sessions.fitted
    each = sessions.measure(candidate.path, settings, shapes=job.options.shapes, seed=job.options.seed)
    return [(replace(candidate, settings=one), measurement) for one, measurement in zip(settings, each, strict=True)]


def _note_departures(job: Job, planned: Sequence[str], executed: Sequence[str]) -> None:
    """Add a note where ONNX Runtime did not follow the file's order (it moves Shape and Size forward)."""
    ran = [name for name in executed if name in set(planned)]
    expected = [name for name in planned if name in set(ran)]
    if ran != expected:
        first = next(one for one, other in zip(ran, expected, strict=True) if one != other)
        job.notes.add(
            f"ONNX Runtime did not follow the order: {first!r} ran early; the measured figures are of that run"
        )


def time(job: Job, candidates: Sequence[Candidate]) -> list[Candidate]:
    """The candidates with their latencies. Candidates with as many bytes in use as the original's arena holds, or more,
    are left out, since they gain nothing."""
    sessions, first = job.target.sessions, candidates[0]
    if sessions is None or first.measured is None:
        return list(candidates)
    limit = first.measured["held_bytes"]
    left = [first, *(item for item in candidates[1:] if item.measured and item.measured["in_use_bytes"] < limit)]
    return _timed(job, sessions, left, budget_s=_timing_s(job))


def _timed(job: Job, sessions: Sessions, candidates: Sequence[Candidate], *, budget_s: float) -> list[Candidate]:
    pairs = [(item.path, item.settings) for item in candidates]
    try:
        latencies = sessions.time(pairs, shapes=job.options.shapes, seed=job.options.seed, budget_s=budget_s)
    except DownsetError as error:
        job.notes.add(Message("not timed: ", error.message))
        return list(candidates)
    return [replace(item, latency=latency) for item, latency in zip(candidates, latencies, strict=True)]


def processes_of(job: Job, sessions: Sessions, candidates: Sequence[Candidate]) -> list[Candidate]:
    pairs = [(item.path, item.settings) for item in candidates]
    grown = sessions.processes(pairs, shapes=job.options.shapes, seed=job.options.seed)
    return [replace(item, process_bytes=process) for item, process in zip(candidates, grown, strict=True)]


def _measured_anew(job: Job, sessions: Sessions, item: Candidate) -> Candidate:
    (measurement,) = sessions.measure(item.path, [item.settings], shapes=job.options.shapes, seed=job.options.seed)
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


def narrowing(job: Job) -> Narrowed:
    """A function that gives a candidate the settings by which its arena holds least; each is asked for once."""
    narrow_files: dict[tuple[str, int], Candidate] = {}

    def narrowed(item: Candidate) -> Candidate:
        sessions = job.target.sessions
        if sessions is None or item.settings is None or not item.settings.arena:
            return item
        key = (item.label, id(item.plan))  # what is kept refers to the plan, so that no other gets its number
        if key not in narrow_files:
            settings, taken = sessions.narrow(
                item.path, item.settings, shapes=job.options.shapes, seed=job.options.seed
            )
            narrow_files[key] = replace(item, settings=settings, measured=taken.nbytes)
        narrower = narrow_files[key]
        return replace(item, settings=narrower.settings, measured=narrower.measured)

    return narrowed


def tell_apart(
    job: Job, chosen: Candidate, candidates: Sequence[Candidate], narrowed: Narrowed
) -> tuple[tuple[SessionTaken, ...], tuple[SessionTaken, ...]]:
    """(rows, front). The rows separate the gain of the file from that of its settings: the original and the
    shipped file, each by default and with the shipped settings; only the first two if both are one file. The front is
    that of the candidates (the original first) in bytes held and time. All are timed together once more. Rows and front
    are empty where sessions were not measured."""
    sessions, original = job.target.sessions, candidates[0]
    if sessions is None or original.measured is None:
        return (), ()
    assert chosen.settings is not None
    by_default = chosen.settings == sessions.default
    anew = [replace(original, settings=sessions.fitted[0] if by_default else chosen.settings)]
    if chosen.name != "original":
        anew.append(replace(chosen, settings=sessions.default))
    try:
        first, *rest = [narrowed(_measured_anew(job, sessions, item)) for item in anew]
        rows = [original, first, *rest, *([chosen] if rest else [])]
        others = [narrowed(item) for item in front_of(candidates) if item.label not in (original.label, chosen.label)]
        processes = processes_of(job, sessions, [*rows, *others])
    except DownsetError as error:
        separate = "the gains of the file and of its settings could not be measured separately: "
        job.notes.add(Message(separate, error.message))
        return (), ()
    latest = _timed(job, sessions, processes, budget_s=TIMING_S)
    ends = [latest[0]] if by_default else [latest[0], latest[len(rows) - 1]]
    front = front_of([*ends, *latest[len(rows) :]], held_bytes)
    return tuple(map(taken_of, latest[: len(rows)])), tuple(map(taken_of, front))


def growth(rows: Sequence[SessionTaken]) -> list[str]:
    """A note where a process grows more, beyond chance, with the shipped file than with the original by the same
    settings: a file of more operators takes more memory outside its arena. `rows`: as `tell_apart` returns them."""
    if len(rows) < 4:
        return []
    before, after = rows[1].process_bytes, rows[-1].process_bytes
    if before is None or after is None or after <= with_noise(before):
        return []
    return [
        f"a process grows by {format_bytes(after - before)} B more with this file than with the original by the same "
        "settings: it has more operators, which take memory outside the arena"
    ]


def in_use(item: Candidate) -> int:
    assert item.measured is not None
    return item.measured["in_use_bytes"]


def front_of(candidates: Sequence[Candidate], nbytes: Callable[[Candidate], int] = in_use) -> list[Candidate]:
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


def held_bytes(item: Candidate) -> int:
    assert item.measured is not None
    return item.measured["held_bytes"]


def with_noise(nbytes: int) -> int:
    return nbytes + max(PROCESS_NOISE[0], int(PROCESS_NOISE[1] * nbytes))
