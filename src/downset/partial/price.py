"""The price of a segment in strips: bytes live while it runs, arithmetic, copies and operators.

Bytes are those of `memory.liveness` for the rewritten network in the sequence of the program's steps, found without
making that network: tensors share bytes in place, and views those of what they look at. Scratch of an operator on rows
counts while it runs, by the formulas that the written network is judged by (`partial.strip_scratch`).
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from downset import native
from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph
from downset.graph.cost import whole_macs
from downset.graph.row_form import Interval, RowForm
from downset.memory.liveness import order_problem, profile
from downset.memory.models import MemoryModel
from downset.memory.records import align_up
from downset.memory.storages import map_storages
from downset.partial.memory_form import Persistent, row_bits
from downset.partial.native_form import native_network
from downset.partial.segments import Segment, computing
from downset.partial.strip_program import check_strips, most_strips
from downset.partial.strip_scratch import OnRows, strip_scratch

__all__ = [
    "Price",
    "Pricing",
]


@dataclass(frozen=True, slots=True)
class Price:
    """The cost of a part of the network.

    `peak_bytes`: the most bytes live while it runs, other live tensors included. `extra_macs`: MACs beyond computing
    everything once; negative where rows are left out that no operator reads. `copied_bytes`: bytes written by operators
    that only move values. `extra_operators`: operators beyond those of the network. `persistent_bytes`: an estimate of
    the bytes that the runtime keeps for these; `narrow_bytes`: the same where pointers have four bytes. `apart_bytes`:
    the peak if no result takes over bytes of an input."""

    peak_bytes: int
    extra_macs: int = 0
    copied_bytes: int = 0
    extra_operators: int = 0
    persistent_bytes: int = 0
    narrow_bytes: int = 0
    apart_bytes: int = 0

    def beside(self, other: Price) -> Price:
        """The price of two parts that run one after the other."""
        return Price(
            max(self.peak_bytes, other.peak_bytes),
            self.extra_macs + other.extra_macs,
            self.copied_bytes + other.copied_bytes,
            self.extra_operators + other.extra_operators,
            self.persistent_bytes + other.persistent_bytes,
            self.narrow_bytes + other.narrow_bytes,
            max(self.apart_bytes, other.apart_bytes),
        )


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Live bytes of a graph in its order: `live[i]` bytes before operator i, `transient[i]` bytes while it runs."""

    live: tuple[int, ...]
    transient: tuple[int, ...]
    apart: tuple[int, ...]
    """`transient` if no result takes over bytes of an input."""
    needed_until: tuple[int, ...]
    """By tensor: the last operator that reads it; the number of operators where it is kept to the end."""
    held_by: tuple[tuple[int, ...], ...]
    """By tensor: its storages."""
    together: tuple[tuple[int, ...], ...]
    """By tensor: the tensors that lie in its storages."""
    spanning: tuple[int, ...]
    """By tensor: the tensor for which its storage was made; itself where it has none."""
    made_by: tuple[int, ...]
    read_by: tuple[tuple[int, ...], ...]
    """By tensor: the operator that makes it, or -1; those that read it."""


