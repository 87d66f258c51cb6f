"""Memory planning for ExecuTorch: an algorithm that `MemoryPlanningPass` runs in place of its own.

    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.passes import MemoryPlanningPass
    import downset.integrations.executorch

    planning = MemoryPlanningPass(memory_planning_algo=downset.integrations.executorch.algorithm())
    program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))

Needs nothing of ExecuTorch but the tensors' specs that the pass hands over, so this module imports none of it. Written
for ExecuTorch 1.4; what it reads and writes of a spec is listed at `Spec`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError, UsageError
from downset.memory.records import Record, align_up

__all__ = ["Spec", "algorithm", "suite_member"]


class Spec(Protocol):
    """The fields of ExecuTorch's TensorSpec that are read and, the last three, written."""

    allocated_memory: int
    lifetime: Sequence[int | None]
    """First and last node that use the tensor, inclusive."""
    inplace_base: Any
    """Another spec whose bytes this one takes over, or None."""
    mem_id: int | None
    """The memory it goes to, counted from 1; None is 1."""
    mem_offset: int | None
    mem_obj_id: int | None

    def realign(self, new_alignment: int) -> int: ...


Placed = list[tuple[Spec, int, int]]
"""Spec, memory, offset."""


def algorithm(*, method: str = "best", time_limit_s: float = 2.0) -> Callable[..., list[int]]:
    """A value for `MemoryPlanningPass(memory_planning_algo=…)`.

    It returns the bytes of each memory and writes to every spec where it lies. Each memory is one arena, planned by
    `method`; where "best" leaves a gap to the lower bound, the exact search takes over for up to `time_limit_s` a
    memory. Raises UnsupportedError for specs without a lifetime, or in place of a tensor that is not planned with them.
    """

    def downset(
        alignment: int, specs: Iterable[Spec], graph_module: Any, graph_signature: Any, extra_padding: int = 0
    ) -> list[int]:
        del graph_signature
        placed, nbytes = _plan(alignment, specs, graph_module, extra_padding, method, time_limit_s)
        for spec, memory, offset in placed:
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = memory, offset, 0
        return nbytes

    return downset


def suite_member(*, method: str = "best", time_limit_s: float = 2.0) -> Callable[..., Any]:
    """A value for the list of `MemoryPlanningAlgorithmSuite`, which keeps the least of its members: beside ExecuTorch's
    own `greedy` the result is never above it."""

    def downset(
        alignment: int, specs: Iterable[Spec], graph_module: Any, graph_signature: Any, extra_padding: int = 0
    ) -> Any:
        from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

        del graph_signature
        placed, nbytes = _plan(alignment, specs, graph_module, extra_padding, method, time_limit_s)
        return MemoryAlgoResult(
            {spec: SpecAllocResult(memory, 0, offset) for spec, memory, offset in placed}, list(nbytes)
        )

    return downset


def _plan(
    alignment: int, specs: Iterable[Spec], graph_module: Any, extra_padding: int, method: str, time_limit_s: float
) -> tuple[Placed, list[int]]:
    """Where each spec lies, and the bytes of each memory; memory 0 is the constants', not ours."""
    if alignment < 1:
        raise UsageError(f"the alignment {alignment} is not positive")
    specs = list(specs)
    memories: dict[int, list[list[Spec]]] = {}
    for group in _in_place_groups(specs):
        memories.setdefault(group[0].mem_id or 1, []).append(group)
    # What the pass set aside for the bodies of conditions and loops lies below everything else.
    reserved = list(getattr(graph_module, "input_mem_buffer_sizes", None) or ())
    nbytes = [0] * max(2, len(reserved), *(memory + 1 for memory in memories))
    nbytes[: len(reserved)] = reserved
    placed: Placed = []
    for memory, groups in sorted(memories.items()):
        floor = align_up(nbytes[memory], alignment)
        offsets, arena_bytes = _place([_record(i, g, alignment) for i, g in enumerate(groups)], method, time_limit_s)
        placed += [(spec, memory, floor + at) for group, at in zip(groups, offsets, strict=True) for spec in group]
        nbytes[memory] = floor + arena_bytes + extra_padding
    return placed, nbytes


def _in_place_groups(specs: Sequence[Spec]) -> list[list[Spec]]:
    """Specs that share their bytes, each group led by the one that the others take over from."""
    known = {id(spec) for spec in specs}
    groups: dict[int, list[Spec]] = {}
    for spec in specs:
        root = spec
        while (base := getattr(root, "inplace_base", None)) is not None:
            if id(base) not in known:
                raise UnsupportedError(f"{spec!r} is in place of {base!r}, which is not planned in the same memory")
            root = base
            if root is spec:
                raise UnsupportedError(f"{spec!r} is in place of itself")
        groups.setdefault(id(root), [])
        if root is spec:
            groups[id(root)].insert(0, spec)
        else:
            groups[id(root)].append(spec)
    return list(groups.values())


def _record(index: int, group: Sequence[Spec], alignment: int) -> Record:
    """One record for all that share the bytes: it lives while any of them does."""
    firsts, lasts = [], []
    for spec in group:
        first, last = spec.lifetime
        if first is None or last is None:
            raise UnsupportedError(f"{spec!r} has no lifetime; run the algorithm from MemoryPlanningPass")
        firsts.append(first)
        lasts.append(last)
    nbytes = max(spec.realign(alignment) for spec in group)
    return Record(str(index), min(firsts), max(lasts) + 1, nbytes, alignment)


def _place(records: Sequence[Record], method: str, time_limit_s: float) -> tuple[list[int], int]:
    """Offsets by record, and the bytes in all; tensors of no bytes lie at 0."""
    real = [index for index, record in enumerate(records) if record.nbytes]
    arena = plan_arena([records[i] for i in real], method=method, time_limit_s=time_limit_s)
    if method == "best" and not arena.evidence.proven:
        further = plan_arena(arena.records, method="exact", time_limit_s=time_limit_s)
        arena = min(arena, further, key=lambda plan: plan.arena_bytes)
    offsets = [0] * len(records)
    for index, offset in zip(real, arena.offsets, strict=True):
        offsets[index] = offset
    return offsets, arena.arena_bytes
