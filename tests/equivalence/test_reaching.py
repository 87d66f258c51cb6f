"""Runs that aim at what two files differ in find it where ordinary inputs do not, and find nothing where files are one
network that is written otherwise."""

import numpy as np
import pytest
from onnx import TensorProto, helper

from downset.runtimes import reaching
from downset.runtimes.compare import compare
from tests.effort import cases
from tests.equivalence.pairs_apart import ONNX, TFLITE, node, onnx_pair, saved, tflite_pair, written_otherwise
from tests.models import constant


def pair(folder, kind, seed):
    return (onnx_pair if kind in ONNX else tflite_pair)(folder, kind, seed)


@pytest.mark.parametrize("kind", [*ONNX, *TFLITE])
def test_files_that_differ_in_one_number_are_told_apart(tmp_path, kind):
    """A number that decides a branch or an element, limits it, or lies in a branch or a body that no usual input runs.
    That none is found is allowed of one in twenty; that one is proven, of none."""
    seeds = range(cases(5) if kind in ONNX else cases(10))
    found = [compare(*pair(tmp_path, kind, seed), time_limit_s=60) for seed in seeds]
    assert not any(each.proven for each in found)
    differ = [each.verdict() == "differ" for each in found]
    assert sum(differ) >= 0.95 * len(differ), [each.unshown or each.note for each in found]


def test_most_of_them_are_not_found_by_usual_inputs_alone(tmp_path, monkeypatch):
    """Otherwise the law above would say nothing about inputs that aim at differences."""
    monkeypatch.setattr("downset.runtimes.compare.reach", lambda *_, **__: reaching.Reached())
    kinds = ("compared", "clipped", "nested", "looped", "branch", "loop")
    found = [compare(*pair(tmp_path, kind, 1)) for kind in kinds]
    assert sum(each.verdict() == "not proven" and bool(each.unshown) for each in found) >= 4


@pytest.mark.parametrize("seed", range(cases(20)))
def test_one_network_that_is_written_otherwise_does_not_differ(tmp_path, seed):
    found = compare(*written_otherwise(tmp_path, seed))
    assert found.verdict() == "not proven" and found.tried


def test_rounding_that_large_inputs_make_large_is_no_difference(tmp_path):
    """The sine of a million times x moves by as much where x itself is rounded."""
    parts = [node("Mul", ["x", "third"], "p0"), node("Mul", ["x", "rest"], "p1"), node("Add", ["p0", "p1"], "h")]
    weights = [constant("third", np.float32(0.3)), constant("rest", np.float32(0.7))]
    one = saved(tmp_path / "a.onnx", [*parts, node("Sin", ["h"], "y")], weights)
    found = compare(one, saved(tmp_path / "b.onnx", [node("Sin", ["x"], "y")], []))
    assert found.rounds_alike and found.verdict() == "not proven" and found.telling


def test_a_limit_of_time_ends_the_search_and_is_said(tmp_path):
    found = compare(*written_otherwise(tmp_path, 1), time_limit_s=0.0)
    assert found.verdict() == "not proven"
    assert found.tried == ("the time limit ended the search for a difference",)


def test_inputs_on_which_one_file_fails_alone_are_a_difference(tmp_path):
    """An index that is in the range of one table and beyond that of the other."""
    files = []
    for length in (200, 50):
        given = [helper.make_tensor_value_info("i", TensorProto.INT64, [1, 4])]
        nodes = [node("Gather", ["table", "i"], "g"), node("Add", ["g", "x"], "y")]
        table = constant("table", np.ones(length, np.float32))
        files.append(saved(tmp_path / f"{length}.onnx", nodes, [table], given))
    found = compare(*files)
    assert found.equal and found.verdict() == "differ"
    assert "the second fails and the other does not, on integers of 100" in found.reached


@pytest.mark.own_processes("runtimes")
def test_a_network_that_draws_numbers_is_proven_and_its_runs_say_nothing(tmp_path, run):
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["r"], name="draw"), node("Add", ["x", "r"], "y")]
    path = saved(tmp_path / "m.onnx", nodes, [])
    status, out, _ = run("verify", path, path)
    assert status == 0 and "each time on the same inputs" in out
    other = saved(tmp_path / "o.onnx", [*nodes[:1], node("Sub", ["x", "r"], "y")], [])
    assert run("verify", path, other, "--accept-runs")[0] == 6
