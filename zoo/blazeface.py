"""BlazeFace (Bazarevsky et al., 2019), the front camera's model: single blocks of 5x5-like reach from 3x3 depthwise
convolutions, channels grown by padding, two detection scales.

The memory paper's graph of that name is a different one (its largest tensors are smaller than this one's first)."""

from __future__ import annotations

import onnx

from zoo.network import Network, Value

__all__ = ["build"]

_EARLY = [(24, 1), (28, 1), (32, 2), (36, 1), (42, 1), (48, 2), (56, 1), (64, 1), (72, 1), (80, 1), (88, 1)]
_LATE = [(96, 2), (96, 1), (96, 1), (96, 1), (96, 1)]
"""(channels, stride) of each block."""


def _block(net: Network, x: Value, channels: int, stride: int) -> Value:
    branch = net.conv(net.depthwise(x, 3, stride, "same"), channels, 1)
    short = net.max_pool(x, 2, 2) if stride == 2 else x
    if channels > short.channels:
        short = net.pad(short, [0, 0, 0, 0, 0, channels - short.channels, 0, 0])
    return net.relu(net.add(short, branch))


def _detections(net: Network, x: Value, channels: int, width: int) -> Value:
    """One row of `width` numbers an anchor."""
    y = net.transpose(net.conv(x, channels, 1), [0, 2, 3, 1])
    return net.reshape(y, (1, x.shape[2] * x.shape[3] * channels // width, width))


def build(seed: int = 0, *, image: int = 128, **options: bool) -> onnx.ModelProto:
    net = Network("blazeface", seed, **options)
    x = net.conv(net.input(3, image), 24, 5, 2, "same", act="relu")
    for channels, stride in _EARLY:
        x = _block(net, x, channels, stride)
    fine = x
    for channels, stride in _LATE:
        x = _block(net, x, channels, stride)
    scores = net.concat(_detections(net, fine, 2, 1), _detections(net, x, 6, 1), axis=1)
    boxes = net.concat(_detections(net, fine, 32, 16), _detections(net, x, 96, 16), axis=1)
    return net.model(scores, boxes)
