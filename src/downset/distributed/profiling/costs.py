"""Derives rates from timings, and measures what messages cost processors.

Source: PICO (section 3.2.2, eq. 7): computing time = alpha · MACs / capacity, alpha from a regression; section 6.1: a
link's rate as the difference in size of two messages over the difference in response time.
Names: the capacity ϑ times 1/alpha of a kind of operator is its rate here; `mac_per_s` is the rate of the kind with the
most measured MACs, whose alpha is 1.
Complexity: 2^k least squares of k columns over all samples; k is the number of kinds, plus one for bytes and one for
weights.
Deviations: the paper has one alpha for a device, and operators without MACs cost nothing. The difference of two
response times drops the fixed cost of messages; here a line through several sizes gives both.

Costs of messages, of their ends and of all other devices: how much longer devices compute while messages go on. Every
device computes all the time, as in a pipeline, and counts its runs. Windows in which messages follow one another
alternate with windows in which nothing is sent. The cost of a message is the time of a window less the time that the
window's runs take in the two silent windows around it, over the number of messages.
Errors: a device's last run ends a window, so that no part of a run is lost; the least numbers of messages and seconds
bound what the first and the last message of a window may hold of its neighbours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import combinations
from statistics import median

import numpy as np
import numpy.typing as npt

from downset.clusters.model import MessageCosts, ProcessorCost
from downset.errors import UsageError

__all__ = [
    "ComputeSample",
    "CostWindow",
    "DeviceRates",
    "LinkRates",
    "LoadedDevices",
    "device_rates",
    "link_rates",
    "lost_seconds",
    "message_costs",
    "processor_cost",
    "takes_turns",
    "with_occupancy",
]

Progress = tuple[int, float]
"""The number of runs that a device has ended, and when the last of them ended, by the device's own clock."""
Window = tuple[int, float]
"""The runs that a device ended within a window, and their seconds."""

_LOOKS_S = 0.03
"""Seconds between two looks at how far devices are."""


@dataclass(frozen=True, slots=True)
class CostWindow:
    """Bounds of a window: at least `messages` messages and `least_s` seconds, but no message begins after `most_s`."""

    least_s: float
    messages: int
    most_s: float


@dataclass(frozen=True, slots=True)
class LoadedDevices:
    """Devices that compute all the time, by number. `progress`: of these devices. `message`, `frame`, `result`: send
    one or more, one after another, and return their number when they have arrived. `pause`: let so many seconds pass;
    `clock`: the time of the calling process."""

    count: int
    progress: Callable[[Sequence[int]], list[Progress]]
    message: Callable[[int, int, int], int]
    frame: Callable[[int, int], int]
    result: Callable[[int, int], int]
    pause: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic


def message_costs(loaded: LoadedDevices, sizes: Sequence[int], window: CostWindow) -> list[MessageCosts]:
    """The costs of messages for each device, from messages of these sizes. One stream of messages goes on at a time. A
    device without a part in it loses what the messages of others cost."""
    devices = range(loaded.count)
    others: list[list[float]] = [[] for _ in devices]
    samples: list[dict[str, list[tuple[int, float]]]] = [
        {what: [] for what in ("send", "receive", "frame", "result")} for _ in devices
    ]

    def measured(streams: Sequence[Callable[[], int]], ends: Sequence[int]) -> list[dict[int, float]]:
        lost = lost_seconds(loaded, devices, streams, window)
        for device in set(devices).difference(ends):
            others[device] += [own[device] for own in lost]
        return lost

    for pair in _of_every_device(loaded.count):
        sent = [(nbytes, way) for nbytes in sizes for way in (pair, pair[::-1])]
        streams = [partial(loaded.message, *way, nbytes) for nbytes, way in sent]
        for (nbytes, (source, target)), lost in zip(sent, measured(streams, pair), strict=True):
            samples[source]["send"].append((nbytes, lost[source]))
            samples[target]["receive"].append((nbytes, lost[target]))
    for device, own in enumerate(samples):
        ends = [(nbytes, what) for nbytes in sizes for what in ("frame", "result")]
        streams = [partial(loaded.frame if what == "frame" else loaded.result, device, nbytes) for nbytes, what in ends]
        for (nbytes, what), lost in zip(ends, measured(streams, [device]), strict=True):
            own[what].append((nbytes, lost[device]))
    return [
        MessageCosts(
            **{what: processor_cost(of_kind) if of_kind else ProcessorCost() for what, of_kind in own.items()},
            others_s=max(0.0, median(heard)) if heard else 0.0,
        )
        for own, heard in zip(samples, others, strict=True)
    ]


