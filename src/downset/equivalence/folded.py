"""Values that a rewritten file holds as constants and the original computes from sizes and weights: computed again.

ONNX's reference implementation evaluates the original's operators, at the sizes for which the proof holds; the folding
has an evaluation of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from downset.equivalence.file_network import ABSENT, FileNetwork
from downset.errors import LoadError
from downset.formats.onnx.bodies import overridable
from downset.formats.onnx.data_files import stored_value
from downset.formats.onnx.model_file import infer, onnx_library, read_model
from downset.formats.onnx.scope import shape_of
from downset.formats.onnx.values import Array, evaluate

__all__ = ["with_folded"]

_MOST = 1 << 16
"""The most elements of a value that is evaluated."""


def with_folded(
    network: FileNetwork,
    other: FileNetwork,
    path: Path,
    shapes: Mapping[str, tuple[int, ...]] | None,
    *,
    amounts: bool = False,
) -> FileNetwork:
    """The original with the content of each value that it computes and `other` holds as a constant of this name, with
    `amounts` also of those by which operators pad, cut and shape. A value that does not follow from sizes and weights
    has none, so that nothing is proven about it."""
    nodes = [network.nodes[index] for index in network.bodies[0].nodes]
    results = {value for node in nodes for value in node.outputs} - {ABSENT}
    constants = {value.label for value in other.values if value.content is not None}
    read = {value for node in nodes if amounts for value in node.inputs[1:] if value != ABSENT}
    read = {value for value in read if network.values[value].dtype in ("int32", "int64")}
    wanted = [index for index in sorted(results) if index in read or network.values[index].label in constants]
    if not wanted:
        return network
    evaluation, values = _Evaluation(path, shapes), list(network.values)
    for index in wanted:
        result = evaluation.of(values[index].label)
        if result is not None:
            content = result.tobytes()
            form = ("constant", str(result.dtype), result.shape)
            values[index] = replace(
                values[index], form=form, content=_held(content), shape=result.shape, dtype=str(result.dtype)
            )
    return replace(network, values=tuple(values))


def _held(content: bytes) -> Any:
    return lambda: content


class _Evaluation:
    """Values of a file's main graph at given sizes of its inputs."""

    def __init__(self, path: Path, shapes: Mapping[str, tuple[int, ...]] | None) -> None:
        self._onnx, self._path = onnx_library(), path
        model = infer(self._onnx, path, read_model(path, shapes or {}))
        graph, given = model.graph, overridable(model)
        self._opsets = [*model.opset_import]
        self._maker = {name: node for node in graph.node for name in node.output if name}
        self._weights = {weight.name: weight for weight in graph.initializer if weight.name not in given}
        types = {value.name: value.type for value in (*graph.value_info, *graph.output, *graph.input)}
        self._shapes = {name: shape_of(kind) for name, kind in types.items()}
        self._values: dict[str, Array | None] = {}

    def of(self, label: str) -> Array | None:
        """The value of this name; None where it is large, or does not follow from sizes and weights."""
        stack, begun = [label], set()
        while stack:
            name = stack[-1]
            if name not in self._values and name not in begun:
                begun.add(name)
                stack += self._waiting(name)
                continue
            stack.pop()
            if name not in self._values:
                self._evaluate(name)
        return self._values[label]

    def _reads(self, node: Any) -> list[str]:
        return [] if node.op_type in ("Shape", "Size") else [name for name in node.input if name]

    def _waiting(self, name: str) -> list[str]:
        node = self._maker.get(name)
        return [] if node is None else [read for read in self._reads(node) if read not in self._values]

    def _evaluate(self, name: str) -> None:
        node, weight = self._maker.get(name), self._weights.get(name)
        self._values[name] = None
        if weight is not None and math.prod(weight.dims) <= _MOST:
            try:
                self._values[name] = stored_value(self._onnx, self._path, weight)
            except LoadError:
                return
        elif node is not None and node.domain in ("", "ai.onnx"):
            values = {read: self._values.get(read) for read in self._reads(node)}
            self._values |= dict.fromkeys(filter(None, node.output))
            self._values |= evaluate(
                self._onnx, node, values=values, shapes=self._shapes, opsets=self._opsets, most=_MOST
            )
