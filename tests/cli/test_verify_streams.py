"""`downset verify WINDOW STREAM` as people use it: what it says of a stream, and one line about each mistake."""

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import pytest
from ai_edge_litert.tools import flatbuffer_utils
from onnx import helper

from downset.formats.stream_records import record_of
from tests.equivalence.reference_streams import Layer, Written
from tests.equivalence.stream_cases import in_place
from tests.equivalence.test_reference_streams import padding_moved, plain
from tests.equivalence.test_streams import chain, saved_as, with_record

SCHEMA = json.loads((Path(__file__).parents[2] / "docs" / "schemas" / "verify.json").read_text())


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tflite_files(folder):
    """window.tflite, stream.tflite and in_place.tflite: a hop of 3 in a window of 20."""
    return in_place(chain("int8", 3, folder), folder)


@pytest.mark.parametrize(
    ("second", "form", "runtime"),
    [
        ("stream.onnx", "states", "ort"),
        ("stream.tflite", "variables", "litert"),
        ("stream.tflite", "variables", "tflm"),
        ("in_place.tflite", "in_place", "tflm"),
    ],
)
def test_a_stream_is_proven_and_run_hop_by_hop(here, run, second, form, runtime):
    if form == "states":
        plain().save(here)
        hop, window, states, warm, compared = 2, 24, 4, 11, 25
    else:
        tflite_files(here)
        hop, window, states, warm, compared = 3, 20, 7, 6, 24
    files = f"window{Path(second).suffix}", second
    status, out, err = run("verify", *files, "--runtime", runtime)
    assert (status, err) == (0, "")
    kept = {
        "states": "which the caller passes on",
        "variables": "as variables of the file",
        "in_place": "in place, in TFLite Micro alone",
    }
    said = " ".join(out.split())
    assert (
        f"proven by induction over hops: called on {hop} new rows, it computes what the network computes on the last "
        f"{window}, from hop {warm} on; it keeps {states} states, {kept[form]}"
    ) in said
    assert f"in {runtime}" in said
    assert f"on {compared} hops and their windows, after {warm} hops, from states of noise" in said
    status, out, _ = run("verify", *files, "--runtime", runtime, "--json")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert (status, found["ok"], found["proven"], found["reason"]) == (0, True, True, "")
    assert found["stream_runs"] == {"warm": warm, "noise": True} and found["inputs_tried"] == compared
    stated = {"window": window, "hop": hop, "form": form, "states": states, "first_exact": warm, "warm": warm}
    assert found["proof"]["stream"] == stated


def with_metadata(path, key, text):
    """A copy in which this entry of the metadata is another text, or None."""
    model = onnx.load("stream.onnx")
    kept = [(one.key, one.value) for one in model.metadata_props if one.key != key]
    del model.metadata_props[:]
    helper.set_model_props(model, dict(kept) | ({} if text is None else {key: text}))
    onnx.save(model, path)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 9}', '{"format": 1, "window": "24"}', "\0", "[" * 100_000])
def test_a_damaged_record_is_one_line(here, fails, text):
    plain().save(here)
    with_metadata("damaged.onnx", "downset.stream", text)
    says = "damaged.onnx: its metadata 'downset.stream' are not a record of a stream that this version reads"
    fails(5, "verify", "window.onnx", "damaged.onnx", says=says)


def test_a_record_of_another_form_is_one_line(here, fails):
    plain().save(here)
    tflite_files(here)
    for path in ("stream.onnx", "stream.tflite", "in_place.tflite"):
        record, suffix = record_of(path), Path(path).suffix
        model = onnx.load(path) if suffix == ".onnx" else flatbuffer_utils.read_model(path)
        for form in {"variables", "in_place", "states"} - {record.form}:
            saved_as(with_record(model, replace(record, form=form)))(here / f"changed{suffix}")
            if (form == "states") != (suffix == ".onnx"):
                fails(
                    5, "verify", f"window{suffix}", f"changed{suffix}", says=f"keeps states as {form!r}, which {suffix}"
                )
            elif form == "in_place":
                fails(
                    6,
                    "verify",
                    "window.tflite",
                    "changed.tflite",
                    says="the states of its record differ in 'state/t0'; outputs not compared: ",
                )
            else:
                fails(4, "verify", "window.tflite", "changed.tflite", says="inputs or outputs beyond the window's")


def test_a_damaged_certificate_is_not_proven_and_named(here, fails):
    plain().save(here)
    with_metadata("damaged.onnx", "downset.certificate", "{")
    fails(6, "verify", "window.onnx", "damaged.onnx", says="its certificate is damaged")
    with_metadata("without.onnx", "downset.certificate", None)
    fails(6, "verify", "window.onnx", "without.onnx", says="the certificate does not say what")


