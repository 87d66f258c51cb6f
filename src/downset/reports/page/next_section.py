"""The section of a page on what a user can do next."""

from __future__ import annotations

from collections.abc import Sequence

from downset.reports.page.elements import Facts, Section
from downset.results.fit import NextStep

__all__ = ["next_section"]


def next_section(steps: Sequence[NextStep]) -> Section:
    """The steps as they are ranked."""
    if not steps:
        return Section("What could be done next", (Facts(("Nothing is known that would gain anything.",)),))
    return Section("What could be done next", (Facts(tuple(step.text for step in steps), ranked=True),))
