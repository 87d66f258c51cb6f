"""Graphs read from JSON: dumps of PyTorch's Inductor, and a plain form for users who have a graph but no model file.
The plain form lists tensors (name, shape, size) and ops (name, ins, outs); docs/python.md says what each key means.

Keys that the form does not have are ignored, as with any JSON of downset, except one that is close to a key that is not
given: that is a misspelt key, and ignoring it would lose what it says.
"""

from __future__ import annotations

import codecs
import os
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import msgspec

from downset.errors import LoadError
from downset.formats.inductor_dump import is_dump, read_dump
from downset.graph.core import Graph, Op, Source, Tensor
from downset.messages import Setting
from downset.text import brief, read_file, read_stdin

__all__ = ["load_plain"]


class _PlainTensor(msgspec.Struct, forbid_unknown_fields=True):
    size: int
    name: str = ""
    shape: list[int] = []


class _PlainOp(msgspec.Struct, forbid_unknown_fields=True):
    ins: list[int]
    outs: list[int]
    name: str = ""


class _Plain(msgspec.Struct, forbid_unknown_fields=True):
    tensors: list[_PlainTensor]
    ops: list[_PlainOp]
    inputs: list[int]
    outputs: list[int]
    name: str = ""


class _Plan(msgspec.Struct):
    kind: str
    schema: int


_STDIN = Path("stdin")
"""The name of the standard input in messages, and of a graph there that has none."""
_CLOSE = 0.75
"""How alike a key and a known one are at least, where the key is taken for misspelt: `nme` and `name` are 0.86."""


def load_plain(path: str | os.PathLike[str]) -> Graph:
    """The graph in a JSON file of the form of docs/schemas/graph.json, or in a dump of Inductor's (`inductor_dump`); in
    the standard input if `path` is "-". In the first form `ins`, `outs`, `inputs` and `outputs` are tensor indices,
    operators are in a topological order, and every tensor is an activation. Raises LoadError that says what is wrong.
    """
    path, standard = (_STDIN, True) if str(path) == "-" else (Path(path), False)
    try:
        content = (read_stdin() if standard else read_file(path)).removeprefix(codecs.BOM_UTF8)
        if is_dump(content):
            return read_dump(path, content)
        _refuse_plan(path, content)
        plain = _decoded(path, content)
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


def _decoded(path: Path, content: bytes) -> _Plain:
    """The plain graph in a JSON document. Raises LoadError for a misspelt key, DecodeError for another fault."""
    try:
        return msgspec.json.decode(content, type=_Plain)
    except msgspec.ValidationError:  # a key that the form does not have, or a fault that is told below
        document = msgspec.json.decode(content)
    if isinstance(document, dict):
        document = _known_keys(f"{path}: the graph", document, _Plain)
        for key, kind, what in (("tensors", _PlainTensor, "tensor"), ("ops", _PlainOp, "operator")):
            if isinstance(items := document.get(key), list):
                document[key] = [_known_keys(f"{path}: {what} {place}", one, kind) for place, one in enumerate(items)]
    return msgspec.convert(document, _Plain)


def _known_keys(where: str, entry: Any, kind: type[msgspec.Struct]) -> Any:
    """An object of JSON without the keys that the form does not have. Raises LoadError for a misspelt key."""
    if not isinstance(entry, dict):
        return entry
    fields = kind.__struct_fields__
    absent = [key for key in fields if key not in entry]
    for key in entry:
        if key not in fields and (close := get_close_matches(key, absent, n=1, cutoff=_CLOSE)):
            raise LoadError(f"{where} has the key {brief(repr(key), 60)}; did you mean {close[0]!r}?")
    return {key: value for key, value in entry.items() if key in fields}


def _refuse_plan(path: Path, content: bytes) -> None:
    """Raises LoadError for a plan in place of a network."""
    try:
        plan = msgspec.json.decode(content, type=_Plan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    raise LoadError(
        f"{path} is a plan of kind {brief(repr(plan.kind), 60)}, not a model; give the model, and the plan with ",
        Setting("plan"),
        " where that is taken",
    )
