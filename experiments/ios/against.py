"""The paper's figures beside ours: paper | ours | ratio, in one form for every experiment."""

from __future__ import annotations

__all__ = ["against"]


def against(what: str, paper: float | tuple[float, float], ours: float, how: str) -> str:
    """A line. `paper`: a figure, or the least and the most of a range; `how` ours came to be: measured or simulated."""
    low, high = paper if isinstance(paper, tuple) else (paper, paper)
    said = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    ratio = f"{ours / low:.2f}" if low == high else f"{ours / high:.2f} to {ours / low:.2f}"
    return f"{what}: paper (V100, measured) {said} | ours ({how}) {ours:.2f} | ratio {ratio}"
