"""Every kernel of the table against ONNX Runtime, on random shapes and attributes."""

import math
from dataclasses import dataclass, field

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from downset.graph import Op
from downset.load import load
from downset.plan import plan_arena, plan_order
from downset.run.arena import run_in_arena
from downset.run.kernels import KERNELS
from downset.run.library import torch_library

CASES = 6
"""Random cases of each kind."""


@dataclass
class Case:
    """One operator: `inputs` in order (None: left out), of which `constants` are initializers."""

    inputs: list
    attrs: dict = field(default_factory=dict)
    constants: tuple = ()
    dtypes: tuple = (TensorProto.FLOAT,)
    opset: int = 18
    tolerance: float = 2e-5


def shape(r, low=1, high=4):
    return tuple(int(extent) for extent in r.integers(1, 6, r.integers(low, high + 1)))


def normal(r, *extents):
    return r.standard_normal(extents).astype(np.float32)


def positive(r, *extents):
    return (np.abs(r.standard_normal(extents)) + 0.1).astype(np.float32)


def broadcast(r, whole):
    """A shape that broadcasts to the whole: some extents 1, some leading ones left out."""
    part = [extent if r.random() < 0.6 else 1 for extent in whole]
    return tuple(part[int(r.integers(0, len(part) + 1)) if r.random() < 0.4 else 0 :])


def pick(r, *options):
    return options[int(r.integers(len(options)))]


def elementwise(make=normal, **attrs):
    def case(r):
        drawn = {name: round(float(r.uniform(*bounds)), 3) for name, bounds in attrs.items() if r.random() < 0.7}
        return Case([make(r, *shape(r))], drawn)

    return case


def two(make=normal, second=None, dtypes=(TensorProto.FLOAT,)):
    def case(r):
        whole = shape(r)
        inputs = [make(r, *whole), (second or make)(r, *broadcast(r, whole))]
        return Case(inputs[::-1] if second is None and r.random() < 0.5 else inputs, dtypes=dtypes)

    return case


def small_integers(r, *extents):
    return r.integers(-3, 4, extents)


def divisors(r, *extents):
    return np.where(r.random(extents) < 0.5, 1, -1).astype(np.float32) * positive(r, *extents)


def truths(r, *extents):
    return r.random(extents) < 0.5


def arithmetic(r):
    return two()(r) if r.random() < 0.7 else two(small_integers, dtypes=(TensorProto.INT64,))(r)


def quotient(r):
    if r.random() < 0.7:
        return two(normal, divisors)(r)
    whole = shape(r)
    return Case([r.integers(-20, 21, whole), r.integers(1, 5, whole) * pick(r, 1, -1)], dtypes=(TensorProto.INT64,))


def comparison(r):
    make = pick(r, normal, small_integers)
    return two(make, dtypes=(TensorProto.BOOL,))(r)


def many(r):
    whole = shape(r)
    return Case([normal(r, *whole), *(normal(r, *broadcast(r, whole)) for _ in range(r.integers(0, 4)))])


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


def geometry(r, rank, *, dilates=True):
    """(kernel, attributes, an image that is large enough): strides, dilations and unequal pads, or auto_pad."""
    kernel = [int(k) for k in r.integers(1, 4, rank)]
    attrs = {"kernel_shape": kernel}
    if r.random() < 0.7:
        attrs["strides"] = [int(s) for s in r.integers(1, 4, rank)]
    dilations = [int(d) for d in r.integers(1, 3, rank)] if dilates and r.random() < 0.4 else [1] * rank
    if dilations != [1] * rank:
        attrs["dilations"] = dilations
    padding = pick(r, "pads", "pads", "auto", "none")
    if padding == "pads":
        attrs["pads"] = [int(p) for p in r.integers(0, 2, 2 * rank)]
    elif padding == "auto":
        attrs["auto_pad"] = pick(r, "SAME_UPPER", "SAME_LOWER", "VALID")
        if "strides" in attrs:  # ONNX Runtime's pools refuse windows that are further apart than they are wide
            attrs["strides"] = [min(stride, window) for stride, window in zip(attrs["strides"], kernel, strict=True)]
    if padding != "none" and attrs.get("auto_pad", "").startswith("SAME") and "dilations" in attrs:
        del attrs["dilations"]
    image = [int(extent) for extent in r.integers(6, 11, rank)]
    if padding == "pads":
        attrs["pads"] = [min(pad, window - 1) for pad, window in zip(attrs["pads"], kernel * 2, strict=True)]
    return kernel, attrs, image


