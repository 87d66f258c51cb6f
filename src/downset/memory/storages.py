"""Which tensors of a graph share bytes under a memory model: the storages of which `liveness` computes lifetimes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph, Op
from downset.memory.kernel_needs import kernel_needs, scratch_asked
from downset.memory.models import MemoryModel
from downset.memory.overlaps import least_lag
from downset.memory.records import align_up

__all__ = ["exact_bytes", "is_view_kind", "lagged", "map_storages", "takeover"]


@dataclass(slots=True)
class StorageMap:
    """The storages under construction. Lists by storage: aligned bytes, producers (none: allocated before the start),
    consumers (both ascending, each once), and whether it is kept to the end."""

    storages_of: list[tuple[int, ...]]
    """By tensor: its storages. None (not counted), one, or several (a zero-copy concatenation)."""
    inputs: frozenset[int]
    outputs: frozenset[int]
    """The graph's inputs and outputs."""
    begin_of: list[int] = field(default_factory=list)
    """By tensor: the byte of its storage at which it begins."""
    nbytes: list[int] = field(default_factory=list)
    producers: list[list[int]] = field(default_factory=list)
    consumers: list[list[int]] = field(default_factory=list)
    kept: list[bool] = field(default_factory=list)
    exclusive: list[bool] = field(default_factory=list)
    """Whether an operator may overwrite it: it is not a graph input, not part of a concatenation that is a view, and
    no rows lie in it."""
    open_to_sums: list[bool] = field(default_factory=list)
    """Whether a sum may add to its value: it has no view, and no activation was applied to the value."""
    scratch: list[int] = field(default_factory=list)
    """The storages of scratch, in which no tensor lies."""
    reads: Counter[int] = field(default_factory=Counter)
    """By tensor: how often operators read it."""
    _merged: dict[int, int] = field(default_factory=dict)
    """By storage that was merged: the one into which it was merged."""
    _made_for: list[int] = field(default_factory=list)
    """By storage: the tensor for which it was made; others may lie in it too."""
    _holds: list[list[int]] = field(default_factory=list)
    """By storage: the tensors that lie in it and in no other."""

    def add(self, nbytes: int, producer: int | None, tensor: int) -> int:
        """Make a storage for this tensor, and return its index."""
        self._made_for.append(tensor)
        self._holds.append([])
        self.nbytes.append(nbytes)
        self.producers.append([] if producer is None else [producer])
        self.consumers.append([])
        self.kept.append(False)
        self.exclusive.append(producer is not None)
        self.open_to_sums.append(True)
        storage = len(self.nbytes) - 1
        self.lay(tensor, storage, 0)
        return storage

    def add_scratch(self, nbytes: int, operator: int) -> None:
        """Make a storage without tensors, which is live while the operator runs."""
        self._made_for.append(ABSENT)
        self._holds.append([])
        self.nbytes.append(nbytes)
        self.producers.append([operator])
        self.consumers.append([])
        self.kept.append(False)
        self.exclusive.append(False)
        self.open_to_sums.append(False)
        self.scratch.append(len(self.nbytes) - 1)

    def lay(self, tensor: int, storage: int, begin: int) -> None:
        """Put the tensor into this storage, from the byte `begin` on."""
        self.storages_of[tensor], self.begin_of[tensor] = (storage,), begin
        self._holds[storage].append(tensor)

    def spanned(self, tensor: int) -> bool:
        """Whether the tensor's one storage was made for it, by an operator: other tensors in it are parts or views."""
        storages = self.storages_of[tensor]
        return len(storages) == 1 and self._made_for[storages[0]] == tensor and bool(self.producers[storages[0]])

    def spanning(self, storage: int) -> int:
        """The tensor for which a storage was made."""
        return self._made_for[storage]

    def alone(self, tensor: int) -> bool:
        """Whether the tensor has one storage, in which no other tensor lies."""
        storages = self.storages_of[tensor]
        return len(storages) == 1 and self._holds[storages[0]] == [tensor]

    def absorb(self, into: int, tensor: int, begin: int) -> None:
        """Make the storage of a tensor (see `spanned`) a part of the storage `into`, from the byte `begin` on."""
        (storage,) = self.storages_of[tensor]
        for other in self._holds[storage]:
            self.lay(other, into, self.begin_of[other] + begin)
        self._holds[storage] = []
        self.merge(into, storage)

    def merge(self, into: int, other: int) -> None:
        """Merge `other` into `into`, which is then live from the first producer to the last consumer of either."""
        self.producers[into] = sorted({*self.producers[into], *self.producers[other]})
        self.consumers[into] = sorted({*self.consumers[into], *self.consumers[other]})
        self.nbytes[other], self.producers[other], self.consumers[other] = 0, [], []
        self._merged[other] = into

    def settle(self) -> None:
        """Move every tensor whose storage was merged to the storage into which it was merged."""
        for tensor, storages in enumerate(self.storages_of):
            if len(storages) == 1:
                (storage,) = storages
                while storage in self._merged:
                    storage = self._merged[storage]
                self.storages_of[tensor] = (storage,)

    def close(self, storages: Sequence[int]) -> None:
        """State that no further sum may add to these storages."""
        for storage in storages:
            self.open_to_sums[storage] = False

    def keep(self, tensors: Sequence[int]) -> None:
        for tensor in tensors:
            for storage in self.storages_of[tensor]:
                self.kept[storage] = True


