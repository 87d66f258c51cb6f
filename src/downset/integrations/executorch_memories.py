"""An ExecuTorch graph in fast memory with slow memory behind it: clones that move tensors from one to the other.

A move is a call of `dim_order_ops::_clone_dim_order.out` into an allocation of its own, which lies in the other memory.
It is put into the graph behind all passes, directly before memory is planned, so that no pass takes it out again.
Bytes are counted as in `executorch_order`, and each operand of a call once. The plan of `banked_greedy`, the planner
that ExecuTorch 1.5 has for several memories, is counted the same way and taken where it has fewer.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from typing import Any

from downset.errors import UnsupportedError
from downset.graph.core import Graph, Op, Tensor
from downset.integrations.executorch_nodes import is_alloc
from downset.integrations.executorch_order import Dialect, SpecStorage, Units, call_of, link
from downset.memories.plan import plan_memories
from downset.memories.program import MovedProgram, program_of
from downset.memory.models import MEMORY_MODELS
from downset.memory.records import align_up
from downset.results.memories import MemoriesPlan
from downset.text import abridged, format_bytes

__all__ = ["FAST", "SLOW", "MemoriesReport", "MemorySettings", "MovableGraph", "Moved", "banked_algorithm"]

FAST, SLOW = 1, 2
"""The numbers of the memories, as specs state them."""


@dataclass(frozen=True, slots=True)
class MemorySettings:
    """`fast_bytes` and `slow_bytes`: the sizes of the memories."""

    fast_bytes: int
    slow_bytes: int
    method: str = "joint"
    time_limit_s: float = 10.0
    work_limit: int | None = None


@dataclass(frozen=True, slots=True)
class MemoriesReport:
    """The moves of a graph, its bytes to and from slow memory in a run, and its plan; None where ExecuTorch's own
    `banked_greedy` placed it."""

    moves: int
    moved_bytes: int
    direct_bytes: int
    plan: MemoriesPlan | None

    __repr__ = abridged

    def __str__(self) -> str:
        """The report as one line of text."""
        moved, direct = map(format_bytes, (self.moved_bytes, self.direct_bytes))
        how = "placed by banked_greedy" if self.plan is None else f"{self.moves} moves"
        return f"{how}: {moved} B moved, {direct} B accessed in slow memory"


@dataclass(slots=True)
class Moved:
    """A graph with its moves. `places`: by id of a spec, its memory and its offset there. `nbytes`: of each memory, 0
    the first, as the algorithm returns them; it adds what is not in the plan above those of slow memory."""

    report: MemoriesReport
    places: dict[int, tuple[int, int]] = field(default_factory=dict)
    nbytes: list[int] = field(default_factory=lambda: [0, 0, 0])

    def place(self, specs: Sequence[Any], alignment: int) -> list[int]:
        """Write the place of each spec, and return the bytes of each memory. A spec that is not in the plan, such as a
        buffer that calls write to, has a place of its own in slow memory."""
        nbytes = list(self.nbytes)
        for spec in specs:
            memory, offset = self.places.get(id(spec), (SLOW, align_up(nbytes[SLOW], alignment)))
            if id(spec) not in self.places:
                nbytes[SLOW] = offset + spec.realign(alignment)
            spec.realign(alignment)
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = memory, offset, 0
        return nbytes


def banked_algorithm(settings: MemorySettings) -> Any:
    """ExecuTorch's own planner of these two memories; None in versions that have none."""
    if find_spec("executorch.exir.banked_memory_planning") is None:
        return None
    from executorch.exir.banked_memory_planning import Bank, BankedGreedy, TargetMemoryMap
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite

    sizes = (("fast", settings.fast_bytes, FAST), ("slow", settings.slow_bytes, SLOW))
    banks = [Bank(name, size, number) for name, size, number in sizes if size]
    return MemoryPlanningAlgorithmSuite([BankedGreedy(TargetMemoryMap(banks))])


