"""Asks ExecuTorch's own planner what it takes for the graphs of a program, and leaves them as they were."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from downset.integrations.executorch_nodes import viewed

__all__ = ["own_bytes", "states_of"]


def own_bytes(planning: Any, graph_module: Any, graph_signature: Any, graphs: Sequence[Any]) -> dict[int, int]:
    """By the id of each graph: the bytes that ExecuTorch's own planner takes for it in the order that it has, without
    those that it reserves for bodies of conditions and loops. `planning`: a function from a planner to a
    `MemoryPlanningPass`. Empty where that planner fails. The graphs stay as they were."""
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite

    own, nbytes_of = MemoryPlanningAlgorithmSuite(), dict[int, int]()

    def planner(alignment: int, specs: Any, inner: Any, signature: Any, extra_padding: int) -> Any:
        nbytes = own(alignment, specs, inner, signature, extra_padding)
        reserved = sum(getattr(inner, "input_mem_buffer_sizes", None) or ())
        nbytes_of[id(inner)] = nbytes_of.get(id(inner), 0) + sum(nbytes) - reserved
        return nbytes

    restore = states_of(graphs)
    try:
        planning(planner).run(graph_module, graph_signature)
    except Exception:  # it only says what it takes
        return {}
    finally:
        restore()
    return nbytes_of


def states_of(graphs: Sequence[Any]) -> Callable[[], None]:
    """A function that gives the nodes and specs of these graph modules what they state now."""
    metas = [(graph, dict(graph.meta)) for graph in graphs]
    nodes = [(node, dict(node.meta)) for graph in graphs for node in graph.graph.nodes]
    specs = [(spec, dict(vars(spec))) for spec in {id(of): of for _, meta in nodes for of in _specs(meta)}.values()]

    def restore() -> None:
        given = {node for node, _ in nodes}
        for graph in graphs:
            for node in reversed(graph.graph.nodes):
                if node not in given:  # a call that frees
                    graph.graph.erase_node(node)
        for holder, meta in (*metas, *nodes):
            holder.meta.clear()
            holder.meta.update(meta)
        for spec, fields in specs:
            vars(spec).clear()
            vars(spec).update(fields)

    return restore


def _specs(meta: dict[str, Any]) -> list[Any]:
    """The specs of a node; of a view, which keeps nothing itself, the spec that it shows."""
    spec = meta.get("spec")
    return [viewed(of) for of in (spec if isinstance(spec, list | tuple) else [spec]) if hasattr(of, "mem_id")]
