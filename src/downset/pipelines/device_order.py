"""Devices in the order that strips lie in, and which of them are interchangeable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from downset.clusters.model import Cluster, Device

__all__ = ["Canonical", "by_speed", "canonical", "fastest_first", "rounded", "sub_cluster"]


@dataclass(frozen=True, slots=True)
class Canonical:
    """Devices in the order that strips lie in. `type` numbers interchangeable ones alike, ascending."""

    order: tuple[int, ...]
    speed: tuple[float, ...]
    type: tuple[int, ...]
    per_byte: tuple[tuple[float, ...], ...]
    latency: tuple[tuple[float, ...], ...]
    uniform: bool

    def sets(self) -> int:
        """How many multisets of devices there are."""
        return math.prod(count + 1 for count in Counter(self.type).values())


def canonical(cluster: Cluster, apart: Sequence[int | None] = ()) -> Canonical:
    """Devices sorted by falling speed, then name; alike where all that their work costs is equal, all pairs have one
    rate, and they are not among those `apart`."""
    devices = cluster.devices
    uniform = not cluster.network.links
    order = sorted(
        range(len(devices)),
        key=lambda k: (-devices[k].speed, devices[k].memory_bytes or 0, k in apart, devices[k].name),
    )
    types: list[int] = []
    for place, device in enumerate(order):
        before = order[place - 1]
        alike = (
            uniform
            and place > 0
            and not {before, device} & set(apart)
            and _kind(devices[before]) == _kind(devices[device])
        )
        types.append(types[-1] if alike else len(set(types)))
    pairs = [[cluster.link(first, second) for second in order] for first in order]
    return Canonical(
        tuple(order),
        tuple(devices[device].speed for device in order),
        tuple(types),
        tuple(tuple(1.0 / rate for rate, _ in line) for line in pairs),
        tuple(tuple(latency for _, latency in line) for line in pairs),
        uniform,
    )


def _kind(device: Device) -> Device:
    """The device with only those properties that the cost of its work depends on."""
    return replace(device, name="", mac_per_s=device.speed, alpha=1.0, power_busy_w=None, power_idle_w=None)


def by_speed(cluster: Cluster) -> list[int]:
    """Devices by falling speed, of equal ones the first listed first."""
    return sorted(range(len(cluster.devices)), key=lambda device: (-cluster.devices[device].speed, device))


def sub_cluster(cluster: Cluster, devices: Sequence[int]) -> Cluster:
    """Only these devices, in this order."""
    place = {device: k for k, device in enumerate(devices)}
    links = tuple(
        replace(link, pair=(min(place[a], place[b]), max(place[a], place[b])))
        for link in cluster.network.links
        for a, b in [link.pair]
        if a in place and b in place
    )
    return Cluster(tuple(cluster.devices[device] for device in devices), replace(cluster.network, links=links))


def fastest_first(cluster: Cluster) -> Cluster:
    """The same devices in the canonical order, whatever order a file lists them in."""
    return sub_cluster(cluster, canonical(cluster).order)


def rounded(form: Canonical, sets: int, *, faster: bool, like: Sequence[object] = ()) -> Canonical:
    """Take neighbours in speed as alike until at most `sets` multisets are left, the most like first; all are as fast
    as the fastest of them (or as slow as the slowest), and links as the best pair (or the worst). Devices with another
    `like`, by place, are never taken as alike: more multisets may then be left.

    What is feasible on the slower devices is on the real ones, and what is not on the faster ones is not."""
    groups = [[place] for place in range(len(form.speed))]
    for place in range(len(groups) - 1, 0, -1):
        if form.type[place] == form.type[place - 1]:
            groups[place - 1] += groups.pop(place)
    while math.prod(len(group) + 1 for group in groups) > sets:
        spreads = [
            (form.speed[one[0]] / form.speed[two[-1]], place)
            for place, (one, two) in enumerate(pairwise(groups))
            if not like or like[one[0]] == like[two[0]]
        ]
        if not spreads:
            break
        most_like = min(spreads)[1]
        groups[most_like] += groups.pop(most_like + 1)
    choose = min if faster else max
    pairs = [(a, b) for a in range(len(form.speed)) for b in range(len(form.speed)) if a != b]
    per_byte = choose((form.per_byte[a][b] for a, b in pairs), default=0.0)
    latency = choose((form.latency[a][b] for a, b in pairs), default=0.0)
    line = range(len(form.speed))
    return Canonical(
        form.order,
        tuple(form.speed[group[0 if faster else -1]] for group in groups for _ in group),
        tuple(kind for kind, group in enumerate(groups) for _ in group),
        tuple(tuple(per_byte for _ in line) for _ in line),
        tuple(tuple(latency for _ in line) for _ in line),
        uniform=True,
    )
