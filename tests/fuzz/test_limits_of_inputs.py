"""Inputs that are far larger than what they are for, or wrong in a way that only their file can explain."""

import json
import os
import threading
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import AttributeProto, helper

from downset.arenas.plan import plan_arena, plan_shared
from downset.clusters.toml_file import load_cluster, parse_cluster
from downset.errors import LoadError, UnsupportedError
from downset.formats.plan_json import read_plan
from downset.formats.reading import load
from downset.formats.records_csv import read_records
from downset.graph.core import Graph, Op, Tensor
from downset.joint.check import verify
from downset.memory import storages
from downset.memory.records import Record
from downset.orders.plan import plan_order
from downset.pipelines.plan import plan_pipeline
from downset.reports.inspection import inspect
from downset.runtimes.feeds import most_input_bytes, read_array, read_feeds
from downset.runtimes.ort_settings import ort_session
from downset.text import read_file
from tests import hostile_files
from tests.cluster_toml import cluster_toml
from tests.fuzz.test_hostile_input import GRAPH
from tests.models import branchy_model

pytestmark = pytest.mark.own_processes("parsers")


@pytest.fixture
def model(tmp_path):
    return branchy_model(tmp_path / "m.onnx")


def bomb(path, name="x"):
    """64 MiB of zeros in some 64 KB."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        np.lib.format.write_array(
            archive.open(f"{name}.npy", "w", force_zip64=True), np.zeros(1 << 23), allow_pickle=False
        )
    return path


def test_an_archive_is_not_unfolded_beyond_what_the_inputs_take(fails, model, tmp_path):
    path = bomb(tmp_path / "x.npz")
    assert path.stat().st_size < 1 << 20
    assert len(read_array(path, most_bytes=1 << 27)["x"]) == 1 << 23
    with pytest.raises(LoadError, match=r"holds 67,1.* at most"):
        read_array(path, most_bytes=most_input_bytes(load(model)))
    fails(5, "verify", model, model, "--input", path, says="at most")
    np.save(tmp_path / "x.npy", np.zeros(1 << 18))
    with pytest.raises(LoadError, match="at most"):
        read_feeds(load(model), [tmp_path / "x.npy"])


@pytest.mark.parametrize(
    ("name", "head", "size", "status", "says"),
    [
        ("m.onnx", b"\x08", 1 << 31, 5, "ends below 2 GB"),
        ("m.tflite", b"1234TFL3", 1 << 50, 6, "more than half of this machine's memory"),
        ("m.json", b"{", 1 << 50, 6, "more than half of this machine's memory"),
        ("m.csv", b"id", 1 << 50, 5, "no file of its kind is so large"),
    ],
)
def test_a_file_larger_than_its_kind_or_the_memory_is_refused_before_it_is_read(
    fails, tmp_path, monkeypatch, name, head, size, status, says
):
    with (tmp_path / name).open("wb") as file:
        file.write(head)
        file.truncate(min(size, 1 << 43))  # sparse
    read = Path.read_bytes

    def read_of_the_system(path):
        assert path.is_relative_to("/proc"), f"{path} is read"
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_of_the_system)
    fails(status, "arena" if name == "m.csv" else "inspect", tmp_path / name, says=says)


def test_pipes_are_no_arrays(fails, model, tmp_path):
    os.mkfifo(tmp_path / "x.npy")
    fails(5, "verify", model, model, "--input", tmp_path / "x.npy", says="is a pipe or a device")


@pytest.mark.parametrize("read", [read_plan, load_cluster, read_records])
def test_a_pipe_that_nobody_writes_into_is_given_up(tmp_path, monkeypatch, read):
    os.mkfifo(tmp_path / "pipe")
    monkeypatch.setattr(read_file, "__kwdefaults__", {**read_file.__kwdefaults__, "unopened_s": 0.01})
    with pytest.raises(LoadError, match="pipe that nobody has opened for writing"):
        read(tmp_path / "pipe")


def test_a_pipe_is_read_to_its_end_however_slowly_it_is_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")

    def write():
        with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
            for _ in range(2):
                time.sleep(0.15)
                pipe.write(bytes(100_000))

    writing = threading.Thread(target=write)
    writing.start()
    assert read_file(tmp_path / "pipe", unopened_s=240.0) == bytes(200_000)
    writing.join()
    ours, theirs = os.pipe()
    os.close(theirs)
    assert read_file(f"/dev/fd/{ours}", unopened_s=5.0) == b""
    os.close(ours)


@pytest.mark.parametrize(
    "wrong", [{"outputs": [7]}, {"ops": [{"ins": [9], "outs": [1]}]}, {"tensors": [{"size": -1}] * 3}, {"ops": 3}]
)
def test_errors_of_a_graph_name_its_file(tmp_path, wrong):
    path = tmp_path / "some_graph.json"
    path.write_text(json.dumps({**GRAPH, **wrong}))
    with pytest.raises(LoadError, match=r"some_graph\.json"):
        load(path)


@pytest.mark.parametrize("plan", [plan_arena, plan_shared])
def test_records_beyond_64_bits_are_refused(plan):
    records = [Record(str(at), 0, 9, 10**17) for at in range(24)]
    with pytest.raises(UnsupportedError, match="64 bits"):
        plan(records)
    assert plan(records[:23], method="naive").evidence.value == 23 * 10**17


@pytest.mark.parametrize("group", ["two", [2], None, 2.5, 2])
def test_foreign_convolutions_may_have_any_attributes(group):
    tensors = tuple(Tensor(name, (1, 2, 4, 4), "float32", 128) for name in ("x", "y"))
    for inputs in ((0,), ()):
        given = Graph("g", tensors, (Op("o", "my::Conv", inputs, (1,), {"group": group}),), (0,), (1,))
        kind = inspect(given).steps[0].kind
        assert kind == ("depthwise my::Conv" if group == 2 and inputs else "my::Conv")


def test_foreign_convolutions_of_a_file_are_inspected(run, tmp_path):
    node = helper.make_node("Conv", ["x"], ["y"], domain="my", group=[1, 2])
    made = hostile_files.model([node], [hostile_files.value("x")], [hostile_files.value("y")], domains=["my"])
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    assert run("inspect", tmp_path / "m.onnx")[0] == 0


def nested(count):
    """Each concatenation takes the one before, and one tensor more."""
    tensors, ops = [Tensor("x", (1, 1), "float32", 4)], []
    for at in range(count):
        tensors += [Tensor(f"r{at}", (1, 1), "float32", 4), Tensor(f"c{at}", (1, at + 2), "float32", 4 * (at + 2))]
        before = len(tensors) - 3 if at else 0
        made = len(tensors) - 2
        ops += [Op(f"r{at}", "Relu", (0,), (made,)), Op(f"c{at}", "Concat", (before, made), (made + 1,), {"axis": 1})]
    ops.append(Op("end", "Relu", (len(tensors) - 1,), (len(tensors),)))
    return Graph("nested", (*tensors, replace(tensors[-1], name="y")), tuple(ops), (0,), (len(tensors),)).check()


def test_concatenations_in_each_other_are_followed_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(storages, "_MOST_LISTED", 1000)
    assert plan_order(nested(30), method="kahn", memory="serenity").peak_bytes > 0
    with pytest.raises(UnsupportedError, match="use memory live"):
        plan_order(nested(60), method="kahn", memory="serenity")
    assert plan_order(nested(60), method="kahn", memory="live").peak_bytes > 0


@pytest.mark.parametrize("axis", [[], [1], "1", 1.0])
def test_attributes_of_another_type_than_onnx_says_are_refused(tmp_path, axis):
    node = helper.make_node("Concat", ["x", "x"], ["y"], axis=1)
    del node.attribute[:]
    node.attribute.append(helper.make_attribute("axis", axis, attr_type=AttributeProto.INTS if axis == [] else None))
    given, made = (hostile_files.value(name, shape) for name, shape in (("x", (1, 2, 4, 4)), ("y", (1, 4, 4, 4))))
    (tmp_path / "m.onnx").write_bytes(hostile_files.model([node], [given], [made]).SerializeToString())
    with pytest.raises(LoadError, match=r"m\.onnx"):
        load(tmp_path / "m.onnx")


def test_convolutions_of_constants_are_no_work_of_a_pipeline(tmp_path):
    """They are computed before anything runs."""
    weights = [helper.make_tensor(name, 1, (4, 4, 1, 1), np.ones(16, np.float32)) for name in ("v", "w")]
    nodes = [helper.make_node("Conv", ["v", "w"], ["c"]), helper.make_node("Relu", ["x"], ["y"])]
    ends = [hostile_files.value(name, (1, 4, 8, 8)) for name in ("x", "y")]
    made = hostile_files.model(nodes, ends[:1], [ends[1], hostile_files.value("c", (4, 4, 1, 1))], initializers=weights)
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    graph = load(tmp_path / "m.onnx")
    cluster = parse_cluster(cluster_toml({"a": 1e9, "b": 2e9}, latency_ms=1))
    for method in ("single", "layerwise", "exact"):
        verify(graph, plan_pipeline(graph, cluster, method=method))


def _function(model, text):
    node = helper.make_node("Relu", ["a"], ["b"], name=text)
    model.functions.append(helper.make_function("d", "F", ["a"], ["b"], [node], model.opset_import))


TEXTS = {
    "metadata": lambda model, text: model.metadata_props.add(key="k", value=text),
    "domain": lambda model, text: model.opset_import.add(domain=text, version=1),
    "function": _function,
    "location": lambda model, text: model.graph.initializer[0].external_data.add(key="location", value=text),
    "size": lambda model, text: setattr(model.graph.input[0].type.tensor_type.shape.dim[0], "dim_param", text),
}


@pytest.mark.parametrize("place", TEXTS)
def test_what_is_no_text_is_refused_wherever_it_stands(fails, tmp_path, place):
    """What is copied into a file that is written would end there."""
    whole = hostile_files.dead_branch()
    TEXTS[place](whole, "MARK_99")
    (tmp_path / "m.onnx").write_bytes(whole.SerializeToString().replace(b"MARK_99", b"MARK\xff99"))
    fails(5, "fit", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", says="m.onnx is damaged: the name b'MARK\\xff99'")
    with pytest.raises(LoadError, match="not UTF-8"):
        ort_session(tmp_path / "m.onnx")


def test_a_description_that_is_no_text_is_left_alone(run, tmp_path):
    whole = hostile_files.dead_branch()
    whole.graph.doc_string = whole.doc_string = "MARK_99"
    (tmp_path / "m.onnx").write_bytes(whole.SerializeToString().replace(b"MARK_99", b"MARK\xff99"))
    status, _, err = run("fit", tmp_path / "m.onnx", "-o", tmp_path / "o.onnx", "--time-limit", "1s")
    assert status == 0, err
    assert b"MARK\xff99" in (tmp_path / "o.onnx").read_bytes()
