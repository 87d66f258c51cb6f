"""Rewrites a region of a training step so that it runs on some rows after others (row_region.py).

Each chunk computes its part of the region, forward and backward together. Narrow rows are joined; sums over rows grow
in place, in one fixed sequence and in float32 where tensors are narrower. Results equal those of the whole region up to
the rounding of these sums. Three operators of our own stand for what the compiler has no name for: one stores a result
that would otherwise be computed inside its readers, long after its chunk; one adds a product of matrices in place; one
copies narrow rows, because kernels that read them where they lie would have each chunk's place as a constant in their
code. So chunks of equally many rows share their kernels, and each is compiled once.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from functools import cache
from itertools import pairwise
from typing import Any

from downset.integrations.row_region import VIEWS, RowDims, RowRegion, row_regions
from downset.integrations.scheduler_storages import origins

__all__ = ["CHUNK", "chunk_graph", "chunk_rows", "chunked_graphs", "operators", "wait_for_chunks"]

CHUNK = "downset_chunk"
"""The key of a node's meta that holds (the name of a region, the number of a chunk)."""
_OF_GRADIENT = 8
"""A wide result of a chunk has at most this share of the bytes of the weights' gradient, which is alive with it."""
_FEWEST_ROWS = 16
"""The fewest rows of a chunk: with fewer, weights are read more often than they are used."""
_PARTS = 8
"""The parts of a sum in which products of narrow types are added to it, so that little is held beside it."""


