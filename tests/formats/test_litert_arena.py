"""LiteRT's arena, held against where LiteRT itself puts its tensors: the memory model, its planner, and what kernels
ask for in addition to the tensors. And files that a target's runtime does not run."""

import json
from dataclasses import replace

import numpy as np
import pytest

from downset.arenas.litert_greedy import litert_greedy
from downset.arenas.plan import plan_arena
from downset.errors import InfeasibleError, LimitReached, UnsupportedError, UsageError
from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.formats.tflite.write import export_tflite
from downset.graph.core import Graph, Op, Tensor
from downset.memory.kernel_needs import kernel_needs
from downset.memory.liveness import lifetimes, order_problem, peak_bytes
from downset.memory.records import Record
from downset.orders.plan import plan_order
from downset.process.isolation import isolated
from downset.reports.fit_document import fit_document
from downset.reports.fit_sentences import gain_line
from downset.runtimes import litert
from tests.clocks import unlimited
from tests.effort import cases
from tests.models import installed_model
from tests.tflite_net import TfliteNet, with_unknown_operator

ROUNDING = 63  # the model rounds the topmost tensor up, LiteRT only where the next one begins


def block(net, x, channels):
    """A pointwise and a depthwise convolution on one side, sums, a product and reshapes on the other."""
    left = net.depthwise(net.conv(x, channels), relu=True)
    right = net.conv(x, channels)
    for name in ("ADD", "SUB", "MUL"):  # the first input is made last, or first
        pair = (net.conv(x, channels), right)[:: 1 if channels % 2 else -1]
        right = net.op(name, pair, channels, f"{name.title()}Options")
    shape = net.tensor((4,), "int32", [1, net.size, net.size, channels])
    return net.concat([net.op("RESHAPE", (left, shape), channels), right])


@pytest.fixture
def written(tmp_path):
    net = TfliteNet(3, size=6)
    x = net.input(4)
    for channels in (3, 17, 8):
        x = block(net, x, channels)
    return net.save(tmp_path / "net.tflite", [net.conv(x, 2)])


def modelled(graph, steps):
    return plan_arena(graph, steps, method="litert_greedy", memory="litert").arena_bytes


def orders(graph):
    return [
        tuple(range(len(graph.ops))),
        *(plan_order(graph, method=m, memory="litert").steps for m in ("kahn", "dfs", "optimal")),
    ]


def assert_as_placed(path, tmp_path):
    graph, written = load(path), tmp_path / "reordered.tflite"
    for steps in orders(graph):
        export_tflite(written, graph, steps)
        taken = litert.measure(written)
        assert taken <= modelled(graph, steps) <= taken + ROUNDING


def assert_every_place(path):
    """So that no total is right by chance: a sum that lies over its other input moves all that comes later."""
    graph = load(path)
    arena = plan_arena(graph, range(len(graph.ops)), method="litert_greedy", memory="litert")
    tensors, offsets = zip(*sorted(arena.tensor_offsets.items()), strict=True)
    numbers = [graph.source.tensor_index[tensor] for tensor in tensors] if graph.source.tensor_index else list(tensors)
    arguments = {"path": str(path), "shapes": {}, "tensors": numbers}
    places, _ = isolated("downset.runtimes.litert", "places_here", arguments)
    assert len({*(places["planned"][:, 0] - offsets)}) == 1


def test_a_network_whose_kernels_need_nothing_more_takes_what_the_model_says(written, tmp_path):
    assert_as_placed(written, tmp_path)


def test_tensors_lie_where_the_model_says(written):
    assert_every_place(written)


def drawn(seed, kinds, dtype):
    """A random network of these operators. With "sizes" its tensors do not take whole units of LiteRT's alignment: it
    rounds up where they begin, and compares their sizes and the gaps between them as they are."""
    random, net = np.random.default_rng(seed), TfliteNet(seed, size=6, dtype=dtype)
    channels = 37 if "sizes" in kinds else 64
    made = [net.conv(net.conv(net.input(16), channels), channels)]
    for kind in random.choice(kinds, random.integers(4, 11)):
        one, other = (made[int(random.integers(max(len(made) - 4, 0), len(made)))] for _ in range(2))
        if kind in ("ADD", "MUL", "SUB", "DIV"):
            made.append(net.op(kind, (one, other), channels, f"{kind.title()}Options"))
        elif kind == "SOFTMAX":
            made.append(net.op(kind, (one,), channels, "SoftmaxOptions", beta=1.0))
        elif kind == "RESHAPE":
            shape = net.tensor((4,), "int32", [1, net.size, net.size, channels])
            made.append(net.op(kind, (one, shape), channels))
        elif kind == "MEAN":
            axes = net.tensor((2,), "int32", [1, 2])
            mean = net.op(kind, (one, axes), channels, "ReducerOptions", keepDims=True)
            net.main.tensors[mean].shape = np.asarray([1, 1, 1, channels], np.int32)
            made.append(net.op("ADD", (other, mean), channels, "AddOptions"))
        elif kind == "SPLIT":
            axis, wide = net.tensor((), "int32", 3), net.conv(one, 4 * channels)
            parts = [net.op(kind, (axis, wide), channels, "SplitOptions", numSplits=4)]
            parts += [net.image(channels) for _ in range(3)]
            net.main.operators[-1].outputs = np.asarray(parts, np.int32)
            made += [net.conv(parts[part], channels) for part in random.permutation(4)]
        else:
            wide = net.conv(one, int(random.integers(30, 70)), 3) if kind == "sizes" else one
            made.append(net.conv(wide, channels, 3 if kind == "windows" else 1))
    read = {int(tensor) for op in net.main.operators for tensor in op.inputs}
    return net, [net.concat([tensor for tensor in made if tensor not in read] + made[-1:])]


