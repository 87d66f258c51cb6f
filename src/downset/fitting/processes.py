"""Chooses what ONNX Runtime opens by the growth of the whole process: forms of the model with mapped weights, against
the original with the options that users set by hand.

Candidates are few, and each is measured in one new process; those that may win are timed in three, in turns with the
original by default. Where a network is so small that no process can show what is done with it, the arena decides.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

from downset.errors import DownsetError, InvalidPlan, LimitReached
from downset.fitting.candidates import Candidate
from downset.fitting.choosing import Candidates, FileChoice, choose
from downset.fitting.job import Job
from downset.fitting.mapped_forms import MadeForm, forms_of, same_outputs
from downset.fitting.proving import at_other_sizes, compare
from downset.formats.onnx.data_files import stored_bytes
from downset.graph.core import Graph
from downset.messages import Message
from downset.results.comparisons import Comparison
from downset.results.policy import LARGER_MAPPED, SLOWER
from downset.results.processes import ProcessFit, ProcessGrowth, ProcessRow, middle_growth
from downset.results.sessions import BY_HAND, DEFAULT, TRIMMED, SessionTaken
from downset.runtimes.ort_process import process_growths
from downset.text import counted

__all__ = ["LEAST_GAIN", "Attempt", "capped", "choose_by_process", "fastest_within", "smallest"]

LEAST_GAIN = 0.03
"""A file that gains a smaller share of the process than this over the original with settings does not ship."""
_ROUNDS = 3
"""Processes of a candidate that is timed."""
_RUNS_S, _RUNS_SHARE = 20.0, 2.0
"""Seconds of processes that are measured once: the larger of this, and this many times the time limit of searches."""
_ALIKE = 0.01
"""Peaks of two processes differ by chance by up to this share."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A candidate with its readings: a file and the settings with which it was opened. `form`: where the file is a form
    that was made here, with the comparison of its `outputs` with what it was made from."""

    file: Candidate
    readings: tuple[ProcessGrowth, ...] = ()
    by_hand: bool = False
    form: MadeForm | None = None
    outputs: Comparison | None = None

    @property
    def is_original(self) -> bool:
        return self.file.name == "original"

    @property
    def growth(self) -> ProcessGrowth:
        return middle_growth(self.readings)

    def row(self) -> ProcessRow:
        assert self.file.settings is not None
        return ProcessRow(
            self.file.name, self.file.settings, self.growth, stored_bytes(self.file.path), by_hand=self.by_hand
        )


def choose_by_process(job: Job, graph: Graph, candidates: Candidates) -> FileChoice:
    """The file and the settings by which the process grows least, with all that was measured of processes. The choice
    is that by the arena where the target has no sessions or the system reports no resident memory, and where the
    network is so small that nothing done with it changes the process by as much as `LEAST_GAIN`."""
    began = time.perf_counter()
    default = _default_of(job, candidates.original)
    if default is None:
        return choose(job, candidates)
    each_s = time.perf_counter() - began
    try:
        choice = choose(job, candidates, told_apart=False)
    except InvalidPlan as error:  # the form for this processor is compared with the original by itself
        job.notes.add(Message("not in another order or optimised for any processor: ", error.message))
        originals = [file for file in candidates.files if file.name == "original"]
        choice = choose(job, replace(candidates, files=originals), told_apart=False)
        candidates = replace(candidates, files=originals)
    job.listener.progress("measuring processes")
    tried = _candidates(job, graph, candidates, choice)
    most = int(max(_RUNS_S, _RUNS_SHARE * min(job.options.time_limit_s, 60.0)) / each_s)
    if len(tried) > most:
        job.notes.add(f"{counted(len(tried) - most, 'candidate')} were not opened in processes, for want of time")
    measured = [default, *_measured(job, tried[:most])]
    return _chosen(job, candidates, choice, [one for one in measured if one.readings])


def capped(job: Job, choice: FileChoice) -> FileChoice:
    """The choice with an arena that is allowed no more than `arena_bytes`, where that was given and the session has an
    arena: a run that needs more is an error of ONNX Runtime then."""
    settings, limit = choice.file.settings, job.options.arena_bytes
    if limit is None or settings is None or not settings.arena or choice.file.measured is None:
        return choice
    if choice.file.measured["held_bytes"] > limit:
        return choice  # no file is written then
    cap = settings.with_cap(limit)
    rows = tuple(
        replace(row, settings=cap) if (row.file, row.settings) == (choice.file.name, settings) else row
        for row in choice.rows
    )
    return replace(choice, file=replace(choice.file, settings=cap), rows=rows)


def _default_of(job: Job, original: Candidate) -> Attempt | None:
    """The original by default as it was measured; None where processes do not decide: the arena does where its limit or
    strips were asked for."""
    by_arena = job.options.arena_bytes is not None or (job.options.limits_strips and job.options.ram_bytes is None)
    if job.target.sessions is None or original.measured is None or by_arena:
        return None
    job.listener.progress("measuring the process of the original")
    (default,) = _measured(job, [Attempt(replace(original, settings=DEFAULT), by_hand=True)])
    if not default.readings:
        job.notes.add("the growth of the process was not measured: this system does not report it, or a run failed")
        return None
    movable = 2 * stored_bytes(job.path) + original.measured["in_use_bytes"]
    decides = job.options.ram_bytes is not None or movable >= LEAST_GAIN * default.growth.peak_bytes
    return default if decides else None


def _candidates(job: Job, graph: Graph, candidates: Candidates, choice: FileChoice) -> list[Attempt]:
    """The attempts other than the original by default, the likeliest first: forms with mapped weights that compute the
    same, the original with options that are set by hand, and files that need no other file."""
    forms = []
    for form in () if job.options.one_file else forms_of(job, candidates, choice):
        outputs = same_outputs(job, graph, form)
        if outputs is not None:
            forms.append(Attempt(form.opened(form.settings[0]), form=form, outputs=outputs))
    by_hand = [Attempt(replace(candidates.original, settings=settings), by_hand=True) for settings in BY_HAND]
    whole = [Attempt(replace(candidates.original, settings=TRIMMED[1]))]
    if choice.file.name != "original":
        whole.append(Attempt(replace(choice.file, settings=TRIMMED[0])))
    return [*forms[:2], *by_hand, *forms[2:], *whole]


def _measured(job: Job, tried: Sequence[Attempt], rounds: int = 1) -> list[Attempt]:
    sessions = [(one.file.path, one.file.settings or DEFAULT) for one in tried]
    try:
        grown = process_growths(sessions, shapes=job.options.shapes, seed=job.options.seed, rounds=rounds)
    except DownsetError as error:
        job.notes.add(Message("processes were not measured: ", error.message))
        return [replace(one, readings=()) for one in tried]
    return [replace(one, readings=tuple(readings)) for one, readings in zip(tried, grown, strict=True)]


def _chosen(job: Job, candidates: Candidates, choice: FileChoice, measured: Sequence[Attempt]) -> FileChoice:
    """The choice among what was measured, of which the original by default is the first."""
    race = _Race(job, measured)
    while True:
        timed = race.timed()
        best = smallest(timed) if job.options.ram_bytes is None else fastest_within(timed, job.options.ram_bytes)
        try:
            outputs = _outputs(job, candidates, best)
            break
        except (InvalidPlan, LimitReached) as error:
            job.notes.add(Message(f"not the {best.file.label} file: ", error.message))
            race.refuse(best)
    rows = {one.file.label: one.row() for one in [*measured, *timed]}
    by_hand = min((one for one in timed if one.by_hand), key=lambda one: one.growth.peak_bytes)
    process = ProcessFit(tuple(rows.values()), best.row(), by_hand.row(), race.slower, race.larger)
    file = _with_arena(job, best.file)
    job.notes.add(*_notes(best, choice))
    shown = (_taken(candidates.original, timed[0]), _taken(file, best))
    return FileChoice(file, outputs, shown, (), process)


def _outputs(job: Job, candidates: Candidates, best: Attempt) -> Comparison:
    """The comparison of what ships with the original. Raises InvalidPlan where they differ."""
    if best.form is None:
        return compare(job, candidates.original, best.file)
    if best.form.level != "all":
        return compare(job, candidates.original, best.form.source)
    assert best.outputs is not None
    return at_other_sizes(job, best.file, best.outputs)


def smallest(timed: Sequence[Attempt]) -> Attempt:
    """The one by which the process grows least, of those that keep to the limits of time and bytes on disk. A file
    gains enough where the peak, or at no higher peak what is anonymous, is less by `LEAST_GAIN` of the growth; else the
    original ships, with the settings by which it grows least."""
    originals = [one for one in timed if one.is_original]
    original = _least(originals)
    files = [one for one in timed if not one.is_original]
    if not files:
        return original
    best = _least(files)
    growth, less = original.growth, LEAST_GAIN * original.growth.peak_bytes
    gained = growth.peak_bytes - best.growth.peak_bytes
    anonymous = growth.peak_anonymous_bytes - best.growth.peak_anonymous_bytes
    return best if gained >= less or (gained >= 0 and anonymous >= less) else original


def fastest_within(timed: Sequence[Attempt], ram_bytes: int) -> Attempt:
    """The fastest by which no process grew by more than the limit; where there is none, the one that grows least."""
    fits = [one for one in timed if one.growth.most_bytes <= ram_bytes]
    if fits:
        return min(fits, key=lambda one: one.growth.cpu_s)
    return min(timed, key=lambda one: one.growth.most_bytes)


def _least(tried: Sequence[Attempt]) -> Attempt:
    """The one with the lowest peak. Of those that have about that peak, the one with the fewest anonymous bytes; of
    those that have about as few, the fastest."""
    lowest = min(one.growth.peak_bytes for one in tried)
    near = [one for one in tried if one.growth.peak_bytes <= lowest * (1 + _ALIKE)]
    fewest = min(one.growth.peak_anonymous_bytes for one in near)
    alike = [one for one in near if one.growth.peak_anonymous_bytes <= fewest + _ALIKE * lowest]
    quickest = min(one.growth.cpu_s for one in alike)
    quick = [one for one in alike if one.growth.cpu_s <= 1.05 * quickest]
    return min(quick, key=lambda one: (stored_bytes(one.file.path), one.growth.peak_bytes))


class _Race:
    """Times candidates in groups, those of the least memory first, in turns with the original by default."""

    def __init__(self, job: Job, measured: Sequence[Attempt]) -> None:
        self._job, self._default = job, measured[0]
        default = SLOWER if job.options.ram_bytes is None else math.inf
        self.slower = default if job.options.slower is None else job.options.slower
        self.larger = LARGER_MAPPED if job.options.larger is None else job.options.larger
        most_bytes = self.larger * stored_bytes(job.path)
        left = [one for one in measured[1:] if stored_bytes(one.file.path) <= most_bytes]
        self._left = sorted(left, key=lambda one: one.growth.peak_bytes)
        self._kept: list[Attempt] = []

    def timed(self) -> list[Attempt]:
        """The original by default and those of the others that keep to the limits of time and bytes: until a file and
        the original set by hand are among them, or nothing is left."""
        while True:
            has_file = any(not one.is_original and self._fits(one) for one in self._kept)
            has_hand = any(one.by_hand and self._fits(one) for one in self._kept[1:])
            wanted = [] if has_file else self._next([one for one in self._left if not one.is_original])
            wanted += [] if has_hand else [one for one in self._left if one.is_original][:2]
            self._left = [one for one in self._left if one not in wanted]
            if not wanted:
                return self._kept or [self._default]
            group = _measured(self._job, [self._default, *wanted], _ROUNDS)
            if not group[0].readings:
                return self._kept or [self._default]
            self._kept = self._kept or [group[0]]
            self._kept += [one for one in group[1:] if one.readings and _ratio(one, group[0]) <= self.slower]

    def _fits(self, one: Attempt) -> bool:
        limit = self._job.options.ram_bytes
        return limit is None or one.growth.most_bytes <= limit

    def _next(self, files: Sequence[Attempt]) -> list[Attempt]:
        """The files that are timed next; the form of the least memory also with regions of the size asked for."""
        exact = [replace(one, file=one.form.opened(one.form.settings[1])) for one in files[:1] if one.form]
        return [*files[:2], *exact]

    def refuse(self, one: Attempt) -> None:
        """Leave out a file, whatever its settings."""
        self._kept = [other for other in self._kept if other.file.path != one.file.path or other.is_original]
        self._left = [other for other in self._left if other.file.path != one.file.path or other.is_original]


def _ratio(one: Attempt, default: Attempt) -> float:
    """The median over rounds of the processor time as a multiple of the default's in the same round."""
    return median(mine.cpu_s / usual.cpu_s for mine, usual in zip(one.readings, default.readings, strict=True))