def test_files_that_are_no_window_and_its_stream_are_one_line_each(here, fails, run):
    plain().save(here)
    swapped = "stream.onnx is a stream and window.onnx is none; name the network of its window first"
    fails(2, "verify", "stream.onnx", "window.onnx", says=swapped)
    with_metadata("without.onnx", "downset.stream", None)
    unknown = "the second takes an input 'state/x', which the first does not have"
    fails(4, "verify", "window.onnx", "without.onnx", says=unknown)
    assert run("verify", "stream.onnx", "stream.onnx")[0] == 0
    for folder, written in (("rows", Written(plain().layers, 20, 2)), ("weights", Written(plain().layers, 24, 2, 1))):
        (here / folder).mkdir()
        written.save(here / folder)
    other = "the stream is of windows with 20 rows along axis 2 of 'x', which has the shape [1, 2, 24] here"
    fails(4, "verify", "window.onnx", "rows/stream.onnx", says=other)
    fails(4, "verify", "window.onnx", "weights/stream.onnx", says="differ in ort: ")
    tflite_files(here)
    fails(2, "verify", "window.tflite", "stream.onnx", says="of different formats")
    fails(2, "verify", "window.tflite", "in_place.tflite", "--runtime", "litert", says="choose --runtime tflm")


def test_a_wrong_stream_is_found_by_runs_where_it_is_not_proven(here, run):
    written = plain()
    padding_moved(written)
    written.save(here)
    status, out, _ = run("verify", "window.onnx", "stream.onnx", "--json")
    found = json.loads(out)
    jsonschema.validate(found, SCHEMA)
    assert (status, found["error"]["code"], found["proven"], found["proof"]["stream"]) == (4, "invalid", False, None)
    assert run("verify", "window.onnx", "stream.onnx", "--accept-runs")[0] == 4


def test_rows_of_the_user_are_enough_or_one_line(here, run, fails):
    plain().save(here)
    random = np.random.default_rng(0)
    for name, shape in (("rows", (1, 2, 40)), ("few", (1, 2, 23)), ("others", (1, 3, 40)), ("flat", (40,))):
        np.save(f"{name}.npy", random.standard_normal(shape).astype(np.float32))
    status, out, _ = run("verify", "window.onnx", "stream.onnx", "--input", "rows.npy")
    assert status == 0 and "on 9 hops and their windows" in " ".join(out.split())
    said = {
        "few": "few.npy holds 23 rows; give 24 or more, which fill a window after the warm-up",
        "others": "others.npy holds [1, 3, 40]; the input is [1, 2, 24], with any rows on axis 2",
        "flat": "flat.npy is no .npy file of float32 with 3 dimensions, rows along axis 2",
    }
    for name, says in said.items():
        fails(2, "verify", "window.onnx", "stream.onnx", "--input", f"{name}.npy", says=says)


def test_a_window_with_a_batch_is_proven_along_its_rows(here, run, fails):
    Written(plain().layers, 24, 2, batch=3).save(here)
    assert run("verify", "window.onnx", "stream.onnx")[0] == 0
    other = onnx.load("stream.onnx")
    for held in (*other.graph.input, *other.graph.output):
        held.type.tensor_type.shape.dim[0].dim_value = 2
    onnx.save(other, "stream.onnx")
    fails(4, "verify", "window.onnx", "stream.onnx", says="it runs window.onnx alone: ")


def with_a_gain(written, *, kept):
    """The output of a single convolution times a second input, which does not move. `kept`: products are kept from
    call to call, which is wrong where the gain changes."""
    for model, read in ((written.window, "t1"), (written.stream, "t1.new" if kept else "t1")):
        model.inputs.insert(1, ("gain", 1))
        place = next(at for at, node in enumerate(model.nodes) if read in node.output)
        if model is written.stream and kept:
            written.parts["y.new"] = {**written.parts["t1.new"], "of": "y"}
            model.nodes.insert(place + 1, helper.make_node("Mul", ["t1.new", "gain"], ["y.new"], name="y.new"))
            joined = next(node for node in model.nodes if "t1" in node.output)
            joined.input[1], joined.output[0] = "y.new", "y"
            next(node for node in model.nodes if node.name == "next/t1").input[0] = "y"
            written.states[-1]["tensor"] = written.parts["next/t1"]["of"] = "y"
        else:
            model.nodes.append(helper.make_node("Mul", ["t1", "gain"], ["y"], name="y"))
        model.outputs[0] = ("y", model.outputs[0][1])


@pytest.mark.parametrize("kept", [False, True])
def test_an_input_that_does_not_move_is_read_whole_in_each_call(here, run, kept):
    written = Written([Layer("Conv", 0, 3)], 16, 2)
    with_a_gain(written, kept=kept)
    written.save(here)
    status, _, err = run("verify", "window.onnx", "stream.onnx")
    if kept:
        assert status == 6 and "the rows of 'y' do not move with the window" in err and err.count("\n") == 1
    else:
        assert (status, err) == (0, "")
