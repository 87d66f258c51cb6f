"""Which operators that read a whole feature map can add it up strip by strip, to the bit, in stock operators.

    python -m experiments.partial.accumulate [--quick]

Each row is an operator and a spelling of it that reads a strip at a time: of `networks` random networks (sizes, scales,
zero points and weights), for how many there is such a spelling, and how many of these give outputs equal bit for bit in
TFLite Micro and in LiteRT's built-in kernels (*measured*). Head and tail are those of a map of 7 x 7 x 1280 with the
operator, and with the spelling; the map is the network's input and lies whole in both.

int8 is added in int32: a strip of at most 255 pixels is widened to int16 (CAST), which holds its sum (SUM by a scale of
one), and strips are added (CAST, ADD). Then DIV divides as the pool's kernel does: DIV truncates, so half of the count
is added first, with the sum's sign. Or QUANTIZE scales it. Its multiplier comes from two scales of 24 bits, that of
MEAN has 31: the nearest scale is taken, and where *checked*, one by which every possible sum is rounded as MEAN rounds
it, or none. Results of FULLY_CONNECTED, CONV_2D and BATCH_MATMUL are always rounded to int8 or int16; parts of one are
added as int8. float32 is added in the sequence of TFLite Micro's kernels: the sums so far are the first pixel of the
next SUM, or come before the next strip in a FULLY_CONNECTED whose weights begin with an identity. LiteRT's kernels add
up in other sequences.
"""

from __future__ import annotations

import math
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from downset.errors import DownsetError, UnsupportedError
from downset.runtimes import litert, tflm
from experiments.frame import Experiment, run
from experiments.rows import Row

NETWORKS = 60
LARGE = 7, 7, 1280
MOST_PIXELS = 255


@dataclass(frozen=True, slots=True)
class Case:
    """The size of the map, and the seed of scales, zero points and weights."""

    height: int
    width: int
    channels: int
    seed: int


def start(case: Case, dtype: str):
    """(a network of one input, that input)."""
    from tests.strip_networks import StripNet

    net = StripNet(case.seed, dtype=dtype)
    return net, net.start(case.height, case.width, case.channels)


def tensor(net, shape, dtype, like=None):
    """An activation; `like`: the tensor whose scale it has."""
    result = net.tensor(shape, dtype)
    net.main.tensors[result].quantization = None if like is None else net.main.tensors[like].quantization
    return result


def add_op(net, name, inputs, output, options=None, **settings):
    """Append an operator that makes the tensor `output`."""
    result = net.op(name, inputs, 1, options, **settings)
    net.main.tensors.pop()
    assert result == len(net.main.tensors)
    net.main.operators[-1].outputs = np.asarray([output], np.int32)
    return output


def strips(net, x) -> Iterator[int]:
    """The map in strips of one or two rows, of which there are at least two."""
    _, height, width, channels = net.shape(x)
    step = 1 + (height > 2 and channels % 2 == 0)
    for first in range(0, height, step):
        stop = min(first + step, height)
        box = net.constant([0, first, 0, 0]), net.constant([1, stop - first, width, channels])
        piece = tensor(net, (1, stop - first, width, channels), net.dtype, like=x)
        yield add_op(net, "SLICE", (x, *box), piece, "SliceOptions")


def summed(net, x, parts: Iterable[int]) -> int:
    """The sum of all pixels of the parts of a map: int32, or float32 in sequence."""
    total = None
    for part in parts:
        total = (more_int if net.dtype == "int8" else _more_float)(net, x, part, total)
    return total


def more_int(net, x, part, total):
    """int16 holds the sum of up to 255 pixels, and SUM scales it by one."""
    shape, pixels = (1, 1, 1, net.channels(x)), int(np.prod(net.shape(part)[1:3]))
    if pixels > MOST_PIXELS:
        raise UnsupportedError(f"int16 holds the sum of {MOST_PIXELS} pixels, not of {pixels}")
    wide = net.symmetric(tensor(net, net.shape(part), "int16"), x)
    add_op(net, "CAST", (part,), wide, "CastOptions", inDataType=9, outDataType=7)
    own = net.symmetric(tensor(net, shape, "int16"), x)
    add_op(net, "SUM", (wide, net.constant([1, 2])), own, "ReducerOptions", keepDims=True)
    own = add_op(net, "CAST", (own,), tensor(net, shape, "int32"), "CastOptions", inDataType=7, outDataType=2)
    return own if total is None else add_op(net, "ADD", (total, own), tensor(net, shape, "int32"), "AddOptions")


