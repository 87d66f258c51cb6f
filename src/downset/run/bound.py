"""Operators bound to a device: weights in place and packed, what fuses fused, everything else from the kernel table.

A bound call reads its activations from a table of values and returns its outputs; nothing is looked up while it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from downset.errors import UnsupportedError
from downset.graph import ABSENT, Graph, Op
from downset.run.kernels import KERNELS, check_kernels
from downset.run.library import torch_library

__all__ = ["DTYPES", "Binder", "Call"]

DTYPES = ("float32", "float16", "bfloat16")
_RELU = frozenset({"Relu"})
_READ_AS_NUMBERS = frozenset(
    {
        "ArgMax", "ArgMin", "Clip", "ConstantOfShape", "Expand", "Pad", "ReduceMax", "ReduceMean", "ReduceMin",
        "ReduceSum", "Reshape", "Resize", "Slice", "Split", "Squeeze", "Tile", "Transpose", "Unsqueeze", "Upsample",
        "tflite::SPLIT_V", "tflite::STRIDED_SLICE",
    }
)  # fmt: skip
"""Kinds whose constants are axes, sizes and limits: Python reads them, and reading from a GPU would stop a capture."""


@dataclass(frozen=True, slots=True)
class Call:
    """`run(values of inputs) -> values of outputs`; `inputs` and `outputs` are tensors of the graph."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    run: Callable[[list[Any]], Sequence[Any]]


