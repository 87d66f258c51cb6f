"""Pairs of small networks that differ in one constant, threshold, branch or body, often where ordinary inputs show
nothing; and pairs that are the same network, written otherwise. Made by ONNX's and TFLite's own libraries."""

from __future__ import annotations

import numpy as np
import onnx
from ai_edge_litert import schema_py_generated as schema
from onnx import TensorProto, helper

from tests.models import constant
from tests.tflite_net import TfliteNet


def saved(path, nodes, weights, extra=()):
    shape = [1, 4]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape), *extra]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, str(path))
    return path


def node(kind, inputs, output, **settings):
    return helper.make_node(kind, list(inputs), [output], name=output, **settings)


def steps(seed):
    """(nodes, weights) that make `h` of the input: affine operators, drawn from the seed."""
    random, at = np.random.default_rng(seed), "x"
    nodes, weights = [], []
    for index in range(int(random.integers(0, 4))):
        kind = str(random.choice(["Mul", "Add", "MatMul", "Neg"]))
        name, shape = f"s{index}", (4, 4) if kind == "MatMul" else (4,)
        value = (random.standard_normal(shape) + (kind == "Mul")).astype(np.float32)
        nodes.append(node(kind, [at] if kind == "Neg" else [at, f"{name}_w"], name))
        weights += [] if kind == "Neg" else [constant(f"{name}_w", value)]
        at = name
    return [*nodes, node("Identity", [at], "h")], weights


def drawn(random):
    """Two numbers of one sign that are at least a hundredth apart, of sizes from 0.01 to 100,000."""
    size = 10.0 ** random.uniform(-2, 5) * random.choice([-1, 1])
    return np.float32(size), np.float32(size * (1 + random.uniform(0.01, 2)))


def body(name, operator, value):
    shown = helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 4])
    weights = [constant(f"{name}_w", np.float32(value))]
    return helper.make_graph([node(operator, ["h", f"{name}_w"], name)], name, [], [shown], weights)


def compared(seed, c):
    """A branch by a sum that is compared with the number."""
    nodes, weights = steps(seed)
    nodes += [
        node("ReduceSum", ["h"], "sum", keepdims=0),
        node("Greater", ["sum", "c"], "chosen"),
        node("If", ["chosen"], "y", then_branch=body("t", "Add", 1e3), else_branch=body("e", "Mul", -2)),
    ]
    return nodes, [*weights, constant("c", c)]


def selected(seed, c):
    """Elements that are compared with the number."""
    nodes, weights = steps(seed)
    nodes += [node("Less", ["h", "c"], "chosen"), node("Neg", ["h"], "n"), node("Where", ["chosen", "h", "n"], "y")]
    return nodes, [*weights, constant("c", c)]


def clipped(seed, c):
    nodes, weights = steps(seed)
    return [*nodes, node("Min" if c > 0 else "Max", ["h", "c"], "y")], [*weights, constant("c", c)]


def bent(seed, c):
    """Something is added where h is beyond the number."""
    nodes, weights = steps(seed)
    nodes += [node("Sub", ["h", "c"], "d"), node("Neg" if c < 0 else "Identity", ["d"], "o"), node("Relu", ["o"], "r")]
    return [*nodes, node("Add", ["h", "r"], "y")], [*weights, constant("c", c)]


def branched(seed, c):
    """A branch that only sums above a million take."""
    nodes, weights = steps(seed)
    nodes += [
        node("ReduceSum", ["h"], "sum", keepdims=0),
        node("Greater", ["sum", "far"], "chosen"),
        node("If", ["chosen"], "y", then_branch=body("t", "Mul", c), else_branch=body("e", "Mul", -2)),
    ]
    return nodes, [*weights, constant("far", np.float32(1e6))]


def nested(seed, c):
    """The same branch, inside one that no input takes."""
    nodes, weights = branched(seed, c)
    inner = helper.make_graph(
        [*nodes[-3:-1], node("If", ["chosen"], "z", **{a.name: a.g for a in nodes[-1].attribute})],
        "outer",
        [],
        [helper.make_tensor_value_info("z", TensorProto.FLOAT, [1, 4])],
    )
    never = [node("ReduceMin", ["square"], "least", keepdims=0), node("Less", ["least", "below"], "never")]
    nodes = [*nodes[:-3], node("Mul", ["x", "x"], "square"), *never]
    nodes.append(node("If", ["never"], "y", then_branch=inner, else_branch=body("o", "Add", 1)))
    return nodes, [*weights, constant("below", np.float32(-1))]


