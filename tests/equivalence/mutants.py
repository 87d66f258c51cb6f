"""Files that differ from a given one in one thing: each generator makes every mutant of one kind, with what it changed.

They are changed through the schema's objects and ONNX's own, not through the reader under test.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from ai_edge_litert.tools import flatbuffer_utils
from onnx import numpy_helper

TFLITE_NUMBERS = (int, np.integer)


@dataclass(frozen=True)
class Mutant:
    what: str
    model: Any

    def save(self, path):
        if hasattr(self.model, "SerializeToString"):
            path.write_bytes(self.model.SerializeToString())
        else:
            path.write_bytes(flatbuffer_utils.convert_object_to_bytearray(self.model))
        return path


def copies(model):
    """A function that makes a copy, which holds arrays that can be changed: many times faster than `copy.deepcopy`."""
    packed = pickle.dumps(model, protocol=4)
    return lambda: pickle.loads(packed)


def tflite_constants(model) -> Iterator[Mutant]:
    """One bit of one byte of every constant, at its beginning, in its middle and at its end."""
    again = copies(model)
    used = {tensor.buffer for graph in model.subgraphs for tensor in graph.tensors}
    for index in sorted(used):
        data = model.buffers[index].data
        for at in {0, len(data) // 2, len(data) - 1} if data is not None and len(data) else ():
            mutant = again()
            changed = np.array(data, np.uint8)
            changed[at] ^= 1
            mutant.buffers[index].data = changed
            yield Mutant(f"byte {at} of buffer {index}", mutant)


def tflite_operands(model) -> Iterator[Mutant]:
    """Two different operands of one operator swapped."""
    again = copies(model)
    for place, graph in enumerate(model.subgraphs):
        for number, operator in enumerate(graph.operators):
            inputs = list(operator.inputs)
            for at in range(len(inputs) - 1):
                if inputs[at] != inputs[at + 1]:
                    mutant = again()
                    changed = [*inputs[:at], inputs[at + 1], inputs[at], *inputs[at + 2 :]]
                    mutant.subgraphs[place].operators[number].inputs = np.asarray(changed, np.int32)
                    yield Mutant(f"operands {at} of operator {number} of {place}", mutant)


def tflite_edges(model) -> Iterator[Mutant]:
    """An operator reads the other of two tensors of one shape; the two results of different operators swapped."""
    again = copies(model)
    for place, graph in enumerate(model.subgraphs):
        made = [int(t) for operator in graph.operators for t in operator.outputs]
        for number, operator in enumerate(graph.operators):
            for at, tensor in enumerate(operator.inputs):
                other = next((m for m in made if m != tensor and alike(graph.tensors, m, tensor)), None)
                if other is not None:
                    mutant = again()
                    mutant.subgraphs[place].operators[number].inputs[at] = other
                    yield Mutant(f"operator {number} of {place} reads {other} for {tensor}", mutant)
        for at in range(len(graph.outputs)):
            other = next((m for m in made if m != graph.outputs[at]), None)
            if other is not None:
                mutant = again()
                mutant.subgraphs[place].outputs = np.asarray([*graph.outputs[:at], other, *graph.outputs[at + 1 :]])
                yield Mutant(f"output {at} of {place} is {other}", mutant)


def alike(tensors, one, other):
    return one != -1 and other != -1 and list(tensors[one].shape) == list(tensors[other].shape)


def tflite_attributes(model) -> Iterator[Mutant]:
    """Every number in the options of every operator, and every other field of it."""
    again = copies(model)
    for place, graph in enumerate(model.subgraphs):
        for number, operator in enumerate(graph.operators):
            for options in ("builtinOptions", "builtinOptions2"):
                held = getattr(operator, options)
                for key, value in (vars(held) if held is not None else {}).items():
                    mutant = again()
                    setattr(getattr(mutant.subgraphs[place].operators[number], options), key, other_value(value))
                    yield Mutant(f"{key} of operator {number} of {place}", mutant)
            for key, value in (("customOptions", [1, 2]), ("opcodeIndex", other_code(model, operator))):
                if value is not None:
                    mutant = again()
                    setattr(mutant.subgraphs[place].operators[number], key, value)
                    yield Mutant(f"{key} of operator {number} of {place}", mutant)
    for at in range(len(model.operatorCodes)):
        mutant = again()
        mutant.operatorCodes[at].version += 1
        yield Mutant(f"version of operator code {at}", mutant)


def other_code(model, operator):
    return next((at for at in range(len(model.operatorCodes)) if at != operator.opcodeIndex), None)


def other_value(value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, TFLITE_NUMBERS):
        return int(value) + 1
    if isinstance(value, float):
        return value + 0.5
    if isinstance(value, bytes) or value is None:
        return (value or b"") + b"x" if value is not None else [1]
    return np.append(np.asarray(value, np.int32), 1)


def tflite_quantization(model) -> Iterator[Mutant]:
    """A scale, a zero point and the axis of every tensor; tensors' types and shapes."""
    again = copies(model)
    for place, graph in enumerate(model.subgraphs):
        for number, tensor in enumerate(graph.tensors):
            held = tensor.quantization
            if held is not None and held.scale is not None and len(held.scale):
                mutant = again()
                mutant.subgraphs[place].tensors[number].quantization.scale[-1] *= np.float32(1.25)
                yield Mutant(f"scale of {number} of {place}", mutant)
                mutant = again()
                zeros = np.array(held.zeroPoint if held.zeroPoint is not None else [0] * len(held.scale))
                zeros[0] += 1
                mutant.subgraphs[place].tensors[number].quantization.zeroPoint = zeros
                yield Mutant(f"zero point of {number} of {place}", mutant)
                if len(held.scale) > 1:
                    mutant = again()
                    mutant.subgraphs[place].tensors[number].quantization.quantizedDimension += 1
                    yield Mutant(f"axis of {number} of {place}", mutant)
            mutant = again()
            mutant.subgraphs[place].tensors[number].type = (tensor.type + 1) % 10
            yield Mutant(f"type of {number} of {place}", mutant)
            if tensor.shape is not None and len(tensor.shape):
                mutant = again()
                mutant.subgraphs[place].tensors[number].shape[-1] += 1
                yield Mutant(f"shape of {number} of {place}", mutant)