@pytest.mark.parametrize(
    ("kinds", "dtype"),
    [
        (("conv", "windows", "ADD"), "int8"),
        (("conv", "sizes", "ADD"), "int8"),
        (("sizes",), "float32"),
        (("conv", "ADD", "MUL", "SUB", "RESHAPE"), "int8"),
        (("conv", "DIV", "SOFTMAX"), "float32"),
        (("conv", "MEAN"), "int8"),
        (("conv", "MEAN", "RESHAPE"), "float32"),
        (("conv", "SPLIT", "ADD", "RESHAPE"), "float32"),
    ],
)
@pytest.mark.parametrize("seed", range(cases(6)))
def test_tensors_of_random_networks_lie_where_the_model_says(kinds, dtype, seed, tmp_path):
    """Also where an operator reads a tensor twice, or a view of one: LiteRT then overwrites it, or not. And where one
    operator makes tensors of equal size, as a split does, and in float a mean and its sums: LiteRT then places them as
    a sort leaves them that is not stable."""
    net, outputs = drawn(seed, kinds, dtype)
    assert_every_place(net.save(tmp_path / "net.tflite", outputs))


def test_of_gaps_of_equal_size_litert_takes_the_later_one_where_it_rounds_up():
    """By hand: gaps of 156 bytes at 100 and 356, of which 128 are left from the next unit on. The second has less room
    from there than the first one has from its first byte on. In NASNet Mobile ten tensors follow from it."""
    pinned = [Record(str(offset), 0, 2, 128, 64, offset, exact_bytes=100) for offset in (0, 256, 512)]
    record = Record("x", 1, 2, 128, 64, exact_bytes=100)
    placed = litert_greedy([*pinned, record], clock=unlimited()).solution
    assert placed == (0, 256, 512, 384)


@pytest.mark.parametrize("seed", range(4))
def test_strips_are_planned_as_litert_places_them(seed, tmp_path):
    """LiteRT follows no offsets: what a plan in strips takes is what its planner makes of it, and not more."""
    net = TfliteNet(seed, size=16, dtype="int8")
    x = net.input(16)
    for channels in (64, 64, 16):
        x = net.conv(x, channels, 3)
    path = net.save(tmp_path / "net.tflite", [net.conv(x, 4)])
    found = fit(path, target="litert", max_recompute=0.5, work_limit=200, time_limit_s=60)
    assert "strips" in found.shipped
    assert found.measured.after <= found.arena.after <= found.measured.after + ROUNDING
    assert found.together.arena.arena_bytes == found.arena.after
    assert not any("a plan of" in note for note in found.notes)


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("pyopen-wakeword", "alexa.tflite"),
        ("pyopen-wakeword", "hey_mycroft.tflite"),
        ("pymicro-wakeword", "alexa.tflite"),
        ("pymicro-wakeword", "okay_nabu.tflite"),
    ],
)
def test_real_networks_take_what_the_model_says(package, name, tmp_path):
    assert_as_placed(installed_model(package, name), tmp_path)


def test_sums_run_in_place_only_over_what_nobody_else_reads(written):
    """Else the test above would hold without it."""
    graph = load(written)
    steps = range(len(graph.ops))
    assert peak_bytes(order_problem(graph, "litert"), steps) < peak_bytes(order_problem(graph, "tflm"), steps)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("seed", range(3))
def test_the_windows_that_convolutions_copy_are_part_of_the_model(dtype, seed, tmp_path):
    """Where LiteRT puts its tensors shows how large they are and how long they live, in every order."""
    random, net = np.random.default_rng(seed), TfliteNet(seed, size=7, dtype=dtype)
    made = [net.input(3)]
    for _ in range(4):
        read = made[int(random.integers(len(made)))]
        made.append(net.conv(read, int(random.integers(2, 24)), int(random.choice([1, 3]))))
    path = net.save(tmp_path / "net.tflite", [net.concat(made[1:])])
    assert_as_placed(path, tmp_path)
    graph = load(path)
    assert modelled(graph, range(len(graph.ops))) >= max(map(sum, kernel_needs(graph, "litert").buffers.values()))


