"""Programs of stages: whatever a run does within their waits, everything is there when it is read."""

import random

from hypothesis import given
from hypothesis import strategies as st

from downset.arenas.constrained.conflicts import check_conflicts, records_of_conflicts
from downset.arenas.planners import ARENAS
from downset.executor.lane_program import concurrent_arena, concurrent_conflicts, lower, possibly_live_bytes
from downset.graph.core import Graph, Op, Tensor
from downset.lattice import bits
from downset.memory.liveness import lifetimes
from downset.stages.greedy import greedy
from downset.stages.planners import STAGERS
from downset.stages.problem import Stage, StageProblem
from downset.stages.unit_graph import group_units, unit_predecessors
from tests.stages.test_stagers import arbitrary
from tests.strategies import graphs

ios = STAGERS["ios"]
lazy = STAGERS["lazy"]


@st.composite
def programs(draw):
    graph = draw(graphs())
    units = group_units(graph)
    problem = StageProblem(units.predecessors)
    if draw(st.booleans()) or not units.units:
        stages = greedy(problem, lambda _: 0.0, max_groups=draw(st.integers(1, 4))).stages
    else:
        stages = draw(st.sampled_from([ios, lazy]))(problem, arbitrary(draw(st.integers(0, 99)))).stages
    lanes = draw(st.sampled_from([None, 1, 2]))
    return graph, units, stages, lower(units, stages, barriers=draw(st.booleans()), max_lanes=lanes)


def runs_of(program, seed):
    """A random run: any lane whose next step has all it waits for may go on. Yields (what, step): begin or end."""
    chance = random.Random(seed)
    lanes = [[at for at, step in enumerate(program.steps) if step.lane == lane] for lane in range(program.lanes)]
    ended, running = set(), set()
    while any(lanes) or running:
        able = [
            lane[0]
            for lane in lanes
            if lane
            and not any(program.steps[at].lane == program.steps[lane[0]].lane for at in running)
            and all(wait in ended for wait in program.steps[lane[0]].waits)
        ]
        assert able or running, "every lane waits"
        if able and (not running or chance.random() < 0.7):
            step = chance.choice(able)
            lanes[program.steps[step].lane].pop(0)
            running.add(step)
            yield "begin", step
        else:
            step = chance.choice(sorted(running))
            running.discard(step)
            ended.add(step)
            yield "end", step


@given(programs(), st.integers(0, 1000))
def test_every_run_finds_what_it_reads(made, seed):
    _, units, stages, program = made
    assert sorted(unit for step in program.steps for unit in step.units) == list(range(len(units.units)))
    assert program.lanes <= max((len(stage.groups) for stage in stages), default=1)
    ended, begun = set(), []
    for what, at in runs_of(program, seed):
        step = program.steps[at]
        if what == "end":
            ended.update(step.units)
            continue
        begun.append(at)
        for unit in step.units:
            needs = set(bits(units.predecessors[unit]))
            assert needs <= ended
        if program.barriers:
            earlier = {unit for other in program.steps if other.stage < step.stage for unit in other.units}
            assert earlier <= ended
    assert len(begun) == len(program.steps)


@given(programs())
def test_no_wait_is_implied_by_the_others(made):
    *_, program = made
    for at, step in enumerate(program.steps):
        alone = [other for other in range(at) if program.steps[other].lane == step.lane][-1:]
        for wait in step.waits:
            assert program.steps[wait].lane != step.lane
            others = [*alone, *(other for other in step.waits if other != wait)]
            assert not any(program.before[other] >> wait & 1 or other == wait for other in others)


@given(programs(), st.integers(0, 1000))
def test_an_arena_that_knows_the_partial_order_is_never_corrupted(made, seed):
    graph, units, _, program = made
    conflicts = concurrent_conflicts(graph, program)
    # Planners of arenas know no empty records.
    sizes = [max(tensor.nbytes, 1) for tensor in graph.tensors]
    records = records_of_conflicts(sizes, conflicts)
    offsets = ARENAS["greedy_by_size"](records).solution
    check_conflicts(sizes, conflicts, offsets)
    owner = {}
    ops_of = [[op for unit in step.units for op in units.units[unit]] for step in program.steps]
    last = set(graph.outputs)

    def span(tensor):
        return range(offsets[tensor], offsets[tensor] + sizes[tensor])

    for tensor in graph.inputs:
        owner.update(dict.fromkeys(span(tensor), tensor))
    taken_part = {tensor for tensor, _ in conflicts} | {tensor for _, tensor in conflicts}
    most = 0
    for what, at in runs_of(program, seed):
        for op in ops_of[at]:
            if what == "begin":
                for tensor in graph.ops[op].outputs:
                    owner.update(dict.fromkeys(span(tensor), tensor))
            for tensor in graph.ops[op].inputs:
                if tensor in taken_part:
                    assert all(owner.get(byte) == tensor for byte in span(tensor))
        if what == "begin":
            live = {tensor for op in ops_of[at] for tensor in (*graph.ops[op].inputs, *graph.ops[op].outputs)}
            most = max(
                most, sum(graph.tensors[t].nbytes for t in live if t >= 0 and graph.tensors[t].role == "activation")
            )
    for tensor in last & taken_part:
        assert all(owner.get(byte) == tensor for byte in span(tensor))
    assert possibly_live_bytes(graph, program) >= most


