"""Random cases of every kernel of the executor, and ONNX Runtime's answers to them."""

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from tests.kernel_case import (
    Case,
    arithmetic,
    broadcast,
    comparison,
    divisors,
    elementwise,
    many,
    normal,
    pick,
    positive,
    quotient,
    shape,
    small_integers,
    truths,
    two,
)
from tests.kernel_cases_nn import (
    along_an_axis,
    average_pool,
    batch_normalization,
    blocks,
    cells,
    convolution,
    fused_convolution,
    fused_gemm,
    fused_matrix_product,
    gemm,
    image,
    instance_normalization,
    layer_normalization,
    local_response,
    matrix_product,
    max_pool,
    padded,
    resized,
    rms_normalization,
    skip_layer_normalization,
    slope,
    transposed_convolution,
    upsampled,
)

__all__ = ["KINDS", "model_of", "saved_case"]


def reduced(as_input_from):
    """Axes are an input from some version of the operator on, an attribute before."""

    def case(r):
        values = normal(r, *shape(r, 2))
        rank = values.ndim
        axes = sorted({int(axis) for axis in r.integers(0, rank, r.integers(1, rank + 1))})
        axes = [axis - rank if r.random() < 0.3 else axis for axis in axes]
        attrs = {"keepdims": int(r.integers(2))}
        kind = pick(r, "input", "attribute", "none", "empty")
        if kind == "attribute" and as_input_from > 13:
            return Case([values], {**attrs, "axes": axes}, opset=as_input_from - 1)
        if kind == "none":
            return Case([values], attrs)
        if kind == "empty":
            attrs["noop_with_empty_axes"] = int(r.integers(2))
            return Case([values, np.zeros(0, np.int64)], attrs, (1,))
        return Case([values, np.array(axes)], attrs, (1,))

    return case


def extreme(r):
    values = np.round(normal(r, *shape(r, 2)), 0)  # with ties
    attrs = {"axis": int(r.integers(-values.ndim, values.ndim)), "keepdims": int(r.integers(2))}
    if r.random() < 0.4:
        attrs["select_last_index"] = 1
    return Case([values], attrs, dtypes=(TensorProto.INT64,))


def cast(r):
    to, values = pick(
        r,
        (TensorProto.INT64, 5 * normal(r, *shape(r))),
        (TensorProto.INT32, 5 * normal(r, *shape(r))),
        (TensorProto.BOOL, np.round(normal(r, *shape(r)))),
        (TensorProto.FLOAT, small_integers(r, *shape(r))),
        (TensorProto.FLOAT16, normal(r, *shape(r))),
        (TensorProto.FLOAT, truths(r, *shape(r))),
    )
    return Case([values], {"to": to}, dtypes=(to,))


def clipped(r):
    values = normal(r, *shape(r))
    bounds = [np.float32(-0.5) if r.random() < 0.7 else None, np.float32(0.4) if r.random() < 0.7 else None]
    if r.random() < 0.3:
        attrs = {name: float(bound) for name, bound in zip(("min", "max"), bounds, strict=True) if bound is not None}
        return Case([values], attrs, opset=9)
    return Case([values, *bounds], {}, (1, 2))


def concatenated(r):
    extents = list(shape(r))
    axis = int(r.integers(len(extents)))
    parts = [normal(r, *extents[:axis], int(r.integers(1, 4)), *extents[axis + 1 :]) for _ in range(r.integers(1, 4))]
    return Case(parts, {"axis": axis - len(extents) * int(r.integers(2))})


def expanded(r):
    whole = shape(r)
    part = [extent if r.random() < 0.6 else 1 for extent in whole]
    wanted = [extent if r.random() < 0.7 or size == 1 else 1 for size, extent in zip(part, whole, strict=True)]
    return Case([normal(r, *part), np.array(wanted)], {}, (1,))


def flattened(r):
    values = normal(r, *shape(r))
    return Case([values], {"axis": int(r.integers(-values.ndim, values.ndim + 1))} if r.random() < 0.7 else {})


