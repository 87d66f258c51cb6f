"""The gap of a value to its lower bound. One that is larger than the bound itself says nothing: screens and pages leave
it out, and JSON has it."""

from __future__ import annotations

__all__ = ["gap_cell", "gap_of", "told_bound"]


def gap_of(value: float, bound: float) -> float | None:
    """(value - bound) / bound; None where the bound is 0 and the value is not."""
    if bound <= 0:
        return 0.0 if value <= bound else None
    return value / bound - 1


def gap_cell(value: float, bound: float) -> str:
    """The gap as a cell of a table; empty where it is above 100 % or not known."""
    gap = gap_of(value, bound)
    return "" if gap is None or gap > 1 else f"{gap:.1%}"


def told_bound(bound_text: str, value: float, bound: float) -> str:
    """ "bound 12 s, gap 4.1%"; the bound alone where the gap is left out."""
    cell = gap_cell(value, bound)
    return f"bound {bound_text}, gap {cell}" if cell else f"bound {bound_text}"
