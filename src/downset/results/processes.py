"""The growth of a process that opens a model, as data: resident memory in its parts, and time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal

from downset.results.sessions import SessionSettings
from downset.text import abridged

__all__ = [
    "LitertKernels",
    "LitertProcess",
    "ProcessFit",
    "ProcessGrowth",
    "ProcessRow",
    "ProcessorBound",
    "middle_growth",
]


@dataclass(frozen=True, slots=True)
class ProcessGrowth:
    """How a new process grows while it opens a model and runs it, in bytes of resident memory over what it had with
    the library imported, and the processor time of a run.

    `peak_bytes`: the most at any time (VmHWM), loading included. `rest_bytes`: between runs. The anonymous part of each
    cannot be taken back without swapping; the rest is mapped from files: shared between processes, and read again where
    the system took it. At the peak it is the most that was seen while the session was loaded (every millisecond), or
    that runs had (VmHWM). `cpu_s`: seconds of all threads together; `low_s` and `high_s`: the least and the most of the
    processes, which are `processes`. `most_bytes`: the highest of their peaks."""

    peak_bytes: int
    peak_anonymous_bytes: int
    rest_bytes: int
    rest_anonymous_bytes: int
    cpu_s: float
    low_s: float = 0.0
    high_s: float = 0.0
    processes: int = 1
    most_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ProcessorBound:
    """The processor that a file is for, as a digest of its instructions ("" where the system does not list them), and
    the version of ONNX Runtime. `layouts`: operators compute on blocks of that processor's width, so that no setting
    makes the file run on another; else only packed weights are for it, which can be left alone."""

    processor: str
    runtime: str
    layouts: bool


def middle_growth(readings: Sequence[ProcessGrowth]) -> ProcessGrowth:
    """The medians of several processes, with the least and the most of their processor times."""
    times = [reading.cpu_s for reading in readings]
    peak, peak_anonymous, rest, rest_anonymous = (
        round(median(getattr(reading, name) for reading in readings))
        for name in ("peak_bytes", "peak_anonymous_bytes", "rest_bytes", "rest_anonymous_bytes")
    )
    return ProcessGrowth(
        peak,
        peak_anonymous,
        rest,
        rest_anonymous,
        median(times),
        min(times),
        max(times),
        len(readings),
        max(reading.peak_bytes for reading in readings),
    )


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """A file opened with these settings, and the growth of its process. `file`: the name of the candidate. `by_hand`:
    the original with options that users set by hand, or by default. `file_bytes`: of the files of the model on disk."""

    file: str
    settings: SessionSettings
    growth: ProcessGrowth
    file_bytes: int
    by_hand: bool = False

    __repr__ = abridged


LitertKernels = Literal["XNNPACK", "built-in"]


@dataclass(frozen=True, slots=True)
class LitertProcess:
    """A file opened in LiteRT, and the growth of its process. `kernels`: XNNPACK runs what it can, as by default, or
    the built-in kernels run all."""

    file: str
    kernels: LitertKernels
    growth: ProcessGrowth

    __repr__ = abridged


@dataclass(frozen=True, slots=True)
class ProcessFit:
    """The processes of a fit. `rows`: all that were measured, the original by default first. `shipped`: the row of what
    ships; `by_hand`: the best that is set by hand within the limit of time. `slower` and `larger`: the limits
    of processor time and of bytes on disk, as factors of the original by default."""

    rows: tuple[ProcessRow, ...]
    shipped: ProcessRow
    by_hand: ProcessRow
    slower: float
    larger: float

    __repr__ = abridged

    @property
    def default(self) -> ProcessRow:
        return self.rows[0]
