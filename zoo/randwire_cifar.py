"""RandWire (Xie et al., 2019) for 32x32 images: three random stages of 32 nodes, WS(4, 0.75), seeded.

The small regime of the paper with a stem that keeps the resolution: stages at 16x16, 8x8 and 4x4. The seeds and the
exact regime behind the ordering paper's figures (111.0M MACs, 1.2M weights; 160.0M, 4.7M) are not public.
"""

from __future__ import annotations

from random import Random

import onnx

from zoo.network import Network, Value

__all__ = ["build", "watts_strogatz"]


def watts_strogatz(nodes: int, degree: int, chance: float, random: Random) -> list[list[int]]:
    """By node its earlier neighbours, in a connected small-world graph: a ring in which each node knows degree / 2
    neighbours to each side, each edge rewired with that chance; edges go from the lower to the higher node."""
    while True:
        neighbours = [{(node + step) % nodes for step in range(1, degree // 2 + 1)} for node in range(nodes)]
        for node, others in enumerate(neighbours):
            for other in others:
                neighbours[other].add(node)
        for step in range(1, degree // 2 + 1):
            for node in range(nodes):
                old = (node + step) % nodes
                if random.random() < chance and old in neighbours[node] and len(neighbours[node]) < nodes - 1:
                    new = random.choice([n for n in range(nodes) if n != node and n not in neighbours[node]])
                    neighbours[node].remove(old)
                    neighbours[old].remove(node)
                    neighbours[node].add(new)
                    neighbours[new].add(node)
        reached = {0}
        frontier = [0]
        while frontier:
            fresh = neighbours[frontier.pop()] - reached
            reached |= fresh
            frontier += fresh
        if len(reached) == nodes:
            return [sorted(other for other in others if other < node) for node, others in enumerate(neighbours)]


def _stage(net: Network, x: Value, channels: int, random: Random) -> Value:
    earlier = watts_strogatz(32, 4, 0.75, random)
    values: list[Value] = []
    for number, sources in enumerate(earlier):
        with net.scope(f"n{number}"):
            # a node weighs its inputs in the paper; seeded convolutions in front of the sum do that already
            total = net.add(*[values[source] for source in sources]) if sources else x
            y = net.depthwise(net.relu(total), 3, 1 if sources else 2, bias=False)
            values.append(net.conv(y, channels, 1))
    read = {source for sources in earlier for source in sources}
    return net.mean(*[value for number, value in enumerate(values) if number not in read])


def build(
    classes: int, channels: int, seed: int = 0, *, wiring: int = 0, image: int = 32, **options: bool
) -> onnx.ModelProto:
    """channels: of the first stage. wiring: seed of the random graphs; `seed` is that of the weights."""
    random = Random(wiring)
    net = Network(f"randwire_cifar{classes}", seed, **options)
    x = net.conv(net.conv(net.input(3, image), channels // 2, 3, act="relu"), channels, 3)
    for stage in range(3):
        with net.scope(f"s{stage}"):
            x = _stage(net, x, channels << stage, random)
    x = net.conv(net.relu(x), 1280, 1, act="relu")
    return net.model(net.linear(net.flatten(net.global_avg_pool(x)), classes))
