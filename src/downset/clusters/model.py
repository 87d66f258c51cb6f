"""Clusters of devices: TOML in, validated; what a transfer between two devices takes.

A network is either `links` (every pair has a rate of its own, or the common one) or `shared` (one radio cell: the bytes
of all transfers share one rate). Rates are written in Mbit/s (10⁶ bits), held in bytes per second.

A message takes latency_s + bytes / bytes_per_s from when it is sent until it has arrived. At first it *occupies* the
network (the medium, or the ports of its ends), for occupied_latency_s + bytes / occupied_bytes_per_s; then the next one
may begin (the gap of LogGP, Alexandrov et al., 1995). Without these two it occupies the network for all its time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal

import msgspec

from downset.errors import UsageError
from downset.text import abridged

__all__ = [
    "MOST_DEVICES", "Cluster", "Device", "DeviceName", "Duplex", "Link", "MessageCosts", "Network", "ProcessorCost",
    "check_device_name",
]  # fmt: skip

MOST_DEVICES = 512
"""Planning asks for the links of every pair of devices."""


# The upper bounds keep infinities out; no device or link is near them. Plans hold them to their clusters too.
Positive = Annotated[float, msgspec.Meta(ge=1e-9, le=1e18)]
NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
Rate = Annotated[float, msgspec.Meta(gt=0, le=1e24)]
DeviceName = Annotated[str, msgspec.Meta(min_length=1, max_length=63, pattern=r"^[^\x00-\x1f\x7f-\x9f]*$")]
"""Resources of running pipelines are named by it."""
MemoryBytes = Annotated[int, msgspec.Meta(gt=0)]
OverheadBytes = Annotated[int, msgspec.Meta(ge=0)]
Duplex = Literal["half", "full"]
"""half: a device sends or receives; full: it does both at once."""


def check_device_name(name: str) -> None:
    """Raise UsageError for a name that no cluster file can hold."""
    try:
        msgspec.convert(name, DeviceName)
        name.encode()  # arguments that are not UTF-8 come as surrogates
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise UsageError(f"{name!r} is not a name of a device: 1 to 63 characters, no control characters") from None


@dataclass(frozen=True, slots=True)
class ProcessorCost:
    """Seconds of a device's processor: so many a message, and so many a byte."""

    each_s: NotNegative = 0.0
    byte_s: NotNegative = 0.0

    def of(self, nbytes: int) -> float:
        return self.each_s + nbytes * self.byte_s


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """Costs of messages: what they take of a device's processor beside their time on the link. `send` and `receive`:
    messages of a plan. `frame`: a frame that comes from the driver to the entry. `result`: a result that goes back from
    the exit."""

    send: ProcessorCost = ProcessorCost()
    receive: ProcessorCost = ProcessorCost()
    frame: ProcessorCost = ProcessorCost()
    result: ProcessorCost = ProcessorCost()

    def times(self, factor: float) -> MessageCosts:
        """The costs on a processor that takes so many times as long."""
        each = (self.send, self.receive, self.frame, self.result)
        return MessageCosts(*(ProcessorCost(cost.each_s * factor, cost.byte_s * factor) for cost in each))