def surroundings(graph: Graph, model: MemoryModel) -> Surroundings:
    """The surroundings of a graph under a memory model. O(operators + storages). Raises UnsupportedError for models in
    which a concatenation is a view or sums accumulate in place."""
    if model.concat_is_view or model.accumulates:
        raise UnsupportedError(f"strips are not priced in the memory model {model.name!r}, where joins cost no bytes")
    storage_map, count = map_storages(graph, model), len(graph.ops)
    changes = [0] * (count + 1)
    for nbytes, producers, consumers, kept in zip(
        storage_map.nbytes, storage_map.producers, storage_map.consumers, storage_map.kept, strict=True
    ):
        last = count if kept else max((*consumers, *producers), default=-1)
        if last >= 0 or kept:
            changes[producers[0] + 1 if producers else 0] += nbytes
            if last < count:
                changes[last + 1] -= nbytes
    made_by, read_by = graph.producers(), graph.consumers()
    to_the_end = {*graph.outputs, *(graph.inputs if model.inputs == "to the end" else ())}
    needed = tuple(
        count if tensor in to_the_end else max((*readers, made_by[tensor])) for tensor, readers in enumerate(read_by)
    )
    problem = order_problem(graph, model)
    transient = profile(problem, range(count))
    apart = profile(replace(problem, in_place=(), in_place_bytes=()), range(count))
    storages_of = tuple(storage_map.storages_of)
    members: dict[tuple[int, ...], list[int]] = {}
    for tensor, storages in enumerate(storages_of):
        members.setdefault(storages, []).append(tensor)
    tuples = {storages: tuple(tensors) for storages, tensors in members.items()}
    return Surroundings(
        tuple(accumulate(changes)),
        tuple(transient),
        tuple(apart),
        needed,
        storages_of,
        tuple(tuples[storages] if storages else (tensor,) for tensor, storages in enumerate(storages_of)),
        tuple(
            storage_map.spanning(storages[0]) if len(storages) == 1 else tensor
            for tensor, storages in enumerate(storages_of)
        ),
        tuple(made_by),
        tuple(read_by),
    )


class _Whole(NamedTuple):
    """A segment without strips. `most_strips`: by whether the strips are even. `operators`: those that strips
    replace."""

    segment: Any
    most_strips: tuple[int, int]
    macs: int
    operators: int
    persistent_bytes: int


