"""The lemma of shifts names a reason for every operator that stops the rows: each `raise Unproven` of its rules is
reached by a network of one operator, and none is left that no network reaches."""

import numpy as np
import pytest

from downset.equivalence import motion_rules, moving_rows, slices
from downset.equivalence.claims import Claim, Unproven, Views
from downset.equivalence.file_network import ABSENT, Body, FileNetwork, FileNode, FileValue
from downset.equivalence.identities import Place
from downset.equivalence.stream_motion import motions
from tests.equivalence.raised import never_raised, recorded

ROWS = 8


class OneOperator:
    """A network whose input has 8 rows, and an operator that reads it and constants. `axis`: the rows of the input."""

    def __init__(self, shape, axis):
        self.values, self.nodes, self.axis = [FileValue("x", shape=shape, dtype="float32")], [], axis

    def value(self, shape, dtype="float32", array=None):
        content = None if array is None else np.asarray(array, dtype).tobytes
        self.values.append(FileValue(f"v{len(self.values)}", shape=shape, dtype=dtype, content=content))
        return len(self.values) - 1

    def constant(self, array, dtype="int64"):
        array = np.asarray(array, dtype)
        return self.value(array.shape, dtype, array)

    def op(self, kind, inputs, *shapes, **settings):
        """The first result."""
        made = [self.value(shape) for shape in shapes]
        self.nodes.append(FileNode(f"n{len(self.nodes)}", kind, settings, tuple(inputs), tuple(made)))
        return made[0]

    @property
    def network(self):
        main = Body("", (0,), self.nodes[-1].outputs, tuple(range(len(self.nodes))))
        return FileNetwork("", tuple(self.values), tuple(self.nodes), (main,))

    def reason(self):
        return motions(self.network, 0, self.axis, 2).stops[self.nodes[-1].outputs[0]]


def one(kind, shape, made, *more, axis=2, dtype="int64", **settings):
    """An operator on the input and constants."""
    net = OneOperator(shape, axis)
    net.op(kind, [0, *(net.constant(array, dtype) for array in more)], made, **settings)
    return net


def integers(*values):
    return (7, values)


def unknown_shape():
    net = OneOperator((1, 2, ROWS), 2)
    net.op("Relu", [0], None)
    return net


def computed_axes():
    """Axes that are fixed, and that nothing computes before the run."""
    net = OneOperator((1, 2, ROWS), 2)
    axes = net.op("Cast", [net.constant([1])], (1,))
    net.op("ReduceSum", [0, axes], (1, 1, ROWS))
    return net


def computed_bounds():
    net = OneOperator((1, 2, ROWS), 2)
    start = net.op("Cast", [net.constant([1])], (1,))
    net.op("Slice", [0, start, net.constant([4]), net.constant([2])], (1, 2, 3))
    return net


def transposed_sum():
    net = OneOperator((1, ROWS, ROWS), 2)
    turned = net.op("Transpose", [0], (1, ROWS, ROWS), perm=integers(0, 2, 1))
    net.op("Add", [0, turned], (1, ROWS, ROWS))
    return net


def repeated_row():
    net = OneOperator((1, 2, ROWS), 2)
    row = net.op("Slice", [0, *(net.constant([value]) for value in (0, 1, 2))], (1, 2, 1))
    net.op("Add", [0, row], (1, 2, ROWS))
    return net


def learning():
    net = OneOperator((1, 2, ROWS), 2)
    net.op("BatchNormalization", [0, *(net.constant([1, 1], "float32") for _ in range(4))], (1, 2, ROWS))
    net.nodes[-1].settings["training_mode"] = (2, 1)
    return net


def hybrid():
    net = one("CONV_2D", (1, ROWS, 1, 2), (1, ROWS - 1, 1, 2), np.ones((2, 2, 1, 2)), axis=1, dtype="int8")
    net.nodes[-1].settings.update({"BuiltinOptions": "Conv2DOptionsT", "strideH": 1, "strideW": 1, "padding": 1})
    return net


def twice(kind, shape, made, **settings):
    net = OneOperator(shape, 2)
    net.op(kind, [0, 0], made, **settings)
    return net


def along_rows(net):
    net.nodes[-1].settings["axis"] = (2, 2)
    return net


def resize(scales, made, **settings):
    net = OneOperator((1, 2, ROWS), 2)
    more = [ABSENT, ABSENT if scales is None else net.constant(scales, "float32")]
    net.op("Resize", [0, *more], made, **settings)
    return net


def strided(start):
    """Four rows from this one on."""
    return one("STRIDED_SLICE", (1, 2, ROWS), (1, 2, 4), [0, 0, start], [1, 2, start + 4], [1, 1, 1])


def beyond():
    """Four rows along an axis beyond the last, by ONNX's Slice."""
    return one("Slice", (1, 2, ROWS), (1, 2, 4), [2], [6], [3])


