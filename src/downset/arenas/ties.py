"""Tie rules by name: no single rule reproduces both the paper's tables and TensorFlow Lite's own tests.

`paper`: the figures of the memory-management paper. `tflite`: the results of LiteRT's unit tests. Where both sources
agree a planner has one rule and takes either name.
"""

from __future__ import annotations

from downset.errors import UsageError

__all__ = ["TIES", "check_ties"]

TIES = ("tflite", "paper")


def check_ties(ties: str) -> str:
    """The rule's name itself; raises UsageError that lists the names."""
    if ties not in TIES:
        raise UsageError(f"unknown tie rule {ties!r}; choose one of {', '.join(TIES)}")
    return ties
