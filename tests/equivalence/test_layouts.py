"""ONNX Runtime's layouts hold the network that they were made of, and no changed file that computes something else is
proven. Oracle: ONNX Runtime itself, without optimisation of the original."""

import itertools

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

from downset.equivalence.prove import same_in_layouts
from downset.errors import DownsetError
from tests.effort import LONG, cases
from tests.equivalence.mutants import onnx_attributes, onnx_constants, onnx_edges, onnx_operands
from tests.onnx_nodes import OnnxNodes

ACTIVATIONS = {"Relu": {}, "LeakyRelu": {"alpha": 0.3}, "Sigmoid": {}, "Tanh": {}, "HardSigmoid": {"alpha": 0.3}}

ROUNDING = 2e-5


class Layered(OnnxNodes):
    """A random network of convolutions, normalisations, sums and pools, on few channels that fill no whole blocks."""

    def __init__(self, seed):
        super().__init__()
        self.random = np.random.default_rng(seed)

    def weight(self, *shape, low=-1.0):
        return self.constant(self.random.uniform(low, 1, shape).astype(np.float32))

    def layer(self, x, channels):
        random = self.random
        kind = str(random.choice(["conv", "depthwise", "normalised", "residual", "pool", "joined"]))
        if kind == "pool":
            pool = str(random.choice(["MaxPool", "AveragePool"]))
            return self.op(pool, x, kernel_shape=[2, 3], pads=[0, 1, 0, 1]), channels
        group = channels if kind == "depthwise" else 1
        made = channels if kind in ("depthwise", "residual") else int(random.choice([3, 8, 20, 24, 32]))
        inputs = [x, self.weight(made, channels // group, 3, 3)] + (
            [self.weight(made)] if random.random() < 0.7 else []
        )
        y = self.op("Conv", *inputs, pads=[1, 1, 1, 1], group=group)
        if kind == "residual":
            y = self.op("Add", x, y)
        activation = str(random.choice([*ACTIVATIONS, "none"]))
        y = self.op(activation, y, **ACTIVATIONS[activation]) if activation != "none" else y
        if kind == "normalised":
            y = self.op("BatchNormalization", y, *(self.weight(made, low=low) for low in (-1, -1, -1, 0.1)))
        if kind == "joined":
            return self.op("Concat", y, x, axis=1), made + channels
        return y, made

    def save(self, path):
        x, channels = "x", 3
        for _ in range(int(self.random.integers(2, 6))):
            x, channels = self.layer(x, channels)
        output = helper.make_tensor_value_info(x, TensorProto.FLOAT, None)
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 9, 11])
        graph = helper.make_graph(self.nodes, "net", [given], [output], self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)
        return path


def session(path, level, written=None):
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = level
    if written is not None:
        options.optimized_model_filepath = str(written)
    return ort.InferenceSession(str(path), options)


def outputs(path, level=ort.GraphOptimizationLevel.ORT_DISABLE_ALL):
    x = np.random.default_rng(7).standard_normal((1, 3, 9, 11)).astype(np.float32)
    return session(path, level).run(None, {"x": x})[0]


def apart(one, other):
    """The largest difference, as a share of the largest value."""
    return float("inf") if one.shape != other.shape else np.abs(one - other).max() / np.abs(other).max()


def layered(seed, folder):
    """(a network, the file that ONNX Runtime's optimisation makes of it)."""
    window, made = folder / "window.onnx", folder / "layouts.onnx"
    Layered(seed).save(window)
    session(window, ort.GraphOptimizationLevel.ORT_ENABLE_ALL, made)
    return window, made


def test_what_optimisation_makes_is_proven_where_it_only_changes_layouts_and_fuses(tmp_path):
    """Other optimisations fold normalisations into the weights of a convolution before them."""
    in_blocks, unproven = 0, []
    for seed in range(cases(100)):
        window, made = layered(seed, tmp_path)
        kinds = [node.op_type for node in onnx.load(window).graph.node]
        folded = any(pair == ("Conv", "BatchNormalization") for pair in itertools.pairwise(kinds))
        reason = same_in_layouts(window, made)
        in_blocks += any(node.domain == "com.microsoft.nchwc" for node in onnx.load(made).graph.node)
        if reason and not folded:
            unproven.append((seed, reason))
    assert not unproven
    assert in_blocks > cases(100) // 2


def test_no_changed_file_in_layouts_is_proven_that_computes_something_else(tmp_path):
    """Of changed files, several thousand where LONG is set, most are rejected."""
    rejected = tried = 0
    changed = tmp_path / "changed.onnx"
    for seed in range(cases(120)):
        window, made = layered(seed, tmp_path)
        if same_in_layouts(window, made):
            continue
        expected, model = outputs(window), onnx.load(made)
        mutants = [one for kind in (onnx_attributes, onnx_constants, onnx_edges, onnx_operands) for one in kind(model)]
        for mutant in mutants if LONG else mutants[:: 1 + len(mutants) // 8]:
            mutant.save(changed)
            tried += 1
            try:
                proven = not same_in_layouts(window, changed)
            except DownsetError:
                proven = False
            rejected += not proven
            assert not proven or apart(outputs(changed), expected) < ROUNDING, (seed, mutant.what)
    print(f"rejected: {rejected} of {tried}")
    assert rejected > 0.8 * tried > 40
