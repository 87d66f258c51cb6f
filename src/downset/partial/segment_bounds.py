"""Lower bounds on the peaks of segments in strips.

*The space*: a segment has one whole tensor before it, its input, and leaves one whole, its result. A step makes some
consecutive rows of one operator from the consecutive rows that these need of its inputs. Steps come in any order.
Strips have any heights, and rows are kept, dropped or made again, any number of times. The input is live as a whole
until it is read last; before that its rows may be copied, and then count beside it. Of other tensors a row that is live
counts once, however many pieces hold it. So joins, pads and alignments count nothing, and what is made in place of them
is in the space.

Take a chain (`row_cuts`) from the segment's input to its result, and a tensor T of it. Three steps of any plan in the
space each need bytes:

1. *Before the first rows of W*, a later tensor of the chain: the last step that makes rows of T for these. The rows
   that it reads are live, and a row cut with a row of T in it. So is the input, or else a row cut for all rows of W,
   since none of them were made before.
2. *Before the end*: the last step that makes rows of T for the result. The rows that it reads are live, and a row cut
   for all rows of the result, with a row of T in it.
3. *While the input is live*: let m rows of T be made after the last step that reads the input for the chain. At that
   step the input is live, and row cuts for these m rows, and for the result without these m rows. If not all rows of T
   are among the m, then at the last step up to there that makes others, the input is live, the rows that it reads, a
   row of T, and the row cut for the result without the m rows. In that row cut a row of T counts at any price up to its
   bytes, so that m rows are worth at most m times the price. The bound is the least over m of the larger of both.

For 1. and 2. the input is a tensor T, too, made by the steps that read it as a whole: they copy rows of it, or make
rows of the next tensor. Rows are *inner* if no border cuts off a window of their cone. The wanted rows are the inner
ones, or all; those at borders read fewer.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, inf
from typing import Literal, NamedTuple

from downset.graph.core import ABSENT
from downset.graph.row_form import AxisMap, Interval, RowForm
from downset.memory.overlaps import geometry
from downset.memory.storages import is_view_kind
from downset.partial.memory_form import row_bits, takes_over
from downset.partial.price import Pricing
from downset.partial.row_cuts import Demand, Reading, bytes_of, clipped, inner, inner_rows, next_demand
from downset.partial.segments import Segment

__all__ = ["SegmentBounds"]

_FARTHEST = 96
"""The most steps of a chain between two tensors that are looked at together."""
_Wanted = Literal["inner", "all"]
_Base = Literal["made", "given", "settled"]
"""How rows of the first tensor of a row cut come: its operator makes one of them at the step; the step reads the input
as a whole for one of them or of the next tensor; or none need be made later."""


class _ChainLink(NamedTuple):
    """How a tensor is made: its operator, the input that the chain follows (-1: none), and the longest chain to it."""

    maker: int
    read: int
    how: AxisMap | None
    length: int


@dataclass(frozen=True, slots=True)
class _Ends:
    """A segment. `stays`: its input is live to its end. `chain`: from the input to the result. `needed`: by tensor of
    the chain, whether all its rows are needed."""

    input_bytes: int
    stays: bool
    chain: tuple[int, ...]
    needed: tuple[bool, ...]


class SegmentBounds:
    """Lower bounds of the peaks of segments of one network."""

    def __init__(self, form: RowForm, pricing: Pricing) -> None:
        self._form, self._pricing = form, pricing
        self._links: dict[int, _ChainLink] = {}
        for index, op in enumerate(form.ops):
            read, how, length = -1, None, 0
            for item in op.inputs:
                before = self._links[item.tensor].length if item.tensor in self._links else 0
                if before >= length:
                    read, how, length = item.tensor, item.map, before + 1
            for tensor in op.outputs:
                self._links[tensor] = _ChainLink(index, read, how, length)
        self._demands: dict[tuple[int, int, _Wanted, _Base], Demand] = {}
        self._inner: dict[tuple[int, int, _Base], Interval] = {}
        self._priced: dict[tuple[int, int], list[tuple[float, float]]] = {}
        self._first_cuts: dict[tuple[int, int, _Base], list[tuple[_Wanted, int, float]]] = {}
        self._reads: dict[tuple[int, int, _Wanted], float] = {}
        self._over: dict[int, bool] = {}
        graph, model = pricing.graph, pricing.model
        views = [op for op in graph.ops if is_view_kind(op, model)]
        self._views = frozenset(tensor for op in views for tensor in (op.inputs[0], *op.outputs))

    def whole_bytes(self, tensor: int) -> int:
        """Bytes of a whole tensor that an operator makes."""
        pricing = self._pricing
        return pricing.piece_bytes(tensor, (0, self._form.rows[tensor])) if pricing.counts(tensor) else 0

    def ends_bytes(self, segment: Segment) -> int:
        """Bytes that are live before the segment or after it: its whole input or result, and what lives across."""
        pricing = self._pricing
        nbytes, beside = pricing.inputs(segment)
        stay = sum(size for size, tensor in zip(nbytes, segment.inputs, strict=True) if pricing.stays(tensor, segment))
        return beside + max(sum(nbytes), stay + sum(map(self.whole_bytes, segment.results)))

    def least(self, segment: Segment, enough: float = inf) -> int:
        """Bytes that every way to compute a segment needs, or at least `enough` of them."""
        nbytes, beside = self._pricing.inputs(segment)
        best, chain = self.ends_bytes(segment), self._chain(segment)
        if not chain:
            return best
        stays = not sum(nbytes) or self._pricing.stays(chain[0], segment)
        ends = _Ends(sum(nbytes), stays, chain, self._needed(chain))
        for place in range(len(chain)):
            if best >= enough:
                break
            best = max(best, beside + self._around(ends, place, best - beside))
        return best

    def _around(self, ends: _Ends, place: int, floor: int) -> int:
        """Bytes of the three steps that make rows of one tensor of the chain; at least `floor`."""
        if self._may_lie_over_input(ends, max(place, 1)):
            return floor
        best = float(floor)
        for goal in range(max(place, 1) + 1, min(len(ends.chain), place + _FARTHEST)):
            if ends.needed[goal]:
                best = max(best, self._before_first(ends, place, goal, best))
        if place + _FARTHEST >= len(ends.chain):
            best = max(best, self._before_end(ends, place))
            if 0 < place < _FARTHEST and ends.needed[place] and not ends.stays:
                best = max(best, self._while_input_lives(ends, place, best))
        return ceil(best * (1 - 1e-12) - 1e-6)

    def _may_lie_over_input(self, ends: _Ends, place: int) -> bool:
        """Whether the operator of this tensor reads the segment's input, and may make its result over it."""
        maker = self._links[ends.chain[place]].maker
        reads_input = any(item.tensor == ends.chain[0] for item in self._form.ops[maker].inputs)
        return reads_input and self._overlaps(ends.chain[place])

    def _chain(self, segment: Segment) -> tuple[int, ...]:
        """The longest chain from the input to the result; none where there is none."""
        if len(segment.results) != 1 or len(segment.inputs) != 1:
            return ()
        tensors = [segment.results[0]]
        while tensors[-1] in self._links and self._links[tensors[-1]].maker >= segment.first:
            tensors.append(self._links[tensors[-1]].read)
        return tuple(reversed(tensors)) if tensors[-1] == segment.inputs[0] else ()

    def _needed(self, chain: tuple[int, ...]) -> tuple[bool, ...]:
        needed = [True]
        for tensor in chain[:0:-1]:
            _, read, how, _ = self._links[tensor]
            rows, result_rows = self._form.rows[read], self._form.rows[tensor]
            every = how is None or (how.has_no_gaps and how((0, result_rows), rows) == (0, rows))
            needed.append(needed[-1] and every)
        return tuple(reversed(needed))

    def _before_first(self, ends: _Ends, place: int, goal: int, floor: float) -> float:
        """1. of the docstring; `floor` where that is more."""
        base, last, best = ends.chain[place], ends.chain[goal], floor
        for wanted, count, cut in self._cuts(base, last, "made" if place else "given"):
            with_input = ends.input_bytes + cut + (self._read_bytes(ends, place, wanted) if place else 0)
            if with_input <= best:
                continue
            if place and not ends.stays:
                without = cut + self._read_bytes(ends, place, wanted, copied=True)
                if goal < _FARTHEST:
                    every = self._demand(ends.chain[0], self._links[last].read, "all", "settled")
                    without = max(without, bytes_of(every, self._reading(last, "all").rows(count)))
                with_input = min(with_input, without)
            best = max(best, with_input)
        return best

    def _cuts(self, base: int, goal: int, kind: _Base) -> list[tuple[_Wanted, int, float]]:
        """By kind of wanted rows of `goal`: their number, and the bytes of the row cut for one of them."""
        key = base, goal, kind
        if key not in self._first_cuts:
            read = self._links[goal].read
            self._first_cuts[key] = [
                (wanted, count, bytes_of(self._demand(base, read, wanted, kind), self._reading(goal, wanted).rows(1)))
                for wanted, count in self._wanted(base, goal, kind)
            ]
        return self._first_cuts[key]

    def _before_end(self, ends: _Ends, place: int) -> float:
        """2. of the docstring."""
        base, result = ends.chain[place], ends.chain[-1]
        kind: _Base = "made" if place else "given"
        live = ends.input_bytes if ends.stays or not place else 0
        return max(
            live
            + bytes_of(self._demand(base, result, wanted, kind), count)
            + (self._read_bytes(ends, place, wanted, copied=not ends.stays) if place else 0)
            for wanted, count in self._wanted(base, result, kind)
        )

    def _while_input_lives(self, ends: _Ends, place: int, floor: float) -> float:
        """3. of the docstring; `floor` where that is more."""
        tensor = ends.chain[place]
        start, stop = self._inner_of(tensor, tensor, "made")
        if start >= stop or self._overlaps(tensor) or self._may_lie_over_input(ends, 1):
            return floor
        before = self._demand(ends.chain[0], ends.chain[place - 1], "all", "given")
        reading, best = self._reading(tensor, "inner"), floor
        for price, result_bytes in self._prices(tensor, ends.chain[-1]):
            step = self._read_bytes(ends, place, "inner") + self._row_bytes(tensor) - price
            outer = price * (self._form.rows[tensor] - (stop - start))
            most = ends.input_bytes + result_bytes - outer
            if most + step > best:
                best = max(best, most - _most_saved(before, reading, step, price, stop - start))
        return best

    def _prices(self, base: int, result: int) -> list[tuple[float, float]]:
        """(price of a row of the tensor `base`, bytes of the row cut for the result at that price)."""
        if (base, result) not in self._priced:
            chain = [result]
            while chain[-1] != base:
                chain.append(self._links[chain[-1]].read)
            chain.reverse()
            form = self._form
            each = [form.rows[t] * self._row_bytes(t) / form.rows[base] for t in chain if form.rows[t] > 1]
            listed = []
            for price in sorted({min((self._row_bytes(base), *some)) for some in (each, each[: len(each) // 2])}):
                demand: Demand = ((price, 0.0),)
                for tensor in chain[1:]:
                    reading = self._reading(tensor, "all")
                    demand = next_demand(demand, reading, self._row_bytes(tensor), form.rows[tensor])
                listed.append((price, bytes_of(demand, form.rows[result])))
            self._priced[base, result] = listed
        return self._priced[base, result]

    def _wanted(self, base: int, goal: int, kind: _Base) -> Iterator[tuple[_Wanted, int]]:
        """The kinds of wanted rows, with their number."""
        start, stop = self._inner_of(base, goal, kind)
        if start < stop:
            yield "inner", stop - start
        yield "all", self._form.rows[goal]

    def _demand(self, base: int, tensor: int, wanted: _Wanted, kind: _Base) -> Demand:
        """The demand for rows of a tensor of the chain, with rows of `base` as the first of the row cut."""
        key = base, tensor, wanted, kind
        if key not in self._demands:
            if tensor == base:
                self._demands[key] = ((self._row_bytes(base), 0.0),)
            else:
                read = self._links[tensor].read
                settled = kind == "settled" or (kind == "given" and read == base)
                before, reading = self._demand(base, read, wanted, kind), self._reading(tensor, wanted)
                rows = self._form.rows[tensor]
                self._demands[key] = next_demand(before, reading, self._row_bytes(tensor), rows, settled=settled)
        return self._demands[key]

    def _reading(self, tensor: int, wanted: _Wanted) -> Reading:
        _, read, how, _ = self._links[tensor]
        rows = self._form.rows
        return inner(how, rows[read]) if wanted == "inner" else clipped(how, rows[read], rows[tensor])

    def _inner_of(self, base: int, tensor: int, kind: _Base) -> Interval:
        """The inner rows of a tensor: down to what is read to make `base`, or down to `base` if it is given."""
        if tensor == base and kind == "given":
            return 0, self._form.rows[tensor]
        key = base, tensor, kind
        if key not in self._inner:
            _, read, how, _ = self._links[tensor]
            rows = self._form.rows
            allowed = (0, rows[read]) if tensor == base else self._inner_of(base, read, kind)
            some = allowed[0] < allowed[1]
            self._inner[key] = inner_rows(how, allowed, rows[read], rows[tensor]) if some else (0, 0)
        return self._inner[key]

    def _read_bytes(self, ends: _Ends, place: int, wanted: _Wanted, *, copied: bool = False) -> float:
        """Bytes of the rows that are read to make one row of a tensor of the chain; 0 where that may lie over them. Of
        the segment's input they are `copied`, or else the whole input is live."""
        tensor, form = ends.chain[place], self._form
        whole = ABSENT if copied else ends.chain[0]
        key = tensor, whole, wanted
        if key not in self._reads:
            link = self._links[tensor]
            total = 0.0
            for item in () if self._overlaps(tensor) else form.ops[link.maker].inputs:
                if item.tensor != whole:
                    inside = wanted == "inner" and item.tensor == link.read
                    rows = form.rows[item.tensor]
                    reading = inner(item.map, rows) if inside else clipped(item.map, rows, form.rows[tensor])
                    total += reading.first * self._row_bytes(item.tensor)
            self._reads[key] = total
        return self._reads[key]

    def _row_bytes(self, tensor: int) -> float:
        """Bytes of a row; 0 where other tensors may lie in the same bytes, or the model counts none."""
        pricing, around = self._pricing, self._pricing.around
        counts = pricing.counts(tensor) if tensor in self._links else bool(around.held_by[tensor])
        if not counts or not pricing.alone(tensor) or tensor in self._views:
            return 0.0
        return row_bits(pricing.graph, tensor, self._form.rows[tensor]) / 8

    def _overlaps(self, tensor: int) -> bool:
        """Whether the result of an operator may overlap an input."""
        if tensor not in self._over:
            model, graph = self._pricing.model, self._pricing.graph
            op = graph.ops[self._links[tensor].maker]
            lags = model.kernels is not None and geometry(graph, op) is not None
            self._over[tensor] = lags or bool(takes_over(op, model))
        return self._over[tensor]


def _most_saved(before: Demand, reading: Reading, step: float, price: float, count: int) -> float:
    """By how much the m rows that are made after the input are worth more than what they cost, for the m up to `count`
    at which that is most. Their row cut is concave in m and does not fall. So that is just before it exceeds the bytes
    of the other step, or from there on at one of both ends."""

    def later(rows: int) -> float:
        return bytes_of(before, reading.line(rows))

    exceeds = 1 + bisect_right(range(1, count), step, key=later)
    some = {exceeds - 1, min(exceeds, count - 1), count - 1}
    best = max(price * rows - max(step, later(rows) if rows else 0.0) for rows in some)
    return max(best, price * count - later(count))
