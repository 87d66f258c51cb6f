"""Mutators by format: each changes the meaning of a file in one to three places, or its bytes, and packs it.

A mutator takes the bytes of a whole file and a seeded generator and gives the bytes of a damaged one. Structured
changes reach past the parsers, into the code behind them: many such files still parse.
"""

from __future__ import annotations

import io
import json
import random
import re
import zipfile
from collections.abc import Callable, Mapping
from typing import Any

import onnx
from ai_edge_litert import schema_py_generated as schema

__all__ = ["MUTATORS", "bytes_mutated", "json_mutated", "onnx_mutated", "pt2_mutated", "text_mutated", "tflite_mutated"]

NUMBERS = (0, 1, -1, 2, 3, 7, 127, 128, 255, 1 << 16, (1 << 31) - 1, -(1 << 31), 1 << 40, (1 << 63) - 1)
NAMES = ("", "x", "\x1b[2J", "\u202e", "a" * 300, "../../etc/passwd", "<script>", "\ud7ff", "Conv", "Concat", "none")


def _times(generator: random.Random) -> range:
    return range(generator.choice([1, 1, 1, 2, 3]))


def _number(generator: random.Random) -> int:
    """Half of them such as networks have."""
    return generator.choice(NUMBERS) if generator.random() < 0.5 else generator.randint(1, 4)


def bytes_mutated(data: bytes, generator: random.Random) -> bytes:
    """One to eight bytes set, bits flipped, a piece cut out or doubled, or the end cut off."""
    damaged = bytearray(data)
    how = generator.randrange(6)
    start = generator.randrange(len(damaged))
    if how == 0:
        del damaged[start:]
    elif how == 1:
        del damaged[start : start + generator.randrange(1, 64)]
    elif how == 2:
        damaged[start:start] = damaged[start : start + generator.randrange(1, 64)]
    else:
        for _ in range(generator.randrange(1, 9)):
            at = generator.randrange(len(damaged))
            flipped = damaged[at] ^ 1 << generator.randrange(8)
            damaged[at] = generator.choice([0, 0xFF, 0x7F, 0x80, flipped, generator.randrange(256)])
    return bytes(damaged)


def text_mutated(data: bytes, generator: random.Random) -> bytes:
    """Lines dropped, doubled or swapped, and words replaced by numbers and names that break things."""
    lines = data.decode().splitlines()
    for _ in _times(generator):
        at = generator.randrange(len(lines))
        how = generator.randrange(12)
        if how == 0 and len(lines) > 1:
            del lines[at]
        elif how == 1:
            lines.insert(at, generator.choice(lines))
        elif how == 2:
            other = generator.randrange(len(lines))
            lines[at], lines[other] = lines[other], lines[at]
        elif how < 10:
            digits = [match.span() for match in re.finditer(r"[0-9]+", lines[at])]
            low, high = generator.choice(digits or [(0, 0)])
            lines[at] = f"{lines[at][:low]}{abs(_number(generator))}{lines[at][high:]}"
        else:
            words = lines[at].replace(",", " , ").split(" ")
            words[generator.randrange(len(words))] = generator.choice(
                [*map(str, NUMBERS), *NAMES, "1e999", "nan", "[]"]
            )
            lines[at] = " ".join(words).replace(" , ", ",")
    return "\n".join(lines).encode(errors="surrogatepass")


def json_mutated(data: bytes, generator: random.Random) -> bytes:
    """Values replaced, keys dropped or renamed, elements doubled or swapped, anywhere in the tree."""
    tree = json.loads(data)
    for _ in _times(generator):
        tree = _tree_mutated(tree, generator)
    return json.dumps(tree).encode()


def _tree_mutated(tree: Any, generator: random.Random) -> Any:
    places: list[tuple[Any, Any]] = []
    stack = [tree]
    while stack:
        value = stack.pop()
        items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
        for key, inner in items:
            places.append((value, key))
            stack.append(inner)
    if not places:
        return generator.choice([[], {}, 1, None])
    holder, key = generator.choice(places)
    how = generator.randrange(4)
    value = holder[key]
    if how == 0 and isinstance(value, int) and not isinstance(value, bool):
        holder[key] = generator.choice([value + 1, value - 1, _number(generator)])
    elif how == 1 and isinstance(holder, list) and len(holder) > 1:
        other = generator.randrange(len(holder))
        holder[key], holder[other] = holder[other], holder[key]
    elif how == 2:
        del holder[key]
    elif isinstance(holder, list) and generator.random() < 0.5:
        holder.append(value)
    else:
        holder[key] = generator.choice([*NUMBERS, *NAMES, 0.5, 1e300, True, None, [], {}, [value], {"a": value}])
    return tree


def onnx_mutated(data: bytes, generator: random.Random) -> bytes:
    model = onnx.load_from_string(data)
    for _ in _times(generator):
        generator.choice(_ONNX)(model.graph, generator)
    if generator.random() < 0.05:
        model.opset_import[0].version = generator.choice([1, 6, 12, 21, 99, -1])
    packed = model.SerializeToString()
    return bytes_mutated(packed, generator) if generator.random() < 0.05 else packed


