"""Counts the memory that a device needs: its weights, each once, its runtime, and an arena of buffers.

The arena holds the buffers of the plan's tasks (buffers.py); the bytes inside a strip are those of our order and arena.
Under `paper`, which has no schedule, the arena is that of the strip that needs most, with its inputs and outputs.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from downset.budget import Budget, Clock
from downset.clusters.model import Cluster
from downset.graph.core import Graph, Op, Tensor
from downset.pipelines.accounting import Accounting
from downset.pipelines.buffers import as_events, frame_buffers, placed
from downset.pipelines.drafts import StageDrafts, TimedPlan
from downset.pipelines.judging import timed_plan
from downset.pipelines.prices import PricedChain
from downset.pipelines.scheduling.events import Schedule
from downset.pipelines.scheduling.slots import fewest_slots, lone_latency_s
from downset.pipelines.tasks import timed_tasks
from downset.results.pipelines import Block, DeviceMemory, PipelineStage, Strip

__all__ = ["LAST_S", "MemoryCount", "PlanMemory", "best_fit"]

_MANY = 1_000
"""The most operators of a strip whose order is searched; larger strips keep the order of the file."""
_MOMENT_S = 0.5
"""The most seconds for the order of a strip, and for its placement."""
LAST_S = 1.0
"""Seconds for orders and memory of the plan that was found, even if the clock has ended."""


@dataclass(frozen=True, slots=True)
class PlanMemory:
    """A plan with its buffers and its devices' memory. Without a graph only the buffers are known."""

    timed: TimedPlan
    memory: tuple[DeviceMemory, ...]

    def broken(self, cluster: Cluster) -> list[DeviceMemory]:
        """The devices of the plan that hold more than they have."""
        limits = [device.memory_bytes for device in cluster.devices]
        return [held for held in self.memory if held.total_bytes > (limits[held.device] or math.inf)]