def _with_arena(job: Job, file: Candidate) -> Candidate:
    """The candidate with what its arena holds: nothing where its settings turn the arena off."""
    sessions = job.target.sessions
    assert sessions is not None
    assert file.settings is not None
    if file.settings.options.get("enable_cpu_mem_arena") is False:
        return replace(file, measured={"total_bytes": 0, "held_bytes": 0, "in_use_bytes": 0})
    (taken,) = sessions.measure(file.path, [file.settings], shapes=job.options.shapes, seed=job.options.seed)
    return replace(file, measured=taken.nbytes)


def _taken(file: Candidate, tried: Attempt) -> SessionTaken:
    assert file.measured is not None
    assert file.settings is not None
    measured = file.measured
    peak = tried.growth.peak_bytes
    return SessionTaken(file.name, file.settings, measured["in_use_bytes"], measured["held_bytes"], peak)


def _notes(best: Attempt, choice: FileChoice) -> list[str]:
    if best.is_original and choice.file.name != "original":
        return [
            f"the {choice.file.name} file is not what is written: its process grows by no less than {LEAST_GAIN:.0%} "
            "under that of the original with its settings"
        ]
    if best.form is not None and best.form.bound is not None:
        return [
            "the file is for this kind of processor and this version of ONNX Runtime; elsewhere the program that opens "
            "it says so, and opens what runs everywhere"
        ]
    return []
