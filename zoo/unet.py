"""U-Net (Ronneberger et al., 2015) with padded convolutions and bilinear steps upwards."""

from __future__ import annotations

import onnx

from zoo.network import Network, Value

__all__ = ["build"]


def build(
    seed: int = 0, *, image: int = 128, channels: int = 32, levels: int = 4, corners: bool = True, **options: bool
) -> onnx.ModelProto:
    """channels: of the first level. levels: how often the map is halved. corners: whether steps upwards align them."""
    net = Network("unet", seed, **options)

    def two(x: Value, out: int) -> Value:
        return net.conv(net.conv(x, out, 3, act="relu"), out, 3, act="relu")

    x, skips = net.input(3, image), []
    for level in range(levels):
        x = two(x, channels << level)
        skips.append(x)
        x = net.max_pool(x, 2, 2)
    x = two(x, channels << levels)
    for level in reversed(range(levels)):
        x = net.conv(net.resize(x, 2 * x.shape[2], 2 * x.shape[3], corners=corners), channels << level, 1)
        x = two(net.concat(skips[level], x), channels << level)
    return net.model(net.conv(x, 2, 1))
