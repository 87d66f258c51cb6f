"""Rewritten networks as .onnx files: ONNX Runtime computes what it did before, and needs what the model says."""

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from downset.formats.reading import load
from downset.formats.writing import export
from downset.graph.core import ABSENT
from downset.memory.liveness import order_problem, peak_bytes
from downset.orders.plan import plan_order
from downset.rewrites.concat.partition import concat_partition, partition_sites
from downset.runtimes import ort
from tests.effort import cases


class Net:
    """An .onnx network put together node by node, with seeded weights; whole numbers, on which floats do not round."""

    def __init__(self, seed=0):
        self.random = np.random.default_rng(seed)
        self.nodes, self.weights, self.channels = [], [], {}
        self.inputs = []

    def input(self, channels, name=None):
        name = name or f"x{len(self.inputs)}"
        self.inputs.append((name, channels))
        self.channels[name] = channels
        return name

    def constant(self, *shape, value=None):
        name = f"w{len(self.weights)}"
        drawn = self.random.integers(-2, 3, shape) if value is None else np.full(shape, value)
        drawn = drawn.astype(np.float32)
        self.weights.append(numpy_helper.from_array(drawn, name))
        return name

    def node(self, kind, inputs, channels, *, domain="", **attrs):
        made = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [made], name=f"n{len(self.nodes)}", domain=domain, **attrs))
        self.channels[made] = channels
        return made

    def conv(self, x, out, kernel=1, group=1, bias=True, weights=None, activation=None):
        inside = self.channels[x]
        inputs = [x, weights or self.constant(out, inside // group, kernel, kernel)]
        inputs += [self.constant(out)] if bias else []
        attrs = {"kernel_shape": [kernel] * 2, "pads": [kernel // 2] * 4, "group": group}
        if activation:
            return self.node("FusedConv", inputs, out, domain="com.microsoft", activation=activation, **attrs)
        return self.node("Conv", inputs, out, **attrs)

    def concat(self, parts, axis=1):
        return self.node("Concat", parts, sum(self.channels[part] for part in parts), axis=axis)

    def save(self, path, outputs, size=5, **options):
        value = helper.make_tensor_value_info
        inputs = [value(name, TensorProto.FLOAT, [1, count, size, size]) for name, count in self.inputs]
        shapes = {name: [1, count, size, size] if count else [1, 3] for name, count in self.channels.items()}
        results = [value(name, TensorProto.FLOAT, shapes[name]) for name in outputs]
        graph = helper.make_graph(self.nodes, "net", inputs, results, self.weights)
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), str(path), **options)
        return path


def run(path, seed=0):
    """ONNX Runtime in this process, nothing optimised, on small whole numbers."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(seed)
    feeds = {v.name: random.integers(-3, 4, v.shape).astype(np.float32) for v in session.get_inputs()}
    return session.run(None, feeds)


STEPS = (
    "Relu",
    "Neg",
    "depthwise",
    "Clip",
    "fused depthwise",
    "Add",
    "Mul",
    "BatchNormalization",
    "MaxPool",
    "AveragePool",
    "Concat",
    "Pad",
    "channel pad",
)


@st.composite
def networks(draw):
    """Concatenations with all that makes them hard: shared ones, parts used twice or elsewhere, shared weights, graph
    inputs and constants as parts, negative axes, graph outputs inside the pattern."""
    net = Net(draw(st.integers(0, 99)))
    current = x = net.input(draw(st.sampled_from([2, 4])))
    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        parts = [net.conv(current, draw(st.sampled_from([2, 4]))) for _ in range(draw(st.integers(2, 3)))]
        if draw(st.integers(0, 3)) == 0:
            parts.append(draw(st.sampled_from([parts[0], current])))
        current = net.concat(parts, axis=draw(st.sampled_from([1, -3])))
        if draw(st.integers(0, 3)) == 0:
            outputs.append(draw(st.sampled_from([current, *parts])))
        width = net.channels[current]
        for _ in range(draw(st.integers(0, 2))):
            step = draw(st.sampled_from(STEPS))
            if step == "Add":
                others = [net.conv(x, net.channels[part]) for part in parts]
                alike = sum(net.channels[part] for part in parts) == width
                other = net.concat(others) if alike and draw(st.booleans()) else net.constant(width, 1, 1)
                current = net.node("Add", draw(st.permutations([current, other])), width)
            elif step == "Mul":  # by one value for all, by one for each channel, by a constant image, by an input
                shape = draw(st.sampled_from([(1,), (1, width, 1, 1), (width, 5, 5), (5, 5)]))
                current = net.node("Mul", draw(st.permutations([net.constant(*shape), current])), width)
            elif step == "BatchNormalization":
                ones = net.constant(width, value=1.0)
                values = [net.constant(width), net.constant(width), net.constant(width), ones]
                current = net.node(step, [current, *values], width, epsilon=0.0)
            elif step == "MaxPool":
                current = net.node(step, [current], width, kernel_shape=[3, 3], pads=[1] * 4)
            elif step == "AveragePool":
                sums = {"kernel_shape": [2, 2], "pads": [0, 0, 1, 1], "count_include_pad": 1}
                current = net.node(step, [current], width, **sums)
            elif step in ("Pad", "channel pad"):  # a row more above, one less below; two channels more
                pads = [0, 0, 1, 0, 0, 0, -1, 0] if step == "Pad" else [0, 1, 0, 0, 0, 1, 0, 0]
                net.weights.append(numpy_helper.from_array(np.asarray(pads), f"w{len(net.weights)}"))
                width += 2 * (step != "Pad")
                current = net.node("Pad", [current, net.weights[-1].name], width)
            elif step == "Concat":
                current = net.concat([net.conv(x, 2), current, current])
                width = net.channels[current]
            elif step == "Clip":
                net.weights.append(numpy_helper.from_array(np.float32(6), f"w{len(net.weights)}"))
                current = net.node("Clip", [current, "", net.weights[-1].name], width)
            elif "depthwise" in step:
                activation = "Relu" if "fused" in step else None
                current = net.conv(current, width, 3, group=width, activation=activation)
            else:
                current = net.node(step, [current], width)
            if draw(st.integers(0, 5)) == 0:
                outputs.append(current)
        group = draw(st.sampled_from([1, 1, 1, 2]))
        kernel, bias = draw(st.sampled_from([1, 3])), draw(st.booleans())
        joined, activation = current, draw(st.sampled_from([None, "Relu"]))
        current = net.conv(joined, 4, kernel, group, bias, activation=activation)
        if draw(st.integers(0, 2)) == 0:  # a second reader, or the same weights once more behind another concatenation
            weights = net.nodes[-1].input[1]
            other = joined if draw(st.booleans()) else net.concat(parts)
            if net.channels[other] == net.channels[joined]:
                outputs.append(net.conv(other, 4, kernel, group, bias, weights=weights))
    if draw(st.integers(0, 2)) == 0:
        flat = net.node("Flatten", [net.concat([current, net.conv(x, 2), current])], None)
        if draw(st.booleans()):
            net.node("Gemm", [flat, net.constant(3, 250), net.constant(3)], None, transB=1, alpha=2.0, beta=0.5)
        else:
            net.node("MatMul", [flat, net.constant(250, 3)], None)
        outputs.append(net.nodes[-1].output[0])
    return net, list(dict.fromkeys([current, *outputs]))


@given(made=networks(), accumulate=st.sampled_from(["chain", "fused"]), data=st.data())
@settings(max_examples=cases(120))
def test_the_file_computes_the_same_bit_for_bit_on_whole_numbers(tmp_path_factory, made, accumulate, data):
    net, outputs = made
    folder = tmp_path_factory.mktemp("net")
    graph = load(net.save(folder / "m.onnx", outputs))
    chosen = [site for site in partition_sites(graph) if data.draw(st.booleans())]
    rewritten = concat_partition(graph, chosen, accumulate=accumulate)
    order = plan_order(rewritten, memory="ort")
    export(folder / "r.onnx", rewritten, order)
    onnx.checker.check_model(str(folder / "r.onnx"))
    for ours, original in zip(run(folder / "r.onnx"), run(folder / "m.onnx"), strict=True):
        np.testing.assert_array_equal(ours, original)
    again = load(folder / "r.onnx")
    assert [op.kind for op in again.ops] == [rewritten.ops[step].kind for step in order.steps]
    read = {again.tensors[t].name for op in again.ops for t in op.inputs if t != ABSENT}
    assert {tensor.name for tensor in again.tensors if tensor.role == "constant"} <= read


def wide(folder, parts=5, activation=None):
    """Parts that are made one by one, joined, and read by a 1x1 convolution: where taking apart pays."""
    net = Net()
    x = net.input(2)
    joined = net.concat([net.conv(x, 8) for _ in range(parts)])
    return net.save(folder / "m.onnx", [net.conv(net.conv(joined, 4, activation=activation), 2)], size=16)


@pytest.mark.parametrize(("accumulate", "activation"), [("chain", None), ("fused", None), ("fused", "Relu")])
def test_onnx_runtime_needs_exactly_what_the_model_says(tmp_path, accumulate, activation):
    graph = load(wide(tmp_path, activation=activation))
    rewritten = concat_partition(graph, partition_sites(graph), accumulate=accumulate)
    order = plan_order(rewritten, memory="ort")
    export(tmp_path / "r.onnx", rewritten, order)
    taken = ort.measure_peak(tmp_path / "r.onnx")
    assert taken.live_bytes == order.peak_bytes
    image = 16 * 16 * 4
    # what is joined and the whole; against a part (8 channels) and sums of 4: two and the new one, or one in place
    assert plan_order(graph, memory="ort").peak_bytes == image * 2 * 5 * 8
    assert order.peak_bytes == image * (8 + (8 if accumulate == "chain" else 4))
    for ours, original in zip(ort.run(tmp_path / "r.onnx"), ort.run(tmp_path / "m.onnx"), strict=True):
        np.testing.assert_allclose(ours, original, rtol=1e-5, atol=1e-4)


def test_weights_kept_outside_the_file_are_cut_into_it(tmp_path):
    wide(tmp_path)
    model = onnx.load(str(tmp_path / "m.onnx"))
    onnx.save(model, str(tmp_path / "e.onnx"), save_as_external_data=True, location="e.bin", size_threshold=0)
    graph = load(tmp_path / "e.onnx")
    rewritten = concat_partition(graph, partition_sites(graph))
    export(tmp_path / "r.onnx", rewritten, plan_order(rewritten, memory="ort"))
    for ours, original in zip(run(tmp_path / "r.onnx"), run(tmp_path / "m.onnx"), strict=True):
        np.testing.assert_array_equal(ours, original)


def test_new_names_never_meet_old_ones(tmp_path):
    net = Net()
    x = net.input(2)
    y = net.conv(net.concat([net.conv(x, 2), net.conv(x, 2)]), 4)
    # the names that the rewrite would give, taken already
    for name in (f"{y}/partial0", f"{y}/sum1", "w4/part0"):
        net.nodes.append(helper.make_node("Relu", [x], [name], name=f"{net.nodes[-1].name}/partial0"))
        net.channels[name] = 2
    taken = [f"{y}/partial0", f"{y}/sum1", "w4/part0"]
    graph = load(net.save(tmp_path / "m.onnx", [y, *taken]))
    rewritten = concat_partition(graph, partition_sites(graph))
    assert len(rewritten.ops) == len(graph.ops) + 1
    export(tmp_path / "r.onnx", rewritten, plan_order(rewritten, memory="ort"))
    for ours, original in zip(run(tmp_path / "r.onnx"), run(tmp_path / "m.onnx"), strict=True):
        np.testing.assert_array_equal(ours, original)


def test_a_part_without_channels_is_left_alone(tmp_path):
    net = Net()
    x, nothing = net.input(2), net.input(0)
    graph = load(net.save(tmp_path / "m.onnx", [net.conv(net.concat([net.conv(x, 2), nothing]), 4)]))
    assert partition_sites(graph) == ()


def test_the_batch_is_whatever_the_user_says(tmp_path):
    model = onnx.load(str(wide(tmp_path)))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "n"
    onnx.save(model, str(tmp_path / "open.onnx"))
    graph = load(tmp_path / "open.onnx", shapes={"x0": (3, 2, 16, 16)})
    rewritten = concat_partition(graph, partition_sites(graph))
    export(tmp_path / "r.onnx", rewritten, plan_order(rewritten, memory="ort"))
    ours, original = (ort.run(tmp_path / name, shapes={"x0": (2, 2, 16, 16)}) for name in ("r.onnx", "open.onnx"))
    np.testing.assert_allclose(ours[0], original[0], rtol=1e-5, atol=1e-4)
    assert ours[0].shape[0] == 2


def kinds(graph, **options):
    rewritten = concat_partition(graph, partition_sites(graph), **options)
    return sorted(op.kind.split("::")[-1] for op in rewritten.ops if op.kind not in ("Conv", "Relu"))


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (lambda net, a, b: [net.conv(net.concat([a, b]), 2)], ["FusedConv"]),
        (lambda net, a, b: [net.conv(net.node("Relu", [net.concat([a, b])], 8), 2)], ["FusedConv"]),
        (lambda net, a, b: [net.conv(net.concat([a, b], axis=-3), 8, 3, 4)], ["Concat"]),  # whole groups: moved behind
        (lambda net, a, b: [net.conv(net.concat([a, net.conv(b, 2)]), 6, 3, 2)], ["Concat"]),  # 3 channels a group
        (
            lambda net, a, b: [net.conv(net.node("Add", [net.concat([a, b]), net.concat([b, a])], 8), 2)],
            ["Add", "Add", "FusedConv"],
        ),
        (
            lambda net, a, b: [
                net.conv(net.node("Add", [net.concat([a, b]), net.concat([net.conv(a, 2), net.conv(b, 6)])], 8), 2)
            ],
            ["Add", "Concat", "Concat"],
        ),  # other parts
        (lambda net, a, b: [net.conv(net.concat([net.concat([a, b]), a]), 2)], ["FusedConv", "FusedConv"]),
    ],
    ids=["conv", "relu", "groups", "straddled groups", "sum of two", "sum of unlike", "nested"],
)
def test_what_falls_apart_and_what_does_not(tmp_path, build, left):
    net = Net()
    x = net.input(2)
    outputs = build(net, net.conv(x, 4), net.conv(x, 4))
    assert kinds(load(net.save(tmp_path / "m.onnx", outputs)), accumulate="fused") == left


def test_a_shared_concatenation_falls_apart_only_if_all_its_readers_do(tmp_path):
    net = Net()
    x = net.input(2)
    joined = net.concat([net.conv(x, 4), net.conv(x, 4)])
    outputs = [net.conv(joined, 2), net.conv(net.node("Relu", [joined], 8), 2)]
    assert kinds(load(net.save(tmp_path / "m.onnx", outputs)), accumulate="fused") == ["FusedConv", "FusedConv"]
    outputs.append(net.node("Softmax", [joined], 8, axis=1))
    graph = load(net.save(tmp_path / "m.onnx", outputs))
    assert partition_sites(graph) == ()


def test_a_concatenation_with_constants_is_left_alone(tmp_path):
    net = Net()
    x = net.input(2)
    graph = load(
        net.save(tmp_path / "m.onnx", [net.conv(net.node("Concat", [x, net.constant(1, 2, 5, 5)], 4, axis=1), 4)])
    )
    assert partition_sites(graph) == ()


def adds_to(net, x, total, out):
    """A convolution that adds to its fourth input."""
    inputs = [x, net.constant(out, net.channels[x], 1, 1), "", total]
    return net.node("FusedConv", inputs, out, domain="com.microsoft", kernel_shape=[1, 1])


@pytest.mark.parametrize(
    ("build", "images"),
    [
        (lambda net, a, b, x: [net.conv(adds_to(net, a, b, 8), 1)], 16),
        (lambda net, a, b, x: [net.conv(adds_to(net, a, b, 8), 1), net.conv(b, 1)], 24),  # the sum so far is read later
        (lambda net, a, b, x: [net.conv(adds_to(net, a, b, 8), 1), net.conv(a, 1)], 17),  # its other input is
        (
            lambda net, a, b, x: [net.conv(adds_to(net, a, x, 8), 1), net.conv(b, 1)],
            24,
        ),  # a graph input is the caller's
        (lambda net, a, b, x: [adds_to(net, a, b, 8)], 24),  # a graph output has bytes of its own
        (lambda net, a, b, x: [net.conv(adds_to(net, adds_to(net, a, b, 8), a, 8), 1)], 16),
    ],
    ids=["in place", "read later", "other read later", "graph input", "graph output", "twice"],
)
def test_when_a_sum_is_made_in_place_the_model_and_onnx_runtime_agree(tmp_path, build, images):
    net = Net()
    x = net.input(8)
    path = net.save(tmp_path / "m.onnx", build(net, net.conv(x, 8), net.conv(x, 8), x), size=16)
    graph = load(path)
    modelled = peak_bytes(order_problem(graph, "ort"), range(len(graph.ops)))
    assert modelled == ort.measure_peak(path).live_bytes == images * 16 * 16 * 4
