"""YOLOv8n (Ultralytics, 2023), 80 classes: three heads behind a pyramid that reads the backbone again. The results are
the maps of the heads, without the decoding of boxes."""

from __future__ import annotations

import onnx

from zoo.network import Network, Value

__all__ = ["build"]

_BOXES, _CLASSES = 64, 80


def build(seed: int = 0, *, image: int = 640, silu: bool = True, **options: bool) -> onnx.ModelProto:
    """silu: False leaves the activations out, as if they took no time of their own."""
    net = Network("yolov8n", seed, **options)

    def conv(x: Value, out: int, kernel: int = 1, stride: int = 1) -> Value:
        x = net.conv(x, out, kernel, stride)
        return net.mul(x, net.act(x, "sigmoid")) if silu else x

    def block(x: Value, out: int, repeats: int, *, add: bool) -> Value:
        """C2f: two halves of a convolution; the second goes through `repeats` pairs of convolutions."""
        first, last = conv(x, out // 2), conv(x, out // 2)  # the halves of one convolution of `out` channels
        parts = [first, last]
        for _ in range(repeats):
            inner = conv(conv(last, out // 2, 3), out // 2, 3)
            last = net.add(last, inner) if add else inner
            parts.append(last)
        return conv(net.concat(*parts), out)

    def up(x: Value) -> Value:
        return net.resize(x, 2 * x.shape[2], 2 * x.shape[3])

    x = conv(conv(net.input(3, image), 16, 3, 2), 32, 3, 2)
    x = block(x, 32, 1, add=True)
    early = block(conv(x, 64, 3, 2), 64, 2, add=True)
    middle = block(conv(early, 128, 3, 2), 128, 2, add=True)
    x = conv(block(conv(middle, 256, 3, 2), 256, 1, add=True), 128)
    pools = [x]
    for _ in range(3):
        pools.append(net.max_pool(pools[-1], 5, 1, 2))
    late = conv(net.concat(*pools), 256)
    inner = block(net.concat(up(late), middle), 128, 1, add=False)
    small = block(net.concat(up(inner), early), 64, 1, add=False)
    medium = block(net.concat(conv(small, 64, 3, 2), inner), 128, 1, add=False)
    large = block(net.concat(conv(medium, 128, 3, 2), late), 256, 1, add=False)
    heads = []
    for x in (small, medium, large):
        boxes = net.conv(conv(conv(x, _BOXES, 3), _BOXES, 3), _BOXES)
        classes = net.conv(conv(conv(x, _CLASSES, 3), _CLASSES, 3), _CLASSES)
        heads.append(net.concat(boxes, classes))
    return net.model(*heads)
