"""Small .tflite networks written operator by operator, with seeded whole-number weights."""

import numpy as np
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

_TYPES = {
    "float16": schema.TensorType.FLOAT16,
    "float32": schema.TensorType.FLOAT32,
    "int8": schema.TensorType.INT8,
    "int16": schema.TensorType.INT16,
    "int32": schema.TensorType.INT32,
}


class TfliteNet:
    """Images of `size` x `size`, channels last. int8: every activation has the scale 0.5, weights a scale a channel."""

    def __init__(self, seed=0, *, size=5, dtype="float32"):
        self.random = np.random.default_rng(seed)
        self.size, self.dtype = size, dtype
        self.model = schema.ModelT()
        self.model.version, self.model.operatorCodes = 3, []
        self.model.buffers = [schema.BufferT()]
        self.main = schema.SubGraphT()
        self.main.tensors, self.main.operators, self.main.inputs, self.main.outputs = [], [], [], []
        self.model.subgraphs = [self.main]

    def tensor(self, shape, dtype=None, value=None, scale=0.5, axis=0):
        entry = schema.TensorT()
        entry.name = f"t{len(self.main.tensors)}".encode()
        dtype = dtype or self.dtype
        entry.shape, entry.type, entry.hasRank = np.asarray(shape, np.int32), _TYPES[dtype], True
        if self.dtype == "int8":
            entry.quantization = schema.QuantizationParametersT()
            entry.quantization.scale = np.asarray(np.atleast_1d(scale), np.float32)
            entry.quantization.zeroPoint = np.zeros(len(entry.quantization.scale), np.int64)
            entry.quantization.quantizedDimension = axis
        if value is not None:
            buffer = schema.BufferT()
            buffer.data = np.frombuffer(np.asarray(value, dtype).tobytes(), np.uint8)
            self.model.buffers.append(buffer)
            entry.buffer = len(self.model.buffers) - 1
        self.main.tensors.append(entry)
        return len(self.main.tensors) - 1

    def channels(self, tensor):
        return int(self.main.tensors[tensor].shape[3])

    def image(self, channels):
        return self.tensor((1, self.size, self.size, channels))

    def input(self, channels):
        self.main.inputs.append(self.image(channels))
        return self.main.inputs[-1]

    def op(self, name, inputs, channels, options=None, **settings):
        number = getattr(schema.BuiltinOperator, name)
        known = [code.builtinCode for code in self.model.operatorCodes]
        if number not in known:
            code = schema.OperatorCodeT()
            code.builtinCode, code.deprecatedBuiltinCode, code.version = (
                number,
                min(number, 127),
                {"RESHAPE": 1, "DIV": 1, "SUM": 2, "SQUEEZE": 2, "SPLIT_V": 2, "EXPAND_DIMS": 1}.get(name, 3),
            )
            self.model.operatorCodes.append(code)
            known.append(number)
        entry = schema.OperatorT()
        entry.opcodeIndex = known.index(number)
        entry.inputs, made = np.asarray(inputs, np.int32), self.image(channels)
        entry.outputs = np.asarray([made], np.int32)
        if options:
            entry.builtinOptionsType = getattr(schema.BuiltinOptions, options)
            entry.builtinOptions = getattr(schema, f"{options}T")()
            for key, value in settings.items():
                setattr(entry.builtinOptions, key, value)
        self.main.operators.append(entry)
        return made

    def weights(self, shape, axis):
        scale = self.random.uniform(0.1, 0.3, shape[axis])
        value = self.random.integers(-3, 4, shape)
        bias = self.random.integers(-3, 4, shape[axis])
        return (
            self.tensor(shape, value=value, scale=scale, axis=axis),
            self.tensor((shape[axis],), "int32" if self.dtype == "int8" else None, bias, scale * 0.5),
        )

    def conv(self, x, out, kernel=1, *, groups=1, relu=False, weights=None):
        weights = weights or self.weights((out, kernel, kernel, self.channels(x) // groups), 0)
        return self.op(
            "CONV_2D", (x, *weights), out, "Conv2DOptions", strideW=1, strideH=1, fusedActivationFunction=int(relu)
        )

    def depthwise(self, x, multiplier=1, *, relu=False):
        out = self.channels(x) * multiplier
        return self.op(
            "DEPTHWISE_CONV_2D",
            (x, *self.weights((1, 3, 3, out), 3)),
            out,
            "DepthwiseConv2DOptions",
            strideW=1,
            strideH=1,
            depthMultiplier=multiplier,
            fusedActivationFunction=int(relu),
        )

    def concat(self, parts, axis=3):
        return self.op("CONCATENATION", parts, sum(map(self.channels, parts)), "ConcatenationOptions", axis=axis)

    def pad(self, x):
        """A row more above."""
        rows = self.tensor((4, 2), "int32", [[0, 0], [1, 0], [0, 0], [0, 0]])
        self.main.tensors[rows].quantization = None
        made = self.op("PAD", (x, rows), self.channels(x), "PadOptions")
        self.main.tensors[made].shape = np.asarray([1, self.size + 1, self.size, self.channels(x)], np.int32)
        return made

    def save(self, path, outputs):
        self.main.outputs = np.asarray(outputs, np.int32)
        self.main.inputs = np.asarray(self.main.inputs, np.int32)
        path.write_bytes(flatbuffer_utils.convert_object_to_bytearray(self.model))
        return path


def with_unknown_operator(source, path):
    """The file with a custom operator in place of its first kind, which no runtime knows."""
    model = flatbuffer_utils.read_model(str(source))
    code = model.operatorCodes[0]
    code.builtinCode, code.deprecatedBuiltinCode, code.customCode = schema.BuiltinOperator.CUSTOM, 32, b"Mystery"
    flatbuffer_utils.write_model(model, str(path))
    return path
