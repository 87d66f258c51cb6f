"""The process that opens a file in LiteRT, measured in addition to the arena."""

import pytest

from downset.errors import UnsupportedError
from downset.fitting.fit import fit
from downset.reports.fit_document import fit_document
from downset.reports.json_form import json_of
from downset.runtimes import litert
from downset.runtimes.targets import TARGETS
from tests.tflite_net import TfliteNet


def wide(folder, size):
    """Two convolutions with windows on a wide image: most of the arena are the windows that they copy."""
    net = TfliteNet(1, size=size)
    return net.save(folder / f"wide{size}.tflite", [net.conv(net.conv(net.input(3), 8, 3), 4, 3)])


@pytest.mark.own_processes("measures")
def test_the_process_holds_the_arena_and_xnnpack_s_holds_less(tmp_path):
    """The oracle is the arena, by the addresses of its tensors: of two sizes, the processes differ by as much."""
    small, large = wide(tmp_path, 64), wide(tmp_path, 256)
    more = litert.measure(large) - litert.measure(small)
    assert more > 20_000_000
    grown = {}
    for path in (small, large):
        pair = [(path, "built-in"), (path, "XNNPACK")]
        for (_, kernels), (reading,) in zip(pair, TARGETS["litert"].processes(pair), strict=True):
            assert reading.peak_bytes >= reading.rest_bytes >= reading.rest_anonymous_bytes
            grown[path, kernels] = reading
    built_in, taken = (
        grown[large, kernels].peak_anonymous_bytes - grown[small, kernels].peak_anonymous_bytes
        for kernels in ("built-in", "XNNPACK")
    )
    assert 0.9 * more <= built_in <= 1.2 * more
    assert taken < built_in


def test_a_fit_tells_of_the_processes_of_both_files(tmp_path):
    path = wide(tmp_path, 96)
    result = fit(path, target="litert", output=tmp_path / "o.tflite", max_recompute=0.1, time_limit_s=3.0)
    assert result.shipped != "original"
    named = [(one.file, one.kernels) for one in result.measured.processes]
    assert named == [(file, kernels) for kernels in ("XNNPACK", "built-in") for file in ("original", result.shipped)]
    rows = json_of(fit_document(result))["measured"]["processes"]
    assert [(row["file"], row["kernels"]) for row in rows] == named
    assert all(row["peak_bytes"] >= row["rest_bytes"] > 0 < row["cpu_s"] for row in rows)


def test_a_fit_says_why_processes_were_not_measured(tmp_path, monkeypatch):
    def fails(*_, **__):
        raise UnsupportedError("the system does not report resident memory")

    monkeypatch.setattr("downset.runtimes.litert_process.isolated", fails)
    result = fit(wide(tmp_path, 16), target="litert", time_limit_s=1.0)
    assert result.measured.processes == ()
    assert any("processes were not measured: the system does not report" in note for note in result.notes)
    other = fit(wide(tmp_path, 16), target="tflm", time_limit_s=1.0)
    assert other.measured.processes == ()