def convolution(r):
    rank = int(r.integers(1, 4))
    kernel, attrs, image = geometry(r, rank)
    groups, inside, out = int(r.integers(1, 4)), int(r.integers(1, 4)), int(r.integers(1, 4))
    if groups > 1:
        attrs["group"] = groups
    inputs = [normal(r, 2, groups * inside, *image), normal(r, groups * out, inside, *kernel)]
    if r.random() < 0.6:
        inputs.append(normal(r, groups * out))
    return Case(inputs, attrs, (1, 2), tolerance=1e-4)


def fused_convolution(r):
    case = convolution(r)
    while case.inputs[0].ndim != 4 or len(case.inputs) < 3:
        case = convolution(r)
    kind, parameters = pick(r, ("Relu", []), ("Sigmoid", []), ("Tanh", []), ("LeakyRelu", [0.2]), ("Clip", [-0.5, 0.7]),
                            ("HardSigmoid", [0.3, 0.4]))  # fmt: skip
    case.attrs |= {"activation": kind} | ({"activation_params": parameters} if parameters else {})
    return case


def transposed_convolution(r):
    rank = int(r.integers(1, 3))
    kernel, attrs, image = geometry(r, rank)
    if attrs.pop("auto_pad", None):
        attrs.pop("pads", None)
    groups, inside, out = int(r.integers(1, 3)), int(r.integers(1, 4)), int(r.integers(1, 4))
    strides = attrs.get("strides", [1] * rank)
    if r.random() < 0.4:
        attrs["output_padding"] = [int(r.integers(0, stride)) for stride in strides]
    if groups > 1:
        attrs["group"] = groups
    inputs = [normal(r, 1, groups * inside, *image), normal(r, groups * inside, out, *kernel)]
    if r.random() < 0.6:
        inputs.append(normal(r, groups * out))
    return Case(inputs, attrs, (1, 2), tolerance=1e-4)


def max_pool(r):
    rank = int(r.integers(1, 4))
    _, attrs, image = geometry(r, rank)
    if "auto_pad" not in attrs and r.random() < 0.4:
        attrs["ceil_mode"] = 1
    return Case([normal(r, 2, 3, *image)], attrs, opset=22)


def average_pool(r):
    rank = int(r.integers(1, 4))
    _, attrs, image = geometry(r, rank, dilates=False)
    if "auto_pad" not in attrs and r.random() < 0.4:
        attrs["ceil_mode"] = 1
    if r.random() < 0.5:
        attrs["count_include_pad"] = 1
    return Case([normal(r, 2, 3, *image)], attrs, opset=22)


def image(r):
    return normal(r, 2, 3, *shape(r, 1, 3))


def gemm(r):
    rows, inside, columns = (int(extent) for extent in r.integers(1, 6, 3))
    a, b = normal(r, rows, inside), normal(r, inside, columns)
    attrs = {}
    if r.random() < 0.5:
        a, attrs["transA"] = a.T.copy(), 1
    if r.random() < 0.5:
        b, attrs["transB"] = b.T.copy(), 1
    if r.random() < 0.5:
        attrs |= {"alpha": 0.5, "beta": 1.5}
    inputs = [a, b]
    if r.random() < 0.7:
        inputs.append(normal(r, *pick(r, (rows, columns), (columns,), (rows, 1), (1,))))
    return Case(inputs, attrs, (1,))


