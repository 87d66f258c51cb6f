"""The gap of a value to its lower bound. One that is larger than the bound itself says nothing: screens and pages leave
it out, and JSON has it."""

from __future__ import annotations

__all__ = ["bound_text", "gap_of", "gap_text"]


def gap_of(value: float, bound: float) -> float | None:
    """(value - bound) / bound; None where the bound is 0 and the value is not."""
    if bound <= 0:
        return 0.0 if value <= bound else None
    return value / bound - 1


def gap_text(gap: float | None) -> str:
    """The gap for people: "4.1%"; "" where it is above 100 % or not known."""
    return "" if gap is None or gap > 1 else f"{gap:.1%}"


def bound_text(bound: str, gap: float | None) -> str:
    """ "bound 12 s, gap 4.1%"; the bound alone where the gap is left out."""
    return f"bound {bound}, gap {text}" if (text := gap_text(gap)) else f"bound {bound}"
