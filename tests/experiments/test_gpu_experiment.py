"""experiments/ios/gpu.py as far as a CPU can tell: the whole of it on a stand-in for CUDA, processes that stop, crash
or take too long, and rows that are saved one by one."""

import json
import math
import sys

import numpy as np
import pytest
import torch

from downset.errors import UnsupportedError
from downset.executor import cuda, device
from downset.executor.stage_engine import stage_engine
from downset.formats.reading import load
from downset.stages.prepared import prepare
from experiments import rows as committed
from experiments.frame import run
from experiments.ios import gpu
from tests.cuda_stand_in import standing_in
from tests.networks import branchy


@pytest.fixture
def stand_in(monkeypatch, tmp_path):
    """CUDA on the CPU, and a small network for the zoo's."""
    monkeypatch.setattr(device, "_COPIES", 2)
    monkeypatch.setattr(device, "_REPLAYS", 2)
    monkeypatch.setattr(gpu, "_ROUNDS", 3)
    for name in ("benchmark", "benchmark_limit"):  # a network's process sets them for itself
        monkeypatch.setattr(torch.backends.cudnn, name, getattr(torch.backends.cudnn, name))
    monkeypatch.setattr(gpu, "zoo_graph", lambda name: load(branchy(tmp_path / "m.onnx")))
    with standing_in(monkeypatch) as made:
        yield made


def no_compiler(*_, **__):
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.\nmore")


@pytest.mark.parametrize(("dtype", "most"), [("float32", 1e-5), ("float16", 1e-2), ("bfloat16", 5e-2)])
def test_the_row_of_a_network(stand_in, monkeypatch, dtype, most):
    monkeypatch.setattr(torch, "compile", no_compiler)
    found = [dict(row) for row in gpu.milestones("squeezenet", 1, dtype, peers=True, timings=40, seconds=60.0)]
    assert ["chosen_s" in row for row in found] == [False, True, True, True, True]
    assert ["eager_s" in row for row in found] == [False, False, True, True, True]
    assert ["compile_s" in row for row in found] == [False, False, False, True, True]
    row = json.loads(json.dumps(found[-1], allow_nan=False))
    names = [candidate["name"] for candidate in row["candidates"]]
    assert names[0] == "sequential"
    assert "greedy" in names  # whether merging differs from sequential is for the timings to say
    assert row["chosen"] in names
    assert row["device"] == "stand-in"
    assert 0.0 <= row["difference"] <= most
    assert min(row[f"{name}_s"] for name in ("chosen", "sequential", "eager")) > 0.0
    for memory in (row["memory"], row["sequential_memory"]):
        assert min(memory["live_bytes"], memory["arena_bytes"]) > 0
    assert row["compile_s"].startswith("RuntimeError: Failed to find C compiler.")
    assert stand_in.current is stand_in.default
    printed = "\n".join(line for each in found for line in gpu.lines(each, ""))
    assert "compile: RuntimeError" in printed
    assert "goal at batch 1: 1.05x" in printed


def test_another_batch_without_peers(stand_in):
    *_, last = gpu.milestones("squeezenet", 3, "float32", peers=False, timings=5, seconds=60.0)
    assert last["batch"] == 3
    assert "eager_s" not in last
    assert last["difference"] < 1e-5


def test_a_candidate_that_fails_on_the_device_is_a_note(stand_in, monkeypatch):
    """And the others are measured: no memory for merged kernels, say."""
    bind = cuda.bind_merged

    def no_memory(binder, units, *, threads):
        bind(binder, units, threads=threads)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(cuda, "bind_merged", no_memory)
    *_, row = gpu.milestones("squeezenet", 1, "float32", peers=False, timings=40, seconds=60.0)
    assert any("CUDA out of memory. Tried to allocate 2.00 GiB." in note for note in row["notes"])
    assert row["difference"] < 1e-5


