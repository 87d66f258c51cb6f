"""The four networks on CUDA: stages against the sequential graph of the same kernels, eager and torch.compile.

    python -m experiments.ios.gpu [--quick] [--networks A,B] [--dtype float16] [--batches 1,32] [--no-peers]

Everything is measured. `sequential` is one CUDA graph of the same kernels on one stream: the baseline that matters.
`eager` is PyTorch launched operator by operator (channels last, batch normalisation folded), `compile` is
torch.compile(mode="reduce-overhead") of the same operators. TensorRT, TASO and TVM were not run. Each network is
measured in a process of its own within its share of --seconds (eight and a half minutes), and its row is saved at once,
with what is known by then and why there is no more.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from downset import Device, DownsetError, Graph, StageLimits, StageResult, open_device, tune_stages
from downset.executor.arena import seeded_inputs
from downset.executor.staged import stage_engine
from downset.extras import torch_library
from downset.stages.prepared import prepare
from experiments.ios.fig6 import show_against
from experiments.ios.plain import network_function
from experiments.rows import load_rows, save_rows
from zoo import graph as zoo_graph

NAME = "ios_gpu"
NETWORKS = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large")
GOALS = {"inception_v3": 1.3, "nasnet_large": 1.6, "randwire_large": 1.5, "squeezenet": 1.05}
SHARES = {"squeezenet": 1.5, "inception_v3": 2.5, "randwire_large": 2.5, "nasnet_large": 3.5}
"""Of the time; what one network leaves over the later ones get."""
Row = dict[str, Any]
_ROUNDS = 30
_ROOT = Path(__file__).resolve().parents[2]


def timed(call: Any, runs: int = _ROUNDS) -> float:
    """Median seconds of a call, launches included, by the wall clock between two synchronisations. Measured."""
    torch = torch_library()
    samples = []
    for turn in range(-3, runs):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        torch.cuda.synchronize()
        if turn >= 0:
            samples.append(time.perf_counter() - begin)
    return median(samples)


def difference(graph: Graph, result: StageResult, device: Device) -> float | str:
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


def eager_seconds(graph: Graph, device: Device) -> float:
    run, inputs = network_function(graph, device="cuda", dtype=device.dtype)
    with torch_library().no_grad():
        return timed(lambda: run(*inputs))


def compiled_seconds(graph: Graph, device: Device) -> float:
    from torch.fx.experimental.proxy_tensor import make_fx

    torch = torch_library()
    run, inputs = network_function(graph, device="cuda", dtype=device.dtype)
    with torch.no_grad():
        compiled = torch.compile(make_fx(run)(*inputs), mode="reduce-overhead")
        return timed(lambda: compiled(*inputs))


def attempt(call: Callable[[], Any]) -> Any:
    """What the call returns, or the reason in a line: a peer that fails is a row that says so."""
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
    if peers:
        # As the engine does: algorithms are chosen by timing them.
        torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4
        row["eager_s"] = attempt(lambda: eager_seconds(graph, device))
        yield row
        row["compile_s"] = attempt(lambda: compiled_seconds(graph, device))
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


def show(row: Row, mark: str = "") -> None:
    if "error" in row:
        print(f"\n{row['network']}, batch {row['batch']}, {row['dtype']}{mark}: {row['error']}", flush=True)
        return
    differ = row.get("difference", "not compared")
    print(
        f"\n{row['network']}, batch {row['batch']}, {row['dtype']}, {row['device']}, {row['versions']}{mark}: "
        f"{row['timings_used']} stage timings in {row['search_s']:.0f} s; largest difference of the outputs: "
        f"{differ if isinstance(differ, str) else format(differ, '.1e')}"
    )
    base = next(c["p50_s"] for c in row["candidates"] if c["name"] == "sequential")
    for c in row["candidates"]:
        mine = " <- chosen" if c["name"] == row["chosen"] else ""
        print(
            f"  {c['name']:30} {c['p10_s'] * 1e3:8.3f} {c['p50_s'] * 1e3:8.3f} {c['p90_s'] * 1e3:8.3f} ms  "
            f"{base / c['p50_s']:5.2f}x  {c['stages']:4} stages{mine}"
        )
    for peer in ("eager_s", "compile_s"):
        if isinstance(row.get(peer), float):
            print(f"  {peer[:-2]:30} {'':8} {row[peer] * 1e3:8.3f} {'':8} ms  {base / row[peer]:5.2f}x")
        elif peer in row:
            print(f"  {peer[:-2]}: {row[peer]}")
    if "unfinished" in row:
        print(f"  not all of it: {row['unfinished']}")
    for note in row["notes"]:
        print(f"  note: {note}")
    goal = GOALS.get(row["network"])
    reached = f"; goal at batch 1: {goal}x" if goal and row["batch"] == 1 else ""
    bound = "not known" if row["bound_s"] is None else f"{row['bound_s'] * 1e3:.3f} ms"
    print(f"  speed-up {row['speedup']:.2f}x{reached}; {row['why']}; bound {bound}")
    show_against(row, row["speedup"], f"measured, {row['dtype']}")
    sys.stdout.flush()


def one(arguments: argparse.Namespace) -> None:
    """In the process of one network: its row goes to a file each time that more of it is known."""
    for row in milestones(
        arguments.networks,
        int(arguments.batches),
        arguments.dtype,
        peers=not arguments.no_peers,
        timings=arguments.timings,
        seconds=arguments.seconds,
    ):
        keep(Path(arguments.one), row)


def table(arguments: argparse.Namespace) -> None:
    """All networks, each in a process of its own and within its share of the time; rows are saved one by one."""
    names = ["squeezenet"] if arguments.quick else arguments.networks.split(",")
    todo = [(name, batch) for batch in map(int, arguments.batches.split(",")) for name in names]
    rows = []
    ends = time.monotonic() + arguments.seconds
    with tempfile.TemporaryDirectory() as folder:
        for at, (name, batch) in enumerate(todo):
            weights = [SHARES.get(later, 1.0) for later, _ in todo[at:]]
            seconds = (ends - time.monotonic()) * weights[0] / sum(weights)
            path = Path(folder) / f"{at}.json"
            command = [sys.executable, "-m", "experiments.ios.gpu", "--one", str(path), "--networks", name]
            command += ["--batches", str(batch), "--dtype", arguments.dtype, "--timings", str(arguments.timings)]
            command += ["--seconds", f"{seconds:.1f}", *(["--no-peers"] if arguments.no_peers else [])]
            start = {"network": name, "batch": batch, "dtype": arguments.dtype}
            rows.append(measured(command, path, start, seconds))
            show(rows[-1])
            if not arguments.quick:
                save_rows(NAME, rows, by=["network", "batch", "dtype"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet at batch 1; the committed table is left alone")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--timings", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=510.0, help="for everything")
    parser.add_argument("--no-peers", action="store_true", help="neither eager nor torch.compile")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        one(arguments)
        return
    try:
        open_device("cuda", dtype=arguments.dtype)
    except DownsetError as error:
        print(f"{error}; recorded rows:")
        for row in load_rows(NAME):
            show(row, " (recorded)")
        return
    table(arguments)


if __name__ == "__main__":
    main()
