"""Offsets for TFLite Micro are read as it reads them, and refused where they would put a tensor over bytes that are
needed, or where that cannot be told."""

import copy

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

from downset.equivalence.offline import OFFLINE_KEY
from downset.equivalence.prove import prove
from downset.errors import InvalidPlan
from downset.runtimes import tflm
from tests.equivalence.tflite_pairs import Build, unary
from tests.equivalence.tflite_tables import TAIL, made, save

SIZE = 256


def branches():
    """Two results, the second of which a branch makes: a condition, x, |x|, -|x|, and an IF of it."""
    build = Build()
    condition, x = build.input((1,), "bool"), build.input((SIZE,))
    kept = unary(build, "NEG", unary(build, "ABS", x, shape=(SIZE,)), shape=(SIZE,))
    for number, names in ((1, ("NEG", "ABS")), (2, ("ABS", "NEG"))):
        inner = build.input((SIZE,), graph=build.graph())
        for name in names:
            inner = unary(build, name, inner, graph=number, shape=(SIZE,))
        build.outputs(inner, graph=number)
    options = made(schema.IfOptionsT, thenSubgraphIndex=1, elseSubgraphIndex=2)
    return build.outputs(kept, build.op("IF", [condition, x], [build.tensor((SIZE,))], options))


def planned(model, offsets, *, count=None, data=True):
    """The file with these offsets, -1 for the tensors behind them."""
    changed = copy.deepcopy(model)
    tensors = sum(len(graph.tensors) for graph in changed.subgraphs)
    plan = [1, 0, tensors if count is None else count, *offsets, *[-1] * (tensors - len(offsets))]
    content = np.frombuffer(np.array(plan, np.int32).tobytes(), np.uint8)
    held = {"data": content} if data else {"offset": TAIL, "size": 4 * len(plan)}
    changed.buffers.append(made(schema.BufferT, **held))
    entry = made(schema.MetadataT, name=OFFLINE_KEY.encode(), buffer=len(changed.buffers) - 1)
    changed.metadata = [*(changed.metadata or []), entry]
    return changed


GOOD = [0, 16, 2064, 1040, 3088]
"""x, then |x| behind -|x|, then the branch's result."""


def outputs(path):
    return [output.tobytes() for output in tflm.measure(path).outputs]


def test_offsets_that_hold_are_proven_and_run(tmp_path):
    one = save(branches(), tmp_path / "one.tflite")
    for at, offsets in enumerate(([-1] * 5, GOOD, [-1, 16, -1, -1, -1])):
        other = save(planned(branches(), offsets), tmp_path / f"{at}.tflite")
        assert prove(one, other).placed and prove(one, other).proven
        assert outputs(one) == outputs(other)


FAULTS = {
    "overlaps": planned(branches(), [*GOOD[:4], 1040]),
    "2 lists of offsets": planned(planned(branches(), GOOD), [*GOOD[:4], 1040]),
    "of other graphs than the main one": planned(branches(), [*GOOD, 1040, 1040, 1040]),
    "before the arena": planned(branches(), [-2, *GOOD[1:]]),
    "offsets for 12 tensors": planned(branches(), GOOD, count=12),
    "offsets for 7 tensors": planned(branches(), GOOD, count=7),
    "offsets for 13 tensors": planned(branches(), [*GOOD, *[-1] * 8]),
    "do not lie in the flatbuffer": planned(branches(), GOOD, data=False),
}


@pytest.mark.parametrize("said", FAULTS)
def test_offsets_that_do_not_hold_are_refused(said, tmp_path):
    one, other = save(branches(), tmp_path / "one.tflite"), save(FAULTS[said], tmp_path / "other.tflite")
    with pytest.raises(InvalidPlan, match=said):
        prove(one, other)


@pytest.mark.parametrize("said", ["overlaps", "2 lists of offsets", "of other graphs than the main one"])
def test_tflite_micro_computes_something_else_with_what_is_refused(said, tmp_path):
    one, other = save(branches(), tmp_path / "one.tflite"), save(FAULTS[said], tmp_path / "other.tflite")
    assert outputs(one) != outputs(other)


def test_a_variable_has_no_offset(tmp_path):
    build = Build()
    x = build.input((1, 8))
    weights = [build.tensor(shape, value=np.ones(shape)) for shape in ((4, 8), (4, 3))]
    state = build.tensor((1, 12), isVariable=True)
    options = made(schema.SVDFOptionsT, rank=2)
    model = build.outputs(build.op("SVDF", [x, *weights, -1, state], [build.tensor((1, 2))], options))
    one, other = save(model, tmp_path / "one.tflite"), tmp_path / "other.tflite"
    assert prove(one, save(planned(model, [0, -1, -1, -1, 32]), other)).placed
    with pytest.raises(InvalidPlan, match="the variable 't3' has one"):
        prove(one, save(planned(model, [0, -1, -1, 0, 64]), other))
