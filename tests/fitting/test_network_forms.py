"""Networks as quantisers, exporters of half precision, scripts with branches and loops, and text vectorisers write
them: `fit` takes them as any other, and what it writes computes what ONNX Runtime computes of the original."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import downset as ds
from tests.effort import cases
from tests.onnx_nodes import OnnxNodes

LEVELS = onnxruntime.GraphOptimizationLevel
BRANCHES, SIZE = 4, 32


class Branches(OnnxNodes):
    """Branches side by side. `around`: what comes behind each convolution."""

    def __init__(self, seed, dtype=np.float32):
        super().__init__()
        self.random, self.dtype = np.random.default_rng(seed), dtype

    def conv(self, tensor, outputs, inputs):
        weight = self.random.standard_normal((outputs, inputs, 3, 3)) / (9 * inputs) ** 0.5
        return self.around(self.op("Conv", tensor, self.constant(weight.astype(self.dtype)), pads=[1] * 4))

    def around(self, tensor):
        return self.op("Relu", tensor)

    def grown(self):
        wide = [self.conv("x", 16, 3) for _ in range(BRANCHES)]
        return self.op("Concat", *[self.conv(one, 2, 16) for one in wide], axis=1)

    def save(self, path, last, more=()):
        kind = TensorProto.FLOAT16 if self.dtype == np.float16 else TensorProto.FLOAT
        self.nodes.append(helper.make_node("Identity", [last], ["y"], name="y"))
        inputs = [helper.make_tensor_value_info("x", kind, ["batch", 3, SIZE, SIZE]), *more]
        outputs = [helper.make_tensor_value_info("y", kind, ["batch", 2 * BRANCHES, SIZE, SIZE])]
        graph = helper.make_graph(self.nodes, "form", inputs, outputs, self.weights)
        opsets = [helper.make_opsetid(domain, version) for domain, version in (("", 17), ("ai.onnx.ml", 2))]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.checker.check_model(model)
        onnx.save(model, str(path))


class Quantised(Branches):
    """Quantised and dequantised behind every convolution and before the first, as quantisers write it (QDQ)."""

    def around(self, tensor):
        scale, zero = self.constant(np.float32(0.05)), self.constant(np.uint8(128))
        quantised = self.op("QuantizeLinear", super().around(tensor), scale, zero)
        return self.op("DequantizeLinear", quantised, scale, zero)


def quantised(path, seed):
    net = Quantised(seed)
    net.save(path, net.grown())


def half(path, seed):
    net = Branches(seed, np.float16)
    net.save(path, net.grown())


def body(name, inputs, outputs, nodes):
    def value(one, kind, shape):
        return helper.make_tensor_value_info(one, kind, shape)

    return helper.make_graph(nodes, name, [value(*one) for one in inputs], [value(*one) for one in outputs])


def branch(path, seed):
    """An If over a value that the caller gives; both branches read a result from outside."""
    net = Branches(seed)
    last = net.grown()
    one, other = (
        body(kind, [], [(kind, TensorProto.FLOAT, None)], [helper.make_node(kind, [last], [kind], name=kind)])
        for kind in ("Sigmoid", "Tanh")
    )
    chosen = net.op("If", "flag", then_branch=one, else_branch=other)
    net.save(path, chosen, [helper.make_tensor_value_info("flag", TensorProto.BOOL, [])])


def loop(path, seed):
    """A Loop that runs three times, and reads a result from outside each time."""
    net = Branches(seed)
    last = net.grown()
    nodes = [
        helper.make_node("Mul", ["state", last], ["scaled"], name="scaled"),
        helper.make_node("Tanh", ["scaled"], ["next"], name="next"),
        helper.make_node("Identity", ["go"], ["goes"], name="goes"),
    ]
    inputs = [("place", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("state", TensorProto.FLOAT, None)]
    outputs = [("goes", TensorProto.BOOL, []), ("next", TensorProto.FLOAT, None)]
    count, go = net.constant(np.int64(3)), net.constant(np.array(True))
    net.save(path, net.op("Loop", count, go, last, body=body("body", inputs, outputs, nodes)))


def texts(path, seed):
    """Words that are looked up, as text vectorisers do."""
    net = Branches(seed)
    places = net.op("LabelEncoder", "words", domain="ai.onnx.ml", keys_strings=["a", "0.0"], values_floats=[1.0, 2.0])
    sized = net.op("Reshape", places, net.constant([-1, 1, 1, 1]))
    net.save(path, net.op("Add", net.grown(), sized), [helper.make_tensor_value_info("words", TensorProto.STRING, [1])])


def outputs(session, feeds):
    taken = {value.name for value in session.get_inputs()}
    return session.run(None, {name: value for name, value in feeds.items() if name in taken})[0].tobytes()


@pytest.mark.parametrize("build", [quantised, half, branch, loop, texts])
@pytest.mark.parametrize("seed", range(cases(2)))
def test_networks_of_every_form_are_fitted_and_compute_the_same(build, seed, tmp_path):
    path, fitted, random = tmp_path / "m.onnx", tmp_path / "f.onnx", np.random.default_rng(seed)
    build(path, seed)
    result = ds.fit(path, output=fitted, time_limit_s=1)
    outcome = result.outputs
    same = outcome.equal if outcome.rounding is None else outcome.rounding.level  # bit for bit, at one level
    assert outcome.proof.proven and outcome.proof.exact and same, result.notes
    assert not [note for note in result.notes if "left out" in note or "not the" in note or "did not run" in note]
    assert result.shipped == "original" or outcome.other_sizes == ("batch = 2",)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    sessions = {}
    for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_EXTENDED, LEVELS.ORT_ENABLE_ALL):
        options.graph_optimization_level = level
        sessions[level] = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    ours = ds.ort_session(fitted)
    for batch in (1, 2):
        dtype = np.float16 if build is half else np.float32
        for flag in (False, True):
            feeds = {
                "x": random.standard_normal((batch, 3, SIZE, SIZE)).astype(dtype),
                "flag": np.array(flag),
                "words": np.array(["a"]),
            }
            assert outputs(ours, feeds) in {outputs(session, feeds) for session in sessions.values()}


def test_a_small_file_does_not_ship_with_many_times_its_bytes(tmp_path):
    """ONNX Runtime's optimisation makes constants of what a file of few bytes computes before a run."""
    net, path, last = Branches(0), tmp_path / "m.onnx", "x"
    for place in range(8):  # 98 KB of constants in a file of 2 KB
        filled = helper.make_tensor("v", TensorProto.FLOAT, [1], [0.5 + place])
        wide = net.op("ConstantOfShape", net.constant([1, 3, SIZE, SIZE]), value=filled)
        last = net.op("Sigmoid", net.op("Mul", last, net.op("CumSum", wide, net.constant(np.int64(2)))))
    net.save(path, net.op("Concat", last, last, net.op("Slice", last, *map(net.constant, ([0], [2], [1]))), axis=1))
    ds.fit(path, output=tmp_path / "f.onnx", time_limit_s=1)
    assert sum(file.stat().st_size for file in tmp_path.glob("f.onnx*")) <= (1 << 16) + path.stat().st_size + 1024