def test_what_does_not_run_at_all_is_an_error(stand_in, monkeypatch):
    monkeypatch.setattr(cuda, "_run", no_compiler)
    with pytest.raises(UnsupportedError, match="cannot run in a CUDA graph here: Failed to find C compiler"):
        list(gpu.milestones("squeezenet", 1, "float32", peers=False, timings=40, seconds=60.0))


def test_outputs_that_are_no_numbers_are_said(stand_in, monkeypatch):
    engine = stage_engine

    def broken(*given):
        made = engine(*given)
        made.outputs = lambda: [torch.full((1, 10, 1, 1), math.nan)]
        return made

    monkeypatch.setattr(gpu, "stage_engine", broken)
    *_, row = gpu.milestones("squeezenet", 1, "float32", peers=False, timings=5, seconds=60.0)
    assert row["difference"] == "outputs are not finite"


START = {"network": "squeezenet", "batch": 1, "dtype": "float16"}
WRITES = "import sys, pathlib; pathlib.Path(sys.argv[1]).write_text('{\"candidates\": []}');"


@pytest.mark.parametrize(
    ("code", "row"),
    [
        (WRITES, {"candidates": []}),
        (WRITES + "import time; time.sleep(60)", {"candidates": [], "unfinished": "stopped after 4 s"}),
        (WRITES + "sys.exit('CUDA error')", {"candidates": [], "unfinished": "ended with status 1: CUDA error"}),
        ("import sys; print('x'); sys.exit('no device')", {"error": "ended with status 1: no device"}),
        ("import os; os.kill(os.getpid(), 11)", {"error": "ended with signal 11: nothing printed"}),
        ("pass", {"error": "no row was left"}),
    ],
)
def test_a_process_that_fails_is_a_row_that_says_so(tmp_path, code, row):
    path = tmp_path / "row.json"
    limit_s = 4.0 if "sleep" in code else 60.0
    assert gpu.measured([sys.executable, "-c", code, str(path)], path, START, limit_s) == {**START, **row}


def test_rows_are_saved_one_by_one_within_the_time(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(committed, "FOLDER", tmp_path)
    kept = {"network": "resnet50", "batch": 1, "dtype": "float16", "error": "kept"}
    committed.save_rows("ios_gpu", [kept])
    saved, given = [], []

    def child(command, path, start, seconds):
        saved.append([row["network"] for row in committed.load_rows("ios_gpu")])
        given.append(seconds)
        return {**start, "error": "nothing"}

    monkeypatch.setattr(gpu, "measured", child)
    monkeypatch.setattr(gpu, "open_device", lambda kind, dtype: None)
    run(gpu.EXPERIMENT, ["--networks", "squeezenet,nasnet_large", "--timings", "9", "--seconds", "500", "--no-peers"])
    assert saved == [["resnet50"], ["resnet50", "squeezenet"]]
    assert given == pytest.approx([150.0, 500.0], abs=5.0)
    assert [row["network"] for row in committed.load_rows("ios_gpu")] == ["resnet50", "squeezenet", "nasnet_large"]
    assert "nothing" in capsys.readouterr().out


def test_rows_are_replaced_whole(tmp_path):
    gpu.keep(tmp_path / "row.json", {"a": 1.0})
    with pytest.raises(ValueError, match="JSON"):
        gpu.keep(tmp_path / "row.json", {"a": math.nan})
    assert json.loads((tmp_path / "row.json").read_text()) == {"a": 1.0}


def test_the_engine_of_a_saved_plan_equals_the_cpu_s(stand_in, tmp_path):
    from downset.executor.device import open_device
    from downset.tuning.search import StageLimits
    from downset.tuning.tune import tune_stages

    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    values = [np.ones(graph.tensors[tensor].shape, np.float32) for tensor in graph.inputs]
    results = []
    for kind in ("cuda", "cpu"):
        opened = open_device(kind)
        plan = tune_stages(graph, opened, limits=StageLimits(timings=20), runs=3).plan
        engine = stage_engine(graph, plan, opened, values)
        results.append([value.numpy().copy() for value in engine.outputs()])
        assert len(engine.time(2)) == 2
        engine.close()
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4)
