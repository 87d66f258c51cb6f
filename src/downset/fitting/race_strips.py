"""Files in strips whose processes are measured: the one of fewest bytes, and others of fewer operators where it is too
slow, for in ONNX Runtime each operator takes time of its own.
"""

from __future__ import annotations

from dataclasses import replace

from downset.errors import DownsetError
from downset.fitting.attempts import LEAST_GAIN
from downset.fitting.candidates import Candidate
from downset.fitting.choosing import Candidates
from downset.fitting.job import Job
from downset.fitting.measuring import measure
from downset.fitting.other_sizes import not_run_at
from downset.fitting.planning import Planned, folded_plan
from downset.fitting.process_race import Race
from downset.fitting.strips import StripSearch, least_in_strips, search_forms, strip_forms
from downset.fitting.trials import in_strips, share_of_operators
from downset.messages import Message
from downset.partial.search import PartialLimits

__all__ = ["RaceStrips"]

_STRIPS, _CHOICES = PartialLimits(0.1, 8), 10_000
"""Strips that are tried without being asked for: few of them, with little further arithmetic; and how many choices are
priced in all forms together."""
_FURTHER = 3
"""The most files of fewer operators that are tried."""
_HALF = 0.5
"""The share of the further operators of the first file with which another is tried in any case: what ONNX Runtime adds
at the cuts may take more than more strips save."""


class RaceStrips:
    """The files in strips of a race, where no option asks for strips or none, and the peak may be lower by `LEAST_GAIN`
    of the process."""

    def __init__(self, job: Job, planned: Planned, candidates: Candidates, race: Race) -> None:
        self._job, self._planned, self._candidates, self._race = job, planned, candidates, race
        self._search: StripSearch | None = None
        self._operators = 0
        self._left = _FURTHER

    def least(self) -> list[Candidate]:
        """The file of fewest bytes, measured, in a list; none where strips are of no use. Whether it ships, processes
        decide."""
        job, options, searches = self._job, self._job.options, self._candidates.searches
        if options.limits_strips or options.rewrite == "off" or options.front or not searches or job.search_time.over:
            return []
        if self._gained(min(search.front.bound_bytes for search in searches)) < 0:
            return []
        job.listener.progress("looking for segments in strips")
        most = _CHOICES if options.work_limit is None else min(_CHOICES, options.work_limit)
        try:
            forms = strip_forms(job, folded_plan(self._planned.best))
            limits = replace(_STRIPS, work_limit=most // len(forms.pricings), time_limit_s=0.5 * options.time_limit_s)
            self._search = search_forms(job, forms, limits)
            return self._measured(least_in_strips(job, [self._search]))
        except DownsetError as error:
            job.notes.add(Message("not computed in strips: ", error.message))
            return []

    def further(self) -> list[Candidate]:
        """The file of fewest bytes among those of fewer operators, measured ("strips 2"): once, and again while all
        files in strips are slower than the limit. None where no such file gains enough, or enough were tried."""
        job, search = self._job, self._search
        ratios = [self._race.ratio(one) for one in self._race.measured if in_strips(one.origin)]
        if search is None or not ratios or not self._left or job.search_time.over:
            return []
        in_time = min(ratios) <= self._race.slower
        if in_time and self._left < _FURTHER:
            return []
        self._left -= 1
        share = _HALF if in_time else share_of_operators(self._race.slower, min(ratios))
        before = len(search.graph.ops)
        try:
            most = before + int(share * (self._operators - before))
            files = least_in_strips(job, [search], most_operators=most)
            number = _FURTHER - self._left + 1
            files = [replace(file, name=f"strips {number}") for file in files if self._gained(file.arena_bytes) >= 0]
            return self._measured(files)
        except DownsetError as error:
            job.notes.add(Message("not computed in fewer strips: ", error.message))
            return []

    def _gained(self, nbytes: int) -> float:
        """The bytes by which an arena of so many bytes saves more than `LEAST_GAIN` of the process."""
        return self._planned.best.together.arena.arena_bytes - nbytes - LEAST_GAIN * self._race.default_bytes

    def _measured(self, files: list[Candidate]) -> list[Candidate]:
        assert self._search is not None
        for file in files:
            if sizes := not_run_at(self._job, self._search.graph, file.path):
                self._job.notes.add(f"not in strips: with {sizes} ONNX Runtime runs the original alone")
                return []
        measured = measure(self._job, files, original=self._candidates.original)
        self._operators = max((len(file.plan.graph.ops) for file in files if file.plan is not None), default=0)
        return [file for file in measured if file.measured is not None]