def test_what_kernels_copy_is_planned_with(tmp_path):
    path = installed_model("pyopen-wakeword", "embedding_model.tflite")
    graph = load(path)
    assert litert.measure(path) == modelled(graph, range(len(graph.ops))) == 1146368
    found = fit(path, target="litert", time_limit_s=2.0, rewrite="off")
    assert found.measured.before == found.arena.before == litert.measure(path)
    assert found.measured.after <= found.arena.after <= found.arena.before
    assert kernel_needs(graph, None).buffers == {}
    with pytest.raises(UsageError, match="kernels must be one of"):
        fit(path, kernels="litert")


def test_no_gain_is_claimed_where_the_runtime_takes_as_much():
    """What kernels ask for can hide what a plan gains."""
    found = fit(installed_model("pymicro-wakeword", "okay_nabu.tflite"), target="litert", time_limit_s=2.0)
    assert found.shipped == "order" and found.measured.after < found.measured.before
    assert gain_line(found).endswith("smaller (order).")
    hidden = replace(found, measured=replace(found.measured, after=found.measured.before))
    assert gain_line(hidden).endswith("as planned, but the runtime takes as much for it as for the original.")


def test_tensors_in_several_blocks_are_not_measured(tmp_path):
    path = installed_model("pyopen-wakeword", "hey_jarvis.tflite")  # an If makes its outputs when it runs
    with pytest.raises(UnsupportedError, match="more than one memory block"):
        litert.measure(path)
    found = fit(path, target="litert", time_limit_s=2.0)
    assert found.measured is None
    assert "more than one memory block" in found.not_measured
    assert fit_document(found).verdict.detail.startswith("Not measured: LiteRT keeps tensors")
    assert any(note.startswith("If ") and "the proof does not cover it" in note for note in found.notes)


@pytest.fixture
def refused(written, tmp_path):
    return with_unknown_operator(written, tmp_path / "refused.tflite")


def test_whether_a_file_fits_that_no_runtime_here_runs_is_not_known(refused, run):
    found = fit(refused, time_limit_s=1.0)
    assert found.measured is None
    assert "TFLite Micro cannot" in found.not_measured
    assert "the figures are the plan's alone" in fit_document(found).verdict.detail
    with pytest.raises(LimitReached, match="takes in addition is not known"):
        fit(refused, ram_bytes=10**9, time_limit_s=1.0)
    with pytest.raises(InfeasibleError, match="for its tensors alone"):  # tensors alone are too many: that is known
        fit(refused, ram_bytes=100, time_limit_s=1.0)
    status, out, err = run("fit", refused, "--ram", "1GB", "--time-limit", "1s", "--json")
    error = json.loads(out)["error"]
    assert (status, error["code"], error["exit_code"]) == (6, "limit", 6), err
    assert error["figures"]["least_bytes"] == found.arena.bound <= error["figures"]["best_bytes"] == found.arena.after
    assert error["figures"]["limit_bytes"] == 1 << 30


def test_figures_of_what_does_not_fit(written, run):
    """Head, tail, and the operator at the peak: what somebody needs who sizes an arena."""
    status, out, _ = run("fit", written, "--ram", "500", "--time-limit", "1s", "--json")
    figures = json.loads(out)["error"]["figures"]
    measured = fit(written, time_limit_s=1.0).measured
    assert status == 3
    assert figures["best_bytes"] == figures["head_bytes"] + figures["tail_bytes"] == measured.after
    graph = load(written)
    assert 0 <= figures["peak_step"] < len(graph.ops)
    assert figures["peak_operator"] in {op.name for op in graph.ops}


def test_weights_that_are_made_of_sparse_ones_count_while_they_are_read():
    """LiteRT keeps what it dequantises from constants of the file alone. In MediaPipe's pose_detection.tflite
    all 148 tensors then lie where the model says."""
    tensors = (
        Tensor("x", (1, 4, 4, 16), "float32", 1024),
        *(Tensor(name, (16, 1, 1, 16), "float16", 512, "constant") for name in ("sparse", "dense")),
        *(Tensor(name, (16, 1, 1, 16), "float32", 1024, "constant") for name in ("made", "kept")),
        *(Tensor(name, (1, 4, 4, 16), "float32", 1024) for name in ("y", "z")),
    )
    ops = (
        Op("densify", "tflite::DENSIFY", (1,), (2,)),
        Op("decode", "DequantizeLinear", (2,), (3,)),
        Op("keep", "DequantizeLinear", (1,), (4,)),
        Op("first", "MatMul", (0, 3), (5,)),
        Op("second", "MatMul", (5, 4), (6,)),
    )
    lives = lifetimes(Graph("sparse", tensors, ops, (0,), (6,)), range(5), "litert")
    assert [record >= 0 for record in lives.record_of] == [True, False, False, True, False, True, True]
    made = lives.records[lives.record_of[3]]
    assert (made.start, made.stop, made.nbytes) == (1, 4, 1024)
