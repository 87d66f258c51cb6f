"""DeepLab v3 (Chen et al., 2017) on MobileNet v2 0.5, output stride 8, 21 classes: TensorFlow Lite's
deeplabv3_257_mv_gpu without its last resize but one, which keeps the size."""

from __future__ import annotations

import onnx

from zoo.mobilenet import inverted_residual
from zoo.network import Network

__all__ = ["build"]

# channels, units, stride of the first unit, dilation of the first unit, of the others
_STAGES = [(12, 2, 2, 1, 1), (16, 3, 2, 1, 1), (32, 4, 1, 1, 2), (48, 3, 1, 2, 2), (80, 3, 1, 2, 4), (160, 1, 1, 4, 4)]


def build(seed: int = 0, *, image: int = 257, **options: bool) -> onnx.ModelProto:
    net = Network("deeplab_v3", seed, **options)
    x = net.conv(net.input(3, image), 16, 3, 2, "same", act="relu6")
    x = inverted_residual(net, x, 8, 1, expansion=1)
    for channels, units, stride, first, rest in _STAGES:
        for position in range(units):
            step, dilation = (stride, first) if position == 0 else (1, rest)
            x = inverted_residual(net, x, channels, step, dilation=dilation)
    pooled = net.conv(net.global_avg_pool(x), 256, 1, act="relu")
    pooled = net.resize(pooled, *x.shape[2:])
    x = net.concat(pooled, net.conv(x, 256, 1, act="relu"))
    x = net.conv(net.conv(x, 256, 1, act="relu"), 21, 1)
    return net.model(net.resize(x, image, image))
