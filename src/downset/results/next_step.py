"""One step that a user can take next: documents of every family list such steps."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["NextStep"]


@dataclass(frozen=True, slots=True)
class NextStep:
    """Something that a user can do next, with its numbers. `gained_bytes` and `gained_s`: the most memory or time that
    it saves; None where it saves none, or that is not known. `suffices`: whether the network then fits the memory limit
    that was given."""

    text: str
    gained_bytes: int | None = None
    gained_s: float | None = None
    suffices: bool = False
