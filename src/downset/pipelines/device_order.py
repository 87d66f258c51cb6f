"""Devices in the order that strips lie in, and which of them are interchangeable."""

from __future__ import annotations

from dataclasses import dataclass

from downset.cluster import Cluster

__all__ = ["Canonical", "canonical"]


@dataclass(frozen=True, slots=True)
class Canonical:
    """Devices in the order that strips lie in. `type` numbers interchangeable ones alike, ascending."""

    order: tuple[int, ...]
    speed: tuple[float, ...]
    type: tuple[int, ...]
    per_byte: tuple[tuple[float, ...], ...]
    latency: tuple[tuple[float, ...], ...]
    uniform: bool


def canonical(cluster: Cluster) -> Canonical:
    """Devices sorted by falling speed, then name; alike where speed is equal and all pairs have one rate."""
    devices = cluster.devices
    uniform = not cluster.network.links
    order = sorted(
        range(len(devices)), key=lambda k: (-devices[k].speed, devices[k].memory_bytes or 0, devices[k].name)
    )
    types: list[int] = []
    for place, device in enumerate(order):
        before = devices[order[place - 1]]
        alike = (
            uniform
            and place > 0
            and (before.speed, before.memory_bytes) == (devices[device].speed, devices[device].memory_bytes)
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
