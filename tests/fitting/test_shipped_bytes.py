"""What ships is compared with what was proven, byte by byte and once, before it takes its name."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.errors import InvalidPlan
from downset.fitting.fit import fit
from downset.formats.onnx.data_files import stored_value, weights_brought
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.mapped import write_mapped
from downset.formats.onnx.metadata import write_metadata
from downset.formats.onnx.written import copy_model
from downset.process import whole_files
from tests.fitting.test_processes import read_and_written
from tests.models import constant
from tests.tflite_net import TfliteNet

SIDE = 1500
NBYTES = 4 * SIDE * SIDE
"""Of the weights: so many that modules and workers read little compared with them."""


def written_model(path, *, beside):
    weights = np.random.default_rng(5).standard_normal((SIDE, SIDE)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, SIDE]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "product", ends[:1], ends[1:], [constant("w", weights)])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path), save_as_external_data=beside, location="w.bin")
    return path


def metadata(path, output):
    write_metadata(path, output, {"file": "order"})


def brought(path, output):
    with weights_brought(path, source=path, output=output):
        metadata(path, output)


def copied(path, output):
    with weights_brought(path, source=path, output=output):
        copy_model(path, output)


def mapped(path, output):
    write_mapped(path, read_skeleton(path), output)


WAYS = {
    "inside": (metadata, False, 3),
    "inside, as it is": (copied, False, 3),
    "beside": (brought, True, 3),
    "beside, as it is": (copied, True, 3),
    "mapped": (mapped, True, 0),
    "mapped, on another disk": (mapped, True, 3),
}
"""How a model ships, whether its weights lie next to it, and how often their bytes are read: to copy them, and both
copies to compare them. Another name of a file is not another copy."""


@pytest.fixture
def shipped(request, tmp_path, monkeypatch):
    """(what ships a model, the model, the file to write), by the name of the way."""
    write, beside, _ = WAYS[request.param]
    if request.param.endswith("disk"):

        def refused(*_):
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(os, "link", refused)
    (tmp_path / "out").mkdir()
    return write, written_model(tmp_path / "m.onnx", beside=beside), tmp_path / "out" / "f.onnx"


def bad_disk(monkeypatch, place):
    """Every file that is written afresh, and is not small, holds another byte at this place, before anything reads
    it."""
    whole = whole_files._place

    def placed(path, write, check):
        def changed(part):
            write(part)
            if part.stat().st_nlink == 1 and part.stat().st_size > 500:
                with part.open("r+b") as file:
                    file.seek(place, os.SEEK_END if place < 0 else os.SEEK_SET)
                    (byte,) = file.read(1)
                    file.seek(-1, os.SEEK_CUR)
                    file.write(bytes([byte ^ 1]))

        whole(path, changed, check)

    monkeypatch.setattr(whole_files, "_place", placed)


@pytest.mark.parametrize(("shipped", "passes"), [(way, WAYS[way][2]) for way in WAYS], indirect=["shipped"])
@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="only Linux counts what a process reads")
def test_what_ships_is_read_once_more_and_what_was_proven_too(shipped, passes):
    write, model, output = shipped
    before, _ = read_and_written()
    write(model, output)
    read = (read_and_written()[0] - before) / NBYTES
    assert passes - 1.1 < read < passes + 0.2  # the system may copy a file without counting what it reads
    (weight,) = read_skeleton(output).graph.initializer
    assert stored_value(onnx, output, weight).nbytes == NBYTES


@pytest.mark.parametrize("shipped", [way for way in WAYS if WAYS[way][2]], indirect=True)
@pytest.mark.parametrize("place", [NBYTES // 2, -1000], ids=["middle", "end"])
def test_a_byte_that_the_disk_changed_ships_nowhere(shipped, place, monkeypatch):
    write, model, output = shipped
    bad_disk(monkeypatch, place)
    with pytest.raises(InvalidPlan, match=r"is not written: .* write to another disk") as refused:
        write(model, output)
    assert "\n" not in str(refused.value)
    assert not [*output.parent.iterdir()]


@pytest.mark.parametrize("shipped", ["beside", "beside, as it is"], indirect=True)
def test_weights_that_another_program_changes_before_the_model_is_there_ship_nowhere(shipped, monkeypatch):
    write, model, output = shipped
    (output.parent / "w.bin").write_bytes((model.parent / "w.bin").read_bytes()[:-1] + b"?")
    with pytest.raises(InvalidPlan, match="is not written"):
        write(model, output)
    assert [path.name for path in output.parent.iterdir()] == ["w.bin"], "not a file of ours"


def test_a_fitted_tflite_file_is_compared_too(tmp_path, monkeypatch):
    net = TfliteNet(size=8)
    last = net.input(4)
    one, other = net.op("RELU", (last,), 4), net.op("LOGISTIC", (last,), 4)
    last = net.op("ADD", (one, other), 4, "AddOptions")
    path = tmp_path / "m.tflite"
    net.save(path, [last])
    (tmp_path / "out").mkdir()
    bad_disk(monkeypatch, -1)
    with pytest.raises(InvalidPlan, match=r"f\.tflite is not written"):
        fit(path, output=tmp_path / "out" / "f.tflite", time_limit_s=1)
    assert not [*(tmp_path / "out").iterdir()]