class MovableGraph:
    """A graph into which moves can be put. Storage i of its units is tensor i of `network`."""

    def __init__(self, graph_module: Any, dialect: Dialect) -> None:
        self._module = graph_module
        self._graph = graph = graph_module.graph
        self._memory = replace(MEMORY_MODELS["live"], name="executorch", alignment=dialect.alignment)
        self._units = Units(list(graph.nodes), dialect)
        self._storages = [one for one in self._units.storages() if _is_planned(one)]
        self._number = {id(one): number for number, one in enumerate(self._storages)}
        self.network = self._network()

    def _network(self) -> Graph:
        tensors = tuple(Tensor(f"s{i}", (), "uint8", one.nbytes) for i, one in enumerate(self._storages))
        ops = []
        predecessors = self._units.problem().predecessors
        for unit, members in enumerate(self._units.members):
            storages = self._units.touching(unit) if not _is_view(call_of(members)) else []
            touched = [self._number[id(one)] for one in storages if id(one) in self._number]
            results = [number for number in touched if self._storages[number].made_by == unit]
            read = tuple(number for number in touched if number not in results)
            ops.append(Op(call_of(members).name, "opaque", read, tuple(results), {}, tuple(predecessors[unit])))
        inputs = tuple(number for number, one in enumerate(self._storages) if one.is_input)
        outputs = tuple(number for number, one in enumerate(self._storages) if one.kept and not one.is_input)
        return Graph("executorch", tensors, tuple(ops), inputs, outputs).check()

    def planned(self, settings: MemorySettings) -> MemoriesPlan:
        """Raises InfeasibleError where the memories hold no plan."""
        return plan_memories(
            self.network,
            fast=settings.fast_bytes,
            slow=settings.slow_bytes,
            memory=self._memory,
            direct="size",
            method=settings.method,
            time_limit_s=settings.time_limit_s,
            work_limit=settings.work_limit,
        )

    def slow_bytes(self, plan: MemoriesPlan) -> int:
        """Bytes to and from slow memory in a run by the plan."""
        return plan.moved_bytes + plan.direct_bytes + self._fixed_bytes()

    def placed_slow_bytes(self) -> int:
        """The same where the specs of the graph state their memories, and nothing moves."""
        counted = [one for one in self._units.storages() if one.nbytes]
        return self._accessed_bytes(one for one in counted if self._units.root_spec(one).mem_id == SLOW)

    def write(self, plan: MemoriesPlan) -> Moved:
        """Put the moves of the plan into the graph, and its nodes into the order of the plan. Raises UnsupportedError
        for a graph whose tensors no move copies."""
        moved = self._written(plan, program_of(self.network, plan, self._memory))
        self._graph.lint()
        self._module.recompile()
        return moved

    def _written(self, plan: MemoriesPlan, program: MovedProgram) -> Moved:
        report = MemoriesReport(program.moves, plan.moved_bytes, plan.direct_bytes + self._fixed_bytes(), plan)
        moved = Moved(report, nbytes=[0, plan.fast_bytes, plan.slow_bytes])
        holds: dict[int, Any] = {}
        """By copy that a move makes: its node. All other copies are made by nodes of the graph itself."""
        sequence = [*self._units.head]
        replaced: dict[tuple[Any, int], Any] = {}
        for step in program.steps:
            if step.moved is not None:
                sequence += self._clone(program, step.moved, holds)
                continue
            assert step.operator is not None
            sequence += self._reading(step.operator, step.copies, holds, replaced)
        self._finish(program, holds, replaced, sequence)
        for number, one in enumerate(program.copies):
            spec = holds[number].meta["spec"] if number in holds else self._spec_of(one.tensor)
            moved.places[id(spec)] = (FAST if one.fast else SLOW, one.offset)
        return moved

    def _fixed_bytes(self) -> int:
        """Bytes that calls access of what the plan leaves in slow memory."""
        return self._accessed_bytes(one for one in self._units.storages() if one.nbytes and not _is_planned(one))

    def _accessed_bytes(self, storages: Iterable[SpecStorage]) -> int:
        """Bytes that calls access of these storages, each once for each call."""
        calls = {unit for unit, members in enumerate(self._units.members) if not _is_view(call_of(members))}
        return sum(one.nbytes * len(one.touched & calls) for one in storages)

    def _spec_of(self, tensor: int) -> Any:
        """The spec whose bytes the storage is: that of the node that made it."""
        return self._units.root_spec(self._storages[tensor])

    def _clone(self, program: MovedProgram, ends: tuple[int, int], holds: dict[int, Any]) -> Iterator[Any]:
        """The nodes of a move: an allocation, and the call that copies into it."""
        import torch
        from executorch.exir import memory
        from executorch.exir.passes import dim_order_ops_registry as _registered  # noqa: F401 - makes the operator known

        source, target = ends
        tensor = program.copies[source].tensor
        spec = copy.copy(self._spec_of(tensor))
        if type(spec).__name__ == "_ViewSpec":
            raise UnsupportedError(f"no move copies {spec!r}, which is a view")
        spec.init_mem_planning_fields()
        node = holds.get(source) or self._units.root_node(self._storages[tensor])
        with self._graph.inserting_before(self._graph.output_node()):
            allocated = self._graph.call_function(memory.alloc, ((tuple(spec.shape), spec.dtype),))
            call = self._graph.call_function(
                torch.ops.dim_order_ops._clone_dim_order.out,
                (node,),
                {"non_blocking": False, "dim_order": [int(axis) for axis in spec.dim_order], "out": allocated},
            )
        for one in (allocated, call):
            one.meta["spec"] = spec
            if "val" in node.meta:
                one.meta["val"] = node.meta["val"]
        holds[target] = call
        yield from (allocated, call)

    def _reading(
        self, unit: int, copies: Any, holds: dict[int, Any], replaced: dict[tuple[Any, int], Any]
    ) -> Iterator[Any]:
        """The nodes of a unit, which read the copies of this step; views of a copy before them."""
        members = self._units.members[unit]
        for node in members:
            for read in node.all_input_nodes:
                if is_alloc(read):
                    continue
                number = self._copy_read(read, copies)
                if number not in holds:
                    continue
                other, new = self._as_copy(read, number, holds, replaced)
                yield from new
                node.replace_input_with(read, other)
        yield from members

    def _copy_read(self, node: Any, copies: Any) -> int | None:
        numbers = [self._number[id(one)] for one in self._units.of(node) if id(one) in self._number]
        if len(numbers) != 1 or numbers[0] not in copies:
            return None
        return int(copies[numbers[0]])

    def _as_copy(
        self, node: Any, number: int, holds: dict[int, Any], replaced: dict[tuple[Any, int], Any]
    ) -> tuple[Any, list[Any]]:
        """(the node that has the value of this node from a copy, the nodes that are new for it)."""
        base = holds[number]
        if not _is_view(node):
            return base, []
        if (node, number) in replaced:
            return replaced[node, number], []
        from executorch.exir import memory
        from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec

        shape = list(node.meta["spec"].shape)
        with self._graph.inserting_before(self._graph.output_node()):
            view = self._graph.call_function(memory.view, (base, shape))
        view.meta.update({key: value for key, value in node.meta.items() if key != "spec"})
        view.meta["spec"] = _ViewSpec(base.meta["spec"], shape)
        replaced[node, number] = view
        return view, [view]

    def _finish(
        self, program: MovedProgram, holds: dict[int, Any], replaced: dict[tuple[Any, int], Any], sequence: list[Any]
    ) -> None:
        """Let the output read the last copies, drop views that nothing reads, and put the nodes into their sequence."""
        output = self._graph.output_node()
        last = dict(zip(self.network.outputs, program.outputs, strict=True))
        for read in output.all_input_nodes:
            number = self._copy_read(read, last)
            if number in holds:
                other, new = self._as_copy(read, number, holds, replaced)
                sequence += new
                output.replace_input_with(read, other)
        sequence.append(output)
        link(sequence)
        for node in reversed(sequence):
            if _is_view(node) and not node.users:
                self._graph.erase_node(node)


def _is_planned(storage: SpecStorage) -> bool:
    """Whether a plan may move the storage: a call makes it, or it is an input, and nothing writes to it afterwards."""
    written = storage.written - {storage.made_by}
    return bool(storage.nbytes) and not written and not (storage.is_input and storage.kept)


def _is_view(node: Any) -> bool:
    target: Any = getattr(node, "target", None)
    return getattr(target, "__module__", "") == "executorch.exir.memory" and target.__name__ == "view"
