"""The paper's figures beside ours: paper | ours | ratio, in one form for every experiment."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.frame import printed

__all__ = ["BOTH_OVER_SEQUENTIAL", "NO_FIGURE", "RTX_2080TI", "SPEEDUPS", "V100", "against", "agreement"]

NO_FIGURE = "no figure in the paper's text"
V100 = "V100, measured"
RTX_2080TI = "RTX 2080Ti, measured"
SPEEDUPS = printed("ios_speedups")
BOTH_OVER_SEQUENTIAL = SPEEDUPS.figure(of="Figure 14")
"""IOS-Both over sequential on the four networks at batch 1. Of Figure 6, the same on a V100, the text has orderings and
no figure."""


def against(what: str, paper: float | Sequence[float] | None, ours: float, how: str, *, where: str = V100) -> str:
    """A line. `paper`: a figure, or the least and the most of a range, or None where it has none; `how` ours came to
    be: measured or simulated; `where` the paper's was taken."""
    figure = f"{ours:,}" if isinstance(ours, int) else f"{ours:.2f}"
    if paper is None:
        return f"{what}: {NO_FIGURE} | ours ({how}) {figure} | no ratio"
    low, high = (paper, paper) if isinstance(paper, (int, float)) else paper
    said = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    ratio = f"{ours / low:.2f}" if low == high else f"{ours / high:.2f} to {ours / low:.2f}"
    return f"{what}: paper ({where}) {said} | ours ({how}) {figure} | ratio {ratio}"


def agreement(statement: str, ours: bool | None, how: str) -> str:
    """A line for an ordering. `ours`: whether ours agrees, None where ours cannot tell."""
    verdict = {True: "agrees", False: "does not agree", None: "cannot tell"}[ours]
    return f"paper: {statement} | ours ({how}) {verdict}"
