"""ONNX models of strips, with the opsets of the file from which the network was read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.graph.core import ABSENT, Graph
from downset.graph.kinds import kind_of

__all__ = ["opsets_of", "refuse", "shard_model"]


def refuse(graph: Graph, ops: Sequence[int], *, several: bool) -> None:
    """Raise UnsupportedError for operators that shards cannot hold: those with bodies and, if `several` devices run
    them, those that draw random numbers without a seed. Each device would draw different numbers, and these would not
    be rows of one tensor."""
    for op in (graph.ops[index] for index in ops):
        what = f"{graph.name}: operator {op.name!r} of kind {op.kind}"
        row = kind_of(op.kind)
        if row.category == "control flow":
            raise UnsupportedError(f"{what} holds a network of its own, which shards do not carry")
        trained = graph.constant(op.inputs[2]) if row.draws == "in training" and len(op.inputs) > 2 else None
        draws = row.draws == "always" or (trained is not None and trained.any())
        if several and draws and "seed" not in op.attrs:
            raise UnsupportedError(
                f"{what} draws random numbers, others on every device; give it a seed, or let one device compute it"
            )


def opsets_of(graph: Graph) -> dict[str, int]:
    """The version of each domain's operators in the graph's file; opset 17 if that is not an .onnx file."""
    if graph.source.format != "onnx":
        return {"": 17, "com.microsoft": 1}
    from downset.formats.onnx.inference import read_skeleton

    return {item.domain: item.version for item in read_skeleton(graph.source.path).opset_import}


def shard_model(part: Graph, opsets: dict[str, int]) -> bytes:
    """The serialised model of a strip, with its constants as initializers. Raises UnsupportedError if an input or
    output is not a tensor of an element type that ONNX has, or if ONNX's checker refuses the model."""
    from onnx import helper, numpy_helper

    from downset.formats.onnx.inference import check_model
    from downset.formats.onnx.old_versions import of_version
    from downset.formats.onnx.read import ELEMENT_TYPES

    kinds = {name: number for number, name in ELEMENT_TYPES.items()}

    def info(tensor: int) -> Any:
        meta = part.tensors[tensor]
        if meta.dtype not in kinds:
            raise UnsupportedError(
                f"{part.name}: {meta.name!r} is not a plain tensor: its producer and readers must stay on one device"
            )
        return helper.make_tensor_value_info(meta.name, kinds[meta.dtype], meta.shape)

    nodes = []
    for op in part.ops:
        if op.kind == "Constant":
            continue  # its value becomes an initializer
        op = of_version(part, op, opsets.get("", 1))
        domain, _, kind = op.kind.rpartition("::")
        domain = "" if domain == "ai.onnx.12" else domain  # the Softmax of opset 12 or earlier, which this file imports
        names = [["" if t == ABSENT else part.tensors[t].name for t in side] for side in (op.inputs, op.outputs)]
        attrs = dict(op.attrs)
        if "fill" in attrs:
            number = np.array([attrs.pop("fill")], part.tensors[op.outputs[0]].dtype)
            attrs["value"] = numpy_helper.from_array(number)
        nodes.append(helper.make_node(kind, *names, name=op.name, domain=domain, **attrs))
    initializers = []
    for tensor in sorted(part.constants):
        value = part.constant(tensor)
        assert value is not None
        initializers.append(numpy_helper.from_array(np.asarray(value, order="C"), part.tensors[tensor].name))
    graph = helper.make_graph(
        nodes, "shard", [info(t) for t in part.inputs], [info(t) for t in part.outputs], initializers
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=8, producer_name="downset")
    data = bytes(model.SerializeToString(deterministic=True))
    against = check_model(data)
    if against:
        raise UnsupportedError(f"{part.name} is not valid ONNX: {against}")
    return data
