"""Lowers stages to a program: which step runs on which lane, and which steps it waits for.

A lane is a worker thread or a CUDA stream. With barriers every step waits for all of the previous stage, as in IOS.
Without barriers a step waits only for the steps that make what it reads; the stages then decide the order of issue
and the lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from downset.arenas.constrained.conflicts import records_of_conflicts
from downset.arenas.plan import plan_arena
from downset.graph.core import ABSENT, Graph, Tensor
from downset.lattice import ancestors, bits, reduction
from downset.results.plans import Arena
from downset.stages.problem import Stage
from downset.stages.unit_graph import UnitGraph

__all__ = [
    "LaneProgram",
    "concurrent_arena",
    "concurrent_conflicts",
    "critical_lane",
    "lower",
    "possibly_live_bytes",
]


_FLOAT_BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}


@dataclass(frozen=True, slots=True)
class LaneStep:
    """`units`: one unit, or several merged ones. `waits`: steps on other lanes that must end before this step begins,
    without those that other waits imply."""

    units: tuple[int, ...]
    lane: int
    stage: int
    waits: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class LaneProgram:
    """Steps in order of issue; the steps of one lane run in this order. `units[u]`: the operators of unit u.
    `before[s]`: mask of all steps that, in every run, end before s begins."""

    units: tuple[tuple[int, ...], ...]
    steps: tuple[LaneStep, ...]
    lanes: int
    barriers: bool
    before: tuple[int, ...]


def lower(units: UnitGraph, stages: Sequence[Stage], *, barriers: bool, max_lanes: int | None = None) -> LaneProgram:
    """The program of these stages. Each group of a stage goes to the lane of the last step that it reads from, if that
    lane has no group of the stage yet, otherwise to the lane with the fewest units of the stage. Units that are in no
    stage count as computed, so a part of a network can be lowered too. O(steps²) mask steps."""
    lane_of: list[int] = []
    stage_at: list[int] = []
    members: list[tuple[int, ...]] = []
    step_of: dict[int, int] = {}
    waits: list[int] = []
    last_on: dict[int, int] = {}
    previous: list[int] = []
    widest = max((len(stage.groups) for stage in stages if not stage.merged), default=1)
    lanes = max(1, min(widest, max_lanes or widest))
    for number, stage in enumerate(stages):
        groups = [tuple(stage.units)] if stage.merged else list(stage.groups)
        load = [0] * lanes
        current = []
        chosen = _lanes(units, groups, load, step_of, lane_of)
        for group, lane in zip(groups, chosen, strict=True):
            for chunk in [group] if stage.merged else [(unit,) for unit in group]:
                step = len(members)
                before = (earlier for unit in chunk for earlier in bits(units.predecessors[unit]))
                needs = {step_of[earlier] for earlier in before if earlier in step_of}
                if barriers:
                    needs.update(previous)
                mask = sum(1 << need for need in needs)
                if lane in last_on:
                    mask |= 1 << last_on[lane]
                waits.append(mask)
                members.append(chunk)
                lane_of.append(lane)
                stage_at.append(number)
                step_of.update(dict.fromkeys(chunk, step))
                last_on[lane] = step
                current.append(step)
        previous = current
    reduced = reduction(waits)
    steps = tuple(
        LaneStep(
            chunk,
            lane_of[index],
            stage_at[index],
            tuple(w for w in bits(reduced[index]) if lane_of[w] != lane_of[index]),
        )
        for index, chunk in enumerate(members)
    )
    return LaneProgram(units.units, steps, lanes, barriers, ancestors(waits))


def _lanes(
    units: UnitGraph, groups: Sequence[tuple[int, ...]], load: list[int], step_of: dict[int, int], lane_of: list[int]
) -> list[int]:
    chosen = []
    for group in groups:
        read_from = [
            step_of[earlier] for unit in group for earlier in bits(units.predecessors[unit]) if earlier in step_of
        ]
        preferred = lane_of[max(read_from)] if read_from else 0
        lane = preferred if load[preferred] == 0 else min(range(len(load)), key=lambda lane: (load[lane], lane))
        load[lane] += len(group)
        chosen.append(lane)
    return chosen


def critical_lane(program: LaneProgram) -> int:
    """The lane with the most steps of the longest chain of steps that wait for each other; of equals the lowest."""
    if not program.steps:
        return 0
    length: list[int] = []
    behind: list[int] = []
    for before in program.before:
        best = max(bits(before), key=lambda step: (length[step], -step), default=-1)
        behind.append(best)
        length.append(1 + (length[best] if best >= 0 else 0))
    counts = [0] * program.lanes
    step = max(range(len(length)), key=lambda step: (length[step], -step))
    while step >= 0:
        counts[program.steps[step].lane] += 1
        step = behind[step]
    return counts.index(max(counts))


def concurrent_conflicts(graph: Graph, program: LaneProgram) -> tuple[tuple[int, int], ...]:
    """Pairs of activations that must not share bytes: there are runs in which neither has been read for the last time
    before the other is made. The order of issue does not show all of them, because lanes run side by side.
    O(tensors²) mask steps."""
    step_of = {
        op: index for index, step in enumerate(program.steps) for unit in step.units for op in program.units[unit]
    }
    maker: dict[int, int] = {}
    touched: dict[int, int] = {}
    for tensor in graph.inputs:
        touched[tensor] = maker[tensor] = 0
    for index, op in enumerate(graph.ops):
        if index not in step_of:
            continue
        step = 1 << step_of[index]
        for tensor in op.inputs:
            if tensor in touched:
                touched[tensor] |= step
        for tensor in op.outputs:
            if tensor != ABSENT:
                maker[tensor] = touched[tensor] = step
    kept = set(graph.outputs)

    def gone(one: int, other: int) -> bool:
        """Whether, in every run, all steps that make or read `one` have ended before `other` is made."""
        if one in kept or not maker[other]:
            return False
        return touched[one] & ~program.before[maker[other].bit_length() - 1] == 0

    tensors = sorted(touched)
    return tuple(
        (one, other)
        for index, one in enumerate(tensors)
        for other in tensors[index + 1 :]
        if not gone(one, other) and not gone(other, one)
    )


def concurrent_arena(graph: Graph, program: LaneProgram, *, dtype: str, alignment: int = 256) -> Arena:
    """An arena for all activations of a program whose lanes run side by side. Pairs of `concurrent_conflicts` share no
    bytes. `dtype`: the element type in which floats are computed. `alignment`: in bytes."""
    conflicts = concurrent_conflicts(graph, program)
    tensors = sorted(
        {tensor for op in graph.ops for tensor in (*op.inputs, *op.outputs) if tensor != ABSENT} | set(graph.inputs)
    )
    sizes = {t: _nbytes(graph.tensors[t], dtype) for t in tensors if t not in graph.constants}
    number = {tensor: index for index, tensor in enumerate(t for t in sizes if sizes[t])}
    pairs = [(number[one], number[other]) for one, other in conflicts if one in number and other in number]
    records = records_of_conflicts([sizes[tensor] for tensor in number], pairs, alignment=alignment)
    return plan_arena(records)


def possibly_live_bytes(graph: Graph, program: LaneProgram, *, dtype: str | None = None) -> int:
    """A bound on the bytes of activations that any run needs at a time: the largest sum, over all steps, of the tensors
    that may have been made and may still be read. For a sequential program it is the peak. `dtype`: the element type in
    which floats are computed; None: the model's types. Analytic. O(tensors · steps) mask steps."""
    step_of = {
        op: place for place, step in enumerate(program.steps) for unit in step.units for op in program.units[unit]
    }
    touched: dict[int, int] = dict.fromkeys(graph.inputs, 0)
    maker: dict[int, int] = {}
    for index, op in enumerate(graph.ops):
        if index in step_of:
            for tensor in op.inputs:
                if tensor in touched:
                    touched[tensor] |= 1 << step_of[index]
            for tensor in op.outputs:
                if tensor != ABSENT:
                    touched[tensor], maker[tensor] = 1 << step_of[index], step_of[index]
    kept = set(graph.outputs)
    after = [0] * len(program.steps)
    for place, before in enumerate(program.before):
        for earlier in bits(before):
            after[earlier] |= 1 << place
    most = 0
    for place, before in enumerate(program.before):
        live = 0
        for tensor, steps in touched.items():
            gone = tensor not in kept and steps & ~before == 0
            unborn = tensor in maker and after[place] >> maker[tensor] & 1
            if not gone and not unborn:
                live += _nbytes(graph.tensors[tensor], dtype)
        most = max(most, live)
    return most


def _nbytes(tensor: Tensor, dtype: str | None) -> int:
    own, other = _FLOAT_BYTES.get(tensor.dtype), _FLOAT_BYTES.get(dtype or tensor.dtype)
    return tensor.nbytes if own is None or other is None else tensor.nbytes // own * other
