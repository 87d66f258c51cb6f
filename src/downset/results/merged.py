"""A network with merged operators for other runtimes: its candidates, their times, and the file that was written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median

from downset.results.comparisons import Proof
from downset.results.stages import is_steady

__all__ = ["LIMIT", "FileTimes", "MergedFile", "MergedNetwork", "typical", "worst"]

LIMIT = 1.02
"""The most of the original's time that a file may take by any measure, with any number of threads."""
_WINS = 0.8
"""The share of rounds in which a file must be faster to be called so."""


@dataclass(frozen=True, slots=True)
class FileTimes:
    """The times of a file and of the original on `threads` threads, in rounds in which both take turns. `latency_s` and
    `cpu_s`: by round, seconds of a run of the original and of the file, the least of a turn; `cpu_s` is processor time
    of all threads."""

    threads: int
    latency_s: tuple[tuple[float, float], ...]
    cpu_s: tuple[tuple[float, float], ...]

    @property
    def latency_ratio(self) -> float:
        """The file's latency over the original's, the median of the rounds."""
        return median(file / original for original, file in self.latency_s)

    @property
    def cpu_ratio(self) -> float:
        """The file's processor time over the original's, the median of the rounds."""
        return median(file / original for original, file in self.cpu_s)

    @property
    def latency_counts(self) -> bool:
        """Whether latencies vary so little that their ratio tells something."""
        return _steady(self.latency_s)

    @property
    def cpu_counts(self) -> bool:
        """The same for the processor time. Several threads spend it on waiting for one that has no processor; one
        thread does not, so its time counts on a busy machine, too."""
        return self.threads == 1 or _steady(self.cpu_s)

    @property
    def ratios(self) -> tuple[float, ...]:
        """The ratios of the measures that count; there are none where the machine was too busy."""
        cpu = (self.cpu_ratio,) if self.cpu_counts else ()
        return (*cpu, *((self.latency_ratio,) if self.latency_counts else ()))

    @property
    def faster(self) -> bool:
        """Whether the file is faster by each measure that counts in four fifths of the rounds."""
        counted = [self.cpu_s] if self.cpu_counts else []
        counted += [self.latency_s] if self.latency_counts else []
        wins = [sum(file < original for original, file in pairs) for pairs in counted]
        return bool(wins) and min(wins) >= _WINS * len(self.cpu_s) and max(self.ratios) < 1


def _steady(pairs: Sequence[tuple[float, float]]) -> bool:
    return all(is_steady([pair[index] for pair in pairs]) for index in (0, 1))


def worst(times: Sequence[FileTimes]) -> float:
    """The largest ratio of any measure with any number of threads."""
    return max((ratio for one in times for ratio in one.ratios), default=1.0)


def typical(times: Sequence[FileTimes]) -> float:
    """The geometric mean of the ratios that count, with each number of threads."""
    ratios = [ratio for one in times for ratio in one.ratios]
    return exp(sum(map(log, ratios)) / len(ratios)) if ratios else 1.0


@dataclass(frozen=True, slots=True)
class MergedFile:
    """A network with the merges of some families. `merges`: how many there are. `operators`: of the network with them.
    `proof`: that the file holds the original. `times`: with each number of threads, of the search."""

    name: str
    families: tuple[str, ...]
    merges: int
    operators: int
    proof: Proof
    times: tuple[FileTimes, ...] = ()

    @property
    def ratio(self) -> float:
        return typical(self.times)

    @property
    def worst_ratio(self) -> float:
        return worst(self.times)


@dataclass(frozen=True, slots=True)
class MergedNetwork:
    """The result of `export_merged`. `chosen`: the name of the candidate whose file was taken, "" for none. `asked`:
    whether that is the one that was asked for, and not the one that measurements chose. `times`: of the chosen file in
    fresh processes after the choice, with each number of threads; without a choice those of the best candidate, if it
    ran again. `why`: the reason. `output_path`: the file that was written, "" for none. `sizes`: those of inputs for
    which files are proven and timed; `other_sizes`: others at which the chosen file is proven and was run. `versions`:
    of what took part."""

    operators: int
    candidates: tuple[MergedFile, ...]
    chosen: str
    asked: bool
    times: tuple[FileTimes, ...]
    why: str
    output_path: str = ""
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    other_sizes: tuple[str, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def ratio(self) -> float:
        """The chosen file's time over the original's, the geometric mean of what counts; 1 without a choice."""
        return typical(self.times) if self.chosen else 1.0

    @property
    def slower(self) -> bool:
        """Whether the chosen file is slower than is allowed by some measure, with some number of threads."""
        return bool(self.chosen) and worst(self.times) > LIMIT

    @property
    def proof(self) -> Proof | None:
        return next((one.proof for one in self.candidates if one.name == self.chosen), None)

    def __repr__(self) -> str:
        file = f"{self.chosen}, {self.ratio:.3f} of the time" if self.chosen else "nothing to gain"
        return f"<MergedNetwork: {file}, of {len(self.candidates)} candidates>"
