"""Finds the part of a training step that may run on some rows after others: a wide product and what reads it.

A language model's last layer makes a row of logits for every token, as wide as its vocabulary; the loss and its
gradient read them row by row. Run in chunks of rows, forward and backward together, only one chunk of them is alive.
What leaves the region is narrow rows, and sums over all rows (the gradients of the weights, a loss).

Axes are followed by what operators do, never by sizes that happen to be equal: the rows of the product are those of its
first operand; each operator of a short list says where its rows come from. What is not on the list ends the region.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["VIEWS", "RowDims", "RowRegion", "row_regions"]

_WIDER = 4
"""A product is wide where a row of it has more than so many times the bytes of a row of its operand."""
_FEWEST_ROWS = 32

VIEWS = frozenset(["_unsafe_view", "alias", "detach", "reshape", "squeeze", "unsqueeze", "view"])
_FILLED = frozenset(["full"])
_REDUCTIONS = frozenset(["amax", "amin", "argmax", "mean", "sum"])
_INDEXED = frozenset(["gather", "scatter"])
_ELEMENTS = frozenset(["clone", "convert_element_type", "fma", "where"])


@dataclass(frozen=True, slots=True)
class RowDims:
    """The dimensions of a tensor that number the rows: `count` of them from `first` on."""

    first: int
    count: int


@dataclass(frozen=True, slots=True)
class RowRegion:
    """Operators that run on some rows after others. All nodes are fx nodes, in the order of their graph."""

    rows: int
    width: int
    """The elements of a row of the first product's operand."""
    nodes: tuple[Any, ...]
    rows_of: Mapping[Any, RowDims]
    """The rows of each node but the sums."""
    operands: Mapping[Any, Mapping[Any, RowDims | None]]
    """By node: the rows of each operand that it reads by rows; None if it reads the operand whole."""
    results: tuple[Any, ...]
    """Nodes that are read outside: rows, or sums over all rows."""
    sums: frozenset[Any]
    nbytes: int
    """The bytes of the widest node."""


class _NotByRows(Exception):
    """An operator that does not work row by row, or not in a way that is known."""


def row_regions(graph: Any) -> Iterator[RowRegion]:
    """The regions behind the wide products of a functional graph, the widest first. O(nodes) for each product."""
    products = [node for node in graph.nodes if _name(node) in ("mm", "addmm") and node.op == "call_function"]
    members: set[Any] = set()
    for product in sorted(filter(_is_wide, products), key=lambda node: -_nbytes(node)):
        region = None if product in members else _region(graph, product)
        if region is not None:
            members.update(region.nodes)
            yield region


def _is_wide(product: Any) -> bool:
    left = product.args[-2]
    if not all(isinstance(size, int) for of in (product, left) for size in _shape(of)) or product.kwargs:
        return False  # sizes that vary, or factors
    return _shape(product)[0] >= _FEWEST_ROWS and _nbytes(product) > _WIDER * _nbytes(left)


def _region(graph: Any, product: Any) -> RowRegion | None:
    """The region that begins at a product, or None if not all that reads its rows works by rows, or if what it makes
    comes back into it."""
    total = _shape(product)[0]
    wide = _WIDER // 2 * _nbytes(product.args[-2])
    rows_of: dict[Any, RowDims] = {product: RowDims(0, 1)}
    sums: set[Any] = set()
    ahead: set[Any] = {product}  # the nodes whose readers may be part of the region
    for node in graph.nodes:
        if not any(of in ahead for of in node.all_input_nodes):
            continue
        try:
            rows = _rows_of_result(node, rows_of)
            needs = _needs(node, rows, rows_of)
        except _NotByRows:
            continue
        if any(rows_of.get(of, needed) != needed for of, needed in needs.items()):
            continue
        if rows is None:
            sums.add(node)
        else:
            rows_of[node] = rows
            if _nbytes(node) > wide or _name(node) not in ("mm", "addmm"):
                ahead.add(node)  # a product that makes narrow rows of wide ones ends the region
    core = _core(graph, rows_of, wide)
    results = {
        user: None
        for node in core
        if _nbytes(node) > wide
        for user in node.users
        if user not in core and (user in sums or (user in rows_of and _nbytes(user) <= wide))
    }
    nodes = core | results.keys()
    if any(_nbytes(node) > wide and not nodes >= node.users.keys() for node in core):
        return None  # the whole of a wide result is read
    read = {node: rows_of[node] for node in nodes if node in rows_of}
    operands: dict[Any, dict[Any, RowDims | None]] = {}
    try:
        for node in nodes:
            _pull(node, read, operands, rows_of, wide)
    except _NotByRows:
        return None
    own = sums & nodes
    ends = [node for node in nodes if node in own or any(user not in operands for user in node.users)]
    inputs = {of for node in operands for of in node.all_input_nodes} - operands.keys()
    comes_back = bool(_descendants(ends, operands) & inputs) or any(own & {*of} for of in operands.values())
    if comes_back or any(rows.count > 1 and rows.first for rows in read.values()):
        return None
    order = {node: position for position, node in enumerate(graph.nodes)}
    return RowRegion(
        total,
        _shape(product.args[-2])[1],
        tuple(sorted(operands, key=order.__getitem__)),
        read,
        operands,
        tuple(sorted(ends, key=order.__getitem__)),
        frozenset(own),
        max(_nbytes(node) for node in read),
    )