class Binder:
    """Binds operators of one graph to one device and element type; weights are loaded once and shared by all calls.

    On the CPU convolutions are packed by oneDNN, once for each number of threads they run with: a packed layout is made
    for a number of threads and can be fifty times slower with another. On CUDA they are cuDNN's, channels last, with
    the ReLU inside.
    """

    def __init__(self, graph: Graph, *, device: str = "cpu", dtype: str = "float32") -> None:
        check_kernels(graph)
        self.graph, self.device, self.dtype = graph, device, dtype
        self._torch = torch_library()
        self._float = getattr(self._torch, dtype)
        self._loaded: dict[int, Any] = {}
        self._made_by, self._read_by = graph.producers(), graph.consumers()
        self._packed: dict[tuple[Any, ...], Any] = {}

    def constant(self, tensor: int) -> Any:
        """On the device where it is data; axes, sizes and limits stay where Python reads them."""
        if tensor not in self._loaded:
            value = self.graph.constant(tensor)
            if value is None:
                raise UnsupportedError(f"tensor {self.graph.tensors[tensor].name!r} has no known value")
            loaded = self._torch.from_numpy(np.array(value, order="C"))
            if not all(self.graph.ops[index].kind in _READ_AS_NUMBERS for index in self._read_by[tensor]):
                loaded = loaded.to(self.device, self._float if loaded.is_floating_point() else None)
            self._loaded[tensor] = loaded
        return self._loaded[tensor]

    def place(self, value: Any) -> Any:
        """A given value on the device, as the kernels want it: images channels last."""
        loaded = value if isinstance(value, self._torch.Tensor) else self._torch.from_numpy(np.array(value, order="C"))
        if loaded.is_floating_point():
            loaded = loaded.to(self.device, self._float)
            if loaded.dim() == 4:
                loaded = loaded.contiguous(memory_format=self._torch.channels_last)
            return loaded
        return loaded.to(self.device)

    def place_weights(self, value: Any) -> Any:
        """Weights that were made here, as the kernels want them."""
        return self._torch.from_numpy(np.array(value, order="C")).to(self.device, self._float)

    def bind(self, ops: Sequence[int], *, threads: int = 1) -> tuple[Call, ...]:
        """The calls of these operators, in the order given; a convolution takes the ReLU behind it along."""
        calls = []
        taken: set[int] = set()
        for position, index in enumerate(ops):
            if index in taken:
                continue
            op = self.graph.ops[index]
            follower = self._fused_relu(op, ops[position + 1 :])
            if follower is not None:
                taken.add(follower)
                op = replace(op, outputs=self.graph.ops[follower].outputs, attrs={**op.attrs, "activation": "Relu"})
            calls.append(self._call(op, threads))
        return tuple(calls)

    def _fused_relu(self, op: Op, later: Sequence[int]) -> int | None:
        if op.kind != "Conv" or op.attrs.get("activation"):
            return None
        (result,) = op.outputs[:1]
        readers = self._read_by[result]
        alone = len(readers) == 1 and result not in self.graph.outputs
        return readers[0] if alone and readers[0] in later and self.graph.ops[readers[0]].kind in _RELU else None

    def fixed_outputs(self, outputs: Sequence[int]) -> dict[int, Any]:
        """Those of these tensors that are constants, with their values on the device."""
        known = [tensor for tensor in outputs if tensor in self.graph.constants]
        return {tensor: self.constant(tensor).to(self.device) for tensor in known}

    def _call(self, op: Op, threads: int) -> Call:
        for tensor in op.inputs:
            if tensor != ABSENT and self.graph.tensors[tensor].role == "state":
                name = self.graph.tensors[tensor].name
                raise UnsupportedError(f"operator {op.name!r} reads {name!r}, which is kept from one run to the next")
        inputs = tuple(tensor for tensor in op.inputs if tensor != ABSENT and tensor not in self.graph.constants)
        if op.kind in ("Conv", "com.microsoft::FusedConv") and len(inputs) == 1 and inputs[0] == op.inputs[0]:
            fast = self._convolution_of(op, threads)
            if fast is not None:
                return Call(inputs, op.outputs[:1], fast)
        fixed = [None if tensor == ABSENT or tensor in inputs else self.constant(tensor) for tensor in op.inputs]
        places = [(at, inputs.index(tensor)) for at, tensor in enumerate(op.inputs) if tensor in inputs]
        shapes = [self.graph.tensors[tensor].shape if tensor != ABSENT else () for tensor in op.outputs]
        kernel = KERNELS[op.kind]

        dtypes = [None if tensor == ABSENT else self.dtype_of(tensor) for tensor in op.outputs]

        def run(values: list[Any]) -> Sequence[Any]:
            arguments = list(fixed)
            for at, source in places:
                arguments[at] = values[source]
            results = kernel(op, arguments, shapes)
            return [value.to(dtype) for value, dtype in zip(results, dtypes, strict=False) if dtype is not None]

        return Call(inputs, tuple(tensor for tensor in op.outputs if tensor != ABSENT), run)

    def dtype_of(self, tensor: int) -> Any:
        """The element type a tensor is computed in: floats in the engine's, everything else in its own. (A cast is no
        kernel: it is this.) Raises UnsupportedError for a type that PyTorch lacks."""
        name = self.graph.tensors[tensor].dtype
        dtype = getattr(self._torch, name, None)
        if not isinstance(dtype, self._torch.dtype):
            raise UnsupportedError(f"tensor {self.graph.tensors[tensor].name!r} of type {name} cannot be executed")
        return self._float if dtype.is_floating_point else dtype

    def _convolution_of(self, op: Op, threads: int) -> Callable[[list[Any]], Sequence[Any]] | None:
        """None where the kernel table must do it: other layouts, ranks, paddings or activations."""
        shape = self.graph.tensors[op.inputs[0]].shape
        plain = op.attrs.get("activation") in (None, "", "Relu") and op.attrs.get("auto_pad", "NOTSET") == "NOTSET"
        bias = op.inputs[2] if len(op.inputs) > 2 and op.inputs[2] != ABSENT else None
        known = op.inputs[1] in self.graph.constants and (bias is None or bias in self.graph.constants)
        if op.attrs.get("layout") == "NHWC" or len(shape) != 4 or not plain or not known or len(op.inputs) > 3:
            return None
        pads = list(op.attrs.get("pads") or [0, 0, 0, 0])
        if pads[:2] != pads[2:]:
            return None
        geometry = Geometry(
            tuple(pads[:2]),
            tuple(op.attrs.get("strides") or (1, 1)),
            tuple(op.attrs.get("dilations") or (1, 1)),
            int(op.attrs.get("group", 1)),
            op.attrs.get("activation") == "Relu",
        )
        weights = self.constant(op.inputs[1])
        key = (op.inputs[1], bias)
        return self.convolution(key, weights, None if bias is None else self.constant(bias), geometry, shape, threads)

    def convolution(
        self, key: tuple[Any, ...], weights: Any, bias: Any, geometry: Geometry, shape: Sequence[int], threads: int
    ) -> Callable[[list[Any]], Sequence[Any]]:
        """A convolution with its weights packed for this device; `key` names them."""
        if self.device == "cpu":
            return self._packed_convolution(key, weights, bias, geometry, shape, threads)
        return self._library_convolution(key, weights, bias, geometry)

    def _packed_convolution(
        self, key: tuple[Any, ...], weights: Any, bias: Any, geometry: Geometry, shape: Sequence[int], threads: int
    ) -> Callable[[list[Any]], Sequence[Any]]:
        torch = self._torch
        pad, stride, dilation = (list(values) for values in (geometry.pad, geometry.stride, geometry.dilation))
        where = (*key, threads, tuple(shape), geometry)
        if where not in self._packed:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                self._packed[where] = torch.ops.mkldnn._reorder_convolution_weight(
                    weights, pad, stride, dilation, geometry.groups, list(shape)
                )
            finally:
                torch.set_num_threads(before)
        packed = self._packed[where]
        convolve = torch.ops.mkldnn._convolution_pointwise
        activation = "relu" if geometry.relu else "none"
        groups, last = geometry.groups, torch.channels_last

        def run(values: list[Any]) -> Sequence[Any]:
            image = values[0].contiguous(memory_format=last)
            return (convolve(image, packed, bias, pad, stride, dilation, groups, activation, [], ""),)

        return run

    def _library_convolution(
        self, key: tuple[Any, ...], weights: Any, bias: Any, geometry: Geometry
    ) -> Callable[[list[Any]], Sequence[Any]]:
        torch = self._torch
        if key not in self._packed:
            self._packed[key] = weights.contiguous(memory_format=torch.channels_last)
        packed = self._packed[key]
        # cuDNN has a convolution with the ReLU inside.
        fused = geometry.relu and geometry.groups == 1 and self.device.startswith("cuda")
        if fused and bias is None:
            bias = torch.zeros(packed.shape[0], device=self.device, dtype=packed.dtype)
        last, (pad, stride, dilation) = torch.channels_last, (geometry.pad, geometry.stride, geometry.dilation)
        groups, relu, convolve = geometry.groups, geometry.relu, torch.nn.functional.conv2d

        def run(values: list[Any]) -> Sequence[Any]:
            image = values[0].contiguous(memory_format=last)
            if fused:
                return (torch.cudnn_convolution_relu(image, packed, bias, stride, pad, dilation, groups),)
            result = convolve(image, packed, bias, stride, pad, dilation, groups)
            return (result.relu_() if relu else result,)

        return run


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of a two-dimensional convolution with equal pads at both ends of each axis."""

    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int
    relu: bool
