"""Reads `.onnx` files, fixes the sizes of their inputs and lets ONNX infer shapes, before a graph is made."""

from __future__ import annotations

import contextlib
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from downset.errors import LimitReached, LoadError, UnsupportedError
from downset.extras import optional_library
from downset.formats.onnx.bodies import is_fixed
from downset.formats.onnx.data_files import check_external, stored_value
from downset.formats.onnx.inference import infer_types, read_skeleton, warm
from downset.formats.onnx.values import LARGEST_ELEMENTS
from downset.formats.open_sizes import Axes, settled
from downset.graph.kinds import kind_of
from downset.messages import Setting
from downset.text import printable

__all__ = [
    "check_onnx",
    "forget_shapes",
    "infer",
    "input_axes",
    "onnx_library",
    "read_model",
    "read_unfixed",
    "resizes",
]

_SHAPING = {
    "Conv": ("auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"),
    "Gemm": ("alpha", "beta", "transA", "transB"),
}
"""Standard kinds that stand for their twins while shapes are inferred, and the attributes that they understand."""


def onnx_library() -> Any:
    """The onnx module; the server of workers, which will be asked for shapes, imports it at the same time."""
    if "onnx" not in sys.modules:
        warm()
    return optional_library("onnx", what="reading .onnx files", extra="onnx")


def read_model(path: Path, shapes: Mapping[str, tuple[int, ...]]) -> Any:
    """The file with `shapes` written into its inputs. Raises LoadError for damaged files and inputs that stay open."""
    model = read_unfixed(path)
    _fix_inputs(path, model, dict(shapes))
    return model


def check_onnx(path: str | os.PathLike[str], *, shapes: Mapping[str, tuple[int, ...]] | None = None) -> None:
    """Raise what `load_onnx` raises about the file and its inputs, without inferring shapes. Also raises LoadError
    where `shapes` contradicts sizes that the file fixes, at which alone ONNX Runtime runs it."""
    model = read_unfixed(Path(path))
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if resizes(value, (shapes or {}).get(value.name, ())):
            fixed = ",".join(str(dim.dim_value) if is_fixed(dim) else "?" for dim in dims)
            raise LoadError(
                Setting("shapes"), f" gives {value.name!r} other sizes than {path}, which fixes them to {fixed}"
            )
    _fix_inputs(Path(path), model, dict(shapes or {}))


def read_unfixed(path: Path) -> Any:
    """The skeleton of the file. Raises LoadError for a damaged one, and what `read_skeleton` raises."""
    model = read_skeleton(path)
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise LoadError(f"{path} holds no ONNX graph; is the file complete?")
    damaged = next(_no_texts(model), None)
    if damaged is not None:
        raise LoadError(f"{path} is damaged: the name {damaged[:40]!r} in it is not UTF-8")
    check_external(path, model)
    return model


def _no_texts(message: Any) -> Iterator[bytes]:
    """Every string in a message, and in the messages inside it, that is not UTF-8: protobuf reads such a string as
    bytes and refuses to write them. Descriptions are left out, because nothing reads them."""
    if message.DESCRIPTOR.name == "TensorProto":  # its values may be large
        yield from (text for text in [message.name] if isinstance(text, bytes))
        for entry in message.external_data:
            yield from _no_texts(entry)
        return
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING and field.name != "doc_string":
            texts = [value] if isinstance(value, str | bytes) else value
            yield from (text for text in texts if isinstance(text, bytes))
        elif field.type == field.TYPE_MESSAGE:
            for inner in [value] if hasattr(value, "ListFields") else value:
                yield from _no_texts(inner)


def input_axes(path: Path) -> dict[str, Axes]:
    """The sizes of a file's inputs, by name. Raises what `read_unfixed` raises."""
    return {value.name: axes_of(value) for value in input_values(read_unfixed(path).graph)}


def input_values(graph: Any) -> list[Any]:
    """The inputs that have no value in the file."""
    weights = {initializer.name for initializer in graph.initializer}
    return [value for value in graph.input if value.name not in weights]


def axes_of(value: Any) -> Axes:
    """The sizes of an input; none for one that is not a tensor."""
    if not value.type.HasField("tensor_type"):
        return ()
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if is_fixed(dim) else dim.dim_param for dim in value.type.tensor_type.shape.dim]


