"""A .tflite file that TFLite Micro refuses is fitted for LiteRT, which runs it, where nobody names TFLite Micro."""

from __future__ import annotations

import json
import math
import re

import numpy as np
import pytest

from downset.errors import LimitReached, UnsupportedError
from downset.fitting import fit as fitting
from downset.fitting import planning
from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.graph.cost import row_form
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import find_segments
from downset.reports.fit_document import fit_document
from downset.rewrites.tflite_form import tflite_form, writable_rows
from downset.runtimes import litert, tflm
from tests.command import typed
from tests.fitting.test_fit_strips import Net
from tests.tflite_net import with_unknown_operator

WORK = {"time_limit_s": math.inf, "work_limit": 300}


class HybridNet(Net):
    """Floats that layers multiply by weights of 8 bits. `halves`: by weights of 16 bits instead, which are widened."""

    halves = False

    def _weights(self, x, shape, axis):
        values = self.random.integers(-90, 91, shape)
        if self.halves:
            stored = self.tensor(shape, "float16", values / 64)
            weights = self.op("DEQUANTIZE", (stored,), shape[0], "DequantizeOptions")
            self.main.tensors[weights].shape = np.asarray(shape, np.int32)
        else:
            self.dtype = "int8"  # so that the tensor gets scales
            weights = self.tensor(shape, value=values, scale=self.random.uniform(0.01, 0.03, shape[axis]), axis=axis)
            self.dtype = "float32"
        return weights, self.tensor(shape[axis : axis + 1], value=self.random.uniform(-1, 1, shape[axis]))


def network(path, *, halves=False):
    net = HybridNet(4)
    net.halves = halves
    x = net.conv(net.start(32, 32, 4), 12, 3)
    x = net.conv(net.conv(x, 12, 3, 2), 8, 3, 2)
    return net.save(path, [net.conv(x, 4, 1)])


@pytest.fixture(scope="module", params=[False, True], ids=["hybrid", "float16"])
def refused(request, tmp_path_factory):
    path = network(tmp_path_factory.mktemp("own") / "m.tflite", halves=request.param)
    with pytest.raises(UnsupportedError):
        tflm.measure(path)
    return path


def test_the_target_becomes_the_runtime_that_runs_the_file(refused, tmp_path):
    result = fit(refused, output=tmp_path / "f.tflite", **WORK)
    assert (result.target, result.not_measured) == ("litert", "")
    assert result.measured.before == litert.measure(refused)
    assert result.measured.after == litert.measure(tmp_path / "f.tflite") <= result.measured.before
    assert result.measured.latency is not None and result.not_in_tflm.startswith("TFLite Micro cannot run m.tflite")
    document = fit_document(result)
    lines = [line for line in document.verdict.detail.split("\n") if "TFLite Micro" in line]
    assert lines == [f"Fitted for LiteRT: {result.not_in_tflm}"]
    assert " --target " not in typed(str(result.command)) and "target=" not in str(result.command)
    same = fit(refused, target="litert", **WORK)
    assert (same.measured.before, same.not_in_tflm) == (result.measured.before, "")


def test_such_a_file_is_never_said_to_fit_a_microcontroller(refused):
    told = []
    with pytest.raises(
        LimitReached, match="what a microcontroller takes is not known: TFLite Micro cannot run"
    ) as caught:
        fit(refused, ram_bytes=1 << 30, notice=told.append, **WORK)
    assert caught.value.result.ram.state == "not known"
    assert len(told) == 1 and '"not known" (exit 6)' in told[0]
    assert any(step.text.startswith("Name the target (target='litert')") for step in caught.value.result.ram.remedies)
    assert fit(refused, target="litert", ram_bytes=1 << 30, **WORK).ram.state == "fits"


@pytest.mark.parametrize("asked", [("--target", "tflm"), ("--header",)])
def test_who_asks_for_tflite_micro_gets_an_error_before_anything_is_searched(
    asked, refused, run, tmp_path, monkeypatch
):
    monkeypatch.setattr(fitting, "plan", lambda *_: pytest.fail("searched"))
    given = [*asked, tmp_path / "m.h"] if asked == ("--header",) else asked
    status, out, err = run("fit", refused, "-o", tmp_path / "f.tflite", *given)
    assert (status, out) == (5, "") and err.count("\n") == 1
    assert "TFLite Micro cannot run m.tflite" in err
    assert "without --target tflm and a header it is fitted for a runtime that runs it" in err
    assert not list(tmp_path.iterdir())


def test_where_no_runtime_here_runs_the_file_one_line_says_so(refused, run, tmp_path):
    path = with_unknown_operator(refused, tmp_path / "u.tflite")
    status, out, _ = run("fit", path, "--work-limit", "50", "--json", "-q")
    found = json.loads(out)
    assert (status, found["target"], found["measured"], found["not_in_tflm"]) == (0, "tflm", None, None)
    assert "TFLite Micro cannot run u.tflite" in found["not_measured"] and "LiteRT cannot" in found["not_measured"]
    assert len([note for note in found["notes"] if "cannot run" in note]) == 1
    costs = [line for line in run("fit", path, "--work-limit", "50")[1].splitlines() if line.startswith("It costs")]
    assert all(re.fullmatch(r"It costs [\d.]+x the bytes on disk; its time was not measured\.", line) for line in costs)
    assert run("fit", path, "--ram", "1GB", "--work-limit", "50")[0] == 6


def test_where_tflite_micro_is_not_there_nothing_is_known_of_the_file(refused, monkeypatch, run, tmp_path):
    def missing(*_, **__):
        raise UnsupportedError("measuring in TFLite Micro needs the extra tflm")

    monkeypatch.setattr(tflm, "measure", missing)
    monkeypatch.setattr(tflm, "is_installed", lambda: False)
    for target in (None, "tflm"):
        result = fit(refused, target=target, **WORK)
        assert (result.target, result.measured, result.not_in_tflm) == ("tflm", None, "")
    monkeypatch.setattr(planning, "plan_together", lambda *_, **__: pytest.fail("searched"))
    status, _, err = run("fit", refused, "-o", tmp_path / "f.tflite", "--header", tmp_path / "m.h")
    assert status == 5 and "no C++ is written, as it states what was measured" in err
    assert not list(tmp_path.iterdir())


def test_a_layer_that_scales_its_whole_input_is_computed_whole(tmp_path):
    """Strips of a hybrid layer would have other scales. The oracle is LiteRT: strips change results, if they may."""
    path = network(tmp_path / "m.tflite")
    graph, free = load(path), row_form(load(path), halos_required=False)
    rows = writable_rows(graph, free)
    assert [op.whole for op in rows.ops] == [True] * len(graph.ops) and not any(op.whole for op in free.ops)
    assert not list(find_segments(graph, rows))
    striped = tflite_form(in_strips(graph, [InStrips(0, 2, 3)], form=free))
    import downset as ds

    ds.export(tmp_path / "s.tflite", striped, ds.plan_order(striped, method="kahn", memory="litert"))
    (ours,), (theirs,) = litert.run(tmp_path / "s.tflite"), litert.run(path)
    assert not np.array_equal(ours, theirs)
    halves = load(network(tmp_path / "h.tflite", halves=True))
    assert list(find_segments(halves, writable_rows(halves, row_form(halves, halos_required=False))))
