"""The result of a planner of two memories."""

from __future__ import annotations

from dataclasses import dataclass

from downset.results.memories import Residence
from downset.results.plans import StoppedBy

__all__ = ["MemoriesFound"]


@dataclass(frozen=True, slots=True)
class MemoriesFound:
    """An order and its residences, without offsets. `order_bound`: no residency of this order costs less; `bound`: no
    order does. `others`: further orders, which cost more, to try where offsets find no room."""

    order: tuple[int, ...]
    residences: tuple[Residence, ...]
    cost: int
    order_bound: int = 0
    bound: int = 0
    states: int = 0
    stopped_by: StoppedBy = ""
    others: tuple[tuple[int, ...], ...] = ()