_MOST_LISTED = 1 << 20
"""The limit of tensors inside concatenations that are views, in all; nested ones list the square of their number."""


def map_storages(graph: Graph, model: MemoryModel) -> StorageMap:
    """The storages of a graph. O(operators · inputs); where concatenations are views, their parts at every depth count
    as inputs, and more than `_MOST_LISTED` of them raise UnsupportedError."""
    count, listed = len(graph.tensors), 0
    storage_map = StorageMap([()] * count, frozenset(graph.inputs), frozenset(graph.outputs), [0] * count)
    read_by, made_by = graph.consumers(), graph.producers()
    state_of = {state.written: state.read for state in graph.states} if model.states_in_place else {}
    if model.inputs != "not counted":
        for tensor in dict.fromkeys(graph.inputs):
            if graph.tensors[tensor].role == "activation":
                storage_map.add(_aligned_bytes(graph, model, tensor), None, tensor)
    for index, op in enumerate(graph.ops):
        parts = [tensor for tensor in op.inputs if tensor != ABSENT]
        storage_map.reads.update(parts)
        for tensor in parts:
            for storage in storage_map.storages_of[tensor]:
                if storage_map.consumers[storage][-1:] != [index]:
                    storage_map.consumers[storage].append(index)
        for position, tensor in enumerate(op.outputs):
            if tensor == ABSENT:
                continue
            if graph.tensors[tensor].role != "activation":
                if (
                    model.decoded_weights
                    and op.kind == "DequantizeLinear"
                    and any(made_by[part] >= 0 for part in parts)
                ):
                    storage_map.add(_aligned_bytes(graph, model, tensor), index, tensor)
                continue
            if tensor in storage_map.outputs and not model.outputs_counted:
                continue
            if tensor in state_of:
                (storage,) = storage_map.storages_of[state_of[tensor]]
                storage_map.lay(tensor, storage, 0)
                continue
            if position == 0 and _is_view(graph, model, op, storage_map):
                source = op.inputs[0]
                storage_map.storages_of[tensor] = storage_map.storages_of[source]
                if len(storage_map.storages_of[source]) == 1:
                    storage_map.lay(tensor, storage_map.storages_of[source][0], storage_map.begin_of[source])
                storage_map.close(storage_map.storages_of[tensor])
            elif position == 0 and _is_concatenation_view(model, op, tensor, parts, storage_map):
                storages = _held(parts, storage_map)
                listed += len(storages)
                if listed > _MOST_LISTED:
                    raise UnsupportedError(
                        f"{graph.name}: concatenations of concatenations name more than {_MOST_LISTED:,} tensors "
                        f"together, each of which memory {model.name} would follow; use memory live"
                    )
                storage_map.storages_of[tensor] = tuple(storages)
                for storage in storages:
                    storage_map.exclusive[storage] = False
                storage_map.close(storages)
            elif position == 0 and _accumulates(graph, model, index, parts, storage_map, read_by):
                first, *others = _held(parts, storage_map)
                for other in others:
                    storage_map.merge(first, other)
                storage_map.storages_of[tensor] = (first,)
            elif position == 0 and _is_cut(graph, model, op, storage_map):
                (storage,) = storage_map.storages_of[op.inputs[0]]
                storage_map.lay(tensor, storage, storage_map.begin_of[op.inputs[0]] + int(op.attrs["lies_at"]))
                storage_map.exclusive[storage] = False
                storage_map.close((storage,))
            else:
                storage = storage_map.add(_aligned_bytes(graph, model, tensor), index, tensor)
                if position == 0 and model.rows_in_place and _joins_rows(graph, op):
                    _gather(graph, op, storage, storage_map)
            if op.kind == "Sum" and op.attrs.get("activation"):
                storage_map.close(storage_map.storages_of[tensor])
    if model.scratch:
        for operator, buffers in kernel_needs(graph, model.scratch).buffers.items():
            for nbytes in buffers:
                storage_map.add_scratch(nbytes, operator)
    storage_map.settle()
    storage_map.keep(graph.outputs)
    if model.inputs == "to the end":
        storage_map.keep(graph.inputs)
    return storage_map