def test_an_arena_for_the_order_of_issue_corrupts_a_concurrent_run():
    """Two branches of two operators: in the order of issue the first branch's tensor is dead when the second's is made;
    side by side both live. The records by conflicts keep them apart, those of the sequential order do not."""
    from downset.graph.core import Graph, Op, Tensor

    names = ["x", "a", "b", "c", "d", "e"]
    tensors = tuple(Tensor(name, (64,), "uint8", 64) for name in names)
    ops = (
        Op("A", "Conv", (0,), (1,)),
        Op("B", "Conv", (1,), (2,)),
        Op("C", "Conv", (0,), (3,)),
        Op("D", "Conv", (3,), (4,)),
        Op("E", "Concat", (2, 4), (5,)),
    )
    graph = Graph("two branches", tensors, ops, (0,), (5,)).check()
    units = group_units(graph)
    assert units.predecessors == unit_predecessors(graph, units.units)
    stages = (Stage(((0, 1), (2, 3))), Stage(((4,),)))
    program = lower(units, stages, barriers=False)
    conflicts = concurrent_conflicts(graph, program)
    assert {(1, 3), (1, 4), (2, 3)} <= set(conflicts)
    living = lifetimes(graph, range(5), "live")
    a, c = (living.records[living.record_of[tensor]] for tensor in (1, 3))
    assert a.stop <= c.start  # so a planner that trusts the order of issue may put them at one offset
    sequential = lower(units, tuple(Stage(((unit,),)) for unit in range(5)), barriers=False)
    assert (1, 3) not in concurrent_conflicts(graph, sequential)
    assert possibly_live_bytes(graph, sequential) == 3 * 64
    assert possibly_live_bytes(graph, program) == 5 * 64
    arenas = [concurrent_arena(graph, lanes, dtype="float32", alignment=64) for lanes in (sequential, program)]
    assert arenas[0].arena_bytes == 3 * 64 < arenas[1].arena_bytes <= 5 * 64


def test_a_merged_stage_is_one_step():
    from downset.stages.unit_graph import UnitGraph

    units = UnitGraph(((0,), (1,), (2,)), (0, 0, 0b11))
    program = lower(units, (Stage(((0,), (1,)), merged=True), Stage(((2,),))), barriers=True)
    assert [step.units for step in program.steps] == [(0, 1), (2,)]
    assert program.lanes == 1


def test_a_chain_stays_on_its_lane():
    problem = StageProblem((0, 0, 0b01, 0b10, 0b1100))
    from downset.stages.unit_graph import UnitGraph

    units = UnitGraph(tuple((unit,) for unit in range(5)), problem.predecessors)
    program = lower(units, greedy(problem, lambda _: 0.0).stages, barriers=False)
    lanes = [step.lane for step in program.steps]
    assert lanes[0] == lanes[2] != lanes[1] == lanes[3]
    assert [step.waits for step in program.steps[:4]] == [(), (), (), ()]
    assert program.steps[4].waits == ((3,) if lanes[4] == lanes[2] else (2,))


def test_units_that_would_wait_for_each_other_are_taken_apart():
    """Each concatenation comes after the sum of the other: two units of sum and concatenation would be a cycle."""
    tensors = tuple(Tensor(f"t{t}", (4,), "float32", 16, "activation") for t in range(5))
    ops = (
        Op("left", "Add", (0, 0), (1,)),
        Op("right", "Add", (0, 0), (2,)),
        Op("after right", "Concat", (0, 1), (3,), after=(1,)),
        Op("after left", "Concat", (0, 2), (4,), after=(0,)),
    )
    units = group_units(Graph("crossed", tensors, ops, (0,), (3, 4)))
    assert sorted(op for unit in units.units for op in unit) == [0, 1, 2, 3]
    assert len(units.units) == 3  # one of the two stays
    assert all(before < 1 << unit for unit, before in enumerate(units.predecessors))
