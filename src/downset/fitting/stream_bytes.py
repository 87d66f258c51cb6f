"""The bytes of streams that are not fitted yet: for the list of hops, and for a memory limit that a stream exceeds."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from downset.arenas.plan import plan_arena
from downset.errors import DownsetError
from downset.fitting.in_hops import InHops, written_stream
from downset.fitting.in_place import with_states_in_place
from downset.fitting.job import Job, StatesName
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from downset.graph.core import Graph
from downset.memory.models import MemoryName
from downset.messages import Message, Setting
from downset.orders.plan import plan_order
from downset.partial.stream_rows import stream_rows
from downset.results.fit import Fit
from downset.results.next_step import NextStep
from downset.results.plans import Arena, Order
from downset.text import format_bytes

__all__ = ["measured_bytes", "quick_plan", "tell_streams_that_fit"]

_SEARCH_S = 0.5
"""The time limit of an order."""


def quick_plan(graph: Graph, memory: MemoryName) -> tuple[Order, Arena]:
    """An order that is quickly found, and an arena in it."""
    order = plan_order(graph, memory=memory, time_limit_s=_SEARCH_S)
    return order, plan_arena(graph, order, method="greedy_by_size", memory=memory)


def measured_bytes(job: Job) -> int:
    """The bytes in the runtime of the stream that a job fits, in a quickly found order and placed in that. For targets
    that measure files, not sessions."""
    executed, _ = with_states_in_place(job)
    graph, placed = load(executed), job.scratch / f"placed{job.form}"
    order, arena = quick_plan(graph, job.target.memory)
    export_tflite(placed, graph, order.steps, offsets=arena.tensor_offsets if job.target.offsets else None)
    assert job.target.measure is not None
    return int(job.target.measure(placed, shapes=None, seed=job.options.seed, trust=False).nbytes["total_bytes"])


def tell_streams_that_fit(error: DownsetError, job: Job, asked: InHops) -> None:
    """Add to the error of a stream that exceeds a memory limit what its states alone take, where that is more, and the
    first stream that keeps to the limit: with its states in place, or with a shorter hop."""
    limit, rows = job.planned_bytes, asked.rows
    if limit is None:
        return
    lines: list[Message] = []
    if rows.kept_bytes > limit:
        lines.append(Message(f"The states of a hop of {rows.hop} rows alone take {format_bytes(rows.kept_bytes)} B."))
    if job.target.measure is not None and asked.window.file.measured is not None:
        remedy = next(_that_fit(job, asked, limit), None)
        lines += [] if remedy is None else [remedy]
        ram = error.result.ram if isinstance(error.result, Fit) else None
        if remedy is not None and ram is not None:
            ram = replace(ram, remedies=(*ram.remedies, NextStep(remedy, 0, suffices=True)))
            error.result = replace(error.result, ram=ram)  # type: ignore[type-var]
    for line in lines:
        error.args = (*error.args, "; ", line)
    error.add_lines(lines)


def _that_fit(job: Job, asked: InHops, limit: int) -> Iterator[Message]:
    hop, dimension = asked.rows.hop, asked.rows.moving.dimension
    forms: list[StatesName] = ["variables"] if job.options.states == "variables" else []
    forms += ["in-place"] if job.target.offsets else []
    while hop:
        rows = stream_rows(asked.rows.moving, hop)
        for states in forms if rows.kept_bytes < limit else ():
            if hop == asked.rows.hop and states == job.options.states:
                continue
            options = replace(job.options, states=states)
            with tempfile.TemporaryDirectory(prefix="hop-", dir=job.scratch) as scratch:
                other = replace(job, scratch=Path(scratch), options=options)
                try:
                    nbytes = measured_bytes(written_stream(other, rows))
                except DownsetError:
                    continue
            if nbytes <= limit:
                settings = [Setting("stream", (hop, dimension))]
                settings += [Setting("states", states)] if states != "variables" else []
                takes = f"A stream takes {format_bytes(nbytes)} B (measured) with "
                yield Message(takes, settings[0], *(part for one in settings[1:] for part in (" and ", one)), ".")
        hop //= 2
