"""The share of intermediates in a network's memory, and the effect of their reuse on its speed: paper | ours.

    python -m experiments.tflite_memory.shares [--quick]

*Share* (analytic): bytes of all intermediates without reuse, of these plus weights, input and output, in float32. The
paper gives 37 % of 147 MB for Inception v3 and 63 % of 41 MB for MobileNet v2; `with arena` is the same share once the
intermediates have their planned offsets. *Speed* (measured, ONNX Runtime on one thread): one session whose every
intermediate is bound to an address of ours, first each to bytes of its own, then all to the planned arena. Kernels,
order and inputs are the same, only the addresses differ; runs alternate, and the outputs are compared. The paper says
that reuse makes inference up to 10 % faster.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnxruntime

from downset import Arena, Graph, lifetimes, plan_arena
from downset.memory.records import align_up
from experiments.frame import Experiment, printed, run
from experiments.rows import Row
from experiments.tflite_memory.networks import NETWORKS, REBUILT, network
from zoo import ZOO, counts

MB = 10**6
PAPER = printed("memory_shares")
LINE_BYTES = 64


def placed(graph: Graph, method: str) -> Arena:
    """All intermediates on cache lines, in the order of the file."""
    living = lifetimes(graph, range(len(graph.ops)), "paper")
    arena = plan_arena([replace(record, alignment=LINE_BYTES) for record in living.records], method=method)
    offsets = {tensor: arena.offsets[record] for tensor, record in enumerate(living.record_of) if record >= 0}
    return replace(arena, tensor_offsets=offsets)


def share_row(name: str, graph: Graph, arena: Arena) -> Row:
    name_in_zoo, options = NETWORKS[name]
    weights = 4 * counts(ZOO[name_in_zoo](weights=False, **options))["weights"]
    ends = sum(graph.tensors[tensor].nbytes for tensor in (*graph.inputs, *graph.outputs))
    intermediates = sum(record.nbytes for record in arena.records)
    rest = weights + ends
    return {
        "network": name,
        "paper_share": PAPER.figure("share", network=name),
        "paper_mb": PAPER.figure("whole", network=name),
        "share": round(intermediates / (intermediates + rest), 4),
        "total_mb": round((intermediates + rest) / MB, 1),
        "share_with_arena": round(arena.arena_bytes / (arena.arena_bytes + rest), 4),
        "total_with_arena_mb": round((arena.arena_bytes + rest) / MB, 1),
    }


def bound_run(session: Any, graph: Graph, arena: Arena, feed: Any) -> Callable[[], list[Any]]:
    """A function that runs once with the intermediates at the arena's offsets, and returns the outputs."""
    buffer = np.zeros(arena.arena_bytes + LINE_BYTES, dtype=np.uint8)
    base = align_up(buffer.ctypes.data, LINE_BYTES)
    results = {tensor: np.zeros(graph.tensors[tensor].shape, dtype=np.float32) for tensor in graph.outputs}
    place = {tensor: base + offset for tensor, offset in arena.tensor_offsets.items()}
    place |= {tensor: result.ctypes.data for tensor, result in results.items()}
    index = {tensor.name: position for position, tensor in enumerate(graph.tensors)}
    binding = session.io_binding()
    binding.bind_cpu_input(session.get_inputs()[0].name, feed)
    for output in session.get_outputs():
        tensor = index[output.name]
        binding.bind_output(output.name, "cpu", 0, np.float32, list(graph.tensors[tensor].shape), place[tensor])

    def run(_keeps_alive: Any = buffer) -> list[Any]:
        session.run_with_iobinding(binding)
        return [results[tensor].copy() for tensor in graph.outputs]

    return run


def session_with_all_outputs(name: str, graph: Graph, tensors: Sequence[int]) -> Any:
    """The network with every intermediate among its outputs, so that addresses can be given for them."""
    name_in_zoo, options = NETWORKS[name]
    model = ZOO[name_in_zoo](fused=True, **options)
    model.graph.output.extend(
        onnx.helper.make_tensor_value_info(graph.tensors[t].name, onnx.TensorProto.FLOAT, graph.tensors[t].shape)
        for t in tensors
    )
    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    settings.execution_order = onnxruntime.ExecutionOrder.PRIORITY_BASED  # the file's
    return onnxruntime.InferenceSession(model.SerializeToString(), settings, providers=["CPUExecutionProvider"])


def speed_row(name: str, graph: Graph, arena: Arena, rounds: int) -> Row:
    """Median run times without and with reuse, and the quartiles of the ratio of neighbouring runs."""
    apart = placed(graph, "naive")
    session = session_with_all_outputs(name, graph, list(arena.tensor_offsets))
    shape = graph.tensors[graph.inputs[0]].shape
    feed = np.random.default_rng(0).standard_normal(shape, dtype=np.float32)
    runs = [bound_run(session, graph, plan, feed) for plan in (apart, arena)]
    for one, other in zip(runs[0](), runs[1](), strict=True):
        if not np.array_equal(one, other):
            raise AssertionError(f"{name}: the outputs differ between the two placements")
    seconds: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds):
        for which in (0, 1) if turn % 2 else (1, 0):
            begin = time.process_time()
            runs[which]()
            seconds[which].append(time.process_time() - begin)
    low, middle, high = statistics.quantiles([a / b for a, b in zip(*seconds, strict=True)], n=4)
    return {
        "own_bytes_ms": round(1000 * statistics.median(seconds[0]), 3),
        "arena_ms": round(1000 * statistics.median(seconds[1]), 3),
        "speed_up": round(middle, 4),
        "speed_up_quartiles": [round(low, 4), round(high, 4)],
        "rounds": rounds,
    }


def rows(options: Namespace) -> Iterator[Row]:
    for name in ("MobileNet v1", "MobileNet v2", "BlazeFace") if options.quick else NETWORKS:
        graph = network(name)
        arena = placed(graph, "best")
        yield share_row(name, graph, arena) | speed_row(name, graph, arena, 6 if options.quick else 40)


def remark(_rows: Sequence[Row]) -> None:
    print("The paper: up to 1.10 times as fast.", end=" ")
    print("Ours: ONNX Runtime on one CPU thread, median (quartiles) of paired runs.")


EXPERIMENT = Experiment(
    "tflite_memory_shares",
    rows,
    (
        ("network", lambda row: row["network"] + (" (rebuilt)" if row["network"] in REBUILT else "")),
        ("paper: share", lambda row: f"{row['paper_share']:.0%} of {row['paper_mb']} MB" if row["paper_mb"] else None),
        ("ours: share", "{share:.0%} of {total_mb:.0f} MB"),
        ("with arena", "{share_with_arena:.0%} of {total_with_arena_mb:.0f} MB"),
        ("own bytes, CPU ms", "{own_bytes_ms:.2f}"),
        ("arena, CPU ms", "{arena_ms:.2f}"),
        ("times as fast", "{speed_up:.3f} ({speed_up_quartiles[0]:.3f} to {speed_up_quartiles[1]:.3f})"),
    ),
    quick="three small networks, few runs, nothing written",
    after=remark,
)

if __name__ == "__main__":
    run(EXPERIMENT)