def _core(graph: Any, rows_of: Mapping[Any, RowDims], wide: int) -> set[Any]:
    """The wide nodes, and the nodes with rows before them."""
    core: set[Any] = set()
    for node in reversed(graph.nodes):
        if node in rows_of and (_nbytes(node) > wide or any(user in core for user in node.users)):
            core.add(node)
    return core


def _descendants(nodes: Iterable[Any], inside: Collection[Any]) -> set[Any]:
    """The nodes outside of the region that are computed from these."""
    seen: set[Any] = set()
    ahead = [user for node in nodes for user in node.users if user not in inside]
    while ahead:
        node = ahead.pop()
        if node not in seen:
            seen.add(node)
            ahead += node.users
    return seen


def _pull(
    node: Any,
    read: dict[Any, RowDims],
    operands: dict[Any, dict[Any, RowDims | None]],
    rows_of: Mapping[Any, RowDims],
    wide: int,
) -> None:
    """Add a node to `operands`, and the operators that make the wide rows that it reads. Their rows go to `read`."""
    ahead = [node]
    while ahead:
        reader = ahead.pop()
        if reader in operands:
            continue
        operands[reader] = _needs(reader, read.get(reader), rows_of)
        for of, rows in operands[reader].items():
            if of in read and read[of] != rows:
                raise _NotByRows
            if of not in read and rows is not None and _made_by_rows(of, rows, wide):
                read[of] = rows
                ahead.append(of)


def _made_by_rows(node: Any, rows: RowDims, wide: int) -> bool:
    """Whether a node with these rows is made cheaply from others by rows, and a wide one is among them."""
    if node.op != "call_function" or _name(node) in ("mm", "addmm"):
        return False
    try:
        needs = _needs(node, rows, {})
    except _NotByRows:
        return False
    return _nbytes(node) > wide or any(needed and _made_by_rows(of, needed, wide) for of, needed in needs.items())


def _rows_of_result(node: Any, rows_of: Mapping[Any, RowDims]) -> RowDims | None:
    """The rows of what a node makes of rows; None if it is a sum over all of them."""
    name = _name(node)
    if name in ("mm", "addmm"):
        left, right = node.args[-2:]
        if left in rows_of and right not in rows_of and rows_of[left] == RowDims(0, 1):
            return RowDims(0, 1)
        if (
            name == "mm"
            and rows_of.get(left, RowDims(1, 1)) == RowDims(1, 1)
            and rows_of.get(right, RowDims(0, 1)) == RowDims(0, 1)
        ):
            return None
        raise _NotByRows
    of = next(of for of in node.all_input_nodes if of in rows_of)
    rows = rows_of[of]
    if name in VIEWS:
        return _viewed(rows, _shape(of), _shape(node))
    if name == "permute":
        places = [node.args[1].index(rows.first + number) for number in range(rows.count)]
        if places != [*range(places[0], places[0] + rows.count)]:
            raise _NotByRows
        return RowDims(places[0], rows.count)
    if name in _REDUCTIONS:
        return _reduced(node, rows)
    if name in _INDEXED:
        return rows
    if _is_elementwise(node):
        return RowDims(rows.first + len(_shape(node)) - len(_shape(of)), rows.count)
    raise _NotByRows


