"""Files that hold every message of ONNX's schema, and changes of every field in them, made from the schema alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = [helper.make_opsetid("", 17)]
REPEATED_DEPTH = 3
"""How deep a message that no file here has is filled."""


def info(name, shape=(4,), kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def model(nodes, weights=(), *, sparse=(), functions=(), inputs=("x",), value_info=()):
    graph = helper.make_graph(
        nodes,
        "g",
        [info(name) for name in inputs],
        [info("y")],
        weights,
        sparse_initializer=sparse,
        value_info=value_info,
    )
    domains = [*OPSET, *([helper.make_opsetid("my", 1)] if functions else [])]
    return helper.make_model(graph, opset_imports=domains, ir_version=10, functions=functions)


def encodings(folder) -> Iterator[Any]:
    """Tensors in every field that can hold their elements, and beside the file."""
    value = np.float32([1, 2, 3, 4])
    (folder / "w.bin").write_bytes(bytes(8) + value.tobytes() + np.float32([9, 8, 7, 6, 5]).tobytes())
    raw = numpy_helper.from_array(value, "w")
    outside = TensorProto(name="w", dims=[4], data_type=1, data_location=TensorProto.EXTERNAL)
    for key, held in (("location", "w.bin"), ("offset", "8"), ("length", "16")):
        outside.external_data.add(key=key, value=held)
    in_segments = TensorProto()
    in_segments.CopyFrom(outside)
    in_segments.segment.begin, in_segments.segment.end = 0, 3
    typed = [
        helper.make_tensor("w", kind, [4], [1, 2, 3, 4])
        for kind in (TensorProto.FLOAT, TensorProto.INT8, TensorProto.INT64, TensorProto.DOUBLE, TensorProto.UINT64)
    ]
    for tensor in (raw, outside, in_segments, *typed, helper.make_tensor("w", TensorProto.STRING, [1], [b"a"])):
        yield model(
            [helper.make_node("Cast", ["w"], ["m"], to=1), helper.make_node("Add", ["x", "m"], ["y"])], [tensor]
        )


def attributes() -> Iterator[Any]:
    """Attributes of every type, on an operator that no runtime has."""
    tensor, kind = numpy_helper.from_array(np.float32([1, 2])), helper.make_tensor_type_proto(1, [2])
    sparse = helper.make_sparse_tensor(tensor, numpy_helper.from_array(np.int64([0, 3])), [4])
    body = helper.make_graph([helper.make_node("Neg", ["x"], ["i"])], "b", [], [info("i")])
    values = (
        1.5,
        2,
        b"s",
        tensor,
        body,
        sparse,
        kind,
        [1.5, 2.5],
        [1, 2],
        [b"a", b"b"],
        [tensor, tensor],
        [body, body],
    )
    for value in (*values, [sparse, sparse], [kind, kind]):
        node = helper.make_node("Any", ["x"], ["y"], domain="my")
        node.attribute.append(helper.make_attribute("a", value))
        made = model([node])
        made.opset_import.append(helper.make_opsetid("my", 1))
        yield made


def calls() -> Any:
    leaky = helper.make_node("LeakyRelu", ["p"], ["q"])
    leaky.attribute.append(onnx.AttributeProto(name="alpha", type=1, ref_attr_name="slope"))
    function = helper.make_function(
        "my",
        "F",
        ["p"],
        ["r"],
        [leaky, helper.make_node("Relu", ["q"], ["r"])],
        OPSET,
        ["slope"],
        [helper.make_attribute("other", 2.0)],
        overload="v",
        value_info=[info("q")],
    )
    return model([helper.make_node("F", ["x"], ["y"], domain="my", overload="v", slope=0.25)], functions=[function])


def carriers(folder) -> list[Any]:
    """Files in which every message of the schema that ONNX's helpers make stands once or more."""
    value, at = numpy_helper.from_array(np.float32([1, 2]), "w"), numpy_helper.from_array(np.int64([0, 3]), "w_at")
    add = helper.make_node("Add", ["x", "w"], ["y"])
    default = model([add], [numpy_helper.from_array(np.float32([1, 2, 3, 4]), "w")], inputs=("x", "w"))
    annotated = model([helper.make_node("Relu", ["x"], ["m"]), helper.make_node("Neg", ["m"], ["y"])])
    annotated.graph.value_info.append(info("m"))
    annotated.graph.quantization_annotation.add(tensor_name="m").quant_parameter_tensor_names.add(key="S", value="x")
    sparse = model([add], sparse=[helper.make_sparse_tensor(value, at, [4])])
    return [*encodings(folder), *attributes(), calls(), default, annotated, sparse]


