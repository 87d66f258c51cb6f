"""Convolutions of images with constant weights, computed by the device's library.

On the CPU oneDNN packs float32 weights, once for each number of threads that run the kernel: a layout packed for one
number of threads can be fifty times slower with another. Other types go to PyTorch's own kernels. On CUDA cuDNN
computes them, with the ReLU fused where a trial shows that this gives the right values. Images lie channels last on
both, so NHWC images are not copied.

A ReLU that oneDNN computes inside a convolution turns NaN into 0, and cuDNN may do so too. Computed as a separate
operator, it keeps NaN, as ONNX Runtime does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from downset.extras import torch_library
from downset.graph.core import Op
from downset.kernels.nn import spatial_geometry

__all__ = ["ConvolutionGeometry", "Convolutions", "geometry_of", "weights_first"]

Run = Callable[[list[Any]], Sequence[Any]]
_RELU = (0.0, math.inf)
_LIMITS: Mapping[str | None, tuple[float, float] | None] = {
    None: None,
    "": None,
    "None": None,
    "Relu": _RELU,
    "Relu6": (0.0, 6.0),
    "ReluN1To1": (-1.0, 1.0),
}
_DIFFERENCE = 0.02
"""How far two algorithms of cuDNN may differ in half precision, as a share of the largest value."""


@dataclass(frozen=True, slots=True)
class ConvolutionGeometry:
    """The geometry of a two-dimensional convolution. `shape`: of the input, always NCHW. `pads`: top, left, bottom,
    right. `limits`: the range that results are clamped to, (0, infinity) for a ReLU. `last`: input and result have NHWC
    shapes."""

    shape: tuple[int, ...]
    pads: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    groups: int
    limits: tuple[float, float] | None
    last: bool = False

    @property
    def relu(self) -> bool:
        return self.limits == _RELU

    @property
    def padding(self) -> tuple[int, ...]:
        """The pads that the library adds: (vertical, horizontal), or zeros if opposite pads differ."""
        return self.pads[:2] if self.pads[:2] == self.pads[2:] else (0, 0)


def geometry_of(op: Op, shape: Sequence[int], kernel: Sequence[int]) -> ConvolutionGeometry | None:
    """The geometry of a convolution that reads an image of the graph's `shape`; None for a rank or activation that is
    left to the kernel table."""
    name = op.attrs.get("activation")
    if len(shape) != 4 or len(kernel) != 2 or name not in _LIMITS:
        return None
    last = op.attrs.get("layout") == "NHWC"
    batch, *image = shape
    channels, size = (image[2], image[:2]) if last else (image[0], image[1:])
    strides, dilations, pads = spatial_geometry(op, kernel, size)
    groups = int(op.attrs.get("group", 1))
    return ConvolutionGeometry(
        (batch, channels, *size), tuple(pads), tuple(strides), tuple(dilations), groups, _LIMITS[name], last
    )


def weights_first(op: Op, weights: Any) -> Any:
    """The weights as (out, in, height, width), for each layout of the graph."""
    if op.attrs.get("layout") != "NHWC":
        return weights
    return weights.permute(3, 0, 1, 2) if op.attrs.get("depthwise") else weights.permute(0, 3, 1, 2)


class Convolutions:
    """Convolutions of one device and element type. Weights are packed once for all calls that share them. `fused`:
    activations are computed inside the convolution where the library can; NaN may then become a number."""

    def __init__(self, device: str, *, fused: bool = True) -> None:
        self._fused = fused
        self._torch, self._device = torch_library(), device
        self._packed: dict[tuple[Any, ...], Any] = {}
        self._fusing: dict[tuple[Any, ...], bool] = {}
        self.fuses = False
        """Whether cuDNN computes an activation inside a convolution that was bound so far."""

    def bind(
        self, key: tuple[Any, ...], weights: Any, bias: Any, geometry: ConvolutionGeometry, *, threads: int
    ) -> Run:
        """A function from [image] to (result,). `weights` are (out, in, height, width) on the device, and equal keys
        stand for equal weights. `threads`: threads of the CPU that run the kernel."""
        padded = _with_pads_done(geometry)
        if self._device == "cpu":
            convolve = self._packed_for(key, weights, bias, padded, threads)
        else:
            convolve = self._of_the_library(key, weights, bias, padded)
        pad, channels_last = self._torch.nn.functional.pad, self._torch.channels_last
        top, left, bottom, right = geometry.pads
        outside = [left, right, top, bottom] if padded is not geometry else None
        last = geometry.last

        def run(values: list[Any]) -> Sequence[Any]:
            image = values[0].permute(0, 3, 1, 2) if last else values[0]
            if outside:
                image = pad(image, outside)
            result = convolve(image.contiguous(memory_format=channels_last))
            return (result.permute(0, 2, 3, 1) if last else result,)

        return run

    def _packed_for(
        self, key: tuple[Any, ...], weights: Any, bias: Any, geometry: ConvolutionGeometry, threads: int
    ) -> Callable[[Any], Any]:
        torch = self._torch
        lists = [list(values) for values in (geometry.padding, geometry.strides, geometry.dilations)]
        where = (*key, threads, geometry)
        if weights.dtype != torch.float32 or _misread(geometry, weights.shape[3]):
            self._packed[where] = weights
            steps = (lists[1], lists[0], lists[2], geometry.groups)
            plain = torch.nn.functional.conv2d
            return lambda image: _limited(plain(image, weights, bias, *steps), geometry.limits)
        if where not in self._packed:
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                self._packed[where] = torch.ops.mkldnn._reorder_convolution_weight(
                    weights, *lists, geometry.groups, list(geometry.shape)
                )
            finally:
                torch.set_num_threads(before)
        packed, convolve = self._packed[where], torch.ops.mkldnn._convolution_pointwise
        name, limits = "none", list[float]()
        if not self._fused:
            rest = (*lists, geometry.groups, name, limits, "")
            return lambda image: _limited(convolve(image, packed, bias, *rest), geometry.limits)
        if geometry.relu:
            name = "relu"
        elif geometry.limits is not None:
            name, limits = "hardtanh", list(geometry.limits)
        rest = (*lists, geometry.groups, name, limits, "")
        return lambda image: convolve(image, packed, bias, *rest)

    def _of_the_library(
        self, key: tuple[Any, ...], weights: Any, bias: Any, geometry: ConvolutionGeometry
    ) -> Callable[[Any], Any]:
        torch = self._torch
        if key not in self._packed:
            self._packed[key] = weights.contiguous(memory_format=torch.channels_last)
        packed = self._packed[key]
        pad, stride, dilation, groups = geometry.padding, geometry.strides, geometry.dilations, geometry.groups
        if self._fused and geometry.relu and groups == 1:
            # If no bias is given, PyTorch fills one with zeros at each call.
            offset = torch.zeros(len(packed), device=packed.device, dtype=packed.dtype) if bias is None else bias
            if self._fuses(packed, offset, geometry):
                self.fuses = True
                return lambda image: torch.cudnn_convolution_relu(image, packed, offset, stride, pad, dilation, groups)
        convolve, limits = torch.nn.functional.conv2d, geometry.limits
        return lambda image: _limited(convolve(image, packed, bias, stride, pad, dilation, groups), limits)

    def _fuses(self, weights: Any, bias: Any, geometry: ConvolutionGeometry) -> bool:
        """Whether cuDNN computes this convolution with the ReLU inside, with the values of the two one after another.

        PyTorch passes the uninitialised result to cuDNN as a summand times zero. Its content must not change the
        result, so the trial runs on memory full of NaN. It runs on the device and must not happen during a capture."""
        torch = self._torch
        where = (tuple(weights.shape), weights.dtype, geometry)
        if where not in self._fusing:
            rest = (geometry.strides, geometry.padding, geometry.dilations, geometry.groups)
            with torch.no_grad():
                try:
                    image = torch.randn(geometry.shape, device=weights.device, dtype=weights.dtype)
                    image = image.contiguous(memory_format=torch.channels_last)
                    expected = self._without_cudnn(image, weights, bias, rest).relu_()
                    left_over = torch.full_like(expected, math.nan)
                    del left_over  # the allocator hands its block out next
                    fused = torch.cudnn_convolution_relu(image, weights, bias, *rest)
                    worst, largest = (fused - expected).abs().max().item(), expected.abs().max().item()
                    self._fusing[where] = worst <= _DIFFERENCE * max(largest, 1e-6)
                except RuntimeError:  # no engine for it, or no cuDNN
                    self._fusing[where] = False
        return self._fusing[where]

    def _without_cudnn(self, image: Any, weights: Any, bias: Any, rest: Sequence[Any]) -> Any:
        """The convolution by PyTorch's kernels: cuDNN would time algorithms for it that are not needed later."""
        cudnn = self._torch.backends.cudnn
        before = cudnn.enabled
        cudnn.enabled = False
        try:
            return self._torch.nn.functional.conv2d(image, weights, bias, *rest)
        finally:
            cudnn.enabled = before


def _misread(geometry: ConvolutionGeometry, taps: int) -> bool:
    """Whether oneDNN computes wrong values from packed weights (PyTorch 2.13). It does so for an image of one channel
    that becomes a single column by a stride across columns."""
    reach = geometry.dilations[1] * (taps - 1) + 1
    columns = (geometry.shape[3] + 2 * geometry.padding[1] - reach) // geometry.strides[1] + 1
    return geometry.shape[1] == 1 and geometry.strides[1] > 1 and columns == 1


def _limited(result: Any, limits: tuple[float, float] | None) -> Any:
    """Clamp the result in place."""
    if limits is None:
        return result
    return result.relu_() if limits == _RELU else result.clamp_(*limits)


def _with_pads_done(geometry: ConvolutionGeometry) -> ConvolutionGeometry:
    """The geometry once unequal pads are added to the image beforehand: a larger shape and no pads."""
    top, left, bottom, right = geometry.pads
    if (top, left) == (bottom, right):
        return geometry
    batch, channels, height, width = geometry.shape
    return replace(geometry, shape=(batch, channels, height + top + bottom, width + left + right), pads=(0, 0, 0, 0))