def looped(seed, c):
    """A body that runs as often as h has elements above a million."""
    nodes, weights = steps(seed)
    kinds = [("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("v", TensorProto.FLOAT, [1, 4])]
    carried = [helper.make_tensor_value_info(*kind) for kind in kinds]
    shown = [helper.make_tensor_value_info(*kind) for kind in (("go_on", *kinds[1][1:]), ("v_on", *kinds[2][1:]))]
    inside = [node("Identity", ["go"], "go_on"), node("Mul", ["v", "k"], "v_on")]
    loop = helper.make_graph(inside, "body", carried, shown, [constant("k", c)])
    nodes += [
        node("Greater", ["h", "far"], "above"),
        helper.make_node("Cast", ["above"], ["ones"], name="ones", to=TensorProto.INT64),
        node("ReduceSum", ["ones"], "count", keepdims=0),
        helper.make_node("Loop", ["count", "", "h"], ["y"], name="loop", body=loop),
    ]
    return nodes, [*weights, constant("far", np.float32(1e6))]


ONNX = {each.__name__: each for each in (compared, selected, clipped, bent, branched, nested, looped)}


def onnx_pair(folder, kind, seed):
    """Two files that differ in the one number of a network of this kind."""
    numbers = drawn(np.random.default_rng([seed, 1]))
    return [saved(folder / f"{at}.onnx", *ONNX[kind](seed, c)) for at, c in enumerate(numbers)]


def calling(path, value, *, loops, seed):
    """A .tflite file whose second graph (a branch, or the body of a loop) multiplies by the value."""
    random = np.random.default_rng(seed)
    net = TfliteNet(seed, size=2)
    x = net.conv(net.input(2), 2)
    far = net.tensor((1,), value=[1e6])
    axes = net.tensor((4,), "int32", value=[0, 1, 2, 3])
    total = net.op("SUM", (x, axes), 2, "ReducerOptions", keepDims=False)
    net.main.tensors[total].shape = np.asarray([], np.int32)
    chosen = net.op("GREATER", (total, far), 2, "GreaterOptions")
    net.main.tensors[chosen].shape, net.main.tensors[chosen].type = np.asarray([1], np.int32), schema.TensorType.BOOL
    if loops:
        last = net.op("WHILE", (x,), 2, "WhileOptions", condSubgraphIndex=1, bodySubgraphIndex=2)
    else:
        last = net.op("IF", (chosen, x), 2, "IfOptions", thenSubgraphIndex=1, elseSubgraphIndex=2)
    main = net.main
    for number in (1, 2):
        net.main = schema.SubGraphT()
        net.main.name = b"cond" if loops and number == 1 else b"body"
        net.main.tensors, net.main.operators, net.main.inputs = [], [], []
        y = net.input(2)
        if loops and number == 1:
            axes = net.tensor((4,), "int32", value=[0, 1, 2, 3])
            total = net.op("SUM", (y, axes), 2, "ReducerOptions", keepDims=False)
            net.main.tensors[total].shape = np.asarray([], np.int32)
            far = net.tensor((1,), value=[1e6])
            made = net.op("GREATER", (total, far), 2, "GreaterOptions")
            net.main.tensors[made].shape, net.main.tensors[made].type = (
                np.asarray([1], np.int32),
                schema.TensorType.BOOL,
            )
        else:
            held = net.tensor((1,), value=[value if number == 1 + loops else float(random.uniform(1, 2))])
            made = net.op("MUL", (y, held), 2, "MulOptions")
        net.main.outputs = np.asarray([made], np.int32)
        net.main.inputs = np.asarray(net.main.inputs, np.int32)
        net.model.subgraphs.append(net.main)
    net.main = main
    for code in net.model.operatorCodes:
        code.version = 1
    return net.save(path, [last])


def bounded(path, value, *, seed, dtype="float32"):
    """A .tflite file whose result is at most the value."""
    net = TfliteNet(seed, size=2, dtype=dtype)
    x = net.conv(net.input(2), 2)
    limit = net.tensor((1,), value=[value])
    return net.save(path, [net.op("MINIMUM", (x, limit), 2, "MaximumMinimumOptions")])


TFLITE = ("branch", "loop", "bound", "quantized bound")


def tflite_pair(folder, kind, seed):
    numbers = [abs(float(number)) for number in drawn(np.random.default_rng([seed, 2]))]
    files = [folder / f"{at}.tflite" for at in range(2)]
    if kind in ("branch", "loop"):
        return [calling(path, c, loops=kind == "loop", seed=seed) for path, c in zip(files, numbers, strict=True)]
    if kind == "bound":
        return [bounded(path, c, seed=seed) for path, c in zip(files, numbers, strict=True)]
    lower = int(np.random.default_rng([seed, 3]).integers(-60, 60))
    return [bounded(path, lower + at, seed=seed, dtype="int8") for at, path in enumerate(files)]


def written_otherwise(folder, seed):
    """Two files of one network: with operators that undo each other, sums and products in another order."""
    random = np.random.default_rng(seed)
    c = drawn(random)[0]
    nodes, weights = ONNX[str(random.choice(list(ONNX)))](seed, c)
    first = saved(folder / "0.onnx", nodes, weights)
    at = next(index for index, each in enumerate(nodes) if "h" in each.output)
    source = nodes[at].input[0]
    more = [constant("half", np.float32(0.3)), constant("other half", np.float32(0.7)), constant("two", np.float32(3))]
    ways = {
        "twice": [node("Neg", [source], "n1"), node("Neg", ["n1"], "h")],
        "sum": [
            node("Mul", [source, "half"], "n1"),
            node("Mul", [source, "other half"], "n2"),
            node("Add", ["n1", "n2"], "h"),
        ],
        "product": [node("Mul", [source, "two"], "n1"), node("Div", ["n1", "two"], "h")],
    }
    chosen = ways[str(random.choice(list(ways)))]
    used = {name for each in chosen for name in each.input}
    extra = [weight for weight in more if weight.name in used]
    return [first, saved(folder / "1.onnx", [*nodes[:at], *chosen, *nodes[at + 1 :]], [*weights, *extra])]
