"""Normalisations over rows in two passes, so that strips can compute both: statistics first, then values. Global means
as means of rows, which need one pass.

Source: ours; statistics of rows are joined as by Chan, Golub and LeVeque (1979).
Names: a *site* is an InstanceNormalization, alone or between the two reshapes that make a group normalisation of it, a
    GroupNormalization as ONNX Runtime writes it in plain operators (its function) or as PyTorch has it, a
    LayerNormalization over rows and columns, a GlobalAveragePool, or a ReduceMean over both.
    `Statistics of rows` are the mean and the variance of each row of a group.
Complexity: linear in operators for each pass.
Deviations: sums are added up in another sequence, so results are equal up to rounding. Tensors above a
    size are not kept from one pass to the next: each pass computes them again, from those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from downset.graph.core import ABSENT, Graph, Op, Tensor
from downset.graph.edit import Edit
from downset.graph.kinds import KINDS, kind_of
from downset.graph.parts import Part
from downset.rewrites.row_statistics import Site, reduced, sites

__all__ = ["has_row_means", "in_two_passes", "normalised_bytes", "two_passes"]


def normalised_bytes(graph: Graph) -> list[int]:
    """The sizes of tensors that are normalised over rows, each once, the largest first."""
    return sorted({graph.tensors[site.source].nbytes for site in sites(graph)}, reverse=True)


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
    divided = [site for site in sites(graph) if graph.tensors[site.source].nbytes > stored_bytes]
    if not divided:
        return graph
    edit = Edit(graph)
    statistics: list[str] = []
    for site in divided:
        *others, last = site.ops
        for index in others:
            edit.replace(index, [])
        written = _Writer(edit, site)
        ops = written.ops() if site.groups else written.mean_of_rows()
        edit.replace(last, ops, settings_of=[-1] * len(ops))
        statistics += [written.last_statistic] if site.groups else []
    return _Passes(edit.finish(as_placed=True), statistics, stored_bytes).graph()


@dataclass(slots=True)
class _Writer:
    """Writes the operators of one normalisation."""

    edit: Edit
    site: Site
    written: list[Op] = field(default_factory=list)
    last_statistic: str = ""

    def ops(self) -> list[Op]:
        graph, site = self.edit.graph, self.site
        image = graph.tensors[site.source].shape
        full = (image[0], site.groups, image[1] // site.groups, *image[2:])
        grouped = self._op("Reshape", (site.source, *self._sizes(full)), full, "grouped")
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
        epsilon = self._constant("epsilon", np.array(site.epsilon, np.float64 if self._is_torch else np.float32))
        shifted = self._op("Add", (variance, epsilon), one, "shifted variance")
        deviation = self._op("Sqrt", (shifted,), one, "deviation")
        self.last_statistic = self._name("deviation")
        centred = self._op("Sub", (grouped, mean), full, "centred")
        last = self._op("Div", (centred, deviation), full, "normalised")
        scale, bias = (graph.constant(tensor) for tensor in (site.scale, site.bias))
        if scale is not None and ((scale != 1).any() or (bias is not None and bias.any())):
            last = self._op("Mul", (last, self._for_groups(site.scale, "scale")), full, "scaled")
            if bias is not None:
                last = self._op("Add", (last, self._for_groups(site.bias, "bias")), full, "moved")
        self.written.append(Op(self._name("result"), "Reshape", (last, *self._sizes(image)), (site.result,)))
        self.edit.stays(site.result)
        return self.written

    @property
    def _is_torch(self) -> bool:
        return self.edit.graph.source.format == "torch"

    def _sizes(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The constant of a Reshape; PyTorch's takes the shape of its result."""
        sizes = np.array((0, *shape[1:]), np.int64)  # 0: the batch may be open
        return () if self._is_torch else (self._constant("sizes", sizes),)

    def _for_groups(self, tensor: int, what: str) -> int:
        """A constant for each channel or group as one that is broadcast to groups of channels; one for each element is
        so already. A .pt2 file has the weight alone, of which this is a view."""
        value, meta = self.edit.graph.constant(tensor), self.edit.graph.tensors[tensor]
        assert value is not None
        if self.site.by_element:
            return tensor
        shaped = value.reshape(self.site.groups, -1, 1, 1)
        part = Part(meta.name) if self._is_torch else None
        return self.edit.add_tensor(
            self._name(what), shaped.shape, meta, role="constant", value=lambda: shaped, part=part
        )

    def mean_of_rows(self) -> list[Op]:
        """The mean of each row, over the other axes that are reduced, then that of the rows."""
        graph, site = self.edit.graph, self.site
        op, image = graph.ops[site.ops[-1]], graph.tensors[site.source].shape
        axes = [axis for axis in reduced(graph, op) if axis != 2]
        means = self._mean(
            site.source, axes, tuple(1 if axis in axes else n for axis, n in enumerate(image)), "means of rows"
        )
        if op.attrs.get("keepdims", 1):
            self.written.append(self._reduction(means, [2], site.result, "rows"))
        else:
            last = self._mean(means, [2], tuple(1 if axis in (2, *axes) else n for axis, n in enumerate(image)), "mean")
            sizes = self._sizes(graph.tensors[site.result].shape)
            self.written.append(Op(self._name("result"), "Reshape", (last, *sizes), (site.result,)))
        self.edit.stays(site.result)
        return self.written

    def _name(self, what: str) -> str:
        return f"{self.edit.graph.tensors[self.site.result].name}/{what}"

    def _op(self, kind: str, inputs: tuple[int, ...], shape: Sequence[int], what: str, **attrs: object) -> int:
        name = self._name(what)
        last = self.edit.add_tensor(name, shape, self.edit.graph.tensors[self.site.source], part=Part(name))
        self.written.append(Op(name, kind, inputs, (last,), attrs))
        return last

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
        can = can and (op.kind in KINDS or self.whole.source.format != "torch")
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
            waiting: list[tuple[Op, int]] = []
            for old in needed if len(needed) > len(new) else ():
                op = placed.ops[number[old]]
                if old in new:
                    if waiting or not tensors.keys().isdisjoint(op.inputs):
                        ops = [*waiting, (_renamed(op, tensors), number[old])]
                        edit.replace(number[old], [one for one, _ in ops], settings_of=[of for _, of in ops])
                    waiting = []
                    continue
                for tensor in op.outputs:
                    if tensor != ABSENT:
                        meta = placed.tensors[tensor]
                        name = f"{meta.name}/pass{count}"
                        tensors[tensor] = edit.add_tensor(name, meta.shape, meta, part=Part(meta.name))
                waiting.append((replace(_renamed(op, tensors), name=f"{op.name}/pass{count}"), number[old]))
        return edit.finish(as_placed=True)


def _renamed(op: Op, tensors: dict[int, int]) -> Op:
    """The operator on the tensors that took the place of others; it makes the new ones of its results."""
    inputs, outputs = (tuple(tensors.get(tensor, tensor) for tensor in side) for side in (op.inputs, op.outputs))
    return replace(op, inputs=inputs, outputs=outputs)
