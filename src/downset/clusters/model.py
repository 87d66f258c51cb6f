"""Clusters: the devices, the network between them, and how long a message between two devices takes.

A network is either `links` (each pair of devices has the common rate, or a rate given for that pair) or `shared` (one
medium: the bytes of all messages share one rate). Cluster files give rates in Mbit/s (10⁶ bits); this model holds bytes
per second.

A message takes latency_s + bytes / bytes_per_s from its sending to its arrival. It *occupies* the network (the medium,
or the ports of its two devices) for the first occupied_latency_s + bytes / occupied_bytes_per_s seconds; then the next
message may begin (the gap of LogGP, Alexandrov et al., 1995). If neither is given, it occupies the network until it
arrives.
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


# The upper bounds refuse infinity; real devices and links stay far below them. Clusters inside plans keep them too.
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
    """Raise UsageError for a name that a cluster file would refuse."""
    try:
        msgspec.convert(name, DeviceName)
        name.encode()  # an argument that is not UTF-8 holds surrogates, which cannot be encoded
    except (msgspec.ValidationError, UnicodeEncodeError):
        raise UsageError(f"{name!r} is not a name of a device: 1 to 63 characters, no control characters") from None


@dataclass(frozen=True, slots=True)
class ProcessorCost:
    """Seconds of a device's processor for each message and for each byte of it."""

    each_s: NotNegative = 0.0
    byte_s: NotNegative = 0.0

    def of(self, nbytes: int) -> float:
        return self.each_s + nbytes * self.byte_s


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """Costs of messages: seconds of a device's processor beside the time on the link. `send` and `receive` are for
    messages between devices of a plan, `frame` for a frame that the driver sends to the entry, and `result` for a
    result that the exit sends back. `others_s`: seconds for each message, frame or result of other devices, of which
    the device's runtime is told."""

    send: ProcessorCost = ProcessorCost()
    receive: ProcessorCost = ProcessorCost()
    frame: ProcessorCost = ProcessorCost()
    result: ProcessorCost = ProcessorCost()
    others_s: NotNegative = 0.0

    def times(self, factor: float) -> MessageCosts:
        """The costs on a processor that takes `factor` times as long."""

        def longer(cost: ProcessorCost) -> ProcessorCost:
            return ProcessorCost(cost.each_s * factor, cost.byte_s * factor)

        send, receive, frame, result = map(longer, (self.send, self.receive, self.frame, self.result))
        return MessageCosts(send, receive, frame, result, self.others_s * factor)


@dataclass(frozen=True, slots=True)
class Device:
    """`mac_per_s`: MACs per second, ϑ in eq. 7 of the PICO paper. `alpha`: the coefficient of its regression, seconds
    = alpha · MACs / mac_per_s; `alpha_of` gives other coefficients by operator kind. `bytes_per_s`: how fast operators
    without MACs read and write; None: a byte takes as long as a MAC. `memory_bytes` limits the sum of what a plan holds
    on the device and `runtime_bytes`, the memory of the device's runtime. `duplex`: None takes the network's.
    `messages`: costs of messages; None: they take no processor time."""

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
        """MACs per second of the operator kinds that `alpha_of` does not name."""
        return self.mac_per_s / self.alpha

    @property
    def peak_speed(self) -> float:
        """MACs per second of the operator kind that the device computes fastest."""
        return self.mac_per_s / min([self.alpha, *self.alpha_of.values()])

    @property
    def moved_per_s(self) -> float:
        """Bytes per second of operators without MACs."""
        return self.speed if self.bytes_per_s is None else self.bytes_per_s


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of devices (indices, ascending) with its own rate and latency. Raises UsageError if a message would occupy
    the link for longer than the message takes."""

    pair: tuple[int, int]
    bytes_per_s: Rate
    latency_s: NotNegative
    occupied_bytes_per_s: Rate | None = None
    occupied_latency_s: NotNegative | None = None

    def __post_init__(self) -> None:
        _check_occupied(self)

    @property
    def occupied(self) -> Link:
        """The link on which each message takes only the time for which it occupies this one."""
        return replace(self, **_occupied(self))


@dataclass(frozen=True, slots=True)
class Network:
    """`overlap`: a device computes one frame while it transfers another. Without overlap a device does one thing at a
    time, and a message occupies both its devices until it arrives. In cluster files shared networks overlap by default
    and links do not. `duplex` applies to overlapping links only. Raises UsageError if a message would occupy the
    network for longer than the message takes."""

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
        object.__setattr__(self, "links", tuple(sorted(self.links, key=_pair)))  # `Cluster.link` bisects them

    @property
    def occupied(self) -> Network:
        """The network in which each message takes only the time for which it occupies this one; without overlap, this
        network."""
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
    """Devices and the network between them. Everywhere else a device is named by its index in `devices`."""

    devices: tuple[Device, ...]
    network: Network

    __repr__ = abridged

    @property
    def occupied(self) -> Cluster:
        """The cluster in which each message takes only the time for which it occupies the network. Loads stay equal."""
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
