"""Whether any plan of a small network in strips fits into some bytes: every choice of segments, and in each segment
every sequence of steps that makes, drops and makes again single rows. It has its own windows, bytes and lifetimes.

Wider steps and strips of several rows need no fewer bytes than single rows, since they read and make all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from downset.graph.core import Graph, Op, Tensor

__all__ = ["Counting", "Layer", "SmallNetwork", "small_network", "some_plan_fits"]


Needs = tuple[int, int]
"""The rows that a row needs, as bits: with the whole input, or with copied rows of it."""


@dataclass(frozen=True)
class Counting:
    """What counts. `input_kept`: the input lives to the end. `over`: kinds whose results may lie over what they read
    last: a row over any rows, a whole result over a tensor of equal size that is not the network's input."""

    input_counts: bool = True
    input_kept: bool = False
    outputs_count: bool = True
    over: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Layer:
    """An operator that makes tensor `number` + 1. `reads`: by input, for each row the rows [start, stop) it reads."""

    kind: str
    inputs: tuple[int, ...]
    reads: tuple[tuple[tuple[int, int], ...], ...]
    attrs: Mapping[str, object]


@dataclass
class SmallNetwork:
    """`rows`, `row_bytes`: by tensor; tensor 0 is the input. `shapes`: channels and columns."""

    rows: list[int]
    shapes: list[tuple[int, int]]
    layers: list[Layer] = field(default_factory=list)

    def last_reads(self) -> list[int]:
        """By tensor: the last layer that reads it; the number of layers for those that none reads."""
        last = [len(self.layers)] * len(self.rows)
        for number, layer in enumerate(self.layers):
            for tensor in layer.inputs:
                last[tensor] = number
        return last

    def crossing(self, position: int) -> list[int]:
        return [tensor for tensor, last in enumerate(self.last_reads()) if tensor <= position <= last]

    def row_bytes(self, tensor: int, counting: Counting) -> int:
        channels, columns = self.shapes[tensor]
        is_output = self.last_reads()[tensor] == len(self.layers)
        counts = counting.input_counts if tensor == 0 else counting.outputs_count or not is_output
        return channels * columns * counts

    def graph(self) -> Graph:
        """The network in the package's form, in elements of one byte."""
        count = len(self.rows)
        tensors = [
            Tensor(f"t{number}", (1, channels, rows, columns), "int8", channels * rows * columns)
            for number, (rows, (channels, columns)) in enumerate(zip(self.rows, self.shapes, strict=True))
        ]
        ops = []
        for number, layer in enumerate(self.layers):
            inputs = layer.inputs
            if layer.kind in ("Conv", "ConvTranspose"):
                read, made = self.shapes[inputs[0]][0], self.shapes[number + 1][0]
                height = layer.attrs["kernel_shape"][0]
                shape = (made, read, height, 1) if layer.kind == "Conv" else (read, made, height, 1)
                tensors.append(Tensor(f"w{number}", shape, "int8", made * read * height, "constant"))
                inputs = (*inputs, len(tensors) - 1)
            ops.append(Op(f"op{number}", layer.kind, inputs, (number + 1,), dict(layer.attrs)))
        last = self.last_reads()
        outputs = tuple(tensor for tensor in range(count) if last[tensor] == len(self.layers))
        return Graph("small", tuple(tensors), tuple(ops), (0,), outputs).check()


def small_network(random: Random, *, most_rows: int = 13) -> SmallNetwork:
    """A random network whose tensors but the input have at most so many rows together."""
    net = SmallNetwork([random.randint(2, 7)], [(random.randint(1, 12), 1)])
    for _ in range(random.randint(1, 6)):
        layer, rows, shape = _layer(random, net)
        if rows < 1 or sum(net.rows[1:]) + rows > most_rows:
            break
        net.layers.append(layer)
        net.rows.append(rows)
        net.shapes.append(shape)
    return net if net.layers else small_network(random, most_rows=most_rows)


