"""Tie rules by name: no single rule reproduces both the paper's tables and TensorFlow Lite's own tests.

`paper`: the figures of the memory-management paper. `tflite`: the results of LiteRT's unit tests. Where both sources
agree a planner has one rule and takes either name.
"""

from __future__ import annotations

from typing import Literal, get_args

from downset.methods import check_choice

__all__ = ["TIES", "TiesName", "check_ties"]

TiesName = Literal["tflite", "paper"]
TIES: tuple[TiesName, ...] = get_args(TiesName)


def check_ties(ties: TiesName) -> TiesName:
    """The rule's name itself; raises UsageError that lists the names."""
    check_choice("tie rule", ties, TIES)
    return ties
