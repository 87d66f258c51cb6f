"""VGG16 (Simonyan and Zisserman, 2015) as torchvision builds it, its adaptive pool (a no-op at 224) included."""

from __future__ import annotations

import onnx

from zoo.network import Network

__all__ = ["build"]

_BLOCKS = [(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]


def build(seed: int = 0, *, image: int = 224, classifier: bool = True, **options: bool) -> onnx.ModelProto:
    """classifier: the three fully connected layers, nine tenths of the weights."""
    net = Network("vgg16", seed, **options)
    x = net.input(3, image)
    for channels, layers in _BLOCKS:
        for _ in range(layers):
            x = net.conv(x, channels, 3, act="relu")
        x = net.max_pool(x, 2, 2)
    x = net.avg_pool(x, 1, 1)
    if classifier:
        x = net.linear(net.flatten(x), 4096, act="relu")
        x = net.linear(net.linear(x, 4096, act="relu"), 1000)
    return net.model(x)
