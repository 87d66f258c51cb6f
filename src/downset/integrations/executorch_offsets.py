"""Places the tensors of an ExecuTorch graph: specs that share bytes are grouped, and each group is a record.

Reads and writes only the fields of ExecuTorch's TensorSpec that `Spec` lists, and imports nothing of ExecuTorch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from downset.arenas.plan import plan_arena
from downset.errors import UnsupportedError, UsageError
from downset.memory.records import Record, align_up

__all__ = ["PlacementSettings", "Spec", "arena_of", "plan_specs"]


class Spec(Protocol):
    """The fields of ExecuTorch's TensorSpec that are read. The last three are also written."""

    allocated_memory: int
    lifetime: Sequence[int | None]
    """The first and the last node that use the tensor, inclusive."""
    storage_base: Any
    """The spec inside whose bytes this one lies, or None. ExecuTorch 1.4 calls it `inplace_base`."""
    storage_base_offset: int
    """Bytes from the start of that spec. ExecuTorch 1.4 does not have it, and it is 0 there."""
    mem_id: int | None
    """The memory of the tensor, counted from 1; None means 1."""
    mem_offset: int | None
    mem_obj_id: int | None

    def realign(self, new_alignment: int) -> int: ...


@dataclass(frozen=True, slots=True)
class PlacementSettings:
    """The method by which specs are placed, and its limit of time for each memory."""

    method: str = "best"
    time_limit_s: float = 2.0


Placed = list[tuple[Spec, int, int]]
"""(spec, memory, offset)."""


def plan_specs(
    alignment: int, specs: Iterable[Spec], graph_module: Any, extra_padding: int, settings: PlacementSettings
) -> tuple[Placed, list[int]]:
    """The place of each spec, and the bytes of each memory. Memory 0 is for constants and is not planned here."""
    if alignment < 1:
        raise UsageError(f"the alignment {alignment} is not positive")
    groups = _shared_bytes(list(specs))
    # The bytes that the pass reserved for the bodies of conditions and loops lie below everything else.
    reserved = list(getattr(graph_module, "input_mem_buffer_sizes", None) or ())
    memories: dict[int, list[_Group]] = {}
    for group in groups:
        memories.setdefault(group.mem_id or 1, []).append(group)
    return _in_arenas(alignment, memories, reserved, extra_padding, settings)


def arena_of(records: Sequence[Record], settings: PlacementSettings) -> tuple[list[int], int]:
    """The offset of each record, and the bytes of the arena. Tensors of 0 bytes lie at 0."""
    real = [index for index, record in enumerate(records) if record.nbytes]
    arena = plan_arena([records[i] for i in real], method=settings.method, time_limit_s=settings.time_limit_s)
    if settings.method == "best" and not arena.evidence.proven:
        further = plan_arena(arena.records, method="exact", time_limit_s=settings.time_limit_s)
        arena = min(arena, further, key=lambda plan: plan.arena_bytes)
    offsets = [0] * len(records)
    for index, offset in zip(real, arena.offsets, strict=True):
        offsets[index] = offset
    return offsets, arena.arena_bytes


@dataclass(slots=True)
class _Group:
    """Specs that share one block of bytes, and the offset of each inside it."""

    mem_id: int | None
    members: list[tuple[Spec, int]]

    def record(self, index: int, alignment: int) -> Record:
        """One record for all specs; it lives while any of them does."""
        firsts, lasts = [], []
        for spec, _ in self.members:
            first, last = spec.lifetime
            if first is None or last is None:
                raise UnsupportedError(f"{spec!r} has no lifetime; run the algorithm from MemoryPlanningPass")
            firsts.append(first)
            lasts.append(last)
        nbytes = max(inside + spec.realign(alignment) for spec, inside in self.members)
        for spec, inside in self.members:
            if inside % alignment:
                raise UnsupportedError(
                    f"{spec!r} lies {inside} bytes inside another, against the alignment {alignment}"
                )
        return Record(str(index), min(firsts), max(lasts) + 1, align_up(nbytes, alignment), alignment)


def _shared_bytes(specs: Sequence[Spec]) -> list[_Group]:
    """The specs in groups of shared bytes. The first of each group is the spec in which the others lie."""
    spec_ids = {id(spec) for spec in specs}
    groups: dict[int, _Group] = {}
    for spec in specs:
        root, inside = spec, 0
        while (base := _base_of(root)) is not None:
            if id(base) not in spec_ids:
                raise UnsupportedError(f"{spec!r} is in place of {base!r}, which is not planned in the same memory")
            inside += getattr(root, "storage_base_offset", 0)
            root = base
            if root is spec:
                raise UnsupportedError(f"{spec!r} is in place of itself")
        groups.setdefault(id(root), _Group(root.mem_id, [])).members.append((spec, inside))
    return list(groups.values())


def _base_of(spec: Spec) -> Any:
    """The spec in which this one lies. `inplace_base` is read last: with an offset it raises in ExecuTorch 1.5."""
    return spec.storage_base if hasattr(spec, "storage_base") else getattr(spec, "inplace_base", None)


def _in_arenas(
    alignment: int,
    memories: dict[int, list[_Group]],
    reserved: Sequence[int],
    extra_padding: int,
    settings: PlacementSettings,
) -> tuple[Placed, list[int]]:
    """Place each memory as one arena above the bytes reserved there."""
    nbytes = [0] * max(2, len(reserved), *(memory + 1 for memory in memories))
    nbytes[: len(reserved)] = reserved
    placed: Placed = []
    for memory, groups in sorted(memories.items()):
        floor = align_up(nbytes[memory], alignment)
        offsets, arena_bytes = arena_of([g.record(i, alignment) for i, g in enumerate(groups)], settings)
        placed += _at(groups, [memory] * len(groups), [floor + offset for offset in offsets])
        nbytes[memory] = floor + arena_bytes + extra_padding
    return placed, nbytes


def _at(groups: Sequence[_Group], memories: Sequence[int], offsets: Sequence[int]) -> Placed:
    return [
        (spec, memory, offset + inside)
        for group, memory, offset in zip(groups, memories, offsets, strict=True)
        for spec, inside in group.members
    ]
