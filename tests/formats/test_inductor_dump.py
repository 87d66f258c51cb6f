"""Dumps that Inductor's own function writes, read back: the same bytes by Inductor's own estimator."""

import json
import logging
import re
from pathlib import Path

import pytest
import torch
from torch._inductor import memory
from torch._logging._internal import TorchLogsFormatter, trace_log

import downset as ds
from tests.fresh_graphs import fresh_graphs
from tests.inductor_nodes import random_scheduled


def dump_of(scheduled, path, monkeypatch):
    """By Inductor's own function."""
    written = []
    with monkeypatch.context() as patched:
        patched.setattr(torch._logging, "trace_structured", lambda *_, payload_fn, **__: written.append(payload_fn()))
        patched.setattr("functorch.compile.get_graph_being_compiled", lambda: "model__0_inference_0")
        fused = {node.get_name(): node for node in scheduled.nodes}
        memory.export_graph_for_simulator(
            scheduled.nodes, scheduled.inputs, fused, memory.OrderedSet(scheduled.inputs), scheduled.outputs
        )
    path.write_text(written[0])
    return path


@pytest.mark.parametrize("count", [3, 12, 60])
def test_bytes_are_inductors_for_its_own_orders(count, tmp_path, monkeypatch):
    for seed in range(25):
        scheduled = random_scheduled(f"dump/{count}/{seed}", count)
        graph = ds.load(dump_of(scheduled, tmp_path / "dump.json", monkeypatch))
        assert [op.name for op in graph.ops] == [node.get_name() for node in scheduled.nodes]
        problem = ds.order_problem(graph)
        for order in (
            scheduled.nodes,
            memory.topological_sort_lpmf(scheduled.nodes, scheduled.inputs, scheduled.buffers, scheduled.outputs),
            memory.topological_sort_bfs(scheduled.nodes),
        ):
            estimate, _ = memory.estimate_peak_memory(order, scheduled.inputs, scheduled.outputs)
            assert ds.peak_bytes(problem, [scheduled.nodes.index(node) for node in order]) == estimate
        planned = ds.plan_order(graph)
        assert planned.evidence.proven
        assert planned.peak_bytes <= estimate


def test_the_page_takes_the_dumps_out_of_a_real_trace(tmp_path, monkeypatch):
    """As PyTorch writes it under TORCH_TRACE, which must be set before it is imported."""
    monkeypatch.chdir(tmp_path)
    Path("trace").mkdir()
    handler = logging.FileHandler("trace/one.log")
    handler.setFormatter(TorchLogsFormatter(trace=True))
    level = trace_log.level
    trace_log.addHandler(handler)
    trace_log.setLevel(logging.DEBUG)
    torch._dynamo.reset()
    try:
        with fresh_graphs(reorder_for_peak_memory_debug=True):
            torch.compile(lambda x: x.mm(x).mm(x), fullgraph=True)(torch.ones(8, 8))
    finally:
        trace_log.removeHandler(handler)
        trace_log.setLevel(level)
        handler.close()
    page = (Path(__file__).resolve().parents[2] / "docs" / "pytorch.md").read_text()
    (taken_out,) = (block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "_fused" in block)
    exec(taken_out, {})
    (dump,) = tmp_path.glob("*_fused.json")
    assert len(ds.load(dump).ops) == 2


def broken(scheduled, path, monkeypatch, change):
    dump = json.loads(dump_of(scheduled, path, monkeypatch).read_text())
    change(dump)
    path.write_text(json.dumps(dump))
    return path


def unknown_dep(dump):
    dump["buffers"][-1]["deps"].append("nowhere")


def without_whole(dump):
    part = next(buffer for buffer in dump["buffers"] if buffer["size_free"] > buffer["size_alloc"])
    part["deps"] = []


def grown_part(dump):
    next(buffer for buffer in dump["buffers"] if buffer["size_free"] > buffer["size_alloc"])["size_free"] += 10**6


def twice(dump):
    dump["buffers"].append(dump["buffers"][0])


def text_for_bytes(dump):
    dump["buffers"][0]["size_free"] = "many"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (unknown_dep, "waits for nowhere, which is not a buffer"),
        (without_whole, "is freed but never allocated"),
        (grown_part, "frees"),
        (twice, "two buffers have one name"),
        (text_for_bytes, "is not a dump of Inductor's"),
    ],
)
def test_a_damaged_dump_is_one_line(change, said, tmp_path, monkeypatch):
    path = broken(random_scheduled("parts", 40), tmp_path / "dump.json", monkeypatch, change)
    with pytest.raises(ds.LoadError, match=said) as told:
        ds.load(path)
    assert "\n" not in str(told.value)
