"""Reads the nodes of an ExecuTorch graph: their tensors, what is a view, what a call writes, which keep their order.

A graph either has calls that write into what `memory.alloc` made, with the specs of their tensors, or calls that make
new tensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from downset.errors import UnsupportedError

__all__ = [
    "is_alloc",
    "leaves_of",
    "row_of",
    "spec_of_node",
    "specs_of_node",
    "takes_result",
    "values_of_node",
    "viewed",
    "views_of_node",
    "written_arguments",
    "written_results",
]

_SHARES = "_share_alloc_with_arg_idx"
"""The mark of a call that writes into the bytes of one of its arguments."""


def takes_result(node: Any) -> bool:
    return node.op == "call_function" and getattr(node.target, "__name__", "") == "getitem"


def is_alloc(node: Any) -> bool:
    target: Any = getattr(node, "target", None)
    return getattr(target, "__module__", "") == "executorch.exir.memory" and target.__name__ == "alloc"


def specs_of_node(node: Any) -> Iterator[tuple[object, int, int]]:
    from executorch.exir.tensor import TensorSpec

    for spec in leaves_of(spec_of_node(node)):
        if isinstance(spec, TensorSpec):
            if spec.is_dynamic_unbound_tensor:
                raise UnsupportedError(f"the size of {node.name} is known only when it runs")
            if getattr(getattr(spec, "device", None), "name", "CPU") != "CPU":
                raise UnsupportedError(f"{node.name} lies on another device than the CPU")
            root = viewed(spec)
            yield id(root), 0 if spec.const else max(spec.nbytes(), root.nbytes()), root.mem_id or 1


def viewed(spec: Any) -> Any:
    """The spec that states where the bytes of a view lie; any other spec itself."""
    while (base := getattr(spec, "_base", None)) is not None:
        spec = base
    return spec


def spec_of_node(node: Any) -> Any:
    """The spec of a node. An allocation gets its spec late; until then it is the spec of the only call that writes
    there."""
    if "spec" not in node.meta and is_alloc(node):
        for user in node.users:
            if sum(map(is_alloc, user.kwargs.values())) == 1 and node in user.kwargs.values():
                return user.meta.get("spec")
    return node.meta.get("spec")


def values_of_node(node: Any) -> Iterator[tuple[object, int, int]]:
    import torch

    for number, value in enumerate(leaves_of(node.meta.get("val"))):
        if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
            raise UnsupportedError(f"the value of {node.name} is symbolic")
        if isinstance(value, torch.Tensor):
            if not all(isinstance(size, int) for size in value.shape):
                raise UnsupportedError(f"the size of {node.name} is symbolic")
            yield (node, number), value.numel() * value.element_size(), 1


def views_of_node(node: Any) -> Iterator[tuple[object, object]]:
    name = getattr(_schema(node), "name", "")
    if name == "aten::view_copy" and not any(user.op == "output" for user in node.users):
        yield (node, 0), (node.args[0], 0)
    elif takes_result(node):
        yield (node, 0), (node.args[0], node.args[1])


def written_results(node: Any) -> Iterator[Any]:
    """The arguments of a call whose bytes hold the result."""
    schema = _schema(node)
    for returned in schema.returns if schema is not None else ():
        if returned.alias_info is not None and returned.alias_info.is_write:
            for argument, value in _arguments(node, schema):
                if argument.alias_info is not None and argument.alias_info.before_set & returned.alias_info.before_set:
                    yield from (source for source in leaves_of(value) if hasattr(source, "op") and not is_alloc(source))
    if (shares := node.meta.get(_SHARES)) is not None:
        yield node.args[shares]


def written_arguments(node: Any) -> Iterator[Any]:
    schema = _schema(node)
    if schema is not None:
        for argument, value in _arguments(node, schema):
            if argument.alias_info is not None and argument.alias_info.is_write:
                yield from (target for target in leaves_of(value) if hasattr(target, "op") and not is_alloc(target))
    if (shares := node.meta.get(_SHARES)) is not None:
        yield node.args[shares]


def _arguments(node: Any, schema: Any) -> Iterator[tuple[Any, Any]]:
    for number, argument in enumerate(schema.arguments):
        yield argument, node.args[number] if number < len(node.args) else node.kwargs.get(argument.name)


def _operator(node: Any) -> Any:
    """PyTorch's operator of a node, also inside a dialect's wrapper."""
    inner = getattr(node.target, "_op", None)
    return inner if hasattr(inner, "_schema") else node.target


def _schema(node: Any) -> Any:
    return getattr(_operator(node), "_schema", None) if node.op == "call_function" else None


def row_of(node: Any) -> Any:
    """The key of the row of a node; nodes of one row keep their order. Rows are: nodes that draw random numbers, nodes
    without readers (checks), and calls of one delegate, which may have a state. None: the node is in no row."""
    import torch

    if getattr(node.target, "__name__", "") == "executorch_call_delegate":
        return node.args[0]
    if torch.Tag.nondeterministic_seeded in getattr(_operator(node), "tags", ()):
        return "random"
    return None if node.users else "unread"


def leaves_of(value: Any) -> Iterator[Any]:
    if isinstance(value, list | tuple):
        for part in value:
            yield from leaves_of(part)
    else:
        yield value
