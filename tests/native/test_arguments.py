"""Every entry point of the native module says what is wrong with its arguments, and reads nothing outside them."""

import math
from array import array

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset import _native as native
from tests.effort import cases

pytestmark = pytest.mark.native

EDGES = [-(2**63), -(2**31), -3, -1, 2**31 - 1, 2**40, 2**61, 2**62, 2**63 - 1]


class Arguments:
    """Lawful ones; every second time, one in ten is not."""

    def __init__(self, draw):
        self.draw = draw
        self.wild = draw(st.booleans())

    def mistake(self):
        return self.wild and not self.draw(st.integers(0, 9))

    def number(self, least=0, most=4):
        return self.draw(st.sampled_from(EDGES) if self.mistake() else st.integers(least, most))

    def size(self, least=0, most=4):
        return self.draw(st.integers(least, most))

    def seconds(self):
        return self.draw(st.sampled_from([0.0, -1.0, math.nan])) if self.mistake() else 0.05

    def flag(self):
        return self.draw(st.booleans())

    def list(self, count, item):
        count += self.draw(st.sampled_from([-1, 1])) if self.mistake() else 0
        return [item() for _ in range(count)]

    def numbers(self, count, least=0, most=4):
        return self.list(count, lambda: self.number(least, most))

    def indices(self, count):
        """Some of those below `count`, ascending."""
        chosen = [index for index in range(count) if self.flag()]
        return [*chosen, self.number()] if self.mistake() else chosen

    def order(self, count):
        found = self.draw(st.permutations(range(count)))
        return [*found[:-1], self.number()] if self.mistake() else found


def order_problem(operators=2, storages=2, **changed):
    given = {
        "predecessors": [[*range(v)] for v in range(operators)],
        "nbytes": [4] * storages,
        "producers": [[0]] * storages,
        "consumers": [[1]] * storages,
        "kept": [False] * storages,
        "in_place": [[]] * operators,
        "in_place_bytes": [[]] * operators,
        "floor_bytes": 0,
    }
    return native.OrderProblem(**given | changed)


def memories_problem(**changed):
    given = {
        "predecessors": [[], [0]],
        "workspace": [0, 0],
        "storages": [[4, 4, 4, 0, 0], [4, 4, 4, 0, 2]],
        "accesses": [[(0, True, 4)], [(0, False, 4), (1, True, 4)]],
        "fast_bytes": 4,
    }
    return native.MemoriesProblem(**given | changed)


def memories_orders(groups, few=1):
    return native.memories_orders(memories_problem(), groups, list(range(len(groups))), 0, few, 1.0, 9, 9)


def records(count=2, **changed):
    given = {"nbytes": [4] * count, "alignment": [1] * count, "pinned": [-1] * count, "active": [[(0, 2)]] * count}
    return native.Records(**given | changed)


def live_pieces(**changed):
    given = {"low": [0, 1], "high": [2, 3], "record": [0, 1], "nbytes": [4, 4]} | changed
    return native.LivePieces(**{name: array("q", column) for name, column in given.items()})


def row_form(**changed):
    given = {
        "op_inputs": [[0, 1, 1, 0, 0]],
        "op_outputs": [[1]],
        "numbers": [[4, 2, 0]],
        "rows": [4, 4],
        "outputs": [1],
    }
    return native.RowForm(**given | changed)


def piece_search(form=None, vertices=((0,),), layers=(1,), strips=2, diameter=5):
    return native.PieceSearch(
        form or row_form(), vertices, layers, strips=strips, diameter=diameter, state_limit=10_000
    )


def network(count=2, per_byte=0.5, latency=0.0, uniform=True):
    return native.PipelineNetwork(
        [[per_byte] * count] * count, [[latency] * count] * count, uniform=uniform, overlap=False, shared=False
    )


def aims(latency_limit_s=math.inf):
    return native.RoundAims(latency_limit_s=latency_limit_s, several_blocks=True)


def load_segment(upper=(0, 3, 6), lower=(0, 3, 6), final=(6, 3, 0), quantities=4):
    return native.LoadSegment(np.array([[upper, lower, final]] * quantities, np.float64))


def loads(
    devices=((0, 0, 2.0, 2.0, False), (1, 0, 1.0, 1.0, True)), links=None, ends=(-1, -1), forbidden=(), **changed
):
    given = {"segments": {(0, 1): load_segment()}, "macs_before": [0, 6], "crossing_bytes": [1, 1]}
    return native.LoadProblem(
        native.LoadChain(**given | changed),
        [native.LoadDevice(*device) for device in devices],
        links or network(len(devices)),
        source=ends[0],
        sink=ends[1],
        forbidden=forbidden,
    )


