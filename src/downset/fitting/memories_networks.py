"""The networks that a fit to two memories plans: the network as it is, and in strips of rows."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from downset.budget import Budget
from downset.errors import DownsetError, InfeasibleError, UnsupportedError
from downset.fitting.job import Listener, SearchTime
from downset.fitting.memories_chains import Room, find_strips
from downset.fitting.memories_options import TwoMemoriesOptions
from downset.fitting.memories_strips import network_in_strips
from downset.graph.core import Graph
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import TFLM_WITHOUT_OFFSETS, MemoryModel, memory_model
from downset.memory.records import align_up
from downset.memory.reference_scratch import scratch_of_operators
from downset.messages import Message, Setting
from downset.partial.search import PartialLimits
from downset.text import shortened

__all__ = ["EARLIER_SHARE", "MemoriesJob", "NetworkToPlan", "most_scratch", "networks_to_plan"]

_WHOLE_SHARE, _WITHIN_SHARE, _CHAIN_SHARE, _STRIPS_SHARE, _ONLY_SHARE = 0.2, 0.2, 0.5, 0.6, 0.8
EARLIER_SHARE = 0.2
"""Shares of the time that is left: for the plan of the network as it is, for both searches for strips, for each plan of
a network in strips, and for a plan that no strips follow."""
_CHOICES = 3_000
"""The most choices that the search for strips which fit fast memory prices."""
_SEARCHED = 300
"""The most operators of a network in strips of which other orders are searched."""
_ABOUT = 1024
"""Bytes to which the fast memory is rounded up that strips are said to need."""


@dataclass(frozen=True, slots=True)
class MemoriesJob:
    """`search_time`: that of all its searches."""

    options: TwoMemoriesOptions
    graph: Graph
    folder: Path
    listener: Listener
    search_time: SearchTime

    def budget(self, share: float) -> Budget:
        """The budget of a search that takes a share of the time that is left."""
        return Budget(share * self.search_time.left_s, self.options.work_limit, self.options.seed)


class NetworkToPlan(NamedTuple):
    """A network that is planned, under a memory model, in a share of the time that is left."""

    graph: Graph
    model: MemoryModel
    share: float

    @property
    def method(self) -> str:
        """Strips of many operators run in the sequence in which they were made: a search for another one would take the
        time that the exact residency needs."""
        return "joint" if self.model is not TFLM_WITHOUT_OFFSETS or len(self.graph.ops) <= _SEARCHED else "file_order"


def networks_to_plan(
    job: MemoriesJob, tail_bytes: int, errors: list[DownsetError], earlier: NetworkToPlan | None = None
) -> Iterator[NetworkToPlan]:
    """Yields the network as it is, and, where all of it does not fit fast memory, that of an earlier file and others in
    strips. `errors`: why what was yielded has no file; what strips need is added to the first."""
    options = job.options
    counted = options.persistent == "fast"
    taken = (tail_bytes if counted else 0) + (most_scratch(job.graph, options.library) if options.distance > 0 else 0)
    capacity = options.fast_bytes - taken
    fits = peak_bytes(order_problem(job.graph, "tflm"), range(len(job.graph.ops))) <= capacity or capacity <= 0
    yield NetworkToPlan(job.graph, memory_model("tflm"), _ONLY_SHARE if fits else _WHOLE_SHARE)
    if fits:
        return
    if earlier is not None:
        yield earlier
    job.listener.progress("searching strips")
    choices = _CHOICES if options.work_limit is None else min(options.work_limit, _CHOICES)
    search = PartialLimits(work_limit=choices, time_limit_s=job.budget(_WITHIN_SHARE).seconds)
    with job.search_time.running():
        within = network_in_strips(job.graph, capacity, search, counted=counted)
    if within is not None:
        yield NetworkToPlan(within, TFLM_WITHOUT_OFFSETS, _WHOLE_SHARE)
    with job.search_time.running():
        clock = job.budget(_CHAIN_SHARE).start()
        described = options.fast_bytes if options.distance > 0 else math.inf
        room = Room(capacity, counted, described, options.library)
        strips = find_strips(job.graph, room, options.byte_prices, clock)
    least = errors[0].figures.get("least_bytes") if errors else None
    if isinstance(least, int) and capacity < strips.least_bytes < least - taken:
        in_strips = align_up(int(strips.least_bytes) + taken, _ABOUT)
        told = Message(errors[0].message, ", and in strips about ", Setting("fast_bytes", in_strips))
        errors[0] = InfeasibleError(told, figures={**errors[0].figures, "in_strips_bytes": in_strips})
    for graph in strips.networks:
        yield NetworkToPlan(graph, TFLM_WITHOUT_OFFSETS, _STRIPS_SHARE)


def most_scratch(graph: Graph, kernels: str) -> int:
    """The most scratch that the kernels of one operator ask for. Raises UnsupportedError where that is not known."""
    scratch, unknown = scratch_of_operators(graph, kernels)
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        raise UnsupportedError(
            f"the scratch of {shortened(unknown[0], 60)}{more} is not known for {kernels} kernels, and "
            "TFLite Micro places it by itself, perhaps between the memories, where it would overwrite other data"
        )
    return max(scratch.values(), default=0)
