"""Floats are computed in the model's own types. A cast of all of them is made only where it is asked for, and told."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import downset as ds
from downset.errors import InvalidPlan, UnsupportedError, UsageError
from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.lane_program import lower
from downset.executor.plain_function import network_function
from downset.executor.stage_engine import check_plan
from downset.formats.plan_json import decode_plan, encode_plan
from downset.formats.reading import load
from downset.graph.float_types import cast_text, coarsest, float_types, type_in_common
from downset.stages.prepared import prepare
from downset.stages.unit_graph import group_units
from tests.command import completed
from tests.executor.test_stages import schedules_of
from tests.networks import branchy

DTYPES = {"float64": TensorProto.DOUBLE, "float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16}
CLOSE = {"float64": 1e-12, "float32": 1e-4, "float16": 1e-2}
"""Of the largest value. A network of float64 that is computed in float32 is not as close."""
FEW = {"limits": ds.StageLimits(timings=1), "runs": 1}


def saved(path, nodes, dtype, made=None, constants=(), shape=(1, 8)):
    """A model that makes `z` of `x`, from (kind, inputs, output, attributes)."""
    graph = helper.make_graph(
        [helper.make_node(kind, reads, [name], name=name, **attrs) for kind, reads, name, attrs in nodes],
        "net",
        [helper.make_tensor_value_info("x", DTYPES[dtype], shape)],
        [helper.make_tensor_value_info("z", DTYPES[made or dtype], None)],
        [numpy_helper.from_array(value, name) for name, value in constants],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def there_and_back(path, dtype="float64"):
    """x + 1e8 - 1e8: x in float64, 0 in float32."""
    nodes = [("Add", ["x", "c"], "y", {}), ("Sub", ["y", "c"], "z", {})]
    return saved(path, nodes, dtype, constants=[("c", np.array([1e8], dtype))])


def three_types(path):
    """float64, float32 and float16, each for a sum that the next one rounds away."""
    nodes = [
        ("Add", ["x", "c"], "a", {}),
        ("Sub", ["a", "c"], "b", {}),
        ("Cast", ["b"], "s", {"to": TensorProto.FLOAT}),
        ("Mul", ["s", "third"], "t", {}),
        ("Cast", ["t"], "h", {"to": TensorProto.FLOAT16}),
        ("Add", ["h", "half"], "z", {}),
    ]
    constants = [
        ("c", np.array([1e8])),
        ("third", np.array([1 / 3], np.float32)),
        ("half", np.array([0.1], np.float16)),
    ]
    return saved(path, nodes, "float64", "float16", constants)


def three_types_by_numpy(x):
    single = ((x + 1e8) - 1e8).astype(np.float32) * np.float32(1 / 3)
    return single.astype(np.float16) + np.float16(0.1)


def of_type(path, source, dtype):
    """A network of float32 with all its floats in another type."""
    model = onnx.load(str(source))
    for tensor in model.graph.initializer:
        if tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(dtype), tensor.name))
    for value in (*model.graph.input, *model.graph.output, *model.graph.value_info):
        value.type.tensor_type.elem_type = DTYPES[dtype]
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_schedule_computes_in_the_model_s_type(tmp_path, dtype):
    """Merged convolutions, folded normalisation and PyTorch's plain function too, against ONNX's reference."""
    path = of_type(tmp_path / "m.onnx", branchy(tmp_path / "single.onnx"), dtype)
    graph, device, merged = prepare(load(path)), ds.open_device("cpu", threads=2), []
    binder, units, values = Binder(graph), group_units(graph), seeded_inputs(graph)
    wide = of_type(tmp_path / "wide.onnx", path, "float64")
    (theirs,) = ReferenceEvaluator(str(wide)).run(None, {"x": values[0].astype(np.float64)})

    def check(result):
        ours = result.numpy()
        assert ours.dtype == values[0].dtype == dtype
        assert np.abs(ours.astype(np.float64) - theirs).max() <= CLOSE[dtype] * np.abs(theirs).max()

    for _, stages in schedules_of(graph, units):
        program = lower(units, stages, barriers=False, max_lanes=2)
        options = {"inputs": graph.inputs, "outputs": graph.outputs, "values": values}
        with device.engine(binder, program, **options) as engine:
            check(*engine([binder.place(value) for value in values]))
        merged += [stage for stage in stages if stage.merged]
    assert merged
    plain, given = network_function(graph)
    check(*plain(*given))


def test_float64_is_not_rounded_to_float32(tmp_path):
    graph = ds.load(there_and_back(tmp_path / "m.onnx"))
    result = ds.tune_stages(graph, **FEW)
    assert result.plan.dtype == "float64" and not any("cast" in note for note in result.notes)
    x = np.random.default_rng(0).standard_normal((1, 8))
    run = ds.run_stages(graph, result.plan, [x], runs=1, compare=True)
    assert run.outputs["z"].dtype == np.float64
    np.testing.assert_array_equal(run.outputs["z"], (x + 1e8) - 1e8)
    assert run.max_relative_error == 0.0 and run.allowed_error < 1e-5 and not run.cast


def test_a_cast_is_made_where_it_is_asked_for_and_told(tmp_path):
    graph = ds.load(there_and_back(tmp_path / "m.onnx"))
    device = ds.open_device("cpu", dtype="float32", threads=1)
    result = ds.tune_stages(graph, device, **FEW)
    assert result.plan.dtype == "float32"
    (note,) = [note for note in result.notes if note.startswith("cast to float32")]
    run = ds.run_stages(graph, result.plan, [np.ones((1, 8))], runs=1, compare=True)
    assert run.cast == note and "float64 ('x' and 3 more)" in note
    assert run.outputs["z"].dtype == np.float64  # what the model states
    assert not run.outputs["z"].any() and not run.agrees
    with pytest.raises(InvalidPlan, match="element type float32, not for float64"):
        check_plan(prepare(graph), result.plan, ds.open_device("cpu", threads=1))


def test_each_tensor_of_a_model_of_several_types_has_its_own(tmp_path):
    graph = ds.load(three_types(tmp_path / "m.onnx"))
    result = ds.tune_stages(graph, ds.open_device("cpu", threads=1), peers=True, **FEW)
    plan = decode_plan(encode_plan(result.plan))
    assert plan.dtype == "model" and set(result.peer_s) == {"downset", "PyTorch", "ONNX Runtime"}
    x = np.random.default_rng(1).standard_normal((1, 8))
    run = ds.run_stages(graph, plan, [x], runs=1)
    assert run.outputs["z"].dtype == np.float16
    np.testing.assert_array_equal(run.outputs["z"], three_types_by_numpy(x))
    assert run.allowed_error == 5e-2 and not run.cast
    plain, _ = network_function(prepare(graph))
    (value,) = plain(Binder(prepare(graph)).place(x))
    np.testing.assert_array_equal(value.numpy(), three_types_by_numpy(x))
    widened = ds.tune_stages(graph, ds.open_device("cpu", dtype="float64", threads=1), **FEW)
    assert any("cast to float64" in note and "float32 (" in note and "float16 (" in note for note in widened.notes)


def test_numbers_that_an_operator_reads_do_not_make_a_model_of_several_types(tmp_path):
    """The scales of a Resize are float32 in a model of any type."""
    nodes = [("Resize", ["x", "", "scales"], "y", {}), ("Relu", ["y"], "z", {})]
    scales = ("scales", np.array([1, 1, 2, 2], np.float32))
    graph = prepare(ds.load(saved(tmp_path / "m.onnx", nodes, "float64", constants=[scales], shape=(1, 2, 3, 3))))
    assert set(float_types(graph)) == {"float64"}
    assert [type_in_common(graph, dtype) for dtype in ("model", "float16")] == ["float64", "float16"]
    assert [coarsest(graph, dtype) for dtype in ("model", "float64", "bfloat16")] == ["float64", "float64", "bfloat16"]
    assert not cast_text(graph, "float64") and not cast_text(graph, "model")


def test_a_type_without_a_kernel_is_refused_by_name(tmp_path, monkeypatch):
    """And computed where a cast is asked for."""
    nodes = [("LRN", ["x"], "z", {"size": 3})]
    graph = ds.load(saved(tmp_path / "m.onnx", nodes, "float16", shape=(1, 4, 3, 3)))

    def lacks(op, inputs, shapes):
        if str(inputs[0].dtype) == "torch.float16":
            raise RuntimeError("\"avg_pool3d\" not implemented for 'Half'")
        return [inputs[0]]

    monkeypatch.setitem(ds.kernels.table.KERNELS, "LRN", lacks)
    with pytest.raises(UnsupportedError, match=r"'z' \(LRN\).*'x' of float16.*dtype='float32'") as caught:
        ds.tune_stages(graph, **FEW)
    assert "\n" not in str(caught.value)
    result = ds.tune_stages(graph, ds.open_device("cpu", dtype="float32"), **FEW)
    assert any("cast to float32" in note for note in result.notes)


def test_inputs_are_not_rounded_without_a_word(tmp_path):
    graph = ds.load(there_and_back(tmp_path / "m.onnx", "float32"))
    plan = ds.tune_stages(graph, **FEW).plan
    with pytest.raises(UsageError, match=r"takes float32; given float64.*astype\('float32'\)"):
        ds.run_stages(graph, plan, [np.full((1, 8), 0.1)], runs=1)
    with pytest.raises(UsageError, match="cannot take the int64"):
        ds.run_stages(graph, plan, [np.full((1, 8), 2**24 + 1)], runs=1)
    ds.run_stages(graph, plan, [np.full((1, 8), 2**24)], runs=1)


def test_timings_of_one_type_are_not_taken_for_another(tmp_path):
    from downset.tuning.profiles import Profiles
    from downset.tuning.timer import StageTimer

    graph = prepare(ds.load(there_and_back(tmp_path / "m.onnx")))
    units, own = group_units(graph), ds.open_device("cpu", threads=1)
    stage = ds.Stage(((0,),))
    for dtype, free in (("model", False), ("float64", True), ("float32", False)):
        device = replace(own, dtype=dtype)
        profiles = Profiles(tmp_path / "profiles.sqlite")
        timer = StageTimer(graph, units, device, Binder(graph, dtype=dtype), profiles)
        assert timer.is_free(stage) == free, dtype
        timer.settle([timer(stage)], 1e9, quiet=True)


def test_a_program_of_float64_is_computed_in_it():
    import torch

    torch.manual_seed(0)
    module, x = torch.nn.Conv2d(2, 3, 3).double().eval(), torch.randn(1, 2, 6, 6, dtype=torch.float64)
    program = torch.export.export(module, (x,))
    for dtype, close in (("model", 1e-13), ("float32", 1e-4)):
        staged = ds.stage_module(program, ds.open_device("cpu", dtype=dtype, threads=1), **FEW)
        ours, theirs = staged(x), module(x)
        staged.close()
        assert ours.dtype == torch.float64
        apart = (ours - theirs).abs().max().item()
        assert apart <= close and (apart > 1e-13 or dtype == "model")


def test_the_commands_tell_the_type_and_the_cast(tmp_path):
    model, plan = there_and_back(tmp_path / "m.onnx"), tmp_path / "p.json"
    options = ("--no-profiles", "--threads", "1", "-o", plan)
    np.save(tmp_path / "x.npy", np.ones((1, 8)))
    run = ("run", model, "--plan", plan, "--input", tmp_path / "x.npy", "--output", tmp_path / "o.npz")
    done = completed("stage", model, *options)
    assert "float64, batch 1" in done.stdout and "cast" not in done.stdout + done.stderr
    assert "cast" not in completed(*run).stdout
    kept = np.load(tmp_path / "o.npz")["z"]
    assert kept.dtype == np.float64 and (kept == 1.0).all()
    done = completed("stage", model, *options, "--dtype", "float32")
    assert "float32, batch 1" in done.stdout and "cast to float32" in done.stderr
    assert "ONNX Runtime was timed in the file's own element types" in done.stderr
    assert "cast to float32, the plan's element type" in completed(*run).stdout
    refused = completed("stage", model, *options, "--dtype", "float8")
    assert refused.returncode == 2 and "(--dtype) 'float8'" in refused.stderr