def gathered(r):
    values = normal(r, *shape(r))
    axis = int(r.integers(values.ndim))
    size = values.shape[axis]
    index = r.integers(-size, size, pick(r, (), (3,), (2, 2)))
    return Case([values, np.asarray(index)], {"axis": axis - values.ndim * int(r.integers(2))})


def gathered_elements(r):
    values = normal(r, *shape(r))
    axis = int(r.integers(values.ndim))
    extents = [extent if at == axis else int(r.integers(1, extent + 1)) for at, extent in enumerate(values.shape)]
    index = r.integers(-values.shape[axis], values.shape[axis], extents)
    return Case([values, index], {"axis": axis - values.ndim * int(r.integers(2))})


def reshaped(r):
    values = normal(r, 2, 3, 4)
    return Case([values, np.array(pick(r, [6, 4], [-1], [0, -1], [4, 3, 2, 1], [0, 0, 2, 2]))], {}, (1,))


def extents_of(r):
    values = normal(r, *shape(r))
    bounds = pick(r, {}, {"start": 1}, {"end": -1}, {"start": -2, "end": 3})
    return Case([values], bounds, dtypes=(TensorProto.INT64,))


def sliced(r):
    values = normal(r, *(int(extent) for extent in r.integers(3, 7, r.integers(1, 4))))
    axes = sorted({int(axis) for axis in r.integers(0, values.ndim, values.ndim)})
    starts, ends, steps = [], [], []
    for axis in axes:
        size, step = values.shape[axis], pick(r, 1, 1, 2, -1, -2)
        far = pick(r, None, 2**31 - 1, 2**63 - 1)
        low, high = int(r.integers(0, 2)), int(r.integers(2, size + 1))
        first, last = (low, high) if step > 0 else (high - 1, low - 1)
        if step > 0:
            last = far if far else last - (size if r.random() < 0.3 and last < size else 0)
            first -= size if r.random() < 0.3 else 0
        elif last < 0:
            last = -(2**63) if far else -size - 1
        starts, ends, steps = [*starts, first], [*ends, last], [*steps, step]
    if all(step == 1 for step in steps) and r.random() < 0.3:
        return Case([values], {"starts": starts, "ends": ends, "axes": axes}, opset=9)
    given = [axis - values.ndim * int(r.integers(2)) for axis in axes]
    return Case([values, *(np.array(item) for item in (starts, ends, given, steps))], {}, (1, 2, 3, 4))


def split(r):
    extents = list(shape(r))
    axis = int(r.integers(len(extents)))
    sizes = [int(size) for size in r.integers(1, 4, r.integers(1, 4))]
    extents[axis] = sum(sizes)
    attrs = {"axis": axis - len(extents) * int(r.integers(2))}
    dtypes = (TensorProto.FLOAT,) * len(sizes)
    if r.random() < 0.3:
        return Case([normal(r, *extents)], {**attrs, "num_outputs": len(sizes)}, dtypes=dtypes)
    return Case([normal(r, *extents), np.array(sizes)], attrs, (1,), dtypes)


def squeezed(r):
    values = normal(r, 1, 3, 1, 2)
    return pick(r, Case([values]), Case([values, np.array([0, -2])], {}, (1,)), Case([values], {"axes": [2]}, opset=11))


def unsqueezed(r):
    values = normal(r, 3, 2)
    return pick(r, Case([values, np.array([0, -1])], {}, (1,)), Case([values], {"axes": [1, 3]}, opset=11))


def tiled(r):
    values = normal(r, *shape(r))
    return Case([values, r.integers(1, 4, values.ndim)], {}, (1,))


def transposed(r):
    values = normal(r, *shape(r))
    return Case([values], {"perm": [int(axis) for axis in r.permutation(values.ndim)]} if r.random() < 0.8 else {})


def chosen(r):
    whole = shape(r)
    return Case([truths(r, *broadcast(r, whole)), normal(r, *whole), normal(r, *broadcast(r, whole))])


