"""Binds operators to a device: weights are loaded and packed, activations are fused into convolutions where possible,
and all other kernels come from the kernel table.

A bound call takes the values of its activations and returns its outputs; it looks nothing up in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from downset.errors import LimitReached, UnsupportedError
from downset.executor.convolutions import Convolutions, geometry_of, weights_first
from downset.extras import torch_library
from downset.graph.core import ABSENT, Graph, Op
from downset.graph.float_types import FLOATS, OWN
from downset.graph.halos import channels_last
from downset.graph.kinds import kind_of
from downset.kernels.layout import Shapes
from downset.kernels.table import check_kernels, compute
from downset.messages import Setting
from downset.process.limits import machine_bytes
from downset.text import format_bytes

__all__ = ["DTYPES", "Binder", "KernelCall"]

DTYPES = (OWN, *FLOATS)
_NO_KERNEL = "not implemented for"
"""Words of the error that PyTorch raises where it has no kernel for an element type."""


@dataclass(frozen=True, slots=True)
class KernelCall:
    """`run` takes the values of `inputs` and returns those of `outputs`, both tensors of the graph."""

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    run: Callable[[list[Any]], Sequence[Any]]


def _check_memory(graph: Graph) -> None:
    """Raise LimitReached for an operator that needs more bytes than the machine has, before any are allocated: a file
    may state tensors of any size."""
    there = machine_bytes()
    for op in graph.ops:
        needed = sum(graph.tensors[tensor].nbytes for tensor in {*op.inputs, *op.outputs} - {ABSENT})
        if needed > there:
            raise LimitReached(
                f"{graph.name}: operator {op.name!r} reads and makes {format_bytes(needed)} bytes, and this machine "
                f"has {format_bytes(there)}; give a smaller model, batch or shape"
            )


class Binder:
    """Binds operators of one graph to one device. Weights are loaded once and shared by all calls.

    `dtype`: "model" computes each tensor in its own element type; a float type is one to which all floats are cast.
    convolutions.py computes convolutions. `finite`: the inputs of the network are finite. If they are not, activations
    are computed outside of convolutions, because fused ones may lose NaN. Raises UnsupportedError for an operator
    without a kernel, and LimitReached for one that needs more bytes than the machine has.
    """

    def __init__(self, graph: Graph, *, device: str = "cpu", dtype: str = OWN, finite: bool = True) -> None:
        check_kernels(graph)
        if device == "cpu":
            _check_memory(graph)
        self.graph, self.device, self.dtype = graph, device, dtype
        self._torch = torch_library()
        self._float = None if dtype == OWN else getattr(self._torch, dtype)
        self._loaded: dict[tuple[int, bool], Any] = {}
        self._made_by, self._read_by = graph.producers(), graph.consumers()
        self.convolutions = Convolutions(device, fused=finite)
        self._last = channels_last(graph)

    def constant(self, tensor: int, *, numbers: bool = False) -> Any:
        """The constant on the device, in the element type in which it is computed. `numbers`: the constant in the CPU's
        memory and in the file's type, for kernels that read it in Python."""
        if (tensor, numbers) not in self._loaded:
            value = self.graph.constant(tensor)
            if value is None:
                raise UnsupportedError(f"tensor {self.graph.tensors[tensor].name!r} has no known value")
            loaded = self._torch.from_numpy(np.array(value, order="C"))
            if not numbers:
                loaded = loaded.to(self.device, self.dtype_of(tensor) if loaded.is_floating_point() else None)
            self._loaded[tensor, numbers] = loaded
        return self._loaded[tensor, numbers]

    def argument(self, op: Op, position: int) -> Any:
        """A constant input of an operator, in the memory from which its kernel reads it."""
        numbers = position > 0 and kind_of(op.kind).further == "numbers"  # a read from the GPU would end a capture
        return self.constant(op.inputs[position], numbers=numbers)

    def place(self, value: Any, tensor: int | None = None) -> Any:
        """An input of the network, in its element type, on the device: in the type and the layout that the kernels
        take. Images lie channels last in memory, whether the graph's shapes are NCHW or NHWC. `tensor`: the input, for
        a value in another type than it has, such as bfloat16, which numpy lacks."""
        loaded = value if isinstance(value, self._torch.Tensor) else self._torch.from_numpy(np.array(value, order="C"))
        if loaded.is_floating_point():
            loaded = loaded.to(self.device, self._float if tensor is None else self.dtype_of(tensor))
            if loaded.dim() == 4 and not self._last:
                loaded = loaded.contiguous(memory_format=self._torch.channels_last)
            return loaded
        return loaded.to(self.device)

    def place_weights(self, value: Any) -> Any:
        """Weights that are not the graph's own, such as merged ones, on the device in the type that they are computed
        in."""
        return self._torch.from_numpy(np.array(value, order="C")).to(self.device, self._float)

    def bind(self, ops: Sequence[int], *, threads: int = 1) -> tuple[KernelCall, ...]:
        """The calls of these operators, in the order given. A convolution and the ReLU behind it are one call."""
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
        return readers[0] if alone and readers[0] in later and self.graph.ops[readers[0]].kind == "Relu" else None

    def fixed_outputs(self, outputs: Sequence[int]) -> dict[int, Any]:
        """The constants among these tensors, with their values on the device. Raises UnsupportedError for a tensor that
        no operator makes and that is neither a constant nor an input, such as state kept from run to run."""
        for tensor in outputs:
            if self._made_by[tensor] < 0 and tensor not in self.graph.constants and tensor not in self.graph.inputs:
                raise UnsupportedError(f"output {self.graph.tensors[tensor].name!r} has no known value")
        constants = [tensor for tensor in outputs if tensor in self.graph.constants]
        return {tensor: self.constant(tensor).to(self.device) for tensor in constants}

    def _call(self, op: Op, threads: int) -> KernelCall:
        for tensor in op.inputs:
            if tensor != ABSENT and self.graph.tensors[tensor].role == "state":
                name = self.graph.tensors[tensor].name
                raise UnsupportedError(f"operator {op.name!r} reads {name!r}, which is kept from one run to the next")
        inputs = tuple(tensor for tensor in op.inputs if tensor != ABSENT and tensor not in self.graph.constants)
        if kind_of(op.kind).category == "convolution" and len(inputs) == 1 and inputs[0] == op.inputs[0]:
            fast = self._convolution_of(op, threads)
            if fast is not None:
                return KernelCall(inputs, op.outputs[:1], fast)
        fixed = [
            None if tensor == ABSENT or tensor in inputs else self.argument(op, place)
            for place, tensor in enumerate(op.inputs)
        ]
        places = [(place, inputs.index(tensor)) for place, tensor in enumerate(op.inputs) if tensor in inputs]
        shapes = [self.graph.tensors[tensor].shape if tensor != ABSENT else () for tensor in op.outputs]

        # A result that nothing reads may have no element type here, such as the mask of a Dropout.
        wanted = [t != ABSENT and bool(self._read_by[t] or t in self.graph.outputs) for t in op.outputs]
        least = max((place + 1 for place, here in enumerate(wanted) if here), default=0)
        dtypes = [self.dtype_of(t) if here else None for t, here in zip(op.outputs, wanted, strict=True)]

        def run(values: list[Any]) -> Sequence[Any]:
            arguments = list(fixed)
            for place, source in places:
                arguments[place] = values[source]
            results = self._compute(op, arguments, shapes)
            if len(results) < least:
                raise UnsupportedError(f"operator {op.name!r} ({op.kind}) makes {len(results)} of its results only")
            return [value.to(dtype) for value, dtype in zip(results, dtypes, strict=False) if dtype is not None]

        return KernelCall(inputs, tuple(t for t, here in zip(op.outputs, wanted, strict=True) if here), run)

    def _compute(self, op: Op, arguments: list[Any], shapes: Shapes) -> Sequence[Any]:
        try:
            return compute(op, arguments, shapes)
        except UnsupportedError as error:
            if _NO_KERNEL not in error.message or self.dtype == "float32":
                raise
            read = self.graph.tensors[next(tensor for tensor in op.inputs if tensor != ABSENT)]
            raise UnsupportedError(
                error.message,
                f"; it reads {read.name!r} of {read.dtype}, and PyTorch has no kernel for that; ",
                Setting("dtype", "float32"),
                " asks for a cast of all floats to float32",
            ) from error

    def dtype_of(self, tensor: int) -> Any:
        """The element type in which a tensor is computed: its own, unless floats are cast. Results are converted to it,
        which is all that a Cast does. Raises UnsupportedError for a type that PyTorch lacks."""
        name = self.graph.tensors[tensor].dtype
        dtype = getattr(self._torch, name, None)
        if not isinstance(dtype, self._torch.dtype):
            raise UnsupportedError(f"tensor {self.graph.tensors[tensor].name!r} of type {name} cannot be executed")
        return self._float if self._float is not None and dtype.is_floating_point else dtype

    def _convolution_of(self, op: Op, threads: int) -> Callable[[list[Any]], Sequence[Any]] | None:
        """None for convolutions that the kernel table computes: of other ranks or activations, or of weights that are
        not constants."""
        bias = op.inputs[2] if len(op.inputs) > 2 and op.inputs[2] != ABSENT else None
        constant_weights = op.inputs[1] in self.graph.constants and (bias is None or bias in self.graph.constants)
        if not constant_weights or len(op.inputs) > 3:
            return None
        weights = weights_first(op, self.constant(op.inputs[1]))
        geometry = geometry_of(op, self.graph.tensors[op.inputs[0]].shape, weights.shape[2:])
        if geometry is None:
            return None
        # The layout and `depthwise` decide how the same constant is read as weights.
        key = (op.inputs[1], bias, op.attrs.get("layout"), bool(op.attrs.get("depthwise")))
        offset = None if bias is None else self.constant(bias)
        return self.convolutions.bind(key, weights, offset, geometry, threads=threads)