def messages() -> dict[str, Any]:
    """Every message that a ModelProto can hold, by its name."""
    found, waiting = {}, [onnx.ModelProto.DESCRIPTOR]
    while waiting:
        kind = waiting.pop()
        if kind.full_name not in found:
            found[kind.full_name] = kind
            waiting += [field.message_type for field in kind.fields if field.message_type is not None]
    return found


Path = tuple[tuple[str, int | None], ...]


def places(message: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every message inside one, with its path."""
    yield path, message
    for field, value in message.ListFields():
        if field.message_type is not None:
            for number, one in enumerate(value) if field.is_repeated else ((None, value),):
                yield from places(one, (*path, (field.name, number)))


def at(message: Any, path: Path) -> Any:
    for name, number in path:
        message = getattr(message, name) if number is None else getattr(message, name)[number]
    return message


@dataclass(frozen=True)
class Change:
    what: str
    model: Any


def changes(made: Any, path: Path, field: Any) -> Iterator[Change]:
    """The ways to change a field of the message at this path: another value, none, one more, one fewer."""
    held = getattr(at(made, path), field.name)
    is_set = len(held) > 0 if field.is_repeated else at(made, path).HasField(field.name)
    for what, change in (("changed", _change), ("cleared", _clear), ("twice", _repeat)):
        if (what == "cleared" and not is_set) or (what == "twice" and not (is_set and field.is_repeated)):
            continue
        copy = type(made)()
        copy.CopyFrom(made)
        change(at(copy, path), field)
        if field.message_type is None and not field.is_repeated and getattr(at(copy, path), field.name) == held:
            continue  # the default value is stated or not
        if copy.SerializeToString(deterministic=True) != made.SerializeToString(deterministic=True):
            yield Change(f"{field.full_name} {what} at {path}", copy)


def _clear(message: Any, field: Any) -> None:
    message.ClearField(field.name)


def _repeat(message: Any, field: Any) -> None:
    held = getattr(message, field.name)
    held.append(held[-1])


def _change(message: Any, field: Any) -> None:
    held = getattr(message, field.name)
    if field.message_type is not None:
        fill(held.add() if field.is_repeated else held, REPEATED_DEPTH)
        if not field.is_repeated:
            held.SetInParent()
    elif not field.is_repeated:
        setattr(message, field.name, _other(field, held))
    elif held:
        held[-1] = _other(field, held[-1])
    else:
        held.append(
            _other(field, 0 if field.cpp_type != field.CPPTYPE_STRING else field.default_value or _empty(field))
        )


def _empty(field: Any) -> Any:
    return b"" if field.type == field.TYPE_BYTES else ""


def _other(field: Any, value: Any) -> Any:
    if field.type == field.TYPE_ENUM:
        numbers = [entry.number for entry in field.enum_type.values]
        return numbers[(numbers.index(value) + 1) % len(numbers)]
    if field.cpp_type == field.CPPTYPE_STRING:
        return value + (b"x" if isinstance(value, bytes) else "x")
    return value + 1


def fill(message: Any, depth: int) -> None:
    """Set every field of a message, and of the messages inside it."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is not None and message.WhichOneof(field.containing_oneof.name):
            continue
        if field.message_type is None:
            _change(message, field)
        elif depth:
            held = getattr(message, field.name)
            fill(held.add() if field.is_repeated else held, depth - 1)