def filled(r):
    wanted = shape(r, 1)
    value = pick(r, None, np.array([2.5], np.float32), np.array([-3], np.int64))
    attrs = {} if value is None else {"value": onnx.numpy_helper.from_array(value)}
    dtype = TensorProto.FLOAT if value is None else helper.np_dtype_to_tensor_dtype(value.dtype)
    return Case([np.array(wanted, np.int64)], attrs, constants=(0,), dtypes=(dtype,))


def fractions(r, *extents):
    return r.uniform(-0.9, 0.9, extents).astype(np.float32)


def above_one(r, *extents):
    return 1 + positive(r, *extents)


def infinite(r):
    values = np.where(r.random((3, 5)) < 0.5, r.choice([np.inf, -np.inf, np.nan], (3, 5)), normal(r, 3, 5))
    attrs = {f"detect_{name}": int(r.integers(2)) for name in ("negative", "positive") if r.random() < 0.7}
    return Case([values.astype(np.float32)], attrs, dtypes=(TensorProto.BOOL,))


def gelu(r):
    return Case([normal(r, *shape(r))], {"approximate": pick(r, "none", "tanh")} if r.random() < 0.7 else {}, opset=20)


def swish(r):
    return Case([normal(r, *shape(r))], {"alpha": float(r.uniform(0.5, 2))} if r.random() < 0.7 else {}, opset=24)


KINDS = {
    "Abs": elementwise(),
    "Acos": elementwise(fractions),
    "Acosh": elementwise(above_one),
    "Add": arithmetic,
    "And": two(truths, dtypes=(TensorProto.BOOL,)),
    "ArgMax": extreme,
    "ArgMin": extreme,
    "Asin": elementwise(fractions),
    "Asinh": elementwise(),
    "Atan": elementwise(),
    "Atanh": elementwise(fractions),
    "AveragePool": average_pool,
    "BatchNormalization": batch_normalization,
    "Cast": cast,
    "Ceil": elementwise(),
    "Celu": elementwise(alpha=(0.2, 2)),
    "Clip": clipped,
    "Concat": concatenated,
    "ConstantOfShape": filled,
    "Conv": convolution,
    "ConvTranspose": transposed_convolution,
    "Cos": elementwise(),
    "Cosh": elementwise(),
    "DepthToSpace": blocks,
    "Div": quotient,
    "Dropout": elementwise(),
    "Elu": elementwise(alpha=(0.2, 2)),
    "Equal": comparison,
    "Erf": elementwise(),
    "Exp": elementwise(),
    "Expand": expanded,
    "Flatten": flattened,
    "Floor": elementwise(),
    "Gather": gathered,
    "GatherElements": gathered_elements,
    "Gelu": gelu,
    "Gemm": gemm,
    "GlobalAveragePool": lambda r: Case([image(r)]),
    "GlobalMaxPool": lambda r: Case([image(r)]),
    "Greater": comparison,
    "GreaterOrEqual": comparison,
    "HardSigmoid": elementwise(alpha=(0.1, 0.5), beta=(0.2, 0.8)),
    "HardSwish": elementwise(),
    "Identity": elementwise(),
    "InstanceNormalization": instance_normalization,
    "IsInf": infinite,
    "IsNaN": elementwise(dtypes=(TensorProto.BOOL,)),
    "LRN": local_response,
    "LayerNormalization": layer_normalization,
    "LeakyRelu": elementwise(alpha=(0.05, 0.5)),
    "Less": comparison,
    "LessOrEqual": comparison,
    "Log": elementwise(positive),
    "LogSoftmax": along_an_axis,
    "MatMul": matrix_product,
    "Max": many,
    "MaxPool": max_pool,
    "Mean": many,
    "Min": many,
    "Mish": elementwise(),
    "Mul": arithmetic,
    "Neg": elementwise(),
    "Not": lambda r: Case([truths(r, *shape(r))], dtypes=(TensorProto.BOOL,)),
    "Or": two(truths, dtypes=(TensorProto.BOOL,)),
    "PRelu": slope,
    "Pad": padded,
    "Pow": two(positive, normal),
    "RMSNormalization": rms_normalization,
    "Reciprocal": elementwise(divisors),
    "ReduceMax": reduced(18),
    "ReduceMean": reduced(18),
    "ReduceMin": reduced(18),
    "ReduceSum": reduced(13),
    "Relu": elementwise(),
    "Reshape": reshaped,
    "Resize": resized,
    "Round": lambda r: Case([np.round(4 * normal(r, 4, 9)) / 2]),
    "Selu": elementwise(alpha=(1, 2), gamma=(0.5, 1.5)),
    "Shape": extents_of,
    "Shrink": elementwise(bias=(-1, 1), lambd=(0.2, 1)),
    "Sigmoid": elementwise(),
    "Sign": elementwise(),
    "Sin": elementwise(),
    "Sinh": elementwise(),
    "Slice": sliced,
    "Softmax": along_an_axis,
    "Softplus": elementwise(),
    "Softsign": elementwise(),
    "SpaceToDepth": cells,
    "Split": split,
    "Sqrt": elementwise(positive),
    "Squeeze": squeezed,
    "Sub": arithmetic,
    "Sum": many,
    "Swish": swish,
    "Tan": elementwise(fractions),
    "Tanh": elementwise(),
    "ThresholdedRelu": elementwise(alpha=(0.2, 1.5)),
    "Tile": tiled,
    "Transpose": transposed,
    "Unsqueeze": unsqueezed,
    "Upsample": upsampled,
    "Where": chosen,
    "Xor": two(truths, dtypes=(TensorProto.BOOL,)),
    "com.microsoft::FusedConv": fused_convolution,
    "com.microsoft::FusedGemm": fused_gemm,
    "com.microsoft::FusedMatMul": fused_matrix_product,
    "com.microsoft::Gelu": elementwise(),
    "com.microsoft::QuickGelu": elementwise(alpha=(0.5, 2)),
    "com.microsoft::SkipLayerNormalization": skip_layer_normalization,
}


