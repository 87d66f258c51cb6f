"""Clusters as TOML: reads and validates files; an error names line and field. Rates are in Mbit/s."""

from __future__ import annotations

import os
import re
import tomllib
from difflib import get_close_matches
from importlib import resources
from typing import Annotated, Literal

import msgspec
from msgspec import structs

from downset.clusters.model import (
    MOST_DEVICES,
    Cluster,
    Device,
    DeviceName,
    Duplex,
    Link,
    MemoryBytes,
    MessageCosts,
    Network,
    NotNegative,
    Positive,
    ProcessorCost,
)
from downset.errors import LoadError, UsageError
from downset.graph.kinds import KINDS
from downset.text import brief, parse_bytes, read_file

__all__ = ["cluster_names", "load_cluster", "parse_cluster"]

_MOST_DOTS = 200
"""The most dots in a line: the time of Python's TOML reader grows with the square of the parts of a dotted key."""


class _TomlForm(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The fields of the file. Unknown fields are refused."""


class _NetworkForm(_TomlForm, frozen=True):
    """The table `[network]`: how messages travel between devices. A message takes `latency_ms`, and its bytes at
    `rate_mbps`, from its sending to its arrival."""

    kind: Literal["shared", "links"]
    """`"links"`: messages of different pairs of devices do not slow each other; `"shared"`: one medium, such as a radio
    cell, whose rate all messages share."""
    rate_mbps: Positive
    """The rate of a link, or of the shared medium, in Mbit/s of 10⁶ bits."""
    latency_ms: NotNegative = 0.0
    """Milliseconds that every message takes in addition to its bytes."""
    overlap: bool | None = None
    """Whether a device computes one frame while it transfers another; not given: true if shared, false on links."""
    duplex: Duplex = "half"
    """`"full"`: a device sends and receives at once; `"half"`: it does one after the other; it counts for links with
    `overlap = true` only."""
    occupied_mbps: Positive | None = None
    """The rate in Mbit/s at which a message occupies the medium, or the ports of its two devices, until the next
    message may begin; at least `rate_mbps`, only with overlap; not given: `rate_mbps`."""
    occupied_ms: NotNegative | None = None
    """Milliseconds for which a message occupies them in addition to its bytes; at most `latency_ms`, only with overlap;
    not given: `latency_ms`."""


class _LinkForm(_TomlForm, frozen=True):
    """A table `[[link]]`: two devices with a link of their own; the other pairs have the network's. Only for `kind =
    "links"`."""

    between: tuple[str, str]
    """The names of the two devices; each pair has one table at most."""
    rate_mbps: Positive
    """The rate of this link in Mbit/s of 10⁶ bits, in both directions."""
    latency_ms: NotNegative | None = None
    """Milliseconds that a message on this link takes in addition to its bytes; not given: the network's."""
    occupied_mbps: Positive | None = None
    """The rate in Mbit/s at which a message occupies the ports of the two devices until the next message may begin; at
    least `rate_mbps`, only with overlap; not given: this link's `rate_mbps`."""
    occupied_ms: NotNegative | None = None
    """Milliseconds for which a message occupies them in addition to its bytes; at most `latency_ms`, only with overlap;
    not given: this link's `latency_ms`."""


class _MessagesForm(_TomlForm, frozen=True):
    """The table `messages` of a device: how long messages take its processor, in addition to their time on the network.
    Without overlap only frames and results do. 1 MB is 10⁶ bytes here."""

    send_ms: NotNegative = 0.0
    """Milliseconds for each message to another device of the plan, whatever its size."""
    send_ms_per_mb: NotNegative = 0.0
    """Milliseconds for each MB of messages to other devices of the plan."""
    receive_ms: NotNegative = 0.0
    """Milliseconds for each message from another device of the plan, whatever its size."""
    receive_ms_per_mb: NotNegative = 0.0
    """Milliseconds for each MB of messages from other devices of the plan."""
    frame_ms: NotNegative = 0.0
    """Milliseconds for each frame that comes in at this device, if it is the entry."""
    frame_ms_per_mb: NotNegative = 0.0
    """Milliseconds for each MB of such frames."""
    result_ms: NotNegative = 0.0
    """Milliseconds for each result that goes out at this device, if it is the exit."""
    result_ms_per_mb: NotNegative = 0.0
    """Milliseconds for each MB of such results."""
    others_ms: NotNegative = 0.0
    """Milliseconds for each message, frame or result in which this device has no part, because its runtime is told of
    them."""

    def costs(self) -> MessageCosts:
        return MessageCosts(
            ProcessorCost(self.send_ms / 1e3, self.send_ms_per_mb / 1e9),
            ProcessorCost(self.receive_ms / 1e3, self.receive_ms_per_mb / 1e9),
            ProcessorCost(self.frame_ms / 1e3, self.frame_ms_per_mb / 1e9),
            ProcessorCost(self.result_ms / 1e3, self.result_ms_per_mb / 1e9),
            self.others_ms / 1e3,
        )


class _DeviceForm(_TomlForm, frozen=True):
    """A table `[[device]]`: one device that computes. An operator takes `alpha` times its MACs / `mac_per_s` seconds
    and its weights / `weight_bytes_per_s`, and one without MACs its bytes / `bytes_per_s`."""

    name: DeviceName
    """The name by which commands, plans and workers call the device; no other device of the file has it."""
    mac_per_s: Positive
    """MACs per second of an operator whose `alpha` is 1."""
    alpha: Positive = 1.0
    """How many times as long MACs take, for all kinds of operators that `alpha_of` does not name."""
    memory: str | MemoryBytes | None = None
    """The most that a plan may hold on the device, its runtime included: in bytes, or as text with a unit (`"2GB"`, 1
    KB = 1,024 bytes); not given: no limit."""
    power_busy_w: NotNegative | None = None
    """Watts while the device computes, sends or receives; not given: the simulation states no energy."""
    power_idle_w: NotNegative | None = None
    """Watts while it does none of these; not given: the simulation states no energy."""
    duplex: Duplex | None = None
    """The duplex of this device alone, as in `[network]`; not given: the network's."""
    bytes_per_s: Positive | None = None
    """Bytes per second that operators without MACs read and write; not given: a byte takes as long as a MAC."""
    weight_bytes_per_s: Positive | None = None
    """Bytes per second of weights, which operators with MACs read for each frame, in addition to their MACs; not
    given: reading weights takes no time."""
    alpha_of: dict[str, Positive] = {}
    """Other values of `alpha` by kind of operator: `{ Conv = 1.2 }`."""
    runtime_memory: str | MemoryBytes | None = None
    """The part of `memory` that the device's runtime takes for itself, in bytes or as text with a unit; not given: 0
    bytes."""
    messages: _MessagesForm | None = None
    """The costs of messages for its processor (below); not given: they take none of its time."""


class _ClusterForm(_TomlForm, frozen=True):
    """The tables of a whole cluster file."""

    network: _NetworkForm
    """The network between the devices, one table."""
    device: Annotated[list[_DeviceForm], msgspec.Meta(min_length=1, max_length=MOST_DEVICES)]
    """The devices, a table for each."""
    link: list[_LinkForm] = []
    """The links with a rate of their own, a table for each."""


def cluster_names() -> tuple[str, ...]:
    """The names of the clusters that come with downset, sorted."""
    folder = resources.files("downset") / "clusters"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """The cluster in the TOML file at `path`, or the built-in cluster of that name (`pico_1mac`).

    Raises LoadError naming file, line and field where the file is wrong, and UsageError for a bare word that is neither
    a file nor a built-in cluster."""
    text = str(path)
    if text in cluster_names():
        entry = resources.files("downset") / "clusters" / f"{text}.toml"
        return parse_cluster(entry.read_text(encoding="utf-8"), text)
    try:
        content = read_file(path).decode("utf-8-sig")  # editors on Windows put a byte order mark first
    except OSError as error:
        names = ", ".join(cluster_names())
        if isinstance(error, FileNotFoundError) and re.fullmatch(r"\w+", text):
            close = get_close_matches(text, cluster_names(), n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"built-in clusters: {names}; or name a TOML file"
            raise UsageError(f"no cluster is called {text!r}: {hint}") from None
        raise LoadError(f"cannot read cluster {text}: {error.strerror}; built-in clusters: {names}") from None
    except UnicodeDecodeError:
        raise LoadError(f"cluster {text} is not UTF-8 text") from None
    return parse_cluster(content, text)


def parse_cluster(text: str, where: str = "cluster") -> Cluster:
    """The cluster in a TOML text. Raises LoadError that names `where`, line and field."""
    try:
        for number, line in enumerate(text.splitlines()):
            if line.count(".") > _MOST_DOTS and not line.lstrip().startswith("#"):
                raise LoadError(
                    f"{where}: line {number + 1} has more than {_MOST_DOTS} dots; a cluster file needs no such line"
                )
        raw = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # ValueError: a number with thousands of digits
        hint = "; write [[device]] before each device" if "('device',)" in str(error) else ""
        raise LoadError(f"{where}: not TOML: {brief(error)}{hint}") from None
    try:
        form = msgspec.convert(raw, _ClusterForm)
    except msgspec.ValidationError as error:
        words = str(error)
        meant = "no duplex, write half or full" if ".duplex`" in words else "no kind of network, write links or shared"
        words = re.sub(r"^Invalid enum value ('.*?')", rf"\1 is {meant}", words)
        words = re.sub(r"^Expected `str` matching regex '.*'(?= - at)", "a name has no control characters", words)
        words = re.sub(r"^Object missing required field `(.*?)`", _missing_key, words)
        words = re.sub(r"^Object contains unknown field `(.*?)`(?: - at `(.*)`)?$", _unknown_key, words)
        raise LoadError(_placed(words, text, where)) from None
    names = [device.name for device in form.device]
    devices = []
    for index, device in enumerate(form.device):
        if device.name in names[:index]:
            raise LoadError(
                _placed(f"two devices are called {device.name!r} - at `$.device[{index}].name`", text, where)
            )
        for kind in device.alpha_of:
            if kind not in KINDS and (close := get_close_matches(kind, KINDS, n=1)):
                words = f"no kind of operator is called {kind!r}: did you mean {close[0]!r}?"
                raise LoadError(_placed(f"{words} - at `$.device[{index}].alpha_of`", text, where))
        sizes = {}
        for field in ("memory", "runtime_memory"):
            written = getattr(device, field)
            try:
                sizes[field] = parse_bytes(written) if isinstance(written, str) else written
            except UsageError as error:
                raise LoadError(_placed(f"{error.message} - at `$.device[{index}].{field}`", text, where)) from None
        devices.append(
            Device(
                device.name,
                device.mac_per_s,
                device.alpha,
                sizes["memory"],
                device.power_busy_w,
                device.power_idle_w,
                device.duplex,
                device.bytes_per_s,
                device.alpha_of,
                sizes["runtime_memory"] or 0,
                None if device.messages is None else device.messages.costs(),
                device.weight_bytes_per_s,
            )
        )
    network = _network(form, names, text, where)
    return Cluster(tuple(devices), network)


def _missing_key(match: re.Match[str]) -> str:
    """A message about a key that a cluster file needs and does not have."""
    key = match[1]
    if key in _ClusterForm.__struct_fields__:
        table = "[[device]] for each device" if key == "device" else f"[{key}]"
        return f"missing required field `{key}`: write a table {table}"
    return f"missing required field `{key}`"


def _unknown_key(match: re.Match[str]) -> str:
    """A message about a key that no cluster file has. The groups of `match`: the key and the path of its table."""
    key, path = match[1], match[2] or "$"
    table = re.findall(r"[a-z]+", path)[-1:] or [""]
    keys = {"": _ClusterForm, "network": _NetworkForm, "link": _LinkForm, "device": _DeviceForm}
    fields = keys.get(table[0], _MessagesForm).__struct_fields__
    close = get_close_matches(key, fields, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"keys are {', '.join(fields)}"
    return f"there is no key `{key}`; {hint} - at `{path}.{key}`"


def _network(form: _ClusterForm, names: list[str], text: str, where: str) -> Network:
    links: dict[tuple[int, int], Link] = {}
    for index, link in enumerate(form.link):
        place = f" - at `$.link[{index}].between`"
        if form.network.kind == "shared":
            raise LoadError(_placed(f"a shared network has one rate; remove the link{place}", text, where))
        unknown = next((name for name in link.between if name not in names), None)
        if unknown is not None:
            raise LoadError(_placed(f"no device is called {unknown!r}{place}", text, where))
        first, second = sorted(names.index(name) for name in link.between)
        if first == second or (first, second) in links:
            raise LoadError(
                _placed(
                    f"{link.between[0]} and {link.between[1]} are linked twice, or are one device{place}", text, where
                )
            )
        if link.latency_ms is None:
            link = structs.replace(link, latency_ms=form.network.latency_ms)
        place = f" - at `$.link[{index}].occupied_"
        links[first, second] = Link((first, second), *_rates(link), *_occupied(link, form.network, place, text, where))
    written = form.network
    ordered = tuple(links[pair] for pair in sorted(links))
    occupied = _occupied(written, written, " - at `$.network.occupied_", text, where)
    return Network(written.kind, *_rates(written), _overlaps(written), ordered, written.duplex, *occupied)


def _overlaps(network: _NetworkForm) -> bool:
    return network.kind == "shared" if network.overlap is None else network.overlap


def _rates(written: _NetworkForm | _LinkForm) -> tuple[float, float]:
    return written.rate_mbps * 1e6 / 8, (written.latency_ms or 0.0) / 1e3


def _occupied(
    written: _NetworkForm | _LinkForm, network: _NetworkForm, place: str, text: str, where: str
) -> tuple[float | None, float | None]:
    """(bytes per second, seconds) for which a message occupies the network; None where the file gives none."""
    rate, fixed = written.occupied_mbps, written.occupied_ms
    name = "mbps" if rate is not None and (fixed is None or rate < written.rate_mbps) else "ms"
    wrong = ""
    if (rate is not None or fixed is not None) and not _overlaps(network):
        wrong = "without overlap a message occupies its ends for all its time; write overlap = true, or remove this"
    elif (rate or written.rate_mbps) < written.rate_mbps or (fixed or 0.0) > (written.latency_ms or 0.0):
        wrong = "a message cannot occupy the network for longer than it takes (rate_mbps, latency_ms)"
    if wrong:
        raise LoadError(_placed(f"{wrong}{place}{name}`", text, where))
    return None if rate is None else rate * 1e6 / 8, None if fixed is None else fixed / 1e3


def _placed(message: str, text: str, where: str) -> str:
    """msgspec's message with the line of its field, or of the field's table if the field is missing."""
    match = re.search(r" - at `\$\.?(.*?)`$", message)
    path = match[1] if match else ""
    words = message[: match.start()] if match else message
    missing = re.search(r"(?:missing required|unknown) field `(\w+)`", words)
    table = re.match(r"(\w+)(?:\[(\d+)\])?", path)
    field = re.search(r"\.(\w+)", path)
    header, index = (table[1], int(table[2] or 0)) if table else ("", 0)
    line, name = 0, field[1] if field else (missing[1] if missing else header)
    seen = -1 if header else 0
    for number, content in enumerate(text.splitlines(), 1):
        opened = re.match(r"\s*\[\[?\s*(\w+)\s*\]\]?", content)
        if opened:
            inside = opened[1] == header
            seen += inside
            if inside and seen == index:
                line = number
            elif line and seen >= index:
                break
            elif not header and opened[1] == name:
                line = number
        elif seen == index and name and re.match(rf"\s*[\"']?{name}[\"']?\s*=", content):
            line = number
            break
    place = f"{where}, line {line or 1}"
    return f"{place}: {name}: {words}" if name and f"`{name}`" not in words else f"{place}: {words}"