def whole_layers(**changed):
    given = {"vertices": 1, "downsets": [[], [0]], "tensors": [[-1, 0, 0]], "message_s": [1.0], "compute_s": [[1.0]]}
    given |= {"types": [0], "full": [0], "overlap": False, "shared": False}
    return native.WholeLayerProblem(**given | changed)


def lattice(**changed):
    given = {"predecessors": [0, 1], "max_ops": 8, "max_groups": 8, "single_root": False}
    return native.StageLattice(**given | {"time_limit_s": 5.0, "pair_limit": 1000} | changed)


def risen(problem):
    search = native.BestFirst(problem, 1 << 30)
    search.advance(0, 8, 5.0, 99)
    search.advance(0, 9, 5.0, 99)


NAN = math.nan
FAULTS = [
    (lambda: order_problem(predecessors=[[], [1]]), "predecessors: 1 is not an index below 1"),
    (lambda: order_problem(operators=3, predecessors=[[], [0], [1, 0]]), "predecessors: they are not ascending"),
    (lambda: order_problem(nbytes=[4, -4]), "nbytes: -4 is not at least 0"),
    (lambda: order_problem(nbytes=[2**61, 1]), "nbytes: they sum to more than 2^61"),
    (lambda: order_problem(producers=[[0]]), "producers: 1 entries; 2 are needed"),
    (lambda: order_problem(consumers=[[1], [2]]), "consumers: 2 is not an index below 2"),
    (lambda: order_problem(kept=[]), "kept: 0 entries; 2 are needed"),
    (lambda: order_problem(in_place=[[], [2]]), "in_place: 2 is not an index below 2"),
    (lambda: order_problem(in_place=[[], [0]]), "in_place_bytes: 0 entries; 1 are needed"),
    (
        lambda: order_problem(in_place=[[], [0]], in_place_bytes=[[], [5]]),
        "in_place_bytes: 5 is not from 0",
    ),
    (lambda: native.order_peak(order_problem(), [0, 2]), "order: 2 is not an operator, or comes twice"),
    (lambda: native.order_peak(order_problem(), [0, 0]), "order: 0 is not an operator, or comes twice"),
    (lambda: native.closure_bound(order_problem(), [0, -1], 1.0, 9), "known order: -1 is not an operator"),
    (lambda: native.beam(order_problem(), 0, 0, 99, 1.0, 9), "width: 0 is less than one state"),
    (lambda: native.greedy(order_problem(), NAN, 9), "time limit: not a number of seconds"),
    (lambda: native.BestFirst(order_problem(), 1 << 20).advance(0, 99, NAN, 9), "time limit: not a number of seconds"),
    (lambda: risen(order_problem()), "incumbent: 9 is above the 8 of before"),
    (lambda: records(alignment=[1]), "alignment: 1 entries; 2 are needed"),
    (lambda: records(alignment=[1, 0]), "alignment: 0 is not at least 1"),
    (lambda: records(nbytes=[4, -1]), "nbytes: -1 is not at least 0"),
    (lambda: records(nbytes=[2**61, 4]), "records: offsets may come to more than 2^61 bytes"),
    (lambda: records(pinned=[-1, -2]), "pinned: -2 is not at least -1"),
    (lambda: records(active=[[(0, 2)]]), "active: 1 entries; 2 are needed"),
    (lambda: records(active=[[(0, 2)], []]), "active: a record never lives"),
    (lambda: records(active=[[(0, 2)], [(3, 3)]]), "active: [3, 3) is not an interval"),
    (lambda: records(active=[[(0, 2)], [(3, 5), (4, 6)]]), "active: [4, 6) is not an interval behind"),
    (lambda: live_pieces(high=[2]), "high: 1 entries; 2 are needed"),
    (lambda: live_pieces(record=[0]), "record: 1 entries; 2 are needed"),
    (lambda: live_pieces(record=[0, 2]), "record: 2 is not an index below 2"),
    (lambda: live_pieces(record=[0, -1]), "record: -1 is not an index below 2"),
    (lambda: live_pieces(high=[2, 1]), "low: [1, 1) is not an interval"),
    (lambda: live_pieces(nbytes=[4, -1]), "nbytes: -1 is not at least 0"),
    (lambda: live_pieces(nbytes=[2**60, 2**60]), "nbytes: they come to more than 2^61"),
    (lambda: live_pieces().padded_breadth(0), "unit: 0 is not above 0"),
    (lambda: live_pieces().padded_breadth(2**61), "unit: 2305843009213693952 is too large"),
    (lambda: live_pieces().collisions(array("q", [0]), 9), "offsets: 1 entries; 2 are needed"),
    (lambda: live_pieces().collisions(array("q", [0, 2**62]), 9), "offsets: 4611686018427387904 is not within 2^61"),
    (lambda: native.place_in_order(records(), [0, 2], False, 1.0), "sequence: 2 is not an index below 2"),
    (lambda: native.spread(records(), [-1], [9], 0, []), "sequence: -1 is not an index below 2"),
    (lambda: native.spread(records(), [0], [9], 0, [[0]]), "choices: 1 entries; 2 are needed"),
    (lambda: native.spread(records(), [0], [9], 0, [[0], [1]]), "choices: 1 is not an index below 1"),
    (lambda: native.assign_in_order(records(), [2], False, 1.0), "sequence: 2 is not an index below 2"),
    (lambda: native.assign_in_order(records(), [1], False, NAN), "time limit: not a number of seconds"),
    (lambda: native.fill_strip(records(), NAN), "time limit: not a number of seconds"),
    (lambda: native.litert_sequence([0, 0], [1, 1], [4, 4], [True, False]), "tensors: 1 comes twice"),
    (lambda: native.litert_sequence([0, 0], [1, 2], [4], [True, False]), "nbytes: 1 entries; 2 are needed"),
    (lambda: native.place_above(records(), [0, 2], [-1, -1]), "sequence: 2 is not an index below 2"),
    (lambda: native.place_above(records(), [0], [-1]), "offsets: 1 entries; 2 are needed"),
    (lambda: native.place_above(records(), [0], [-1, -2]), "offsets: a record is at -2"),
    (lambda: native.place_above(records(), [0], [-1, 1 << 61]), "offsets: a record is at"),
    (lambda: native.arena_within(records(), -1, 1.0, 9), "capacity: -1 bytes are less than nothing"),
    (lambda: native.arena_within(records(10_001), 9, 1.0, 9), "records: 10001 are more than a search"),
    (lambda: native.arena_lower(records(), [0], 0, 1.0, 9, 9, 0), "offsets: 1 entries; 2 are needed"),
    (lambda: native.arena_lower(records(), [0, -1], 0, 1.0, 9, 9, 0), "offsets: record 1 is at -1"),
    (lambda: native.arena_lower(records(), [0, 1 << 62], 0, 1.0, 9, 9, 0), "offsets: record 1 is at"),
    (lambda: native.arena_lower(records(), [0, 9], -1, 1.0, 9, 9, 0), "bound: -1 bytes are less than nothing"),
    (lambda: native.shared_objects(records(), [4, 4, 4], 9, 1.0, 9), "maxima: 3 for 2 records"),
    (lambda: native.shared_objects(records(), [-4], 9, 1.0, 9), "maxima: -4 is below nothing"),
    (lambda: native.shared_objects(records(), [4], -1, 1.0, 9), "incumbent: -1 bytes are less than nothing"),
    (lambda: native.shared_objects(records(10_001), [4], 9, 1.0, 9), "records: 10001 are more than a search"),
    (lambda: lattice(predecessors=[0] * 65), "predecessors: 65 operators; at most 64"),
    (lambda: lattice(predecessors=[0, 2]), "predecessors: operators are not in a topological order"),
    (lambda: lattice(max_ops=0), "limits of a stage: they are not above 0"),
    (lambda: lattice(time_limit_s=NAN), "time limit: not a number of seconds"),
    (lambda: lattice().weigh([1]), "costs: 1 entries; 2 are needed"),
    (lambda: lattice().weigh([1, -1]), "costs: -1 is not at least 0"),
    (lambda: lattice().solve([1]), "prices: 1 entries; 3 are needed"),
    (lambda: lattice(pair_limit=1).solve([1] * 9), "stages: a limit ended their enumeration"),
    (lambda: lattice(pair_limit=1).schedules(), "stages: a limit ended their enumeration"),
    (lambda: row_form(op_outputs=[]), "outputs of operators: 0 entries; 1 are needed"),
    (lambda: row_form(op_inputs=[[0, 1, 1, 0]]), "inputs of an operator: they are not five numbers each"),
    (lambda: row_form(op_inputs=[[2, 1, 1, 0, 0]]), "inputs of an operator: 2 is not an index below 2"),
    (lambda: row_form(op_outputs=[[2]]), "outputs of an operator: 2 is not an index below 2"),
    (lambda: row_form(numbers=[[4, 2]]), "numbers of an operator: 2 entries; 3 are needed"),
    (lambda: row_form(numbers=[[4, -2, 0]]), "numbers of an operator: -2 is not at least 0"),
    (lambda: row_form(rows=[4, 2**31]), "rows: 2147483648 is out of range"),
    (lambda: row_form(op_inputs=[[0, 1, 2**40, 0, 0]]), "map of an input: 1099511627776 is out of range"),
    (lambda: row_form(op_inputs=[[0, 0, 1, 0, 0]]), "map of an input: it does not go on"),
    (lambda: row_form(outputs=[2]), "outputs: 2 is not an index below 2"),
    (lambda: piece_search(vertices=[[1]]), "vertices: 1 is not an index below 1"),
    (lambda: piece_search(vertices=[[0], [0]], layers=[1, 1]), "vertices: operator 0 is in two of them"),
    (lambda: piece_search(vertices=[[]] * 1025, layers=[1] * 1025), "vertices: 1025 are more than 1024"),
    (lambda: piece_search(layers=[]), "layers: 0 entries; 1 are needed"),
    (lambda: piece_search(layers=[-1]), "layers: -1 is not an index"),
    (lambda: piece_search(strips=0), "strips: 0 is not a number of strips"),
    (lambda: piece_search(diameter=0), "diameter: 0 layers are less than one"),
    (lambda: piece_search(row_form(numbers=[[4, 2**61, 0]])), "MACs: they sum to more than 2"),
    (lambda: piece_search().within(9, NAN), "time limit: not a number of seconds"),
    (lambda: network(per_byte=-0.5), "seconds by pair: -0.5 is not at least 0"),
    (lambda: network(latency=NAN), "seconds by pair: nan is not at least 0"),
    (lambda: native.PipelineNetwork([[0.0]], [], uniform=True, overlap=False, shared=False), "latency by pair: 0 entr"),
    (
        lambda: native.PipelineNetwork([[0.0], [0.0]], [[0.0]] * 2, uniform=True, overlap=False, shared=False),
        "seconds by pair: 1 entries; 2 are needed",
    ),
    (
        lambda: native.PipelineNetwork(
            [[0.0, 1.0], [2.0, 0.0]], [[0.0] * 2] * 2, uniform=True, overlap=False, shared=True
        ),
        "seconds by pair: they are not uniform",
    ),
    (lambda: aims(latency_limit_s=NAN), "latency limit: it is not at least 0 seconds"),
    (
        lambda: native.least_rounds(loads(), aims(), incumbent_s=NAN, time_limit_s=1.0, state_limit=9),
        "incumbent: it is not a number of seconds",
    ),
    (lambda: whole_layers(downsets=[[], [1]]), "vertices: 1 is not one of 1"),
    (lambda: whole_layers(downsets=[[0], []]), "downsets: they are not in order of size"),
    (lambda: whole_layers(downsets=[[], []]), "downsets: not from none to all"),
    (lambda: whole_layers(compute_s=[[NAN]]), "seconds by vertex: nan is not at least 0"),
    (lambda: whole_layers(compute_s=[[1.0], [1.0]]), "types of devices: 2 entries; 1 are needed"),
    (lambda: whole_layers(tensors=[[-1]]), "tensors: maker of 0"),
    (
        lambda: native.whole_layer_stages(whole_layers(), limit_s=NAN, time_limit_s=1.0),
        "limit: it is not at least 0 seconds",
    ),
    (lambda: loads(segments={(1, 1): load_segment()}), "segments: (1, 1) is not in the chain"),
    (lambda: loads(macs_before=[0]), "MACs before a cut: 1 cuts are not a chain"),
    (lambda: loads(macs_before=[0, -6]), "MACs before a cut: -6 is not at least 0"),
    (lambda: loads(crossing_bytes=[1]), "bytes over a cut: 1 entries; 2 are needed"),
    (lambda: loads(crossing_bytes=[1, -1]), "bytes over a cut: -1 is not at least 0"),
    (
        lambda: loads(devices=[(1, 0, 2.0, 2.0, False), (0, 0, 1.0, 1.0, False)]),
        "devices: they are not in order of type",
    ),
    (
        lambda: loads(devices=[(k, 0, 1.0, 1.0, False) for k in range(23)]),
        "devices: more than 4194304 sets of them",
    ),
    (lambda: loads(forbidden=[(0, 2, 0)]), "forbidden: (0, 2, 0) is not a stage on a device"),
    (lambda: load_segment(quantities=3), "segment: no class of work"),
    (lambda: native.LoadSegment(np.zeros((4, 2, 3))), "segment: its tables are not three lists of rows"),
    (lambda: load_segment(upper=(0, NAN, 6)), "segment: no number at row 0"),
    (lambda: load_segment((0, 3, 2, 9), (0, 0, 0, 0), (9, 6, 3, 0)), "segment: costs fall at row 1"),
    (lambda: load_segment(lower=(4, 4, 4)), "segment: less than nothing at row 0"),
    (lambda: load_segment(lower=(3, 2, 0)), "segment: costs fall at row 1"),
    (lambda: loads(segments={}), "segments: 0 entries; 1 are needed"),
    (lambda: loads(macs_before=[6, 0]), "MACs before a cut: they fall"),
    (lambda: loads(crossing_bytes=[1, math.inf]), "MACs and bytes of a cut: they are not finite"),
    (lambda: loads(devices=[]), "devices: there are 0"),
    (lambda: loads(devices=[(0, 0, 0.0, 1.0, False)]), "devices: a speed is not above 0"),
    (lambda: loads(devices=[(0, 1, 1.0, 1.0, False)]), "devices: 1 is not a class of work"),
    (lambda: loads(devices=[(0, 0, 1.0, 1.0, False), (0, 0, 1.0, 1.0, True)]), "devices: two of a type differ"),
    (lambda: loads(links=network(3)), "seconds by pair: 3 entries; 2 are needed"),
    (lambda: loads(links=network(per_byte=math.inf)), "seconds by pair: they are not finite"),
    (lambda: loads(ends=(2, -1)), "source and sink: no such device"),
    (
        lambda: loads(devices=[(0, 0, 1.0, 1.0, False)] * 2, ends=(0, -1)),
        "source and sink: devices of types of their own",
    ),
    (
        lambda: loads(devices=[(0, 0, 1.0, 1.0, False)] * 2, links=network(uniform=False)),
        "network: where pairs differ each device is a type",
    ),
    (lambda: loads(forbidden=[(0, 1, 2)]), "forbidden: (0, 1, 2) is not a stage on a device"),
    (
        lambda: native.least_load(loads(), incumbent_s=NAN, time_limit_s=1.0, state_limit=9),
        "incumbent: it is not a number of seconds",
    ),
    (
        lambda: native.least_latency(loads(), aims(), time_limit_s=NAN, state_limit=9),
        "time limit: not a number of seconds",
    ),
]


