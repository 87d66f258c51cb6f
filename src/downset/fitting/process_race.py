"""Measures attempts in processes: all of them once, then those that decide in further rounds. The fewest runs that
decide are made: an attempt that the first reading rules out has no further one.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from downset.budget import moment_s
from downset.errors import DownsetError
from downset.fitting.attempts import ALIKE, LEAST_GAIN, Attempt, least_of, ratio_of
from downset.fitting.candidates import Candidate
from downset.fitting.job import Job
from downset.formats.onnx.data_files import stored_bytes
from downset.messages import Message
from downset.results.sessions import DEFAULT, ONE_REGION
from downset.runtimes.ort_process import process_growths
from downset.text import counted

__all__ = ["Race", "measured_once", "processes_moment", "processes_s"]

_MORE_ROUNDS = 2
"""Processes of an attempt that is timed, after the first one."""
_RUNS_S, _RUNS_SHARE = 20.0, 2.0
"""Seconds of processor time of processes that are measured once: the larger of this, and this many times the time limit
of searches. Those that decide among them may take as long again. How many processes that are follows from what the
first one took."""
_LEAST_OPENED = 9
"""Processes that are measured once also where they take longer: the original by default, two forms, the settings by
hand, and one form more."""
_LEAST_DECIDING = 12
"""Further processes that decide also where they take longer: two rounds of the default and of five others."""
_MOST_OPENED = 60
"""Processes that are measured at most."""
_HOPELESS = 1.12
"""An attempt whose one reading is slower than the limit by this factor is not timed again."""
_NEAR = 0.04
"""A ratio that is this close to the limit is measured in further rounds."""


def measured_once(job: Job, tried: Sequence[Attempt], rounds: int = 1) -> list[Attempt]:
    """The attempts with readings of so many rounds more; without any where a process failed."""
    sessions = [(one.file.path, one.file.settings or DEFAULT) for one in tried]
    try:
        grown = process_growths(sessions, shapes=job.options.shapes, seed=job.options.seed, rounds=rounds)
    except DownsetError as error:
        job.notes.add(Message("processes were not measured: ", error.message))
        return [replace(one, readings=()) for one in tried]
    return [
        replace(one, readings=(*one.readings, *readings) if readings else ())
        for one, readings in zip(tried, grown, strict=True)
    ]


def processes_moment() -> tuple[float, float]:
    """The two times from which `processes_s` counts."""
    return moment_s(_children_s)


def processes_s(began: tuple[float, float]) -> float:
    """Seconds that processes have taken since then: their processor time, so that what is opened and timed does not
    depend on the load of the machine, or where that is more `BUSY` times less than the real time."""
    return max(now - then for now, then in zip(processes_moment(), began, strict=True))


def _children_s() -> float:
    times = os.times()
    return times.children_user + times.children_system


class Race:
    """The attempts of a fit, measured in processes. `default`: the original by default, with its one reading, whose
    process took `each_s` (`processes_s`). `most`: no more processes are measured, whatever they take."""

    def __init__(self, job: Job, default: Attempt, each_s: float) -> None:
        self._job, self._default = job, default
        policy = job.options.policy(mapped=True)
        if job.options.ram_bytes is not None and job.options.slower is None:
            policy = replace(policy, slower=None)
        self._policy, self._original_bytes = policy, stored_bytes(job.path)
        self.measured = [default]
        self._left: list[Attempt] = []
        self._with_regions: set[Path] = set()
        self._refused: set[Path] = set()
        self._kept: list[Attempt] = []
        self.each_s = self._took_s = each_s
        self._opened = 1
        once_s = max(_RUNS_S, _RUNS_SHARE * min(job.options.time_limit_s, 60.0))
        self._most_once = max(_LEAST_OPENED, min(int(once_s / each_s), _MOST_OPENED - _LEAST_DECIDING))
        self.most = max(self._most_once + _LEAST_DECIDING, min(int(2 * once_s / each_s), _MOST_OPENED))

    @property
    def default_bytes(self) -> int:
        """The bytes by which the process of the original grows by default."""
        return self._default.peak_bytes

    @property
    def slower(self) -> float:
        return math.inf if self._policy.slower is None else self._policy.slower

    @property
    def larger(self) -> float:
        return math.inf if self._policy.larger is None else self._policy.larger

    @property
    def note(self) -> str:
        return f"{self._opened:,} processes of ONNX Runtime were measured, in {self._took_s:.0f} s of processor time"

    def enter(self, tried: Sequence[Attempt]) -> None:
        """Measure attempts once, the first ones as far as their share of time goes; the form of the least memory that
        is fast enough also with the other ways in which an arena may take regions."""
        most = self._rounds_left(1, self._most_once)
        tried = [one for one in tried if self._policy.keeps_size(self._original_bytes, one.disk_bytes)]
        if len(tried) > most:
            left_out = counted(len(tried) - most, "candidate")
            self._job.notes.add(f"not opened in processes, for want of time: {left_out}")
        self._add(self._measure(tried[:most]))
        best = self._best_form()
        if best is not None and best.file.path not in self._with_regions and self._rounds_left(2, self._most_once):
            self._with_regions.add(best.file.path)
            self._add(self._measure(self._regions(best)))

    def _rounds_left(self, attempts: int, most: int) -> int:
        """How many rounds of so many attempts may follow where `most` processes are measured in all."""
        return max((most - self._opened) // attempts, 0)

    def enter_others(self, forms: Sequence[Attempt]) -> None:
        """Measure the forms of further files: with packed weights or without, as in the best form so far."""
        best = self._best_form()
        self.enter([one for one in forms if best is None or _packing(one) == _packing(best)])

    def enter_more(self, forms: Sequence[Attempt]) -> None:
        """Measure the forms of a further file, also where the time for that is over."""
        self._most_once = max(self._most_once, self._opened + len(forms))
        self.most = max(self.most, self._most_once + _LEAST_DECIDING)
        self.enter_others(forms)

    def ratio(self, one: Attempt) -> float:
        """The processor time of an attempt as a multiple of the default's, by its first reading."""
        return ratio_of(one, self._default)

    def _best_form(self) -> Attempt | None:
        """The form of the least memory that is fast enough; of those of about that memory the first that was measured,
        so that a page more or less decides nothing."""
        return next(iter(self._alike([one for one in self._left if one.form])), None)

    def _alike(self, tried: Sequence[Attempt]) -> list[Attempt]:
        """Those of these that take about as much memory as the first, in the order in which they were measured."""
        alike = [one for one in tried if one.peak_bytes <= (1 + ALIKE) * tried[0].peak_bytes]
        return sorted(alike, key=self.measured.index)

    def _measure(self, tried: Sequence[Attempt], rounds: int = 1) -> list[Attempt]:
        if not tried:
            return []
        began = processes_moment()
        measured = measured_once(self._job, tried, rounds)
        self._took_s += processes_s(began)
        self._opened += rounds * len(tried)
        return measured

    def _add(self, measured: Iterable[Attempt]) -> None:
        read = [one for one in measured if one.readings]
        self.measured += read
        hopeful = [one for one in read if self.ratio(one) <= _HOPELESS * self.slower]
        self._left = sorted([*self._left, *hopeful], key=lambda one: one.peak_bytes)

    def _regions(self, one: Attempt) -> list[Attempt]:
        """The same form with an arena that takes regions of the size asked for, and with one that first takes a region
        in which a run fits."""
        assert one.form is not None
        return [replace(one, file=one.form.opened(one.form.settings[1]), readings=()), *self._one_region(one)]

    def _one_region(self, one: Attempt) -> list[Attempt]:
        """The same file with an arena that first takes a region in which a run fits; nothing where it takes regions in
        another way."""
        sessions, options, settings = self._job.target.sessions, self._job.options, one.file.settings
        assert settings is not None
        usual = ONE_REGION.get(settings.name)
        if usual is None:
            return []
        assert sessions is not None
        try:
            narrow, taken = sessions.narrow(one.file.path, usual, shapes=options.shapes, seed=options.seed)
        except DownsetError as error:
            self._job.notes.add(Message("the arena was not narrowed: ", error.message))
            return []
        file = replace(one.file, settings=narrow, measured=taken.nbytes)
        return [] if narrow == usual else [replace(one, file=file, readings=())]

    def narrowed(self, best: Attempt) -> Attempt:
        """The file with an arena that holds no more than a run needs, where its process takes about as little: pages of
        the arena that no run touched do not count for a process, and the arena holds them nevertheless."""
        before = [one for one in self.measured if _is_one_region(one.file, best.file)]
        rounds = min(_MORE_ROUNDS + 1, self._rounds_left(2, self.most))
        if not rounds or any(one.peak_bytes > (1 + ALIKE) * best.peak_bytes for one in before):
            return best  # one reading says enough
        tried = before or self._one_region(best)
        if not tried:
            return best
        again = self._measure([replace(one, readings=()) for one in (best, *tried)], rounds)
        if not all(one.readings for one in again):
            return best
        self.measured.append(again[1])
        return best if least_of(again).file.settings == best.file.settings else again[1]

    def in_turns(self, best: Attempt, other: Attempt) -> list[Attempt]:
        """The original by default and these two with readings of as many rounds as are left; nothing where there is no
        round, or where a process failed."""
        rounds = min(_MORE_ROUNDS + 1, self._rounds_left(3, self.most))
        tried = [replace(one, readings=()) for one in (self._default, best, other)]
        read = self._measure(tried, rounds) if rounds else []
        return read if all(one.readings for one in read) else []

    def near(self, best: Attempt) -> str:
        """Names of what another run of the command may choose in place of `best`, as it takes about as much: processes
        of one file differ by chance. Empty where nothing does."""
        names = dict[str, None]()
        for one in self.hopeful:
            other = (one.file.path, one.file.settings) != (best.file.path, best.file.settings)
            ships = not one.is_original or one.by_hand or best.is_original
            gain = 0.0 if one.is_original == best.is_original else LEAST_GAIN
            alike = one.peak_bytes <= (1 + 3 * ALIKE + gain) * best.peak_bytes
            if other and ships and alike and self.ratio(one) <= (1 + _NEAR) * self.slower:
                names[one.file.label] = None
        return "; ".join(names)

    def timed(self) -> list[Attempt]:
        """The original by default and those of the others that keep to the limits: until a file and the original set by
        hand are among them, or nothing is left that could ship or is the best by hand."""
        while (wanted := self._wanted()) and self._rounds_left(1 + len(wanted), self.most) >= _MORE_ROUNDS:
            self._left = [one for one in self._left if one not in wanted]
            default, *others = self._measure([replace(self._default, readings=()), *wanted], _MORE_ROUNDS)
            if not default.readings:
                return self._kept or [self._default]
            default = replace(default, readings=(*self._default.readings, *default.readings))
            self._kept = self._kept or [default]
            self._kept += [kept for one in others if one.readings and (kept := self._in_time(one, default))]
        if wanted and self._kept:
            self._job.notes.add(f"not timed in processes, for want of time: {counted(len(wanted), 'candidate')}")
        return self._kept or [self._default]

    def _in_time(self, one: Attempt, default: Attempt) -> Attempt | None:
        """The attempt, if it keeps to the limit of time; near the limit further rounds decide, as far as the time for
        them goes."""
        rounds = min(2 * _MORE_ROUNDS + 1, self._rounds_left(2, self.most))
        if rounds and abs(ratio_of(one, default) / self.slower - 1) < _NEAR:
            again = self._measure([replace(each, readings=()) for each in (default, one)], rounds)
            if not all(each.readings for each in again):
                return None
            default, one = (
                replace(each, readings=(*each.readings, *more.readings))
                for each, more in zip((default, one), again, strict=True)
            )
        return one if ratio_of(one, default) <= self.slower else None

    def _wanted(self) -> list[Attempt]:
        """The attempts that are timed next: the file of the least memory, the best that is set by hand, and other
        settings of the original where these may ship."""
        files = [one for one in self._left if self._is_file(one)]
        hand = [one for one in self._left if one.by_hand and one.peak_bytes < self._default.peak_bytes]
        others = [one for one in self._left if not one.by_hand and not self._is_file(one)]
        kept_files = [one for one in self._kept if self._is_file(one) and self.fits(one)]
        wanted = [] if kept_files else self._first(files)
        if not any(one.by_hand and self.fits(one) for one in self._kept[1:]):
            wanted += self._first(hand)
        if kept_files or not files:
            least = min((one.peak_bytes for one in kept_files), default=math.inf)
            wanted += [one for one in others if one.peak_bytes < least + LEAST_GAIN * self._default.peak_bytes][:1]
        return wanted

    def _is_file(self, one: Attempt) -> bool:
        """Whether it may ship without a gain over the original: a file, and under a memory limit also the original with
        other settings than those by hand."""
        return not one.is_original or (self._job.options.ram_bytes is not None and not one.by_hand)

    def _first(self, tried: Sequence[Attempt]) -> list[Attempt]:
        """The two of these that were measured first among those of about as much memory as the first; where one
        reading of theirs is slower than the limit, the first that is not, too. With a memory limit, under which the
        fastest ships, the two fastest that one reading holds within it, or the first two."""
        limit = self._job.options.ram_bytes
        if limit is not None:
            within = [one for one in tried if one.peak_bytes <= limit]
            return sorted(within, key=lambda one: one.growth.cpu_s)[:2] or list(tried[:2])
        first = self._alike(tried)[:2]
        in_time = [one for one in tried if self.ratio(one) <= self.slower]
        return first if any(one in in_time for one in first) else [*first, *in_time[:1]]

    def fits(self, one: Attempt) -> bool:
        """Whether no process of it grew by more than the limit, where there is one."""
        limit = self._job.options.ram_bytes
        return limit is None or one.growth.most_bytes <= limit

    def refuse(self, one: Attempt) -> None:
        """Leave out a file, whatever its settings, and what was made from it. The next has processes of its own."""
        self.most = max(self.most, self._opened + _LEAST_DECIDING)
        self._refused.add(one.origin.path)
        self._kept = [one for one in self._kept if not self._is_refused(one)]
        self._left = [one for one in self._left if not self._is_refused(one)]

    def _is_refused(self, one: Attempt) -> bool:
        return not one.is_original and one.origin.path in self._refused

    @property
    def hopeful(self) -> list[Attempt]:
        """The attempts that were measured and not refused."""
        return [one for one in self.measured if not self._is_refused(one)]


def _is_one_region(file: Candidate, usual: Candidate) -> bool:
    """Whether the file is the other one with an arena that first takes a region in which a run fits."""
    settings = None if usual.settings is None else ONE_REGION.get(usual.settings.name)
    named = settings is not None and file.settings is not None and file.settings.name == settings.name
    return named and file.path == usual.path


def _packing(one: Attempt) -> str:
    """Whether a form has packed weights, as the usual settings with which it is opened say."""
    assert one.form is not None
    return one.form.settings[0].name
