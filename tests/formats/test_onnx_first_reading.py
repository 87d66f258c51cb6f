"""Protobuf reads an .onnx file in the parsing process before it does so here: a crash there ends no command."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

import downset
from downset.errors import LimitReached, LoadError, UnsupportedError
from downset.formats.onnx import inference
from downset.formats.reading import load
from downset.process import isolation
from downset.process.isolation import parsed
from downset.process.limits import limits
from tests.models import branchy_model

pytestmark = pytest.mark.own_processes("parsers")

ROOT = Path(__file__).resolve().parents[2]
LARGE = 600 << 20


@pytest.fixture
def first(monkeypatch):
    """The files that a function of the parsing process is asked for."""
    asked = []

    def noted(module, function, arguments, **options):
        asked.append((function, arguments.get("path")))
        return parsed(module, function, arguments, **options)

    monkeypatch.setattr(inference, "parsed", noted)
    inference._skeleton.cache_clear()
    inference._inferred.cache_clear()
    return lambda which="parse_here": [path for function, path in asked if function == which]


def test_each_state_of_a_file_is_read_there_once(tmp_path, first):
    path = branchy_model(tmp_path / "m.onnx")
    for _ in range(3):
        load(path)
    assert first() == [str(path)]
    assert len(first("infer_here")) == 1, "of one message types are inferred once"
    load(branchy_model(tmp_path / "open.onnx", open_batch=True), dims={"n": 2})
    assert len(first("infer_here")) == 2
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LoadError):
        load(path)
    assert first().count(str(path)) == 2


def test_a_large_message_is_read_there_once_as_well(tmp_path, first, monkeypatch):
    """It is not kept."""
    monkeypatch.setattr(
        inference, "parsed", lambda module, function, arguments, **_: asked.append(function) or ({}, "")
    )
    path, asked = branchy_model(tmp_path / "m.onnx"), []
    models = [inference.read_skeleton(path).SerializeToString() for _ in range(3)]
    assert models == [path.read_bytes()] * 3
    assert asked == ["parse_here"] and not first()
    monkeypatch.setattr(inference, "_MOST_KEPT", 100)
    assert not inference.parse_here(str(path), "") and path.stat().st_size > 100


def test_a_large_file_has_the_time_that_a_slow_disk_takes(tmp_path, monkeypatch):
    path = branchy_model(tmp_path / "m.onnx")
    monkeypatch.setattr(isolation, "worker_s", lambda floor_s: 1e-6)
    inference._skeleton.cache_clear()
    with pytest.raises(LimitReached):
        load(path)
    monkeypatch.setattr(inference, "_SLOWEST_DISK", path.stat().st_size / 100.0)
    assert inference.read_skeleton(path).graph.node


def test_a_crash_there_is_an_error_here(tmp_path, monkeypatch):
    path = branchy_model(tmp_path / "m.onnx")
    inference._skeleton.cache_clear()
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setattr(inference, "__name__", "tests.workers")
    for read in (downset.load, downset.fit):
        with pytest.raises(UnsupportedError, match=r"the reader of \.onnx files crashed \(signal 6\)"):
            read(path)


def varint(number):
    return bytes([number & 127 | 128]) + varint(number >> 7) if number > 127 else bytes([number])


def in_message(field, content, hole=0):
    """A field that holds bytes, of which the last `hole` are missing here."""
    return bytes([field << 3 | 2]) + varint(len(content) + hole) + content


def test_a_file_that_is_too_large_for_the_parsing_process(tmp_path):
    """600 MB of small integers, which stay in the message, in a file that takes no room on the disk: zeros that nobody
    wrote."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ClearField("graph")
    weight = TensorProto(name="w", data_type=TensorProto.INT8, dims=[LARGE]).SerializeToString()
    weight += in_message(5, b"", LARGE)
    content = graph.SerializeToString() + in_message(5, weight, LARGE)
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.write(model.SerializeToString() + in_message(7, content, LARGE))
        file.truncate(file.tell() + LARGE)
    inference._skeleton.cache_clear()
    with limits(memory_bytes=LARGE), pytest.raises(LimitReached, match=r"needs more memory than .*memory_bytes"):
        load(path)