def _held(parts: Sequence[int], storage_map: StorageMap) -> list[int]:
    return [storage for part in parts for storage in storage_map.storages_of[part]]


def _aligned_bytes(graph: Graph, model: MemoryModel, tensor: int) -> int:
    return align_up(graph.tensors[tensor].nbytes, model.alignment)


def exact_bytes(graph: Graph, model: MemoryModel, storage_map: StorageMap, storage: int) -> int:
    """The bytes of a storage that are used: without what alignment adds."""
    tensor = storage_map.spanning(storage)
    if tensor != ABSENT:
        return graph.tensors[tensor].nbytes
    (operator,) = storage_map.producers[storage]
    asked = scratch_asked(graph, graph.ops[operator], model.scratch)
    position = [one for one in storage_map.scratch if storage_map.producers[one] == [operator]].index(storage)
    return asked[position]


def is_view_kind(op: Op, model: MemoryModel) -> bool:
    """Whether the operator is of a kind whose first output is the same bytes as its first input, where it has one."""
    return op.kind in model.views and bool(op.inputs) and op.inputs[0] != ABSENT and not op.attrs.get("move")


def _is_view(graph: Graph, model: MemoryModel, op: Op, storage_map: StorageMap) -> bool:
    """Whether the first output is the same bytes as the first input."""
    if not is_view_kind(op, model):
        return False
    source, output = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    if source.role != "activation" or source.nbytes != output.nbytes:
        return False
    if model.inputs_apart and op.inputs[0] in storage_map.inputs:
        return False
    # A runtime copies where an output of the graph would share the bytes of an input of the graph.
    return op.outputs[0] not in storage_map.outputs or not (model.outputs_apart or op.inputs[0] in storage_map.inputs)


def _is_concatenation_view(
    model: MemoryModel, op: Op, tensor: int, parts: Sequence[int], storage_map: StorageMap
) -> bool:
    if op.kind != "Concat" or not model.concat_is_view or tensor in storage_map.outputs or op.attrs.get("activation"):
        return False
    storages = _held(parts, storage_map)
    return len(set(storages)) == len(storages) and all(storage_map.storages_of[part] for part in parts)


def _is_cut(graph: Graph, model: MemoryModel, op: Op, storage_map: StorageMap) -> bool:
    """Whether the result is rows of the first input that stay where they lie."""
    if not model.rows_in_place or "lies_at" not in op.attrs or op.outputs[0] in storage_map.outputs:
        return False
    begin, source = int(op.attrs["lies_at"]), op.inputs[0]
    if any(source in (state.read, state.written) for state in graph.states):
        return False  # the state is written over while the rows may still be read
    inside = begin >= 0 and begin + graph.tensors[op.outputs[0]].nbytes <= graph.tensors[source].nbytes
    return inside and len(storage_map.storages_of[source]) == 1


def _joins_rows(graph: Graph, op: Op) -> bool:
    """Whether a concatenation with parts made in place puts its parts one behind the other in memory."""
    if op.kind != "Concat" or not op.attrs.get("in_place") or op.attrs.get("activation"):
        return False
    shape = graph.tensors[op.outputs[0]].shape
    outer = shape[: int(op.attrs["axis"]) % max(len(shape), 1)]
    return all(extent == 1 for extent in outer)


def _gather(graph: Graph, op: Op, storage: int, storage_map: StorageMap) -> None:
    """Put the parts that the operator lists in `in_place` inside its result, unless they are used twice, are graph
    outputs or share bytes. The other parts are copied there."""
    begin, uses = 0, Counter(op.inputs)
    for position, part in enumerate(op.inputs):
        alone = uses[part] == 1 and part not in storage_map.outputs
        if position in op.attrs["in_place"] and alone and storage_map.spanned(part):
            storage_map.absorb(storage, part, begin)
            storage_map.exclusive[storage] = False
            storage_map.close((storage,))
        begin += graph.tensors[part].nbytes