class Pricing:
    """Prices of segments of one graph, in its order, under one memory model (native/partial/price.hpp)."""

    def __init__(
        self,
        graph: Graph,
        form: RowForm,
        model: MemoryModel,
        *,
        persistent: Persistent | None = None,
    ) -> None:
        self.graph, self.form, self.model = graph, form, model
        self.persistent = persistent or Persistent((0,) * len(graph.ops), 0)
        self.around = surroundings(graph, model)
        self._compiled = native.compiled
        self._native = native_network(graph, form, model, self.persistent)
        self._inputs, self._outputs = frozenset(graph.inputs), frozenset(graph.outputs)
        self._segments: dict[Segment, _Whole] = {}
        self._prices: dict[tuple[Segment, int, frozenset[int], bool], Price] = {}

    def strips(self, segment: Segment, strips: int, *, recomputed: Collection[int] = (), even: bool = False) -> Price:
        """The price of a segment in strips, found once. Raises UnsupportedError as `strip_program` does."""
        key = segment, strips, frozenset(recomputed), even
        price = self._prices.get(key)
        if price is None:
            price = self._prices[key] = self._price(segment, strips, recomputed, even)
        return price

    def _price(self, segment: Segment, strips: int, recomputed: Collection[int], even: bool) -> Price:
        whole = self._segments.get(segment) or self._prepare(segment)
        if not 1 <= strips <= whole.most_strips[even]:
            check_strips(self.graph, self.form, segment, strips, even=even)
        possible, peak, apart, macs, copied, operators, persistent = self._native_price(
            whole.segment, strips, list(recomputed), even
        )
        if not possible:
            raise UnsupportedError(f"{self.graph.name}: a strip is padding alone, and rows are added to it")
        more, kept = operators - whole.operators, persistent - whole.persistent_bytes
        narrow = kept - more * self.persistent.narrower_bytes
        return Price(peak, macs - whole.macs, copied, more, kept, narrow, apart)

    def _native_price(
        self, segment: Any, strips: int, recomputed: list[int], even: bool
    ) -> tuple[bool, int, int, int, int, int, int]:
        while True:
            price = self._compiled.strips_price(self._native, segment, strips, recomputed, even)
            if not price[-1]:
                return price[:-1]
            for call in price[-1]:
                self._native.set_scratch(call, strip_scratch(self.graph, self.form, self.model, OnRows.of(call)))

    def most_strips(self, segment: Segment, *, even: bool) -> int:
        """`most_strips` of the segment, which is asked for once a segment."""
        return (self._segments.get(segment) or self._prepare(segment)).most_strips[even]

    def _prepare(self, segment: Segment) -> _Whole:
        replaced = computing(self.graph, segment)
        most = most_strips(self.form, segment, even=False), most_strips(self.form, segment, even=True)
        nbytes = sum(self.persistent.operator_bytes[index] for index in replaced)
        macs = whole_macs(self.form, segment.operators)
        whole = _Whole(self._native_segment(segment), most, macs, len(replaced), nbytes)
        self._segments[segment] = whole
        return whole

    def _native_segment(self, segment: Segment) -> Any:
        nbytes, beside = self.inputs(segment)
        return self._compiled.StripSegment(
            self._native,
            segment.first,
            segment.stop,
            inputs=[
                [tensor, size, *self._shared(segment, position), self.stays(tensor, segment), self.alone(tensor)]
                for position, (tensor, size) in enumerate(zip(segment.inputs, nbytes, strict=True))
            ],
            results=segment.results,
            results_counted=[self.counts(tensor) for tensor in segment.results],
            live_beside=beside,
        )

    def inputs(self, segment: Segment) -> tuple[list[int], int]:
        """(bytes of each input of the segment, other bytes that are live before it runs). Inputs that share bytes count
        once."""
        nbytes = [
            self.piece_bytes(tensor, (0, self.form.rows[tensor]))
            if self.around.held_by[tensor] and self._root(segment, tensor) == tensor
            else 0
            for tensor in segment.inputs
        ]
        return nbytes, self.around.live[segment.first] - sum(nbytes)

    def _root(self, segment: Segment, tensor: int) -> int:
        """The input of a segment for which these bytes were taken, or the first one that shares them."""
        around = self.around
        shared = [one for one in around.together[tensor] if one in segment.inputs]
        return around.spanning[tensor] if around.spanning[tensor] in shared else shared[0]

    def _shared(self, segment: Segment, position: int) -> tuple[int, int, bool, int, bool]:
        """The position of the input whose bytes an input shares, how often operators outside read it, whether
        these bytes were taken for it, else how often operators read the tensor for which they were taken, and whether
        it is an input of the graph."""
        tensor = segment.inputs[position]
        spanning = self.around.spanning[tensor]
        return (
            segment.inputs.index(self._root(segment, tensor)),
            self._reads(tensor, segment.operators),
            spanning == tensor,
            self._reads(spanning, range(0)),
            tensor in self._inputs,
        )

    def _reads(self, tensor: int, inside: range) -> int:
        readers = (index for index in self.around.read_by[tensor] if index not in inside)
        return sum(self.graph.ops[index].inputs.count(tensor) for index in readers)

    def alone(self, tensor: int) -> bool:
        """Whether no other tensor lies in the bytes of this one."""
        return len(self.around.together[tensor]) == 1

    def counts(self, tensor: int) -> bool:
        """Whether the model counts a tensor that an operator makes."""
        return self.model.outputs_counted or tensor not in self._outputs

    def stays(self, tensor: int, segment: Segment) -> bool:
        """Whether the bytes of an input are needed after the segment: it is, or another view of these bytes is. Views
        that are made through the segment are made of what the strips make, which lies elsewhere."""
        return any(
            self.around.needed_until[one] >= segment.stop and not self._passes(one, segment)
            for one in self.around.together[tensor]
        )

    def _passes(self, tensor: int, segment: Segment) -> bool:
        """Whether a tensor, or one that it is a view of, is made in the segment."""
        around = self.around
        while (maker := around.made_by[tensor]) >= segment.first:
            if maker < segment.stop:
                return True
            source = next(iter(self.graph.ops[maker].inputs), ABSENT)
            if source == ABSENT or around.held_by[source] != around.held_by[tensor]:
                return False
            tensor = source
        return False

    def piece_bytes(self, tensor: int, rows: Interval) -> int:
        """Aligned bytes of these rows of a tensor."""
        bits = row_bits(self.graph, tensor, self.form.rows[tensor]) * (rows[1] - rows[0])
        return align_up((bits + 7) // 8, self.model.alignment)