def _layer(random: Random, net: SmallNetwork) -> tuple[Layer, int, tuple[int, int]]:
    last = len(net.rows) - 1
    kind = random.choice(["Conv", "Conv", "Conv", "Conv", "MaxPool", "Add", "ConvTranspose", "DepthToSpace"])
    alike = [t for t in range(last) if (net.rows[t], net.shapes[t]) == (net.rows[last], net.shapes[last])]
    if kind == "Add" and alike:
        same = tuple((row, row + 1) for row in range(net.rows[last]))
        return Layer("Add", (last, random.choice(alike)), (same, same), {}), net.rows[last], net.shapes[last]
    channels, columns = net.shapes[last]
    if kind == "DepthToSpace" and channels % 4 == 0:
        rows = 2 * net.rows[last]
        reads = tuple((row // 2, row // 2 + 1) for row in range(rows))
        return Layer(kind, (last,), (reads,), {"blocksize": 2}), rows, (channels // 4, 2 * columns)
    kind = "Conv" if kind in ("Add", "DepthToSpace") else kind
    kernel, stride = random.randint(1, 3), random.randint(1, 2)
    dilation = random.randint(1, 2) if kind == "Conv" else 1
    reach = dilation * (kernel - 1) + 1
    above, below = random.randint(0, reach // 2), random.randint(0, reach // 2)
    attrs = {"kernel_shape": [kernel, 1], "strides": [stride, 1], "pads": [above, 0, below, 0]}
    made = channels if kind == "MaxPool" else random.randint(1, 12)
    size = net.rows[last]
    if kind == "ConvTranspose":
        rows = (size - 1) * stride + kernel - above - below
        reads = tuple(_transposed(row + above, kernel, stride, size) for row in range(max(rows, 0)))
    else:
        attrs["dilations"] = [dilation, 1]
        rows = (size + above + below - reach) // stride + 1 if size + above + below >= reach else 0
        reads = tuple(_window(row * stride - above, reach, size) for row in range(rows))
    if any(stop <= start for start, stop in reads):
        return _layer(random, net)  # a row of padding alone
    return Layer(kind, (last,), (reads,), attrs), rows, (made, columns)


def _window(first: int, reach: int, size: int) -> tuple[int, int]:
    return max(first, 0), min(first + reach, size)


def _transposed(place: int, kernel: int, stride: int, size: int) -> tuple[int, int]:
    rows = [row for row in range(size) if 0 <= place - row * stride < kernel]
    return (rows[0], rows[-1] + 1) if rows else (0, 0)


def some_plan_fits(net: SmallNetwork, counting: Counting, limit: int) -> bool:
    """Whether a plan has a peak of at most `limit` bytes, of all plans: whole layers, and segments between positions
    that one tensor crosses, in which a tensor with several rows is made."""
    reached = {0}
    for stop in range(1, len(net.layers) + 1):
        if stop - 1 in reached and _whole(net, stop - 1, counting) <= limit:
            reached.add(stop)
            continue
        for first in sorted(reached) if net.crossing(stop) == [stop] else ():
            several_rows = max(net.rows[first + 1 : stop + 1]) > 1
            if net.crossing(first) == [first] and several_rows and _segment_fits(net, first, stop, counting, limit):
                reached.add(stop)
                break
    return len(net.layers) in reached


def _whole(net: SmallNetwork, number: int, counting: Counting) -> int:
    """The bytes that are live while one layer runs as a whole."""
    last, layer = net.last_reads(), net.layers[number]
    if counting.input_kept:
        last[0] = len(net.layers)
    sizes = [rows * net.row_bytes(tensor, counting) for tensor, rows in enumerate(net.rows)]
    live = sum(sizes[tensor] for tensor in range(number + 2) if last[tensor] >= number)
    over = layer.kind in counting.over and any(
        tensor and last[tensor] == number and sizes[tensor] == sizes[number + 1] for tensor in layer.inputs
    )
    return live - over * sizes[number + 1]


def _segment_fits(net: SmallNetwork, first: int, stop: int, counting: Counting, limit: int) -> bool:
    """Whether a sequence of steps of the layers [first, stop) needs at most `limit` bytes. A state is a set of rows,
    copied ones of the input too, and whether the input is there."""
    number = {(first, -1): 0}
    sizes = [net.rows[first] * net.row_bytes(first, counting)]
    for tensor in range(first, stop + 1):
        for row in range(net.rows[tensor]):
            number[tensor, row] = len(sizes)
            sizes.append(net.row_bytes(tensor, counting))
    copies = range(1, 1 + net.rows[first])
    needs: list[Needs] = [(0, 0)] * (1 + len(copies))
    over = [False] * len(needs)
    for place in range(first, stop):
        layer = net.layers[place]
        for row in range(net.rows[place + 1]):
            read = [
                (tensor, at)
                for tensor, reads in zip(layer.inputs, layer.reads, strict=True)
                for at in range(*reads[row])
            ]
            copied = {number[one] for one in read}
            whole = {0 if tensor == first else number[tensor, at] for tensor, at in read}
            needs.append((sum(1 << at for at in whole), sum(1 << at for at in copied)))
            over.append(layer.kind in counting.over)
    kept = counting.input_kept and first == 0
    beside = net.rows[0] * net.row_bytes(0, counting) if counting.input_kept and first else 0
    wanted = sum(1 << number[stop, row] for row in range(net.rows[stop]))
    return _reaches(_Rows(sizes, needs, over, copies), wanted | kept, limit - beside)


class _Rows(NamedTuple):
    """The input as a whole, copies of its rows, and the rows of a segment. `over`: which lie over what they read."""

    sizes: Sequence[int]
    needs: Sequence[Needs]
    over: Sequence[bool]
    copies: range


def _reaches(rows: _Rows, wanted: int, limit: int) -> bool:
    """Whether a state with the wanted rows is reached from the input alone."""
    if rows.sizes[0] > limit:
        return False
    seen, waiting = {1}, [(1, rows.sizes[0])]
    while waiting:
        state, nbytes = waiting.pop()
        if state & wanted == wanted:
            return True
        for after, during, more in _steps(state, rows):
            if after not in seen and nbytes + during <= limit:
                seen.add(after)
                waiting.append((after, nbytes + more))
    return False


def _steps(state: int, rows: _Rows) -> Iterator[tuple[int, int, int]]:
    """(the state after a step, bytes more during it, bytes more after it)."""
    sizes, needs, over, copies = rows
    if state & 1:  # rows of the input are copied just before it is dropped
        for copied in range(1 << len(copies)):
            more = sum(sizes[row] for row in copies if copied >> row - 1 & 1)
            yield (state ^ 1) | copied << 1, more, more - sizes[0]
    for row in range(1, len(sizes)):
        bit, size = 1 << row, sizes[row]
        if state & bit:
            yield state ^ bit, 0, -size
            continue
        for read in {*needs[row]} if row not in copies else ():
            if state & read == read:
                yield state | bit, size, size
                freed = read if over[row] else 0
                while freed:  # every set of rows that are read and lie where the result is made
                    more = size - sum(sizes[one] for one in range(len(sizes)) if freed >> one & 1)
                    yield (state | bit) & ~freed, max(more, 0), more
                    freed = (freed - 1) & read
