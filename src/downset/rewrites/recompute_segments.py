"""Divides the operators that may run again into segments: a dynamic program over cut points.

Source: Chen et al., arXiv 1604.06174, keep the tensors at the borders of segments and recompute each segment when the
    backward pass reaches it; Feng and Huang, arXiv 1808.00079, choose borders by dynamic programming over true sizes.
Names: a cut point is a position at which no more bytes cross than at its neighbours. `kept` are the bytes of all
    borders before a segment; `held` is the largest sum of these and of a segment's own results.
Complexity: O(parts * cuts^2), with at most `_MOST_CUTS` cut points and `_MOST_PARTS` parts.
Deviations: of the divisions of a prefix into equally many segments only the one of least `held` is continued, so the
    result need not be the least of all; the caller prices what is proposed. A tensor that crosses several borders is
    counted at the first.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

__all__ = ["divisions"]

_MOST_CUTS = 160
_MOST_PARTS = 40


def divisions(
    nbytes: Sequence[int], crossing: Sequence[frozenset[int]], operators: Sequence[int], stored: Collection[int]
) -> list[tuple[int, ...]]:
    """The borders of the best division into 2, 3, … segments that was found, as positions in `operators`.

    crossing: by position, the operators whose results are read there or later. stored: the operators whose results the
    backward pass reads. A division into more segments is there only if it holds less than each into fewer.
    """
    cuts = _cut_points(nbytes, crossing)
    ends = [*cuts, len(operators)]
    total = [0, *accumulate(nbytes[v] if v in stored else 0 for v in operators)]
    rows = [[0, *(sum(nbytes[v] for v in crossing[cut]) for cut in cuts)]]
    rows += [[sum(nbytes[v] for v in crossing[other] - crossing[cut]) for other in (0, *cuts)] for cut in cuts]
    # best[j]: (held, kept at its end, borders) of the division of the operators before ends[j] into `parts` segments
    best: list[tuple[int, int, tuple[int, ...]]] = [
        (total[end], rows[0][j + 1] if j < len(cuts) else 0, ()) for j, end in enumerate(ends)
    ]
    least = best[-1][0]
    borders_of: list[tuple[int, ...]] = []
    changed: Sequence[int] = range(len(ends))  # what the others lead to is known from the round before
    for _ in range(1, min(_MOST_PARTS, len(ends))):
        better = best[:]
        for i in changed:
            held, kept, borders = best[i]
            for j in range(i + 1, len(ends)):
                inside = total[ends[j]] - total[ends[i]]
                most = held if held > kept + inside else kept + inside
                if most > better[j][0]:
                    continue
                after = kept + (rows[i + 1][j + 1] if j < len(cuts) else 0)
                if (most, after) < better[j][:2]:
                    better[j] = most, after, (*borders, ends[i])
        changed = [j for j, of in enumerate(better) if of is not best[j]]
        if not changed:
            break
        best = better
        if best[-1][0] < least:
            least = best[-1][0]
            borders_of.append(best[-1][2])
    return borders_of


def _cut_points(nbytes: Sequence[int], crossing: Sequence[frozenset[int]]) -> list[int]:
    """The positions at which fewest bytes cross among their neighbours; where there are too many, every second or third
    of those with the fewest."""
    weights = [sum(nbytes[v] for v in crossed) for crossed in crossing]
    cuts = [
        position
        for position in range(1, len(weights))
        if weights[position]
        and weights[position] <= weights[position - 1]
        and weights[position] < (weights[position + 1] if position + 1 < len(weights) else weights[position - 1])
    ]
    if len(cuts) > _MOST_CUTS:
        most = sorted(weights[cut] for cut in cuts)[_MOST_CUTS - 1]
        cuts = [cut for cut in cuts if weights[cut] <= most]
    return cuts[:: -(-len(cuts) // _MOST_CUTS) or 1]
