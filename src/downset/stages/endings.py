"""Endings: the stages that may come last in a downset.

A subset S' of a downset S is an ending if no edge leads from S' to S − S'. Its groups are its connected components.
IOS's published code enumerates fewer endings than its paper defines: only those in which every group is one operator
with all its successors inside S (`single_root`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from downset import native
from downset.budget import Clock
from downset.errors import LimitReached, UsageError
from downset.messages import Setting
from downset.methods import check_choice

if TYPE_CHECKING:
    from downset import _native

__all__ = ["ENDINGS", "EndingsName", "stage_lattice"]

EndingsName = Literal["all", "ios"]
ENDINGS: tuple[EndingsName, ...] = get_args(EndingsName)
_MOST_PAIRS = 6_000_000
"""The most (downset, ending) pairs, about twenty bytes each. The largest block of the paper's networks has 3.6
million."""


def stage_lattice(
    predecessors: Sequence[int],
    *,
    clock: Clock,
    max_ops: int = 64,
    max_groups: int = 64,
    endings: EndingsName = "all",
) -> _native.StageLattice:
    """All downsets and endings of at most 64 units (native/stages/lattice.hpp).

    `predecessors[u]`: mask of the units that unit u waits for. `max_ops`, `max_groups`: the most units in a group and
    groups in an ending. Raises LimitReached where the clock or _MOST_PAIRS ends the enumeration, UsageError for more
    than 64 units, a limit below one, or an unknown choice of endings.
    """
    if max_ops < 1 or max_groups < 1:
        raise UsageError(
            Setting("max_ops"),
            " and ",
            Setting("max_groups"),
            f" must be at least 1; given {max_ops} and {max_groups}",
        )
    check_choice("endings", endings, ENDINGS)
    if len(predecessors) > 64:
        raise UsageError(f"{len(predecessors)} units in one block; at most 64 can be searched: split it")
    seconds, pairs = clock.native(_MOST_PAIRS)
    lattice = native.compiled.StageLattice(
        predecessors, min(max_ops, 64), min(max_groups, 64), endings == "ios", seconds, pairs
    )
    clock.count(lattice.pairs())
    if not lattice.complete():
        raise LimitReached(
            f"the endings of {len(predecessors)} units could not be enumerated within {clock.budget} and "
            f"{_MOST_PAIRS:,} pairs"
        )
    return lattice