FAULTS += [
    (lambda: memories_problem(fast_bytes=-1), "capacity: -1 is not from 0"),
    (lambda: memories_problem(workspace=[0, 5]), "operator 1 needs 5 bytes"),
    (lambda: memories_problem(storages=[[4, 4, 4, 4, 0], [4, 4, 4, 0, 2]]), "begins or ends nowhere"),
    (lambda: memories_problem(storages=[[2**62, 4, 4, 0, 0], [4, 4, 4, 0, 2]]), "add up to 2**48"),
    (lambda: memories_problem(accesses=[[(0, True, -2)], []]), "the cost -2 is not from -1"),
    (lambda: memories_problem(accesses=[[(2, True, 1)], []]), "there is no storage 2"),
    (lambda: memories_problem(accesses=[[(0, True, 1)] * 2, []]), "storage 0 comes twice"),
    (lambda: native.memories_belady(memories_problem(), [1, 0]), "operator 1 runs before operator 0"),
    (lambda: native.memories_residency(memories_problem(), [0, 1], 9, 0, 1.0, 9), "width: 0 is not from 1"),
    (lambda: native.memories_residency(memories_problem(), [0, 1], -1, 1, 1.0, 9), "incumbent: -1 is not from 0"),
    (lambda: memories_orders([[0], [1]], few=0), "few: 0 is not at least 1"),
    (lambda: memories_orders([[0], [2]]), "groups: operator 2 is unknown or comes twice"),
    (lambda: memories_orders([[0], [0]]), "groups: operator 0 is unknown or comes twice"),
    (lambda: memories_orders([[0], []]), "groups: operator 1 is in none"),
    (lambda: memories_orders([[1, 0]]), "operator 1 runs before operator 0"),
    (lambda: native.memories_joint(memories_problem(), -1, 1.0, 9), "incumbent: -1 is not from 0"),
    (lambda: native.memories_bound(memories_problem(), 9, NAN, 9), "time limit: not a number of seconds"),
]


