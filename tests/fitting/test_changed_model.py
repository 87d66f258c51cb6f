"""A model that is replaced while it is planned is refused: no written file mixes it with another."""

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from downset.cli import _explain
from downset.errors import InvalidPlan, LoadError
from downset.fitting import fit as fitting
from downset.formats.reading import load
from downset.formats.writing import export
from downset.orders.plan import plan_order
from tests.models import installed_model

PHASES = ("read", "measure_original", "plan", "measure_all", "choose_by_process", "summarise", "check_ram")


def write_network(path, weight):
    """One product. Networks that differ in their small weight have equal graphs."""
    ends = [helper.make_tensor_value_info(name, 1, [1, 4]) for name in "xy"]
    value = numpy_helper.from_array(np.full((1, 4), weight, np.float32), "w")
    graph = helper.make_graph([helper.make_node("Mul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [value])
    other = path.with_name("other")
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), other)
    return other.replace(path)


def test_a_network_is_not_exported_from_a_file_that_has_changed(tmp_path):
    model = write_network(tmp_path / "m.onnx", 1)
    graph, output = load(model), tmp_path / "out.onnx"
    order = plan_order(graph)
    export(output, graph, order)
    assert numpy_helper.to_array(onnx.load(output).graph.initializer[0])[0, 0] == 1
    output.unlink()
    write_network(model, 2)
    with pytest.raises(LoadError, match=r"m\.onnx has changed since it was read"):
        export(output, graph, order)
    model.unlink()
    with pytest.raises(LoadError, match=r"cannot read .*m\.onnx"):
        export(output, graph, order)
    assert not [*tmp_path.iterdir()]
    export(tmp_path / "plan.json", graph, order)  # a plan alone needs no file


def test_nor_is_one_of_tflite(tmp_path):
    model = tmp_path / "m.tflite"
    model.write_bytes(installed_model("pymicro-wakeword", "alexa.tflite").read_bytes())
    graph = load(model)
    model.write_bytes(model.read_bytes() + bytes(16))
    with pytest.raises(LoadError, match="has changed since it was read"):
        export(tmp_path / "out.tflite", graph, plan_order(graph))
    assert [path.name for path in tmp_path.iterdir()] == ["m.tflite"]


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("phase", PHASES)
def test_fit_ships_nothing_of_a_model_that_changes_meanwhile(tmp_path, monkeypatch, phase, fails):
    model, output = write_network(tmp_path / "m.onnx", 1), tmp_path / "out.onnx"
    run = getattr(fitting, phase)

    def replacing(*arguments):
        result = run(*arguments)
        write_network(model, 2)
        if fails:  # as where the runs of both files differ
            raise InvalidPlan("the optimised file gave other outputs")
        return result

    monkeypatch.setattr(fitting, phase, replacing)
    with pytest.raises(LoadError, match=r"m\.onnx has changed since it was read; start again"):
        fitting.fit(model, output=output, time_limit_s=1.0)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


@pytest.mark.parametrize("phase", PHASES[1:])
def test_nor_of_one_whose_weights_beside_it_change(tmp_path, monkeypatch, phase):
    model, output = write_network(tmp_path / "m.onnx", 1), tmp_path / "new" / "out.onnx"
    onnx.save(onnx.load(model), model, save_as_external_data=True, location="w.bin", size_threshold=0)
    output.parent.mkdir()
    run = getattr(fitting, phase)

    def replacing(*arguments):
        result = run(*arguments)
        other = tmp_path / "other"
        other.write_bytes((tmp_path / "w.bin").read_bytes()[::-1])
        other.replace(tmp_path / "w.bin")
        return result

    monkeypatch.setattr(fitting, phase, replacing)
    with pytest.raises(LoadError, match=r"w\.bin has changed since it was read; start again"):
        fitting.fit(model, output=output, time_limit_s=1.0)
    assert not [*output.parent.iterdir()]


def test_an_error_of_the_system_about_a_file_names_the_file(capfd):
    assert _explain(FileNotFoundError(2, "No such file or directory", "m.onnx")) == LoadError.exit_code
    assert capfd.readouterr().err == "downset: error: cannot use m.onnx: No such file or directory\n"
