"""PoseNet (Papandreou et al., 2018) on MobileNet v1 0.75 with an output stride of 16: heatmaps, offsets and the two
displacements of several people. The memory paper's exact graph is not public; the backbone is certain, the heads are
the published model's."""

from __future__ import annotations

import onnx

from zoo.mobilenet import V1, v1_layers
from zoo.network import Network

__all__ = ["build"]


def build(seed: int = 0, *, image: tuple[int, int] | int = (353, 257), **options: bool) -> onnx.ModelProto:
    net = Network("posenet_mnv1_075", seed, **options)
    height, width = (image, image) if isinstance(image, int) else image
    # the last stage keeps its resolution: 1/16 of the image's
    layers = [(channels, 1 if channels == 1024 else stride) for channels, stride in V1]
    x = v1_layers(net, net.input(3, height, width), 0.75, layers)
    heatmaps = net.act(net.conv(x, 17, 1), "sigmoid")
    offsets, forward, backward = (net.conv(x, channels, 1) for channels in (34, 32, 32))
    return net.model(heatmaps, offsets, forward, backward)
