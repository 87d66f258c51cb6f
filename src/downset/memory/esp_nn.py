"""Formulas for the bytes of scratch that ESP-NN's kernels ask of TFLite Micro's arena, by chip and version.

*Sources*: the Prepare functions of tensorflow/lite/micro/kernels/esp_nn (esp-tflite-micro 99f49e1c, August 2026) say
which operators ask: convolutions and softmax of int8 values, whatever their dilation. The `esp_nn_get_*_scratch_size`
functions of ESP-NN 1.1.1 to 1.2.3 say how much. `python -m experiments.fit.esp_nn` compares these formulas with those
functions, compiled on this host.

The functions differ by chip: `s3` for the ESP32-S3, `p4` for the ESP32-P4, `generic` for all others. They grew with
version 1.2.1. On an ESP32-S3 some kernels write more than they ask for: see `esp_overrun`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from downset.graph.core import ABSENT, Graph, Op
from downset.memory.kernel_request import Request
from downset.memory.records import align_up

__all__ = [
    "ASKING",
    "CHIPS",
    "CHIP_NAMES",
    "SOURCES",
    "VERSIONS",
    "EspWindow",
    "esp_convolution",
    "esp_overrun",
    "esp_request",
    "esp_softmax",
]

SOURCES = "asked as in esp-tflite-micro 99f49e1c"
CHIP_NAMES = {"s3": "ESP32-S3", "p4": "ESP32-P4", "generic": "other chips"}
CHIPS = tuple(CHIP_NAMES)
VERSIONS = ("1.1.1", "1.1.2", "1.2.0", "1.2.1", "1.2.2", "1.2.3")
ASKING = frozenset({"CONV_2D", "DEPTHWISE_CONV_2D", "SOFTMAX"})
"""The operators, by their names in TFLite's schema, for which the kernels may ask."""
_LANES = 16
"""Bytes of a vector register."""
_FEW_PIXELS = 8
_MARGIN = 32
"""Bytes that convolutions ask for beyond what they use, to align it."""
_P4_CACHE = 32 * 1024
"""Bytes of input and sums that the ESP32-P4's convolutions hold at once."""
_S3_WHOLE_IMAGE, _S3_WHOLE_WIDE = 40 * 1024, 48 * 1024
"""Bytes up to which a depthwise convolution on the ESP32-S3 pads, or widens, its whole image."""


class EspWindow(NamedTuple):
    """A convolution as ESP-NN is told of it: (rows, columns) of image, kernel, stride, result and of the padding before
    the first row and column. `depth`: channels read, `channels`: those of the result."""

    image: tuple[int, int]
    kernel: tuple[int, int]
    stride: tuple[int, int]
    result: tuple[int, int]
    pads: tuple[int, int]
    depth: int
    channels: int

    @property
    def pixels(self) -> int:
        return self.image[0] * self.image[1]

    @property
    def taps(self) -> int:
        return self.kernel[0] * self.kernel[1]

    @property
    def beyond(self) -> tuple[int, int]:
        """Rows and columns that windows reach below and to the right of the image, without the padding before it; they
        may be negative."""
        below, right = (
            count * stride + kernel - 1 - size
            for count, stride, kernel, size in zip(self.result, self.stride, self.kernel, self.image, strict=True)
        )
        return below, right

    def padded(self, rows: int, columns: int) -> int:
        """Positions of the image with so many more rows and columns."""
        return (self.image[0] + rows) * (self.image[1] + columns)


