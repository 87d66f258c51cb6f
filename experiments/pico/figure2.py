"""PICO's Figure 2: shares of computation and communication by layer of VGG16 and YOLOv2.

    python -m experiments.pico.figure2 [--quick]

Computation is MACs, communication the bytes of the layer's output. In numbers the paper states only the share of all
convolutions: 99.19 % in VGG16, 99.59 % in YOLOv2; the rest is what its figure does not name (fully connected layers are
0.8 % of VGG16 by MACs). YOLOv2 has no fully connected layer, so by MACs its convolutions are everything: the paper's
other 0.41 % are operations that are not MACs (here counted in addition, one each for an element that a pool, activation
or normalisation reads).
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Sequence

from downset import Graph, Op
from downset.graph.cost import op_macs
from experiments.frame import Experiment, fields, printed, run
from experiments.rows import Row
from zoo import graph

PAPER = printed("pico_figure2")


def other_operations(network: Graph, op: Op) -> int:
    """Elements that an operator without MACs reads: a pool reads each window whole."""
    if op.kind in ("MaxPool", "AveragePool"):
        return math.prod(network.tensors[op.outputs[0]].shape) * math.prod(op.attrs["kernel_shape"])
    if op_macs(network, op) or op.kind in ("Flatten", "Reshape", "Concat", "SpaceToDepth"):
        return 0
    return sum(math.prod(network.tensors[t].shape) for t in op.inputs if network.tensors[t].role == "activation")


def layers(name: str) -> list[Row]:
    network = graph(name, weights=False)
    chosen = [op for op in network.ops if op.kind in ("Conv", "MaxPool", "AveragePool", "Gemm")]
    macs = sum(op_macs(network, op) for op in chosen)
    nbytes = sum(network.tensors[op.outputs[0]].nbytes for op in chosen)
    return [
        {
            "network": name,
            "layer": op.name,
            "kind": op.kind,
            "computation": op_macs(network, op) / macs,
            "communication": network.tensors[op.outputs[0]].nbytes / nbytes,
        }
        for op in chosen
    ]


def convolution_share(name: str) -> tuple[float, float]:
    """The share of convolutions in MACs, and in MACs and all other operations together."""
    network = graph(name, weights=False, batch_norm=name == "yolov2")
    convolutions = sum(op_macs(network, op) for op in network.ops if op.kind == "Conv")
    macs = sum(op_macs(network, op) for op in network.ops)
    others = sum(other_operations(network, op) for op in network.ops)
    return convolutions / macs, convolutions / (macs + others)


def rows(_options: Namespace) -> Iterator[Row]:
    for paper in PAPER.rows:
        yield from layers(paper["network"])


def shares(_rows: Sequence[Row]) -> None:
    for paper in PAPER.rows:
        share, beside = convolution_share(paper["network"])
        said = f"paper {paper['figure']:.2%} | of MACs {share:.2%} | of all operations {beside:.2%}"
        print(f"{paper['network']}: convolutions, {said}")


EXPERIMENT = Experiment(
    "pico_figure2",
    rows,
    (*fields("network", "layer", "kind"), *fields("computation", "communication", spec=".2%")),
    after=shares,
)

if __name__ == "__main__":
    run(EXPERIMENT)
