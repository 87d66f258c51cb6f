"""Figures 7 and 11: other runtimes compared with the chosen schedule, in the same run, at batch 1, 16 and 32.

    python -m experiments.ios.peers [--quick] [--networks A,B] [--batches 1,16,32] [--recorded]

Measured on this machine's CPU: medians of interleaved rounds. ONNX Runtime and OpenVINO run the same .onnx file,
torch.compile the same operators. OpenVINO is an optional peer: `pip install openvino`. The paper's peers TASO, TVM and
TensorRT need a GPU or are no longer installable, and were not run: its 1.1x to 1.5x over the best of them (V100, batch
1, Figure 7) stand next to our ratio to the best of other peers. Of Figure 11 its text has an ordering only.
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnx

from downset import Graph, StageLimits, load, open_device, tune_stages
from downset.executor.arena import seeded_inputs
from downset.executor.plain_function import network_function
from downset.executor.stage_engine import stage_engine
from downset.extras import torch_library
from downset.stages.prepared import prepare
from experiments.frame import Experiment, fields, names_of, run
from experiments.ios.against import SPEEDUPS, against, agreement
from experiments.ios.networks import NETWORKS
from experiments.rows import Row
from zoo import ZOO

PEERS = {"downset": "downset", "onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", "torch.compile": "torch.compile"}
ALL = ("squeezenet", "inception_v3")
Call = Callable[[], Any]


def with_batch(path: Path, batch: int) -> onnx.ModelProto:
    """The file for another batch: leading dimensions of inputs and outputs, and of stated shapes, replaced."""
    model = onnx.load(str(path))
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    del model.graph.value_info[:]
    return model


def onnxruntime_call(path: str, feeds: dict[str, np.ndarray], threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds)


def openvino_call(path: str, feeds: dict[str, np.ndarray], threads: int) -> Call:
    import openvino

    model = openvino.Core().compile_model(
        path,
        "CPU",
        {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"},
    )
    return lambda: model(feeds)


def compiled_call(graph: Graph) -> Call:
    torch = torch_library()
    run, inputs = network_function(graph)
    import torch._inductor.config as inductor
    from torch.fx.experimental.proxy_tensor import make_fx

    with torch.no_grad():
        traced = make_fx(run)(*inputs)
        with inductor.patch(freezing=True):
            compiled = torch.compile(traced)
            compiled(*inputs)

    def call() -> Any:
        with torch.no_grad():
            return compiled(*inputs)

    return call


def row_of(name: str, batch: int, *, rounds: int, timings: int, compile_too: bool) -> Row:
    device = open_device("cpu")
    row: Row = {"network": name, "batch": batch, "device": device.name, "failed": {}}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.onnx"
        onnx.save(ZOO[name](), str(path))
        onnx.save(with_batch(path, batch), str(path))
        graph = prepare(load(path))
        values = seeded_inputs(graph)
        feeds = {graph.tensors[t].name: v for t, v in zip(graph.inputs, values, strict=True)}
        result = tune_stages(graph, device, limits=StageLimits(timings=timings), runs=rounds)
        engine = stage_engine(graph, result.plan, device, values)
        calls: dict[str, Call] = {"downset": engine.outputs}
        makers: dict[str, Callable[[], Call]] = {
            "onnxruntime": lambda: onnxruntime_call(str(path), feeds, device.threads),
            "openvino": lambda: openvino_call(str(path), feeds, device.threads),
        }
        if compile_too:
            makers["torch.compile"] = lambda: compiled_call(graph)
        for peer, make in makers.items():
            try:
                calls[peer] = make()
            except Exception as error:  # a peer that is absent or fails is a row that says so
                row["failed"][peer] = f"{type(error).__name__}: {str(error).splitlines()[0][:100]}"
        samples: dict[str, list[float]] = {peer: [] for peer in calls}
        for turn in range(-2, rounds):
            for peer, call in calls.items():
                begin = time.perf_counter()
                call()
                if turn >= 0:
                    samples[peer].append(time.perf_counter() - begin)
        engine.close()
    row |= {"chosen": result.plan.evidence.method, "p50_s": {peer: median(times) for peer, times in samples.items()}}
    return row


def rows(options: Namespace) -> Iterator[Row]:
    names = ["squeezenet"] if options.quick else options.networks
    batches = [1] if options.quick else [int(batch) for batch in options.batches.split(",")]
    rounds, timings = (5, 60) if options.quick else (15, 120)
    for name in [] if options.recorded else names:
        for batch in batches:
            yield row_of(name, batch, rounds=rounds, timings=timings, compile_too=not options.quick)


def fastest(row: Row) -> str:
    return min((peer for peer in row["p50_s"] if peer != "downset"), key=row["p50_s"].__getitem__)


def over(row: Row) -> float:
    return float(row["p50_s"][fastest(row)] / row["p50_s"]["downset"])


def said(rows: Sequence[Row]) -> None:
    print("\nMeasured, medians in ms. TASO, TVM, TensorRT: not run.")
    for row in rows:
        name, batch = row["network"], row["batch"]
        failed = "".join(f"; {peer}: {why}" for peer, why in row["failed"].items())
        print(f"{name} batch {batch} [{row['chosen']}]{failed}")
        if set(row["p50_s"]) == {"downset"}:
            continue
        paper = SPEEDUPS.figure(of="Figure 7") if batch == 1 else None
        print("  " + against(f"over the fastest peer, here {fastest(row)}", paper, over(row), "measured, CPU"))
        if batch == 1 or name == "inception_v3":
            figure = "Figure 7" if batch == 1 else "Figure 11"
            statement = f"IOS is faster than every other framework ({figure})"
            print("  " + agreement(statement, over(row) > 1.0, "measured, CPU"))


EXPERIMENT = Experiment(
    "ios_peers",
    rows,
    (
        ("network", lambda row: NETWORKS[row["network"]]),
        *fields("batch"),
        *((title, f"{{p50_s[{peer}]!m:,.1f}}") for peer, title in PEERS.items()),
        ("fastest peer / downset", lambda row: f"{over(row):.2f}" if len(row["p50_s"]) > 1 else None),
        ("which", lambda row: fastest(row) if len(row["p50_s"]) > 1 else None),
    ),
    key=("network", "batch", "device"),
    quick="SqueezeNet at batch 1 without torch.compile; nothing is written",
    options={
        "--networks": {"type": names_of(NETWORKS), "default": ALL},
        "--batches": {"default": "1,16,32"},
        "--recorded": {"action": "store_true", "help": "print the committed rows; nothing is run"},
    },
    after=said,
)

if __name__ == "__main__":
    run(EXPERIMENT)