def esp_request(graph: Graph, op: Op, chip: str, versions: Sequence[str]) -> Request | None:
    """The scratch that the operator's kernel asks for, at most in any of these versions; None where that is not known,
    as the file states no options."""
    if op.kind not in ("Conv", "Softmax"):
        return None if op.kind.removeprefix("tflite::") in ASKING else Request()
    if not op.inputs or op.inputs[0] == ABSENT or not op.outputs or op.outputs[0] == ABSENT:
        return None
    image, result = graph.tensors[op.inputs[0]], graph.tensors[op.outputs[0]]
    if image.dtype != "int8" or result.dtype != "int8":
        return Request()
    if op.kind == "Softmax":
        return None if len(image.shape) < 2 else Request((esp_softmax(image.shape[1]),))
    stated = all(name in op.attrs for name in ("kernel_shape", "strides", "pads"))
    if not stated or len(image.shape) != 4 or len(result.shape) != 4:
        return None
    pair = {name: (int(op.attrs[name][0]), int(op.attrs[name][1])) for name in ("kernel_shape", "strides", "pads")}
    window = EspWindow(
        image.shape[1:3],
        pair["kernel_shape"],
        pair["strides"],
        result.shape[1:3],
        pair["pads"],
        image.shape[3],
        result.shape[3],
    )
    depthwise = bool(op.attrs.get("depthwise"))
    most = max(esp_convolution(window, chip, version, depthwise=depthwise) for version in versions)
    overruns = any(esp_overrun(window, chip, version, depthwise=depthwise) for version in versions)
    return Request((most,) if most else (), overruns=overruns)


def esp_convolution(window: EspWindow, chip: str, version: str, *, depthwise: bool = False) -> int:
    """Bytes of scratch that one convolution asks for. `chip` of CHIPS, `version` of VERSIONS."""
    number = _number(version)
    if chip == "generic" or (depthwise and chip == "p4"):
        return 0
    if depthwise:
        return _s3_depthwise(window, number)
    return (_s3 if chip == "s3" else _p4)(window, number)


def esp_softmax(width: int) -> int:
    """Bytes of scratch of a softmax; `width`: the size of its second axis, as Prepare passes it."""
    return 4 * width


def esp_overrun(window: EspWindow, chip: str, version: str, *, depthwise: bool = False) -> bool:
    """Whether the kernel may write beyond the scratch that it asks for (issues 30 and 37 of ESP-NN): the size is that
    of an image padded alike on all sides, and the kernel pads it otherwise."""
    return (
        chip == "s3"
        and _number(version) >= (1, 2, 1)
        and depthwise
        and window.kernel == (3, 3)
        and window.depth == window.channels
        and window.depth % _LANES == 0
        and window.pads not in ((0, 0), (1, 1))
    )


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _pointwise(window: EspWindow, margin: int) -> int | None:
    """Bytes of a convolution of single pixels: the weights, channels in eights, and where channels are not, the image,
    too; and a block of eight pixels that is transposed. None for other convolutions."""
    if window.kernel != (1, 1) or window.stride != (1, 1) or window.pads != (0, 0):
        return None
    depth = align_up(window.depth, 8)
    image = window.pixels * depth if window.depth % 8 else 0
    block = 2 * 8 * depth if window.pixels >= _FEW_PIXELS else 0
    return image + depth * window.channels + block + margin


def _old(window: EspWindow) -> int:
    """Bytes in the versions before they differed: a padded image, weights in whole registers and a sum by channel."""
    pointwise = _pointwise(window, _MARGIN)
    if pointwise is not None:
        return pointwise
    return _image(window) + _weights(window) + _MARGIN + 4 * window.channels


def _image(window: EspWindow) -> int:
    """Bytes of the image padded alike on all sides; none where nothing is padded."""
    down, across = window.pads
    return window.padded(2 * down, 2 * across) * window.depth if down or across else 0


def _weights(window: EspWindow) -> int:
    return window.taps * align_up(window.depth, _LANES) * window.channels


def _s3(window: EspWindow, version: tuple[int, ...]) -> int:
    if version < (1, 2, 1):
        return _old(window)
    margin = _MARGIN if version < (1, 2, 3) else 64
    pointwise = _pointwise(window, margin)
    if pointwise is not None:
        return pointwise
    row, taps = window.kernel[1] * window.depth, window.taps * window.depth
    if row < _LANES <= taps:  # windows are copied, and the weights in whole registers
        copied = align_up(taps, _LANES)
        return 4 * window.channels + 16 + window.channels * copied + 16 + copied + margin
    rows = align_up(row, _LANES) * window.kernel[0] * window.channels
    below, right = (max(0, size) for size in window.beyond)
    edge = window.padded(below, right) * window.depth if below or right else 0
    return _image(window) + _weights(window) + rows + edge + margin + 4 * window.channels


