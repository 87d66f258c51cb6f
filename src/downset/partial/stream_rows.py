"""Which rows of each tensor a stream computes in a call, and which it keeps from one call to the next.

A window of N rows moves by H rows a call. Tensors behind it move too: row r of a tensor is row r + d of the window `m`
calls before, as long as it reads no padding. So a call computes the new rows, and those at edges.

Source: ours.
Names: a tensor's *shift*: it moves by `rows` rows every `hops` calls, and its rows [lo, hi) see no padding.
Complexity: O(edges of the network).
Deviations: an operator that reads all rows, or constants with rows, has no shift: it is computed whole from rows that
    are kept, so that global pools and dense layers give the same values. Nothing is a running sum.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import lcm

from downset.errors import UsageError
from downset.graph.core import ABSENT, Graph, dtype_bits
from downset.graph.cost import row_form
from downset.graph.halos import broadcast_axis
from downset.graph.kinds import kind_of
from downset.graph.row_axes import rows_spread_from
from downset.graph.row_form import Interval, RowForm, RowInput
from downset.partial.pieces import rows_read
from downset.rewrites.folding import with_amounts
from downset.rewrites.tflite_form import writable_rows
from downset.text import printable, shortened

__all__ = ["MOST_IN_QUEUE", "KeptRows", "Moving", "Shift", "StreamRows", "moving_input", "stream_rows"]

MOST_IN_QUEUE = 16
"""The most states in a queue. A tensor that moves only once in more calls is computed whole."""


@dataclass(frozen=True, slots=True)
class Moving:
    """The window's network, with its rows along the moving dimension of one input. `form`: its rows as integers."""

    graph: Graph
    form: RowForm
    tensor: int
    dimension: int

    @property
    def window(self) -> int:
        """The rows of the window."""
        return self.form.rows[self.tensor]


@dataclass(frozen=True, slots=True)
class Shift:
    """A tensor moves by `rows` rows every `hops` calls. Its rows [lo, hi) of a window are those rows of `hops` calls
    later that are `rows` lower."""

    rows: int
    hops: int
    lo: int
    hi: int


@dataclass(frozen=True, slots=True)
class KeptRows:
    """The rows [first, stop) of a window's tensor that a call finds, kept by the call `hops` before it as the rows that
    are `shift` higher."""

    first: int
    stop: int
    shift: int
    hops: int


@dataclass(frozen=True, slots=True)
class StreamRows:
    """The rows of a stream. By tensor: `computed`, the intervals that a call computes, ascending; tensors without any
    are not needed. `kept`: the rows that it keeps. `breaks`: by operator whose rows are not those of earlier calls,
    although those of all its inputs are: why. `pads`: by operator that pads the rows, so that rows at the edges of a
    window differ from call to call: the same."""

    moving: Moving
    hop: int
    computed: Mapping[int, tuple[Interval, ...]]
    kept: Mapping[int, KeptRows]
    breaks: Mapping[int, str]
    pads: Mapping[int, str]

    @property
    def macs(self) -> int:
        """Multiply-adds of a call."""
        total = 0
        for op in self.moving.form.ops:
            rows = next((self.computed[tensor] for tensor in op.outputs if tensor in self.computed), ())
            total += op.macs_per_row * sum(stop - first for first, stop in rows)
        return total

    @property
    def window_macs(self) -> int:
        """Multiply-adds of the window's network."""
        return sum(op.macs for op in self.moving.form.ops)

    @property
    def kept_bytes(self) -> int:
        """Bytes of all states."""
        nbytes = self.moving.form.bytes_per_row
        return sum(nbytes[tensor] * (kept.stop - kept.first) * kept.hops for tensor, kept in self.kept.items())


def moving_input(graph: Graph, tensor: int, dimension: int) -> Moving:
    """The network with its rows along this dimension of an input, and with amounts that follow from weights as
    constants. Of the two axes along which windows slide, it is the one along which most windows slide that are reached.
    O(edges)."""
    place = graph.inputs.index(tensor)
    graph = with_amounts(graph)
    tensor = graph.inputs[place]
    spread = [rows_spread_from(graph, tensor, dimension, axis) for axis in (0, 1)]
    forms = [writable_rows(one, row_form(one, axis=axis, halos_required=False)) for axis, one in enumerate(spread)]
    mapped = [sum(item.map is not None for op in form.ops for item in op.inputs) for form in forms]
    axis = 1 if mapped[1] > mapped[0] else 0
    return Moving(spread[axis], forms[axis], tensor, dimension)


