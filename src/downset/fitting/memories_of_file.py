"""The plan of a file with moves between two memories, from the places of its tensors."""

from __future__ import annotations

from downset.formats.tflite.read_moves import PlacedNetwork
from downset.graph.core import Graph
from downset.memories.check import check_memories
from downset.memories.moves import implied
from downset.memories.of_graph import MemoriesForm
from downset.memory.models import MemoryModel
from downset.memory.storages import map_storages
from downset.results.memories import MemoriesPlan, Residence
from downset.results.plans import Evidence

__all__ = ["PlacedStorages", "plan_of_file"]


class PlacedStorages:
    """Residences and places in slow memory, by storage, from the offsets of the operators' operands."""

    def __init__(self, graph: Graph, model: MemoryModel, placed: PlacedNetwork) -> None:
        self.network = placed
        self.map = map_storages(graph, model)
        self.graph_tensor = {old: new for new, old in enumerate(graph.source.tensor_index)}
        self.residences: list[tuple[int, int, int, int]] = []
        """(storage of the memory model, start, stop, offset)."""
        self.slow: dict[int, int] = {}
        self._open: dict[int, int] = {}
        """By storage: its residence that the next access in fast memory prolongs."""
        for tensor, offset in placed.inputs.items():
            self._touch(tensor, offset, 0)
        for position, operator in enumerate(placed.operators):
            for tensor in operator.loaded:
                self._open.pop(self._storage(tensor), None)
            for tensor, offset in operator.offsets.items():
                self._touch(tensor, offset, position)
        for tensor, offset in (*placed.outputs.items(), *placed.stored.items()):
            self._touch(tensor, offset, len(placed.operators) - 1)

    def _storage(self, tensor: int) -> int:
        places = self.map.storages_of[self.graph_tensor[tensor]]
        return places[0] if places else -1

    def _touch(self, tensor: int, offset: int, position: int) -> None:
        memories, storage = self.network.memories, self._storage(tensor)
        home = memories.is_fast(offset, 1)
        if storage < 0 or home is None:
            return
        begin = self.map.begin_of[self.graph_tensor[tensor]]
        if not home:
            self.slow[storage] = offset - memories.slow_first - begin
            return
        place = offset - memories.fast_first - begin
        index = self._open.get(storage)
        if index is None or self.residences[index][3] != place:
            self._open[storage] = len(self.residences)
            self.residences.append((storage, position, position + 1, place))
        else:
            self.residences[index] = (storage, self.residences[index][1], position + 1, place)

    @property
    def fast_bytes(self) -> int:
        return max((place + self.map.nbytes[storage] for storage, _, _, place in self.residences), default=0)

    @property
    def slow_bytes(self) -> int:
        return max((place + self.map.nbytes[storage] for storage, place in self.slow.items()), default=0)


def plan_of_file(placed: PlacedStorages, form: MemoriesForm) -> MemoriesPlan:
    """The plan, in the sequence of the file, with no bound. What a file stores that is not needed later is left out.
    Raises InvalidPlan where the places are not those of a plan."""
    problem, order = form.problem, tuple(range(len(placed.network.operators)))
    number = {
        placed.map.storages_of[tensor][0]: storage for tensor, storage in enumerate(form.storage_of) if storage >= 0
    }
    residences = sorted(
        (
            Residence(number[storage], start, stop, place)
            for storage, start, stop, place in placed.residences
            if storage in number
        ),
        key=lambda one: (one.start, one.storage),
    )
    motion = implied(problem, order, residences)
    touched = {move.storage for move in motion.moves} | {storage for _, storage, _ in motion.direct}
    value = motion.cost / form.scale
    plan = MemoriesPlan(
        order,
        tuple(residences),
        motion.moves,
        tuple(
            sorted((number[storage], place) for storage, place in placed.slow.items() if number.get(storage) in touched)
        ),
        placed.fast_bytes,
        placed.slow_bytes,
        motion.moved_bytes,
        motion.direct_bytes,
        Evidence("incumbent", value, 0, proven=not value),
        value,
        0,
        form.storage_of,
    )
    check_memories(problem, plan, scale=form.scale)
    return plan