def tflite_order(model) -> Iterator[Mutant]:
    """Two neighbouring operators swapped, where the second reads what the first makes."""
    again = copies(model)
    for place, graph in enumerate(model.subgraphs):
        for at in range(len(graph.operators) - 1):
            one, other = graph.operators[at], graph.operators[at + 1]
            if set(one.outputs) & set(other.inputs):
                mutant = again()
                operators = mutant.subgraphs[place].operators
                operators[at], operators[at + 1] = operators[at + 1], operators[at]
                yield Mutant(f"operators {at} and {at + 1} of {place}", mutant)


def tflite_dropped(model) -> Iterator[Mutant]:
    """An operator left out; a graph left out."""
    again = copies(model)
    for place, graph in enumerate(model.subgraphs):
        for at in range(len(graph.operators)):
            mutant = again()
            del mutant.subgraphs[place].operators[at]
            yield Mutant(f"without operator {at} of {place}", mutant)


TFLITE = {
    "constants": tflite_constants,
    "operands": tflite_operands,
    "edges": tflite_edges,
    "attributes": tflite_attributes,
    "quantization": tflite_quantization,
    "order": tflite_order,
    "dropped": tflite_dropped,
}


def copied(model):
    mutant = type(model)()
    mutant.CopyFrom(model)
    return mutant


def onnx_constants(model) -> Iterator[Mutant]:
    for at, weight in enumerate(model.graph.initializer):
        value = numpy_helper.to_array(weight).copy()
        for place in {0, value.size - 1} if value.size else ():
            changed = value.copy()
            raw = changed.reshape(-1).view(np.uint8)
            raw[place * value.itemsize] ^= 1
            mutant = copied(model)
            mutant.graph.initializer[at].CopyFrom(numpy_helper.from_array(changed, weight.name))
            yield Mutant(f"element {place} of {weight.name}", mutant)


def onnx_operands(model) -> Iterator[Mutant]:
    for number, node in enumerate(model.graph.node):
        for at in range(len(node.input) - 1):
            if node.input[at] != node.input[at + 1]:
                mutant = copied(model)
                held = mutant.graph.node[number].input
                held[at], held[at + 1] = node.input[at + 1], node.input[at]
                yield Mutant(f"operands {at} of {node.name}", mutant)


