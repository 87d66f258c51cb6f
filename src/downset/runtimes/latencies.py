"""The time of a run compared with that of another in the same rounds, with a confidence interval of their ratio."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from downset.results.sessions import Latency

__all__ = ["latencies"]


def latencies(seconds: npt.NDArray[np.float64]) -> list[Latency]:
    """The latency of each column of `seconds` (by round and file), with its ratio to the first column."""
    return [_latency(seconds[:, index], seconds[:, 0]) for index in range(seconds.shape[1])]


def _latency(taken: npt.NDArray[np.float64], usual: npt.NDArray[np.float64]) -> Latency:
    ratios = np.sort(taken / usual)
    low = _interval_rank(len(ratios))
    return Latency(
        _median(np.sort(taken)),
        len(ratios),
        _median(ratios),
        float(ratios[low]),
        float(ratios[-1 - low]),
        _median(np.sort(usual)),
    )


def _median(ascending: npt.NDArray[np.float64]) -> float:
    """The median, for which numpy would import masked arrays."""
    count = len(ascending)
    return float(ascending[(count - 1) // 2] + ascending[count // 2]) / 2


def _interval_rank(count: int) -> int:
    """The largest rank r for a confidence interval of the median: of `count` sorted values, the median lies between
    those at index r and index -1 - r with a probability of at least 95 %. 0 where no r reaches that. Each value is
    below the median with probability 1/2."""
    missed, rank = 2 * 0.5**count, 0
    while missed + 2 * math.comb(count, rank + 1) * 0.5**count <= 0.05 and rank + 1 < count - 1 - rank:
        rank += 1
        missed += 2 * math.comb(count, rank) * 0.5**count
    return rank
