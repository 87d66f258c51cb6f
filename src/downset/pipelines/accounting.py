"""How plans are priced: by which model of time, with which hand-over, between which ends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, TypedDict, get_args

from downset.clusters.model import Cluster
from downset.errors import UsageError
from downset.methods import check_choice

__all__ = ["COMM", "Accounting", "AccountingOptions", "CommName", "TopologyName", "accounting_of", "check_comm"]

CommName = Literal["resources", "paper"]
COMM: tuple[CommName, ...] = get_args(CommName)
TopologyName = Literal["leader", "direct"]


class AccountingOptions(TypedDict, total=False):
    """The options of `plan_pipeline` that decide how a plan is priced, and how long a frame may take."""

    comm: CommName
    topology: TopologyName
    source: str | None
    sink: str | None
    window: int | None
    max_latency_s: float | None


@dataclass(frozen=True, slots=True)
class Accounting:
    """How plans are priced. `comm`: by resources, or by the paper's equations. `topology`: how `exact` hands rows on;
    every plan is priced by the rules of its stages. `source` and `sink`: indices of devices, None for outside.
    `window`: the most frames inside at once; None: as many as shorten the period. `max_latency_s`: the longest that a
    frame may take; None: any time."""

    comm: CommName = "resources"
    topology: TopologyName = "leader"
    source: int | None = None
    sink: int | None = None
    window: int | None = None
    max_latency_s: float | None = None

    def on(self, devices: Sequence[int]) -> Accounting:
        """The same for a cluster of these devices only; a source or sink that is not among them is outside."""
        place = {device: k for k, device in enumerate(devices)}
        source, sink = (None if end is None else place.get(end) for end in (self.source, self.sink))
        return replace(self, source=source, sink=sink)


def accounting_of(cluster: Cluster, options: AccountingOptions) -> Accounting:
    """The options of `plan_pipeline`, with devices as indices. Raises UsageError for options that are out of range, do
    not fit together or name no device of the cluster."""
    comm, topology = options.get("comm", "resources"), options.get("topology", "leader")
    window, limit = options.get("window"), options.get("max_latency_s")
    check_comm(comm)
    check_choice("topology", topology, get_args(TopologyName))
    if comm == "paper" and topology == "direct":
        raise UsageError("comm paper has no direct hand-over, as its equations have leaders; use comm resources")
    if window is not None and not (window >= 1 and window == int(window)):
        raise UsageError(f"window must be a whole number of frames, at least 1; given {window}")
    if limit is not None and not limit > 0:
        raise UsageError(f"max_latency_s must be above 0 s; given {limit:g}")
    names = [device.name for device in cluster.devices]
    ends = []
    for what, name in (("source", options.get("source")), ("sink", options.get("sink"))):
        if name not in (None, "outside", *names):
            raise UsageError(f"{what}: no device is called {name!r}; the cluster has {', '.join(names)}, or outside")
        ends.append(None if name in (None, "outside") else names.index(str(name)))
    if comm == "paper" and (window is not None or ends != [None, None]):
        raise UsageError("comm paper has no source, sink or window, as its equations have none; use comm resources")
    return Accounting(comm, topology, ends[0], ends[1], window, limit)


def check_comm(comm: str) -> None:
    check_choice("communication model", comm, COMM)
