"""A uint8 TFLite file as int8: every uint8 byte xor 0x80, zero points less 128.

TFLite Micro has no uint8 convolution. Its int8 kernels take weights to have zero point 0, so the numbers of the cast
file mean nothing; sizes and lifetimes are the same, which is what arena figures need.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

__all__ = ["cast_to_int8"]


def cast_to_int8(source: Path, target: Path) -> None:
    """Write `target`, the file `source` with its uint8 tensors as int8."""
    model = flatbuffer_utils.read_model(str(source))
    done: set[int] = set()
    for subgraph in model.subgraphs:
        for tensor in subgraph.tensors:
            if tensor.type != schema.TensorType.UINT8:
                continue
            tensor.type = schema.TensorType.INT8
            quantization = tensor.quantization
            if quantization is not None and quantization.zeroPoint is not None:
                quantization.zeroPoint = [int(zero) - 128 for zero in quantization.zeroPoint]
            data = model.buffers[tensor.buffer].data
            if data is not None and len(data) and tensor.buffer not in done:
                done.add(tensor.buffer)
                model.buffers[tensor.buffer].data = np.frombuffer(bytes(data), np.uint8) ^ 0x80
    flatbuffer_utils.write_model(model, str(target))
