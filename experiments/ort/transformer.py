"""An encoder of transformer layers with random weights, as exporters write one: batch and tokens stay open."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_encoder"]


class _Writer:
    """The nodes and weights of a model, in the order in which they are added."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[Any] = []
        self.weights: list[Any] = []
        self._random = np.random.default_rng(seed)

    def weight(self, *shape: int) -> str:
        values = self._random.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
        return self.constant(values)

    def constant(self, values: Any) -> str:
        import onnx

        name = f"weight_{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], **attributes: Any) -> str:
        import onnx

        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(kind, inputs, [name], name, **attributes))
        return name

    def linear(self, values: str, width: int, columns: int) -> str:
        return self.add("Add", [self.add("MatMul", [values, self.weight(width, columns)]), self.weight(columns)])

    def norm(self, values: str, width: int) -> str:
        ones = self.constant(np.ones(width, np.float32))
        return self.add("LayerNormalization", [values, ones, self.weight(width)], axis=-1)


def write_encoder(path: Path, *, layers: int = 7, width: int = 512, heads: int = 8, seed: int = 0) -> None:
    """Write an encoder with 12 * width**2 weights a layer and an input `tokens` of token numbers, [batch, sequence]."""
    import onnx

    writer = _Writer(seed)
    values = writer.add("Gather", [writer.weight(1000, width), "tokens"])
    for _ in range(layers):
        values = writer.norm(writer.add("Add", [values, _attention(writer, values, width, heads)]), width)
        wide = writer.linear(values, width, 4 * width)
        root = writer.add("Div", [wide, writer.constant(np.float32(np.sqrt(2)))])
        risen = writer.add("Add", [writer.add("Erf", [root]), writer.constant(np.float32(1))])
        half = writer.add("Mul", [writer.add("Mul", [wide, risen]), writer.constant(np.float32(0.5))])
        values = writer.norm(writer.add("Add", [values, writer.linear(half, 4 * width, width)]), width)
    writer.nodes.append(onnx.helper.make_node("Identity", [values], ["states"], "states"))
    graph = onnx.helper.make_graph(
        writer.nodes,
        "encoder",
        [onnx.helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, ["batch", "sequence"])],
        [onnx.helper.make_tensor_value_info("states", onnx.TensorProto.FLOAT, ["batch", "sequence", width])],
        writer.weights,
    )
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)


def _attention(writer: _Writer, values: str, width: int, heads: int) -> str:
    apart = writer.constant(np.asarray([0, 0, heads, width // heads], np.int64))
    joined = writer.constant(np.asarray([0, 0, width], np.int64))

    def projected(order: Sequence[int]) -> str:
        linear = writer.add("Reshape", [writer.linear(values, width, width), apart])
        return writer.add("Transpose", [linear], perm=order)

    queries, keys, read = projected((0, 2, 1, 3)), projected((0, 2, 3, 1)), projected((0, 2, 1, 3))
    scale = writer.constant(np.float32(np.sqrt(width / heads)))
    scores = writer.add("Softmax", [writer.add("Div", [writer.add("MatMul", [queries, keys]), scale])], axis=-1)
    heard = writer.add("Transpose", [writer.add("MatMul", [scores, read])], perm=(0, 2, 1, 3))
    return writer.linear(writer.add("Reshape", [heard, joined]), width, width)