def _s3_depthwise(window: EspWindow, version: tuple[int, ...]) -> int:
    depth, each = window.depth, window.channels // window.depth
    weights, image = window.taps * window.channels, window.pixels * depth
    widened = 2 * (weights + image) + (16 if version < (1, 2, 0) else 32)
    small = window.kernel == (3, 3)
    if each == 1 and depth % 8 == 0 and (small or version >= (1, 2, 1)):
        if small and depth % _LANES == 0:
            return weights + _s3_padded(window, version) + 16
        if version < (1, 2, 1) or (small and depth < 12):
            return widened
        if small:
            return _s3_compacted(window)
        return widened if widened - 32 <= _S3_WHOLE_WIDE else 2 * (weights + _strip(window, 0)) + 32
    if each == 1 and depth > 3 and version >= (1, 2, 1):
        return _s3_in_eights(window)
    return widened if each % 4 == 0 else 32


def _s3_padded(window: EspWindow, version: tuple[int, ...]) -> int:
    """Bytes of the padded image of a 3x3 window, or of three rows of it where the image is large."""
    rows, columns = (2 * pad for pad in window.pads) if any(window.pads) else window.beyond
    if not rows and not columns:
        return 0
    whole = window.padded(rows, columns) * window.depth
    return whole if version < (1, 2, 1) or whole <= _S3_WHOLE_IMAGE else _strip(window, columns)


def _strip(window: EspWindow, columns: int) -> int:
    """Bytes of as many rows as the kernel has, with so many more columns."""
    return (window.image[1] + columns) * window.kernel[0] * window.depth


def _s3_compacted(window: EspWindow) -> int:
    """Bytes where channels are filled up to 16: weights, the image padded on all sides, and the result."""
    depth = align_up(window.depth, _LANES)
    rows, columns = (2 * pad + max(0, size) for pad, size in zip(window.pads, window.beyond, strict=True))
    return depth * (9 + window.padded(rows, columns) + window.result[0] * window.result[1]) + 64


def _s3_in_eights(window: EspWindow) -> int:
    """Bytes where channels are filled up to a multiple of eight: weights and image in two bytes, the result, and three
    parameters by channel."""
    depth = align_up(window.depth, 8)
    end = 0
    for nbytes in (2 * window.taps * depth, 2 * window.pixels * depth, window.result[0] * window.result[1] * depth):
        end = align_up(end + nbytes, _LANES)
    return end + 3 * 4 * depth + 16


def _p4(window: EspWindow, version: tuple[int, ...]) -> int:
    if version < (1, 2, 3):
        return _old(window)
    sums = 4 * window.channels
    pointwise = _pointwise(window, _MARGIN)
    if pointwise is not None:
        return pointwise if window.depth >= _LANES else sums + _LANES * window.channels + 32 + _MARGIN
    row, taps, padded = window.kernel[1] * window.depth, window.taps * window.depth, any(window.pads)
    if not padded and row >= _LANES:
        return _weights(window) + _MARGIN + sums
    if taps >= _LANES:
        return sums + taps + _MARGIN
    depth = align_up(-(-_LANES // window.kernel[1]), _LANES)
    weights = window.taps * depth * window.channels
    if not padded:
        return sums + weights + window.pixels * depth + _MARGIN
    if _image(window) + sums <= _P4_CACHE:
        return _image(window) + _weights(window) + _MARGIN + sums
    row_bytes = (window.image[1] + 2 * window.pads[1]) * depth  # a row of the kernel is below a register here
    left = _P4_CACHE - sums - weights
    first = window.kernel[0] * row_bytes
    tile = min((left - first) // (window.stride[0] * row_bytes) + 1, window.result[0]) if 0 < left >= first else 1
    rows = (tile - 1) * window.stride[0] + window.kernel[0] + 2 * window.pads[0]
    return rows * row_bytes + weights + _MARGIN + sums
