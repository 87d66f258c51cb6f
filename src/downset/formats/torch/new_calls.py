"""Calls of a `.pt2` file that a rewrite made new: copies of rows (`slice_copy`), concatenations and paddings, and the
parts of normalisations in two passes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from downset.errors import UnsupportedError
from downset.formats.torch.archive import DTYPES
from downset.graph.core import Graph, Op

__all__ = ["ONES", "TRIANGLE", "Argument", "argument", "new_call"]

Argument = dict[str, Any]


ONES, TRIANGLE = "aten::new_ones.default", "aten::tril.default"
"""Kinds of the calls that make the mask of some rows of causal attention: ones, and zeros above a diagonal."""
_BOOL = next(number for number, name in DTYPES.items() if name == "bool")


def argument(name: str, content: Argument, *, positional: bool = True) -> Argument:
    """An argument in the file's form."""
    return {"name": name, "arg": content, "kind": 1 if positional else 2}


def new_call(graph: Graph, op: Op, names: Mapping[int, str]) -> tuple[str, list[Argument]]:
    """(PyTorch's operator, its arguments). `names`: those of tensors in the file. Raises UnsupportedError for a kind of
    which PyTorch has no call in this form."""
    tensors = [{"name": names[tensor]} for tensor in op.inputs]
    source, result = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    given: dict[str, Argument] = {"self": {"as_tensor": tensors[0]}}
    match op.kind:
        case "Slice":
            start, end, axis = (int(_number(graph, tensor)) for tensor in op.inputs[1:4])
            given |= {"dim": {"as_int": axis}, "start": {"as_int": start}, "end": {"as_int": end}}
            # Rows of a weight stay where they lie.
            target = "slice_copy.Tensor" if result.role == "activation" else "slice.Tensor"
        case "Concat":
            given = {"tensors": {"as_tensors": tensors}, "dim": {"as_int": int(op.attrs["axis"])}}
            target = "cat.default"
        case "Pad":
            pads, rank = op.attrs["pads"], len(source.shape)
            pairs = [side for axis in reversed(range(rank)) for side in (pads[axis], pads[axis + rank])]
            fill = op.attrs["fill"]
            value: Argument = {"as_float": _float(fill)} if "float" in source.dtype else {"as_int": int(fill)}
            given |= {"pad": {"as_ints": pairs}, "value": value}
            target = "constant_pad_nd.default"
        case "Reshape":
            given |= {"shape": {"as_ints": list(result.shape)}}
            target = "reshape.default"
        case "ReduceMean":
            given |= {"dim": {"as_ints": list(op.attrs["axes"])}, "keepdim": {"as_bool": bool(op.attrs["keepdims"])}}
            target = "mean.dim"
        case "Add" | "Sub" | "Mul" | "Div":
            number = op.inputs[1] in graph.constants and not graph.tensors[op.inputs[1]].shape
            other: Argument = {"as_float": float(_number(graph, op.inputs[1]))} if number else {"as_tensor": tensors[1]}
            given |= {"other": other}
            target = f"{op.kind.lower()}.{'Scalar' if number else 'Tensor'}"
        case "Sqrt":
            target = "sqrt.default"
        case kind if kind == ONES:
            given |= {"size": {"as_ints": list(result.shape)}, "dtype": {"as_scalar_type": _BOOL}}
            target = "new_ones.default"
        case kind if kind == TRIANGLE:
            given |= {"diagonal": {"as_int": op.attrs["diagonal"]}}
            target = "tril.default"
        case "Identity":
            target = "clone.default"
        case _:
            raise UnsupportedError(f"{graph.name}: {op.kind} {op.name!r} is not written to .pt2 files")
    return target, [argument(name, content, positional=name != "dtype") for name, content in given.items()]


def _number(graph: Graph, tensor: int) -> Any:
    value = graph.constant(tensor)
    assert value is not None
    return value.reshape(-1)[0]


def _float(value: float) -> float | str:
    """A float in the file's form: its JSON has no infinities."""
    return float(value) if math.isfinite(value) else "Infinity" if value > 0 else "-Infinity"