@cache
def operators() -> Any:
    """`torch.ops.downset`, with `stored`, `rows` and `add_product`, and the compiler's code for them."""
    import torch
    from torch._inductor import ir
    from torch._inductor.lowering import register_lowering

    def product_into(total: Any, left: Any, right: Any) -> None:
        if total.dtype == left.dtype:
            total.addmm_(left, right)
            return
        size = max(1, -(-total.shape[0] // _PARTS))
        for begin in range(0, total.shape[0], size):
            total[begin : begin + size].add_(left[begin : begin + size] @ right)

    def product_added(total: Any, left: Any, right: Any) -> Any:
        result = total.clone()
        product_into(result, left, right)
        return result

    contiguous = torch.contiguous_format
    library = torch.library.Library("downset", "FRAGMENT")
    library.define("stored(Tensor x) -> Tensor")
    library.define("rows(Tensor x, int dim, int begin, int end) -> Tensor")
    library.define("add_product(Tensor total, Tensor left, Tensor right) -> Tensor")
    library.define("add_product_(Tensor(a!) total, Tensor left, Tensor right) -> ()")
    for name, function in (
        ("stored", lambda x: x.clone()),
        ("rows", lambda x, dim, begin, end: x.narrow(dim, begin, end - begin).clone(memory_format=contiguous)),
        ("add_product", product_added),
        ("add_product_", product_into),
    ):
        library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake("downset::add_product_", lambda *_: None, lib=library)
    own = torch.ops.downset
    own._library = library  # it would be taken back with its last reference

    def stored(x: Any) -> Any:
        x.realize()
        return x

    def rows(x: Any, *place: int) -> Any:
        x.realize()
        return ir.TensorBox.create(ir.FallbackKernel.create(own.rows.default, x, *place))

    def add_product(total: Any, left: Any, right: Any) -> Any:
        total.realize()
        ir.FallbackKernel.create(own.add_product_.default, total, left, right)
        return total

    register_lowering(own.stored.default, type_promotion_kind=None)(stored)
    register_lowering(own.rows.default, type_promotion_kind=None)(rows)
    register_lowering(own.add_product.default, type_promotion_kind=None)(add_product)
    return own


def chunk_rows(graph: Any, region: RowRegion, count: int) -> None:
    """Let a region of a graph run in so many chunks of about equally many rows. It then is part of the backward pass:
    nothing of it runs again."""
    from torch._inductor.pattern_matcher import stable_topological_sort

    borders = [number * region.rows // count for number in range(count + 1)]
    parts: dict[Any, list[Any]] = {node: [] for node in region.results}
    with graph.inserting_before(_output(graph)):
        for number, (begin, end) in enumerate(pairwise(borders)):
            chunk = _Chunk(graph, region, number, range(begin, end))
            for node in region.nodes:
                chunk.compute(node, parts)
        for node in region.results:
            node.replace_all_uses_with(_joined(graph, region, node, parts[node]))
    for node in reversed(region.nodes):
        if not node.users:
            graph.erase_node(node)
    stable_topological_sort(graph)
    for node in list(graph.nodes):  # updates write what chunks read, which the sort does not know
        if _writes_input(node):
            _output(graph).prepend(node)
    graph.lint()


class _Chunk:
    """Computes the region's nodes on some of its rows."""

    def __init__(self, graph: Any, region: RowRegion, number: int, rows: range) -> None:
        self.graph, self.region, self.rows = graph, region, rows
        self.name = region.nodes[0].name, number
        self.own: dict[Any, Any] = {}
        self.slices: dict[tuple[Any, RowDims, bool], Any] = {}

    def compute(self, node: Any, parts: dict[Any, list[Any]]) -> None:
        """`parts`: by result, what earlier chunks made, to which this one adds: rows, or one sum so far."""
        operands = {
            of: self.own[of] if of in self.own else of if rows is None else self._sliced(of, rows, node)
            for of, rows in self.region.operands[node].items()
        }
        if node in self.region.sums:
            parts[node] = [self._sum(node, operands, parts[node])]
            return
        self.own[node] = self._part(node, operands)
        if node in parts:
            parts[node].append(self._call(operators().stored.default, (self.own[node],), node))

    def _part(self, node: Any, operands: dict[Any, Any]) -> Any:
        import torch

        aten = torch.ops.aten
        shape = self._shape(node.meta["val"].shape, self.region.rows_of[node])
        name = node.target.overloadpacket
        if name is aten.expand:
            return self._call(aten.expand.default, (operands[node.args[0]], shape), node)
        if str(name).removeprefix("aten.") in VIEWS:
            return self._call(aten.reshape.default, (operands[node.args[0]], shape), node)
        if name is aten.full:
            return self._call(node.target, (shape, *node.args[1:]), node, node.kwargs)
        arguments = torch.fx.map_arg(node.args, lambda of: operands[of])
        return self._call(node.target, arguments, node, torch.fx.map_arg(node.kwargs, lambda of: operands[of]))

    def _sum(self, node: Any, operands: dict[Any, Any], before: list[Any]) -> Any:
        """The sum over the rows so far."""
        import torch

        aten, dtype = torch.ops.aten, node.meta["val"].dtype
        wide = torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype
        if node.target is aten.mm.default:
            left, right = (operands[of] for of in node.args)
            if not before and wide is dtype:
                return self._call(aten.mm.default, (left, right), node)
            total = before[0] if before else self._zeros(node, wide)
            return self._call(operators().add_product.default, (total, left, right), node)
        target = aten.sum.default if node.target is aten.mean.default else node.target
        part = self._call(target, (operands[node.args[0]], *node.args[1:]), node, {**node.kwargs, "dtype": wide})
        if before:
            part = self._call(aten.add.Tensor, (before[0], part), node)
        return self._call(operators().stored.default, (part,), node)

    def _zeros(self, node: Any, dtype: Any) -> Any:
        import torch

        value = node.meta["val"]
        options = {"dtype": dtype, "layout": torch.strided, "device": value.device, "pin_memory": False}
        zeros = self._call(torch.ops.aten.full.default, ([*value.shape], 0.0), node, options)
        return self._call(operators().stored.default, (zeros,), node)

    def _sliced(self, of: Any, rows: RowDims, reader: Any) -> Any:
        """These rows of what the region reads: a view for a product of matrices and where rows are wide, else a
        copy."""
        import torch

        aten = torch.ops.aten
        wide = of.meta["val"].numel() > self.region.rows * self.region.width
        view = wide or reader.target in (aten.mm.default, aten.addmm.default)
        key = of, rows, view
        if key not in self.slices:
            shape, flat, dim = of.meta["val"].shape, of, rows.first
            if rows.count > 1:
                flat = self._call(aten.reshape.default, (of, [self.region.rows, *shape[rows.count :]]), of)
            target = aten.slice.Tensor if view else operators().rows.default
            part = self._call(target, (flat, dim, self.rows.start, self.rows.stop), of)
            if rows.count > 1:
                part = self._call(aten.reshape.default, (part, self._shape(shape, rows)), of)
            self.slices[key] = part
        return self.slices[key]

    def _shape(self, shape: Collection[int], rows: RowDims) -> list[int]:
        """The shape of these rows of a tensor."""
        sizes = [*shape]
        sizes[rows.first : rows.first + rows.count] = [*[1] * (rows.count - 1), len(self.rows)]
        return sizes

    def _call(self, target: Any, arguments: tuple[Any, ...], like: Any, options: Any = None) -> Any:
        return _call(self.graph, target, arguments, like, options, {CHUNK: self.name})


def _call(graph: Any, target: Any, arguments: Any, like: Any, options: Any = None, meta: Any = None) -> Any:
    """A node of the backward pass, with the value that the compiler expects of it."""
    import torch

    node = graph.call_function(target, arguments, options or {})
    kept = {key: value for key, value in like.meta.items() if key in ("stack_trace", "nn_module_stack")}
    values = torch.fx.map_arg((node.args, node.kwargs), lambda of: of.meta["val"])
    own = operators()
    with like.meta["val"].fake_mode, torch.no_grad():
        if target in (own.stored.default, own.add_product.default):
            value = values[0][0].view_as(values[0][0])  # the compiler allocates nothing for it
        else:
            value = target(*values[0], **values[1])
    node.meta = {**kept, "autograd_backward": True, **(meta or {}), "val": value}
    return node


def _joined(graph: Any, region: RowRegion, node: Any, parts: list[Any]) -> Any:
    """The whole of a result: the sum over all chunks, or the rows of each behind another."""
    import torch

    aten, value = torch.ops.aten, node.meta["val"]
    if node in region.sums:
        (total,) = parts
        if node.target is aten.mean.default:
            total = _call(graph, aten.div.Tensor, (total, node.args[0].meta["val"].numel()), node)
        if total.meta["val"].dtype == value.dtype:
            return total
        return _call(graph, torch.ops.prims.convert_element_type.default, (total, value.dtype), node)
    rows = region.rows_of[node]
    if rows.count > 1:
        rest = [*value.shape[rows.count :]]
        parts = [
            _call(graph, aten.reshape.default, (of, [of.meta["val"].shape[rows.count - 1], *rest]), node)
            for of in parts
        ]
    whole = _call(graph, aten.cat.default, (parts, rows.first), node)
    return whole if rows.count == 1 else _call(graph, aten.reshape.default, (whole, [*value.shape]), node)


def _writes_input(node: Any) -> bool:
    """Whether it ends a step by writing over an input of the graph, such as an updated weight."""
    import torch

    return node.target is torch.ops.aten.copy_.default and node.args[0].op == "placeholder"


def _output(graph: Any) -> Any:
    return next(iter(graph.find_nodes(op="output")))


def wait_for_chunks(nodes: list[Any]) -> bool:
    """Make every scheduler's node of a chunk wait for all of its region's chunk before it, and what reads their results
    for the last: kernels of several chunks would else be fused, and their operands be alive together. Whether there are
    chunks."""
    from torch._inductor.dependencies import WeakDep

    chunk_of = {node: chunk for node in nodes if (chunk := max(_chunks(node), default=None))}
    final: dict[str, int] = {}
    for region, number in chunk_of.values():
        final[region] = max(number, final.get(region, 0))
    by_name = {name: of for of in nodes for name in of.get_operation_names()}
    last: dict[tuple[str, int], list[str]] = {}
    behind: dict[Any, set[tuple[str, int]]] = {node: {(of, number - 1)} for node, (of, number) in chunk_of.items()}
    for node, chunk in chunk_of.items():
        readers = {by_name.get(user.get_name()) for buffer in node.get_outputs() for user in buffer.users} - {None}
        if not any(chunk_of.get(reader) == chunk for reader in readers):
            last.setdefault(chunk, []).append(next(iter(node.get_buffer_names())))
        for reader in readers:
            if chunk_of.get(reader, ("",))[0] != chunk[0]:
                behind.setdefault(reader, set()).add((chunk[0], final[chunk[0]]))
    for node, chunks in behind.items():
        names = {name for chunk in chunks for name in last.get(chunk, ())}
        for name in sorted(names - {dep.name for dep in node.unmet_dependencies}):
            node.add_fake_dep(WeakDep(name, mutating_buf=node.get_name()))
    return bool(chunk_of)


def _chunks(node: Any) -> Iterator[tuple[str, int]]:
    for origin in origins(node):
        if CHUNK in origin.meta:
            yield origin.meta[CHUNK]


def chunked_graphs(graph: Any) -> dict[int, Any]:
    """By number of chunks, a copy of the graph in which the regions of wide rows run in chunks; none where there are no
    regions. The number is that of the widest region."""
    import torch

    chunked = torch.fx.Graph()
    chunked.output(chunked.graph_copy(graph, {}))
    _output(chunked).meta = dict(_output(graph).meta)
    count = chunk_graph(chunked)
    return {count: chunked} if count > 1 else {}


def chunk_graph(graph: Any) -> int:
    """Let every region of wide rows run in chunks; returns the number of chunks of the widest, 1 if none does."""
    counts = [1]
    for region in list(row_regions(graph)):
        count = -(-region.rows // max(_FEWEST_ROWS, region.width // _OF_GRADIENT))
        if count > 1:
            chunk_rows(graph, region, count)
            counts.append(count)
    return counts[1] if len(counts) > 1 else 1