def _fix_inputs(path: Path, model: Any, shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Write the given shapes into the graph's inputs. Raises LoadError for shapes that do not fit the inputs, and for
    inputs that stay open."""
    inputs = {value.name: value for value in input_values(model.graph)}
    unknown = next((name for name in shapes if name not in inputs), None)
    if unknown is not None:
        raise LoadError(
            Setting("shapes"),
            f" names {unknown!r}, but the inputs of {path} are {printable(', '.join(inputs)) or 'none'}",
        )
    try:
        shapes = settled({name: axes_of(value) for name, value in inputs.items()}, shapes).check().shapes
    except LoadError as error:
        raise LoadError(f"{path}: ", error.message) from None
    if any(resizes(value, shapes.get(name, ())) for name, value in inputs.items()):
        forget_shapes(model.graph)
    for name, fixed_shape in shapes.items():
        kind = inputs[name].type
        if not kind.HasField("tensor_type"):
            continue
        shape = kind.tensor_type.shape
        if kind.tensor_type.HasField("shape") and len(shape.dim) not in (0, len(fixed_shape)):
            raise LoadError(
                Setting("shapes"), f" gives {name!r} {len(fixed_shape)} dimensions, the file {len(shape.dim)}"
            )
        del shape.dim[:]
        for extent in fixed_shape:
            shape.dim.add().dim_value = extent


def resizes(value: Any, shape: Sequence[int]) -> bool:
    """Whether this shape gives an input other sizes than the file fixes."""
    dims = value.type.tensor_type.shape.dim
    return any(is_fixed(dim) and dim.dim_value != extent for dim, extent in zip(dims, shape, strict=False))


def forget_shapes(graph: Any) -> None:
    """Remove the stated sizes of results, which hold only for the input sizes with which the file was written."""
    del graph.value_info[:]
    for value in graph.output:
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")


def infer(onnx: Any, path: Path, model: Any) -> Any:
    """The model with the shape of every value that ONNX can infer."""
    standing = type(model)()
    standing.CopyFrom(model)
    _bring_in_sizes(onnx, path, standing.graph)
    for position, node in [*enumerate(standing.graph.node)][::-1]:
        stand_in = _stand_in(f"{node.domain}::{node.op_type}")
        if stand_in is not None:
            if node.op_type == "SkipLayerNormalization":
                _stand_for_sum(standing.graph, position)
            node.op_type, node.domain = stand_in, ""
            shaping = _SHAPING.get(stand_in, ())
            kept = [attribute for attribute in node.attribute if attribute.name in shaping]
            del node.attribute[:]
            node.attribute.extend(kept)
            del node.input[(3 if shaping else 1) :]
    try:
        inferred = infer_types(standing)
    except (UnsupportedError, LoadError) as error:
        raise LoadError(f"{path}: ", error.message) from None
    except LimitReached as error:
        raise LimitReached(f"{path}: ", error.message) from None
    del model.graph.value_info[:]
    model.graph.value_info.extend(inferred.value_info)
    for ours, theirs in zip(model.graph.output, inferred.output, strict=True):
        ours.CopyFrom(theirs)
    return model


def _stand_in(kind: str) -> str | None:
    """The standard kind whose result has the shape of this one's, for a kind of ONNX Runtime that the table has."""
    row = kind_of(kind)
    if row.standard in _SHAPING:
        return row.standard
    same = row.unary or row.broadcasts or row.category == "normalisation"
    return "Relu" if same and kind.startswith("com.microsoft::") else None


def _bring_in_sizes(onnx: Any, path: Path, graph: Any) -> None:
    """Put small weights that lie outside the file into the graph: shapes may follow from them. A missing file
    is an error only when one of its weights is read."""
    for weight in graph.initializer:
        if weight.data_location == weight.EXTERNAL and math.prod(weight.dims) <= LARGEST_ELEMENTS:
            with contextlib.suppress(LoadError):
                weight.CopyFrom(onnx.numpy_helper.from_array(stored_value(onnx, path, weight), weight.name))


def _stand_for_sum(graph: Any, position: int) -> None:
    """The fourth result of a SkipLayerNormalization, the sum that it normalises, has its input's shape too. The second
    and third are for training."""
    node = graph.node[position]
    if len(node.output) > 3 and node.output[3]:
        summed = type(node)(op_type="Relu", input=node.input[:1], output=node.output[3:4])
        graph.node.insert(position + 1, summed)
    del graph.node[position].output[1:]