@pytest.mark.parametrize(("call", "fault"), FAULTS, ids=[fault for _, fault in FAULTS])
def test_faults_are_named(call, fault):
    with pytest.raises(ValueError) as raised:
        call()
    assert fault in str(raised.value)


def test_what_the_faults_were_made_from_is_lawful():
    assert native.order_peak(order_problem(), [0, 1]) == 8
    assert native.place_in_order(records(), [0, 1], True, 1.0) == [0, 4]
    chain, price = lattice().solve([1, 1, 1])
    assert ([lattice().stages()[stage] for stage in chain], price) == ([0b11], 1)
    assert piece_search().within(100, 5.0)[0] is native.Outcome.SOLVED
    found = native.least_rounds(loads(), aims(), incumbent_s=math.inf, time_limit_s=5.0, state_limit=10_000)
    assert found[0] == pytest.approx(3.0)  # both rows on the fast device: half of 6 MACs
    assert found[2]
    found = native.least_load(loads(), incumbent_s=math.inf, time_limit_s=5.0, state_limit=10_000)
    assert found[:3] == (pytest.approx(3.0), pytest.approx(3.0), True)


def test_outcomes_have_names():
    assert [outcome.name for outcome in native.Outcome] == ["SOLVED", "IMPOSSIBLE", "LIMIT", "OUT_OF_MEMORY"]
    within = [native.arena_within(records(), capacity, 5.0, limit)[1] for capacity, limit in ((8, 99), (7, 99), (8, 0))]
    assert within == [native.Outcome.SOLVED, native.Outcome.IMPOSSIBLE, native.Outcome.LIMIT]
    search = native.BestFirst(order_problem(), 1 << 30)
    assert search.advance(0, 9, 5.0, 0) is native.Outcome.LIMIT
    assert search.advance(0, 9, 5.0, 99) is native.Outcome.SOLVED
    assert native.BestFirst(order_problem(), 1 << 30).advance(0, 8, 5.0, 99) is native.Outcome.IMPOSSIBLE
    assert native.BestFirst(order_problem(), 0).advance(0, 9, 5.0, 99) is native.Outcome.OUT_OF_MEMORY
    assert piece_search().within(-1, 5.0)[0] is native.Outcome.IMPOSSIBLE


