"""The int8 form of uint8 files: the same values less 128 wherever it is said to be exact, and a reason elsewhere."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from downset.errors import UnsupportedError, UsageError
from downset.fitting.preparing import as_int8, int8_note
from downset.formats.reading import load
from downset.formats.tflite.int8_form import fault, thresholds, uses_uint8, write_int8_form
from tests.tflite_net import TfliteNet


def uint8_network(path, change=None):
    """Convolutions, a residual sum, pools and a concatenation, with weights of zero point 128."""
    net = TfliteNet(4, size=6, dtype="int8")
    x = net.input(3)
    y = net.conv(x, 4, 3)
    net.main.tensors[y].shape = np.asarray([1, 6, 6, 4], np.int32)
    y = net.op("ADD", (y, net.depthwise(y)), 4, "AddOptions")
    pooled = {"filterWidth": 3, "filterHeight": 3, "strideW": 1, "strideH": 1}
    made = net.op("AVERAGE_POOL_2D", (y,), 4, "Pool2DOptions", padding=1, **pooled)
    most = net.op("MAX_POOL_2D", (y,), 4, "Pool2DOptions", padding=1, **pooled)
    for tensor in (made, most):
        net.main.tensors[tensor].shape = np.asarray([1, 4, 4, 4], np.int32)
    joined = net.concat([made, most])
    net.main.tensors[joined].shape = np.asarray([1, 4, 4, 8], np.int32)
    for tensor in net.main.tensors:
        one = float(tensor.quantization.scale[0]) if len(tensor.quantization.scale) > 1 else 0.5
        tensor.quantization.scale = np.asarray([one], np.float32)
        if tensor.type == schema.TensorType.INT8:
            tensor.type = schema.TensorType.UINT8
            tensor.quantization.zeroPoint = np.asarray([128], np.int64)
            if tensor.buffer:
                held = net.model.buffers[tensor.buffer]
                held.data = held.data ^ np.uint8(128)
        else:
            tensor.quantization.zeroPoint = np.asarray([0], np.int64)
    weighted = {schema.BuiltinOperator.CONV_2D, schema.BuiltinOperator.DEPTHWISE_CONV_2D}
    for op in net.main.operators:
        if net.model.operatorCodes[op.opcodeIndex].builtinCode in weighted:
            weights, bias = (net.main.tensors[int(at)].quantization for at in op.inputs[1:3])
            bias.scale = weights.scale * np.float32(0.5)
    if change is not None:
        change(net)
    return net.save(path, [joined])


def test_every_value_is_less_by_128(tmp_path):
    """Outputs and all tensors inside, in LiteRT, on three inputs."""
    path = uint8_network(tmp_path / "m.tflite")
    assert uses_uint8(path)
    made, note = as_int8(path, tmp_path / "int8")
    assert "bit for bit, on 3 inputs" in note
    before, after = load(path), load(made)
    assert {tensor.dtype for tensor in after.tensors if tensor.role != "constant"} == {"int8"}
    assert [tensor.name for tensor in before.tensors] == [tensor.name for tensor in after.tensors]
    assert int8_note(made) == (False, "")
    with pytest.raises(UsageError, match="does not compute on uint8"):
        as_int8(made, tmp_path / "again")


def weights_of(net):
    return net.main.tensors[int(net.main.operators[0].inputs[1])]


def other_zero(net):
    weights_of(net).quantization.zeroPoint = np.asarray([127], np.int64)


def lowest_weight(net):
    net.model.buffers[weights_of(net).buffer].data[0] = 0


def even_window(net):
    pools = [op for op in net.main.operators if isinstance(op.builtinOptions, schema.Pool2DOptionsT)]
    pools[0].builtinOptions.filterWidth = 4


def other_scale(net):
    net.main.tensors[int(net.main.operators[-1].inputs[0])].quantization.scale = np.asarray([0.25], np.float32)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (other_zero, "zero point 127"),
        (lowest_weight, "would be -128"),
        (even_window, "even number of positions"),
        (other_scale, "different scales|changes the scale"),
    ],
)
def test_what_int8_would_round_otherwise_is_refused(tmp_path, change, reason):
    path = uint8_network(tmp_path / "m.tflite", change)
    assert fault(path) is not None
    with pytest.raises(UnsupportedError, match=reason):
        write_int8_form(path, tmp_path / "w.tflite")
    assert not (tmp_path / "w.tflite").exists()
    assert "has no exact int8 form" in int8_note(path)[1]


@pytest.mark.parametrize("scale", [0.00371, 0.0478, 0.9, 1.7])
def test_thresholds_are_the_least_sums(scale):
    """Against every sum in a range: the least whose rounded product with the scale reaches the value."""
    (rows, _), zero = thresholds(scale, 100), 100
    sums = np.arange(-int(120 / scale), int(170 / scale))
    exact = np.floor(sums * scale + 0.5)
    for value in (-100, -37, 0, 1, 155):
        least = int(sums[exact >= value][0])
        assert abs(rows[value + zero] - least) <= 1
