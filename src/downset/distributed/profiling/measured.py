"""A measured cluster, and its TOML file for planners. The file states spread and date of every figure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from downset.clusters.model import Cluster, Device, Duplex, Link, MessageCosts, Network, ProcessorCost
from downset.distributed.profiling.costs import DeviceRates, LinkRates
from downset.text import printable

__all__ = ["MeasuredCluster", "MeasuredDevice", "cluster_text", "measured_cluster"]

Pair = tuple[int, int]


@dataclass(frozen=True, slots=True)
class MeasuredDevice:
    """`memory_bytes`: all memory of the device. `runtime_bytes`: memory of Ray and our process before any model is
    loaded. `messages`: their costs for the processor."""

    name: str
    rates: DeviceRates
    memory_bytes: int
    runtime_bytes: int
    threads: int = 1
    messages: MessageCosts = field(default_factory=MessageCosts)


@dataclass(frozen=True, slots=True)
class MeasuredCluster:
    """`common`: the rates of messages between all pairs. `links`: the rates of each pair, empty on a shared medium.
    `unix_s`: when it was measured, in seconds since 1970."""

    devices: tuple[MeasuredDevice, ...]
    kind: Literal["links", "shared"]
    duplex: Duplex
    common: LinkRates
    links: Mapping[Pair, LinkRates] = field(default_factory=dict)
    unix_s: float = 0.0
    what: str = "standard probes"


def measured_cluster(measured: MeasuredCluster) -> Cluster:
    """The measured cluster in the form that planners take: devices compute while they send and receive, and messages
    cost processor time as measured."""
    devices = tuple(
        Device(
            device.name,
            device.rates.mac_per_s,
            alpha_of=dict(device.rates.alpha_of),
            bytes_per_s=device.rates.bytes_per_s or device.rates.mac_per_s * 1e3,
            memory_bytes=device.memory_bytes,
            runtime_bytes=device.runtime_bytes,
            messages=device.messages,
            weight_bytes_per_s=device.rates.weight_bytes_per_s,
        )
        for device in measured.devices
    )
    links = tuple(
        Link(pair, one.bytes_per_s, one.latency_s, one.occupied_bytes_per_s, one.occupied_latency_s)
        for pair, one in sorted(measured.links.items())
    )
    common = measured.common
    network = Network(
        measured.kind,
        common.bytes_per_s,
        common.latency_s,
        overlap=True,
        links=links,
        duplex=measured.duplex,
        occupied_bytes_per_s=common.occupied_bytes_per_s,
        occupied_latency_s=common.occupied_latency_s,
    )
    return Cluster(devices, network)


def cluster_text(measured: MeasuredCluster) -> str:
    """The file's text. `parse_cluster` reads it back as `measured_cluster`, to six digits."""
    return "\n".join(_lines(measured)) + "\n"


def _lines(measured: MeasuredCluster) -> Iterator[str]:
    when = f"{datetime.fromtimestamp(measured.unix_s, UTC):%Y-%m-%d %H:%M} UTC"
    cluster = measured_cluster(measured)
    yield f"# Measured {when} by downset profile-cluster ({printable(' '.join(measured.what.split()))})."
    yield "# spread: the median of |predicted - measured| / measured, over that many measurements."
    yield "[network]"
    yield f'kind = "{measured.kind}"'
    yield f"rate_mbps = {_mbps(measured.common)}  {_spread(measured.common)}"
    yield f"latency_ms = {measured.common.latency_s * 1e3:.6g}  # of every message"
    yield from _occupancy(measured.common)
    yield "overlap = true  # devices compute while they send and receive; `messages` says what that takes of them"
    yield f'duplex = "{measured.duplex}"'
    for described, device in zip(measured.devices, cluster.devices, strict=True):
        yield "\n[[device]]"
        yield f"name = {_quoted(device.name)}"
        yield f"mac_per_s = {device.mac_per_s:.6g}  {_spread(described.rates)}, {described.threads} threads"
        remark = "" if described.rates.bytes_per_s else "  # no time of their own was seen"
        yield f"bytes_per_s = {device.bytes_per_s:.6g}{remark}"
        if device.weight_bytes_per_s:
            yield f"weight_bytes_per_s = {device.weight_bytes_per_s:.6g}"
        if device.alpha_of:
            kinds = ", ".join(f"{_quoted(kind)} = {alpha:.6g}" for kind, alpha in sorted(device.alpha_of.items()))
            yield f"alpha_of = {{ {kinds} }}"
        yield f"memory = {device.memory_bytes}"
        yield f"runtime_memory = {max(1, device.runtime_bytes)}"
        yield f"messages = {{ {', '.join(_costs(described.messages))} }}"
    for (one, other), link in sorted(measured.links.items()):
        yield "\n[[link]]"
        names = [_quoted(measured.devices[end].name) for end in (one, other)]
        yield f"between = [{', '.join(names)}]"
        yield f"rate_mbps = {_mbps(link)}  {_spread(link)}"
        yield f"latency_ms = {link.latency_s * 1e3:.6g}"
        yield from _occupancy(link)


def _costs(messages: MessageCosts) -> Iterator[str]:
    for name in ("send", "receive", "frame", "result"):
        cost: ProcessorCost = getattr(messages, name)
        yield f"{name}_ms = {cost.each_s * 1e3:.6g}, {name}_ms_per_mb = {cost.byte_s * 1e9:.6g}"
    yield f"others_ms = {messages.others_s * 1e3:.6g}"


def _occupancy(link: LinkRates) -> Iterator[str]:
    if link.occupied_bytes_per_s is not None:
        yield f"occupied_mbps = {link.occupied_bytes_per_s * 8 / 1e6:.6g}  # then the next one may begin"
    if link.occupied_latency_s is not None:
        yield f"occupied_ms = {link.occupied_latency_s * 1e3:.6g}"


def _quoted(text: str) -> str:
    """A basic string of TOML: like JSON's, except for characters above U+FFFF and DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007F")


def _mbps(link: LinkRates) -> str:
    return f"{link.bytes_per_s * 8 / 1e6:.6g}"


def _spread(rates: DeviceRates | LinkRates) -> str:
    return f"# spread {rates.spread:.1%} of {rates.samples}"
