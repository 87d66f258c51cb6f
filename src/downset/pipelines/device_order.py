"""The order of devices in which strips lie, and which devices are interchangeable."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from downset.clusters.model import Cluster, Device

__all__ = ["CanonicalDevices", "by_speed", "canonical", "fastest_first", "rounded", "sub_cluster"]


@dataclass(frozen=True, slots=True)
class CanonicalDevices:
    """Devices in the order in which strips lie. `type`: by device a number, ascending; interchangeable devices have the
    same."""

    order: tuple[int, ...]
    speed: tuple[float, ...]
    type: tuple[int, ...]
    per_byte: tuple[tuple[float, ...], ...]
    latency: tuple[tuple[float, ...], ...]
    uniform: bool

    def sets(self) -> int:
        """The number of multisets of devices."""
        return math.prod(count + 1 for count in Counter(self.type).values())


def canonical(cluster: Cluster, apart: Sequence[int | None] = ()) -> CanonicalDevices:
    """Devices sorted by falling speed; of equal ones those with less memory come first, those in `apart` last. Two have
    the same type if their work costs the same, all pairs of devices have one rate, and neither is in `apart`."""
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
    return CanonicalDevices(
        tuple(order),
        tuple(devices[device].speed for device in order),
        tuple(types),
        tuple(tuple(1.0 / rate for rate, _ in line) for line in pairs),
        tuple(tuple(latency for _, latency in line) for line in pairs),
        uniform,
    )


def _kind(device: Device) -> Device:
    """The device with only the properties on which the cost of its work depends."""
    relative = {kind: alpha / device.alpha for kind, alpha in device.alpha_of.items()}
    return replace(
        device, name="", mac_per_s=device.speed, alpha=1.0, alpha_of=relative, power_busy_w=None, power_idle_w=None
    )


def by_speed(cluster: Cluster) -> list[int]:
    """Indices of devices by falling speed; equal ones in the order of the cluster."""
    return sorted(range(len(cluster.devices)), key=lambda device: (-cluster.devices[device].speed, device))


def sub_cluster(cluster: Cluster, devices: Sequence[int]) -> Cluster:
    """The cluster of these devices only, in this order."""
    place = {device: k for k, device in enumerate(devices)}
    links = tuple(
        replace(link, pair=(min(place[a], place[b]), max(place[a], place[b])))
        for link in cluster.network.links
        for a, b in [link.pair]
        if a in place and b in place
    )
    return Cluster(tuple(cluster.devices[device] for device in devices), replace(cluster.network, links=links))


def fastest_first(cluster: Cluster, *ends: str | None) -> Cluster:
    """The same devices in the canonical order, which does not depend on the order of the file. `ends`: the names of
    source and sink, which come last among equal devices."""
    apart = [place for place, device in enumerate(cluster.devices) if device.name in ends]
    return sub_cluster(cluster, canonical(cluster, apart).order)


def rounded(form: CanonicalDevices, sets: int, *, faster: bool, like: Sequence[object] = ()) -> CanonicalDevices:
    """Give neighbours in speed one type until at most `sets` multisets are left, the most similar first. All devices of
    a type become as fast as its fastest one (or as slow as its slowest), and links as fast as the best pair (or the
    worst). Devices with different `like`, by place, never get one type; then more multisets may be left.

    A plan that is feasible on the slower devices is feasible on the real ones; if none is feasible on the faster
    devices, none is on the real ones."""
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
    return CanonicalDevices(
        form.order,
        tuple(form.speed[group[0 if faster else -1]] for group in groups for _ in group),
        tuple(kind for kind, group in enumerate(groups) for _ in group),
        tuple(tuple(per_byte for _ in line) for _ in line),
        tuple(tuple(latency for _ in line) for _ in line),
        uniform=True,
    )
