"""The six networks of the memory-management paper as tensor usage records, from the zoo's own builders.

Conventions that give the paper's figures: float32; an activation is part of its convolution; graph inputs, outputs and
constants are not counted; rows in order of production; channels padded to a multiple of four, as GPU delegates store
them (of the paper's own graphs only DeepLab's 21 classes and the MobileNets' 1,001 are not one already).
"""

from __future__ import annotations

from collections.abc import Mapping

from downset import Graph, Record, Tensor, lifetimes
from zoo import graph

__all__ = ["NETWORKS", "REBUILT", "network", "usage_records"]

NETWORKS: Mapping[str, tuple[str, Mapping[str, int]]] = {
    "MobileNet v1": ("mobilenet_v1", {}),
    "MobileNet v2": ("mobilenet_v2", {}),
    "DeepLab v3": ("deeplab_v3", {}),
    "Inception v3": ("inception_v3", {"classes": 1001}),
    "PoseNet": ("posenet_mnv1_075", {}),
    "BlazeFace": ("blazeface", {}),
}
"""The paper's name -> the zoo's, and its options."""

REBUILT = ("Inception v3", "PoseNet", "BlazeFace")
"""The paper's graphs of these are not public: ours are rebuilt from the architectures' own papers, and differ."""


def network(name: str) -> Graph:
    """A network by the paper's name, without weights."""
    name_in_zoo, options = NETWORKS[name]
    return graph(name_in_zoo, fused=True, weights=False, **options)


def usage_records(name: str) -> list[Record]:
    """The usage records that the paper's strategies are given."""
    built = network(name)
    usage = lifetimes(built, range(len(built.ops)), "paper")
    tensor_of = {record: built.tensors[tensor] for tensor, record in enumerate(usage.record_of) if record >= 0}
    return [
        Record(record.id, record.start, record.stop, _padded_bytes(tensor_of[index]))
        for index, record in enumerate(usage.records)
    ]


def _padded_bytes(tensor: Tensor) -> int:
    channels = tensor.shape[1]
    return tensor.nbytes // channels * (-(-channels // 4) * 4)
