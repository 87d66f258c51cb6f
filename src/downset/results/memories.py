"""Plans for fast memory with slow memory behind it: what lies where when, and what is moved."""

from __future__ import annotations

from dataclasses import dataclass

from downset.results.plans import Evidence

__all__ = ["MemoriesPlan", "Move", "Residence"]


@dataclass(frozen=True, slots=True)
class Residence:
    """A storage in fast memory over the positions [start, stop) of the order, at `offset` bytes (None before offsets
    are placed)."""

    storage: int
    start: int
    stop: int
    offset: int | None


@dataclass(frozen=True, slots=True)
class Move:
    """One copy between the memories, done before the operator at `position` of the order (len(order): after the
    last)."""

    storage: int
    position: int
    into_fast: bool
    nbytes: int


@dataclass(frozen=True, slots=True)
class MemoriesPlan:
    """An order, what lies in fast memory when, the moves, and the offsets in both memories.

    An operand of the operator at position p lies in fast memory where a residence of its storage covers p; else the
    operator accesses it in slow memory. A storage is stored once at most; a later residence begins with a load.
    """

    order: tuple[int, ...]
    residences: tuple[Residence, ...]
    """By start, then storage."""
    moves: tuple[Move, ...]
    """By position; stores before loads."""
    slow_offsets: tuple[tuple[int, int], ...]
    """(storage, offset) of every storage that ever lies in slow memory."""
    fast_bytes: int
    """The high-water mark of the residences."""
    slow_bytes: int
    moved_bytes: int
    """The sum of the moves."""
    direct_bytes: int
    """Bytes that operators read and write in slow memory, as often as their kernels do."""
    evidence: Evidence
    """`value`: what moves and direct accesses cost; bytes unless prices were given. `bound` holds for every order."""
    cost_without_offsets: float
    """The cost of the plan before offsets were placed."""
    order_bound: float
    """A cost that no residency of the planned order stays below, offsets aside."""
    storage_of: tuple[int, ...] = ()
    """By tensor of the graph: its storage, or -1."""

    def __repr__(self) -> str:
        traffic = f"{self.moved_bytes:,} B in {len(self.moves)} moves, {self.direct_bytes:,} B accessed directly"
        return f"<MemoriesPlan of {len(self.order)} operators: {traffic}>"
