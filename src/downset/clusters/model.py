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
    "MOST_DEVICES",
    "Cluster",
    "Device",
    "DeviceName",
    "Duplex",
    "Link",
    "MessageCosts",
    "Network",
    "ProcessorCost",
    "check_device_name",
]

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
    """Seconds for each message, whatever its size."""
    byte_s: NotNegative = 0.0
    """Seconds for each byte of a message."""

    def of(self, nbytes: int) -> float:
        return self.each_s + nbytes * self.byte_s


@dataclass(frozen=True, slots=True)
class MessageCosts:
    """Costs of messages: seconds of a device's processor in addition to the time on the link."""

    send: ProcessorCost = ProcessorCost()
    """The cost of a message to another device of the plan."""
    receive: ProcessorCost = ProcessorCost()
    """The cost of a message from another device of the plan."""
    frame: ProcessorCost = ProcessorCost()
    """The cost of a frame that the driver sends to the entry."""
    result: ProcessorCost = ProcessorCost()
    """The cost of a result that the exit sends back."""
    others_s: NotNegative = 0.0
    """Seconds for each message, frame or result of other devices, of which the device's runtime is told."""

    def times(self, factor: float) -> MessageCosts:
        """The costs on a processor that takes `factor` times as long."""

        def longer(cost: ProcessorCost) -> ProcessorCost:
            return ProcessorCost(cost.each_s * factor, cost.byte_s * factor)

        send, receive, frame, result = map(longer, (self.send, self.receive, self.frame, self.result))
        return MessageCosts(send, receive, frame, result, self.others_s * factor)


@dataclass(frozen=True, slots=True)
class Device:
    """A device: how fast it computes, and what memory and power it has. Operators take alpha * MACs / `mac_per_s`
    seconds and the bytes of their weights at `weight_bytes_per_s`, and operators without MACs the bytes that they read
    and write at `bytes_per_s`."""

    name: DeviceName
    """The name by which plans, messages and figures call the device, 1 to 63 characters."""
    mac_per_s: Positive
    """MACs per second, before `alpha`; the capacity in eq. 7 of the PICO paper."""
    alpha: Positive = 1.0
    """How many times as long MACs take, the coefficient of the paper's regression."""
    memory_bytes: MemoryBytes | None = None
    """The limit in bytes of what a plan holds on the device together with `runtime_bytes`; None: no limit."""
    power_busy_w: NotNegative | None = None
    """Watts while the device computes, sends or receives; None: not known."""
    power_idle_w: NotNegative | None = None
    """Watts while it does none of these; None: not known."""
    duplex: Duplex | None = None
    """Whether the device sends and receives at once (full) or one after the other (half); None: as the network says."""
    bytes_per_s: Rate | None = None
    """Bytes per second that operators without MACs read and write; None: a byte takes as long as a MAC."""
    alpha_of: Mapping[str, Positive] = field(default_factory=dict)
    """Coefficients by kind of operator, in the place of `alpha`.

    How many times as long MACs of this kind take."""
    runtime_bytes: OverheadBytes = 0
    """Bytes that the device's runtime takes of its memory."""
    messages: MessageCosts | None = None
    """Costs of messages; None: they take no processor time."""
    weight_bytes_per_s: Rate | None = None
    """Bytes per second of weights, which operators with MACs read for each frame; None: reading takes no time."""

    @property
    def speed(self) -> float:
        """MACs per second of the operator kinds that `alpha_of` does not name."""
        return self.mac_per_s / self.alpha

    @property
    def peak_speed(self) -> float:
        """MACs per second of the operator kind that the device computes fastest."""
        return self.mac_per_s / min([self.alpha, *self.alpha_of.values()])

    @property
    def weight_byte_s(self) -> float:
        """Seconds for each byte of weights."""
        return 0.0 if self.weight_bytes_per_s is None else 1.0 / self.weight_bytes_per_s

    @property
    def moved_per_s(self) -> float:
        """Bytes per second of operators without MACs."""
        return self.speed if self.bytes_per_s is None else self.bytes_per_s

    def times(self, factor: float) -> Device:
        """The device that takes `factor` times as long for computing and for messages."""
        return replace(
            self,
            mac_per_s=self.mac_per_s / factor,
            bytes_per_s=self.bytes_per_s and self.bytes_per_s / factor,
            weight_bytes_per_s=self.weight_bytes_per_s and self.weight_bytes_per_s / factor,
            messages=self.messages and self.messages.times(factor),
        )


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of devices with its own rate and latency. Raises UsageError if a message would occupy the link for longer
    than the message takes."""

    pair: tuple[int, int]
    """The places of the two devices in the cluster, ascending."""
    bytes_per_s: Rate
    """Bytes per second of messages between the two."""
    latency_s: NotNegative
    """Seconds that a message takes in addition to its bytes."""
    occupied_bytes_per_s: Rate | None = None
    """Bytes per second at which a message occupies the ports of both devices; None: as fast as it travels."""
    occupied_latency_s: NotNegative | None = None
    """Seconds that a message occupies them in addition to its bytes; None: its whole latency."""

    def __post_init__(self) -> None:
        _check_occupied(self)

    @property
    def occupied(self) -> Link:
        """The link on which each message takes only the time for which it occupies this one."""
        return replace(self, **_occupied(self))


@dataclass(frozen=True, slots=True)
class Network:
    """The network between the devices. In cluster files shared networks overlap by default and links do not. Raises
    UsageError if a message would occupy the network for longer than the message takes."""

    kind: Literal["links", "shared"]
    """links: messages of different pairs do not slow each other; shared: the bytes of all messages share one rate."""
    bytes_per_s: Rate
    """Bytes per second of a message, or of all messages together on a shared network."""
    latency_s: NotNegative = 0.0
    """Seconds that a message takes in addition to its bytes."""
    overlap: bool = False
    """Whether a device computes one frame while it transfers another. Without overlap a device does one thing at a
    time, and a message occupies both its devices until it arrives."""
    links: tuple[Link, ...] = ()
    """The pairs of devices whose rate differs from the network's."""
    duplex: Duplex = "half"
    """Whether devices send and receive at once (full) or one after the other (half); it applies to overlapping links
    only."""
    occupied_bytes_per_s: Rate | None = None
    """Bytes per second at which a message occupies the medium or the ports of its devices; None: as fast as it
    travels."""
    occupied_latency_s: NotNegative | None = None
    """Seconds that a message occupies them in addition to its bytes; None: its whole latency."""

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
    """The devices; in a plan the fastest is first."""
    network: Network
    """How messages go between the devices."""

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