def _node(graph: Any, generator: random.Random) -> Any:
    return generator.choice(graph.node) if graph.node else graph.node.add()


def _tensor_names(graph: Any) -> list[str]:
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    return sorted(names | {value.name for value in graph.input} | {weight.name for weight in graph.initializer})


def _onnx_rewire(graph: Any, generator: random.Random) -> None:
    node = _node(graph, generator)
    names = list(node.input) or list(node.output)
    if names:
        where = node.input if node.input else node.output
        where[generator.randrange(len(names))] = generator.choice([*_tensor_names(graph), "", "absent"])


def _onnx_swap_nodes(graph: Any, generator: random.Random) -> None:
    one, other = _node(graph, generator), _node(graph, generator)
    kept = onnx.NodeProto()
    kept.CopyFrom(one)
    one.CopyFrom(other)
    other.CopyFrom(kept)


def _onnx_drop_or_double(graph: Any, generator: random.Random) -> None:
    node = _node(graph, generator)
    if generator.random() < 0.5:
        graph.node.remove(node)
    else:
        graph.node.add().CopyFrom(node)


def _onnx_kind(graph: Any, generator: random.Random) -> None:
    kinds = ("Conv", "Concat", "Reshape", "Add", "Relu", "Gemm", "MaxPool", "If", "Loop", "Split", "Resize", "Nothing")
    _node(graph, generator).op_type = generator.choice(kinds)


def _onnx_attribute(graph: Any, generator: random.Random) -> None:
    node = _node(graph, generator)
    if not node.attribute:
        node.attribute.append(onnx.helper.make_attribute("axis", generator.choice(NUMBERS)))
        return
    attribute = generator.choice(node.attribute)
    if attribute.ints:
        attribute.ints[generator.randrange(len(attribute.ints))] = _number(generator)
    elif generator.random() < 0.3:
        node.attribute.remove(attribute)
    else:
        attribute.i = generator.choice(NUMBERS)
        attribute.type = generator.choice([1, 2, 3, 4, 5, 7])


def _onnx_shape(graph: Any, generator: random.Random) -> None:
    values = [*graph.input, *graph.output]
    if not values:
        return
    tensor = generator.choice(values).type.tensor_type
    if tensor.shape.dim and generator.random() < 0.8:
        generator.choice(tensor.shape.dim).dim_value = _number(generator)
    else:
        tensor.elem_type = generator.choice([0, 1, 2, 3, 6, 7, 8, 9, 10, 16, 23, 99])


def _onnx_weights(graph: Any, generator: random.Random) -> None:
    if not graph.initializer:
        return
    weight = generator.choice(graph.initializer)
    how = generator.randrange(4)
    if how == 0 and weight.dims:
        weight.dims[generator.randrange(len(weight.dims))] = _number(generator)
    elif how == 1:
        weight.raw_data = weight.raw_data[: generator.randrange(len(weight.raw_data) + 1)]
    elif how == 2:
        weight.data_type = generator.choice([0, 1, 2, 6, 7, 8, 99])
    else:
        weight.name = generator.choice([*_tensor_names(graph), ""])


def _onnx_ends(graph: Any, generator: random.Random) -> None:
    ends = generator.choice([graph.input, graph.output])
    if ends and generator.random() < 0.5:
        generator.choice(ends).name = generator.choice([*_tensor_names(graph), "absent"])
    elif ends:
        ends.add().CopyFrom(generator.choice(ends))


def _onnx_names(graph: Any, generator: random.Random) -> None:
    """A tensor called something else wherever it is named."""
    names = _tensor_names(graph)
    if not names:
        return
    old, new = generator.choice(names), generator.choice(NAMES) + str(generator.randrange(100))
    for node in graph.node:
        for listed in (node.input, node.output):
            for at, name in enumerate(listed):
                if name == old:
                    listed[at] = new
    for named in (*graph.input, *graph.output, *graph.initializer, *graph.value_info):
        if named.name == old:
            named.name = new


def _onnx_values(graph: Any, generator: random.Random) -> None:
    """Other weights, not-a-number among them."""
    weights = [weight for weight in graph.initializer if weight.raw_data]
    if weights:
        weight = generator.choice(weights)
        weight.raw_data = bytes(generator.choice([0, 0x7F, 0xFF, 0x80]) for _ in weight.raw_data)


_ONNX: tuple[Callable[[Any, random.Random], None], ...] = (
    _onnx_rewire,
    _onnx_swap_nodes,
    _onnx_drop_or_double,
    _onnx_kind,
    _onnx_attribute,
    _onnx_shape,
    _onnx_weights,
    _onnx_ends,
    _onnx_names,
    _onnx_values,
    _onnx_names,
    _onnx_values,
    _onnx_names,
    _onnx_values,
)


