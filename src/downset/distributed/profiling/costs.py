"""Measures what messages cost processors, those of their ends and those of all other devices: how much longer devices
compute while messages go on.

Every device computes all the time, as in a pipeline, and counts its runs. Windows in which messages follow one another
alternate with windows in which nothing is sent. The cost of a message is the time of a window less the time that the
window's runs take in the two silent windows around it, over the number of messages.
Errors: a device's last run ends a window, so that no part of a run is lost; the least numbers of messages and seconds
bound what the first and the last message of a window may hold of its neighbours.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median

from downset.clusters.model import MessageCosts, ProcessorCost
from downset.distributed.profiling.regression import processor_cost

__all__ = ["CostWindow", "LoadedDevices", "lost_seconds", "message_costs"]

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
    one and return when it has arrived. `pause`: let so many seconds pass; `clock`: the time of the calling process."""

    count: int
    progress: Callable[[Sequence[int]], list[Progress]]
    message: Callable[[int, int, int], None]
    frame: Callable[[int, int], None]
    result: Callable[[int, int], None]
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

    def measured(streams: Sequence[Callable[[], None]], ends: Sequence[int]) -> list[dict[int, float]]:
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
    loaded: LoadedDevices, devices: Sequence[int], streams: Sequence[Callable[[], None]], window: CostWindow
) -> list[dict[int, float]]:
    """The seconds that each device computed longer for each message, by stream. The rate without messages is that of
    the two silent windows around a stream's, so that only what changes within seconds counts as a cost."""
    rest, silent = partial(loaded.pause, window.least_s), replace(window, messages=1)
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
    loaded: LoadedDevices, devices: Sequence[int], act: Callable[[], None], window: CostWindow
) -> tuple[int, Mapping[int, Window]]:
    """How often `act` was called, and the runs and seconds of each device meanwhile."""
    before, begun, count = _ended_now(loaded, devices, window.most_s), loaded.clock(), 0
    while not count or (
        (count < window.messages or loaded.clock() - begun < window.least_s) and loaded.clock() - begun < window.most_s
    ):
        act()
        count += 1
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
