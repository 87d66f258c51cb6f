"""The fewest bytes of rows of a chain of tensors from which wanted rows can be computed.

A *chain* is a sequence of tensors, each of which an operator makes from rows of the one before. A *row cut* for some
rows of its last tensor is a set of rows, of any tensors of the chain, from which all these can be computed. When no
more rows of the first tensor are made for the wanted rows, a row cut is live. That is all that is used: not how many
rows a step makes, nor the order of the steps.

Source: ours.
Names: a *demand* gives bytes by the number n of wanted rows, n >= 1: the least of some functions slope · n + constant,
    whose slopes are not negative.
Complexity: one step along a chain is linear in the functions, of which there are at most as many as steps before.
Deviations: rows are counted, not told apart, and of an operator's inputs a chain has one. Both make the bytes fewer.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from math import inf
from typing import NamedTuple

from downset.graph.row_form import AxisMap, Interval

__all__ = ["Demand", "Reading", "bytes_of", "clipped", "inner", "inner_rows", "next_demand"]

Demand = tuple[tuple[float, float], ...]


class Reading(NamedTuple):
    """The fewest rows that an operator reads: at least `first`, and `line(n)` for n rows."""

    first: int
    scale: float
    low: float

    def line(self, count: float) -> float:
        return self.scale * count + self.low

    def rows(self, count: float) -> float:
        return max(self.line(count), self.first)


def bytes_of(demand: Demand, rows: float) -> float:
    """The bytes for so many wanted rows, from one on."""
    return min(slope * rows + constant for slope, constant in demand)


def next_demand(demand: Demand, reading: Reading, row_bytes: float, rows: int, *, settled: bool = False) -> Demand:
    """The demand for rows of the next tensor, which has `rows` rows.

    Of n wanted rows, n - u are in the cut and u >= 1 are made later; with `settled` u may be 0. By the line of the
    reading the bytes are concave in u, so that they are least at u = 1 or u = n. By both its bounds they are least
    where these meet, or at u = n. Functions that are nowhere the least are left out."""
    meet = (reading.first - reading.low) / reading.scale if reading.line(1) < reading.first else 1.0
    one_later = max(
        bytes_of(demand, reading.line(1)) - row_bytes, bytes_of(demand, reading.first) - max(meet, 1.0) * row_bytes
    )
    functions = [(row_bytes, one_later)]
    functions += [(slope * reading.scale, slope * reading.low + constant) for slope, constant in demand]
    functions += [(row_bytes, 0.0)] * settled
    kept: list[tuple[float, float]] = []
    least = inf
    for _, at_last, function in sorted((sum(one), one[0] * rows + one[1], one) for one in functions):
        if at_last < least:
            least = at_last
            kept.append(function)
    return tuple(kept)


def inner_rows(how: AxisMap | None, read: Interval, rows: int, result_rows: int) -> Interval:
    """The rows of an operator's result, of `result_rows`, that read only the rows `read` of its input of `rows` rows,
    and whose window no border cuts off. Empty intervals may end before they begin."""
    if how is None:
        return (0, result_rows) if read == (0, rows) else (0, 0)
    start = -((how.low - how.per * read[0]) // how.scale)
    stop = (how.per * read[1] - how.high - 1) // how.scale + 1
    return max(start, 0), min(stop, result_rows)


def inner(how: AxisMap | None, rows: int) -> Reading:
    """The reading of an input of `rows` rows for inner rows of the result."""
    if how is None:
        return Reading(rows, 0.0, rows)
    first = (how.high - how.low) // how.per + 1
    if how.per > 1:
        return Reading(first, first / _most_readers(how), 0.0)
    scale = min(how.scale, first)
    return Reading(first, scale, first - scale)


def _most_readers(how: AxisMap) -> int:
    """The most rows that read one row of the input inside their window."""
    return (how.per - 1 + how.high - how.low) // how.scale + 1


@lru_cache(4096)
def clipped(how: AxisMap | None, rows: int, result_rows: int) -> Reading:
    """The reading of an input of `rows` rows for any rows of the result, of `result_rows`.

    In an ascending sequence, each row reads at least those rows of the input that lie behind the window of the row
    before it. There are fewer of them at a border."""
    if how is None:
        return Reading(rows, 0.0, rows)
    reads = [how((row, row + 1), rows) for row in range(result_rows)]
    first = min(stop - start for start, stop in reads)
    if how.per > 1:
        cut_off = sum(not _is_inside(how, row, rows) for row in range(result_rows))
        return Reading(first, first / (_most_readers(how) + cut_off), 0.0)
    scale = min(how.scale, how.high - how.low + 1)
    more = (min(now[1] - last[1], now[1] - now[0]) for last, now in pairwise(reads))
    return Reading(first, scale, first - scale - sum(max(scale - count, 0) for count in more))


def _is_inside(how: AxisMap, row: int, rows: int) -> bool:
    return (how.scale * row + how.low) // how.per >= 0 and (how.scale * row + how.high) // how.per < rows
