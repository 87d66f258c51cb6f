"""Networks as runnable ONNX models with seeded weights: `python -m zoo --list`.

ZOO maps a name to `build(seed=0, *, image=…, fused=False, batch_norm=False, weights=True, …) -> onnx.ModelProto`; the
options are described at `network.Network` and at each build.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from downset.formats.reading import load
from downset.graph.core import Graph
from zoo import (
    blazeface,
    deeplab_v3,
    densenet121,
    inception_v3,
    mobilenet,
    nas_cells,
    nasnet_large,
    posenet,
    randwire_cifar,
    randwire_large,
    resnet,
    squeezenet,
    squeezenet1_0,
    swiftnet_hpd,
    unet,
    vgg16,
    yolov2,
    yolov8n,
)
from zoo.network import counts

__all__ = ["ZOO", "counts", "graph"]

ZOO: Mapping[str, Callable[..., onnx.ModelProto]] = {
    # inter-operator scheduling
    "inception_v3": inception_v3.build,
    "randwire_large": randwire_large.build,
    "nasnet_large": nasnet_large.build,
    "squeezenet": squeezenet.build,
    # memory management
    "mobilenet_v1": mobilenet.build_v1,
    "mobilenet_v2": mobilenet.build_v2,
    "deeplab_v3": deeplab_v3.build,
    "posenet_mnv1_075": posenet.build,
    "blazeface": blazeface.build,
    # irregular wirings
    "swiftnet_hpd": swiftnet_hpd.build,
    "swiftnet_cell_a": partial(swiftnet_hpd.cell, "a"),
    "swiftnet_cell_b": partial(swiftnet_hpd.cell, "b"),
    "swiftnet_cell_c": partial(swiftnet_hpd.cell, "c"),
    "darts": nas_cells.darts,
    "darts_cell": nas_cells.darts_cell,
    "randwire_cifar10": partial(randwire_cifar.build, 10, 39),
    "randwire_cifar100": partial(randwire_cifar.build, 100, 78),
    "nasnet_mobile": nas_cells.nasnet_mobile,
    "nasnet_a_large": nas_cells.nasnet_a_large,
    "pnasnet_large": nas_cells.pnasnet_large,
    "amoebanet_large": nas_cells.amoebanet_large,
    "densenet121": densenet121.build,
    # pipelines
    "vgg16": vgg16.build,
    "yolov2": yolov2.build,
    "squeezenet1_0": squeezenet1_0.build,
    "resnet34": resnet.resnet34,
    "resnet50": resnet.resnet50,
    "mobilenet_v3_large": mobilenet.build_v3_large,
    "yolov8n": yolov8n.build,
    "unet": unet.build,
}


def graph(name: str, **options: Any) -> Graph:
    """A network of the zoo as a Graph, its constants in memory (weights=False: without them, to plan only)."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(ZOO[name](**options), str(path))
        network = load(path)
        if not options.get("weights", True):
            return network
        values = {tensor: network.constant(tensor) for tensor in network.constants}  # the file is gone afterwards
    return replace(network, constants={tensor: partial(np.asarray, value) for tensor, value in values.items()})