COPIES = {"coordinate_transformation_mode": (3, b"asymmetric"), "nearest_mode": (3, b"floor")}
MASKED = ([0, 0, 0], [1, 2, ROWS], [1, 1, 1])
REASONS = {
    "slices an axis that its input lacks": beyond,
    "has no rule": lambda: one("CumSum", (1, 2, ROWS), (1, 2, ROWS), 1),
    "unknown shape": unknown_shape,
    "reads rows of several tensors": lambda: twice("Conv", (2, 2, ROWS), (2, 2, 1)),
    "ReduceSum 'n1' has an input that is not constant": computed_axes,
    "a constant with rows of its own": lambda: one("Add", (1, 2, ROWS), (1, 2, ROWS), range(ROWS)),
    "joins tensors that move along other axes": transposed_sum,
    "broadcasts in its own way": lambda: one("Add", (1, 2, ROWS), (1, 2, ROWS), [1, 2], broadcast=(2, 1)),
    "repeats a row": repeated_row,
    "adds up rows, which are its channels": lambda: one(
        "Conv", (1, ROWS, 4), (1, 2, 4), np.ones((2, ROWS, 1)), axis=1, dtype="float32"
    ),
    "scales all rows by the largest value": hybrid,
    "one behind the other along the rows": lambda: twice("Concat", (1, 2, ROWS), (1, 2, 2 * ROWS), axis=(2, 2)),
    "takes one row": lambda: one("STRIDED_SLICE", (1, 2, ROWS), (1, 2), *MASKED, shrinkAxisMask=4),
    "puts rows and other dimensions into one": lambda: one("Reshape", (1, 2, ROWS), (1, 2 * ROWS), [1, -1]),
    "normalises over the rows": lambda: one("SOFTMAX", (1, 2, ROWS), (1, 2, ROWS)),
    "reduces over the rows": lambda: one("ReduceMean", (1, 2, ROWS), (1, 2, 1), axes=integers(2)),
    "pools over the rows": lambda: one("GlobalMaxPool", (1, 2, ROWS), (1, 2, 1)),
    "learns, or has a scale for each block": learning,
    "scales each row by a constant of its own": lambda: along_rows(
        one("QuantizeLinear", (1, 2, ROWS), (1, 2, ROWS), range(ROWS), dtype="float32")
    ),
    "adds up rows, or transposes them": lambda: one("MatMul", (1, 2, ROWS), (1, 2, 3), np.ones((ROWS, 3))),
    "multiplies batches of several matrices": lambda: one(
        "MatMul", (ROWS, 2), (5, ROWS, 3), np.ones((5, 2, 3)), axis=0
    ),
    "reads several rows as one": lambda: one(
        "FULLY_CONNECTED", (1, ROWS, 2), (1, 3), np.ones((3, 2 * ROWS)), axis=1, dtype="float32"
    ),
    "does not copy rows from asymmetric coordinates": lambda: resize([1, 1, 2], (1, 2, 2 * ROWS), mode=(3, b"linear")),
    "states no whole factor": lambda: resize([1, 1, 1.5], (1, 2, 12), mode=(3, b"nearest"), **COPIES),
    "has a factor that is not a power of two": lambda: one(
        "RESIZE_BILINEAR", (1, ROWS, 1, 2), (1, 3 * ROWS, 1, 2), [3 * ROWS, 1], axis=1
    ),
    "makes rows at places between rows": lambda: one(
        "RESIZE_NEAREST_NEIGHBOR", (1, ROWS, 1, 2), (1, 12, 1, 2), [12, 1], axis=1
    ),
    "gathers by batches": lambda: one("GATHER", (1, 2, ROWS), (1, 1, ROWS), [[0]], batchDims=1),
    "takes single rows": lambda: along_rows(one("Gather", (1, 2, ROWS), (1, 2, 2), [0, 3])),
    "states no constant bounds": lambda: one("Slice", (1, 2, ROWS), (1, 2, 3), axes=integers(2)),
    "has bounds of other axes": lambda: one("Slice", (1, 2, ROWS), (1, 2, 3), [0, 1], [3, 4], [2, 2]),
    "has a mask of new axes": lambda: one("STRIDED_SLICE", (1, 2, ROWS), (1, 1, 2, ROWS), *MASKED, newAxisMask=1),
    "reverses rows": lambda: one("Slice", (1, 2, ROWS), (1, 2, ROWS), [-1], [-99], [2], [-1]),
    "Slice 'n1' has an input that is not constant": computed_bounds,
}
"""By what the reason says: a network that has it."""


@pytest.mark.parametrize("reason", REASONS)
def test_an_operator_that_stops_the_rows_says_why(reason):
    assert reason in REASONS[reason]().reason()


WHOLE = ((0, 1), (0, 2), (0, ROWS))
SLICES = {
    "it is no Relu": (one("Relu", (1, 2, ROWS), (1, 2, ROWS)), Claim(0, WHOLE)),
    "its input holds no part of what the original reads": (strided(2), None),
    "it takes other positions": (strided(1), Claim(0, WHOLE)),
}
"""By reason: what an operator is the same as a slice from row 2 on, and what its input is said to hold."""


def resliced_reason(original, claim):
    claims = {} if claim is None else {0: claim}
    mine = strided(2).network
    place = Place(mine.nodes[0], mine, original.network, Views(original.network), claims)
    with pytest.raises(Unproven) as raised:
        slices.resliced(place, original.network.nodes[0], ((0, 1), (0, 2), (0, 4)))
    return str(raised.value)


@pytest.mark.parametrize("reason", SLICES)
def test_a_slice_that_takes_something_else_says_why(reason):
    assert resliced_reason(*SLICES[reason]) == reason


def test_no_reason_is_left_that_no_network_has(monkeypatch):
    made = recorded(monkeypatch)
    for build in REASONS.values():
        build().reason()
    for original, claim in SLICES.values():
        resliced_reason(original, claim)
    assert never_raised(made, motion_rules, moving_rows, slices) == []
