"""Files with moves between two memories: written from plans, run by TFLite Micro with a hole between the memories,
proven the same, and counted by a machine that reads the file alone."""

import random
from dataclasses import replace

import numpy as np
import pytest
from ai_edge_litert.tools import flatbuffer_utils

from downset.arenas.plan import plan_arena
from downset.equivalence.prove import prove
from downset.errors import InvalidPlan, LoadError, UnsupportedError
from downset.fitting.fit import fit
from downset.fitting.memories_of_file import PlacedStorages, plan_of_file
from downset.formats.reading import load
from downset.formats.tflite.read import two_memories
from downset.formats.tflite.read_moves import write_without_moves
from downset.formats.tflite.write import export_in_memories, export_tflite
from downset.memories.of_graph import MemoriesRequest, memories_form
from downset.memories.program import program_of
from downset.memory.liveness import lifetimes
from downset.memory.models import MEMORY_MODELS, memory_model
from downset.results.memories import MemoriesPlan, Move, Residence
from downset.results.plans import Evidence
from downset.results.two_memories import TwoMemories, read_two_memories
from downset.runtimes.compare import compare
from tests.effort import cases
from tests.memory_plans import random_plan
from tests.oracles_memories import ran
from tests.tflite_net import TfliteNet

FAR = TwoMemories(1 << 15, 1 << 16, 1 << 29, 512, 256, "reference")
BELOW = replace(FAR, distance=-(1 << 24))
KEPT_SLOW = replace(FAR, persistent_in="slow")


def network(path, numbers, dtype="int8"):
    """A random network of convolutions, sums and concatenations, with tensors that are read late."""
    net = TfliteNet(numbers.randrange(1 << 16), size=numbers.choice([3, 5, 8]), dtype=dtype)
    made = [net.input(4), *([net.input(4)] if numbers.random() < 0.3 else [])]
    for _ in range(numbers.randint(2, 9)):
        x = numbers.choice(made[-4:])
        alike = [one for one in made if net.channels(one) == net.channels(x) and one != x]
        kind = numbers.choice(["conv", "depthwise", "add", "concat"])
        if kind == "add" and alike:
            made.append(net.op("ADD", (x, numbers.choice(alike)), net.channels(x), "AddOptions"))
        elif kind == "concat" and len(made) > 1 and net.channels(x) < 16:
            made.append(net.concat([x, numbers.choice([one for one in made if one != x])]))
        elif kind == "depthwise":
            made.append(net.depthwise(x))
        else:
            made.append(net.conv(x, numbers.choice([4, 8]), numbers.choice([1, 3])))
    read = {int(one) for operator in net.main.operators for one in operator.inputs}
    inputs = {int(one) for one in net.main.inputs}
    ends = [one for one in made if one not in read and one not in inputs]
    more = [one for one in made if one in read and one not in inputs and numbers.random() < 0.1]
    return net.save(path, [*ends, *more])


@pytest.mark.parametrize("seed", range(cases(12)))
def test_a_plan_is_a_file_that_computes_the_same_with_a_hole_between_the_memories(seed, tmp_path):
    numbers = random.Random(seed)
    original = network(tmp_path / "m.tflite", numbers, numbers.choice(["int8", "float32"]))
    graph = load(original)
    plan = random_plan(graph, numbers, fast=numbers.choice([0.3, 0.6, 0.9]))
    program = program_of(graph, plan)
    assert program.moves == len(plan.moves)
    moved = tmp_path / "moved.tflite"
    export_in_memories(moved, graph, program, numbers.choice([FAR, BELOW, KEPT_SLOW]))
    found = ran(moved)
    assert (found.moved, found.moves) == (plan.moved_bytes, len(plan.moves))
    memories = two_memories(moved)
    for home, first in (
        (True, memories.fast_first - memories.fast_base),
        (False, memories.slow_first - memories.slow_base),
    ):
        ends = [one.offset + graph.tensors[one.tensor].nbytes for one in program.copies if one.fast == home]
        assert found.tops[home] == max([-first, *ends]) + first
    proof = prove(original, moved)
    assert proof.proven, proof.reason
    assert proof.placed
    in_tflm = compare(original, moved, runtime="tflm")
    assert in_tflm.equal
    assert in_tflm.varies
    check_read_back(original, moved, found)


def check_read_back(original, moved, found):
    """The file without its moves is the original, and its places are a plan that moves no more."""
    without = moved.with_name("without.tflite")
    placed = write_without_moves(moved, without)
    graph = load(without)
    assert sorted(one.name for one in graph.tensors) == sorted(one.name for one in load(original).tensors)
    assert prove(original, without).proven
    request = MemoriesRequest(placed.memories.fast_capacity, memory_model("tflm"))
    plan = plan_of_file(PlacedStorages(graph, memory_model("tflm"), placed), memories_form(graph, request))
    assert plan.moved_bytes <= found.moved and plan.direct_bytes == found.direct
    again = moved.with_name("again.tflite")
    export_in_memories(again, graph, program_of(graph, plan), placed.memories)
    assert (ran(again).moved, ran(again).direct) == (plan.moved_bytes, plan.direct_bytes)


