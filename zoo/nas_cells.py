"""DARTS, NASNet-A, PNASNet-5 and AmoebaNet-A: cells found by architecture search, stacked.

A cell reads the outputs of the two cells before it, brought to one size and width. A genotype is one word a node:
two operators with the state that each reads (0: the cell before last, 1: the last cell, 2…: the nodes), added up. Its
last word lists the states that are concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import onnx

from zoo.network import Network, Value

__all__ = ["amoebanet_large", "darts", "darts_cell", "nasnet_a_large", "nasnet_mobile", "pnasnet_large"]


@dataclass(frozen=True, slots=True)
class Genotype:
    normal: str
    reduction: str


# s3, s5, s7: ReLU and separable convolution, twice; d3: ReLU, dilated depthwise and 1x1 convolution; a3, m3: pools
# (and a 1x1 convolution where the width changes); i: the state itself (every other pixel where the cell reduces);
# t: 1x7 then 7x1 convolution.
DARTS_V2 = Genotype(
    "s3:0+s3:1 s3:0+s3:1 s3:1+i:0 i:0+d3:2 2,3,4,5",
    "m3:0+m3:1 i:2+m3:1 m3:0+i:2 i:2+m3:1 2,3,4,5",
)
NASNET_A = Genotype(
    "s5:1+s3:0 s5:0+s3:0 a3:1+i:0 a3:0+a3:0 i:1+s3:1 0,2,3,4,5,6",
    "s5:1+s7:0 m3:1+s7:0 a3:1+s5:0 a3:2+i:3 s3:2+m3:1 3,4,5,6",
)
PNASNET_5 = Genotype(*["s5:0+m3:0 s7:1+m3:1 s5:1+s3:1 s3:4+m3:1 s3:0+i:1 2,3,4,5,6"] * 2)
AMOEBANET_A = Genotype(
    "a3:0+m3:0 i:0+a3:1 s3:2+s5:1 s3:2+i:1 a3:4+s3:0 3,5,6",
    "a3:0+s3:1 m3:1+m3:0 m3:0+s3:2 s7:0+a3:1 s7:3+t:0 4,5,6",
)


def _halved(net: Network, x: Value, out: int) -> Value:
    """A factorised reduction: two strided 1x1 convolutions, the second one pixel further, side by side."""
    x = net.relu(x)
    first = net.conv(net.avg_pool(x, 1, 2), out // 2, 1)
    shifted = net.pad(x, [0, 0, -1, -1, 0, 0, 1, 1])
    return net.concat(first, net.conv(net.avg_pool(shifted, 1, 2), out - out // 2, 1))


def _operator(net: Network, kind: str, x: Value, channels: int, stride: int) -> Value:
    if kind[0] == "s":
        kernel = int(kind[1])
        x = net.conv(net.depthwise(net.relu(x), kernel, stride, bias=False), channels, 1)
        return net.conv(net.depthwise(net.relu(x), kernel, bias=False), channels, 1)
    if kind[0] == "d":
        return net.conv(net.depthwise(net.relu(x), 3, stride, dilation=2, bias=False), channels, 1)
    if kind == "t":
        return net.conv(net.conv(x, channels, (1, 7), stride, bias=False), channels, (7, 1))
    if kind == "i":
        return x if stride == 1 else net.avg_pool(x, 1, stride)
    pool = net.max_pool if kind[0] == "m" else net.avg_pool
    x = pool(x, 3, stride, 1)
    return x if x.channels == channels else net.conv(x, channels, 1)


def _cell(net: Network, before: Value, x: Value, channels: int, genotype: str, reduces: bool) -> Value:
    right = net.conv(net.relu(x), channels, 1)
    if before is x:  # the first cell reads the stem as it is
        left = x
    elif before.shape[2] != x.shape[2]:
        left = _halved(net, before, channels)
    else:
        left = net.conv(net.relu(before), channels, 1)
    states = [left, right]
    *nodes, kept = genotype.split()
    for node in nodes:
        parts = []
        for item in node.split("+"):
            kind, source = item.split(":")
            stride = 2 if reduces and int(source) < 2 else 1
            parts.append(_operator(net, kind, states[int(source)], channels, stride))
        states.append(net.add(*parts))
    return net.concat(*[states[int(state)] for state in kept.split(",")])


def darts(seed: int = 0, *, image: int = 224, channels: int = 48, layers: int = 14, **options: bool) -> onnx.ModelProto:
    """DARTS (Liu et al., 2019), second-order genotype, ImageNet."""
    net = Network("darts", seed, **options)
    before = net.conv(net.conv(net.input(3, image), channels // 2, 3, 2, act="relu"), channels, 3, 2)
    x = net.conv(net.relu(before), channels, 3, 2)
    for number in range(layers):
        reduces = number in (layers // 3, 2 * layers // 3)
        channels *= 2 if reduces else 1
        genotype = DARTS_V2.reduction if reduces else DARTS_V2.normal
        with net.scope(f"cell{number}"):
            before, x = x, _cell(net, before, x, channels, genotype, reduces)
    return net.model(net.linear(net.flatten(net.global_avg_pool(x)), 1000))


def darts_cell(seed: int = 0, *, image: int = 224, channels: int = 48, **options: bool) -> onnx.ModelProto:
    """The first normal cell of DARTS for ImageNet, the one with the highest peak."""
    net = Network("darts_cell", seed, **options)
    before, x = net.input(channels, image // 4), net.input(channels, image // 8)
    return net.model(_cell(net, before, x, channels, DARTS_V2.normal, False))


def _stacked(
    name: str,
    genotype: Genotype,
    seed: int = 0,
    *,
    stem: int,
    channels: int,
    repeats: int,
    image: int,
    following: int | None = None,
    skip: bool = False,
    **options: bool,
) -> onnx.ModelProto:
    """Two reductions as a stem, `repeats` normal cells, twice a reduction and `following` (or as many) normal cells.

    skip: the cell behind a reduction reads what the reduction read, not what came just before it.
    """
    net = Network(name, seed, **options)
    before = x = net.conv(net.input(3, image), stem, 3, 2)
    plan = [(channels // 4, True), (channels // 2, True)]
    for stage in range(3):
        plan += [(channels << stage, True)] * bool(stage)
        plan += [(channels << stage, False)] * (repeats if following is None or not stage else following)
    for number, (width, reduces) in enumerate(plan):
        with net.scope(f"cell{number}"):
            cells = genotype.reduction if reduces else genotype.normal
            output = _cell(net, before, x, width, cells, reduces)
        before, x = before if skip and reduces and number > 1 else x, output
    return net.model(net.linear(net.flatten(net.global_avg_pool(net.relu(x))), 1000))


nasnet_mobile = partial(_stacked, "nasnet_mobile", NASNET_A, stem=32, channels=44, repeats=4, image=224)
"""NASNet-A Mobile (Zoph et al., 2018), 4 @ 1056."""
nasnet_a_large = partial(_stacked, "nasnet_a_large", NASNET_A, stem=96, channels=168, repeats=6, image=331, skip=True)
"""NASNet-A Large (Zoph et al., 2018), 6 @ 4032, as published."""
pnasnet_large = partial(_stacked, "pnasnet_large", PNASNET_5, stem=96, channels=216, repeats=4, following=3, image=331)
"""PNASNet-5 Large (Liu et al., 2018): its reductions are among the 4 cells of a stage."""
amoebanet_large = partial(_stacked, "amoebanet_large", AMOEBANET_A, stem=96, channels=190, repeats=6, image=331)
"""AmoebaNet-A (Real et al., 2019), 6 @ 190."""
