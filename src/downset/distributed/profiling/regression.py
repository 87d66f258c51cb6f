"""Derives rates from timings: alphas of devices by regression, rates and latencies of links. Nothing is measured here.

Source: PICO (section 3.2.2, eq. 7): computing time = alpha · MACs / capacity, alpha from a regression; section 6.1: a
link's rate as the difference in size of two messages over the difference in response time.
Names: the capacity ϑ times 1/alpha of a kind of operator is its rate here; `mac_per_s` is the rate of the kind with the
most measured MACs, whose alpha is 1.
Complexity: 2^k least squares of k columns over all samples; k is the number of kinds, plus one for bytes.
Deviations: the paper has one alpha for a device, and operators without MACs cost nothing. The difference of two
response times drops the fixed cost of messages; here a line through several sizes gives both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations

import numpy as np
import numpy.typing as npt

from downset.clusters.model import ProcessorCost
from downset.errors import UsageError

__all__ = [
    "ComputeSample",
    "DeviceRates",
    "LinkRates",
    "device_rates",
    "link_rates",
    "processor_cost",
    "takes_turns",
    "with_occupancy",
]

Array = npt.NDArray[np.float64]
_MOST_KINDS = 12
_FASTEST = 1e-11
"""The least seconds of a byte, if large messages take no longer than small ones: no link is faster than memory."""


@dataclass(frozen=True, slots=True)
class ComputeSample:
    """A run of operators: MACs by kind, the bytes that operators without MACs read and write, and the seconds."""

    macs_of: Mapping[str, int]
    moved_bytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """`alpha_of`: alphas of kinds other than the main one, whose rate is `mac_per_s`. `bytes_per_s`: None if operators
    without MACs took no measurable time. `spread`: the median of |predicted - measured| / measured over the samples."""

    mac_per_s: float
    alpha_of: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    spread: float = 0.0
    samples: int = 0


@dataclass(frozen=True, slots=True)
class LinkRates:
    """A message of n bytes takes latency_s + n / bytes_per_s. It occupies the link or the medium for occupied_latency_s
    + n / occupied_bytes_per_s of that time (None: for all of it). `spread` as in `DeviceRates`."""

    bytes_per_s: float
    latency_s: float
    spread: float = 0.0
    samples: int = 0
    occupied_bytes_per_s: float | None = None
    occupied_latency_s: float | None = None


def device_rates(samples: Sequence[ComputeSample]) -> DeviceRates:
    """The non-negative rates whose predicted times are nearest to the samples' times.

    Residuals weigh 1 / sqrt(seconds), so that the sum of all predictions is near the sum of all times; a plan adds up
    times in the same way. Raises UsageError if no sample has MACs, if there are too many kinds, or if no rate explains
    the samples."""
    kinds = sorted({kind for sample in samples for kind, macs in sample.macs_of.items() if macs})
    if not kinds or any(not 0 < sample.seconds < math.inf for sample in samples):
        raise UsageError("a device's rate needs samples with MACs, each with a time above 0")
    if len(kinds) > _MOST_KINDS:
        raise UsageError(f"{len(kinds)} kinds of operators with MACs; the regression takes {_MOST_KINDS}")
    seconds = np.array([sample.seconds for sample in samples])
    columns = [[float(sample.macs_of.get(kind, 0)) for sample in samples] for kind in kinds]
    columns.append([float(sample.moved_bytes) for sample in samples])
    work = np.array(columns).T
    each = _non_negative(work, seconds, 1 / np.sqrt(seconds))
    mac_s = {kind: one for kind, one in zip(kinds, each, strict=False) if one > 0}
    if not mac_s:
        raise UsageError("no rate explains these samples: operators with MACs took no more time than those without")
    total = {kind: sum(sample.macs_of.get(kind, 0) for sample in samples) for kind in mac_s}
    main = max(mac_s, key=lambda kind: (total[kind], kind))
    alpha_of = {kind: one / mac_s[main] for kind, one in mac_s.items() if kind != main}
    byte_s = each[-1]
    return DeviceRates(
        1 / mac_s[main], alpha_of, 1 / byte_s if byte_s > 0 else None, _spread(work @ each, seconds), len(samples)
    )


def link_rates(samples: Sequence[tuple[int, float]]) -> LinkRates:
    """The line through (bytes, seconds). Residuals are relative to the seconds, so that small messages decide the
    latency and large ones the rate. Raises UsageError for fewer than two sizes."""
    if len({nbytes for nbytes, _ in samples}) < 2 or any(not 0 < seconds < math.inf for _, seconds in samples):
        raise UsageError("a link's rate and latency need messages of at least two sizes, each with a time above 0")
    seconds = np.array([seconds for _, seconds in samples])
    work = np.array([[1.0, float(nbytes)] for nbytes, _ in samples])
    latency_s, byte_s = _non_negative(work, seconds, 1 / seconds)
    spread = _spread(work @ np.array([latency_s, byte_s]), seconds)
    return LinkRates(1 / max(byte_s, _FASTEST), latency_s, spread, len(samples))


def with_occupancy(rates: LinkRates, samples: Sequence[tuple[int, float]]) -> LinkRates:
    """The rates with the occupancy from (bytes, seconds of a message) of messages that follow one another without a
    wait, with relative residuals. A message never occupies a link for longer than it takes."""
    seconds = np.array([seconds for _, seconds in samples])
    work = np.array([[1.0, float(nbytes)] for nbytes, _ in samples])
    fixed_s, byte_s = _non_negative(work, seconds, 1 / seconds)
    rate = max(rates.bytes_per_s, 1 / max(byte_s, _FASTEST))
    return replace(rates, occupied_bytes_per_s=rate, occupied_latency_s=min(rates.latency_s, fixed_s))


def processor_cost(samples: Sequence[tuple[int, float]]) -> ProcessorCost:
    """The processor cost of a message: the line through (bytes, seconds), with residuals relative to the seconds.
    Samples of 0 seconds or less, of messages that slowed nothing down, are left out; if all are, a message costs
    nothing. Raises UsageError without a sample."""
    if not samples or any(not math.isfinite(seconds) for _, seconds in samples):
        raise UsageError("the cost of a message needs messages with the seconds that they took")
    seen = [(nbytes, seconds) for nbytes, seconds in samples if seconds > 0]
    if not seen:
        return ProcessorCost()
    seconds = np.array([seconds for _, seconds in seen])
    work = np.array([[1.0, float(nbytes)] for nbytes, _ in seen])
    return ProcessorCost(*_non_negative(work, seconds, 1 / seconds))


def takes_turns(alone_s: Sequence[float], together_s: float, *, least_s: float = 0.0) -> bool:
    """Whether tasks take turns at a resource, or go on side by side.

    `alone_s`: the time of each alone; `together_s`: the time of all when they begin at once. Tasks that take turns need
    the sum of `alone_s`. Tasks side by side need the largest of `alone_s`, or `least_s` if that is larger, the time
    that another resource used by all of them is known to need. The answer is the prediction that is nearer to
    `together_s` by ratio. If `least_s` is above the sum, turns cannot show, and the answer is no. Raises UsageError for
    fewer than two tasks."""
    if len(alone_s) < 2:
        raise UsageError("at least two works are needed to tell whether they take turns")
    beside_s, turns_s = max(*alone_s, least_s), sum(alone_s)
    return beside_s < turns_s and together_s > math.sqrt(beside_s * turns_s)


def _spread(predicted: Array, measured: Array) -> float:
    return float(np.median(np.abs(predicted - measured) / measured))


def _non_negative(work: Array, seconds: Array, weights: Array) -> list[float]:
    """Least squares without negative coefficients: the best over all sets of columns whose plain least squares has
    none.

    The optimum is among them, because on the set of its positive coefficients it is the plain least squares."""
    rows, target = work * weights[:, None], seconds * weights
    best, least = [0.0] * work.shape[1], float(target @ target)
    columns = [column for column in range(work.shape[1]) if rows[:, column].any()]
    for count in range(1, len(columns) + 1):
        for chosen in combinations(columns, count):
            part = rows[:, chosen]
            scale = np.linalg.norm(part, axis=0)
            solution, _, rank, _ = np.linalg.lstsq(part / scale, target, rcond=None)
            if rank < count or (solution < 0).any():
                continue
            residual = target - (part / scale) @ solution
            if float(residual @ residual) < least * (1 - 1e-12):
                least, best = float(residual @ residual), [0.0] * work.shape[1]
                for column, value in zip(chosen, solution / scale, strict=True):
                    best[column] = float(value)
    return best