def test_ties_cannot_be_settled_where_there_is_no_chain():
    search = piece_search(row_form(op_inputs=[[0, 1, 1, -1, 1]] * 2, op_outputs=[[1], [1]], numbers=[[4, 2, 0]] * 2))
    assert not search.refine(-1, True, 5.0)
    assert search.pieces() == []


def draw_orders(given):
    operators, storages = given.size(), given.size()
    sizes, in_place = given.numbers(storages), given.list(operators, lambda: given.indices(storages))
    problem = native.OrderProblem(
        [given.indices(v) for v in range(operators)],
        sizes,
        given.list(storages, lambda: given.indices(operators)),
        given.list(storages, lambda: given.indices(operators)),
        given.list(storages, given.flag),
        in_place,
        [[sizes[at] // 2 if 0 <= at < len(sizes) else 0 for at in listed] for listed in in_place],
        given.number(),
    )
    for side in (problem, problem.reversed()):
        for found in (
            native.greedy(side, 1.0, given.number(0, 99)),
            native.beam(side, given.number(1), 0, given.number(20, 99), 1.0, given.number(0, 99))[0],
        ):
            assert sorted(found) == list(range(operators)) or not found
        search = native.BestFirst(side, given.number(1 << 30, 1 << 31))
        for incumbent in (99, given.number(0, 99)):
            search.advance(0, incumbent, given.seconds(), given.number())
        assert sorted(search.steps) in ([], list(range(operators)))
        native.order_peak(side, given.order(operators))
        native.closure_bound(side, given.order(operators), given.seconds(), given.number(0, 99))
        native.pair_bound(side, given.order(operators), given.number(), given.seconds(), given.number(0, 99))


def draw_arenas(given):
    count = given.size()
    starts = [given.number() for _ in range(count)]
    pins = given.numbers(count, -1, 0)
    found = native.Records(
        given.numbers(count),
        given.numbers(count, 1),
        pins,
        [[(start, start + given.number(1, 3)), (start + 5, start + 6)][: given.size(1, 2)] for start in starts],
    )
    assert len(found) == count
    offsets, outcome, _ = native.arena_within(found, given.number(0, 20), given.seconds(), given.number(0, 99))
    assert len(offsets) == (count if outcome is native.Outcome.SOLVED else 0)
    limits = given.seconds(), given.number(0, 99), given.number(0, 999)
    offsets = [given.number(0, 99) if pin < 0 else pin for pin in pins]
    native.arena_lower(found, offsets, given.number(), *limits, given.number())
    assert len(native.place_in_order(found, given.order(count), given.flag(), given.seconds())) == count
    native.spread(found, given.order(count), given.numbers(2, 0, 20), given.number(), [])
    choices = given.list(count, lambda: given.order(2))
    native.spread(found, given.order(count), given.numbers(2, 0, 20), given.number(), choices)
    native.spread(found, given.order(count), [], given.number(0, 20), [])
    assert len(native.fill_strip(found, given.seconds())) == count
    assert len(native.place_above(found, given.order(count), offsets)) == count
    assert len(native.positional_maxima(found)) <= count
    native.assign_in_order(found, given.order(count), given.flag(), given.seconds())
    maxima = given.numbers(count // 2)
    native.shared_objects(found, maxima, given.number(0, 20), given.seconds(), given.number(0, 99))


def draw_sweeps(given):
    count = given.size()
    low = given.numbers(count)
    high = [max(min(start + given.number(1, 3), 2**63 - 1), -(2**63)) for start in low]
    pieces = live_pieces(low=low, high=high, record=given.numbers(count, 0, count - 1), nbytes=given.numbers(count))
    steps, totals = pieces.breadths()
    assert len(steps) == len(totals) <= 2 * count
    pieces.padded_breadth(given.number(1))
    assert len(pieces.collisions(array("q", given.numbers(count)), given.number())) <= count
    assert len(pieces.breadth_turns(given.flag())) == count
    steps, tensors, sizes = given.numbers(count), given.order(count), given.numbers(count)
    assert sorted(native.litert_sequence(steps, tensors, sizes, given.list(count, given.flag))) == sorted(tensors)


def draw_stages(given):
    count = given.draw(st.sampled_from([0, 1, 2, 3, 4, 64]))
    thin = count == 64  # a chain: all else has too many downsets
    masks = [(1 << v) - 1 if thin else given.number(0, (1 << v) - 1) for v in range(count + given.mistake())]
    found = native.StageLattice(
        masks, given.number(1), given.number(1), given.flag(), given.seconds(), given.number(400, 999)
    )
    stages = found.stages()
    assert [len(values) for values in found.weigh(given.numbers(count))] == [len(stages)] * 3
    found.solve(given.numbers(len(stages), -1))
    found.schedules()


def draw_pieces(given):
    ops, tensors = given.size(), given.size(1)
    inputs = [
        [(v - 1, given.number(1), given.number(), given.number(-2), given.number())] if v else [] for v in range(ops)
    ]
    form = native.RowForm(
        [[number for item in items for number in item] for items in inputs],
        [[v] for v in range(ops)],
        given.list(ops, lambda: given.numbers(3)),
        given.numbers(max(ops, tensors)),
        given.indices(tensors),
    )
    search = native.PieceSearch(
        form,
        [[v] for v in range(ops)],
        given.numbers(ops, 0, 1),
        strips=given.number(1),
        diameter=given.number(1),
        state_limit=10_000,
    )
    search.within(given.number(0, 99), given.seconds())
    search.refine(given.number(0, 99), given.flag(), given.seconds())
    search.within(given.number(0, 99), given.seconds())
    assert len(search.pieces()) == len(search.costs())


def draw_loads(given):
    cuts, count = given.size(1, 3), given.size(1, 3)
    segments = {}
    for start in range(cuts):
        for stop in range(start + 1, cuts + 1):
            rows, tables = given.size(1), []
            for _ in range(4):
                rising = sorted(given.numbers(rows + 1))
                tables.append([rising, rising, given.numbers(rows + 1)])
            segments[start, stop] = native.LoadSegment(np.array(tables, np.float64))
    units = native.LoadChain(segments, sorted(given.numbers(cuts + 1)), given.numbers(cuts + 1))
    odd = st.sampled_from([0.0, -1.0, math.inf, math.nan])
    second = lambda: given.draw(odd) if given.mistake() else 0.5  # noqa: E731
    per_byte, latency = (given.list(count, lambda: given.list(count, second)) for _ in range(2))
    uniform, overlap = given.flag(), given.flag()
    shared = uniform and given.flag()
    links = native.PipelineNetwork(per_byte, latency, uniform=uniform, overlap=overlap, shared=shared)
    devices = [
        native.LoadDevice(k, 0, given.draw(odd) if given.mistake() else float(9 - k), 9.0, given.flag())
        for k in range(count)
    ]
    problem = native.LoadProblem(
        units,
        devices,
        links,
        source=given.number(-1, count - 1),
        sink=given.number(-1, count - 1),
        forbidden=[(0, given.number(1, cuts), 0)],
    )
    native.least_load(problem, incumbent_s=math.inf, time_limit_s=given.seconds(), state_limit=3000)
    limit_s = given.draw(st.sampled_from([math.inf, 1.0, 0.0]))
    rounds = native.RoundAims(latency_limit_s=limit_s, several_blocks=given.flag())
    native.least_rounds(problem, rounds, incumbent_s=math.inf, time_limit_s=given.seconds(), state_limit=3000)
    native.least_latency(problem, rounds, time_limit_s=given.seconds(), state_limit=3000)


def draw_whole_layers(given):
    count, types = given.size(1, 3), sorted(given.numbers(given.size(1, 3), 0, 2))
    kinds = len(set(types))
    chain = [list(range(place)) for place in range(count + 1)]
    odd = st.sampled_from([0.0, -1.0, math.inf, math.nan])
    seconds = lambda: given.draw(odd) if given.mistake() else 0.5  # noqa: E731
    tensors = given.list(
        given.size(), lambda: [given.number(-1, count - 1), given.number(0, 1), given.number(0, count - 1)]
    )
    problem = native.WholeLayerProblem(
        count,
        chain[given.mistake() :],
        tensors,
        [seconds() for _ in tensors],
        given.list(kinds, lambda: given.list(count, seconds)),
        types,
        full=given.numbers(kinds, 0, 1),
        overlap=given.flag(),
        shared=given.flag(),
    )
    limit_s = given.draw(st.sampled_from([math.inf, 9.0, 0.0]))
    outcome, length_s, stages, _ = native.whole_layer_stages(problem, limit_s=limit_s, time_limit_s=given.seconds())
    if outcome is native.Outcome.SOLVED:
        assert length_s <= limit_s and stages[-1][0] == count


def draw_memories(given):
    operators, storages = given.size(1, 5), given.size(1, 5)
    problem = native.MemoriesProblem(
        given.list(operators, list),
        given.numbers(operators),
        [[*given.numbers(3, 0, 9), given.number(0, 3), given.number(0, 3)] for _ in range(storages)],
        given.list(operators, lambda: [(s, given.flag(), given.number(-1, 9)) for s in given.indices(storages)]),
        given.number(20, 60),
    )
    order = given.order(operators)
    cost = native.memories_belady(problem, order)[0]
    found = native.memories_residency(problem, order, cost + 1, given.number(1, 50), given.seconds(), 1000)
    assert found[2] <= cost
    groups, places = [[v] for v in order], list(range(operators))
    few, seconds = given.number(1, 4), given.seconds()
    native.memories_orders(problem, groups, places, given.size(0, 9), few, seconds, 50, 50)
    native.memories_bound(problem, cost, given.seconds(), 50)
    native.memories_joint(problem, given.number(0, 50), given.seconds(), 1000)


@pytest.mark.parametrize(
    "family",
    [draw_orders, draw_sweeps, draw_arenas, draw_stages, draw_pieces, draw_loads, draw_whole_layers, draw_memories],
)
@settings(max_examples=cases(200))
@given(data=st.data())
def test_anything_is_refused_or_answered(family, data):
    """With sanitizers this is where reading outside a list would show; without, where it would crash."""
    given = Arguments(data.draw)
    try:
        family(given)
    except (ValueError, TypeError) as error:  # TypeError: no such 32-bit number
        assert given.wild, error


@given(st.data())
@settings(max_examples=cases(100))
def test_strips_of_operators_with_and_without_inputs_have_a_price(data):
    """Windows that may need padding rows, over an activation or over constants alone."""
    count = data.draw(st.integers(1, 4))
    reads = [data.draw(st.booleans()) for _ in range(count)]
    form = native.RowForm(
        [[at, 1, 1, -1, 1] if read else [] for at, read in enumerate(reads)],
        [[at + 1] for at in range(count)],
        [[4, 2, 0]] * count,
        [4] * (count + 1),
        [count],
    )
    numbers = [
        [
            1,
            1,
            3,
            1,
            1,
            1,
            0,
            0 if read else -1,
            data.draw(st.integers(0, 8)),
            1,
            1,
            0,
            0,
            5,
            data.draw(st.integers(0, 1)),
            data.draw(st.integers(0, 1)) if read else 0,
        ]
        for read in reads
    ]
    network = native.StripNetwork(
        form,
        numbers,
        [[]] * count,
        [[]] * count,
        [64] * (count + 1),
        alignment=16,
        moving_persistent_bytes=0,
        only_reader=True,
        outputs_apart=data.draw(st.booleans()),
        inputs_apart=data.draw(st.booleans()),
        counts_scratch=data.draw(st.booleans()),
    )
    segment = native.StripSegment(
        network,
        0,
        count,
        inputs=[[0, 32, 0, 0, 1, 1, 1, 0, 1]],
        results=[count],
        results_counted=[True],
        live_beside=0,
    )
    possible, peak, *_ = native.strips_price(
        network, segment, data.draw(st.integers(1, 4)), [], data.draw(st.booleans())
    )
    assert not possible or peak >= 32
