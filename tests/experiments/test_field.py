"""The field bench on a file (three with LONG=1) of an installed package, as its command runs it, in fewer rounds."""

from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest

from experiments.field import bench as field
from experiments.fit.models import installed
from tests.effort import LONG

LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports resident memory so")
FILES = ["silero-vad: silero_vad_half.onnx"]
if LONG:
    FILES += ["swift-f0: model.onnx", "silero-vad: silero_vad_16k_op15.onnx"]
OPTIONS = Namespace(quick=False, time_limit=1.0, onnxslim="no such program")
NOISE_BYTES = 600_000
"""By so much the peaks of two processes of one file differ by chance, where other tests run meanwhile."""


@LINUX
@pytest.mark.own_processes("measures")
@pytest.mark.parametrize("label", FILES)
def test_a_file_is_read_and_fitted_and_takes_no_more_than_the_best_by_hand(label, monkeypatch):
    monkeypatch.setattr(field, "ROUNDS", 2)
    monkeypatch.setattr(field, "fit", partial(field.fit, slower=3.0))  # processor times vary on a busy machine
    (model,) = (one for one in installed() if one.label == label)
    row = field.row_of(model, OPTIONS)
    assert row["loads"] and row["fits"] and row["options"] <= 1, row.get("why")
    assert row["dynamic"] == row["open_axes"] >= 1, "what the original leaves open stays open"
    assert row["fitted_peak_bytes"] <= 1.02 * row["by_hand_peak_bytes"] + NOISE_BYTES
    assert row["fitted_peak_bytes"] == pytest.approx(row.get("said_peak_bytes", row["fitted_peak_bytes"]), rel=0.05)
    assert row["by_hand"] in {settings.name for settings in (field.DEFAULT, *field.BEST_BY_HAND)}
    assert not row.get("onnxslim_peak_bytes"), "the peer is not installed here"
