"""Rounding in ONNX Runtime: what only moves nodes keeps every bit, and the original's own rounding judges the rest."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.reports.comparisons import comparison_lines
from downset.results.sessions import FILE_ORDER
from downset.runtimes import outputs
from downset.runtimes.compare import Opened, compare, compare_outputs
from downset.runtimes.feeds import made_feeds
from downset.runtimes.ort import optimise_offline
from downset.runtimes.rounding import TIMES, first_beyond, least_scales, over_ranges
from downset.tuning.merged_file import export_merged
from tests.effort import cases
from tests.networks import branchy

CHANGED = 1e-3
"""The share by which one number of a weight is changed."""


def optimised(path):
    folder = path.parent / f"of_{path.stem}"
    folder.mkdir()
    optimise_offline(path, folder / path.name)
    return folder / path.name


def reordered(path, output, random, changed=None):
    """The nodes in a random order that their edges allow; with `changed` a number of one weight by `CHANGED`."""
    model = onnx.load(str(path))
    waiting, made, order = list(model.graph.node), {value.name for value in model.graph.input}, []
    made |= {value.name for value in model.graph.initializer}
    while waiting:
        ready = [node for node in waiting if all(not name or name in made for name in node.input)]
        node = ready[random.integers(len(ready))]
        waiting.remove(node)
        order.append(node)
        made.update(node.output)
    del model.graph.node[:]
    model.graph.node.extend(order)
    if changed is not None:
        floats = [each for each in model.graph.initializer if each.data_type == TensorProto.FLOAT]
        weight = floats[changed % len(floats)]
        value = numpy_helper.to_array(weight).copy()
        value.reshape(-1)[random.integers(value.size)] *= np.float32(1 + CHANGED)
        weight.CopyFrom(numpy_helper.from_array(value, weight.name))
    onnx.save(model, str(output))
    return output


def held(original, form, other):
    """The comparison as `fit` makes it of a file in another order, without its proof, which would find every weight."""
    return compare_outputs(original, other, runtime="ort", opened=Opened(FILE_ORDER, form, exact=True))


def test_an_order_is_accepted_and_a_changed_weight_is_not(tmp_path):
    """At least 95 % of single numbers that are changed by a thousandth are found, by runs alone."""
    random, found, tried = np.random.default_rng(0), 0, cases(80)
    for seed in range(max(tried // 8, 1)):
        path = branchy(tmp_path / f"{seed}.onnx", seed=seed)
        form = optimised(path)
        alike = held(path, form, reordered(form, tmp_path / "order.onnx", random))
        assert alike.rounds_alike and not alike.inside_note
        assert alike.rounding.level == "extended" or alike.equal
        for index in range(min(tried, 8)):
            other = held(path, form, reordered(form, tmp_path / "changed.onnx", random, index))
            found += not other.rounds_alike or bool(other.inside_note)
    assert found >= 0.95 * tried


def detector(path):
    """The end of a detector: small scores behind a sigmoid, whose rounding is that of numbers near 1."""
    random = np.random.default_rng(2)

    def weight(name, *shape, scale=1.0):
        return numpy_helper.from_array((random.standard_normal(shape) * scale).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["a"], name="a", pads=[1] * 4),
        helper.make_node("Sigmoid", ["a"], ["s"], name="s"),
        helper.make_node("Mul", ["a", "s"], ["b"], name="b"),
        helper.make_node("Conv", ["b", "w1", "low"], ["c"], name="c"),
        helper.make_node("Sigmoid", ["c"], ["score"], name="score"),
        helper.make_node("Conv", ["b", "w2"], ["d"], name="d"),
        helper.make_node("Concat", ["score", "d"], ["y"], name="y", axis=1),
    ]
    weights = [weight("w0", 8, 3, 3, 3, scale=0.3), weight("w1", 4, 8, 1, 1, scale=0.5), weight("w2", 4, 8, 1, 1)]
    weights.append(numpy_helper.from_array(np.full(4, -11, np.float32), "low"))
    sides = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 17, 17])]
    made = [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 8, 17, 17])]
    graph = helper.make_graph(nodes, "detector", sides, made, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def test_the_optimised_form_is_not_compared_with_itself(tmp_path, monkeypatch):
    """Each copy of it would be written with all weights."""
    path = branchy(tmp_path / "m.onnx")
    form = optimised(path)
    other = reordered(form, tmp_path / "o.onnx", np.random.default_rng(0))
    assert held(path, form, other).inside > 0
    monkeypatch.setattr(outputs, "with_outputs", None)
    found = held(path, form, form)
    assert found.rounds_alike and found.inside == 0


def test_small_scores_are_no_reason_to_refuse_a_file(tmp_path):
    """Detectors were refused: scores of 1e-5 that a sigmoid rounds by 1e-7 were held to their own size."""
    path, output = detector(tmp_path / "m.onnx"), tmp_path / "f.onnx"
    result = fit(path, output=output, time_limit_s=20)
    assert result.shipped != "original"
    assert not [note for note in result.notes if "left out" in note]
    rounding = result.outputs.rounding
    assert result.outputs.rounds_alike and rounding.times == TIMES
    assert rounding.level or not result.session.follows_file
    if not result.outputs.equal and rounding.level == "extended":
        assert any("optimisation level extended" in line for line in comparison_lines(result.outputs))
    assert compare(path, output).agrees()


def test_a_refused_candidate_makes_room_for_the_next(tmp_path, monkeypatch):
    """One line says what was refused and why, and the fit ends with the original at the latest."""
    from downset.errors import InvalidPlan
    from downset.fitting import choosing

    path, refused = branchy(tmp_path / "m.onnx"), []

    def compared(job, original, chosen):
        if len(refused) < most and chosen.name != "original":
            refused.append(chosen.label)
            raise InvalidPlan(f"so it is said of {chosen.label}")
        return proven(job, original, chosen)

    proven = choosing.compare
    monkeypatch.setattr(choosing, "compare", compared)
    for most in (1, 99):
        refused.clear()
        result = fit(path, output=tmp_path / "f.onnx", time_limit_s=20)
        assert refused and len(set(refused)) == len(refused)
        for label in refused:
            assert [note for note in result.notes if note == f"the {label} file is left out: so it is said of {label}"]
        assert (tmp_path / "f.onnx").exists()
        assert (result.shipped == "original") or most == 1


def test_the_users_data_is_what_outputs_are_compared_on(tmp_path, run, fails):
    path, image = branchy(tmp_path / "m.onnx"), np.full((1, 6, 9, 9), 0.25, np.float32)
    np.savez(tmp_path / "x.npz", x=image)
    np.save(tmp_path / "small.npy", image[:, :, 1:])
    result = fit(path, time_limit_s=20, inputs=[tmp_path / "x.npz", tmp_path / "x.npz"])
    assert result.outputs.runs == 2 and result.shipped != "original"
    fails(2, "fit", path, "--input", tmp_path / "small.npy", says="the network takes float32[1, 6, 9, 9]")
    fails(2, "fit", path, "--input", tmp_path / "small.npy", "--ram", "1KB", says="the network takes")


@pytest.mark.parametrize("dtype", ["float32", "float16", "int64", "uint8"])
def test_each_tensor_is_judged_by_how_far_it_moves_itself(dtype):
    """Against the rule written down once more: no more than `TIMES` times the original's own difference."""
    random = np.random.default_rng(0)
    for _ in range(50):
        large = np.asarray(random.integers(-100, 100, 9) if dtype != "uint8" else random.integers(0, 99, 9), dtype)
        step = np.asarray(random.integers(1, 3), dtype)
        times = int(random.integers(0, 9))
        usual = {"still": large, "moved": large}
        plain = {"still": large, "moved": large + step}
        for name in usual:
            theirs = dict(usual, **{name: np.asarray(large + step * np.asarray(times, dtype), dtype)})
            away = np.abs(theirs[name].astype(float) - large.astype(float)).max()
            own = np.abs(plain[name].astype(float) - large.astype(float)).max()
            last = 4 * np.finfo(dtype).eps * np.abs(large).max() if large.dtype.kind == "f" else 0
            assert bool(first_beyond(usual, plain, theirs)) == (away > 4 * own + last)


