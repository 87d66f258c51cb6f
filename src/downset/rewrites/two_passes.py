"""Normalisations over rows in two passes, so that strips can compute both: statistics first, then values. Global means
as means of rows, which need one pass.

Source: ours; statistics of rows are joined as by Chan, Golub and LeVeque (1979).
Names: a *site* is an InstanceNormalization, alone or between the two reshapes that make a group normalisation of it, a
    GroupNormalization as ONNX Runtime writes it in plain operators (its function), a LayerNormalization over rows and
    columns, a GlobalAveragePool, or a ReduceMean over both.
    `Statistics of rows` are the mean and the variance of each row of a group.
Complexity: linear in operators for each pass.
Deviations: sums are added up in another sequence, so results are equal up to rounding. Tensors above a
    size are not kept from one pass to the next: each pass computes them again, from those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.kinds import kind_of
from downset.graph.parts import Part

__all__ = ["has_row_means", "in_two_passes", "normalised_bytes", "two_passes"]

_FIRST_VERSION = 13
"""The first version of ONNX's operators of which all that are used here have today's form, but for axes."""


@dataclass(frozen=True, slots=True)
class _Site:
    """`before` and `behind`: the reshapes around the normalisation `op`, or -1. `groups`: how many statistics there are
    for each image; 0 for a mean of the image itself. `function`: of a GroupNormalization in plain operators, of which
    `op` is the last, its scale and its bias for each channel, and its epsilon, as tensors."""

    before: int
    op: int
    behind: int
    source: int
    result: int
    groups: int
    function: tuple[int, int, int] | None = None


def normalised_bytes(graph: Graph) -> list[int]:
    """The sizes of tensors that are normalised over rows, each once, the largest first."""
    return sorted({graph.tensors[site.source].nbytes for site in _sites(graph)}, reverse=True)


def in_two_passes(graph: Graph) -> bool:
    """Whether a rewritten graph computes a normalisation in two passes."""
    return any(part.of.endswith("/grouped") for part in graph.source.parts.values())


def has_row_means(graph: Graph) -> bool:
    """Whether a rewritten graph computes a global mean as one of the means of rows."""
    return any(part.of.endswith("/means of rows") for part in graph.source.parts.values())


def two_passes(graph: Graph, *, stored_bytes: int) -> Graph:
    """The network with each normalisation over rows of a tensor above `stored_bytes` in two passes, its operators in
    the order in which they must run. Larger tensors are not kept from one pass to the next: each pass that needs them
    computes them again. A graph without such a normalisation is returned unchanged."""
    sites = [site for site in _sites(graph) if graph.tensors[site.source].nbytes > stored_bytes]
    if not sites:
        return graph
    edit = Edit(graph)
    statistics: list[str] = []
    for site in sites:
        for index in (site.before, site.behind):
            if index >= 0:
                edit.replace(index, [])
        written = _Writer(edit, site)
        if not site.groups:
            edit.replace(site.op, written.mean_of_rows())
            continue
        edit.replace(site.op if site.behind < 0 else site.behind, written.ops())
        if site.behind >= 0:
            edit.replace(site.op, [])
        statistics.append(written.last_statistic)
    return _Passes(edit.finish(as_placed=True), statistics, stored_bytes).graph()


def _sites(graph: Graph) -> Iterator[_Site]:
    if graph.source.format not in ("onnx", "built") or graph.source.version < _FIRST_VERSION or not _is_plain(graph):
        return
    made_by, read_by, kept = graph.producers(), graph.consumers(), {*graph.outputs}
    for index, op in enumerate(graph.ops):
        if not op.inputs or op.inputs[0] == ABSENT or graph.tensors[op.inputs[0]].dtype != "float32":
            continue
        yield from _simple_site(graph, index, op)
        yield from _function_site(graph, made_by, index, op)
        if op.kind != "InstanceNormalization":
            continue
        if any(graph.constant(tensor) is None for tensor in op.inputs[1:3]) or op.after:
            continue
        source, result, shape = op.inputs[0], op.outputs[0], graph.tensors[op.inputs[0]].shape
        if len(shape) == 4 and shape[2] > 1:
            yield _Site(-1, index, -1, source, result, shape[1])
            continue
        before, behind = made_by[source], read_by[result][0] if len(read_by[result]) == 1 else -1
        if min(before, behind) < 0 or kept & {source, result} or len(read_by[source]) != 1:
            continue
        one, two = graph.ops[before], graph.ops[behind]
        image = graph.tensors[one.inputs[0]].shape if one.inputs else ()
        if {one.kind, two.kind} != {"Reshape"} or len(image) != 4 or graph.tensors[two.outputs[0]].shape != image:
            continue
        if len(shape) == 3 and shape[0] == image[0] and image[1] % shape[1] == 0 and image[2] > 1 and not two.after:
            yield _Site(before, index, behind, one.inputs[0], two.outputs[0], shape[1])


def _simple_site(graph: Graph, index: int, op: Op) -> Iterator[_Site]:
    """The site of a LayerNormalization or a mean over rows and columns of an image of several rows, if it is one."""
    shape = graph.tensors[op.inputs[0]].shape
    if len(shape) != 4 or shape[2] < 2 or op.after or len([one for one in op.outputs if one != ABSENT]) != 1:
        return
    if op.kind == "LayerNormalization":
        axis = int(op.attrs.get("axis", -1)) % 4
        constant = all(graph.constant(tensor) is not None for tensor in op.inputs[1:] if tensor != ABSENT)
        if axis in (1, 2) and constant and op.attrs.get("stash_type", 1) == 1:
            yield _Site(-1, index, -1, op.inputs[0], op.outputs[0], 1 if axis == 1 else shape[1])
    elif op.kind == "GlobalAveragePool" or (op.kind == "ReduceMean" and _reduced(graph, op) in ([2, 3], [1, 2, 3])):
        yield _Site(-1, index, -1, op.inputs[0], op.outputs[0], 0)


def _function_site(graph: Graph, made_by: Sequence[int], index: int, op: Op) -> Iterator[_Site]:
    """The site of a GroupNormalization of which `op` is the last of its plain operators, if it is one: a product with
    the scale and a sum with the bias, both for each channel, of (x - mean) / sqrt(variance + epsilon), where the
    variance is the mean of the squares less the square of the mean."""

    def of(tensor: int, kind: str) -> tuple[int, ...]:
        """The inputs of the operator of this kind that makes a tensor, past reshapes and casts of one type."""
        tensor = _unreshaped(graph, made_by, tensor)
        maker = graph.ops[made_by[tensor]] if made_by[tensor] >= 0 else None
        return maker.inputs if maker is not None and maker.kind == kind else ()

    image = graph.tensors[op.outputs[0]].shape
    if op.kind != "Reshape" or len(image) != 4 or image[2] < 2 or op.after:
        return
    try:
        scaled, bias = of(op.inputs[0], "Add")
        scale, normal = of(scaled, "Mul")
        deviation, root = of(normal, "Div")
        x, mean = of(deviation, "Sub")
        (shifted,) = of(root, "Sqrt")
        variance, epsilon = of(shifted, "Add")
        of_squares, squared = of(variance, "Sub")
        squares, *_ = of(of_squares, "ReduceMean")
        source, *_ = of(mean, "ReduceMean")
        (one, other), (first, second) = of(squares, "Mul"), of(squared, "Mul")
        same = one == other == source == x and first == second == mean
    except ValueError:  # another operator, or another number of inputs
        return
    whole, shape = _unreshaped(graph, made_by, x), graph.tensors[x].shape
    parameters = tuple(_unreshaped(graph, made_by, tensor) for tensor in (scale, bias, epsilon))
    values = [graph.constant(tensor) for tensor in parameters]
    sizes = [1 if value is None else value.size for value in values]
    means = graph.tensors[mean].shape
    if (
        same
        and graph.tensors[whole].shape == image
        and means == (*shape[:2], 1) == (image[0], shape[1], 1)
        and all(value is not None for value in values)
        and sizes == [image[1], image[1], 1]
        and graph.tensors[scale].shape == graph.tensors[bias].shape == (1, image[1], 1)
    ):
        yield _Site(-1, index, -1, whole, op.outputs[0], shape[1], (parameters[0], parameters[1], parameters[2]))


def _unreshaped(graph: Graph, made_by: Sequence[int], tensor: int) -> int:
    """The tensor of which this one is a reshape, or a cast to the type that it has."""
    while made_by[tensor] >= 0:
        op = graph.ops[made_by[tensor]]
        if op.kind not in ("Reshape", "Cast") or graph.tensors[op.inputs[0]].dtype != graph.tensors[tensor].dtype:
            break
        tensor = op.inputs[0]
    return tensor


def _reduced(graph: Graph, op: Op) -> list[int]:
    """The axes of an image over which an operator takes the mean; none where they are not known."""
    if op.kind == "GlobalAveragePool":
        return [2, 3]
    axes = op.attrs.get("axes") or []
    if len(op.inputs) > 1 and op.inputs[1] != ABSENT:
        value = graph.constant(op.inputs[1])
        axes = [] if value is None else value.reshape(-1).tolist()
    return sorted({int(axis) % 4 for axis in axes})


def _is_plain(graph: Graph) -> bool:
    """Whether no rewrite has divided or joined tensors of the file; constants may have been folded."""
    whole = all(part == Part(graph.tensors[tensor].name) for tensor, part in graph.source.parts.items())
    return whole and not graph.source.joined


@dataclass(slots=True)
class _Writer:
    """Writes the operators of one normalisation."""

    edit: Edit
    site: _Site
    written: list[Op] = field(default_factory=list)
    last_statistic: str = ""

    def ops(self) -> list[Op]:
        graph, site = self.edit.graph, self.site
        op = graph.ops[site.op]
        image = graph.tensors[site.source].shape
        full = (image[0], site.groups, image[1] // site.groups, *image[2:])
        grouped = self._reshape(site.source, full)
        means = self._row_means(grouped, full, "row")
        distances = self._op("Sub", (grouped, means), full, "row distances")
        squares = self._op("Mul", (distances, distances), full, "row squares")
        variances = self._row_means(squares, full, "row variance")
        rows, one = (*full[:2], 1, full[3], 1), (*full[:2], 1, 1, 1)
        mean = self._mean(means, [3], one, "mean")
        between = self._op("Sub", (means, mean), rows, "mean distances")
        between = self._op("Mul", (between, between), rows, "mean squares")
        between = self._mean(between, [3], one, "variance between rows")
        within = self._mean(variances, [3], one, "variance within rows")
        variance = self._op("Add", (between, within), one, "variance")
        scale, bias, least = self._parameters(op)
        epsilon = self._constant("epsilon", np.array(least, np.float32))
        shifted = self._op("Add", (variance, epsilon), one, "shifted variance")
        deviation = self._op("Sqrt", (shifted,), one, "deviation")
        self.last_statistic = self._name("deviation")
        centred = self._op("Sub", (grouped, mean), full, "centred")
        last = self._op("Div", (centred, deviation), full, "normalised")
        if scale is not None and ((scale != 1).any() or (bias is not None and bias.any())):
            last = self._op("Mul", (last, self._constant("scale", scale)), full, "scaled")
            if bias is not None:
                last = self._op("Add", (last, self._constant("bias", bias)), full, "moved")
        sizes = self._constant("image", np.array((0, *image[1:]), np.int64))  # 0: the batch may be open
        self.written.append(Op(self._name("result"), "Reshape", (last, sizes), (site.result,)))
        self.edit.stays(site.result)
        return self.written

    def _parameters(self, op: Op) -> tuple[Any, Any, float]:
        """(scale, bias, epsilon) of a normalisation, for tensors of groups; None where there is no scale or bias."""
        graph, site = self.edit.graph, self.site
        if site.function is not None:
            scale, bias, least = (graph.constant(tensor) for tensor in site.function)
            assert scale is not None and bias is not None and least is not None
            sizes = (site.groups, -1, 1, 1)
            return scale.reshape(sizes), bias.reshape(sizes), float(least.reshape(()))
        scale, bias = (graph.constant(tensor) for tensor in (*op.inputs[1:3], ABSENT)[:2])
        if op.kind == "InstanceNormalization":
            assert scale is not None and bias is not None
            scale, bias = (value.reshape(site.groups, 1, 1, 1) for value in (scale, bias))
        return scale, bias, float(op.attrs.get("epsilon", 1e-5))

    def mean_of_rows(self) -> list[Op]:
        """The mean of each row, over the other axes that are reduced, then that of the rows."""
        graph, site = self.edit.graph, self.site
        op, image = graph.ops[site.op], graph.tensors[site.source].shape
        axes = [axis for axis in _reduced(graph, op) if axis != 2]
        means = self._mean(
            site.source, axes, tuple(1 if axis in axes else n for axis, n in enumerate(image)), "means of rows"
        )
        if op.attrs.get("keepdims", 1):
            self.written.append(self._reduction(means, [2], site.result, "rows"))
        else:
            last = self._mean(means, [2], tuple(1 if axis in (2, *axes) else n for axis, n in enumerate(image)), "mean")
            sizes = self._constant("sizes", np.array((0, *graph.tensors[site.result].shape[1:]), np.int64))
            self.written.append(Op(self._name("result"), "Reshape", (last, sizes), (site.result,)))
        self.edit.stays(site.result)
        return self.written

    def _name(self, what: str) -> str:
        return f"{self.edit.graph.tensors[self.site.result].name}/{what}"

    def _op(self, kind: str, inputs: tuple[int, ...], shape: Sequence[int], what: str, **attrs: object) -> int:
        name = self._name(what)
        last = self.edit.add_tensor(name, shape, self.edit.graph.tensors[self.site.source], part=Part(name))
        self.written.append(Op(name, kind, inputs, (last,), attrs))
        return last

    def _reshape(self, tensor: int, shape: tuple[int, ...]) -> int:
        sizes = self._constant("sizes", np.array((0, *shape[1:]), np.int64))
        return self._op("Reshape", (tensor, sizes), shape, "grouped")

    def _row_means(self, tensor: int, full: tuple[int, ...], what: str) -> int:
        columns = self._mean(tensor, [4], (*full[:4], 1), f"{what} columns")
        return self._mean(columns, [2], (*full[:2], 1, full[3], 1), f"{what} means")

    def _mean(self, tensor: int, axes: list[int], shape: Sequence[int], what: str) -> int:
        name = self._name(what)
        last = self.edit.add_tensor(name, shape, self.edit.graph.tensors[self.site.source], part=Part(name))
        self.written.append(self._reduction(tensor, axes, last, what))
        return last

    def _reduction(self, tensor: int, axes: list[int], result: int, what: str) -> Op:
        if self.edit.graph.source.version < 18:
            return Op(self._name(what), "ReduceMean", (tensor,), (result,), {"axes": axes, "keepdims": 1})
        constant = self._constant(f"{what} axes", np.array(axes, np.int64))
        return Op(self._name(what), "ReduceMean", (tensor, constant), (result,), {"keepdims": 1})

    def _constant(self, what: str, value: npt.NDArray[np.generic]) -> int:
        like = Tensor("", (), str(value.dtype), 0)
        read: Callable[[], npt.NDArray[np.generic]] = partial(np.array, value)
        return self.edit.add_tensor(self._name(what), value.shape, like, role="constant", value=read)


@dataclass(slots=True)
class _Passes:
    """Puts operators in the pass that needs them, and those again whose results are not kept."""

    whole: Graph
    statistics: Sequence[str]
    stored_bytes: int

    def graph(self) -> Graph:
        whole = self.whole
        made_by = whole.producers()
        named = {whole.tensors[tensor].name: tensor for op in whole.ops for tensor in op.outputs if tensor != ABSENT}
        done: set[int] = set()
        passes: list[tuple[list[int], list[int]]] = []
        for targets in (*([named[name]] for name in self.statistics), [*whole.outputs]):
            needed = self._needed(targets, made_by, done)
            passes.append((sorted(needed), sorted(needed - done)))
            done |= needed
        unused = [index for index in range(len(whole.ops)) if index not in done]
        if unused:
            passes[-1] = sorted({*passes[-1][0], *unused}), sorted({*passes[-1][1], *unused})
        return self._written(passes)

    def _needed(self, targets: Sequence[int], made_by: Sequence[int], done: set[int]) -> set[int]:
        whole, needed = self.whole, set()
        stack = [tensor for tensor in targets if made_by[tensor] >= 0 and made_by[tensor] not in done]
        while stack:
            index = made_by[stack.pop()]
            if index in needed:
                continue
            needed.add(index)
            for tensor in whole.ops[index].inputs:
                if tensor == ABSENT or made_by[tensor] < 0:
                    continue
                if made_by[tensor] not in done or self._dropped(tensor, made_by):
                    stack.append(tensor)
        return needed

    def _dropped(self, tensor: int, made_by: Sequence[int]) -> bool:
        """Whether a tensor is not kept for later passes."""
        meta, op = self.whole.tensors[tensor], self.whole.ops[made_by[tensor]]
        can = meta.role == "activation" and not op.after and kind_of(op.kind).draws == "never"
        can = can and kind_of(op.kind).category != "control flow" and tensor not in self.whole.outputs
        return can and meta.nbytes > self.stored_bytes

    def _written(self, passes: Sequence[tuple[list[int], list[int]]]) -> Graph:
        """The network with the operators of each pass, of which the second list of each are new."""
        first = [index for _, new in passes for index in new]
        whole, number = self.whole, {old: place for place, old in enumerate(first)}
        moved = tuple(
            replace(whole.ops[old], after=tuple(number[one] for one in whole.ops[old].after)) for old in first
        )
        source = whole.source
        source = replace(
            source,
            op_index=tuple(source.op_index[old] for old in first),
            settings_of=tuple(source.settings_of[old] for old in first),
        )
        placed = replace(whole, ops=moved, source=source).check()
        edit = Edit(placed)
        for count, (needed, new) in enumerate(passes):
            tensors: dict[int, int] = {}
            waiting: list[Op] = []
            for old in needed if len(needed) > len(new) else ():
                op = placed.ops[number[old]]
                if old in new:
                    if waiting or not tensors.keys().isdisjoint(op.inputs):
                        ops = [*waiting, _renamed(op, tensors)]
                        edit.replace(number[old], ops, settings_of=[-1] * len(waiting) + [number[old]])
                    waiting = []
                    continue
                for tensor in op.outputs:
                    if tensor != ABSENT:
                        meta = placed.tensors[tensor]
                        name = f"{meta.name}/pass{count}"
                        tensors[tensor] = edit.add_tensor(name, meta.shape, meta, part=Part(meta.name))
                waiting.append(replace(_renamed(op, tensors), name=f"{op.name}/pass{count}"))
        return edit.finish(as_placed=True)


def _renamed(op: Op, tensors: dict[int, int]) -> Op:
    """The operator on the tensors that took the place of others; it makes the new ones of its results."""
    inputs, outputs = (tuple(tensors.get(tensor, tensor) for tensor in side) for side in (op.inputs, op.outputs))
    return replace(op, inputs=inputs, outputs=outputs)