def tflite_mutated(data: bytes, generator: random.Random) -> bytes:
    import flatbuffers

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAsModel(data, 0))
    for _ in _times(generator):
        generator.choice(_TFLITE)(model, generator.choice(model.subgraphs), generator)
    builder = flatbuffers.Builder(len(data))
    try:
        builder.Finish(model.Pack(builder), b"TFL3")
    except (TypeError, ValueError, OverflowError, AttributeError):  # a number that its field cannot hold
        return bytes_mutated(data, generator)
    packed = bytes(builder.Output())
    return bytes_mutated(packed, generator) if generator.random() < 0.05 else packed


def _index(count: int, generator: random.Random) -> int:
    return generator.choice([-1, count, 1 << 30, *(generator.randrange(max(count, 1)) for _ in range(9))])


def _tflite_wiring(model: Any, graph: Any, generator: random.Random) -> None:
    op = generator.choice(graph.operators)
    places = list(generator.choice([op.inputs, op.outputs]))
    if places:
        places[generator.randrange(len(places))] = _index(len(graph.tensors), generator)
        if generator.random() < 0.7:
            op.inputs = places
        else:
            op.outputs = places


def _tflite_operators(model: Any, graph: Any, generator: random.Random) -> None:
    at = generator.randrange(len(graph.operators))
    how = generator.randrange(4)
    if how == 0:
        del graph.operators[at]
        if not graph.operators:
            graph.operators = []
    elif how == 1:
        graph.operators.insert(at, generator.choice(graph.operators))
    elif how == 2:
        graph.operators[at].opcodeIndex = abs(_index(len(model.operatorCodes), generator))
    else:
        other = generator.randrange(len(graph.operators))
        graph.operators[at], graph.operators[other] = graph.operators[other], graph.operators[at]


def _tflite_tensor(model: Any, graph: Any, generator: random.Random) -> None:
    tensor = generator.choice(graph.tensors)
    how = generator.randrange(5)
    if how == 0:
        shape = list([] if tensor.shape is None else tensor.shape)
        if shape:
            shape[generator.randrange(len(shape))] = generator.choice([n for n in NUMBERS if abs(n) < 1 << 31])
        tensor.shape = shape if generator.random() < 0.8 else shape[1:]
    elif how == 1:
        tensor.type = generator.choice([0, 1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 99])
    elif how == 2:
        tensor.buffer = abs(_index(len(model.buffers), generator))
    elif how == 3:
        tensor.isVariable = not tensor.isVariable
    else:
        tensor.name = generator.choice(NAMES)


def _tflite_quantisation(model: Any, graph: Any, generator: random.Random) -> None:
    quantised = generator.choice(graph.tensors).quantization
    if quantised is None:
        return
    if generator.random() < 0.5:
        quantised.scale = generator.choice([[], [0.0], [float("nan")], [1.0] * 7])
    else:
        quantised.zeroPoint = generator.choice([[], [1 << 40], [-129], [0] * 7])


def _tflite_ends(model: Any, graph: Any, generator: random.Random) -> None:
    ends = [_index(len(graph.tensors), generator) for _ in range(generator.randrange(3))]
    if generator.random() < 0.5:
        graph.inputs = ends
    else:
        graph.outputs = ends


def _tflite_code(model: Any, graph: Any, generator: random.Random) -> None:
    code = generator.choice(model.operatorCodes)
    code.builtinCode = generator.choice([0, 1, 2, 3, 4, 9, 14, 17, 22, 25, 32, 118, 119, 129, 142, 143, 200, 400])
    if generator.random() < 0.3:
        code.version = generator.choice([0, 1, 99])


def _tflite_buffer(model: Any, graph: Any, generator: random.Random) -> None:
    buffer = generator.choice(model.buffers)
    length = 0 if buffer.data is None else len(buffer.data)
    buffer.data = [] if buffer.data is None else list(buffer.data[: generator.randrange(length + 1)])
    if generator.random() < 0.2:
        buffer.offset, buffer.size = generator.choice([(1, 1), (1 << 40, 9), (64, 1 << 40)])


_TFLITE: tuple[Callable[[Any, Any, random.Random], None], ...] = (
    _tflite_wiring,
    _tflite_operators,
    _tflite_tensor,
    _tflite_quantisation,
    _tflite_ends,
    _tflite_code,
    _tflite_buffer,
)


def pt2_mutated(data: bytes, generator: random.Random) -> bytes:
    """An archive with one of its files damaged, dropped, doubled or renamed."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    trees = [name for name in files if name.endswith(".json")]
    name = generator.choice(trees if generator.random() < 0.8 else sorted(files))
    how = generator.random()
    if how < 0.75 and name.endswith(".json"):
        files[name] = json_mutated(files[name], generator)
    elif how < 0.85 and files[name]:
        files[name] = bytes_mutated(files[name], generator)
    elif how < 0.95:
        del files[name]
    else:
        files[generator.choice(["../" + name, name + "x", "/" + name])] = files.pop(name)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for entry, content in files.items():
            archive.writestr(entry, content)
    return packed.getvalue()


MUTATORS: Mapping[str, Callable[[bytes, random.Random], bytes]] = {
    ".onnx": onnx_mutated,
    ".tflite": tflite_mutated,
    ".pt2": pt2_mutated,
    ".json": json_mutated,
    ".toml": text_mutated,
    ".csv": text_mutated,
}
"""By suffix."""
