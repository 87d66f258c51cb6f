"""The price of a segment in strips: bytes live while it runs, arithmetic, copies and operators.

Bytes are those of `memory.liveness` for the rewritten network in the sequence of the program's steps, found without
making that network. They are equal for models in which tensors share bytes only in place. For other models they are
never fewer. Scratch of an operator on rows counts while it runs, by the formulas that the written network is judged
by (`partial.strip_scratch`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from downset import native
from downset.errors import UnsupportedError
from downset.graph.core import Graph
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
    """By tensor: the last operator that reads its bytes; the number of operators where they are kept to the end."""
    held_by: tuple[tuple[int, ...], ...]
    """By tensor: its storages."""
    alone: tuple[bool, ...]
    """By tensor: whether no other tensor lies in its storages."""
    readers: tuple[frozenset[int], ...]
    """By tensor: the operators that read its storages."""


def surroundings(graph: Graph, model: MemoryModel) -> Surroundings:
    """The surroundings of a graph under a memory model. O(operators + storages). Raises UnsupportedError for models in
    which a concatenation is a view or sums accumulate in place."""
    if model.concat_is_view or model.accumulates:
        raise UnsupportedError(f"strips are not priced in the memory model {model.name!r}, where joins cost no bytes")
    storage_map, count = map_storages(graph, model), len(graph.ops)
    changes, until = [0] * (count + 1), []
    for nbytes, producers, consumers, kept in zip(
        storage_map.nbytes, storage_map.producers, storage_map.consumers, storage_map.kept, strict=True
    ):
        last = count if kept else max((*consumers, *producers), default=-1)
        until.append(last)
        if last >= 0 or kept:
            changes[producers[0] + 1 if producers else 0] += nbytes
            if last < count:
                changes[last + 1] -= nbytes
    needed = tuple(max((until[storage] for storage in storages), default=-1) for storages in storage_map.storages_of)
    problem = order_problem(graph, model)
    transient = profile(problem, range(count))
    apart = profile(replace(problem, in_place=(), in_place_bytes=()), range(count))
    storages_of = tuple(storage_map.storages_of)
    tensors = Counter(storages_of)
    alone = tuple(tensors[storages] == 1 for storages in storages_of)
    readers = tuple(
        frozenset().union(*(storage_map.consumers[storage] for storage in storages)) for storages in storages_of
    )
    return Surroundings(tuple(accumulate(changes)), tuple(transient), tuple(apart), needed, storages_of, alone, readers)


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
        self._native = native_network(graph, form, model, self.persistent)
        self._inputs, self._outputs = frozenset(graph.inputs), frozenset(graph.outputs)
        self._segments: dict[Segment, _Whole] = {}
        self._prices: dict[tuple[Segment, int, frozenset[int], bool], Price] = {}

    def strips(self, segment: Segment, strips: int, *, recomputed: Collection[int] = (), even: bool = False) -> Price:
        """The price of a segment in strips, found once. Raises UnsupportedError as `strip_program` does."""
        key = segment, strips, frozenset(recomputed), even
        if key not in self._prices:
            self._prices[key] = self._price(segment, strips, recomputed, even)
        return self._prices[key]

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
            price = native.compiled.strips_price(self._native, segment, strips, recomputed, even)
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
        return native.compiled.StripSegment(
            self._native,
            segment.first,
            segment.stop,
            inputs=segment.inputs,
            input_bytes=nbytes,
            inputs_kept=[self.stays(tensor, segment) for tensor in segment.inputs],
            inputs_apart=[self.never_overwritten(tensor, segment) for tensor in segment.inputs],
            inputs_alone=[self.around.alone[tensor] for tensor in segment.inputs],
            results=segment.results,
            results_counted=[self.counts(tensor) for tensor in segment.results],
            live_beside=beside,
        )

    def inputs(self, segment: Segment) -> tuple[list[int], int]:
        """(bytes of each input of the segment, other bytes that are live before it runs). Inputs that share bytes count
        once."""
        nbytes: list[int] = []
        seen: set[tuple[int, ...]] = set()
        for tensor in segment.inputs:
            storages = self.around.held_by[tensor]
            nbytes.append(
                0 if storages in seen or not storages else self.piece_bytes(tensor, (0, self.form.rows[tensor]))
            )
            seen.add(storages)
        return nbytes, self.around.live[segment.first] - sum(nbytes)

    def counts(self, tensor: int) -> bool:
        """Whether the model counts a tensor that an operator makes."""
        return self.model.outputs_counted or tensor not in self._outputs

    def stays(self, tensor: int, segment: Segment) -> bool:
        """Whether the bytes of an input are needed after the segment."""
        return self.around.needed_until[tensor] >= segment.stop

    def never_overwritten(self, tensor: int, segment: Segment) -> bool:
        """Whether no result may take the place of an input: the caller's inputs, and under some models what operators
        outside the segment read too, even where they have run."""
        if tensor in self._inputs:
            return True
        readers = self.around.readers[tensor]
        return self.model.in_place_only_reader and not all(reader in segment.operators for reader in readers)

    def piece_bytes(self, tensor: int, rows: Interval) -> int:
        """Aligned bytes of these rows of a tensor."""
        bits = row_bits(self.graph, tensor, self.form.rows[tensor]) * (rows[1] - rows[0])
        return align_up((bits + 7) // 8, self.model.alignment)
