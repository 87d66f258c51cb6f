"""Graphs read from JSON: dumps of PyTorch's Inductor, and a plain form for users who have a graph but no model file.
The plain form lists tensors (name, shape, size) and ops (ins, outs)."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import msgspec

from downset.errors import LoadError
from downset.formats.inductor_dump import is_dump, read_dump
from downset.graph.core import Graph, Op, Source, Tensor
from downset.text import brief, read_file

__all__ = ["load_plain"]


class _PlainTensor(msgspec.Struct):
    size: int
    name: str = ""
    shape: list[int] = []


class _PlainOp(msgspec.Struct):
    ins: list[int]
    outs: list[int]
    name: str = ""


class _Plain(msgspec.Struct):
    tensors: list[_PlainTensor]
    ops: list[_PlainOp]
    inputs: list[int]
    outputs: list[int]
    name: str = ""


class _Plan(msgspec.Struct):
    kind: str
    schema: int


def load_plain(path: str | os.PathLike[str]) -> Graph:
    """The graph in a JSON file of the form of docs/schemas/graph.json, or in a dump of Inductor's (`inductor_dump`). In
    the first form `ins`, `outs`, `inputs` and `outputs` are tensor indices, operators are in a topological order, and
    every tensor is an activation. Raises LoadError that says what is wrong."""
    path = Path(path)
    try:
        content = read_file(path).removeprefix(codecs.BOM_UTF8)
        if is_dump(content):
            return read_dump(path, content)
        _refuse_plan(path, content)
        plain = msgspec.json.decode(content, type=_Plain)
    except OSError as error:
        raise LoadError(f"cannot read {path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise LoadError(f"{path} is not a plain graph: {error}") from None
    tensors = tuple(
        Tensor(tensor.name or f"t{index}", tuple(tensor.shape), "opaque", tensor.size)
        for index, tensor in enumerate(plain.tensors)
    )
    for index, op in enumerate(plain.ops):
        if any(tensor < 0 for tensor in (*op.ins, *op.outs)):
            raise LoadError(f"{path}: operator {index} refers to a negative tensor index")
    ops = tuple(
        Op(f"{op.name or 'op'}#{index}", op.name or "Op", tuple(op.ins), tuple(op.outs))
        for index, op in enumerate(plain.ops)
    )
    source = Source("json", str(path), tuple(range(len(ops))), tuple(range(len(tensors))))
    return Graph(plain.name or path.stem, tensors, ops, tuple(plain.inputs), tuple(plain.outputs), {}, source).check()


def _refuse_plan(path: Path, content: bytes) -> None:
    """Raises LoadError for a plan in place of a network."""
    try:
        plan = msgspec.json.decode(content, type=_Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    raise LoadError(
        f"{path} is a plan of kind {brief(repr(plan.kind), 60)}, not a model; give the model, and the plan with --plan "
        "where the command has that option"
    )
