"""Random cases of convolutions, pools, matrix products, normalisations and resizes."""

import numpy as np
from onnx import TensorProto

from tests.kernel_case import Case, broadcast, normal, pick, positive, shape


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
    kind, parameters = pick(
        r,
        ("Relu", []),
        ("Sigmoid", []),
        ("Tanh", []),
        ("LeakyRelu", [0.2]),
        ("Clip", [-0.5, 0.7]),
        ("HardSigmoid", [0.3, 0.4]),
    )
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
