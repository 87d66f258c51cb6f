"""Chains of strips for two memories: the chain that is chosen, against every chain; and what its networks compute."""

import itertools
import math
import random

import pytest

from downset.budget import Budget
from downset.fitting import memories_chains
from downset.fitting.memories_chains import Room, _ChainOfWays, _ChainSearch, _cuts, _PricedWay, find_strips
from downset.formats.firmware_memories import described_bytes, description_bytes
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from downset.memories.of_graph import Prices
from downset.partial.memory_form import tflm_kept
from downset.runtimes.compare import compare_outputs, prove_same
from downset.runtimes.feeds import FeedSource
from tests.effort import cases
from tests.tflite_net import TfliteNet


def inverted(path, seed, blocks=2):
    """Blocks of MobileNet v2: a wide convolution of one cell, a depthwise one, a narrow one, and a sum around them."""
    numbers = random.Random(seed)
    net = TfliteNet(seed, size=16, dtype=numbers.choice(["int8", "float32"]))
    x = net.conv(net.input(3), 8, 3)
    for _ in range(blocks):
        y = net.conv(net.depthwise(net.conv(x, 32, 1)), 8, 1)
        x = net.op("ADD", (y, x), 8, "AddOptions") if numbers.random() < 0.5 else y
    return net.save(path, [x])


@pytest.mark.parametrize("seed", range(cases(20)))
def test_the_chain_is_the_cheapest_of_all_that_keep_to_the_bytes(seed):
    """Random prices between cuts, against all sequences of ways."""
    numbers = random.Random(seed)
    graph = type("Graph", (), {"ops": range(8)})()
    search = _ChainSearch.__new__(_ChainSearch)
    search.graph, search.cuts, search.capacities = graph, [0, 2, 3, 5, 8], [1, 1]
    search.priced, search.least = {}, {}
    for first, stop in itertools.combinations(search.cuts, 2):
        for number in range(numbers.randint(0, 2) + (stop - first > 4)):
            cost = [tuple(float(numbers.randint(1, 20)) for _ in range(2)) for _ in range(2)]
            way = None if number == 0 else (first, stop, number)
            pieces = (math.inf, math.inf) if way is None else cost[0]
            search._add(
                (first, stop), _PricedWay(pieces, cost[1], 0 if way is None else numbers.randint(0, 9), 1.0, way)
            )
    for kept, at in itertools.product((0, 7, 15, math.inf), (0, 1)):
        every = [one for one in chains(search, 0, False, at) if one.kept <= kept]
        best = search.best(at, kept)
        assert best.cost == min((one.cost for one in every), default=math.inf)
        assert best.kept <= kept and (not every or best in every)


def chains(search, cut, in_pieces, at):
    """Every chain from a cut on; operators as they are read no pieces."""
    if cut == 8:
        yield from [] if in_pieces else [_ChainOfWays(0.0, 0, ())]
        return
    for (first, stop), ways in search.priced.items():
        for one in ways if first == cut else ():
            if in_pieces and one.way is None:
                continue
            for after, cost in ((True, one.pieces[at]), (False, one.joined[at])):
                for rest in chains(search, stop, after, at) if cost < math.inf else ():
                    ways_here = () if one.way is None else (one.way,)
                    yield _ChainOfWays(cost + rest.cost, one.kept + rest.kept, (*ways_here, *rest.ways))


@pytest.mark.parametrize("seed", range(cases(4)))
@pytest.mark.parametrize("with_persistent", [True, False])
def test_networks_in_strips_compute_the_same_and_keep_to_their_share(seed, with_persistent, tmp_path):
    path = inverted(tmp_path / "m.tflite", seed)
    graph = load(path)
    room = Room((3 if with_persistent else 1) * max(one.nbytes for one in graph.tensors) // 2, with_persistent)
    networks = find_strips(graph, room, Prices(), Budget(5.0, 200_000).start()).networks
    assert networks
    for network in networks:
        written = tmp_path / "strips.tflite"
        export_tflite(written, network, range(len(network.ops)))
        proof = prove_same(path, written)
        assert proof.proven
        assert compare_outputs(path, written, runtime="tflm", source=FeedSource(None, 0, ()), proof=proof).equal
        if with_persistent:
            # ways that are alike share constants, which are counted for each
            assert tflm_kept(network) - tflm_kept(graph) <= memories_chains._SHARES[-1] * room.nbytes + 24 * 64


@pytest.mark.parametrize("kernels", ["reference", "cmsis-nn-mve"])
def test_what_tflite_micro_cannot_describe_is_not_chosen(kernels, tmp_path):
    """The file of each network has room for its description, and less room never gives a cheaper chain."""
    graph = load(inverted(tmp_path / "m.tflite", 4))
    nbytes = max(one.nbytes for one in graph.tensors) // 2
    least, found = [], []
    for times in (1.0, 3.0, math.inf):
        room = Room(nbytes, False, times * described_bytes(graph, kernels), kernels)
        networks = find_strips(graph, room, Prices(), Budget(5.0, 20_000).start()).networks
        for network in networks:
            written = tmp_path / "strips.tflite"
            export_tflite(written, network, range(len(network.ops)))
            least.append(description_bytes(written, network, kernels))
            assert least[-1] <= room.described_bytes
        found.append(len(networks))
    assert found == [0, 1, 1]
    assert least == sorted(least) and least[0] < least[-1]


def test_cuts_lie_where_one_tensor_lives(tmp_path):
    graph = load(inverted(tmp_path / "m.tflite", 1, blocks=3))
    readers = graph.consumers()
    for cut in _cuts(graph)[1:-1]:
        made = [tensor for op in graph.ops[:cut] for tensor in op.outputs]
        alive = [one for one in made if any(reader >= cut for reader in readers[one]) or one in graph.outputs]
        assert len(alive) == 1


def test_a_limit_ends_the_pricing_and_a_chain_remains(tmp_path):
    graph = load(inverted(tmp_path / "m.tflite", 2))
    nbytes = max(one.nbytes for one in graph.tensors) // 2
    counts = []
    for work in (1_000, 6_000, 100_000):
        search = _ChainSearch(graph, [nbytes], Prices(), Room(nbytes, False))
        search.price(Budget(60.0, work).start())
        counts.append((sum(map(len, search.priced.values())), search.best(0, math.inf).cost))
    assert [count for count, _ in counts] == sorted({count for count, _ in counts})
    assert all(more <= less for (_, less), (_, more) in itertools.pairwise(counts))
