"""Small random networks and clusters for pipelines, from seeds (counts of instances are part of what is claimed)."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

from downset.clusters.model import Cluster, Device, Link, MessageCosts, Network, ProcessorCost
from downset.pipelines.prices import PricedChain
from downset.pipelines.problem import SplitOp, SplitProblem, SplitTensor, chain_problem, window_tables

KINDS = ("links", "pairs", "overlapping links", "overlapping pairs", "shared", "shared without overlap")


def random_chain(random, *, layers=3, rows=6):
    """A chain of up to `layers` layers with kernels, strides, uneven bytes, layers without MACs."""
    while True:
        described = [
            (random.randint(0, 40), random.choice([1, 3, 3, 5]), random.choice([1, 1, 2]), random.randint(1, 9))
            for _ in range(random.randint(1, layers))
        ]
        problem = PricedChain(chain_problem(described, rows=random.randint(1, rows), row_bytes=random.randint(1, 9)))
        if problem.macs_before()[-1]:
            return problem


def random_graph(random, *, units=3, rows=6):
    """Layers that read any earlier tensors of any height: cuts that several tensors cross, some of one row, some
    relayed, operators that are whole, several outputs."""
    while True:
        tensors, ops = [SplitTensor(random.randint(1, rows), random.randint(1, 9))], []
        for _ in range(random.randint(1, units + 1)):
            sources = sorted(random.sample(range(len(tensors)), min(len(tensors), random.randint(1, 2))))
            stride = random.choice([1, 1, 2])
            made = max(1, -(-tensors[sources[0]].rows // stride)) if random.random() < 0.85 else 1
            whole = random.random() < 0.15
            tables = []
            for source in sources:
                extent = tensors[source].rows
                if whole or extent != tensors[sources[0]].rows or made == 1:
                    import numpy as np

                    tables.append((np.zeros(made + 1, np.int64), np.full(made + 1, extent, np.int64)))
                else:
                    kernel = random.choice([1, 3, 3, 5])
                    tables.append(window_tables(made, extent, kernel=kernel, stride=stride, pad=(kernel - 1) // 2))
            tensors.append(SplitTensor(made, random.randint(1, 9)))
            first, last = zip(*tables, strict=True)
            ops.append(SplitOp(random.randint(0, 40), tuple(sources), (len(tensors) - 1,), first, last, (), whole))
        chain, left = [], list(range(len(ops)))
        while left:
            size = 1 if len(chain) < units - 1 else len(left)
            chain.append(tuple(left[:size]))
            left = left[size:]
        kept = frozenset(t for t in range(1, len(tensors)) if all(t not in op.inputs for op in ops))
        problem = PricedChain(SplitProblem(tuple(tensors), tuple(ops), tuple(chain), kept))
        if problem.macs_before()[-1]:
            return problem


def random_cluster(random, kind, *, devices=3):
    count = random.randint(1, devices)
    members = tuple(Device(f"d{k}", random.choice([1, 1, 2, 3, 5]) * 10.0) for k in range(count))
    shared = kind.startswith("shared")
    overlap = kind in ("overlapping links", "overlapping pairs", "shared")
    links = ()
    if kind.endswith("pairs"):
        links = tuple(
            Link(pair, random.choice([1.0, 5.0, 20.0]), random.choice([0.0, 0.1]))
            for pair in combinations(range(count), 2)
            if pair == (0, 1) or random.random() < 0.5
        )
    rate, latency = random.choice([3.0, 10.0, 50.0]), random.choice([0.0, 0.0, 0.1])
    network = Network("shared" if shared else "links", rate, latency, overlap, links)
    return Cluster(members, _occupied_in_part(random, network) if overlap and random.random() < 0.5 else network)


def faster(network, factor):
    """The network with so many times the rates."""

    def quick(one):
        part = one.occupied_bytes_per_s
        return replace(
            one, bytes_per_s=factor * one.bytes_per_s, occupied_bytes_per_s=None if part is None else factor * part
        )

    return replace(quick(network), links=tuple(quick(link) for link in network.links))


def _occupied_in_part(random, network):
    """Messages occupy the network for a part of their time, each link for one of its own."""

    def part(one):
        faster = None if random.random() < 0.3 else one.bytes_per_s * random.choice([1.0, 2.0, 8.0])
        sooner = None if random.random() < 0.3 else one.latency_s * random.choice([0.0, 0.5])
        return replace(one, occupied_bytes_per_s=faster, occupied_latency_s=sooner)

    return replace(part(network), links=tuple(part(link) for link in network.links))


def random_messages(random):
    """What messages take of a processor: nothing, or something of some kinds."""
    if random.random() < 0.3:
        return None
    return MessageCosts(
        *(ProcessorCost(random.choice([0.0, 0.02, 0.3]), random.choice([0.0, 0.01, 0.1])) for _ in range(4)),
        others_s=random.choice([0.0, 0.0, 0.05]),
    )


def random_setting(random, kind, *, devices=3, rows=5, layers=3):
    """(problem, cluster, source, sink): of a kind of network everything that the model of resources knows, by chance:
    duplex by network and device, rates for bytes and for kinds of operators, source and sink."""
    problem = random_chain(random, layers=layers, rows=rows)
    if random.random() < 0.5:
        problem = random_graph(random, units=layers, rows=rows)
    ops = tuple(replace(op, kind=random.choice(["Conv", "Gemm"])) for op in problem.ops)
    problem = PricedChain(replace(problem.problem, ops=ops))
    cluster = random_cluster(random, kind, devices=devices)
    members = [
        replace(
            device,
            duplex=random.choice([None, None, "half", "full"]),
            bytes_per_s=random.choice([None, None, None, 5.0, 100.0]),
            alpha_of=random.choice([{}, {}, {}, {"Conv": 0.5}, {"Gemm": 2.0}]),
        )
        for device in cluster.devices
    ]
    network = replace(cluster.network, duplex=random.choice(["half", "full"]))
    source, sink = (random.choice([None, None, random.randrange(len(members))]) for _ in range(2))
    return problem, Cluster(tuple(members), network), source, sink
