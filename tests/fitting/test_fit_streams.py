"""`fit --stream`: the file that ships computes each window, hop by hop, with less memory; mistakes are one line."""

import json
import re

import numpy as np
import onnx
import pytest

from downset import fit
from downset.equivalence.prove import prove
from downset.errors import DownsetError, UnsupportedError, UsageError
from downset.fitting.in_hops import least_to_beat
from downset.fitting.moving_axis import broken, chosen_rows
from downset.formats.reading import load
from downset.formats.stream_records import record_of
from downset.results.streams import Hop
from tests.command import completed, output_of
from tests.effort import LONG, cases
from tests.equivalence.stream_cases import apart, streamed, tflm_hops
from tests.strip_networks import VALID, StripNet
from tests.tflite_net import TfliteNet

ROWS, COLUMNS = 40, 16
STEP = {"padding": VALID, "strideH": 1, "strideW": 1}


def window_file(path, *, dtype="float32", dense=True):
    """Three VALID convolutions along 40 rows, a pool of stride 2, and a layer over all rows that are left."""
    net = TfliteNet(1, size=ROWS, dtype=dtype)

    def shaped(tensor, rows, columns):
        net.main.tensors[tensor].shape = np.asarray((1, rows, columns, net.channels(tensor)), np.int32)
        return tensor

    x = shaped(net.input(2), ROWS, COLUMNS)
    rows = ROWS
    for channels in (8, 8, 8):
        weights = net.weights((channels, 3, 1, net.channels(x)), 0)
        made = net.op("CONV_2D", [x, *weights], channels, "Conv2DOptions", padding=1, strideH=1, strideW=1)
        rows -= 2
        x = shaped(made, rows, COLUMNS)
    sizes = {"strideH": 2, "strideW": 1, "filterHeight": 2, "filterWidth": 1}
    pooled = net.op("MAX_POOL_2D", [x], 8, "Pool2DOptions", padding=1, **sizes)
    x = shaped(pooled, rows // 2, COLUMNS)
    if dense:
        weights = net.weights((4, rows // 2, COLUMNS, 8), 0)
        x = shaped(net.op("CONV_2D", [x, *weights], 4, "Conv2DOptions", padding=1, strideH=1, strideW=1), 1, 1)
    net.save(path, [x])
    return path


def tflm_runs(path, feeds):
    from tflite_micro import runtime

    interpreter = runtime.Interpreter.from_file(str(path), arena_size=1 << 20)
    for value in feeds:
        interpreter.set_input(value, 0)
        interpreter.invoke()
        yield np.array(interpreter.get_output(0))


@pytest.mark.parametrize("hop", [2, 4] if LONG else [2])
def test_the_stream_that_ships_computes_each_window_with_less(hop, tmp_path):
    window, stream = window_file(tmp_path / "window.tflite"), tmp_path / "stream.tflite"
    result = fit(window, output=stream, stream=hop, states="in-place", time_limit_s=2)
    made = result.stream
    assert made is not None and made.comparison.equal and made.comparison.proven
    assert made.stream_bytes < made.fitted_bytes < made.window_bytes
    assert (result.measured.before_s, result.measured.latency) == (made.window_s, made.latency)
    assert made.macs < 0.4 * made.window_macs
    assert prove(window, stream).proven
    first = record_of(stream).first_exact
    rows = np.random.default_rng(0).standard_normal((1, ROWS + 12 * hop, COLUMNS, 2)).astype(np.float32)
    calls = rows.shape[1] // hop
    hops = list(tflm_runs(stream, [rows[:, hop * call : hop * (call + 1)] for call in range(calls)]))
    ends = [hop * (call + 1) for call in range(first, calls)]
    windows = list(tflm_runs(window, [np.ascontiguousarray(rows[:, end - ROWS : end]) for end in ends]))
    assert len(windows) >= 10
    assert all(one.tobytes() == other.tobytes() for one, other in zip(hops[first:], windows, strict=True))


def test_a_stream_that_takes_more_than_its_window_is_not_written(tmp_path):
    """Rows behind a stride of 2 come back every second call of 3 rows: the dense layer's input is kept twice."""
    window, stream = window_file(tmp_path / "window.tflite"), tmp_path / "stream.tflite"
    with pytest.raises(UnsupportedError, match="nothing is written; states='in-place' may take less"):
        fit(window, output=stream, stream=3, time_limit_s=1)
    assert not stream.exists()


@pytest.mark.parametrize(
    ("fitted", "limit", "least"),
    [(500, None, 500), (None, None, 900), (1000, None, 900), (500, 400, 500), (500, 600, 900), (None, 600, 900)],
)
def test_a_stream_is_held_against_the_fitted_window_unless_a_limit_is_stated_that_both_keep_to(fitted, limit, least):
    assert least_to_beat(900, fitted, limit) == least


def test_a_stream_that_takes_more_ships_within_a_stated_limit(tmp_path):
    """Its arithmetic is then what counts; the error without a limit names the limit."""
    window, stream = window_file(tmp_path / "window.tflite"), tmp_path / "stream.tflite"
    with pytest.raises(UnsupportedError) as refused:
        fit(window, output=stream, stream=4, time_limit_s=1)
    limit = int(re.search(r"ram_bytes=(\d+) ships it", str(refused.value)).group(1))
    made = fit(window, output=stream, stream=4, ram_bytes=limit, time_limit_s=1).stream
    assert made.fitted_bytes <= made.stream_bytes <= limit and stream.exists()


def test_every_hop_that_is_listed_ships_and_every_other_one_is_refused(tmp_path):
    """Over random windows, in the form that is asked for, held against `fit`; a limit that the refusal names ships."""
    tried = {True: 0, False: 0}
    for seed in range(cases(20)):
        window = random_window(tmp_path / "window.tflite", seed)
        states = ("variables", "in-place")[seed % 2]
        command = ("fit", window, "--stream", "--states", states, "--time-limit", "1", "--json")
        said = json.loads(output_of(*command))
        hops = [(row["hop"], True) for row in said["hops"]] + [(row["hop"], False) for row in said["left_out"]]
        for hop, listed in hops if LONG else hops[:: max(len(hops) - 1, 1)]:
            try:
                fit(window, stream=hop, states=states, time_limit_s=1)
                ships = True
            except UnsupportedError as error:
                ships = False
                limit = re.search(r"ram_bytes=(\d+) ships it", str(error))
                if limit:
                    fit(window, stream=hop, states=states, ram_bytes=int(limit.group(1)), time_limit_s=1)
            assert ships or not listed, (seed, hop, said)
            tried[listed] += 1
    assert min(tried.values()) > 0, tried


def random_window(path, seed):
    """Convolutions with strides and dilations along 40 rows, float32 or int8, behind some a mean over time."""
    random = np.random.default_rng([seed, 41])
    net = StripNet(seed, dtype=("float32", "int8")[seed % 2])
    x = net.start(ROWS, int(random.integers(4, 16)), 2)
    for _ in range(int(random.integers(2, 5))):
        dilation = int(random.choice([1, 1, 2, 4]))
        stride = int(random.choice([1, 1, 2])) if dilation == 1 else 1
        sizes = net._window(x, (3, 1), (stride, 1), (dilation, 1), VALID)
        if min(sizes) < 2:
            break
        options = {"strideH": stride, "strideW": 1, "padding": VALID}
        options |= {"dilationHFactor": dilation, "dilationWFactor": 1}
        channels = int(random.choice([4, 8, 16]))
        weights = net._weights(x, (channels, 3, 1, net.channels(x)), 0)
        x = net.add_op("CONV_2D", (x, *weights), (1, *sizes, channels), "Conv2DOptions", **options)
    if random.random() < 0.5:
        rows, columns = net.shape(x)[1:3]
        settings = {"filterHeight": rows, "filterWidth": 1, "strideH": 1, "strideW": 1, "padding": VALID}
        shape = (1, 1, columns, net.channels(x))
        x = net.add_op("AVERAGE_POOL_2D", (x,), shape, "Pool2DOptions", like=x, **settings)
    return net.save(path, [x])


def split_window(path, sizes, axis):
    """A convolution over 20 rows, whose result is divided along an axis, and a convolution of each part."""
    net = StripNet(1)
    x = net.start(20, 3, 4)
    x = net.add_op("CONV_2D", (x, *net._weights(x, (4, 3, 1, 4), 0)), (1, 18, 3, 4), "Conv2DOptions", **STEP)
    shape = [*net.shape(x)]
    parts = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
    constants = net.tensor((len(sizes),), "int32", sizes), net.tensor((), "int32", axis)
    first = net.add_op("SPLIT_V", (x, *constants), parts[0], "SplitVOptions", numSplits=len(sizes))
    made = [first, *(net.tensor(part) for part in parts[1:])]
    net.main.operators[-1].outputs = np.asarray(made, np.int32)
    results = []
    for part in made:
        _, rows, columns, channels = net.shape(part)
        weights = net._weights(part, (4, 2, 1, channels), 0)
        results.append(net.add_op("CONV_2D", (part, *weights), (1, rows - 1, columns, 4), "Conv2DOptions", **STEP))
    return net.save(path, results)


@pytest.mark.parametrize(("sizes", "axis"), [((5, 13), 1), ((13, 5), 1), ((9, 9), 1), ((1, 3), 3)])
def test_a_split_is_shared_along_channels_and_made_whole_along_the_rows(sizes, axis, tmp_path):
    """Parts of the rows have unequal heights; the law holds in TFLite Micro, call by call."""
    case = streamed(split_window(tmp_path / "window.tflite", sizes, axis), 1, 2, tmp_path)
    assert not case.refused and prove(case.window, case.stream).proven
    assert apart(*tflm_hops(case)) == 0.0


def test_json_and_the_list_of_hops_say_what_a_call_takes(tmp_path):
    window = window_file(tmp_path / "window.tflite")
    listed = json.loads(output_of("fit", window, "--stream", "--states", "in-place", "--json"))
    assert sorted(row["hop"] for row in (*listed["hops"], *listed["left_out"])) == [1, 2, 4, 8, 16]
    assert listed["window"] == ROWS and listed["hops_measured"]
    said = json.loads(
        output_of("fit", window, "--stream", "2@1", "--states", "in-place", "--json", "--time-limit", "2")
    )
    assert said["stream"]["hop"] == 2
    offer = next(row for row in listed["hops"] if row["hop"] == 2)
    assert said["stream"]["stream_bytes"] <= offer["arena_bytes"]
    assert (offer["macs"], offer["state_bytes"]) == (said["stream"]["macs"], said["stream"]["kept_bytes"])
    assert "No file was written: name a hop, --stream" in output_of("fit", window, "--stream", "--states", "in-place")


@pytest.mark.parametrize(
    ("stream", "says"),
    [
        (0, "a hop has at least 1 row, not 0"),
        (40, "has 40 rows along axis 1: a hop has fewer, not 40"),
        ((2, 5), "has axes 0 to 3, no axis 5"),
        ((1, 2, 3), "a stream is stated by its hop"),
    ],
)
def test_a_hop_that_fits_no_window_is_one_line(stream, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        fit(window_file(tmp_path / "window.tflite"), stream=stream)


def test_a_stream_of_a_stream_and_one_along_channels_are_refused(tmp_path):
    window, stream = window_file(tmp_path / "window.tflite"), tmp_path / "stream.tflite"
    fit(window, output=stream, stream=2, ram_bytes=1 << 20, time_limit_s=1)
    with pytest.raises(UnsupportedError, match="keeps a state from run to run"):
        fit(stream, stream=1)
    fit(window, output=stream, stream=2, states="in-place", time_limit_s=1)
    with pytest.raises(UnsupportedError, match="keeps its states in place: the file is a stream already"):
        fit(stream, stream=1)
    with pytest.raises(DownsetError, match="a stream of axis 3"):
        fit(window, stream=(1, 3))
    done = completed("fit", window, "--stream", "often")
    assert done.returncode == 2
    assert "'often' is not a hop; write for example 8, or 8@1" in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_hop_below_zero_is_named(tmp_path):
    done = completed("fit", window_file(tmp_path / "window.tflite"), "--stream=-4")
    assert done.returncode == 2 and "'-4' is not a hop; write for example 8, or 8@1" in done.stderr


def test_a_limit_that_a_stream_exceeds_names_the_one_that_keeps_to_it(tmp_path):
    """The stream in place, which is then within the limit; below what its states take, that is said."""
    window = window_file(tmp_path / "window.tflite")
    takes = fit(window, stream=2, states="in-place", time_limit_s=1).stream.stream_bytes
    with pytest.raises(DownsetError, match=r"A stream takes .* with stream=") as refused:
        fit(window, stream=2, ram_bytes=takes + 1024, time_limit_s=1)
    named = int(re.search(r"A stream takes ([\d,]+) B", str(refused.value)).group(1).replace(",", ""))
    assert named <= takes + 1024
    with pytest.raises(DownsetError, match="The states of a hop of 2 rows alone take"):
        fit(window, stream=2, ram_bytes=1024, time_limit_s=1)


def convolution_file(path, shape, *, open_axis=None):
    """A convolution of 3 rows and a pool over all rows, along the last axis; `open_axis`: the file leaves it open."""
    weights = np.ones((4, shape[1], 3), np.float32)
    sizes = ["frames" if axis == open_axis else size for axis, size in enumerate(shape)]
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["y"]),
        onnx.helper.make_node("GlobalMaxPool", ["y"], ["z"]),
    ]
    ends = [onnx.helper.make_tensor_value_info(name, 1, size) for name, size in (("x", sizes), ("z", [shape[0], 4, 1]))]
    graph = onnx.helper.make_graph(nodes, "net", ends[:1], ends[1:], [onnx.numpy_helper.from_array(weights, "w")])
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize("size", ["frames=40", "frames=20..40"])
def test_hops_are_listed_for_a_size_that_the_command_line_gives(size, tmp_path):
    fixed = convolution_file(tmp_path / "fixed.onnx", (1, 4, 40))
    left_open = convolution_file(tmp_path / "open.onnx", (1, 4, 40), open_axis=2)
    one, other = (
        json.loads(output_of("fit", *words, "--stream", "--json")) for words in ((fixed,), (left_open, "--dim", size))
    )
    assert one["hops"] == other["hops"] and one["window"] == other["window"] == 40


@pytest.mark.parametrize("stream", [1, 4, 8])
def test_a_batch_is_named_and_not_taken_for_short_windows(stream, tmp_path):
    window = convolution_file(tmp_path / "batch.onnx", (2, 4, 40))
    if stream == 1:  # along the batch windows move by one
        with pytest.raises(UnsupportedError, match="axis 0 of 'x'"):
            fit(window, stream=stream)
        return
    with pytest.raises(UsageError, match="a batch of 2 windows, and a stream takes one"):
        fit(window, stream=stream)


def saved(path, nodes, inputs, output, weights=()):
    """An .onnx file of float32 inputs, by name their sizes, and one output "y"."""
    infos = [
        [onnx.helper.make_tensor_value_info(name, 1, size) for name, size in listed.items()]
        for listed in (inputs, {"y": output})
    ]
    constants = [onnx.numpy_helper.from_array(np.asarray(value), name) for name, value in weights]
    graph = onnx.helper.make_graph(nodes, "net", *infos, constants)
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def test_two_axes_that_could_be_time_are_named_and_one_is_taken_where_it_is_stated(tmp_path):
    nodes = [onnx.helper.make_node("Conv", ["x", "w"], ["y"])]
    weights = [("w", np.ones((4, 3, 3, 3), np.float32))]
    window = saved(tmp_path / "window.onnx", nodes, {"x": (1, 3, 40, 40)}, (1, 4, 38, 38), weights)
    done = completed("fit", window, "--stream", "8")
    says = "several axes could be time: axis 2 of 'x' (40 rows), axis 3 of 'x' (40 rows); name one, --stream 8@2"
    assert done.returncode == 2 and done.stderr == f"downset: error: {says}\n"
    assert chosen_rows(load(window), Hop(8, 3)).moving.dimension == 3


def test_a_limit_that_a_refusal_names_ships_in_onnx_runtime(tmp_path):
    """There a limit holds at every load, which some settings do not promise; the hop divides no stride."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["t"], strides=[7]),
        onnx.helper.make_node("Conv", ["t", "v"], ["y"], strides=[5]),
    ]
    weights = [("w", np.ones((4, 3, 7), np.float32)), ("v", np.ones((4, 4, 5), np.float32))]
    window = saved(tmp_path / "window.onnx", nodes, {"x": (1, 3, 400)}, (1, 4, 11), weights)
    with pytest.raises(UnsupportedError, match="rows that return only after 35 calls") as refused:
        fit(window, output=tmp_path / "stream.onnx", stream=11, time_limit_s=1)
    limit = int(re.search(r"arena_bytes=(\d+) ships it", str(refused.value)).group(1))
    made = fit(window, output=tmp_path / "stream.onnx", stream=11, arena_bytes=limit, time_limit_s=1).stream
    assert made.stream_bytes <= limit and (tmp_path / "stream.onnx").exists()


def test_the_last_row_is_taken_by_what_a_constant_operator_makes(tmp_path):
    """As exporters write `x[:, :, -1]`; another index is not proven."""
    nodes = [
        onnx.helper.make_node("Conv", ["x", "w"], ["t"]),
        onnx.helper.make_node("Constant", [], ["last"], value=onnx.numpy_helper.from_array(np.int64(-1))),
        onnx.helper.make_node("Gather", ["t", "last"], ["y"], axis=2),
    ]
    weights = [("w", np.ones((4, 3, 3), np.float32))]
    window = saved(tmp_path / "window.onnx", nodes, {"x": (1, 3, 40)}, (1, 4), weights)
    case = streamed(window, 2, 8, tmp_path)
    assert prove(window, case.stream).proven, prove(window, case.stream).reason
    model = onnx.load(case.stream)
    (taken,) = (node for node in model.graph.node if node.op_type == "Gather")
    index = next(tensor for tensor in model.graph.initializer if tensor.name == taken.input[1])
    index.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(index) + 1, index.name))
    onnx.save(model, case.stream)
    assert not prove(window, case.stream).proven


def branches(read):
    """An If of which both branches read a tensor."""
    made = [
        onnx.helper.make_graph(
            [onnx.helper.make_node(kind, [read], [kind])],
            kind,
            [],
            [onnx.helper.make_tensor_value_info(kind, 1, (1, 3, 40))],
        )
        for kind in ("Relu", "Neg")
    ]
    return onnx.helper.make_node("If", ["c"], ["y"], name="either", then_branch=made[0], else_branch=made[1])


@pytest.mark.parametrize(
    ("node", "says"),
    [
        (branches("x"), "If 'either' runs graphs of its own: no stream is made of such a network"),
        (
            onnx.helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise"),
            "RandomNormalLike 'noise' draws at random: no two runs compute the same rows",
        ),
        (onnx.helper.make_node("CumSum", ["x", "axis"], ["y"], name="sum"), "read at CumSum 'sum'"),
        (onnx.helper.make_node("Softmax", ["x"], ["y"], name="s", axis=2), "read at Softmax 's'"),
    ],
)
def test_a_network_of_which_no_stream_is_made_is_named_with_its_operator(node, says, tmp_path):
    weights = [("axis", np.int64(2)), ("c", np.bool_(True))]
    window = saved(tmp_path / "window.onnx", [node], {"x": (1, 3, 40)}, (1, 3, 40), weights)
    done = completed("fit", window, "--stream", "8", "--time-limit", "1")
    assert done.returncode == 5 and says in done.stderr and done.stderr.count("\n") == 1


def two_inputs_file(path):
    """The sum of a convolution of each of two inputs."""
    nodes = [onnx.helper.make_node("Conv", [name, "w"], [f"{name}1"]) for name in ("x", "z")]
    nodes.append(onnx.helper.make_node("Add", ["x1", "z1"], ["y"], name="sum"))
    weights = [("w", np.ones((4, 3, 3), np.float32))]
    return saved(path, nodes, {"x": (1, 3, 40), "z": (1, 3, 40)}, (1, 4, 38), weights)


def test_of_two_inputs_that_could_move_one_does(tmp_path):
    """Operators that are alike in all but the input that they read: both inputs share as much."""
    window = two_inputs_file(tmp_path / "window.onnx")
    says = r"several inputs could move: axis 2 of 'x' .*, axis 2 of 'z' .*: stream=\(8, 2\) moves 'x' alone"
    with pytest.raises(UsageError, match=says):
        fit(window, stream=8)
    rows = chosen_rows(load(window), Hop(8, 2))
    assert (rows.moving.tensor, rows.macs) == (load(window).inputs[0], 4 * 3 * 3 * (8 + 38))
    assert broken(rows) == "'z1' does not move with the window at Add 'sum'"
    assert prove(window, streamed(window, 2, 8, tmp_path).stream).proven


@pytest.mark.parametrize("computed", [False, True])
def test_padding_by_computed_amounts_is_shared(computed, tmp_path):
    """Rows before the first, as causal networks pad: constants, and amounts that a Cast makes of floats, as exporters
    write them. The stream is proven."""
    kind = np.float32 if computed else np.int64
    weights = [("floats" if computed else "amounts", np.array([0, 0, 2, 0, 0, 0], kind))]
    weights.append(("w", np.ones((4, 4, 3), np.float32)))
    nodes = [onnx.helper.make_node("Cast", ["floats"], ["amounts"], to=onnx.TensorProto.INT64)] if computed else []
    nodes += [
        onnx.helper.make_node("Pad", ["x", "amounts"], ["padded"], name="pad"),
        onnx.helper.make_node("Conv", ["padded", "w"], ["t"]),
        onnx.helper.make_node("GlobalMaxPool", ["t"], ["y"]),
    ]
    window = saved(tmp_path / "causal.onnx", nodes, {"x": (1, 4, 40)}, (1, 4, 1), weights)
    assert chosen_rows(load(window), Hop(4)).macs <= 4 * 4 * 3 * (4 + 2)
    case = streamed(window, 2, 4, tmp_path)
    assert not case.refused and prove(window, case.stream).proven


@pytest.mark.parametrize("strides", [(2,), (5, 4, 2), (3, 7), (10, 8)])
def test_the_hop_that_all_strides_divide_is_listed(strides, tmp_path):
    """The product of the strides, also where it exceeds the longest queue: each state then holds rows of one call."""
    extent, nodes, weights, x = 800, [], [], "x"
    for place, stride in enumerate(strides):
        channels = 1 if place == 0 else 2
        weights.append((f"w{place}", np.ones((2, channels, stride + 1), np.float32)))
        nodes.append(onnx.helper.make_node("Conv", [x, f"w{place}"], [f"y{place}"], strides=[stride]))
        x = f"y{place}"
    nodes.append(onnx.helper.make_node("GlobalMaxPool", [x], ["y"]))
    window = saved(tmp_path / "strided.onnx", nodes, {"x": (1, 1, extent)}, (1, 2, 1), weights)
    said = json.loads(output_of("fit", window, "--stream", "--json"))
    hops = {row["hop"]: row for row in (*said["hops"], *said["left_out"])}
    whole = int(np.prod(strides))
    assert {whole, 2 * whole} <= hops.keys()
    assert hops[whole].get("states", 0) <= len(strides) + 1