def fused_gemm(r):
    case = gemm(r)
    kind, parameters = pick(r, ("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.3}), ("Tanh", {}))
    case.attrs |= {"activation": kind, **parameters}
    return case


def matrix_product(r):
    rows, inside, columns = (int(extent) for extent in r.integers(1, 5, 3))
    kind = pick(r, "plain", "batched", "vector", "broadcast")
    if kind == "vector":
        return Case([normal(r, inside), normal(r, 2, inside, columns)])
    if kind == "broadcast":
        return Case([normal(r, 3, 1, rows, inside), normal(r, 2, inside, columns)])
    batch = (2, 3) if kind == "batched" else ()
    return Case([normal(r, *batch, rows, inside), normal(r, *batch, inside, columns)])


def fused_matrix_product(r):
    rows, inside, columns = (int(extent) for extent in r.integers(1, 5, 3))
    first, second, attrs = normal(r, 2, rows, inside), normal(r, 2, inside, columns), {"alpha": 0.5}
    if r.random() < 0.5:
        first, attrs["transA"] = np.swapaxes(first, 1, 2).copy(), 1
    if r.random() < 0.5:
        second, attrs["transB"] = np.swapaxes(second, 1, 2).copy(), 1
    return Case([first, second], attrs)


def batch_normalization(r):
    values = image(r)
    attrs = {"epsilon": 1e-3} if r.random() < 0.5 else {}
    return Case([values, *(normal(r, 3) for _ in range(3)), positive(r, 3)], attrs, (1, 2, 3, 4))


def instance_normalization(r):
    values = normal(r, 2, 3, *(int(extent) for extent in r.integers(2, 5, r.integers(1, 4))))
    return Case([values, normal(r, 3), normal(r, 3)], {"epsilon": 1e-3}, (1, 2), tolerance=1e-4)


def layer_normalization(r):
    values = normal(r, *(int(extent) for extent in r.integers(2, 6, r.integers(2, 5))))
    axis = int(r.integers(1, values.ndim))
    inputs = [values, normal(r, *values.shape[axis:])]
    if r.random() < 0.5:
        inputs.append(normal(r, *values.shape[axis:]))
    attrs = {"axis": axis - values.ndim * int(r.integers(2)), "epsilon": 1e-3}
    return Case(inputs, attrs, (1, 2), tolerance=1e-4)


def rms_normalization(r):
    case = layer_normalization(r)
    return Case(case.inputs[:2], case.attrs, (1,), opset=23, tolerance=1e-4)


def skip_layer_normalization(r):
    extents = (2, 3, int(r.integers(2, 6)))
    inputs = [normal(r, *extents), normal(r, *extents), normal(r, extents[-1]), normal(r, extents[-1])]
    if r.random() < 0.5:
        inputs.append(normal(r, extents[-1]))
    outputs = pick(r, (TensorProto.FLOAT,), (TensorProto.FLOAT, None, None, TensorProto.FLOAT))
    return Case(inputs, {"epsilon": 1e-3}, (2, 3, 4), outputs, tolerance=1e-4)


def local_response(r):
    values = normal(r, 2, int(r.integers(1, 8)), 3, 4)
    return Case([values], {"size": pick(r, 1, 3, 5), "alpha": 0.3, "beta": 0.6, "bias": 1.5})


def along_an_axis(r):
    if r.random() < 0.3:  # before version 13: over all axes from this one on
        values = normal(r, *pick(r, (2, 5), (2, 5, 1, 1), (3, 1, 4), (1, 4, 1)))
        return Case([values], {"axis": int(r.integers(1, 3))} if r.random() < 0.7 and values.ndim > 2 else {}, opset=11)
    values = normal(r, *shape(r))
    return Case([values], {"axis": int(r.integers(-values.ndim, values.ndim))} if r.random() < 0.8 else {})


def slope(r):
    values = normal(r, *shape(r, 2))
    return Case([values, normal(r, *broadcast(r, values.shape))], constants=(1,))


def padded(r):
    values = normal(r, *(int(extent) for extent in r.integers(3, 6, r.integers(1, 5))))
    mode = pick(r, "constant", "edge", "reflect")
    rank = values.ndim
    axes = sorted({int(axis) for axis in r.integers(0, rank, rank)}) if r.random() < 0.4 else None
    count = rank if axes is None else len(axes)
    low = -1 if mode == "constant" else 0
    inputs = [values, r.integers(low, 3, 2 * count)]
    constants = (1, 2, 3)
    if mode == "constant" and r.random() < 0.6:
        inputs.append(np.float32(0.7))
    if axes is not None:
        inputs += [None] * (3 - len(inputs))
        inputs.append(np.array([axis - rank * int(r.integers(2)) for axis in axes]))
    return Case(inputs, {"mode": mode}, constants)


def resized(r):
    values = normal(r, 1, 2, *(int(extent) for extent in r.integers(2, 6, 2)))
    transform = pick(r, "half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel")
    attrs = {"mode": pick(r, "nearest", "linear"), "coordinate_transformation_mode": transform}
    if attrs["mode"] == "nearest":
        attrs["nearest_mode"] = pick(r, "round_prefer_floor", "round_prefer_ceil", "floor", "ceil")
    if r.random() < 0.5:
        sizes = np.array([1, 2, *r.integers(2, 12, 2)])
        return Case([values, None, None, sizes], attrs, (3,), tolerance=1e-4)
    scales = np.array([1, 1, pick(r, 0.5, 1.5, 2, 3), pick(r, 0.6, 1, 2, 2.5)], np.float32)
    return Case([values, None, scales], attrs, (2,), tolerance=1e-4)


def upsampled(r):
    scales = np.array([1, 1, pick(r, 1, 2, 3), pick(r, 1, 2)], np.float32)
    return Case([normal(r, 1, 2, 3, 4), scales], {"mode": pick(r, "nearest", "linear")}, (1,), opset=9)


def blocks(r):
    block = int(r.integers(1, 4))
    return Case([normal(r, 2, 3 * block * block, 2, 3)], {"blocksize": block, "mode": pick(r, "DCR", "CRD")})


def cells(r):
    block = int(r.integers(1, 4))
    return Case([normal(r, 2, 3, 2 * block, 3 * block)], {"blocksize": block})


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


def gelu(r):
    return Case([normal(r, *shape(r))], {"approximate": pick(r, "none", "tanh")} if r.random() < 0.7 else {}, opset=20)


KINDS = {
    "Abs": elementwise(), "Add": arithmetic, "And": two(truths, dtypes=(TensorProto.BOOL,)), "ArgMax": extreme,
    "ArgMin": extreme, "AveragePool": average_pool, "BatchNormalization": batch_normalization, "Cast": cast,
    "Ceil": elementwise(), "Clip": clipped, "Concat": concatenated, "Conv": convolution,
    "ConvTranspose": transposed_convolution, "Cos": elementwise(), "DepthToSpace": blocks, "Div": quotient,
    "Dropout": elementwise(), "Elu": elementwise(alpha=(0.2, 2)), "Equal": comparison, "Erf": elementwise(),
    "Exp": elementwise(), "Expand": expanded, "Flatten": flattened, "Floor": elementwise(), "Gather": gathered,
    "GatherElements": gathered_elements, "Gelu": gelu, "Gemm": gemm, "GlobalAveragePool": lambda r: Case([image(r)]),
    "GlobalMaxPool": lambda r: Case([image(r)]), "Greater": comparison, "GreaterOrEqual": comparison,
    "HardSigmoid": elementwise(alpha=(0.1, 0.5), beta=(0.2, 0.8)), "HardSwish": elementwise(),
    "Identity": elementwise(), "InstanceNormalization": instance_normalization, "LRN": local_response,
    "LayerNormalization": layer_normalization, "LeakyRelu": elementwise(alpha=(0.05, 0.5)), "Less": comparison,
    "LessOrEqual": comparison, "Log": elementwise(positive), "LogSoftmax": along_an_axis, "MatMul": matrix_product,
    "Max": many, "MaxPool": max_pool, "Mean": many, "Min": many, "Mul": arithmetic, "Neg": elementwise(),
    "Not": lambda r: Case([truths(r, *shape(r))], dtypes=(TensorProto.BOOL,)),
    "Or": two(truths, dtypes=(TensorProto.BOOL,)), "PRelu": slope, "Pad": padded, "Pow": two(positive, normal),
    "RMSNormalization": rms_normalization, "Reciprocal": elementwise(divisors), "ReduceMax": reduced(18),
    "ReduceMean": reduced(18), "ReduceMin": reduced(18), "ReduceSum": reduced(13), "Relu": elementwise(),
    "Reshape": reshaped, "Resize": resized, "Round": lambda r: Case([np.round(4 * normal(r, 4, 9)) / 2]),
    "Selu": elementwise(alpha=(1, 2), gamma=(0.5, 1.5)), "Shape": extents_of, "Sigmoid": elementwise(),
    "Sign": elementwise(), "Sin": elementwise(), "Slice": sliced, "Softmax": along_an_axis,
    "Softplus": elementwise(), "Softsign": elementwise(), "SpaceToDepth": cells, "Split": split,
    "Sqrt": elementwise(positive), "Squeeze": squeezed, "Sub": arithmetic, "Sum": many, "Tanh": elementwise(),
    "Tile": tiled, "Transpose": transposed, "Unsqueeze": unsqueezed, "Upsample": upsampled, "Where": chosen,
    "com.microsoft::FusedConv": fused_convolution, "com.microsoft::FusedGemm": fused_gemm,
    "com.microsoft::FusedMatMul": fused_matrix_product, "com.microsoft::Gelu": elementwise(),
    "com.microsoft::QuickGelu": elementwise(alpha=(0.5, 2)),
    "com.microsoft::SkipLayerNormalization": skip_layer_normalization,
}  # fmt: skip


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


def saved_case(path, kind, seed):
    """(the case, its feeds, ONNX Runtime's outputs) of a model saved there."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    case = KINDS[kind](np.random.default_rng([seed, *kind.encode()]))
    model, feeds = model_of(kind, case)
    onnx.save(model, str(path))
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    expected = session.run(None, feeds)
    if kind == "com.microsoft::FusedMatMul":  # ONNX cannot infer its shape, so a file has to state it
        for output, result in zip(model.graph.output, expected, strict=True):
            output.CopyFrom(helper.make_tensor_value_info(output.name, TensorProto.FLOAT, result.shape))
        onnx.save(model, str(path))
    return case, feeds, expected


@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_computes_what_onnx_runtime_does(tmp_path, kind):
    path = tmp_path / "one.onnx"
    for seed in range(CASES):
        case, feeds, expected = saved_case(path, kind, seed)
        graph = load(path)
        order = plan_order(graph, method="file")
        ran = run_in_arena(graph, order, plan_arena(graph, order), list(feeds.values()))
        for ours, theirs in zip(ran.outputs, expected, strict=True):
            assert ours.dtype == theirs.dtype
            assert ours.shape == theirs.shape
            text = f"case {seed}: {[np.shape(value) for value in case.inputs]} {case.attrs}"
            np.testing.assert_allclose(
                ours.astype(np.float64), theirs.astype(np.float64), case.tolerance, case.tolerance, err_msg=text
            )


def called(kind, inputs, shapes, **attrs):
    torch = torch_library()
    op = Op("it", kind, tuple(range(len(inputs))), tuple(range(len(shapes))), attrs)
    given = [None if value is None else torch.from_numpy(np.array(value)) for value in inputs]
    return [result.numpy() for result in KERNELS[kind](op, given, shapes)]


def strided(values, begin, end, strides, **masks):
    """TFLite's strided slice, by NumPy's."""
    index = []
    for axis, (low, high, step) in enumerate(zip(begin, end, strides, strict=True)):
        if masks.get("shrinkAxisMask", 0) >> axis & 1:
            index.append(low)
        else:
            low = None if masks.get("beginMask", 0) >> axis & 1 else low
            index.append(slice(low, None if masks.get("endMask", 0) >> axis & 1 else high, step))
    return values[tuple(index)]


def test_kernels_of_operators_that_only_tflite_has():
    r = np.random.default_rng(0)
    x = positive(r, 3, 4, 5)
    np.testing.assert_allclose(called("tflite::RSQRT", [x], [x.shape])[0], 1 / np.sqrt(x), rtol=1e-6)
    np.testing.assert_allclose(called("tflite::SQUARE", [x], [x.shape])[0], x * x, rtol=1e-6)
    for axis in (0, 1, 2, -1):
        stacked = np.stack([x, 2 * x], axis)
        np.testing.assert_array_equal(called("tflite::PACK", [x, 2 * x], [stacked.shape], axis=axis)[0], stacked)
        parts = called("tflite::UNPACK", [stacked], [x.shape] * 2, axis=axis)
        np.testing.assert_array_equal(parts, [x, 2 * x])
    parts = called("tflite::SPLIT_V", [x, np.array([1, 3]), np.array(1)], [(3, 1, 5), (3, 3, 5)])
    np.testing.assert_array_equal(np.concatenate(parts, 1), x)
    for begin, end, strides, masks in (
        ([0, 1, 0], [3, 4, 5], [1, 2, 1], {}),
        ([1, 0, 4], [0, 3, 0], [1, 1, -2], {"shrinkAxisMask": 1, "endMask": 4}),
        ([9, 0, -3], [9, -1, -1], [1, 1, 1], {"beginMask": 1, "endMask": 1}),
    ):
        wanted = strided(x, begin, end, strides, **masks)
        given = [x, np.array(begin), np.array(end), np.array(strides)]
        np.testing.assert_array_equal(called("tflite::STRIDED_SLICE", given, [wanted.shape], **masks)[0], wanted)


def test_half_precision_weights_of_tflite_pass_and_quantised_ones_are_refused():
    from downset.errors import UnsupportedError

    halves = np.array([0.5, math.pi], np.float16)
    np.testing.assert_array_equal(called("DequantizeLinear", [halves], [(2,)])[0], halves)
    with pytest.raises(UnsupportedError, match="quantised"):
        called("DequantizeLinear", [np.array([1, 2], np.int8)], [(2,)])
    with pytest.raises(UnsupportedError, match="not known"):
        called("Constant", [], [(2,)])


def test_a_softmax_over_several_axes_of_old_is_not_taken_for_todays(tmp_path):
    model, _ = model_of("Softmax", Case([np.zeros((2, 3, 4), np.float32)], {"axis": 1}, opset=11))
    onnx.save(model, str(tmp_path / "old.onnx"))
    assert load(tmp_path / "old.onnx").ops[0].kind not in KERNELS


def test_no_kernel_is_left_out_here():
    elsewhere = {kind for kind in KERNELS if kind.startswith("tflite::")} | {"DequantizeLinear", "Constant"}
    assert set(KINDS) == set(KERNELS) - elsewhere