def lost_seconds(
    loaded: LoadedDevices, devices: Sequence[int], streams: Sequence[Callable[[], int]], window: CostWindow
) -> list[dict[int, float]]:
    """The seconds that each device computed longer for each message, by stream. The rate without messages is that of
    the two silent windows around a stream's, so that only what changes within seconds counts as a cost."""
    silent = replace(window, messages=1)

    def rest() -> int:
        loaded.pause(window.least_s)
        return 1

    lost = []
    before = _window(loaded, devices, rest, silent)[1]
    for stream in streams:
        stream()  # the first message opens a connection
        count, timed = _window(loaded, devices, stream, window)
        after = _window(loaded, devices, rest, silent)[1]
        lost.append({device: _lost(timed[device], before[device], after[device]) / count for device in devices})
        before = after
    return lost


def _lost(timed: Window, before: Window, after: Window) -> float:
    """The seconds of a window beyond those that its runs take at the rate of two others."""
    rate = max(before[0] + after[0], 1) / (before[1] + after[1])
    return timed[1] - timed[0] / rate


def _window(
    loaded: LoadedDevices, devices: Sequence[int], act: Callable[[], int], window: CostWindow
) -> tuple[int, Mapping[int, Window]]:
    """The sum of what `act` returned, and the runs and seconds of each device meanwhile."""
    before, begun, count = _ended_now(loaded, devices, window.most_s), loaded.clock(), 0
    while not count or (
        (count < window.messages or loaded.clock() - begun < window.least_s) and loaded.clock() - begun < window.most_s
    ):
        count += act()
    after = _ended_now(loaded, devices, window.most_s)
    passed = loaded.clock() - begun
    return count, {
        device: (last[0] - first[0], last[1] - first[1] if last[0] > first[0] else passed)
        for device, first, last in zip(devices, before, after, strict=True)
    }


def _ended_now(loaded: LoadedDevices, devices: Sequence[int], most_s: float) -> list[Progress]:
    """The progress of these devices, each at the end of its first run that ended after this call; as it is after
    `most_s` seconds."""
    begun, until = dict(zip(devices, loaded.progress(devices), strict=True)), loaded.clock() + most_s
    ended: dict[int, Progress] = {}
    while len(ended) < len(devices):
        loaded.pause(_LOOKS_S)
        last = loaded.clock() > until
        left = [device for device in devices if device not in ended]
        progress = zip(left, loaded.progress(left), strict=True)
        ended |= {device: now for device, now in progress if last or now[0] > begun[device][0]}
    return [ended[device] for device in devices]


def _of_every_device(count: int) -> Iterator[tuple[int, int]]:
    """Pairs that together contain every device: neighbours, each in one pair, except for an odd last device."""
    for first in range(0, count - 1, 2):
        yield first, first + 1
    if count % 2 and count > 1:
        yield count - 2, count - 1


Array = npt.NDArray[np.float64]
_MOST_KINDS = 12
_FASTEST = 1e-11
"""The least seconds of a byte, if large messages take no longer than small ones: no link is faster than memory."""


@dataclass(frozen=True, slots=True)
class ComputeSample:
    """A run of operators: MACs by kind, the bytes that operators without MACs read and write, the seconds, and the
    bytes of weights that operators with MACs read."""

    macs_of: Mapping[str, int]
    moved_bytes: int
    seconds: float
    weight_bytes: int = 0


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """`alpha_of`: alphas of kinds other than the main one, whose rate is `mac_per_s`. `bytes_per_s`: None if operators
    without MACs took no measurable time. `weight_bytes_per_s`: None if weights took none, or no sample had any.
    `spread`: the median of |predicted - measured| / measured over the samples."""

    mac_per_s: float
    alpha_of: Mapping[str, float] = field(default_factory=dict)
    bytes_per_s: float | None = None
    spread: float = 0.0
    samples: int = 0
    weight_bytes_per_s: float | None = None


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
    if any(sample.weight_bytes for sample in samples):
        columns.append([float(sample.weight_bytes) for sample in samples])
    work = np.array(columns).T
    each = _non_negative(work, seconds, 1 / np.sqrt(seconds))
    mac_s = {kind: one for kind, one in zip(kinds, each, strict=False) if one > 0}
    if not mac_s:
        raise UsageError("no rate explains these samples: operators with MACs took no more time than those without")
    total = {kind: sum(sample.macs_of.get(kind, 0) for sample in samples) for kind in mac_s}
    main = max(mac_s, key=lambda kind: (total[kind], kind))
    alpha_of = {kind: one / mac_s[main] for kind, one in mac_s.items() if kind != main}
    byte_s, weight_byte_s = [*each[len(kinds) :], 0.0][:2]
    return DeviceRates(
        1 / mac_s[main],
        alpha_of,
        1 / byte_s if byte_s > 0 else None,
        _spread(work @ each, seconds),
        len(samples),
        1 / weight_byte_s if weight_byte_s > 0 else None,
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
