"""Clusters of devices: TOML in, validated; what a transfer between two devices takes.

A network is either `links` (every pair has a rate of its own, or the common one) or `shared` (one radio cell: the bytes
of all transfers share one rate). Rates are written in Mbit/s (10⁶ bits), held in bytes per second.
"""

from __future__ import annotations

import os
import re
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

import msgspec

from downset.errors import LoadError, UsageError
from downset.units import parse_bytes

__all__ = ["Cluster", "Device", "Link", "Network", "cluster_names", "load_cluster", "parse_cluster"]


# The upper bounds keep infinities out; no device or link is near them. Plans hold them to their clusters too.
_Positive = Annotated[float, msgspec.Meta(ge=1e-9, le=1e18)]
_NotNegative = Annotated[float, msgspec.Meta(ge=0, le=1e18)]
_Rate = Annotated[float, msgspec.Meta(gt=0, le=1e24)]
_Memory = Annotated[int, msgspec.Meta(gt=0)]


@dataclass(frozen=True, slots=True)
class Device:
    """`mac_per_s`: capacity ϑ of eq. 7; `alpha`: its regression's coefficient (time = alpha · MACs / mac_per_s)."""

    name: str
    mac_per_s: _Positive
    alpha: _Positive = 1.0
    memory_bytes: _Memory | None = None
    power_busy_w: _NotNegative | None = None
    power_idle_w: _NotNegative | None = None

    @property
    def speed(self) -> float:
        """MACs per second that the time model divides by."""
        return self.mac_per_s / self.alpha


@dataclass(frozen=True, slots=True)
class Link:
    """A pair of devices (by index, ascending) whose rate differs from the common one."""

    pair: tuple[int, int]
    bytes_per_s: _Rate
    latency_s: _NotNegative


@dataclass(frozen=True, slots=True)
class Network:
    """`overlap`: a stage computes one frame while it transfers another; its time is then the longer of the two instead
    of the sum (eq. 11). Default: shared networks overlap, links do not."""

    kind: Literal["links", "shared"]
    bytes_per_s: _Rate
    latency_s: _NotNegative = 0.0
    overlap: bool = False
    links: tuple[Link, ...] = ()


@dataclass(frozen=True, slots=True)
class Cluster:
    devices: tuple[Device, ...]
    network: Network

    def link(self, first: int, second: int) -> tuple[float, float]:
        """(bytes per second, latency in seconds) between two devices."""
        pair = (min(first, second), max(first, second))
        for link in self.network.links:
            if link.pair == pair:
                return link.bytes_per_s, link.latency_s
        return self.network.bytes_per_s, self.network.latency_s


class _Form(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The file as written; unknown fields are refused."""


class _NetworkForm(_Form, frozen=True):
    kind: Literal["shared", "links"]
    rate_mbps: _Positive
    latency_ms: _NotNegative = 0.0
    overlap: bool | None = None


class _LinkForm(_Form, frozen=True):
    between: tuple[str, str]
    rate_mbps: _Positive
    latency_ms: _NotNegative = 0.0


class _DeviceForm(_Form, frozen=True):
    name: Annotated[str, msgspec.Meta(min_length=1)]
    mac_per_s: _Positive
    alpha: _Positive = 1.0
    memory: str | _Memory | None = None
    power_busy_w: _NotNegative | None = None
    power_idle_w: _NotNegative | None = None


class _ClusterForm(_Form, frozen=True):
    network: _NetworkForm
    device: Annotated[list[_DeviceForm], msgspec.Meta(min_length=1)]
    link: list[_LinkForm] = []


def cluster_names() -> tuple[str, ...]:
    """Clusters that come with downset, by name."""
    folder = resources.files("downset") / "clusters"
    return tuple(sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml")))


def load_cluster(path: str | os.PathLike[str]) -> Cluster:
    """The cluster in a TOML file, or one that comes with downset by its bare name (`pico_1mac`).

    Raises LoadError naming file, line and field."""
    text = str(path)
    if text in cluster_names():
        entry = resources.files("downset") / "clusters" / f"{text}.toml"
        return parse_cluster(entry.read_text(encoding="utf-8"), text)
    try:
        content = Path(path).read_bytes().decode("utf-8-sig")  # Windows' editors begin a file with a mark
    except OSError as error:
        known = ", ".join(cluster_names())
        raise LoadError(f"cannot read cluster {text}: {error.strerror}; clusters that come along: {known}") from None
    except UnicodeDecodeError:
        raise LoadError(f"cluster {text} is not UTF-8 text") from None
    return parse_cluster(content, text)


def parse_cluster(text: str, where: str = "cluster") -> Cluster:
    """The cluster in a TOML text; `where` names it in errors."""
    try:
        raw = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise LoadError(f"{where}: not TOML: {error}") from None
    try:
        form = msgspec.convert(raw, _ClusterForm)
    except msgspec.ValidationError as error:
        said = re.sub(r"^Invalid enum value ('.*?')", r"\1 is no kind of network, write links or shared", str(error))
        raise LoadError(_placed(said, text, where)) from None
    names = [device.name for device in form.device]
    devices = []
    for index, device in enumerate(form.device):
        if device.name in names[:index]:
            raise LoadError(
                _placed(f"two devices are called {device.name!r} - at `$.device[{index}].name`", text, where)
            )
        try:
            memory = parse_bytes(device.memory) if isinstance(device.memory, str) else device.memory
        except UsageError as error:
            raise LoadError(_placed(f"{error} - at `$.device[{index}].memory`", text, where)) from None
        devices.append(
            Device(device.name, device.mac_per_s, device.alpha, memory, device.power_busy_w, device.power_idle_w)
        )
    network = _network(form, names, text, where)
    return Cluster(tuple(devices), network)


def _network(form: _ClusterForm, names: list[str], text: str, where: str) -> Network:
    links: dict[tuple[int, int], Link] = {}
    for index, link in enumerate(form.link):
        at = f" - at `$.link[{index}].between`"
        if form.network.kind == "shared":
            raise LoadError(_placed(f"a shared network has one rate; remove the link{at}", text, where))
        unknown = next((name for name in link.between if name not in names), None)
        if unknown is not None:
            raise LoadError(_placed(f"no device is called {unknown!r}{at}", text, where))
        first, second = sorted(names.index(name) for name in link.between)
        if first == second or (first, second) in links:
            raise LoadError(
                _placed(f"{link.between[0]} and {link.between[1]} are linked twice or the same{at}", text, where)
            )
        links[first, second] = Link((first, second), link.rate_mbps * 1e6 / 8, link.latency_ms / 1e3)
    written = form.network
    overlap = written.kind == "shared" if written.overlap is None else written.overlap
    ordered = tuple(links[pair] for pair in sorted(links))
    return Network(written.kind, written.rate_mbps * 1e6 / 8, written.latency_ms / 1e3, overlap, ordered)


def _placed(message: str, text: str, where: str) -> str:
    """msgspec's message with the line of the field it speaks of; where the field is missing, the line of its table."""
    match = re.search(r" - at `\$\.?(.*?)`$", message)
    path = match[1] if match else ""
    said = message[: match.start()] if match else message
    missing = re.search(r"(?:missing required|unknown) field `(\w+)`", said)
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
    return f"{place}: {name}: {said}" if name and f"`{name}`" not in said else f"{place}: {said}"