def moved_chain(tmp_path, memories=FAR):
    """(original, file with one store and one load, the plan of it): x -> a -> b -> c, a + c."""
    net = TfliteNet(0, size=8, dtype="int8")
    x = net.input(4)
    a = net.conv(x, 8, 3)
    b = net.conv(a, 8, 3)
    c = net.conv(b, 8, 1)
    original = net.save(tmp_path / "m.tflite", [net.op("ADD", (c, a), 8, "AddOptions")])
    graph = load(original)
    residences = [
        Residence(*one) for one in ((0, 0, 1, 512), (1, 0, 2, 0), (2, 1, 3, 512), (3, 2, 4, 0), (1, 3, 4, 512))
    ]
    residences.sort(key=lambda one: (one.start, one.storage))
    moves = (Move(1, 2, False, 512), Move(1, 3, True, 512))
    numbered = iter(range(5))
    storage_of = tuple(next(numbered) if one.role == "activation" else -1 for one in graph.tensors)
    found = Evidence("stated", 1536, 0, proven=False)
    plan = MemoriesPlan(
        (0, 1, 2, 3), tuple(residences), moves, ((1, 0), (4, 512)), 1024, 1024, 1024, 512, found, 1536, 0, storage_of
    )
    moved = tmp_path / "moved.tflite"
    export_in_memories(moved, graph, program_of(graph, plan), memories)
    return original, moved, plan


def rewritten(path, target, change):
    """A copy of the file in which `change` changed the tables and the offsets."""
    model = flatbuffer_utils.read_model(str(path))
    (entry,) = (one for one in model.metadata if one.name == b"OfflineMemoryAllocation")
    offsets = np.frombuffer(bytes(model.buffers[entry.buffer].data), np.int32).copy()
    change(model, offsets)
    model.buffers[entry.buffer].data = np.frombuffer(offsets.tobytes(), np.uint8)
    flatbuffer_utils.write_model(model, str(target))
    return target


def test_bytes_moved_and_accessed_directly_are_those_of_the_plan(tmp_path):
    _, moved, plan = moved_chain(tmp_path)
    found = ran(moved)
    assert (found.moved, found.direct, found.moves) == (plan.moved_bytes, plan.direct_bytes, 2)


def test_the_machine_sees_a_copy_that_is_overwritten_before_it_is_read(tmp_path):
    _, moved, _ = moved_chain(tmp_path)

    def over(model, offsets):
        model.subgraphs[0].operators[2], model.subgraphs[0].operators[1] = model.subgraphs[0].operators[1:3]
        last = int(model.subgraphs[0].operators[-1].inputs[1])
        offsets[3 + last] = offsets[3 + int(model.subgraphs[0].operators[-1].inputs[0])]

    with pytest.raises(AssertionError, match="overwritten"):
        ran(rewritten(moved, tmp_path / "bad.tflite", over))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda model, offsets: offsets.__setitem__(3 + int(model.subgraphs[0].outputs[0]), 1 << 20),
            "outside the room",
        ),
        (lambda model, offsets: offsets.__setitem__(3 + int(model.subgraphs[0].outputs[0]), -1), "no offset"),
        (lambda model, offsets: offsets.__setitem__(3 + int(model.subgraphs[0].inputs[0]), 0), "outside the room"),
    ],
    ids=["in the hole", "placed by the runtime", "over the scratch"],
)
def test_a_tensor_that_does_not_lie_in_its_memories_is_an_invalid_plan(change, says, tmp_path):
    original, moved, _ = moved_chain(tmp_path)
    bad = rewritten(moved, tmp_path / "bad.tflite", change)
    with pytest.raises(InvalidPlan, match=says):
        prove(original, bad)


@pytest.mark.parametrize("memories", [KEPT_SLOW, replace(KEPT_SLOW, distance=BELOW.distance)])
def test_a_tensor_over_the_persistent_part_is_an_invalid_plan(memories, tmp_path):
    original, moved, _ = moved_chain(tmp_path, memories)
    assert prove(original, moved).proven
    end = memories.slow_base + memories.slow_bytes - memories.persistent_bytes

    def at(offset):
        change = lambda model, offsets: offsets.__setitem__(3 + int(model.subgraphs[0].outputs[0]), offset)  # noqa: E731
        return rewritten(moved, tmp_path / "bad.tflite", change)

    assert prove(original, at(end - 512)).proven
    ran(at(end - 512))
    with pytest.raises(InvalidPlan, match="outside the room"):
        prove(original, at(end - 496))
    with pytest.raises(ValueError, match="unpack"):
        ran(at(end - 496))


