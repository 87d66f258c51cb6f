"""Candidates with readings of their processes, ordered by what these take."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from downset.fitting.candidates import Candidate
from downset.fitting.mapped_forms import MadeForm
from downset.fitting.trials import shipped_bytes
from downset.results.comparisons import Comparison
from downset.results.processes import ProcessGrowth, ProcessRow, middle_growth

__all__ = ["ALIKE", "LEAST_GAIN", "Attempt", "fastest_within", "least_of", "ratio_of", "smallest"]

LEAST_GAIN = 0.03
"""A file that gains a smaller share of the process than this over the original with settings does not ship."""
ALIKE = 0.01
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
    def origin(self) -> Candidate:
        """The candidate whose outputs are compared with the original's."""
        return self.form.source if self.form is not None and not self.form.of_original else self.file

    @property
    def growth(self) -> ProcessGrowth:
        return middle_growth(self.readings)

    @property
    def peak_bytes(self) -> int:
        return self.growth.peak_bytes

    @property
    def held_bytes(self) -> float:
        """The bytes that its arena was seen to hold; infinite where that was not measured."""
        return math.inf if self.file.measured is None else self.file.measured["held_bytes"]

    @property
    def disk_bytes(self) -> int:
        """The bytes of what is written where this ships."""
        return shipped_bytes(self.file)

    def row(self) -> ProcessRow:
        assert self.file.settings is not None
        return ProcessRow(self.file.name, self.file.settings, self.growth, self.disk_bytes, by_hand=self.by_hand)


def smallest(timed: Sequence[Attempt]) -> Attempt:
    """The one by which the process grows least, of those that keep to the limits of time and bytes on disk. A file
    gains enough where the peak, or at no higher peak what is anonymous, is less by `LEAST_GAIN` of the growth; else the
    original ships, with the settings by which it grows least."""
    originals = [one for one in timed if one.is_original]
    original = least_of(originals)
    files = [one for one in timed if not one.is_original]
    if not files:
        return original
    best = least_of(files)
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


def least_of(tried: Sequence[Attempt]) -> Attempt:
    """The one with the lowest peak. Of those that have about that peak, the one with the fewest anonymous bytes; of
    those that have about as few, the fastest; of those that are about as fast, the one with the fewest bytes on disk;
    of those that have about as few, that whose arena holds least, and of equal ones the first by name."""
    lowest = min(one.growth.peak_bytes for one in tried)
    near = [one for one in tried if one.growth.peak_bytes <= lowest * (1 + ALIKE)]
    fewest = min(one.growth.peak_anonymous_bytes for one in near)
    alike = [one for one in near if one.growth.peak_anonymous_bytes <= fewest + ALIKE * lowest]
    quickest = min(one.growth.cpu_s for one in alike)
    quick = [one for one in alike if one.growth.cpu_s <= 1.05 * quickest]
    smallest_bytes = min(one.disk_bytes for one in quick)
    small = [one for one in quick if one.disk_bytes <= (1 + ALIKE) * smallest_bytes]
    return min(small, key=lambda one: (one.held_bytes, one.file.label))


def ratio_of(one: Attempt, default: Attempt) -> float:
    """The median over rounds of the processor time as a multiple of the default's in the same round."""
    pairs = zip(one.readings, default.readings, strict=False)
    return median(mine.cpu_s / usual.cpu_s for mine, usual in pairs)
