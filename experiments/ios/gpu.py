"""The four networks on CUDA: stages against the sequential graph of the same kernels, eager and torch.compile.

    python -m experiments.ios.gpu [--quick] [--networks A,B] [--dtype float16] [--batches 1,32] [--no-peers]

Latencies are measured. `sequential` is one CUDA graph of the same kernels on one stream: the baseline that matters. All
are timed alike, in turns: between two events of the device, with the copy of the inputs and every launch. `eager` is
PyTorch launched operator by operator (channels last, batch normalisation folded), `compile` is
torch.compile(mode="reduce-overhead") of the same operators. TensorRT, TASO and TVM were not run. Each network is
measured in a process of its own within its share of --seconds (eight and a half minutes), and its row is saved at once,
with what is known by then and why there is no more.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from downset import DownsetError, Graph, StageLimits, StageResult, TorchDevice, open_device, tune_stages
from downset.executor.arena import seeded_inputs
from downset.executor.lane_program import concurrent_arena, lower, possibly_live_bytes
from downset.executor.plain_function import network_function
from downset.executor.stage_engine import stage_engine
from downset.extras import torch_library
from downset.results.plans import Stage, StagePlan
from downset.stages.prepared import planned_graph, prepare
from downset.stages.unit_graph import UnitGraph, unit_predecessors
from experiments.frame import Experiment, run
from experiments.ios.fig6 import beside_paper, candidates
from experiments.rows import Row
from zoo import graph as zoo_graph

NETWORKS = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large")
GOALS = {"inception_v3": 1.3, "nasnet_large": 1.6, "randwire_large": 1.5, "squeezenet": 1.05}
SHARES = {"squeezenet": 1.5, "inception_v3": 2.5, "randwire_large": 2.5, "nasnet_large": 3.5}
"""Shares of the time; later networks get what one leaves over."""
_ROUNDS = 30
_ROOT = Path(__file__).resolve().parents[2]


def timed(calls: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, float]:
    """Median seconds by name: the same events of the device around every call, in turns, after three that are not
    counted. Measured."""
    torch = torch_library()
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-3, runs):
        for name, call in calls.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize()
            begin.record()
            call()
            end.record()
            torch.cuda.synchronize()
            if turn >= 0:
                samples[name].append(begin.elapsed_time(end) / 1e3)
    return {name: median(taken) for name, taken in samples.items()}


def difference(graph: Graph, result: StageResult, device: TorchDevice) -> float | str:
    """The largest difference between the chosen schedule and float32 operator by operator, over the largest value."""
    torch = torch_library()
    values = seeded_inputs(graph)
    engine = stage_engine(graph, result.plan, device, values)
    ours = [value.float().cpu().numpy() for value in engine.outputs()]
    plain, inputs = network_function(graph, device="cuda")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.no_grad():
            theirs = [value.cpu().numpy() for value in plain(*inputs)]
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    worst = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))
    return worst if math.isfinite(worst) else "outputs are not finite"


def launches(graph: Graph, plan: StagePlan, device: TorchDevice) -> tuple[Callable[[], Any], Row]:
    """A call that copies the inputs in and starts the plan's graph, and the bytes of its capture: the most that it
    had allocated at a time (measured), and one arena that keeps apart what may be live side by side (analytic)."""
    engine = stage_engine(graph, plan, device, seeded_inputs(graph))
    planned = planned_graph(graph, plan)
    units = UnitGraph(plan.units, unit_predecessors(planned, plan.units))
    program = lower(units, plan.stages, barriers=plan.barriers, max_lanes=device.max_lanes)
    taken = {
        "captured_bytes": engine.engine.captured_bytes,
        "live_bytes": possibly_live_bytes(planned, program, dtype=device.dtype),
        "arena_bytes": concurrent_arena(planned, program, dtype=device.dtype).arena_bytes,
    }
    return lambda: engine.engine.launch(engine.values), taken


def peer_calls(graph: Graph, device: TorchDevice) -> tuple[Callable[[], Any], Callable[[], Any]]:
    """Eager and compiled, each with the copy of its inputs that a captured graph needs too."""
    from torch.fx.experimental.proxy_tensor import make_fx

    torch = torch_library()
    run, inputs = network_function(graph, device="cuda", dtype=device.dtype)
    static = [value.clone() for value in inputs]

    def copied(what: Callable[..., Any]) -> Any:
        with torch.no_grad():
            for own, value in zip(static, inputs, strict=True):
                own.copy_(value)
            return what(*static)

    compiled: list[Any] = []

    def compile_once() -> Any:
        if not compiled:
            with torch.no_grad():
                compiled.append(torch.compile(make_fx(run)(*static), mode="reduce-overhead"))
        return copied(compiled[0])

    return lambda: copied(run), compile_once


def attempt(call: Callable[[], Any]) -> Any:
    """The result of the call, or the reason in a line: a peer that fails is a row that says so."""
    try:
        return call()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:200]}"


def milestones(name: str, batch: int, dtype: str, *, peers: bool, timings: int, seconds: float) -> Iterator[Row]:
    """The row of one network, each time that more of it is known: stages first, what may take long last."""
    torch = torch_library()
    row: Row = {"network": name, "batch": batch, "dtype": dtype}
    begin = time.perf_counter()
    device = open_device("cuda", dtype=dtype)
    row |= {"device": device.name, "versions": device.versions}
    graph = prepare(zoo_graph(name), batch=batch)
    loaded = time.perf_counter()
    limits = StageLimits(timings=timings, all_seconds=max(1.0, 0.3 * seconds))
    result = tune_stages(graph, device, limits=limits, runs=_ROUNDS)
    row |= {
        "chosen": result.plan.evidence.method,
        "speedup": result.speedup,
        "why": result.why,
        "notes": list(result.notes),
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "search_s": time.perf_counter() - loaded,
        "candidates": [
            {
                "name": c.name,
                "p10_s": c.percentile(0.1),
                "p50_s": c.percentile(0.5),
                "p90_s": c.percentile(0.9),
                "stages": len(c.stages),
                "live_bytes": c.live_bytes,
            }
            for c in result.candidates
        ],
    }
    yield row
    row["difference"] = attempt(lambda: difference(graph, result, device))
    one_by_one = replace(result.plan, stages=tuple(Stage(((unit,),)) for unit in range(len(result.plan.units))))
    calls: dict[str, Callable[[], Any]] = {}
    calls["chosen"], row["memory"] = launches(graph, result.plan, device)
    calls["sequential"], row["sequential_memory"] = launches(graph, replace(one_by_one, barriers=False), device)
    row |= {f"{name}_s": taken for name, taken in timed(calls, _ROUNDS).items()}
    yield row
    if peers:
        # As the engine does: algorithms are chosen by timing them.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
        eager, compiled = peer_calls(graph, device)
        for name, call in (("eager", eager), ("compile", compiled)):
            timing = attempt(lambda name=name, call=call: timed({**calls, name: call}, _ROUNDS))
            row |= (
                {f"{one}_s": taken for one, taken in timing.items()}
                if isinstance(timing, dict)
                else {f"{name}_s": timing}
            )
            yield row
    row["seconds"] = time.perf_counter() - begin
    yield row


def measured(command: Sequence[str], path: Path, start: Row, seconds: float) -> Row:
    """The row that a process of its own left in `path`, whatever became of it: an error of CUDA leaves a process
    unusable, and a compiler may take any time. It and its children are stopped after `seconds`."""
    with tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(
            command,
            stdout=printed,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=_ROOT,
            start_new_session=True,
        )
        why = ""
        try:
            if status := child.wait(timeout=max(seconds, 1.0)):
                printed.seek(0)
                lines = [line.strip() for line in printed if line.strip()]
                how = f"signal {-status}" if status < 0 else f"status {status}"
                why = f"ended with {how}: {lines[-1][:300] if lines else 'nothing printed'}"
        except subprocess.TimeoutExpired:
            why = f"stopped after {seconds:.0f} s"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    row = {**start, **(json.loads(path.read_text()) if path.exists() else {})}
    if "candidates" not in row:
        row["error"] = why or "no row was left"
    elif why:
        row["unfinished"] = why
    return row


def keep(path: Path, row: Row) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(row, allow_nan=False))
    beside.replace(path)


def lines(row: Row, mark: str) -> Iterator[str]:
    if "error" in row:
        yield f"\n{row['network']}, batch {row['batch']}, {row['dtype']}{mark}: {row['error']}"
        return
    differ = row.get("difference", "not compared")
    yield (
        f"\n{row['network']}, batch {row['batch']}, {row['dtype']}, {row['device']}, {row['versions']}{mark}: "
        f"{row['timings_used']} stage timings in {row['search_s']:.0f} s; largest difference of the outputs: "
        f"{differ if isinstance(differ, str) else format(differ, '.1e')}"
    )
    yield from candidates(row)
    yield "  with the copy of the inputs and the launch, between two events of the device, in turns:"
    base = row.get("sequential_s")
    for peer in ("chosen_s", "sequential_s", "eager_s", "compile_s"):
        if isinstance(row.get(peer), float):
            yield f"  {peer[:-2]:30} {'':8} {row[peer] * 1e3:8.3f} {'':8} ms  {base / row[peer]:5.2f}x"
        elif peer in row:
            yield f"  {peer[:-2]}: {row[peer]}"
    for key, what in (("memory", "chosen"), ("sequential_memory", "sequential")):
        if key in row:
            held, live, arena = (f"{row[key][name]:,} B" for name in ("captured_bytes", "live_bytes", "arena_bytes"))
            yield (
                f"  {what}: the capture holds {held} of intermediates at a time; {live} may be live, and one "
                f"arena takes {arena} (analytic)"
            )
    if "unfinished" in row:
        yield f"  not all of it: {row['unfinished']}"
    yield from (f"  note: {note}" for note in row["notes"])
    goal = GOALS.get(row["network"])
    reached = f"; goal at batch 1: {goal}x" if goal and row["batch"] == 1 else ""
    bound = "not known" if row["bound_s"] is None else f"{row['bound_s'] * 1e3:.3f} ms"
    yield f"  speed-up {row['speedup']:.2f}x{reached}; {row['why']}; bound {bound}"
    yield from beside_paper(row, row["speedup"], f"measured, {row['dtype']}")


def one(options: Namespace) -> None:
    """Measure one network in a process of its own: its row goes to a file each time that more of it is known."""
    for row in milestones(
        options.networks,
        int(options.batches),
        options.dtype,
        peers=not options.no_peers,
        timings=options.timings,
        seconds=options.seconds,
    ):
        keep(Path(options.one), row)


def rows(options: Namespace) -> Iterator[Row]:
    """All networks, each in a process of its own and within its share of the time."""
    if options.one:
        one(options)
        return
    try:
        open_device("cuda", dtype=options.dtype)
    except DownsetError as error:
        print(error)
        return
    names = ["squeezenet"] if options.quick else options.networks.split(",")
    todo = [(name, batch) for batch in map(int, options.batches.split(",")) for name in names]
    ends = time.monotonic() + options.seconds
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, batch) in enumerate(todo):
            weights = [SHARES.get(later, 1.0) for later, _ in todo[index:]]
            seconds = (ends - time.monotonic()) * weights[0] / sum(weights)
            path = Path(folder) / f"{index}.json"
            command = [sys.executable, "-m", "experiments.ios.gpu", "--one", str(path), "--networks", name]
            command += ["--batches", str(batch), "--dtype", options.dtype, "--timings", str(options.timings)]
            command += ["--seconds", f"{seconds:.1f}", *(["--no-peers"] if options.no_peers else [])]
            yield measured(command, path, {"network": name, "batch": batch, "dtype": options.dtype}, seconds)


EXPERIMENT = Experiment(
    "ios_gpu",
    rows,
    key=("network", "batch", "dtype"),
    quick="SqueezeNet at batch 1; the committed table is left alone",
    options={
        "--networks": {"default": ",".join(NETWORKS)},
        "--dtype": {"default": "float16"},
        "--batches": {"default": "1"},
        "--timings": {"type": int, "default": 200},
        "--seconds": {"type": float, "default": 510.0, "help": "for everything"},
        "--no-peers": {"action": "store_true", "help": "neither eager nor torch.compile"},
        "--one": {"help": SUPPRESS},
    },
    lines=lines,
)

if __name__ == "__main__":
    run(EXPERIMENT)