def _needs(node: Any, rows: RowDims | None, rows_of: Mapping[Any, RowDims]) -> dict[Any, RowDims | None]:
    """By operand: the rows that it must have for the node to have `rows`; None if it is read whole. `rows_of`: rows
    that are known, for sums."""
    name = _name(node)
    if name in ("mm", "addmm"):
        left, right = node.args[-2:]
        if rows is None:
            return {left: RowDims(1, 1), right: RowDims(0, 1)}
        return {**({node.args[0]: None} if name == "addmm" else {}), right: None, left: RowDims(0, 1)}
    if rows is None:
        return {node.args[0]: rows_of[node.args[0]]}
    if name in VIEWS:
        return {node.args[0]: _viewed(rows, _shape(node), _shape(node.args[0]))}
    if name == "permute":
        places = [node.args[1][rows.first + number] for number in range(rows.count)]
        if places != [*range(places[0], places[0] + rows.count)]:
            raise _NotByRows
        return {node.args[0]: RowDims(places[0], rows.count)}
    if name in _REDUCTIONS:
        return {node.args[0]: _before_reduction(node, rows)}
    if name in _INDEXED:
        dim = node.args[1] % len(_shape(node))
        if rows.first <= dim < rows.first + rows.count:
            raise _NotByRows
        return dict.fromkeys(node.all_input_nodes, rows)
    if name in _FILLED:
        return {}
    if _is_elementwise(node):
        return {of: _broadcast(rows, _shape(node), _shape(of)) for of in node.all_input_nodes}
    raise _NotByRows


def _viewed(rows: RowDims, before: tuple[int, ...], after: tuple[int, ...]) -> RowDims:
    """The rows of a view: the dimensions with as many elements before them and within them."""
    ahead = math.prod(before[: rows.first])
    total = math.prod(before[rows.first : rows.first + rows.count])
    for first in range(len(after)):
        if math.prod(after[:first]) == ahead:
            for count in range(1, len(after) - first + 1):
                if math.prod(after[first : first + count]) == total:
                    return RowDims(first, count)
    raise _NotByRows


def _broadcast(rows: RowDims, shape: tuple[int, ...], of: tuple[int, ...]) -> RowDims | None:
    """The rows of an operand that is broadcast to `shape`; None if it has none."""
    first = rows.first + len(of) - len(shape)
    own = of[max(first, 0) : max(first + rows.count, 0)]
    if first >= 0 and own == shape[rows.first : rows.first + rows.count]:
        return RowDims(first, rows.count)
    if all(size == 1 for size in own):
        return None
    raise _NotByRows


def _reduction(node: Any) -> tuple[set[int] | None, bool]:
    """(the dimensions that a reduction sums over, all if None; whether they stay with size 1)"""
    rank = len(_shape(node.args[0]))
    dims = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    keep = node.args[2] if len(node.args) > 2 else node.kwargs.get("keepdim", False)
    if dims is None or dims == []:
        return None, bool(keep)
    return {dim % rank for dim in (dims if isinstance(dims, (list, tuple)) else [dims])}, bool(keep)


def _reduced(node: Any, rows: RowDims) -> RowDims | None:
    dims, keep = _reduction(node)
    own = {*range(rows.first, rows.first + rows.count)}
    if dims is None or own <= dims:
        if _name(node) != "sum" and not (_name(node) == "mean" and dims is None):
            raise _NotByRows
        return None
    if own & dims:
        raise _NotByRows
    return rows if keep else RowDims(rows.first - sum(dim < rows.first for dim in dims), rows.count)


def _before_reduction(node: Any, rows: RowDims) -> RowDims:
    dims, keep = _reduction(node)
    if dims is None:
        raise _NotByRows
    if keep:
        if dims & {*range(rows.first, rows.first + rows.count)}:
            raise _NotByRows
        return rows
    stay = [dim for dim in range(len(_shape(node.args[0]))) if dim not in dims]
    places = stay[rows.first : rows.first + rows.count]
    if places != [*range(places[0], places[0] + rows.count)]:
        raise _NotByRows
    return RowDims(places[0], rows.count)


def _is_elementwise(node: Any) -> bool:
    import torch

    tags = getattr(node.target, "tags", ())
    if torch.Tag.nondeterministic_seeded in tags or getattr(node.target, "_schema", None) is None:
        return False
    return not node.target._schema.is_mutable and (
        torch.Tag.pointwise in tags or _name(node) in _ELEMENTS or _name(node) == "expand"
    )


def _name(node: Any) -> str:
    return str(getattr(node.target, "overloadpacket", node.target)).rpartition(".")[2]


def _shape(node: Any) -> tuple[int, ...]:
    value = node.meta.get("val")
    if not hasattr(value, "itemsize"):
        raise _NotByRows  # several tensors, or none
    return tuple(value.shape)


def _nbytes(node: Any) -> int:
    value = node.meta.get("val")
    return int(value.numel() * value.itemsize) if hasattr(value, "itemsize") else 0