def model_of(kind, case):
    """(the case as a model, its feeds): an operator between graph inputs and outputs."""
    domain, _, name = kind.rpartition("::")
    feeds = {f"in{at}": np.asarray(value) for at, value in enumerate(case.inputs) if value is not None}
    constants = {f"in{at}" for at in case.constants}
    reads = [f"in{at}" if value is not None else "" for at, value in enumerate(case.inputs)]
    makes = [f"out{at}" if dtype is not None else "" for at, dtype in enumerate(case.dtypes)]
    node = helper.make_node(name, reads, makes, name="it", domain=domain, **case.attrs)
    given = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in feeds.items()
        if name not in constants
    ]
    initializers = [onnx.numpy_helper.from_array(feeds[name], name) for name in feeds if name in constants]
    outputs = [
        helper.make_tensor_value_info(name, dtype, None) for name, dtype in zip(makes, case.dtypes, strict=True) if name
    ]
    graph = helper.make_graph([node], "one", given, outputs, initializers)
    opsets = [helper.make_opsetid("", case.opset), *([helper.make_opsetid(domain, 1)] if domain else [])]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return model, {name: value for name, value in feeds.items() if name not in constants}


def saved_case(path, kind, seed, spoil=None):
    """(the case, its feeds, ONNX Runtime's outputs) of a model saved there. `spoil(random, case)` changes it before."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    random = np.random.default_rng([seed, *kind.encode()])
    case = KINDS[kind](random)
    if spoil is not None:
        spoil(random, case)
    model, feeds = model_of(kind, case)
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    if kind == "com.microsoft::FusedMatMul":  # ONNX cannot infer its shape, so a file has to state it
        for output, result in zip(model.graph.output, expected, strict=True):
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, result.shape))
        onnx.save(model, str(path))
    return case, feeds, expected
