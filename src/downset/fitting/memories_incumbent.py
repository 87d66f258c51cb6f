"""A file that was fitted to no more memory, as the incumbent of a fit: its network without its moves, and its plan."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from downset.errors import InvalidPlan, UsageError
from downset.fitting.memories_networks import MemoriesJob, most_scratch
from downset.fitting.memories_options import TwoMemoriesOptions
from downset.formats.reading import check_readable, load
from downset.formats.tflite.read_moves import PlacedNetwork, write_without_moves
from downset.graph.core import Graph
from downset.memories.bound import order_free_bound
from downset.memories.check import check_memories
from downset.memories.moves import implied
from downset.memories.of_graph import MemoriesForm, MemoriesRequest, memories_form
from downset.memory.models import TFLM_WITHOUT_OFFSETS, MemoryModel, memory_model
from downset.memory.storages import map_storages
from downset.messages import Message, Setting
from downset.results.memories import MemoriesPlan, Residence
from downset.results.plans import Evidence
from downset.results.two_memories import ALIGNMENT, TwoMemories
from downset.runtimes.compare import prove_same
from downset.text import format_bytes

__all__ = ["Incumbent", "read_incumbent"]

_BOUND_SHARE, _BOUND_NODES = 0.05, 1_500


class Incumbent(NamedTuple):
    """The network of the file, the model under which it was planned, its plan, and the memories of this fit with the
    file's persistent part."""

    graph: Graph
    model: MemoryModel
    plan: MemoriesPlan
    memories: TwoMemories


def read_incumbent(job: MemoriesJob) -> Incumbent | None:
    """The incumbent that the options name; None without one. Raises UsageError for a file that was not fitted to two
    memories from this model, or takes more of a memory than there is."""
    options = job.options
    if options.incumbent is None:
        return None
    path = Path(options.incumbent)
    check_readable(path)
    said = Setting("incumbent", str(path))
    target = job.folder / "incumbent.tflite"
    placed = write_without_moves(path, target)
    if not prove_same(options.model, path).proven:
        raise UsageError(Message(said, f" is not proven to compute what {options.model} computes"))
    graph = load(target)
    whole = len(graph.ops) == len(job.graph.ops)
    model = memory_model("tflm") if whole else TFLM_WITHOUT_OFFSETS
    memories = TwoMemories(
        options.fast_bytes // ALIGNMENT * ALIGNMENT,
        options.slow_bytes // ALIGNMENT * ALIGNMENT,
        options.distance,
        placed.memories.persistent_bytes,
        most_scratch(graph, options.library),
        options.library,
        options.persistent,
    )
    reading = _Reading(graph, model, placed)
    for name, room, taken in (
        ("fast_bytes", memories.fast_capacity, reading.fast_bytes),
        ("slow_bytes", memories.slow_capacity, reading.slow_bytes),
    ):
        if taken > room:
            needed = getattr(options, name) - room + taken
            raise UsageError(
                Message(
                    said,
                    f" takes {format_bytes(needed)} B, more than ",
                    Setting(name, getattr(options, name)),
                    ": give a file that was fitted to less memory",
                )
            )
    request = MemoriesRequest(memories.fast_capacity, model, prices=options.byte_prices)
    try:
        return Incumbent(graph, model, _plan(job, memories_form(graph, request), reading), memories)
    except InvalidPlan as error:
        raise UsageError(Message(said, " has no plan that is understood: ", error.message)) from None


class _Reading:
    """Residences and places in slow memory, by storage, from the offsets of the operators' operands."""

    def __init__(self, graph: Graph, model: MemoryModel, placed: PlacedNetwork) -> None:
        self.placed = placed
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
        memories, storage = self.placed.memories, self._storage(tensor)
        home = memories.is_fast(offset, 1)
        if storage < 0 or home is None:
            return
        begin = self.map.begin_of[self.graph_tensor[tensor]]
        if not home:
            self.slow[storage] = offset - memories.slow_first - begin
            return
        at = offset - memories.fast_first - begin
        index = self._open.get(storage)
        if index is None or self.residences[index][3] != at:
            self._open[storage] = len(self.residences)
            self.residences.append((storage, position, position + 1, at))
        else:
            self.residences[index] = (storage, self.residences[index][1], position + 1, at)

    @property
    def fast_bytes(self) -> int:
        return max((at + self.map.nbytes[storage] for storage, _, _, at in self.residences), default=0)

    @property
    def slow_bytes(self) -> int:
        return max((at + self.map.nbytes[storage] for storage, at in self.slow.items()), default=0)


def _plan(job: MemoriesJob, form: MemoriesForm, reading: _Reading) -> MemoriesPlan:
    problem, order = form.problem, tuple(range(len(reading.placed.operators)))
    number = {
        reading.map.storages_of[tensor][0]: storage for tensor, storage in enumerate(form.storage_of) if storage >= 0
    }
    residences = sorted(
        (Residence(number[storage], start, stop, at) for storage, start, stop, at in reading.residences),
        key=lambda one: (one.start, one.storage),
    )
    motion = implied(problem, order, residences)
    with job.search_time.running():
        budget = job.budget(_BOUND_SHARE)
        clock = budget.start().part(seconds=budget.seconds, states=_BOUND_NODES)
        bound = order_free_bound(problem, motion.cost, clock=clock) / form.scale
    value = motion.cost / form.scale
    touched = {move.storage for move in motion.moves} | {storage for _, storage, _ in motion.direct}
    slow = tuple(sorted((number[storage], at) for storage, at in reading.slow.items() if number[storage] in touched))
    plan = MemoriesPlan(
        order,
        tuple(residences),
        motion.moves,
        slow,
        reading.fast_bytes,
        reading.slow_bytes,
        motion.moved_bytes,
        motion.direct_bytes,
        Evidence("incumbent", value, bound, bound >= value),
        value,
        bound,
        form.storage_of,
    )
    check_memories(problem, plan, scale=form.scale)
    return plan


