"""The figures of IOS's experiments next to ours: speed-ups, where they were measured, and statements of order."""

from __future__ import annotations

from functools import partial

from experiments.frame import line_beside, printed

__all__ = ["BOTH_OVER_SEQUENTIAL", "RTX_2080TI", "SPEEDUPS", "V100", "against", "agreement"]

V100 = "V100, measured"
RTX_2080TI = "RTX 2080Ti, measured"
SPEEDUPS = printed("ios_speedups")
BOTH_OVER_SEQUENTIAL = SPEEDUPS.figure(of="Figure 14")
"""IOS-Both over sequential on the four networks at batch 1. Of Figure 6, the same on a V100, the text has orderings and
no figure."""
against = partial(line_beside, where=V100)
"""A figure of the paper, which is of a V100 unless `where` says otherwise, beside ours."""


def agreement(statement: str, ours: bool | None, how: str) -> str:
    """A line for an ordering. `ours`: whether ours agrees, None where ours cannot tell."""
    verdict = {True: "agrees", False: "does not agree", None: "cannot tell"}[ours]
    return f"paper: {statement} | ours ({how}) {verdict}"
