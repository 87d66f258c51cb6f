"""Every kernel of the table against ONNX Runtime, on random shapes and attributes."""

import math

import numpy as np
import onnx
import pytest

from downset.arenas.plan import plan_arena
from downset.executor.arena import run_in_arena
from downset.extras import torch_library
from downset.formats.reading import load
from downset.graph.core import Op
from downset.kernels.table import KERNELS
from downset.orders.plan import plan_order
from tests.kernel_case import Case, positive
from tests.kernel_cases import KINDS, model_of, saved_case

CASES = 6
"""Random cases of each kind."""


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


ANYTHING = {"ArgMax", "ArgMin", "GlobalMaxPool", "MaxPool", "ReduceMax", "ReduceMin"}
"""What ONNX Runtime makes of NaN here depends on where it stands; PyTorch hands it on."""
DEGENERATE = {"Gelu", "LRN", "Resize", "Upsample", "com.microsoft::Gelu"}
"""Formulas that multiply infinity by 0 in one way of writing them and not in another."""


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ANYTHING | DEGENERATE])
def test_what_is_no_number_or_infinite_goes_where_it_does_in_onnx_runtime(tmp_path, kind):
    path = tmp_path / "one.onnx"
    for seed in range(CASES):
        case, feeds, expected = saved_case(path, kind, seed, spoil=spoiled)
        if case.opset < 11 and kind == "Clip":  # its limits were the largest floats where none are given
            continue
        graph = load(path)
        order = plan_order(graph, method="file")
        ran = run_in_arena(graph, order, plan_arena(graph, order), list(feeds.values()))
        for ours, theirs in zip(ran.outputs, expected, strict=True):
            text = f"case {seed}: {case.inputs} {case.attrs}"
            np.testing.assert_allclose(
                ours.astype(np.float64), theirs.astype(np.float64), case.tolerance, case.tolerance, err_msg=text
            )


def spoiled(r, case):
    """With NaN and both infinities somewhere in each floating-point input that is not a constant."""
    for at, value in enumerate(case.inputs):
        if value is not None and at not in case.constants and np.asarray(value).dtype.kind == "f":
            flat = np.array(value).reshape(-1)
            for place, bad in zip(r.permutation(flat.size), (np.nan, np.inf, -np.inf), strict=False):
                flat[place] = bad
            case.inputs[at] = flat.reshape(np.shape(value))


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


def test_integers_are_divided_exactly_and_no_division_ends_the_process():
    """Of the least integer by -1, and by 0, ONNX says nothing; on x86 a processor ends the process that asks it."""
    torch, least = torch_library(), -(2**63)
    dividend, divisor = torch.tensor([2**60 + 1, -7, 7, least, 5]), torch.tensor([1, 2, -2, -1, 0])
    (quotient,) = KERNELS["Div"](Op("div", "Div", (0, 1), (2,)), [dividend, divisor], None)
    assert quotient.tolist() == [2**60 + 1, -3, -3, least, 0]
