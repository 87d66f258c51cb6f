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
    found = [
        dict(row)
        for row in gpu.milestones("squeezenet", 1, dtype, peers=["eager", "default"], timings=40, seconds=60.0)
    ]
    calls = ["sequential", "chosen", "eager", "default", "ios"]
    assert [list(row.get("timed", ())) for row in found] == [[], calls[:2], calls[:3], calls[:4], calls]
    row = json.loads(json.dumps(found[-1], allow_nan=False))
    names = [candidate["name"] for candidate in row["candidates"]]
    assert names[0] == "sequential"
    assert "greedy" in names  # whether merging differs from sequential is for the timings to say
    assert row["chosen"] in names
    assert row["device"] == "stand-in"
    assert 0.0 <= row["difference"] <= most
    assert row["timed"]["ios"] == "LimitReached: more than 40 stages differ"
    for name in ("sequential", "chosen", "eager"):
        timing = row["timed"][name]
        for kind in ("device", "end_to_end"):
            assert 0.0 < timing[f"{kind}_s"]["p10"] <= timing[f"{kind}_s"]["p50"] <= timing[f"{kind}_s"]["p90"]
            assert (
                timing[f"{kind}_ratio"]["low"] <= timing[f"{kind}_ratio"]["median"] <= timing[f"{kind}_ratio"]["high"]
            )
    assert row["timed"]["sequential"]["device_ratio"] == {"median": 1.0, "low": 1.0, "high": 1.0}
    for memory in (row["memory"], row["sequential_memory"]):
        assert min(memory["live_bytes"], memory["arena_bytes"]) > 0
    assert row["timed"]["default"].startswith("RuntimeError: Failed to find C compiler.")
    assert stand_in.current is stand_in.default
    printed = "\n".join(line for each in found for line in gpu.lines(each, ""))
    assert "default: RuntimeError" in printed
    assert "goal at batch 1: 1.05x" in printed


def test_the_papers_search_is_timed_where_its_stages_are_few(stand_in):
    *_, row = gpu.milestones("squeezenet", 1, "float32", peers=[], timings=2000, seconds=60.0)
    assert row["timed"]["ios"]["device_s"]["p50"] > 0.0


def test_a_peer_that_is_not_installed_says_so():
    with pytest.raises(UnsupportedError, match="here has no TensorrtExecutionProvider"):
        gpu.provider_call("squeezenet", 1, "float16", "ort-tensorrt")


def test_another_batch_without_peers(stand_in):
    *_, last = gpu.milestones("squeezenet", 3, "float32", peers=[], timings=5, seconds=60.0)
    assert last["batch"] == 3
    assert "eager" not in last["timed"]
    assert last["difference"] < 1e-5


def test_a_candidate_that_fails_on_the_device_is_a_note(stand_in, monkeypatch):
    """And the others are measured: no memory for merged kernels, say."""
    bind = cuda.bind_merged

    def no_memory(binder, units, *, threads):
        bind(binder, units, threads=threads)
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nmore")

    monkeypatch.setattr(cuda, "bind_merged", no_memory)
    *_, row = gpu.milestones("squeezenet", 1, "float32", peers=[], timings=40, seconds=60.0)
    assert any("CUDA out of memory. Tried to allocate 2.00 GiB." in note for note in row["notes"])
    assert row["difference"] < 1e-5


def test_what_does_not_run_at_all_is_an_error(stand_in, monkeypatch):
    monkeypatch.setattr(cuda, "_run", no_compiler)
    with pytest.raises(UnsupportedError, match="cannot run in a CUDA graph here: Failed to find C compiler"):
        list(gpu.milestones("squeezenet", 1, "float32", peers=[], timings=40, seconds=60.0))


def test_outputs_that_are_no_numbers_are_said(stand_in, monkeypatch):
    engine = stage_engine

    def broken(*given):
        made = engine(*given)
        made.outputs = lambda: [torch.full((1, 10, 1, 1), math.nan)]
        return made

    monkeypatch.setattr(gpu, "stage_engine", broken)
    *_, row = gpu.milestones("squeezenet", 1, "float32", peers=[], timings=5, seconds=60.0)
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

    def process(command, path, start, seconds):
        saved.append([row["network"] for row in committed.load_rows("ios_gpu")])
        given.append(seconds)
        return {**start, "error": "nothing"}

    monkeypatch.setattr(gpu, "measured", process)
    monkeypatch.setattr(gpu, "open_device", lambda kind, dtype: None)
    run(
        gpu.EXPERIMENT,
        ["--networks", "squeezenet,nasnet_large", "--timings", "9", "--seconds", "500", "--peers", "none"],
    )
    assert saved == [["resnet50"], ["resnet50", "squeezenet"]]
    assert given == pytest.approx([500 / 4.5, 500.0], abs=5.0)
    assert [row["network"] for row in committed.load_rows("ios_gpu")] == ["resnet50", "squeezenet", "nasnet_large"]
    assert "nothing" in capsys.readouterr().out
    given.clear()
    run(gpu.EXPERIMENT, ["--networks", "squeezenet,nasnet_large", "--seconds", "20", "--peers", "none"])
    assert given == [gpu.LEAST_S]
    assert "no time was left for nasnet_large at batch 1" in capsys.readouterr().out


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
