"""The sequence in which LiteRT's planner places tensors. It matters for those of equal size that one operator makes:
the parts of a split, or the result of a mean and its sums.

*Source*: PlanAllocations, ExecuteAllocations and CreateTensorAllocationVector of LiteRT's tflite/arena_planner.cc.
Each operator has a set of tensors: its results, then its temporary ones, which have the numbers behind those of the
file. Tensors that share the bytes of another are sorted with the rest, and only then passed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from downset import native
from downset.graph.core import ABSENT, Graph
from downset.memory.kernel_libraries import LITERT
from downset.memory.kernel_needs import request_of
from downset.memory.storages import StorageMap

__all__ = ["litert_ranks"]


def litert_ranks(graph: Graph, steps: Sequence[int], storage_map: StorageMap) -> Mapping[int, int]:
    """By storage: its place in LiteRT's sequence. O(n log n)."""
    numbers = _numbers(graph)
    own, first_steps, sizes, whole = [], [], [], []
    storage_of: dict[int, int] = {}

    def add(number: int, step: int, nbytes: int, lasting: bool, storages: Sequence[int]) -> None:
        own.append(number)
        first_steps.append(step)
        sizes.append(nbytes)
        whole.append(lasting)
        if len(storages) == 1:
            storage_of[number] = storages[0]

    for tensor in dict.fromkeys(graph.inputs):
        add(numbers[tensor], 0, graph.tensors[tensor].nbytes, True, storage_map.storages_of[tensor])
    for step, operator in enumerate(steps):
        for tensor in graph.ops[operator].outputs:
            if tensor != ABSENT:
                storages = storage_map.storages_of[tensor]
                lasting = step == 0 and (tensor in storage_map.outputs or not storage_map.reads[tensor])
                add(numbers[tensor], step, graph.tensors[tensor].nbytes, lasting, storages)
    temporary = max(numbers, default=-1) + 1
    scratch = {operator: iter(storages) for operator, storages in _scratch(storage_map).items()}
    for step, operator in enumerate(steps):
        request = request_of(graph, graph.ops[operator], LITERT)
        for nbytes in request.buffers if request else ():
            if nbytes:
                add(temporary, step, nbytes, False, (next(scratch[operator]),))
            temporary += 1
    ranks: dict[int, int] = {}
    for rank, number in enumerate(native.compiled.litert_sequence(first_steps, own, sizes, whole)):
        if number in storage_of:
            ranks.setdefault(storage_of[number], rank)
    return ranks


def _numbers(graph: Graph) -> Sequence[int]:
    """By tensor: its number in the file that is written: new ones are behind those that it had."""
    old = graph.source.tensor_index or range(len(graph.tensors))
    if not graph.source.rewritten and min(old, default=0) >= 0:
        return old
    numbers = [0] * len(old)
    for number, tensor in enumerate(sorted(range(len(old)), key=lambda tensor: (old[tensor] < 0, old[tensor]))):
        numbers[tensor] = number
    return numbers


def _scratch(storage_map: StorageMap) -> dict[int, list[int]]:
    listed: dict[int, list[int]] = {}
    for storage in storage_map.scratch:
        listed.setdefault(storage_map.producers[storage][0], []).append(storage)
    return listed
