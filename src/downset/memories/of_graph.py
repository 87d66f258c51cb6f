"""The problem of a graph: storages by its memory model, and what each kernel reads and writes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, get_args

from downset.errors import UnsupportedError, UsageError
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.cost import op_macs
from downset.graph.kinds import kind_of
from downset.memories.problem import Access, MemoriesProblem, MemoryStorage, Whereabouts, check_problem
from downset.memory.models import MemoryModel, memory_model
from downset.memory.records import align_up
from downset.memory.storages import map_storages
from downset.methods import check_choice, check_whole

__all__ = ["DirectName", "MemoriesForm", "PlaceName", "Prices", "WeightsName", "memories_form"]

DirectName = Literal["kernel", "once", "size", "never"]
"""Direct accesses in slow memory: "kernel" counts what the kernel reads and writes there, "once" allows them only where
each byte is read once, "size" counts each operand once (SERENITY's convention), "never" allows none."""
PlaceName = Literal["either", "slow", "fast"]
WeightsName = Literal["flash", "slow"]
"""Weights in a third memory, at no cost, or in slow memory."""

_ONCE = frozenset({"activation", "unary", "binary", "n-ary", "shape-only", "movement", "quantiser", "global pool"})
"""Categories whose kernels read each byte once, unless an operand is broadcast, and write each byte once."""
_CUTS = frozenset({"tflite::SLICE", "tflite::SPLIT_V"})
"""Kinds without a category of their own whose kernels copy a part of their first input."""


@dataclass(frozen=True, slots=True)
class Prices:
    """The price of a byte: `load` and `store` by a copy between the memories, `read` and `write` by an operator that
    accesses slow memory. Any unit of time or energy; whole numbers or fractions above 0."""

    load: float = 1
    store: float = 1
    read: float = 1
    write: float = 1

    def whole(self) -> tuple[tuple[int, int, int, int], int]:
        """(The four as whole numbers, the factor by which they were multiplied). Raises UsageError for a price that is
        not a number above 0."""
        exact = []
        for name in ("load", "store", "read", "write"):
            price = getattr(self, name)
            if isinstance(price, bool) or not isinstance(price, (int, float)) or not 0 < price < math.inf:
                raise UsageError(f"the price of a {name} is {price!r}; give a number above 0")
            exact.append(Fraction(price).limit_denominator(1000))
        if not all(exact):
            raise UsageError("a price is below 0.001; give all prices in a smaller unit")
        scale = math.lcm(*(price.denominator for price in exact))
        load, store, read, write = (int(price * scale) for price in exact)
        return (load, store, read, write), scale


@dataclass(frozen=True, slots=True)
class MemoriesForm:
    """The problem of a graph; `storage_of[t]`: the storage of tensor t, or -1; `scale`: how many units of the
    problem's costs are one of the user's prices."""

    problem: MemoriesProblem
    storage_of: tuple[int, ...]
    scale: int


@dataclass(frozen=True, slots=True)
class MemoriesRequest:
    """The request for a plan. `reserve_bytes` of fast memory are taken in every step."""

    fast_bytes: int
    memory: MemoryModel
    direct: DirectName = "kernel"
    inputs: PlaceName = "either"
    outputs: PlaceName = "either"
    weights: WeightsName = "flash"
    reserve_bytes: int = 0
    prices: Prices = Prices()


def memories_form(graph: Graph, request: MemoriesRequest) -> MemoriesForm:
    """The problem of a graph. Raises InfeasibleError where an operator's operands do not fit, UsageError for a request
    that cannot be used as given."""
    check_whole("fast", request.fast_bytes, least=1)
    check_whole("reserve", request.reserve_bytes, most=request.fast_bytes)
    check_choice("direct", request.direct, get_args(DirectName))
    check_choice("inputs", request.inputs, get_args(PlaceName))
    check_choice("outputs", request.outputs, get_args(PlaceName))
    check_choice("weights", request.weights, get_args(WeightsName))
    form = _Form(graph, request)
    problem = form.problem()
    check_problem(problem, [f"operator {op.name!r}" for op in graph.ops])
    return MemoriesForm(problem, tuple(form.storage_of), form.scale)


_PLACES = {"either": Whereabouts.EITHER, "slow": Whereabouts.SLOW, "fast": Whereabouts.FAST}


class _Form:
    """The storages and accesses of one graph, in the making."""

    def __init__(self, graph: Graph, request: MemoriesRequest) -> None:
        self.graph, self.request = graph, request
        (self.load, self.store, self.read, self.write), self.scale = request.prices.whole()
        self.map = map_storages(graph, memory_model(request.memory))
        self.storages: list[MemoryStorage] = []
        self.number: dict[int, int] = {}
        self.storage_of = [-1] * len(graph.tensors)
        self.workspace = [0] * len(graph.ops)
        self.weights: dict[int, int] = {}
        self._add_storages()

    def _add_storages(self) -> None:
        scratch, own = set(self.map.scratch), self._largest()
        for index, room in enumerate(self.map.nbytes):
            producers = self.map.producers[index]
            if index in scratch:
                self.workspace[producers[0]] += room
            elif room and (producers or self.map.consumers[index] or self.map.kept[index]):
                tensor = own[index]
                kept = self.map.kept[index]
                begins = Whereabouts.NOWHERE if producers else _PLACES[self.request.inputs]
                ends = _PLACES[self.request.outputs] if kept and producers else Whereabouts.NOWHERE
                self.number[index] = self._add(self.graph.tensors[tensor].nbytes, room, begins, ends)
        for tensor, places in enumerate(self.map.storages_of):
            if len(places) == 1:
                self.storage_of[tensor] = self.number.get(places[0], -1)
            elif len(places) > 1:
                name = self.graph.tensors[tensor].name
                raise UnsupportedError(
                    f"tensor {name!r} lies in several storages under memory model {self.request.memory.name!r}, which "
                    "no move copies; choose a model that materialises concatenations, such as live or tflm"
                )

    def _largest(self) -> dict[int, int]:
        """By storage: its largest tensor."""
        own: dict[int, int] = {}
        for tensor, places in enumerate(self.map.storages_of):
            for place in places:
                if self.graph.tensors[tensor].nbytes > self.graph.tensors[own.get(place, tensor)].nbytes:
                    own[place] = tensor
                own.setdefault(place, tensor)
        return own

    def _add(self, nbytes: int, room: int, begins: Whereabouts, ends: Whereabouts) -> int:
        self.storages.append(MemoryStorage(nbytes, room, nbytes * self.load, nbytes * self.store, begins, ends))
        return len(self.storages) - 1

    def problem(self) -> MemoriesProblem:
        accesses = tuple(self._accesses(op) for op in self.graph.ops)
        return MemoriesProblem(
            self.graph.predecessors(),
            tuple(self.storages),
            accesses,
            tuple(self.workspace),
            self.request.fast_bytes - self.request.reserve_bytes,
        )

    def _accesses(self, op: Op) -> tuple[Access, ...]:
        """Each storage once; one that is read and written counts as written."""
        read: dict[int, int | None] = {}
        written: dict[int, int | None] = {}
        for place, tensor in enumerate(op.inputs):
            storage = self._storage(tensor)
            if storage >= 0:
                self._join(read, storage, self._direct(op, tensor, place))
        for tensor in op.outputs:
            storage = self.storage_of[tensor] if tensor != ABSENT else -1
            if storage >= 0:
                self._join(written, storage, self._direct(op, tensor, None))
        return (
            *(self._access(storage, nbytes, 0, False) for storage, nbytes in read.items() if storage not in written),
            *(self._access(storage, read.get(storage, 0), nbytes, True) for storage, nbytes in written.items()),
        )

    def _access(self, storage: int, read: int | None, written: int | None, writes: bool) -> Access:
        """An access that reads and writes so many bytes in slow memory; None: not allowed there."""
        if read is None or written is None:
            return Access(storage, writes, None)
        return Access(storage, writes, read * self.read + written * self.write, read + written)

    @staticmethod
    def _join(table: dict[int, int | None], storage: int, nbytes: int | None) -> None:
        before = table.get(storage, 0)
        table[storage] = None if nbytes is None or before is None else before + nbytes

    def _storage(self, tensor: int) -> int:
        """The storage of an operand; that of a weight is made where weights lie in slow memory."""
        if tensor == ABSENT:
            return -1
        role = self.graph.tensors[tensor].role
        if role != "constant" or self.request.weights == "flash":
            return self.storage_of[tensor]
        nbytes = self.graph.tensors[tensor].nbytes
        if tensor not in self.weights and nbytes:
            room = align_up(nbytes, self.request.memory.alignment)
            self.weights[tensor] = self._add(nbytes, room, Whereabouts.SLOW, Whereabouts.NOWHERE)
            self.storage_of[tensor] = self.weights[tensor]
        return self.storage_of[tensor]

    def _direct(self, op: Op, tensor: int, place: int | None) -> int | None:
        """Bytes that the kernel reads (or writes: no place) of this operand in slow memory; None: not allowed."""
        nbytes = self.graph.tensors[tensor].nbytes
        match self.request.direct:
            case "never":
                return None
            case "size":
                return min(nbytes, kernel_bytes(self.graph, op, tensor, place) or nbytes)
            case "once":
                return nbytes if kernel_bytes(self.graph, op, tensor, place) == nbytes else None
        return kernel_bytes(self.graph, op, tensor, place)


def kernel_bytes(graph: Graph, op: Op, tensor: int, place: int | None) -> int | None:
    """Bytes of the operand at `place` that the reference kernel reads, or of its result that it writes (no place): one
    operand for each multiply-add, one for each cell of a pool's window, each byte once where values are copied or
    computed one by one, and what is cut out where a part is. None where it is not known."""
    kind = kind_of(op.kind)
    nbytes, elements = graph.tensors[tensor].nbytes, max(math.prod(graph.tensors[tensor].shape), 1)
    results = sum(math.prod(graph.tensors[output].shape) for output in op.outputs if output != ABSENT)
    cuts = op.kind in _CUTS
    if cuts or (kind.category in _ONCE and kind.rows != "resize"):
        if place is None or not (cuts or kind.broadcasts or kind.category == "movement"):
            return nbytes
        return nbytes * results // elements if kind.broadcasts else min(nbytes, nbytes * results // elements)
    if kind.category == "pool":
        window = op.attrs.get("kernel_shape")
        return nbytes if place is None else nbytes * results * int(math.prod(window)) // elements if window else None
    macs = op_macs(graph, op)
    if not macs:
        return None
    return nbytes // elements * macs if place is not None and place < _FACTORS else nbytes


_FACTORS = 2
"""The first two inputs of an operator that multiplies are read for each product; a third, the bias, once."""
