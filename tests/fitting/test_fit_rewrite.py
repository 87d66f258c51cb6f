"""`fit` with rewriting: shipped where the runtime measures less and the outputs are the original's."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import pytest

from downset.fitting import fit as fitting
from downset.fitting import proving
from downset.results.comparisons import Comparison
from downset.results.sessions import DEFAULT
from downset.runtimes import ort, tflm
from tests.command import completed
from tests.rewrites.test_rewrite_onnx import Net
from tests.tflite_net import TfliteNet

WITHIN = {"slower": 9.0, "larger": 9.0}
"""Limits that rewriting keeps also in networks of a few kilobytes."""

SCHEMA = json.loads((Path(__file__).resolve().parents[2] / "docs" / "schemas" / "fit.json").read_text())


@pytest.fixture
def without_strips(monkeypatch):
    """Strips need less than what is rewritten here."""
    monkeypatch.setattr("downset.fitting.choosing.search_cheap_strips", lambda *_, **__: [])


@pytest.fixture
def onnx_model(tmp_path):
    net = Net()
    x = net.input(2)
    y = net.conv(net.concat([net.conv(x, 8) for _ in range(5)]), 4)
    return net.save(tmp_path / "m.onnx", [net.conv(y, 2)], size=16)


def fit(path, **options):
    return fitting.fit(path, **(WITHIN | options))


def tflite_model(path, dtype="float32"):
    net = TfliteNet(size=32, dtype=dtype)
    x = net.input(2)
    return net.save(path, [net.conv(net.conv(net.concat([net.conv(x, 8) for _ in range(5)]), 4), 2)])


def test_onnx_runtime_takes_less_and_computes_the_same(onnx_model, tmp_path):
    result = fit(onnx_model, output=tmp_path / "f.onnx", time_limit_s=1)
    image = 16 * 16 * 4
    assert result.shipped == "rewritten"
    assert (result.arena.before, result.arena.after) == (image * 80, image * 12)
    assert [rewrite.kind for rewrite in result.rewrites] == ["channel-wise"]
    assert result.rewrites[0].bytes_gained == image * 68
    before = ort.measure_peak(onnx_model, settings=DEFAULT)
    after = ort.measure_peak(tmp_path / "f.onnx", settings=result.session)
    assert after.live_bytes == image * 12
    assert (result.measured.before, result.measured.after) == (before.held_bytes, after.held_bytes)
    for ours, original in zip(ort.run(tmp_path / "f.onnx"), ort.run(onnx_model), strict=True):
        np.testing.assert_allclose(ours, original, rtol=1e-5, atol=1e-4)
    assert fit(onnx_model, time_limit_s=1, rewrite="off").rewrites == ()


def test_tflite_micro_takes_less_and_computes_the_same(tmp_path, without_strips):
    path = tflite_model(tmp_path / "m.tflite")
    result = fit(path, output=tmp_path / "f.tflite", time_limit_s=1)
    assert result.shipped.startswith("rewritten")
    original, ours = tflm.measure(path), tflm.measure(tmp_path / "f.tflite")
    assert ours.head_bytes == result.arena.after < original.head_bytes
    assert ours.total_bytes == result.measured.after < original.total_bytes
    for one, other in zip(ours.outputs, original.outputs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)


def test_sums_of_quantised_parts_are_made_only_when_asked_and_the_change_is_measured(tmp_path, without_strips):
    path = tflite_model(tmp_path / "m.tflite", "int8")
    usual = fit(path, time_limit_s=1)
    assert usual.rewrites == () and usual.outputs.equal
    result = fit(path, output=tmp_path / "f.tflite", time_limit_s=1, inexact=True)
    assert result.rewrites and result.measured.after < usual.measured.after
    original, ours = tflm.measure(path), tflm.measure(tmp_path / "f.tflite")
    pairs = zip(ours.outputs, original.outputs, strict=True)
    worst = max(np.abs(one.astype(int) - other.astype(int)).max() for one, other in pairs)
    assert result.outputs.max_abs_error == worst
    assert result.outputs.equal == (worst == 0)


def test_a_rewritten_file_that_differs_is_not_shipped(tmp_path, monkeypatch, without_strips):
    """A rewritten file that differs by more than rounding is refused, and what is shipped instead is equal."""
    path = tflite_model(tmp_path / "m.tflite")
    monkeypatch.setattr(proving, "compare_outputs", off_by_a_little(proving.compare_outputs))
    result = fit(path, output=tmp_path / "f.tflite", time_limit_s=1)
    assert result.rewrites == () and result.outputs.equal
    assert any("the rewritten" in note and "is left out: it gave other outputs" in note for note in result.notes)
    for one, other in zip(tflm.measure(tmp_path / "f.tflite").outputs, tflm.measure(path).outputs, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(("elsewhere", "said"), [(1.0, "differ by up to 1:"), (0.0, None)])
def test_it_is_said_where_litert_computes_something_else(tmp_path, monkeypatch, without_strips, elsewhere, said):
    """A rewritten file equals the original in TFLite Micro, for which it is; LiteRT's optimised kernels may differ."""
    path = tflite_model(tmp_path / "m.tflite", "int8")

    def compared(first, second, *, runtime, **options):
        worst = elsewhere if runtime == "litert" else 0.0
        return Comparison(worst == 0, worst, runtime, largest=100.0)

    monkeypatch.setattr(proving, "compare_outputs", compared)
    result = fit(path, time_limit_s=1, inexact=True)
    assert result.rewrites and result.outputs.equal
    notes = [note for note in result.notes if "LiteRT's optimised kernels" in note]
    assert [said in note for note in notes] == ([True] if said else [])