def onnx_edges(model) -> Iterator[Mutant]:
    made = [name for node in model.graph.node for name in node.output if name]
    for number, node in enumerate(model.graph.node):
        before = [name for earlier in model.graph.node[:number] for name in earlier.output if name]
        for at, name in enumerate(node.input):
            other = next((one for one in reversed(before) if one != name), None)
            if other is not None:
                mutant = copied(model)
                mutant.graph.node[number].input[at] = other
                yield Mutant(f"{node.name} reads {other} for {name}", mutant)
    for at, output in enumerate(model.graph.output):
        others = [name for name in made if name not in {one.name for one in model.graph.output}]
        mutant = copied(model)
        # the result keeps its name: another operator makes it
        maker = next(node for node in mutant.graph.node if output.name in node.output)
        other = next(node for node in mutant.graph.node if others[0] in node.output)
        maker.output[list(maker.output).index(output.name)] = others[0]
        other.output[list(other.output).index(others[0])] = output.name
        yield Mutant(f"output {at} is what {other.name} makes", mutant)


def onnx_attributes(model) -> Iterator[Mutant]:
    for number, node in enumerate(model.graph.node):
        for at, attribute in enumerate(node.attribute):
            mutant = copied(model)
            changed = mutant.graph.node[number].attribute[at]
            match attribute.type:
                case 1:
                    changed.f += 0.5
                case 2:
                    changed.i += 1
                case 3:
                    changed.s += b"x"
                case 4:
                    value = numpy_helper.to_array(attribute.t)
                    changed.t.CopyFrom(numpy_helper.from_array(value + np.ones_like(value)))
                case 6:
                    changed.floats[0] += 0.5
                case 7:
                    changed.ints[-1] += 1
                case _:
                    continue
            yield Mutant(f"{attribute.name} of {node.name}", mutant)
            mutant = copied(model)
            del mutant.graph.node[number].attribute[at]
            yield Mutant(f"without {attribute.name} of {node.name}", mutant)
        mutant = copied(model)
        mutant.graph.node[number].op_type = "Sigmoid" if node.op_type != "Sigmoid" else "Tanh"
        yield Mutant(f"kind of {node.name}", mutant)
        mutant = copied(model)
        mutant.graph.node[number].domain = "com.example"
        yield Mutant(f"domain of {node.name}", mutant)
    mutant = copied(model)
    mutant.opset_import[0].version -= 1
    yield Mutant("version of the operator set", mutant)


def onnx_bodies(model) -> Iterator[Mutant]:
    """The same mutants inside the bodies of control flow."""
    for number, node in enumerate(model.graph.node):
        for at, attribute in enumerate(node.attribute):
            if attribute.type != 5:
                continue
            inner = type(model)()
            inner.graph.CopyFrom(attribute.g)
            inner.opset_import.extend(model.opset_import)
            for make in (onnx_constants, onnx_operands, onnx_attributes, onnx_dropped):
                for made in make(inner):
                    if made.what.startswith("version"):
                        continue
                    mutant = copied(model)
                    mutant.graph.node[number].attribute[at].g.CopyFrom(made.model.graph)
                    yield Mutant(f"{made.what} in {attribute.name} of {node.name}", mutant)


def onnx_interface(model) -> Iterator[Mutant]:
    """Types and sizes of the inputs, and names that users feed and ask for."""
    for at in range(len(model.graph.input)):
        mutant = copied(model)
        mutant.graph.input[at].type.tensor_type.elem_type = 11
        yield Mutant(f"type of input {at}", mutant)
        mutant = copied(model)
        mutant.graph.input[at].type.tensor_type.shape.dim[-1].dim_value += 1
        yield Mutant(f"size of input {at}", mutant)


def onnx_dropped(model) -> Iterator[Mutant]:
    for at in range(len(model.graph.node)):
        mutant = copied(model)
        del mutant.graph.node[at]
        yield Mutant(f"without node {at}", mutant)


ONNX = {
    "constants": onnx_constants,
    "operands": onnx_operands,
    "edges": onnx_edges,
    "attributes": onnx_attributes,
    "bodies": onnx_bodies,
    "interface": onnx_interface,
    "dropped": onnx_dropped,
}