@dataclass(frozen=True, slots=True)
class Device:
    """`mac_per_s`: capacity ϑ of eq. 7; `alpha`: its regression's coefficient (time = alpha · MACs / mac_per_s), for
    kinds of operators in `alpha_of` theirs. `bytes_per_s`: how fast operators without MACs read and write, unless
    given a byte in the time of a MAC. `memory_bytes` limits what a plan holds there and `runtime_bytes`, which the
    device's runtime takes for itself. `duplex`: unless given as the network has it.
    `messages`: None where they take nothing of the processor."""

    name: DeviceName
    mac_per_s: Positive
    alpha: Positive = 1.0
    memory_bytes: MemoryBytes | None = None
    power_busy_w: NotNegative | None = None
    power_idle_w: NotNegative | None = None
    duplex: Duplex | None = None
    bytes_per_s: Rate | None = None
    alpha_of: Mapping[str, Positive] = field(default_factory=dict)
    runtime_bytes: OverheadBytes = 0
    messages: MessageCosts | None = None

    @property
    def speed(self) -> float:
        """MACs per second that the time model divides by, of kinds without an alpha of their own."""
        return self.mac_per_s / self.alpha

    @property
    def peak_speed(self) -> float:
        """MACs per second of the kind that it computes fastest."""
        return self.mac_per_s / min([self.alpha, *self.alpha_of.values()])

    @property
    def moved_per_s(self) -> float:
        """Bytes per second of operators without MACs."""
        return self.speed if self.bytes_per_s is None else self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of devices (by index, ascending) whose rate differs from the common one. Raises UsageError where a message
    would occupy it for longer than it takes."""

    pair: tuple[int, int]
    bytes_per_s: Rate
    latency_s: NotNegative
    occupied_bytes_per_s: Rate | None = None
    occupied_latency_s: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_occupied(self)

    @property
    def occupied(self) -> Link:
        """The link as if a message took only the time for which it occupies it."""
        return replace(self, **_occupied(self))


@dataclass(frozen=True, slots=True)
class Network:
    """`overlap`: a device computes one frame while it transfers another; without it does one thing at a time, and a
    message occupies its ends for all its time. Default: shared networks overlap, links do not. `duplex` speaks of
    overlapping links only. Raises UsageError where a message would occupy the network for longer than it takes."""

    kind: Literal["links", "shared"]
    bytes_per_s: Rate
    latency_s: NotNegative = 0.0
    overlap: bool = False
    links: tuple[Link, ...] = ()
    duplex: Duplex = "half"
    occupied_bytes_per_s: Rate | None = None
    occupied_latency_s: NotNegative | None = None

    __repr__ = abridged

    def __post_init__(self) -> None:
        _check_occupied(self)
        object.__setattr__(self, "links", tuple(sorted(self.links, key=_pair)))  # they are found by bisection

    @property
    def occupied(self) -> Network:
        """The network as if a message took only the time for which it occupies it; without overlap the same."""
        if not self.overlap:
            return self
        return replace(self, links=tuple(link.occupied for link in self.links), **_occupied(self))


def _pair(link: Link) -> tuple[int, int]:
    return link.pair


def _check_occupied(one: Link | Network) -> None:
    slower = one.occupied_bytes_per_s is not None and one.occupied_bytes_per_s < one.bytes_per_s
    later = one.occupied_latency_s is not None and one.occupied_latency_s > one.latency_s
    if slower or later:
        raise UsageError("a message cannot occupy the network for longer than it takes (occupied_mbps, occupied_ms)")


def _occupied(one: Link | Network) -> dict[str, Any]:
    return {
        "bytes_per_s": one.bytes_per_s if one.occupied_bytes_per_s is None else one.occupied_bytes_per_s,
        "latency_s": one.latency_s if one.occupied_latency_s is None else one.occupied_latency_s,
        "occupied_bytes_per_s": None,
        "occupied_latency_s": None,
    }


@dataclass(frozen=True, slots=True)
class Cluster:
    """Devices and the network between them; a device is its place in `devices`."""

    devices: tuple[Device, ...]
    network: Network

    __repr__ = abridged

    @property
    def occupied(self) -> Cluster:
        """The cluster as if a message took only the time for which it occupies the network. All loads are the same."""
        return replace(self, network=self.network.occupied)

    def duplex(self, device: int) -> Duplex:
        return self.devices[device].duplex or self.network.duplex

    def link(self, first: int, second: int) -> tuple[float, float]:
        """(bytes per second, latency in seconds) of a message between two devices."""
        pair = (min(first, second), max(first, second))
        links = self.network.links
        position = bisect_left(links, pair, key=_pair)
        if position < len(links) and links[position].pair == pair:
            return links[position].bytes_per_s, links[position].latency_s
        return self.network.bytes_per_s, self.network.latency_s