@dataclass(slots=True)
class MemoryCount:
    """Counts the memory of plans of one problem. Strips that were planned before are remembered."""

    problem: PricedChain
    graph: Graph | None
    cluster: Cluster
    accounting: Accounting
    clock: Clock = field(default_factory=lambda: Budget(math.inf).start())
    _strip_bytes: dict[tuple[object, ...], int] = field(default_factory=dict)
    _last: Clock | None = None
    """The clock of the orders of strips near the end of `clock`."""

    def go_on(self) -> Clock:
        """Go on for `LAST_S` after the end of the clock; returns the clock of that time."""
        self.clock, self._last = self.clock.at_least(LAST_S), None
        return self.clock

    def counted(self, plan: TimedPlan) -> PlanMemory:
        """The plan with the fewest slots of its buffers, their places, and its devices' memory."""
        if plan.schedule is None:
            return PlanMemory(plan, self._by_strips(plan.frame.stages))
        schedule, frame = plan.schedule, plan.frame
        weights = self._weights_bytes(frame.stages)
        inner = {key: self._bytes_of(block, strip) for key, block, strip in _strips(frame.stages)}
        timed, _ = timed_tasks(self.cluster, frame)
        buffers = frame_buffers(self.problem, frame, inner, slots=schedule.window)
        orders = Schedule(tuple(order.turns for order in schedule.orders), schedule.window)
        slots = fewest_slots(timed, orders, plan.period_s, as_events(buffers), clock=self.clock)
        buffers = tuple(
            replace(buffer, slots=one.slots or schedule.window) for buffer, one in zip(buffers, slots, strict=True)
        )
        devices = sorted({device for stage in frame.stages for device in stage.devices} | {frame.entry, frame.exit})
        room = {device: self._room_bytes(device) - weights.get(device, 0) for device in devices}
        buffers = placed(timed, schedule, buffers, room, self.clock)
        arenas = dict.fromkeys(devices, 0)
        for buffer in buffers:
            stop = buffer.offset + buffer.nbytes * buffer.slots
            arenas[buffer.device] = max(arenas[buffer.device], stop)
        latency = lone_latency_s(timed, orders, as_events(buffers))
        counted = replace(plan, schedule=replace(schedule, buffers=buffers), latency_s=latency)
        return PlanMemory(counted, self._memory(weights, arenas))

    def at_smaller_windows(
        self, drafts: StageDrafts, plan: TimedPlan, *, below_s: float = math.inf
    ) -> Iterator[PlanMemory]:
        """The same stages with fewer and fewer frames inside, as long as the period is below `below_s`."""
        if plan.schedule is None:
            return
        for window in range(plan.schedule.window - 1, 0, -1):
            smaller = timed_plan(
                self.problem, self.cluster, drafts, replace(self.accounting, window=window), clock=self.clock
            )
            assert smaller is not None  # a plan without limits always has a price
            if smaller.period_s >= below_s:
                return
            yield self.counted(smaller)
            if self.clock.late() and window > 2:  # past the end only one frame inside is left to try
                smaller = timed_plan(self.problem, self.cluster, drafts, replace(self.accounting, window=1))
                assert smaller is not None
                if smaller.period_s < below_s:
                    yield self.counted(smaller)
                return

    def _memory(self, weights: dict[int, int], arenas: dict[int, int]) -> tuple[DeviceMemory, ...]:
        if self.graph is None:
            return ()
        return tuple(
            DeviceMemory(device, weights.get(device, 0), self.cluster.devices[device].runtime_bytes, arena)
            for device, arena in sorted(arenas.items())
        )

    def _by_strips(self, stages: Sequence[PipelineStage]) -> tuple[DeviceMemory, ...]:
        """The memory of each device without a schedule: that of the strip that needs most."""
        weights = self._weights_bytes(stages)
        arenas = {device: 0 for stage in stages for device in stage.devices}
        for _, block, strip in _strips(stages) if self.graph is not None else ():
            room = self._room_bytes(strip.device) - weights.get(strip.device, 0)
            held = self._bytes_of(block, strip, ends=True, room_bytes=room)
            arenas[strip.device] = max(arenas[strip.device], held)
        return self._memory(weights, arenas)

    def _room_bytes(self, device: int) -> float:
        described = self.cluster.devices[device]
        return math.inf if described.memory_bytes is None else described.memory_bytes - described.runtime_bytes

    def _weights_bytes(self, stages: Sequence[PipelineStage]) -> dict[int, int]:
        """The bytes of the constants that the strips of each device read, each once."""
        held: dict[int, dict[int, int]] = {}
        for _, block, strip in _strips(stages):
            own = held.setdefault(strip.device, {})
            for op in _computed(self.problem, block, strip):
                own.update(self.problem.ops[op].weights)
        return {device: sum(own.values()) for device, own in held.items()}

    def _bytes_of(self, block: Block, strip: Strip, *, ends: bool = False, room_bytes: float = 0.0) -> int:
        if self.graph is None:
            return 0
        key = (ends, block.start, block.stop, strip.start, strip.stop, *(strip.columns or ()))
        if key not in self._strip_bytes:
            self._strip_bytes[key] = self._counted_bytes(self.graph, block, strip, ends=ends, room_bytes=room_bytes)
        return self._strip_bytes[key]

    def _counted_bytes(self, graph: Graph, block: Block, strip: Strip, *, ends: bool, room_bytes: float) -> int:
        """The arena, in bytes, of a strip's activations in the order of least peak. Without `ends` the tensors that it
        is given or makes for others do not count. A fast placement is taken if it fits `room_bytes`, else the best one
        found. A strip of very many operators, or without time left, has the order of the file and a fast placement."""
        from downset.arenas.plan import plan_arena
        from downset.orders.plan import plan_order

        if self._last is None and self.clock.left() < LAST_S:
            self._last = self.clock.at_least(LAST_S)
        problem, clock = self.problem, self._last or self.clock
        seconds = clock.left()
        if seconds <= 0 or sum(map(len, problem.units[block.start : block.stop])) > _MANY:
            lives = list(_lives(problem, block, strip, ends=ends))
            offsets = best_fit(lives)
            return max((offset + nbytes for offset, (_, _, nbytes) in zip(offsets, lives, strict=True)), default=0)
        shard = _shard(problem, graph, block, strip, ends=ends)
        if not any(tensor.nbytes for tensor in shard.tensors):
            return 0
        moment_s = min(_MOMENT_S, seconds / 2)
        order = plan_order(shard, memory="live", **clock.within(moment_s).rest().limits())
        clock.count(order.evidence.states)
        quick = plan_arena(shard, order, method="greedy_by_size").arena_bytes
        if quick <= room_bytes or quick == order.peak_bytes:
            return quick
        best = plan_arena(shard, order, method="best", **clock.within(moment_s).rest().limits())
        clock.count(best.evidence.states)
        return min(quick, best.arena_bytes)


def _strips(stages: Iterable[PipelineStage]) -> Iterator[tuple[tuple[int, int, int], Block, Strip]]:
    for place, stage in enumerate(stages):
        for number, block in enumerate(stage.blocks):
            for index, strip in enumerate(block.strips):
                yield (place, number, index), block, strip


def _lives(problem: PricedChain, block: Block, strip: Strip, *, ends: bool) -> Iterator[tuple[int, int, int]]:
    """(first step, step behind the last, bytes) of a strip's tensors, by the order of its operators."""
    part, ops = _parts(problem, block, strip), _computed(problem, block, strip)
    sinks = problem.sinks(block.start, block.stop)
    first, last, written = dict[int, int](), dict[int, int](), set[int]()
    for step, op in enumerate(ops):
        described = problem.ops[op]
        written.update(described.outputs)
        for tensor in (*described.inputs, *described.outputs):
            first.setdefault(tensor, step)
            last[tensor] = step
    for tensor, nbytes in part.items():
        inside = tensor in written and tensor not in sinks
        if tensor in first and (inside or ends):
            begin = first[tensor] if tensor in written else 0
            yield begin, (len(ops) if tensor in sinks else last[tensor] + 1), nbytes


