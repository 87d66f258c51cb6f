"""What the buffers of a scheduler's graph take where Inductor's estimate of memory counts otherwise.

It does not count what libraries allocate inside calls, nor copies of inputs that a forward graph saves in another
layout, and it counts buffers in the host's memory as if the device held them. Names what it uses of Inductor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from downset.integrations.call_workspaces import workspaces_of
from downset.memory.liveness import Storage

__all__ = ["copied_inputs", "copies", "on_host", "origins", "workspaces"]


def origins(node: Any) -> Iterator[Any]:
    """The operators of PyTorch's graph that a scheduler's node computes."""
    for part in node.get_nodes():
        yield from part.node.get_origins() if hasattr(part.node, "get_origins") else ()


def on_host(nodes: Sequence[Any]) -> frozenset[str]:
    """The buffers in the host's memory of a graph that runs on another device: they take none of that device's."""
    buffers = [buffer for node in nodes for buffer in node.get_outputs()]
    host = {of.get_name() for of in buffers if (device := of.node.get_device()) is not None and device.type == "cpu"}
    return frozenset(host) if len(host) < len(buffers) else frozenset()


def copied_inputs(before: frozenset[str]) -> frozenset[str]:
    """The inputs of which a forward graph saves copies, in another layout, under their names. A backward graph keeps
    those of the graph `before`: Inductor takes its inputs of such names for parameters, which it does not free."""
    from torch._inductor.virtualized import V

    if V.graph.is_backward:
        return before
    output = next(node for node in V.graph.module.graph.nodes if node.op == "output")
    results = zip(output.args[0], V.graph.graph_outputs, strict=False)
    return frozenset(
        node.name
        for node, of in results
        if getattr(node, "op", "") == "placeholder" and hasattr(of, "get_name") and of.get_name() != node.name
    )


def copies(nodes: Sequence[Any], copied: Collection[str]) -> list[tuple[str, Storage]]:
    """The copies that a backward graph reads, each until its last reader."""
    from torch._inductor.virtualized import V

    if not V.graph.is_backward:
        return []
    readers: dict[str, set[int]] = {}
    nbytes = {}
    for position, node in enumerate(nodes):
        for dep in node.read_writes.reads:
            if dep.name in copied:
                readers.setdefault(dep.name, set()).add(position)
                nbytes[dep.name] = int(V.graph.get_dep_size_hint(dep))
    return [(name, Storage(nbytes[name], (), tuple(sorted(of)))) for name, of in readers.items() if nbytes[name]]


def workspaces(nodes: Sequence[Any]) -> list[tuple[str, Storage]]:
    """The bytes that libraries allocate inside calls, each under the name of the buffer that the call makes."""
    calls = {
        position: [*origins(node)]
        for position, node in enumerate(nodes)
        if node.is_extern() and type(node.node).__name__ != "MultiOutput"  # one of the results of a call
    }
    strides = {of: _strides(nodes[position].node) for position, computed in calls.items() for of in computed}
    nbytes = workspaces_of(strides, strides)
    most = {position: max((nbytes.get(of, 0) for of in computed), default=0) for position, computed in calls.items()}
    return [
        (next(iter(nodes[position].get_buffer_names())), Storage(of, (position,), (position,)))
        for position, of in most.items()
        if of
    ]


def _strides(call: Any) -> list[tuple[int, ...]]:
    """The strides of a call's operands, as the compiler lays them out; a size that is not known stays a symbol."""
    operands = [of.get_stride() for of in call.inputs if hasattr(of, "get_stride")]
    return [tuple(of if getattr(of, "free_symbols", None) else int(of) for of in strides) for strides in operands]
