"""The ordering problem of Inductor's scheduler: its fused nodes are operators, its buffers storages.

What is counted is what `torch._inductor.memory.estimate_peak_memory` counts, to the byte: a buffer from the node that
allocates it to its last reader, a graph output to the end, an input only if Inductor may free it (a donated buffer), a
mutated buffer once, under its first name. Reuse in place happens later, in code generation, and is not counted there
either (`codegen_reuse` tells of it). Buffers that a fused kernel keeps in registers are counted there although no code
allocates them: `kept_in_kernels` names them. Reads attributes of Inductor's objects and imports nothing of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from downset.errors import UnsupportedError
from downset.memory.liveness import OrderProblem, Storage

__all__ = ["kept_in_kernels", "names_of_storages", "problem_of"]


def problem_of(
    nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Collection[str], *, in_sequence: Callable[[Any], bool]
) -> OrderProblem:
    """The problem whose operator i is `nodes[i]`. The nodes hold Inductor's planning information (`mpi_node`,
    `mpi_buffer`).

    `inputs`: the buffers that Inductor may free, by name; `outputs`: names of the graph's outputs. Nodes for which
    `in_sequence` is true (collectives, generators of random numbers) keep their order among themselves. Raises
    UnsupportedError if the information contradicts itself. O(nodes + reads).
    """
    return OrderProblem(_predecessors(nodes, in_sequence), tuple(s for _, s in _storages(nodes, inputs, outputs)))


def names_of_storages(nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Collection[str]) -> list[str]:
    """The name of the buffer that each storage of `problem_of` stands for."""
    return [name for name, _ in _storages(nodes, inputs, outputs)]


def kept_in_kernels(nodes: Sequence[Any], mutated: Collection[str]) -> frozenset[str]:
    """The buffers that no code allocates, because the fused kernel that computes them is all that reads them.

    The update of a parameter by Adam has two of the parameter's size, for example. `mutated`: names of buffers that
    are written in place, under their old and new names; these are allocated."""
    names: set[str] = set()
    for node in nodes:
        if node.is_extern() or node.is_template():
            continue
        parts = {part.get_name() for part in node.get_nodes()}
        for buffer in node.get_outputs():
            if all(user.is_weak or user.get_name() in parts for user in buffer.users):
                names.add(buffer.get_name())
    return frozenset(names.difference(mutated))


def _predecessors(nodes: Sequence[Any], in_sequence: Callable[[Any], bool]) -> tuple[tuple[int, ...], ...]:
    index = {node: position for position, node in enumerate(nodes)}
    made_by = {name: position for position, node in enumerate(nodes) for name in node.get_buffer_names()}
    before = [{index[earlier] for earlier in node.mpi_node.pred_nodes} for node in nodes]
    for position, node in enumerate(nodes):
        before[position] |= {made_by[dep.name] for dep in node.unmet_dependencies if dep.name in made_by} - {position}
    for earlier, later in pairwise(position for position, node in enumerate(nodes) if in_sequence(node)):
        before[later].add(earlier)
    for position, earlier_ones in enumerate(before):
        if any(earlier >= position for earlier in earlier_ones):
            raise UnsupportedError(f"node {nodes[position].get_name()} stands before a node that it waits for")
    return tuple(tuple(sorted(earlier_ones)) for earlier_ones in before)


def _storages(nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Collection[str]) -> list[tuple[str, Storage]]:
    """(name, storage) of every buffer that has bytes."""
    index = {node: position for position, node in enumerate(nodes)}
    made_by = {buffer.get_name(): position for position, node in enumerate(nodes) for buffer in node.get_outputs()}
    buffers = {buffer.get_name(): buffer for node in nodes for buffer in node.get_outputs()}
    storages: list[tuple[str, Storage]] = []

    def add(name: str, nbytes: int, producers: set[int], readers: Collection[Any]) -> None:
        consumers = {index[reader] for reader in readers} or producers
        if nbytes:
            storages.append((name, Storage(nbytes, _listed(producers), _listed(consumers), kept=name in outputs)))

    for name, entry in inputs.items():
        add(name, entry.mpi_buffer.size_free, set(), entry.mpi_buffer.succ_nodes)
    unclaimed: dict[str, int] = {}
    for name, buffer in buffers.items():
        size = buffer.mpi_buffer
        if size.size_alloc == size.size_free:
            add(name, size.size_alloc, {made_by[name]}, size.succ_nodes)
        elif size.size_free == 0:
            unclaimed[name] = size.size_alloc
    for name, buffer in buffers.items():
        size = buffer.mpi_buffer
        if size.size_free and size.size_alloc != size.size_free:
            whole = _allocated_with(buffer, buffers, unclaimed)
            unclaimed[whole] -= size.size_free
            add(name, size.size_free, {made_by[whole], made_by[name]}, size.succ_nodes)
    for name, left in unclaimed.items():
        if left < 0:
            raise UnsupportedError(f"the parts of buffer {name} have {-left} bytes more than it")
        if left:  # parts that no node takes out are never freed
            storages.append((name, Storage(left, (made_by[name],), (), kept=True)))
    return storages


def _allocated_with(part: Any, buffers: Mapping[str, Any], wholes: Collection[str]) -> str:
    """The buffer of several outputs with which a part was allocated."""
    name: str = part.get_name()
    while name not in wholes:
        sources = getattr(buffers[name].node, "inputs", None) if name in buffers else None
        if not sources:
            raise UnsupportedError(f"buffer {part.get_name()} is freed but never allocated")
        name = sources[0].get_name()
    return name


def _listed(operators: Collection[int]) -> tuple[int, ...]:
    return tuple(sorted(operators))