def _accumulates(
    graph: Graph,
    model: MemoryModel,
    index: int,
    parts: Sequence[int],
    storage_map: StorageMap,
    read_by: Sequence[Sequence[int]],
) -> bool:
    """Whether a sum of partial results happens in the bytes of its first part. Every part must be as large as the sum,
    must have no other reader, and must not be a view. A part may be an earlier sum that accumulates, unless that ends
    in an activation."""
    op = graph.ops[index]
    if op.kind != "Sum" or not model.accumulates or not op.attrs.get("partial_sum") or not parts:
        return False
    nbytes = graph.tensors[op.outputs[0]].nbytes
    storages_of_parts = [storage_map.storages_of[part] for part in parts]
    return (
        len(set(storages_of_parts)) == len(parts)  # no part twice
        and all(len(storages) == 1 for storages in storages_of_parts)
        and all(read_by[part] == (index,) and graph.tensors[part].nbytes == nbytes for part in parts)
        and not set(parts) & (storage_map.inputs | storage_map.outputs)
        and all(storage_map.open_to_sums[storage] for (storage,) in storages_of_parts)
    )


def takeover(graph: Graph, model: MemoryModel, storage_map: StorageMap, op: Op) -> list[int]:
    """The storages of equal size that the operator's output may overwrite, in the sequence of its inputs: runtimes take
    the first."""
    position = model.in_place_input.get(op.kind)
    if (position is None and op.kind not in model.in_place) or op.attrs.get("move"):
        return []
    if len(op.outputs) != 1 or op.outputs[0] == ABSENT:
        return []
    outputs = storage_map.storages_of[op.outputs[0]]
    if len(outputs) != 1 or len(storage_map.producers[outputs[0]]) != 1:
        return []
    if model.outputs_apart and op.outputs[0] in storage_map.outputs:
        return []
    if position is not None and (position >= len(op.inputs) or op.inputs.count(op.inputs[position]) > 1):
        return []  # an input that the operator also reads at another position cannot be overwritten
    taken: list[int] = []
    for tensor in op.inputs if position is None else op.inputs[position : position + 1]:
        if tensor == ABSENT or len(storage_map.storages_of[tensor]) != 1:
            continue
        (storage,) = storage_map.storages_of[tensor]
        if (
            storage != outputs[0]
            and storage not in taken
            and storage_map.exclusive[storage]
            and not storage_map.kept[storage]
            and not (model.in_place_only_reader and storage_map.reads[tensor] > 1)
            and storage_map.nbytes[storage] == storage_map.nbytes[outputs[0]]
            and graph.tensors[tensor].nbytes == graph.tensors[op.outputs[0]].nbytes
        ):
            if model.in_place_only_reader:  # the runtime looks at no further input
                return [storage] if storage_map.reads[storage_map.spanning(storage)] <= 1 else []
            taken.append(storage)
    return taken


@dataclass(frozen=True, slots=True)
class Lagged:
    """An operator whose result, the storage `written`, may overlap the storage `read` if it begins `lag` bytes or more
    below it. `nbytes`: the most bytes that both can have in common."""

    read: int
    written: int
    lag: int
    nbytes: int


def lagged(graph: Graph, model: MemoryModel, storage_map: StorageMap, index: int) -> Lagged | None:
    """The overlap that the kernels of the model's library allow this operator, or None."""
    op = graph.ops[index]
    if (
        model.kernels is None
        or op.kind in model.in_place
        or len(op.outputs) != 1
        or ABSENT in (*op.inputs[:1], *op.outputs)
    ):
        return None
    lag = least_lag(graph, op, model.kernels) if op.inputs else None
    if lag is None or not (storage_map.alone(op.inputs[0]) and storage_map.spanned(op.outputs[0])):
        return None
    (read,), (written,) = storage_map.storages_of[op.inputs[0]], storage_map.storages_of[op.outputs[0]]
    if storage_map.kept[read] or storage_map.producers[written] != [index]:
        return None
    lag = align_up(lag, model.alignment)
    # A result that begins `lag` bytes below the input overlaps it in at most this many bytes.
    nbytes = min(storage_map.nbytes[read], storage_map.nbytes[written] - lag)
    return Lagged(read, written, lag, nbytes) if nbytes > 0 else None
