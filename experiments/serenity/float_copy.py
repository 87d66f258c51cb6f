"""A quantised .tflite network with the same weights as floats, and parts of a network as files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["write_float_copy", "write_part"]


def write_float_copy(source: Path, target: Path) -> None:
    """Every quantised tensor becomes float32, constants by their scale and zero point; operators stay as they are."""
    from ai_edge_litert import schema_py_generated as schema
    from ai_edge_litert.tools import flatbuffer_utils as files

    kinds = {schema.TensorType.UINT8: np.uint8, schema.TensorType.INT8: np.int8, schema.TensorType.INT32: np.int32}
    model = files.read_model(str(source))
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            quantization = tensor.quantization
            if quantization is None or quantization.scale is None or tensor.type not in kinds:
                continue
            data = model.buffers[tensor.buffer].data
            if data is not None and len(data):
                buffer = schema.BufferT()
                buffer.data = np.frombuffer(_floats(tensor, data, kinds[tensor.type]).tobytes(), np.uint8)
                model.buffers.append(buffer)
                tensor.buffer = len(model.buffers) - 1
            tensor.type, tensor.quantization = schema.TensorType.FLOAT32, None
    used = {tensor.buffer for subgraph in model.subgraphs for tensor in subgraph.tensors}
    used |= {entry.buffer for entry in model.metadata or ()}
    for index, buffer in enumerate(model.buffers):
        if index not in used:
            buffer.data = None
    target.write_bytes(bytes(files.convert_object_to_bytearray(model)))


def _floats(tensor: Any, data: Any, dtype: Any) -> Any:
    quantization = tensor.quantization
    values = np.frombuffer(bytes(data), dtype).reshape(tensor.shape).astype(np.float64)
    shape = [1] * values.ndim
    if len(quantization.scale) > 1:
        shape[quantization.quantizedDimension] = -1
    scale = np.asarray(quantization.scale, np.float64).reshape(shape if len(quantization.scale) > 1 else [])
    zero = np.asarray(quantization.zeroPoint, np.float64).reshape(scale.shape)
    return ((values - zero) * scale).astype(np.float32)


def write_part(source: Path, target: Path, operators: range) -> None:
    """A file with these operators of the main subgraph alone. Its inputs are what they read from before, its outputs
    what is read after them or by nobody."""
    from ai_edge_litert.tools import flatbuffer_utils as files

    model = files.read_model(str(source))
    main = model.subgraphs[0]
    inside = [main.operators[index] for index in operators]
    outside = [op for index, op in enumerate(main.operators) if index not in operators]
    produced = [int(tensor) for op in inside for tensor in op.outputs]
    read = list(dict.fromkeys(int(tensor) for op in inside for tensor in op.inputs if tensor >= 0))
    wanted = {int(tensor) for op in outside for tensor in op.inputs} | {int(tensor) for tensor in main.outputs}

    def constant(tensor: int) -> bool:
        data = model.buffers[main.tensors[tensor].buffer].data
        return data is not None and len(data) > 0

    main.inputs = np.asarray([tensor for tensor in read if tensor not in produced and not constant(tensor)], np.int32)
    main.outputs = np.asarray([tensor for tensor in produced if tensor in wanted or tensor not in read], np.int32)
    kept = sorted({*produced, *read, *map(int, main.inputs)})
    number = {tensor: position for position, tensor in enumerate(kept)}
    main.tensors = [main.tensors[tensor] for tensor in kept]
    for op in inside:
        op.inputs = np.asarray([number.get(int(tensor), -1) for tensor in op.inputs], np.int32)
        op.outputs = np.asarray([number[int(tensor)] for tensor in op.outputs], np.int32)
    for name in ("inputs", "outputs"):
        setattr(main, name, np.asarray([number[int(tensor)] for tensor in getattr(main, name)], np.int32))
    main.operators, model.subgraphs, model.signatureDefs, model.metadata = inside, [main], None, None
    used = {tensor.buffer for tensor in main.tensors}
    for index, buffer in enumerate(model.buffers):
        if index not in used:
            buffer.data = None
    target.write_bytes(bytes(files.convert_object_to_bytearray(model)))
