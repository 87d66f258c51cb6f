"""Networks as runnable ONNX models with seeded weights: `python -m experiments.zoo --list`.

ZOO maps a name to `build(seed=0, *, image=…, fused=False, batch_norm=False, …) -> onnx.ModelProto`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from downset.graph import Graph
from downset.load import load
from experiments.zoo import inception_v3, mobilenet, nasnet_large, randwire_large, resnet, squeezenet, vgg16, yolov2
from experiments.zoo.network import counts

__all__ = ["ZOO", "counts", "graph"]

ZOO: Mapping[str, Callable[..., onnx.ModelProto]] = {
    "inception_v3": inception_v3.build,
    "squeezenet": squeezenet.build,
    "nasnet_large": nasnet_large.build,
    "randwire_large": randwire_large.build,
    "vgg16": vgg16.build,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "mobilenet_v1": mobilenet.build_v1,
    "mobilenet_v2": mobilenet.build_v2,
    "mobilenet_v3_large": mobilenet.build_v3_large,
    "yolov2": yolov2.build,
}


def graph(name: str, **options: Any) -> Graph:
    """A network of the zoo as a Graph, its constants in memory."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(ZOO[name](**options), str(path))
        return load(path)