def _more_float(net, x, part, total):
    """The sum so far is the first pixel of what SUM adds up, so that additions keep the sequence of the whole map."""
    channels, (height, width) = net.channels(x), net.shape(part)[1:3]
    if total is not None:
        part = flat(net, part, (1, 1, height * width, channels))
        joined = tensor(net, (1, 1, height * width + 1, channels), "float32")
        part = add_op(net, "CONCATENATION", (total, part), joined, "ConcatenationOptions", axis=2)
    result = tensor(net, (1, 1, 1, channels), "float32")
    return add_op(net, "SUM", (part, net.constant([1, 2])), result, "ReducerOptions", keepDims=True)


def flat(net, x, shape):
    return add_op(net, "RESHAPE", (x, net.constant(shape)), tensor(net, shape, net.dtype, like=x))


def pool(net, x):
    height, width = net.shape(x)[1:3]
    result = tensor(net, (1, 1, 1, net.channels(x)), net.dtype, like=x)
    sizes = {"filterHeight": height, "filterWidth": width, "strideH": 1, "strideW": 1, "padding": 1}
    return add_op(net, "AVERAGE_POOL_2D", (x,), result, "Pool2DOptions", **sizes)


def mean(net, x):
    result = net.activation((1, 1, 1, net.channels(x)))
    return add_op(net, "MEAN", (x, net.constant([1, 2])), result, "ReducerOptions", keepDims=True)


def connected(net, x):
    result = net.activation((1, 6))
    return add_op(net, "FULLY_CONNECTED", (x, *weights(net, x)), result, "FullyConnectedOptions")


def weights(net, x):
    size = int(np.prod(net.shape(x)))
    values = np.random.default_rng(7).integers(-90, 91, (6, size))
    if net.dtype == "float32":
        return (net.tensor((6, size), value=values / 64),)
    return (net.tensor((6, size), "int8", values, scale=0.02),)


def divided(net, x):
    return quotient(net, x, summed(net, x, strips(net, x)))