def test_a_move_of_another_tensor_is_not_proven(tmp_path):
    original, moved, _ = moved_chain(tmp_path)

    def wrong(model, offsets):
        del offsets
        main = model.subgraphs[0]
        store = main.operators[2]
        store.inputs = np.asarray([int(main.operators[1].outputs[0])], np.int32)

    bad = rewritten(moved, tmp_path / "bad.tflite", wrong)
    assert not prove(original, bad).proven
    assert not compare(original, bad, runtime="tflm").equal


def test_a_reshape_to_another_scale_is_no_move(tmp_path):
    original, moved, _ = moved_chain(tmp_path)

    def scaled(model, offsets):
        del offsets
        main = model.subgraphs[0]
        main.tensors[int(main.operators[2].outputs[0])].quantization.scale = np.asarray([0.25], np.float32)

    assert not prove(original, rewritten(moved, tmp_path / "bad.tflite", scaled)).proven


def test_a_reshape_to_another_shape_is_no_move(tmp_path):
    original, moved, _ = moved_chain(tmp_path)

    def flat(model, offsets):
        del offsets
        main = model.subgraphs[0]
        tensor = int(main.operators[2].outputs[0])
        main.tensors[tensor].shape = np.asarray([1, 4, 16, 8], np.int32)
        main.operators[2].builtinOptions.newShape = np.asarray([1, 4, 16, 8], np.int32)

    assert not prove(original, rewritten(moved, tmp_path / "bad.tflite", flat)).proven


@pytest.mark.parametrize("memory", sorted(MEMORY_MODELS))
def test_no_memory_model_lets_the_ends_of_a_move_share_bytes(memory, tmp_path):
    graph = load(moved_chain(tmp_path)[1])
    moves = [op for op in graph.ops if op.attrs.get("move")]
    assert len(moves) == 2
    living = lifetimes(graph, range(len(graph.ops)), memory)
    for op in moves:
        records = [living.record_of[tensor] for tensor in (op.inputs[0], op.outputs[0])]
        assert records[0] != records[1] or records == [-1, -1]
        assert {*records} not in [{one.read, one.written} for one in living.overlaps]


def test_fit_and_export_say_that_they_keep_no_moves(tmp_path):
    _, moved, _ = moved_chain(tmp_path)
    with pytest.raises(UnsupportedError, match=r"has moves between two memories.*original"):
        fit(moved, output=tmp_path / "o.tflite", time_limit_s=1)
    graph = load(moved)
    with pytest.raises(UnsupportedError, match=r"has moves between two memories.*original"):
        export_tflite(tmp_path / "o.tflite", graph, range(len(graph.ops)))
    assert not (tmp_path / "o.tflite").exists()


def test_a_plan_of_another_network_or_without_copies_is_invalid(tmp_path):
    original, _, plan = moved_chain(tmp_path)
    graph = load(original)
    with pytest.raises(InvalidPlan, match="tensors"):
        program_of(graph, replace(plan, storage_of=plan.storage_of[:-1]))
    with pytest.raises(InvalidPlan, match="where it is not"):
        program_of(graph, replace(plan, moves=plan.moves[:1]))
    with pytest.raises(InvalidPlan, match="where it does not lie"):
        program_of(graph, replace(plan, moves=plan.moves[1:]))
    with pytest.raises(InvalidPlan, match="states no offset"):
        program_of(graph, replace(plan, slow_offsets=()))
    with pytest.raises(InvalidPlan, match="once"):
        program_of(graph, replace(plan, order=(0, 1, 2)))


WRONG_SIDE = FAR.to_json().replace('"format": 1', '"format": 1, "persistent_in": "slow"')


@pytest.mark.parametrize(
    "text", ["", "{}", '{"format": 2}', '{"format": 1, "fast_bytes": "many"}', "[1]", "1", WRONG_SIDE]
)
def test_damaged_records_are_one_line(text):
    with pytest.raises(LoadError, match="not a record of two memories"):
        read_two_memories(text)


def test_the_record_is_read_as_it_was_written():
    for memories in (BELOW, KEPT_SLOW):
        assert read_two_memories(memories.to_json()) == memories
    assert "persistent_in" not in BELOW.to_json(), "earlier versions read a record of fast memory"


def test_an_arena_of_a_file_with_moves_counts_each_copy(tmp_path):
    original, moved, _ = moved_chain(tmp_path)
    arenas = [plan_arena(graph, range(len(graph.ops)), memory="tflm") for graph in map(load, (original, moved))]
    assert len(arenas[1].records) == len(arenas[0].records) + 2
