"""Random stand-ins for the nodes and buffers of Inductor's scheduler, as far as its memory pass looks at them."""

import random
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from torch._inductor import memory


class Thing(SimpleNamespace):
    __hash__ = object.__hash__
    __eq__ = object.__eq__


@dataclass
class Scheduled:
    nodes: list[Any]
    inputs: dict[str, Any]
    outputs: Any
    buffers: dict[str, Any]


def _buffer(name: str, alloc: int, free: int, made_from: str | None = None) -> Thing:
    info = memory.MemoryPlanningInfoForBuffer(alloc, free)
    inputs = [] if made_from is None else [SimpleNamespace(get_name=lambda: made_from)]
    return Thing(mpi_buffer=info, get_name=lambda: name, node=SimpleNamespace(inputs=inputs))


def random_scheduled(seed: object, count: int) -> Scheduled:
    """Nodes that make one buffer, a mutation (no bytes), or several buffers that are allocated at once and taken out by
    nodes of their own; they read up to three of what was made before, and inputs that may be freed."""
    generator = random.Random(str(seed))
    inputs = {f"donated{i}": memory.FreeableInputBuffer(f"donated{i}") for i in range(generator.randint(0, 3))}
    for entry in inputs.values():
        entry.mpi_buffer.size_free = 8 * generator.randint(1, 100)
    nodes: list[Thing] = []
    made: dict[str, tuple[Thing, Thing]] = {}  # buffer, its node
    readable: list[str] = []
    readers: dict[str, list[Thing]] = {name: [] for name in inputs}
    fake: dict[str, list[Thing]] = {}

    def node(buffers: list[Thing], reads: list[str]) -> Thing:
        new = Thing(made=buffers)
        name = f"op{len(nodes)}"
        for buffer in buffers:
            buffer.defining_op = new
        new.get_name = lambda: name
        new.get_outputs = lambda: new.made
        new.get_buffer_names = lambda: [buffer.get_name() for buffer in new.made]
        new.unmet_dependencies = [SimpleNamespace(name=read) for read in reads if read in made]
        for read in dict.fromkeys(reads):
            readers[read].append(new)
        for buffer in buffers:
            made[buffer.get_name()] = buffer, new
            readers[buffer.get_name()] = []
        nodes.append(new)
        return new

    while len(nodes) < count:
        name, nbytes = f"buf{len(nodes)}", 8 * generator.randint(1, 100)
        sources = [*readable[-6:], *inputs]
        reads = generator.sample(sources, min(len(sources), generator.randint(0, 3)))
        kind = generator.random()
        if kind < 0.7:
            node([_buffer(name, nbytes, nbytes)], reads)
            readable.append(name)
        elif kind < 0.8:
            node([_buffer(name, 0, 0)], reads)
            readable.append(name)
        else:
            sizes = [8 * generator.randint(1, 100) for _ in range(generator.randint(1, 3))]
            never_taken_out = generator.choice([0, 8])
            node([_buffer(name, sum(sizes) + never_taken_out, 0)], reads)
            for at, size in enumerate(sizes):
                node([_buffer(f"{name}_{at}", 0, size, name)], [name])
                readable.append(f"{name}_{at}")
    for _ in range(count // 4):  # waits that hold no bytes
        one, two = sorted(generator.sample(range(len(nodes)), 2))
        first = nodes[one].made[0].get_name()
        fake.setdefault(first, []).append(nodes[two])
        nodes[two].unmet_dependencies.append(SimpleNamespace(name=first))
    for name, entry in list(inputs.items()):
        if not readers[name]:
            del inputs[name]
            continue
        entry.mpi_buffer = memory.MemoryPlanningInfoForBuffer(
            0, entry.mpi_buffer.size_free, memory.OrderedSet(readers[name]), memory.OrderedSet(readers[name])
        )
    for name, (buffer, _) in made.items():
        buffer.mpi_buffer.succ_nodes = memory.OrderedSet(readers[name])
        buffer.mpi_buffer.succ_nodes_for_ordering = memory.OrderedSet([*readers[name], *fake.get(name, [])])
    buffers = {name: buffer for name, (buffer, _) in made.items()}
    memory.assign_memory_planning_info_for_scheduler_nodes(nodes, {}, buffers, inputs)
    last = [name for name in readable if not readers[name]] or readable[-1:]
    return Scheduled(nodes, inputs, memory.OrderedSet([*last, *list(inputs)[:1]]), buffers)
