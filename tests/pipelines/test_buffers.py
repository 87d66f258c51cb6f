"""What devices of a pipeline hold: worked cases, runs that keep to their arenas, limits, and the check of it all."""

import itertools
import json
import random
import re
from collections import Counter
from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.clusters.model import Cluster, Device, Network
from downset.distributed.plan_run import run_plan
from downset.distributed.simulated_run import Conditions
from downset.distributed.simulator import simulate
from downset.errors import DownsetError, InfeasibleError, InvalidPlan, LimitReached
from downset.formats.reading import load
from downset.pipelines import buffers
from downset.pipelines.accounting import Accounting
from downset.pipelines.check import verify_pipeline
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.judging import timed_plan
from downset.pipelines.memory import MemoryCount
from downset.pipelines.network import split_problem
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import PIPELINERS
from downset.pipelines.prices import PricedChain
from downset.results.pipelines import DeviceMemory
from tests.cluster_toml import cluster_toml
from tests.command import output_of as run
from tests.effort import untimed
from tests.pipeline_generators import KINDS, random_chain, random_cluster, random_graph
from tests.spatial import Builder

pytestmark = pytest.mark.native


def saved(path, nodes, weights, given, made):
    given, made = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", given), ("y", made))
    )
    graph = helper.make_graph(nodes, path.stem, [given], [made], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def constant(name, *shape):
    return onnx.numpy_helper.from_array(np.full(shape, 0.01, np.float32), name)


@pytest.fixture(scope="module")
def sharing(tmp_path_factory):
    """Three 1x1 convolutions that share 1 MiB of weights."""
    nodes = [
        helper.make_node("Conv", [before, "w"], [after], name=after)
        for before, after in itertools.pairwise(["x", "t1", "t2", "y"])
    ]
    shape, path = [1, 512, 4, 4], tmp_path_factory.mktemp("sharing") / "sharing.onnx"
    return saved(path, nodes, [constant("w", 512, 512, 1, 1)], shape, shape)


@pytest.fixture(scope="module")
def pointwise(tmp_path_factory):
    """A 1x1 convolution, 64 to 64 channels, on 1x64x64x64."""
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv")
    weights = [constant("w", 64, 64, 1, 1), constant("b", 64)]
    path = tmp_path_factory.mktemp("pointwise") / "pointwise.onnx"
    return saved(path, [node], weights, [1, 64, 64, 64], [1, 64, 64, 64])


def cluster_file(folder, devices, **network):
    """`devices`: (name, memory)."""
    text = cluster_toml({name: {"mac_per_s": 1e9, "memory": memory} for name, memory in devices}, **network)
    (folder / "home.toml").write_text(text)
    return folder / "home.toml"


@pytest.mark.parametrize("comm", ["resources", "paper"])
def test_weights_that_operators_share_are_held_once(sharing, tmp_path, comm):
    home, image = cluster_file(tmp_path, [("d0", 1_200_000)]), 512 * 16 * 4
    # By resources the frame and the result are there with the two tensors in between; the paper has no buffers.
    arena = (4 if comm == "resources" else 2) * image
    one = Cluster((Device("d0", 1e9, memory_bytes=1_200_000),), Network("links", 1e6))
    plan = plan_pipeline(load(sharing), one, comm=comm)
    assert plan.memory == (DeviceMemory(0, 512 * 512 * 4, 0, arena),)
    verify_pipeline(load(sharing), plan)
    text = run("split", sharing, "--cluster", home, "--comm", comm, "-q")
    assert re.search("│ +1 MB │", text)
    assert f"{plan.memory[0].total_bytes / (1 << 20):.3g} MB" in text
    needed = 512 * 512 * 4 + 2 * image  # one convolution after another, each a block of its own
    run("split", sharing, "--cluster", cluster_file(tmp_path, [("d0", needed)]), "--comm", comm, "-q")
    for memory, code in ((needed - 1, 6), (512 * 512 * 4 - 1, 3)):
        with pytest.raises(DownsetError) as caught:
            run("split", sharing, "--cluster", cluster_file(tmp_path, [("d0", memory)]), "--comm", comm, "-q")
        assert caught.value.exit_code == code, str(caught.value)


def test_what_runtimes_take_is_part_of_the_memory(sharing):
    needed = 512 * 512 * 4 + 2 * 512 * 16 * 4
    for memory, fits in ((needed + 1000, True), (needed + 999, False)):
        device = Device("d0", 1e9, memory_bytes=memory, runtime_bytes=1000)
        if fits:
            (held,) = plan_pipeline(load(sharing), Cluster((device,), Network("links", 1e6))).memory
            assert (held.overhead_bytes, held.total_bytes) == (1000, memory)
        else:
            with pytest.raises(LimitReached, match="fits the devices' memory"):
                plan_pipeline(load(sharing), Cluster((device,), Network("links", 1e6)))


def four_workers(memory=None, **network):
    """Four that work, one that gives frames and one that takes results."""
    devices = [Device(f"w{k}", 4.2e7, memory_bytes=memory) for k in range(4)]
    return Cluster((*devices, Device("s", 1e9), Device("t", 1e9)), Network("links", 6.25e6, **network))


def counted(graph, cluster, *, leader, window):
    problem = PricedChain(split_problem(graph, [range(len(graph.ops))]))
    accounting = Accounting(source=4, sink=5, window=window)
    rows = problem.segment(0, 1).rows
    tiles = tuple(Tile(k, rows * k // 4, rows * (k + 1) // 4) for k in range(4))
    draft = (StageDraft(leader, (Split(0, 1, tiles, halo=leader < 0),)),)
    found = timed_plan(problem, cluster, draft, accounting)
    return MemoryCount(problem, graph, cluster, accounting).counted(found)


def test_one_convolution_over_four_workers(pointwise, tmp_path):
    """Directly handed over 262,144 B in, as much out and 16,640 B of weights; through a leader 1,048,576 B gathered."""
    graph, strip, whole, weights = load(pointwise), 262_144, 1_048_576, 16_640
    direct = counted(graph, four_workers(600_000), leader=-1, window=1)
    assert [held.total_bytes for held in direct.memory] == [540_928] * 4 + [whole] * 2
    assert {held.arena_bytes for held in direct.memory[:4]} == {2 * strip}
    assert not direct.broken(four_workers(600_000))
    led = counted(graph, four_workers(600_000), leader=0, window=1)
    assert led.memory[0] == DeviceMemory(0, weights, 0, 2 * whole)
    assert [held.device for held in led.broken(four_workers(600_000))] == [0]
    # Frame behind frame a worker receives the next one while it works, which takes a second buffer.
    quick = counted(graph, four_workers(overlap=True), leader=-1, window=None)
    assert quick.timed.period_s < direct.timed.period_s
    assert [held.total_bytes for held in quick.memory[:4]] == [803_072] * 4
    assert 803_072 == 3 * strip + weights > 600_000
    home = cluster_file(tmp_path, [*((f"w{k}", 600_000) for k in range(4)), ("s", whole), ("t", whole)])
    with pytest.raises(DownsetError, match="no pipeline was found that fits") as caught:
        run("split", pointwise, "--cluster", home, "--source", "s", "--sink", "t", "--window", "1", "-q")
    assert caught.value.exit_code == 6  # who knows what other ways there are
    ends = (
        "--source",
        "s",
        "--sink",
        "t",
        "--topology",
        "direct",
        "--time-limit",
        "1h",
        "--work-limit",
        "20000",
        "--json",
        "-q",
    )
    found = json.loads(run("split", pointwise, "--cluster", home, *ends))
    assert [one["memory_bytes"] for one in found["devices"] if one["device"] not in "st"] == [540_928] * 4
    assert [one["arena_bytes"] for one in found["devices"] if one["device"] in "st"] == [whole] * 2
    with pytest.raises(DownsetError, match="a frame is 1,048,576 bytes, more than any device has room for") as caught:
        run("split", pointwise, "--cluster", cluster_file(tmp_path, [(f"w{k}", 600_000) for k in range(4)]), "-q")
    assert caught.value.exit_code == 3


def test_fewer_frames_inside_where_more_do_not_fit(pointwise):
    """Two equal devices in a row: what a second frame inside takes is given up for memory, and the period with it."""
    build = Builder(False, 0)
    image = before = build.tensor((16, 32, 32))
    for _ in range(4):
        before = build.op(
            "Conv", [before, build.weights(16, 16, 3, 3)], (16, 32, 32), kernel_shape=[3, 3], pads=[1] * 4
        )
    graph = build.graph((image,))
    free = plan_pipeline(graph, Cluster((Device("a", 1e8), Device("b", 1e8)), Network("links", 2e6, overlap=True)))
    assert free.schedule.window > 1
    most = max(held.total_bytes for held in free.memory)
    devices = tuple(Device(name, 1e8, memory_bytes=most - 1) for name in "ab")
    held = plan_pipeline(graph, Cluster(devices, free.cluster.network))
    assert max(one.total_bytes for one in held.memory) < most
    assert held.period_s >= free.period_s
    assert not held.evidence.proven


def network(draw):
    """Convolutions in a row, some with the weights of others, and sums of branches."""
    build = Builder(False, 0)
    rows, channels = draw.choice([8, 12]), draw.choice([4, 8])
    tips = [build.tensor((channels, rows, 8))]
    kernels = {1: build.weights(channels, channels, 1, 1), 3: build.weights(channels, channels, 3, 3)}
    for _ in range(draw.randint(2, 5)):
        extent = draw.choice([1, 3])
        kernel = kernels[extent] if draw.random() < 0.5 else build.weights(channels, channels, extent, extent)
        window = {"kernel_shape": [extent] * 2, "pads": [extent // 2] * 4}
        tips.append(build.op("Conv", [draw.choice(tips[-2:]), kernel], (channels, rows, 8), **window))
        if draw.random() < 0.4:
            tips.append(build.op("Add", tips[-2:], (channels, rows, 8)))
    return build.graph((0,))


def cluster_of(draw, count):
    shape = draw.choice(["links", "shared"])
    devices = tuple(Device(f"d{k}", draw.choice([1e6, 2e6, 3e6])) for k in range(count))
    return Cluster(devices, Network(shape, draw.choice([1e5, 1e6]), overlap=draw.choice([False, True])))


def handed_over(problem, cluster):
    """Every device of a random half works in a stage of two, the others in another, without leaders."""
    draw = random.Random(problem.cuts * len(cluster.devices))
    devices = draw.sample(range(len(cluster.devices)), len(cluster.devices))
    cuts = [0, problem.cuts]
    if problem.cuts > 1 and len(devices) > 1:
        cuts.insert(1, draw.randrange(1, problem.cuts))
    members = [devices[len(devices) // 2 :], devices[: len(devices) // 2]]
    stages = []
    for (start, stop), own in zip(itertools.pairwise(cuts), members, strict=False):
        rows = problem.segment(start, stop).rows
        edges = [rows * place // len(own) for place in range(len(own) + 1)]
        parts = tuple(Tile(d, a, b) for d, (a, b) in zip(own, itertools.pairwise(edges), strict=True) if a < b)
        stages.append(StageDraft(-1, (Split(start, stop, parts, halo=True),)))
    return FoundPipeline(tuple(stages), 0.0)


def graph_plans(count, methods=(*PIPELINERS, handed_over, handed_over)):
    for seed in range(count):
        draw = random.Random(f"held/{seed}")
        graph, cluster = network(draw), cluster_of(draw, draw.randint(1, 3))
        ends = {}
        if draw.random() < 0.4:
            ends = {"source": draw.choice(cluster.devices).name, "sink": draw.choice(cluster.devices).name}
        method, window = draw.choice(methods), draw.choice([None, None, 1, 2])
        topology = "direct" if method is handed_over else "leader"
        yield (
            draw,
            graph,
            plan_pipeline(graph, cluster, method=method, window=window, topology=topology, **untimed(200_000), **ends),
        )


def ran(plan, *, frames, jitter):
    """When every task of every frame begins and ends."""
    times = {}

    def observe(frame, task, begin, end):
        times[frame, task] = (begin, end)

    conditions = Conditions(len(plan.cluster.devices), jitter=jitter, seed=0, disturbances=())
    run_plan(plan, conditions, frames=frames, observe=observe)
    return times


def spans(plan, times, frames):
    """By buffer: when each frame has its slot, and which bytes that is."""
    for buffer in plan.schedule.buffers:
        own = []
        for frame in range(frames):
            taken = min(times[frame, task][0] for task in buffer.writers)
            given = max(times[frame, task][1] for task in (*buffer.writers, *buffer.readers))
            at = buffer.offset + frame % buffer.slots * buffer.nbytes
            own.append((taken, given, at, at + buffer.nbytes))
        yield buffer, own


def test_runs_keep_to_their_arenas_and_need_them():
    """Under any delays no two buffers have a byte at once, no device more bytes than its arena; and of the slots none
    can be left out."""
    shared = fewer = 0
    for draw, graph, plan in graph_plans(40):
        verify_pipeline(graph, plan)
        arenas = Counter()
        for buffer in plan.schedule.buffers:
            arenas[buffer.device] = max(arenas[buffer.device], buffer.offset + buffer.slots * buffer.nbytes)
        assert {held.device: held.arena_bytes for held in plan.memory if held.arena_bytes} == arenas
        assert {held.device: held.weights_bytes for held in plan.memory} == weights(graph, plan)
        times = ran(plan, frames=14, jitter=draw.choice([0.0, 0.5, 5.0]))
        taken = [(buffer.device, *span) for buffer, own in spans(plan, times, 14) for span in own]
        for one, two in itertools.combinations(taken, 2):
            together = one[0] == two[0] and max(one[1], two[1]) < min(one[2], two[2])
            assert not together or max(one[3], two[3]) >= min(one[4], two[4])
        shared += sum(one.slots * one.nbytes for one in plan.schedule.buffers) > sum(arenas.values())
        several = [place for place, buffer in enumerate(plan.schedule.buffers) if buffer.slots > 1]
        if several and plan.period_s:
            place = draw.choice(several)
            changed = list(plan.schedule.buffers)
            changed[place] = replace(changed[place], slots=changed[place].slots - 1)
            less = replace(plan, schedule=replace(plan.schedule, buffers=tuple(changed)))
            try:
                assert simulate(less, frames=200).sustained_period_s > plan.period_s * (1 + 1e-6)
            except InvalidPlan as stuck:
                assert "deadlock" in str(stuck)
            fewer += 1
    assert shared > 5
    assert fewer > 2


def test_buffers_of_one_device_that_are_many_lie_in_blocks(monkeypatch):
    monkeypatch.setattr(buffers, "_MANY", 0)
    together = 0
    for _, graph, plan in graph_plans(6):
        verify_pipeline(graph, plan)
        ends = {}
        for buffer in plan.schedule.buffers:
            alike = (buffer.device, buffer.writers, buffer.readers)
            assert buffer.offset == ends.get(alike, buffer.offset)
            together += alike in ends
            ends[alike] = buffer.offset + buffer.slots * buffer.nbytes
    assert together


def weights(graph, plan):
    """By device of the plan, operator by operator: all weights of its blocks (every operator here has rows)."""
    found = {held.device: set() for held in plan.memory}
    for block in (block for stage in plan.stages for block in stage.blocks):
        for strip in block.strips:
            found[strip.device] |= {t for op in block.ops for t in graph.ops[op].inputs}
    constants = {t: one.nbytes for t, one in enumerate(graph.tensors) if one.role == "constant"}
    return {device: sum(constants.get(tensor, 0) for tensor in own) for device, own in found.items()}


def test_a_lone_frame_takes_the_latency_of_the_plan():
    """Of every method, on every kind of network, with whatever windows, slots, sources and sinks."""
    behind = 0
    instances = []
    for seed, kind in itertools.product(range(13), KINDS):
        draw = random.Random(f"lone/{kind}/{seed}")
        problem = random_chain(draw, rows=9) if seed % 2 else random_graph(draw, units=4, rows=8)
        cluster, ends = random_cluster(draw, kind, devices=4), {}
        if draw.random() < 0.3:
            ends = {"source": draw.choice(cluster.devices).name, "sink": draw.choice(cluster.devices).name}
        method, window = draw.choice(list(PIPELINERS)), draw.choice([None, None, 1, 3])
        instances.append(plan_pipeline(problem, cluster, method=method, window=window, **untimed(200_000), **ends))
    for plan in [*instances, *(plan for _, _, plan in graph_plans(12))]:
        found = simulate(plan, frames=3, arrival_s=max(plan.latency_s, 1e-6) * 1000)
        assert found.latency_s[-1] == pytest.approx(plan.latency_s, rel=1e-6)
        behind += any(len({turn.behind for turn in order.turns}) > 1 for order in plan.schedule.orders)
    assert behind > 8


def test_plans_within_a_latency_are_kept_with_their_buffers():
    checked = 0
    for _, graph, plan in graph_plans(10, methods=("exact",)):
        for limit in (plan.latency_s, plan.latency_s * 0.8):
            try:
                held = plan_pipeline(
                    graph, plan.cluster, max_latency_s=limit, source=plan.source, sink=plan.sink, **untimed(200_000)
                )
            except (InfeasibleError, LimitReached) as error:
                assert limit < plan.latency_s
                # Refused for good where all devices together take longer, for MACs and for the bytes that others move.
                macs, speeds = sum(s.macs - s.redundant_macs for s in plan.stages), plan.cluster.devices
                if limit < macs / sum(one.speed for one in speeds):
                    assert isinstance(error, InfeasibleError)
                assert isinstance(error, InfeasibleError) == (limit < plan.floor_s)
                continue
            verify_pipeline(graph, held)
            assert held.latency_s <= limit * (1 + 1e-9)
            checked += 1
    assert checked > 10


def period_or_none(graph, cluster):
    try:
        plan = plan_pipeline(graph, cluster, time_limit_s=60.0)
    except LimitReached:
        return float("inf")
    except InfeasibleError:
        rooms = [device.memory_bytes for device in cluster.devices]
        whole = sum(one.nbytes for one in graph.tensors if one.role == "constant")
        largest = max(one.nbytes for one in graph.tensors)
        assert whole > sum(rooms) or largest > max(rooms)
        return float("inf")
    assert all(held.total_bytes <= plan.cluster.devices[held.device].memory_bytes for held in plan.memory)
    verify_pipeline(graph, plan)
    return plan.period_s


def test_more_memory_never_lengthens_the_period():
    tight = fits = 0
    for seed in range(6):
        draw = random.Random(f"memory/{seed}")
        graph, cluster = network(draw), cluster_of(draw, 3)
        free = plan_pipeline(graph, cluster, time_limit_s=60.0)
        most = max(held.total_bytes for held in free.memory)
        rooms = [int(most * draw.choice([0.4, 0.6, 0.8, 1.0, 1.2])) for _ in cluster.devices]
        periods = []
        for _ in range(3):
            devices = tuple(replace(d, memory_bytes=m) for d, m in zip(cluster.devices, rooms, strict=True))
            periods.append(period_or_none(graph, Cluster(devices, cluster.network)))
            place = draw.randrange(3)
            rooms[place] = int(rooms[place] * draw.choice([1.2, 1.6, 2.5]))
        periods.append(free.period_s)
        assert all(more <= less * (1 + 1e-9) for less, more in itertools.pairwise(periods)), seed
        tight += free.period_s * (1 + 1e-6) < periods[0]
        fits += periods[0] < float("inf")
    assert tight > 1
    assert fits > 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda b: b[1:], "has no buffer for"),
        (lambda b: [*b, replace(b[0], offset=10**6)], "no task for its buffer"),
        (lambda b: [replace(b[0], nbytes=b[0].nbytes - 1), *b[1:]], "its rows are"),
        (lambda b: [replace(b[0], start=b[0].start + 1), *b[1:]], "but it needs"),
        (lambda b: [replace(b[0], readers=b[0].readers[:-1] or (0,)), *b[1:]], "must be written by tasks|is not all"),
        (lambda b: [replace(one, offset=0) for one in b], "share bytes"),
    ],
)
def test_the_check_knows_which_buffers_a_plan_needs(change, says):
    graph = network(random.Random(3))
    plan = plan_pipeline(
        graph, Cluster((Device("a", 1e6), Device("b", 2e6)), Network("links", 1e6)), method="layerwise"
    )
    verify_pipeline(graph, plan)
    buffers = tuple(change(list(plan.schedule.buffers)))
    ends = Counter()
    for buffer in buffers:
        ends[buffer.device] = max(ends[buffer.device], buffer.offset + buffer.slots * buffer.nbytes)
    memory = tuple(replace(held, arena_bytes=ends[held.device]) for held in plan.memory)
    with pytest.raises(InvalidPlan, match=says):
        verify_pipeline(graph, replace(plan, schedule=replace(plan.schedule, buffers=buffers), memory=memory))


def test_the_check_counts_weights_by_itself():
    graph = network(random.Random(3))
    plan = plan_pipeline(
        graph, Cluster((Device("a", 1e6), Device("b", 2e6)), Network("links", 1e6)), method="layerwise"
    )
    for wrong in (-4, 4):
        held = plan.memory[0]
        memory = (replace(held, weights_bytes=held.weights_bytes + wrong), *plan.memory[1:])
        with pytest.raises(InvalidPlan, match="bytes of weights"):
            verify_pipeline(graph, replace(plan, memory=memory))
    with pytest.raises(InvalidPlan, match=r"memory must be stated for|is not in the plan's memory"):
        verify_pipeline(graph, replace(plan, memory=plan.memory[1:]))
