"""The result of a fit to two memories, from the file that was made and what was measured of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from downset.errors import DownsetError
from downset.fitting.memories_options import TwoMemoriesOptions
from downset.graph.core import ABSENT, Graph
from downset.graph.cost import macs
from downset.memories.plan import plan_memories
from downset.memories.program import MovedProgram
from downset.messages import Message, Setting
from downset.results.comparisons import Comparison
from downset.results.memories import MemoriesPlan
from downset.results.memories_fit import CopySpan, MemoriesFit, MovedCopy, OtherPlan
from downset.results.two_memories import TwoMemories
from downset.runtimes.versions import versions_of_target
from downset.text import format_bytes

__all__ = ["MovedFile", "other_plans", "result_of"]

_OTHERS = ("file_order", "least_peak", "belady")
_MUCH = 3
"""The share of fast memory, as one part of so many, from which on the persistent part is told as one that tensors
lack, in strips, too."""
_OTHERS_S = 0.1
"""The share of the time limit that each other plan may take."""


@dataclass(frozen=True, slots=True)
class MovedFile:
    """A file with moves, its network and its plan. `tail_bytes`: its persistent part, measured. `run_path`: the file
    that is run here, at the distance `ran_at` where its own is too long for a run."""

    path: Path
    graph: Graph
    plan: MemoriesPlan
    program: MovedProgram
    memories: TwoMemories
    tail_bytes: int
    run_path: Path
    ran_at: int | None


def other_plans(options: TwoMemoriesOptions, graph: Graph, memories: TwoMemories) -> tuple[OtherPlan, ...]:
    """The bytes of plans of other methods for the same memories. A method that has no plan is left out."""
    rows = []
    for method in _OTHERS:
        try:
            plan = plan_memories(
                graph,
                fast=memories.fast_capacity,
                slow=memories.slow_capacity,
                memory="tflm",
                method=method,
                time_limit_s=_OTHERS_S * options.time_limit_s,
                work_limit=options.work_limit,
                seed=options.seed,
            )
        except DownsetError:
            continue
        rows.append(OtherPlan(method, plan.moved_bytes, plan.direct_bytes))
    return tuple(rows)


def result_of(
    options: TwoMemoriesOptions,
    moved: MovedFile,
    outputs: Comparison,
    others: Sequence[OtherPlan],
    *,
    original: Graph,
) -> MemoriesFit:
    """The result. The file is written already where that was asked for."""
    notes: list[str] = []
    if options.kernels is None:
        notes.append(
            "room is left for the scratch of the reference kernels: name those of the firmware, as others ask for more"
        )
    kept = moved.memories.fast_persistent_bytes
    in_strips = len(moved.graph.ops) > len(original.ops)
    if kept and moved.plan.evidence.value and (_MUCH * kept > moved.memories.fast_bytes or not in_strips):
        notes.append(
            Message(
                f"TFLite Micro's persistent part takes {format_bytes(kept)} B of fast memory; ",
                Setting("persistent", "slow"),
                " leaves them to tensors, and strips take no more of it",
            )
        )
    return MemoriesFit(
        model=str(options.model),
        graph=moved.graph,
        plan=moved.plan,
        memories=moved.memories,
        spans=spans_of(moved.graph, moved.program),
        moves=moves_of(moved.graph, moved.program),
        others=tuple(others),
        outputs=outputs,
        tail_bytes=moved.tail_bytes,
        kernels=moved.memories.kernels,
        stated_kernels=options.kernels is not None,
        output_path=None if options.output is None else str(options.output),
        ran_at=moved.ran_at,
        prices=dict(options.prices or {}),
        cost=float(moved.plan.evidence.value) if options.prices else None,
        original_operators=len(original.ops) if in_strips else 0,
        extra_macs=macs(moved.graph) / max(macs(original), 1) - 1,
        notes=tuple(notes),
        disk_bytes=(Path(options.model).stat().st_size, moved.path.stat().st_size),
        time_limit_s=options.time_limit_s,
        work_limit=options.work_limit,
        seed=options.seed,
        versions=versions_of_target("tflm"),
    )


def spans_of(graph: Graph, program: MovedProgram) -> tuple[CopySpan, ...]:
    """The copies with the steps of the file in which each is needed."""
    first: dict[int, int] = {number: 0 for number in program.inputs if number != ABSENT}
    last: dict[int, int] = dict(first)
    for step, one in enumerate(program.steps):
        for number in one.moved or tuple(one.copies.values()):
            first.setdefault(number, step)
            last[number] = step + 1
    for number in program.outputs:
        if number != ABSENT:
            last[number] = len(program.steps)
    return tuple(
        CopySpan(
            graph.tensors[copy.tensor].name,
            copy.fast,
            copy.offset,
            graph.tensors[copy.tensor].nbytes,
            first[number],
            last[number],
        )
        for number, copy in enumerate(program.copies)
        if number in first
    )


def moves_of(graph: Graph, program: MovedProgram) -> tuple[MovedCopy, ...]:
    moves = []
    for step, one in enumerate(program.steps):
        if one.moved is not None:
            source, target = (program.copies[number] for number in one.moved)
            meta = graph.tensors[source.tensor]
            moves.append(MovedCopy(meta.name, step, target.fast, meta.nbytes, source.offset, target.offset))
    return tuple(moves)
