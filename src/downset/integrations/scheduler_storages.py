"""Storages of a scheduler's graph that Inductor's estimate of memory leaves out or counts otherwise.

It does not count what libraries allocate inside calls, nor copies of inputs that a forward graph saves in another
layout; the results of a call are apart there, although a tuple holds all until the last one is taken out of it; and it
counts buffers in the host's memory as if the device held them. Names what it uses of Inductor.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from typing import Any

from downset.integrations.call_workspaces import calls_library, workspaces_of
from downset.memory.liveness import Storage

__all__ = ["copies", "held_together", "on_host", "origins", "parts_of_calls", "workspaces"]


def origins(node: Any) -> Iterator[Any]:
    """The operators of PyTorch's graph that a scheduler's node computes."""
    for part in node.get_nodes():
        yield from part.node.get_origins() if hasattr(part.node, "get_origins") else ()


def on_host(nodes: Sequence[Any]) -> frozenset[str]:
    """The buffers in the host's memory of a graph that runs on another device: they take none of that device's."""
    buffers = [buffer for node in nodes for buffer in node.get_outputs()]
    host = {of.get_name() for of in buffers if (device := of.node.get_device()) is not None and device.type == "cpu"}
    return frozenset(host) if len(host) < len(buffers) else frozenset()


def copies(nodes: Sequence[Any]) -> list[tuple[str, Storage]]:
    """The copies of parameters and inputs that a backward graph reads, each until its last reader. Inductor takes what
    has such a name for the parameter itself, which it does not free; the forward graph saved it in another layout."""
    from torch._inductor.virtualized import V

    if not V.graph.is_backward:
        return []
    nbytes = {}
    for node in V.graph.module.graph.nodes:
        given, traced = V.graph.graph_inputs.get(node.name), node.meta.get("tensor_meta")
        if node.op != "placeholder" or not node.name.startswith("primals_") or given is None or traced is None:
            continue
        strides: list[Any] = [*getattr(given, "get_stride", list)()]
        size = node.meta["val"].numel() * node.meta["val"].element_size()
        if strides != [*traced.stride] and isinstance(size, int):
            nbytes[node.name] = size
    readers: dict[str, list[int]] = {}
    for position, node in enumerate(nodes):
        for name in {dep.name for dep in node.read_writes.reads}.intersection(nbytes):
            readers.setdefault(name, []).append(position)
    return [(name, Storage(nbytes[name], (), tuple(of))) for name, of in readers.items()]


def parts_of_calls(nodes: Sequence[Any]) -> dict[int, list[int]]:
    """By node that calls for several results: the nodes that take one out of the tuple of these."""
    made_by = {name: position for position, node in enumerate(nodes) for name in node.get_buffer_names()}
    parts: dict[int, list[int]] = {}
    for position, node in enumerate(nodes):
        if _is_part(node):
            sources = [of.get_name() for of in node.node.inputs if hasattr(of, "get_name")]
            for whole in {made_by[name] for name in sources if name in made_by}:
                parts.setdefault(whole, []).append(position)
    return parts


def held_together(
    allocated: Sequence[tuple[str, Storage]], nodes: Sequence[Any], parts: Mapping[int, Sequence[int]]
) -> list[tuple[str, Storage]]:
    """The storages, where the results of a call live until the last of them is taken out of its tuple."""
    siblings = {name: of for of in parts.values() for part in of for name in nodes[part].get_buffer_names()}
    return [
        (name, replace(of, consumers=tuple(sorted({*of.consumers, *siblings.get(name, ())})))) for name, of in allocated
    ]


def workspaces(nodes: Sequence[Any], unseen: Set[str]) -> list[tuple[str, Storage]]:
    """The bytes that libraries allocate inside calls, each under the name of the buffer that the call makes. `unseen`:
    buffers that do not count, as those of the host."""
    calls = {
        position: [of for of in origins(node) if calls_library(of)]
        for position, node in enumerate(nodes)
        if node.is_extern() and not _is_part(node) and unseen.isdisjoint(node.get_buffer_names())
    }
    strides = {of: _strides(nodes[position].node) for position, called in calls.items() for of in called}
    nbytes = workspaces_of(strides, strides)
    most = {position: max((nbytes.get(of, 0) for of in called), default=0) for position, called in calls.items()}
    return [
        (next(iter(nodes[position].get_buffer_names())), Storage(of, (position,), (position,)))
        for position, of in most.items()
        if of
    ]


def _is_part(node: Any) -> bool:
    """Whether a node takes one of several results of a call."""
    return type(getattr(node, "node", None)).__name__ == "MultiOutput"


def _strides(call: Any) -> list[tuple[int, ...]]:
    """The strides of a call's operands, as the compiler lays them out; a size that is not known stays a symbol."""
    operands = [of.get_stride() for of in call.inputs if hasattr(of, "get_stride")]
    return [tuple(of if getattr(of, "free_symbols", None) else int(of) for of in strides) for strides in operands]