def off_by_a_little(compare_outputs):
    """Rewritten files seem to differ by more than rounding: only they are held against the original in TFLite Micro
    first."""

    def compared(first, second, *, runtime, **options):
        found = compare_outputs(first, second, runtime=runtime, **options)
        if runtime == "tflm":
            return proving.replace(found, equal=False, max_abs_error=1e-3 * found.largest)
        return found

    return compared


def test_the_command_line_names_rewritings(tmp_path):
    path = tflite_model(tmp_path / "m.tflite")
    done = completed("fit", path, "--json", "--time-limit", "1s", "--larger", "9x", "-q")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    jsonschema.validate(result, SCHEMA)
    assert [set(rewrite) for rewrite in result["rewrites"]] == [{"name", "readers", "kind", "bytes_gained"}]
    done = completed("fit", path, "--time-limit", "1s", "--larger", "9x")
    assert result["rewrites"][0]["name"] in done.stdout


def test_strips_lower_the_measured_peak_and_compute_the_same(tmp_path):
    """An early segment of high resolution in strips: less memory."""
    net = Net()
    wide = net.conv(net.conv(net.input(2), 24), 24, kernel=3)
    path = net.save(tmp_path / "m.onnx", [net.conv(wide, 4)], size=64)
    striped = fitting.fit(path, output=tmp_path / "f.onnx", max_recompute=0.25, work_limit=200_000, slower=50.0)
    assert striped.shipped == "strips"
    assert {rewrite.kind for rewrite in striped.rewrites} == {"row-wise"}
    assert striped.measured.after < striped.measured.before
    assert striped.outputs.max_abs_error < 1e-5 * striped.outputs.largest
    (note,) = [note for note in striped.notes if note.startswith("in strips the network computes ")]
    told = note.removeprefix("in strips the network computes ")
    if told != "as much as before":  # rows are kept, so nothing need be computed twice
        share, _, how = told.removeprefix("less than ").partition("% ")
        assert how == "more" and 0 < float(share) <= 25


def test_max_recompute_is_a_share(tmp_path):
    from downset.errors import UsageError
    from downset.text import parse_share

    assert [parse_share(text) for text in ("10%", "0.1", "100 %", "0")] == [0.1, 0.1, 1.0, 0.0]
    for wrong in ("ten", "-5%", "101%", "1.5", ""):
        with pytest.raises(UsageError, match="share"):
            parse_share(wrong)