def quotient(net, x, total):
    """The sum of a map, divided with the pool's rounding: halves away from zero."""
    shape, count = (1, 1, 1, net.channels(x)), int(np.prod(net.shape(x)[1:3]))
    if net.dtype == "float32":
        by = net.constant([float(count)], "float32")
        return add_op(net, "DIV", (total, by), tensor(net, shape, "float32"), "DivOptions")
    one = {bound: net.constant([bound]) for bound in (-1, 1)}
    sign = add_op(net, "MAXIMUM", (total, one[-1]), tensor(net, shape, "int32"), "MaximumMinimumOptions")
    sign = add_op(net, "MINIMUM", (sign, one[1]), tensor(net, shape, "int32"), "MaximumMinimumOptions")
    half = add_op(net, "MUL", (sign, net.constant([count // 2])), tensor(net, shape, "int32"), "MulOptions")
    total = add_op(net, "ADD", (total, half), tensor(net, shape, "int32"), "AddOptions")
    total = add_op(net, "DIV", (total, net.constant([count])), tensor(net, shape, "int32"), "DivOptions")
    result = tensor(net, shape, "int8", like=x)
    return add_op(net, "CAST", (total,), result, "CastOptions", inDataType=2, outDataType=9)


def scaled(net, x, result):
    """The sum, scaled to the result by QUANTIZE."""
    count, total = int(np.prod(net.shape(x)[1:3])), summed(net, x, strips(net, x))
    entry = net.main.tensors[x].quantization
    scales = type(entry)()
    scales.scale = np.asarray([np.float32(float(entry.scale[0]) / count)], np.float32)
    scales.zeroPoint = np.asarray([int(entry.zeroPoint[0]) * count], np.int64)
    net.main.tensors[total].quantization = scales
    return add_op(net, "QUANTIZE", (total,), result, "QuantizeOptions")


def quantised(ratio: float) -> tuple[int, int]:
    """(multiplier of 31 bits, shift), as the kernels make them of a ratio of scales."""
    fraction, shift = math.frexp(ratio)
    multiplier = round(fraction * 2**31)
    return (multiplier // 2, shift + 1) if multiplier == 2**31 else (multiplier, shift)


def multiplied(values: np.ndarray, multiplier: int, shift: int) -> np.ndarray:
    """The kernels' MultiplyByQuantizedMultiplier with two roundings: by 2^31, then by a power of two."""
    left, right = max(shift, 0), max(-shift, 0)
    product = (values << left) * multiplier
    nudge = np.where(product >= 0, 1 << 30, 1 - (1 << 30))
    high = np.trunc((product + nudge) / 2.0**31).astype(np.int64)
    rest = high & ((1 << right) - 1)
    return (high >> right) + (rest > ((1 << right) - 1 >> 1) + (high < 0))


def factor(scale: np.float32, result: np.float32, count: int) -> int:
    """The least factor of the sum for which QUANTIZE rounds every possible sum as MEAN does; 0 where none is found."""
    sums = np.arange(-255 * count, 255 * count + 1, dtype=np.int64)
    multiplier, shift = quantised(float(scale) / float(result))
    more = min(count.bit_length() - 1, 32, 31 + shift)
    expected = multiplied(sums, (multiplier << more) // count, shift - more)
    for by in range(1, 400):
        ratio = float(np.float32(float(scale) / count / by)) / float(result)
        if np.array_equal(multiplied(sums * by, *quantised(ratio)), expected):
            return by
    return 0


def mean_checked(net, x):
    """The sum times a factor, scaled by QUANTIZE; the factor was checked for every possible sum."""
    count, total = int(np.prod(net.shape(x)[1:3])), summed(net, x, strips(net, x))
    result, entry = net.activation((1, 1, 1, net.channels(x))), net.main.tensors[x].quantization
    by = factor(entry.scale[0], net.main.tensors[result].quantization.scale[0], count)
    if not by:
        raise UnsupportedError("QUANTIZE rounds some sum in another way than MEAN, by any factor")
    total = add_op(net, "MUL", (total, net.constant([by])), tensor(net, net.shape(result), "int32"), "MulOptions")
    scales = type(entry)()
    scales.scale = np.asarray([np.float32(float(entry.scale[0]) / count / by)], np.float32)
    scales.zeroPoint = np.asarray([int(entry.zeroPoint[0]) * count * by], np.int64)
    net.main.tensors[total].quantization = scales
    return add_op(net, "QUANTIZE", (total,), result, "QuantizeOptions")


def pool_scaled(net, x):
    return scaled(net, x, tensor(net, (1, 1, 1, net.channels(x)), "int8", like=x))


def mean_scaled(net, x):
    if net.dtype == "float32":
        by = net.constant([float(np.prod(net.shape(x)[1:3]))], "float32")
        result = tensor(net, (1, 1, 1, net.channels(x)), "float32")
        return add_op(net, "DIV", (summed(net, x, strips(net, x)), by), result, "DivOptions")
    return scaled(net, x, net.activation((1, 1, 1, net.channels(x))))


def connected_parts(net, x):
    """Each strip by its columns of the weights, and the parts added with ADD."""
    answer, (values,) = net.activation((1, 6)), weights(net, x)
    total = None
    for piece, part in _flat_strips(net, x, values):
        own = net.tensor(part.shape, net.dtype, part, scale=0.02)
        one = tensor(net, (1, 6), net.dtype, like=answer)
        add_op(net, "FULLY_CONNECTED", (piece, own), one, "FullyConnectedOptions")
        joined = tensor(net, (1, 6), net.dtype, like=answer)
        total = one if total is None else add_op(net, "ADD", (total, one), joined, "AddOptions")
    return total


def connected_joined(net, x):
    """Each strip behind the sums so far, which an identity before its columns of the weights lets pass: so the kernel
    adds up in the sequence of the whole map."""
    (values,), total = weights(net, x), None
    for piece, part in _flat_strips(net, x, values):
        if total is not None:
            both = tensor(net, (1, 6 + part.shape[1]), "float32")
            piece = add_op(net, "CONCATENATION", (total, piece), both, "ConcatenationOptions", axis=1)
            part = np.concatenate([np.eye(6, dtype=np.float32), part], axis=1)
        own = net.tensor(part.shape, "float32", part)
        total = add_op(net, "FULLY_CONNECTED", (piece, own), tensor(net, (1, 6), "float32"), "FullyConnectedOptions")
    return total


def _flat_strips(net, x, values) -> Iterator[tuple[int, np.ndarray]]:
    """(a strip as a row of values, its columns of the weights)."""
    table = np.frombuffer(net.model.buffers[net.main.tensors[values].buffer].data, net.dtype).reshape(6, -1)
    begin = 0
    for piece in list(strips(net, x)):
        count = int(np.prod(net.shape(piece)))
        yield flat(net, piece, (1, count)), np.ascontiguousarray(table[:, begin : begin + count])
        begin += count


Make = Callable[..., int]
SPELLINGS: Mapping[tuple[str, str, str], tuple[Make, Make]] = {
    ("AVERAGE_POOL_2D", "int8", "sum in int32, DIV"): (pool, divided),
    ("AVERAGE_POOL_2D", "int8", "sum in int32, QUANTIZE"): (pool, pool_scaled),
    ("MEAN", "int8", "sum in int32, QUANTIZE"): (mean, mean_scaled),
    ("MEAN", "int8", "sum in int32, MUL, QUANTIZE, checked for every sum"): (mean, mean_checked),
    ("FULLY_CONNECTED", "int8", "parts, ADD"): (connected, connected_parts),
    ("AVERAGE_POOL_2D", "float32", "sum in sequence, DIV"): (pool, divided),
    ("MEAN", "float32", "sum in sequence, DIV"): (mean, mean_scaled),
    ("FULLY_CONNECTED", "float32", "parts, ADD"): (connected, connected_parts),
    ("FULLY_CONNECTED", "float32", "sums so far before each part"): (connected, connected_joined),
}


def written(make: Make, case: Case, dtype: str, path: Path) -> Path:
    net, x = start(case, dtype)
    return net.save(path, [make(net, x)])


def compared(makes: tuple[Make, Make], case: Case, dtype: str, folder: Path) -> list[tflm.Measurement]:
    """The measurements of both files in TFLite Micro; none where the spelling refuses the network."""
    try:
        files = [written(make, case, dtype, folder / f"{number}.tflite") for number, make in enumerate(makes)]
    except UnsupportedError:
        return []
    return [tflm.measure(file, seed=case.seed) for file in files]


def same(pair: list[tflm.Measurement]) -> bool:
    return all(np.array_equal(*both) for both in zip(*(one.outputs for one in pair), strict=True))


def same_in_litert(makes: tuple[Make, Make], case: Case, dtype: str, folder: Path) -> bool:
    """Whether both files compute the same in LiteRT, where it runs both."""
    files = [written(make, case, dtype, folder / f"{number}.tflite") for number, make in enumerate(makes)]
    try:
        pair = [litert.run(file, seed=case.seed) for file in files]
    except DownsetError:
        return False
    return all(np.array_equal(*both) for both in zip(*pair, strict=True))


def rows(options: Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as name:
        for (operator, dtype, spelling), makes in SPELLINGS.items():
            equal, in_litert, spelled = 0, 0, 0
            for seed in range(5 if options.quick else NETWORKS):
                random = np.random.default_rng(seed)
                case = Case(int(random.integers(2, 8)), int(random.integers(2, 8)), int(random.integers(1, 9)), seed)
                pair = compared(makes, case, dtype, Path(name))
                spelled += bool(pair)
                equal += bool(pair) and same(pair)
                in_litert += bool(pair) and same_in_litert(makes, case, dtype, Path(name))
            large = (compared(makes, Case(*LARGE, seed), dtype, Path(name)) for seed in range(NETWORKS))
            whole, parts = next(pair for pair in large if pair)
            yield {
                "operator": operator,
                "dtype": dtype,
                "spelling": spelling,
                "networks": 5 if options.quick else NETWORKS,
                "spelled": spelled,
                "equal": equal,
                "equal_in_litert": in_litert,
                "head_bytes": [whole.head_bytes, parts.head_bytes],
                "tail_bytes": [whole.tail_bytes, parts.tail_bytes],
            }


def both(name: str) -> Callable[[Row], str]:
    return lambda row: " -> ".join(f"{value:,}" for value in row[name])


EXPERIMENT = Experiment(
    "partial_accumulate",
    rows,
    (
        ("operator", "{operator}"),
        ("type", "{dtype}"),
        ("spelling", "{spelling}"),
        ("networks", "{networks}"),
        ("spelled", "{spelled}"),
        ("equal to the bit", "{equal}"),
        ("in LiteRT", "{equal_in_litert}"),
        ("head, 7 x 7 x 1280", both("head_bytes")),
        ("tail", both("tail_bytes")),
    ),
    key=("operator", "dtype", "spelling"),
    quick="five networks, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
