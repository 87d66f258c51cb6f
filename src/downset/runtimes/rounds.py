"""Times of files by the processor time of their runs, in rounds: in each round every file runs once, in turns."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from downset.runtimes.latencies import latencies

__all__ = ["DECIDED_ROUNDS", "ROUNDS", "Run", "round_seconds"]

Run = Callable[[], None]
"""Runs a file once on inputs that were set before."""

ROUNDS, DECIDED_ROUNDS = 15, 63
"""Rounds that are timed, and the most where it is not known yet on which side of a limit a ratio lies."""
_INTERVAL_ROUNDS = 6
"""The fewest rounds whose interval holds the median with a probability of 95 %."""
_SAMPLE_S, _MOST_RUNS = 0.003, 60
"""A file runs so often in a round that this takes about so long, for clocks of processor time are not exact."""
_LONGEST = 3.0
"""Times the budget after which no further round begins, also where the interval has too few."""


def round_seconds(
    files: Sequence[tuple[Run, Run]], *, limit: float | None = None, budget_s: float = 2.0
) -> npt.NDArray[np.float64]:
    """Seconds of a run by round and file. `files`: of each a function that sets its inputs, and one that runs it. The
    first round is not counted, unless it takes more than the time there is. There are up to `ROUNDS` rounds that begin
    within `budget_s` of processor time; with `limit` as many as an interval needs, up to `DECIDED_ROUNDS` while the
    interval of a file's ratio to the first contains the limit, and no more once all intervals lie above it, or below it
    by more than their width."""
    began = time.process_time()
    first = [_sample_s(file, 1) for file in files]
    runs = max(1, min(_MOST_RUNS, int(_SAMPLE_S / max(min(first), 1e-9))))
    seconds: list[list[float]] = []
    while _goes_on(seconds, limit, (time.process_time() - began) / budget_s):
        turns = range(len(files)) if len(seconds) % 2 else reversed(range(len(files)))
        row = {index: _sample_s(files[index], runs) for index in turns}
        seconds.append([row[index] for index in range(len(files))])
    return np.array(seconds or [first])


def _goes_on(seconds: Sequence[Sequence[float]], limit: float | None, spent: float) -> bool:
    """Whether another round is timed, after this share of the budget."""
    if limit is None:
        return len(seconds) < ROUNDS and spent < 1
    if len(seconds) < _INTERVAL_ROUNDS:
        return spent < _LONGEST
    if spent >= 1 or len(seconds) >= DECIDED_ROUNDS:
        return False
    others = latencies(np.array(seconds))[1:]
    if others and all(one.ratio_low > limit for one in others):
        return False
    if others and all(one.ratio_high < limit and not one.is_near(limit) for one in others):
        return False
    return len(seconds) < ROUNDS or any(one.ratio_low <= limit < one.ratio_high for one in others)


def _sample_s(file: tuple[Run, Run], runs: int) -> float:
    """Seconds of a run, on average over some."""
    set_inputs, run = file
    spent = 0.0
    for _ in range(runs):
        set_inputs()
        begin = time.process_time()
        run()
        spent += time.process_time() - begin
    return spent / runs