def _parts(problem: PricedChain, block: Block, strip: Strip) -> dict[int, int]:
    """The bytes of a strip's part of each tensor that it reads or makes."""
    rows = problem.needs(block.start, block.stop, strip.start, strip.stop, halo=False)
    part = {t: problem.tensors[t].row_bytes * (high - low) for t, (low, high) in rows.items()}
    if strip.columns is None:
        return part
    across = problem.turned()
    side = across.needs(block.start, block.stop, *strip.columns, halo=False)
    return {t: nbytes * (side[t][1] - side[t][0]) // across.tensors[t].rows for t, nbytes in part.items() if t in side}


def _computed(problem: PricedChain, block: Block, strip: Strip) -> list[int]:
    """The operators of a block that make rows for a strip."""
    part = _parts(problem, block, strip)
    ops = sorted(op for unit in problem.units[block.start : block.stop] for op in unit)
    return [op for op in ops if any(tensor in part for tensor in problem.ops[op].outputs)]


def _shard(problem: PricedChain, graph: Graph, block: Block, strip: Strip, *, ends: bool) -> Graph:
    part, ops = _parts(problem, block, strip), _computed(problem, block, strip)
    results = {t for op in ops for t in problem.ops[op].outputs}
    sinks = problem.sinks(block.start, block.stop)
    if not ends:
        part = {t: nbytes if t in results and t not in sinks else 0 for t, nbytes in part.items()}
    number = {t: place for place, t in enumerate(sorted(part))}
    tensors = tuple(Tensor(graph.tensors[t].name, (part[t],), "uint8", part[t]) for t in sorted(part))
    own = tuple(
        Op(
            graph.ops[op].name,
            graph.ops[op].kind,
            tuple(number[t] for t in problem.ops[op].inputs if t in number),
            tuple(number[t] for t in problem.ops[op].outputs if t in number),
        )
        for op in ops
    )
    crossing = [t for t in problem.crossing(block.stop) if t in results and t in number]
    inputs = tuple(number[t] for t in sorted(part) if t not in results)
    return Graph(f"{graph.name} shard", tensors, own, inputs, tuple(number[t] for t in crossing)).check()


def best_fit(lives: Sequence[tuple[int, int, int]]) -> list[int]:
    """The offsets, in bytes, of buffers given as (start, stop, bytes), each in the smallest free block that holds it:
    best fit with immediate coalescing (Knuth, The Art of Computer Programming, volume 1, section 2.5). Each is in use
    in the half-open range of steps [start, stop). Complexity: O(n log n) for n buffers, plus moving entries in lists of
    free ranges."""
    free = _FreeRanges()
    in_use: list[tuple[int, int, int]] = []
    offsets = [0] * len(lives)
    for place in sorted(range(len(lives)), key=lives.__getitem__):
        start, stop, nbytes = lives[place]
        while in_use and in_use[0][0] <= start:
            _, offset, size = heapq.heappop(in_use)
            free.give(offset, size)
        if nbytes:
            offsets[place] = free.take(nbytes)
            heapq.heappush(in_use, (stop, offsets[place], nbytes))
    return offsets


class _FreeRanges:
    """The free ranges below `top`, the byte below which all buffers lie."""

    def __init__(self) -> None:
        self.top = 0
        self._by_size: list[tuple[int, int]] = []
        self._size_at: dict[int, int] = {}
        self._begin_of: dict[int, int] = {}  # by end of a range: its begin

    def take(self, nbytes: int) -> int:
        place = bisect_left(self._by_size, (nbytes, 0))
        if place < len(self._by_size):
            size, offset = self._by_size[place]
            self._remove(offset, size)
            if size > nbytes:
                self._add(offset + nbytes, size - nbytes)
            return offset
        offset = self._begin_of.get(self.top, self.top)  # a range that ends at the top grows
        if offset < self.top:
            self._remove(offset, self.top - offset)
        self.top = offset + nbytes
        return offset

    def give(self, offset: int, size: int) -> None:
        before = self._begin_of.get(offset)
        if before is not None:
            self._remove(before, offset - before)
            offset, size = before, size + offset - before
        after = self._size_at.get(offset + size)
        if after is not None:
            self._remove(offset + size, after)
            size += after
        self._add(offset, size)

    def _add(self, offset: int, size: int) -> None:
        insort(self._by_size, (size, offset))
        self._size_at[offset], self._begin_of[offset + size] = size, offset

    def _remove(self, offset: int, size: int) -> None:
        del self._by_size[bisect_left(self._by_size, (size, offset))]
        del self._size_at[offset], self._begin_of[offset + size]