def stream_rows(moving: Moving, hop: int) -> StreamRows:
    """The rows of the stream that is called every `hop` rows. Raises UsageError where the window has no more rows than
    the hop, or the hop is not positive."""
    name = moving.graph.tensors[moving.tensor].name
    if not 0 < hop < moving.window:
        raise UsageError(
            f"a hop of {hop} rows does not fit {name!r}, whose windows have {moving.window} rows along axis "
            f"{moving.dimension}: give 1 to {moving.window - 1}"
        )
    shifts = _Shifts(moving)
    shifts.forward(hop)
    computed, kept = _backward(moving, shifts.of)
    return StreamRows(moving, hop, computed, kept, shifts.breaks, shifts.pads)


@dataclass(slots=True)
class _Shifts:
    """The forward pass: `of`, by tensor, its shift; `reached`: the tensors that depend on the moving input;
    `breaks` and `pads` as in `StreamRows`."""

    moving: Moving
    of: dict[int, Shift] = field(default_factory=dict)
    reached: set[int] = field(default_factory=set)
    breaks: dict[int, str] = field(default_factory=dict)
    pads: dict[int, str] = field(default_factory=dict)

    def forward(self, hop: int) -> None:
        self.of[self.moving.tensor] = Shift(hop, 1, 0, self.moving.window)
        self.reached.add(self.moving.tensor)
        for index, op in enumerate(self.moving.form.ops):
            shift = self._result(index)
            if any(item.tensor in self.reached for item in op.inputs):
                self.reached.update(op.outputs)
            if shift is not None:
                self.of.update(dict.fromkeys(self.moving.form.ops[index].outputs, shift))

    def _result(self, index: int) -> Shift | None:
        """The shift of an operator's results; None where they have none."""
        row_op = self.moving.form.ops[index]
        shifts = [self.of.get(item.tensor) for item in row_op.inputs]
        if not any(shifts):
            return None
        reason = self._mixes(index)
        if reason is None and None in shifts:
            return None  # an operator before it has broken the shift
        if reason is not None:
            self.breaks[index] = reason
            return None
        inputs = [(shift, item.map) for shift, item in zip(shifts, row_op.inputs, strict=True) if shift and item.map]
        rates = {Fraction(shift.rows * mapped.per, shift.hops * mapped.scale) for shift, mapped in inputs}
        if len(rates) > 1:
            self.breaks[index] = "inputs that move at different rates"
            return None
        (rate,) = rates
        hops = lcm(rate.denominator, *(shift.hops for shift, _ in inputs))
        if hops > MOST_IN_QUEUE:
            self.breaks[index] = f"rows that return only after {hops} calls (take a hop that its stride divides)"
            return None
        if any(self._clips(item, row_op.rows) for item in row_op.inputs):
            transposed = kind_of(self.moving.graph.ops[index].kind).rows == "transposed window"
            self.pads[index] = "partial sums at the edges" if transposed else "padding along time (SAME)"
        lo = max(-((mapped.low - shift.lo * mapped.per) // mapped.scale) for shift, mapped in inputs)
        hi = min(-((mapped.high - shift.hi * mapped.per) // mapped.scale) for shift, mapped in inputs)
        return Shift(int(rate * hops), hops, max(lo, 0), max(min(hi, row_op.rows), 0))

    def _clips(self, item: RowInput, rows: int) -> bool:
        """Whether the first or last rows of the results reach beyond an input."""
        if item.map is None:
            return False
        scale, per, low, high = item.map
        return low // per < 0 or (scale * (rows - 1) + high) // per >= self.moving.form.rows[item.tensor]

    def _mixes(self, index: int) -> str | None:
        """Why rows of the results differ from those of earlier calls although the rows of all inputs are the same."""
        graph, form, op = self.moving.graph, self.moving.form, self.moving.graph.ops[index]
        whole = [item.tensor for item in form.ops[index].inputs if item.map is None]
        if whole and self.reached.isdisjoint(whole):
            return f"{shortened(printable(graph.tensors[whole[0]].name), 50)!r} does not move with the window"
        if form.ops[index].whole or whole:
            return "the whole window is read"
        if any(broadcast_axis(graph, op, position, form.axis) is not None for position in range(len(op.inputs))):
            return "constants with values for each row"
        return None


def _backward(
    moving: Moving, shifts: Mapping[int, Shift]
) -> tuple[dict[int, tuple[Interval, ...]], dict[int, KeptRows]]:
    """(by tensor the rows that a call computes, by tensor the rows that it keeps)."""
    graph, form = moving.graph, moving.form
    needs: dict[int, list[Interval]] = {tensor: [(0, form.rows[tensor])] for tensor in graph.outputs}
    computed: dict[int, tuple[Interval, ...]] = {}
    kept: dict[int, KeptRows] = {}
    for index in reversed(range(len(graph.ops))):
        row_op = form.ops[index]
        outputs = [tensor for tensor in row_op.outputs if tensor in needs]
        if not outputs:
            continue
        needed = _merged(interval for tensor in outputs for interval in needs[tensor])
        if row_op.whole:
            needed = [(0, row_op.rows)]
        shift = None if _is_wide(graph, index) else shifts.get(outputs[0])
        state = None if shift is None else _kept(needed, shift, shift.hi)
        if state is not None:
            kept.update(dict.fromkeys(outputs, state))
            needed = _without(needed, state)
        for tensor in row_op.outputs:  # a Split makes results of unequal height, whole
            computed[tensor] = ((0, form.rows[tensor]),) if row_op.whole else tuple(needed)
        for rows in needed:
            for tensor, read in rows_read(form, index, rows).items():
                needs.setdefault(tensor, []).append(read)
    hop = shifts[moving.tensor]
    state = _kept(_merged(needs.get(moving.tensor, ())), hop, hop.hi, ends=hop.hi)
    if state is not None:
        kept[moving.tensor] = state
    computed[moving.tensor] = ((moving.window - hop.rows, moving.window),)
    return computed, kept


def _is_wide(graph: Graph, index: int) -> bool:
    """Whether an operator without multiply-adds makes more bytes than it reads: its input is kept in its place."""
    op = graph.ops[index]
    row = kind_of(op.kind)
    if row.macs != "none" or row.category not in ("quantiser", "unary", "shape-only") or op.outputs[0] == ABSENT:
        return False
    return dtype_bits(graph.tensors[op.inputs[0]].dtype) < dtype_bits(graph.tensors[op.outputs[0]].dtype)


def _kept(needed: Sequence[Interval], shift: Shift, hi: int, ends: int | None = None) -> KeptRows | None:
    """The rows to keep of a tensor of which these rows are needed; None where there are none. `ends`: the row behind
    the last, where it is fixed."""
    if not needed:
        return None
    stop = min(hi, needed[-1][1]) if ends is None else ends
    reused = [max(first, shift.lo) for first, end in needed if max(first, shift.lo) < min(end, stop - shift.rows)]
    return KeptRows(reused[0], stop - shift.rows, shift.rows, shift.hops) if reused else None


def _without(needed: Sequence[Interval], kept: KeptRows) -> list[Interval]:
    """The rows to compute: those needed that are not kept, and those from which the next call keeps rows."""
    new = [(kept.stop, kept.stop + kept.shift)]
    for first, stop in needed:
        new += [(first, min(stop, kept.first)), (max(first, kept.stop), stop)]
    return _merged(new)


def _merged(intervals: Iterable[Interval]) -> list[Interval]:
    """The same rows as ascending intervals that do not touch."""
    merged: list[Interval] = []
    for first, stop in sorted(interval for interval in intervals if interval[0] < interval[1]):
        if merged and first <= merged[-1][1]:
            merged[-1] = merged[-1][0], max(merged[-1][1], stop)
        else:
            merged.append((first, stop))
    return merged
