"""The four networks on CUDA: stages against the sequential graph of the same kernels, eager and torch.compile.

    python -m experiments.ios.gpu [--quick] [--networks A,B] [--dtype float16] [--batches 1,32] [--no-compile]

Everything is measured. `sequential` is one CUDA graph of the same kernels on one stream: the baseline that matters.
`eager` is PyTorch launched operator by operator (channels last, batch normalisation folded), `compile` is
torch.compile(mode="reduce-overhead") of the same operators. TensorRT, TASO and TVM were not run.
"""

from __future__ import annotations

import argparse
import time
from statistics import median
from typing import Any

import numpy as np

from downset.errors import DownsetError
from downset.graph import Graph
from downset.run.arena import seeded_inputs
from downset.run.device import Device, open_device
from downset.run.library import torch_library
from downset.stage import Limits, StageResult, stage
from downset.staged import prepare, stage_engine
from experiments.ios.plain import network_function
from experiments.rows import load_rows, save_rows
from experiments.zoo import graph as zoo_graph

NAME = "ios_gpu"
NETWORKS = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large")
GOALS = {"inception_v3": 1.3, "nasnet_large": 1.6, "randwire_large": 1.5, "squeezenet": 1.05}
_ROUNDS = 30


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


def difference(graph: Graph, result: StageResult, device: Device) -> float:
    """The largest difference between the chosen schedule and float32 operator by operator, over the largest value."""
    torch = torch_library()
    values = seeded_inputs(graph)
    engine = stage_engine(graph, result.plan, device, values)
    ours = [value.float().cpu().numpy() for value in engine.outputs()]
    plain, inputs = network_function(graph, device="cuda")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    with torch.no_grad():
        theirs = [value.cpu().numpy() for value in plain(*inputs)]
    torch.backends.cudnn.allow_tf32 = tf32
    return max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))


def compiled_seconds(graph: Graph, device: Device) -> float | str:
    torch = torch_library()
    try:
        from torch.fx.experimental.proxy_tensor import make_fx

        run, inputs = network_function(graph, device="cuda", dtype=device.dtype)
        with torch.no_grad():
            traced = make_fx(run)(*inputs)
            compiled = torch.compile(traced, mode="reduce-overhead")
            return timed(lambda: compiled(*inputs))
    except Exception as error:  # a peer that fails is a row that says so
        return f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"


def row_of(name: str, batch: int, dtype: str, *, compile_too: bool, timings: int) -> dict[str, Any]:
    torch = torch_library()
    device = open_device("cuda", dtype=dtype)
    begin = time.perf_counter()
    graph = prepare(zoo_graph(name), batch=batch)
    loaded = time.perf_counter()
    result = stage(graph, device, limits=Limits(timings=timings), runs=_ROUNDS)
    searched = time.perf_counter()
    row: dict[str, Any] = {
        "network": name,
        "batch": batch,
        "dtype": dtype,
        "device": device.name,
        "versions": device.versions,
        "chosen": result.plan.evidence.method,
        "speedup": result.speedup,
        "why": result.why,
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "search_s": searched - loaded,
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
        "difference": difference(graph, result, device),
    }
    run, inputs = network_function(graph, device="cuda", dtype=device.dtype)
    with torch.no_grad():
        row["eager_s"] = timed(lambda: run(*inputs))
    if compile_too:
        row["compile_s"] = compiled_seconds(graph, device)
    row["seconds"] = time.perf_counter() - begin
    return row


def show(row: dict[str, Any], mark: str = "") -> None:
    if "error" in row:
        print(f"{row['network']} batch {row['batch']}{mark}: {row['error']}")
        return
    print(
        f"\n{row['network']}, batch {row['batch']}, {row['dtype']}, {row['device']}, {row['versions']}{mark}: "
        f"{row['timings_used']} stage timings in {row['search_s']:.0f} s; outputs differ by {row['difference']:.1e}"
    )
    base = next(c["p50_s"] for c in row["candidates"] if c["name"] == "sequential")
    for c in row["candidates"]:
        mine = " <- chosen" if c["name"] == row["chosen"] else ""
        print(
            f"  {c['name']:19} {c['p10_s'] * 1e3:8.3f} {c['p50_s'] * 1e3:8.3f} {c['p90_s'] * 1e3:8.3f} ms  "
            f"{base / c['p50_s']:5.2f}x  {c['stages']:4} stages{mine}"
        )
    for peer in ("eager_s", "compile_s"):
        if isinstance(row.get(peer), float):
            print(f"  {peer[:-2]:19} {'':8} {row[peer] * 1e3:8.3f} {'':8} ms  {base / row[peer]:5.2f}x")
        elif peer in row:
            print(f"  {peer[:-2]}: {row[peer]}")
    goal = GOALS[row["network"]]
    reached = "" if row["batch"] != 1 else f"; goal at batch 1: {goal}x"
    print(f"  speed-up {row['speedup']:.2f}x{reached}; {row['why']}; longest path {row['bound_s'] * 1e3:.3f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="SqueezeNet at batch 1; the committed table is left alone")
    parser.add_argument("--networks", default=",".join(NETWORKS))
    parser.add_argument("--dtype", default="float16")
    parser.add_argument("--batches", default="1")
    parser.add_argument("--timings", type=int, default=200)
    parser.add_argument("--no-compile", action="store_true")
    arguments = parser.parse_args()
    names = ["squeezenet"] if arguments.quick else arguments.networks.split(",")
    recorded = load_rows(NAME)
    try:
        open_device("cuda", dtype=arguments.dtype)
    except DownsetError as error:
        print(f"{error}; recorded rows:")
        for row in recorded:
            show(row, " (recorded)")
        return
    rows = []
    for batch in map(int, arguments.batches.split(",")):
        for name in names:
            try:
                rows.append(
                    row_of(
                        name,
                        batch,
                        arguments.dtype,
                        compile_too=not arguments.no_compile,
                        timings=arguments.timings,
                    )
                )
            except Exception as error:  # the other networks' rows are worth having
                if isinstance(error, AssertionError):
                    raise
                text = f"{type(error).__name__}: {str(error)[:500]}"
                rows.append({"network": name, "batch": batch, "dtype": arguments.dtype, "error": text})
            show(rows[-1])
            if not arguments.quick:
                fresh = {(row["network"], row["batch"], row["dtype"]) for row in rows}
                kept = [row for row in recorded if (row["network"], row["batch"], row["dtype"]) not in fresh]
                save_rows(NAME, [*kept, *rows])


if __name__ == "__main__":
    main()
