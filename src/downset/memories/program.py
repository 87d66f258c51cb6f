"""A plan for two memories as a program: operators and moves one after another, and the copy that each operand is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from downset.errors import InvalidPlan, UnsupportedError
from downset.graph.core import ABSENT, Graph
from downset.memory.models import MemoryModel, memory_model
from downset.memory.records import align_up
from downset.memory.storages import StorageMap, map_storages
from downset.results.memories import MemoriesPlan, Move, Residence

__all__ = ["Copy", "MovedProgram", "MovedStep", "program_of"]

_ALIGNMENT = 16


@dataclass(frozen=True, slots=True)
class Copy:
    """The bytes of a tensor in one of the memories, `offset` bytes behind its beginning."""

    tensor: int
    fast: bool
    offset: int


@dataclass(frozen=True, slots=True)
class MovedStep:
    """An operator with the copies of the tensors that it reads and writes (`copies`, by tensor), or, where `operator`
    is None, the move of one copy to another (`moved`: source, target)."""

    operator: int | None
    copies: Mapping[int, int]
    moved: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class MovedProgram:
    """The steps in their order. `inputs` and `outputs`: the copies in which the caller puts the network's inputs and
    finds its outputs. `first`: by tensor, the copy that is made first."""

    copies: tuple[Copy, ...]
    steps: tuple[MovedStep, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    first: Mapping[int, int]

    @property
    def moves(self) -> int:
        return sum(step.moved is not None for step in self.steps)


def program_of(graph: Graph, plan: MemoriesPlan, memory: str | MemoryModel = "tflm") -> MovedProgram:
    """The program of a plan that has offsets. `memory`: the model under which it was planned.

    Raises InvalidPlan where the plan states no copy of an operand, and UnsupportedError where it moves a storage in
    which several tensors lie: no single operator of a file copies that."""
    return _Making(graph, plan, map_storages(graph, memory_model(memory))).program()


class _Making:
    def __init__(self, graph: Graph, plan: MemoriesPlan, storages: StorageMap) -> None:
        self._graph, self._plan, self._storages = graph, plan, storages
        self._residences: dict[int, list[Residence]] = {}
        for residence in plan.residences:
            self._residences.setdefault(residence.storage, []).append(residence)
        self._slow = dict(plan.slow_offsets)
        self._copies: list[Copy] = []
        self._held: dict[tuple[int, bool], int] = {}
        """By (tensor, whether in fast memory): the newest copy."""
        self._first: dict[int, int] = {}
        self._steps: list[MovedStep] = []
        self._moved_at: dict[int, list[Move]] = {}
        for move in plan.moves:
            self._moved_at.setdefault(move.position, []).append(move)
        if len(plan.storage_of) != len(graph.tensors):
            raise InvalidPlan(
                f"the plan is of {len(plan.storage_of)} tensors, and the network has {len(graph.tensors)}"
            )
        self._tensors_of: dict[int, list[int]] = {}
        for tensor, storage in enumerate(plan.storage_of):
            if storage >= 0:
                self._tensors_of.setdefault(storage, []).append(tensor)

    def program(self) -> MovedProgram:
        graph, order = self._graph, self._plan.order
        if sorted(order) != list(range(len(graph.ops))):
            raise InvalidPlan(f"the plan's order does not run each of the {len(graph.ops)} operators once")
        loaded = {move.storage for move in self._moved_at.get(0, ()) if move.into_fast}
        for tensor in dict.fromkeys(graph.inputs):
            if self._counts(tensor):
                self._make(tensor, 0, fast=self._covers(tensor, 0) and self._storage(tensor) not in loaded)
        self._place_unread()
        for position, operator in enumerate(order):
            self._move(position)
            self._steps.append(MovedStep(operator, self._operands(operator, position)))
        self._move(len(order))
        ends = [self._first.get(tensor, ABSENT) for tensor in graph.inputs]
        return MovedProgram(
            tuple(self._copies),
            tuple(self._steps),
            tuple(ends),
            tuple(self._last(tensor) for tensor in graph.outputs),
            self._first,
        )

    def _place_unread(self) -> None:
        """Put the inputs that no operator reads, which the caller sets nevertheless, above all else in slow memory."""
        top = align_up(self._plan.slow_bytes, _ALIGNMENT)
        for tensor in dict.fromkeys(self._graph.inputs):
            meta = self._graph.tensors[tensor]
            if tensor not in self._first and meta.nbytes:
                self._copies.append(Copy(tensor, False, top))
                self._first[tensor] = len(self._copies) - 1
                top += align_up(meta.nbytes, _ALIGNMENT)

    def _counts(self, tensor: int) -> bool:
        return tensor != ABSENT and self._plan.storage_of[tensor] >= 0

    def _storage(self, tensor: int) -> int:
        return self._plan.storage_of[tensor]

    def _residence(self, tensor: int, position: int) -> Residence | None:
        residences = self._residences.get(self._storage(tensor), ())
        return next((one for one in residences if one.start <= position < one.stop), None)

    def _covers(self, tensor: int, position: int) -> bool:
        return self._residence(tensor, position) is not None

    def _make(self, tensor: int, position: int, *, fast: bool) -> int:
        """Add a copy of the tensor that begins at this position."""
        storage, begin = self._storage(tensor), self._storages.begin_of[tensor]
        residence = self._residence(tensor, position) if fast else None
        offset = self._slow.get(storage) if residence is None else residence.offset
        if offset is None:
            memory = "fast" if fast else "slow"
            raise InvalidPlan(f"the plan states no offset of {self._graph.tensors[tensor].name!r} in {memory} memory")
        self._copies.append(Copy(tensor, fast, offset + begin))
        index = self._held[tensor, fast] = len(self._copies) - 1
        self._first.setdefault(tensor, index)
        return index

    def _move(self, position: int) -> None:
        for move in self._moved_at.get(position, ()):
            tensors = self._tensors_of.get(move.storage, [])
            if len(tensors) != 1:
                names = ", ".join(repr(self._graph.tensors[tensor].name) for tensor in tensors[:3])
                raise UnsupportedError(f"the plan moves {len(tensors)} tensors that share bytes at once: {names}")
            (tensor,) = tensors
            source = self._held.get((tensor, not move.into_fast))
            if source is None:
                raise InvalidPlan(f"the plan moves {self._graph.tensors[tensor].name!r} from where it does not lie")
            target = self._make(tensor, position, fast=move.into_fast)
            self._steps.append(MovedStep(None, {}, (source, target)))

    def _operands(self, operator: int, position: int) -> dict[int, int]:
        op = self._graph.ops[operator]
        copies = {}
        for tensor in dict.fromkeys(op.inputs):
            if self._counts(tensor):
                copies[tensor] = self._copy_at(tensor, position)
        for tensor in op.outputs:
            if self._counts(tensor):
                copies[tensor] = self._make(tensor, position, fast=self._covers(tensor, position))
        return copies

    def _copy_at(self, tensor: int, position: int) -> int:
        fast = self._covers(tensor, position)
        index = self._held.get((tensor, fast))
        if index is None or (fast and not self._is_of(index, self._residence(tensor, position))):
            memory = "fast" if fast else "slow"
            name = self._graph.tensors[tensor].name
            raise InvalidPlan(f"at position {position} the plan reads {name!r} in {memory} memory, where it is not")
        return index

    def _is_of(self, index: int, residence: Residence | None) -> bool:
        copy = self._copies[index]
        begin = self._storages.begin_of[copy.tensor]
        return residence is not None and residence.offset is not None and copy.offset == residence.offset + begin

    def _last(self, tensor: int) -> int:
        """The copy of a network output after the last step: in fast memory where it stays there to the end."""
        if not self._counts(tensor):
            return self._first.get(tensor, ABSENT)
        residences: Sequence[Residence] = self._residences.get(self._storage(tensor), ())
        stays = any(one.stop >= len(self._plan.order) for one in residences)
        index = self._held.get((tensor, stays))
        if index is None:
            raise InvalidPlan(f"output {self._graph.tensors[tensor].name!r} is lost before the end")
        return index