def test_no_number_and_other_shapes_are_beyond_rounding():
    one, other = np.asarray([1.0, np.nan, np.inf], np.float32), np.asarray([1.0, 2.0, np.inf], np.float32)
    assert not first_beyond({"y": one}, {"y": one}, {"y": one.copy()})
    assert first_beyond({"y": one}, {"y": one}, {"y": other})
    assert first_beyond({"y": one}, {"y": one}, {"y": one[:2]})


def test_floats_are_tried_over_several_ranges(tmp_path):
    (name,) = (value for value in made_feeds(load(branchy(tmp_path / "m.onnx")), seed=0)[0])
    feeds = made_feeds(load(tmp_path / "m.onnx"), seed=0)
    sizes = [float(np.abs(run[name]).max()) for run in over_ranges(feeds)]
    usual = float(np.abs(feeds[0][name]).max())
    assert min(sizes) < usual / 8 and max(sizes) > 8 * usual
    indices = over_ranges([{"n": np.arange(3)}])
    assert {int(run["n"].max()) > 255 for run in indices} == {False, True}
    assert over_ranges([{"n": np.arange(3, dtype=np.uint8), "b": np.ones(2, bool)}]) == []


def sigmoids(path, kind, *, apart):
    """Two 1x1 convolutions side by side and the operator behind both; with `apart` the first weights are others."""
    random = np.random.default_rng(0)
    weights = [random.standard_normal((3, 4, 1, 1)).astype(np.float32) for _ in range(2)]
    weights[0] += np.float32(apart)
    nodes = [helper.make_node("Conv", ["x", f"w{at}", "b"], [f"c{at}"], name=f"c{at}") for at in range(2)]
    nodes += [helper.make_node("Concat", ["c0", "c1"], ["c"], axis=1), helper.make_node(kind, ["c"], ["s"])]
    nodes += [helper.make_node("Transpose", ["s"], ["y"], perm=[0, 2, 3, 1])]
    held = [*map(numpy_helper.from_array, weights, ("w0", "w1"))]
    held += [numpy_helper.from_array(np.full(3, -16, np.float32), "b")]
    values = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 33, 33])]
    values += [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 33, 33, 6])]
    model = helper.make_model(
        helper.make_graph(nodes, "g", values[:1], values[1:], held), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 8
    onnx.save(model, str(path))
    return path


def test_a_sigmoid_s_small_results_are_right_to_the_last_bits_of_one(tmp_path):
    """By numpy in float64: ONNX Runtime's own results of small values are farther away than their own last bits."""
    graph = load(sigmoids(tmp_path / "s.onnx", "Sigmoid", apart=0))
    assert least_scales(graph) == (1.0,)
    assert least_scales(load(sigmoids(tmp_path / "r.onnx", "Relu", apart=0))) == (0.0,)
    x = np.linspace(-19, -15, 1001, dtype=np.float32)
    model = helper.make_model(
        helper.make_graph(
            [helper.make_node("Sigmoid", ["x"], ["y"])],
            "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1001])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1001])],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
    )
    model.ir_version = 8
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (ours,) = session.run(None, {"x": x})
    exact = 1 / (1 + np.exp(-x.astype(np.float64)))
    eps, away = np.finfo(np.float32).eps, np.abs(ours - exact).max()
    assert 4 * eps * exact.max() < away <= 4 * eps
    small = {"y": exact.astype(np.float32)}
    for difference, seen in ((2 * eps, False), (5 * eps, True)):
        other = {"y": small["y"] + np.float32(difference)}
        assert first_beyond(small, small, other)
        assert bool(first_beyond(small, small, other, scales={"y": 1.0})) == seen


def test_a_merged_file_that_ends_in_a_sigmoid_of_small_values_agrees(tmp_path):
    path = sigmoids(tmp_path / "s.onnx", "Sigmoid", apart=0)
    result = export_merged(path, tmp_path / "m.onnx", candidate="stacked", threads=(1,), runs=15)
    assert result.chosen == "stacked"
    assert compare(path, tmp_path / "m.onnx").verdict() == "proven"
    assert compare(sigmoids(tmp_path / "d.onnx", "Sigmoid", apart=1), tmp_path / "m.onnx").verdict() == "differ"
