"""Times other runtimes on the same machine in the same interleaved rounds as a plan of stages.

ONNX Runtime and OpenMP keep threads for a while after a run that look for the next one. Where a run of another runtime
follows at once, it has fewer processors, so each timed run follows a rest and a run of its own that does not count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from downset.errors import DownsetError
from downset.executor.device import Elsewhere
from downset.executor.plain_function import network_function
from downset.executor.stage_engine import stage_engine
from downset.extras import torch_library
from downset.graph.core import Graph
from downset.messages import Message
from downset.results.plans import StagePlan
from downset.runtimes.ort_timed import timed_session
from downset.tuning.choice import TimingRounds

__all__ = ["OURS", "time_peers"]

OURS = "downset"
Call = Callable[[Sequence[Any]], Any]


def time_peers(
    loaded: Graph,
    graph: Graph,
    plan: StagePlan,
    rounds: TimingRounds,
) -> tuple[dict[str, tuple[float, ...]], list[str]]:
    """(measured seconds of each run by runtime, with the plan's; notes on runtimes that were not timed). `loaded`: the
    graph of the file. `graph`: the graph prepared from it for which the plan was made."""
    device, values = rounds.device, rounds.values
    if device.kind != "cpu":
        return {}, ["no other runtime was timed: on a GPU `python -m experiments.ios.gpu` does so"]
    notes: list[str] = []
    rounds.progress("opening other runtimes", 0, 1)
    time_whole = partial(
        device.time_whole, runs=rounds.runs, apart=True, progress=partial(rounds.progress, "timing other runtimes")
    )
    engine = stage_engine(graph, plan, device, values)
    calls: dict[str, Call | Elsewhere] = {OURS: lambda _: engine.outputs(), "PyTorch": _torch_call(graph, plan.dtype)}
    try:
        samples = None
        if loaded.source.format == "onnx":
            feeds = {graph.tensors[tensor].name: value for tensor, value in zip(graph.inputs, values, strict=True)}
            try:
                with timed_session(loaded.source.path, feeds, threads=device.threads) as run:
                    samples = time_whole({**calls, "ONNX Runtime": Elsewhere(run)}, values)
            except DownsetError as error:
                notes.append(Message("ONNX Runtime was not timed: ", error.message))
        if samples is None:
            samples = time_whole(calls, values)
    finally:
        engine.close()
    return {name: tuple(seconds) for name, seconds in samples.items()}, notes


def _torch_call(graph: Graph, dtype: str) -> Call:
    run, inputs = network_function(graph, dtype=dtype)

    def call(_: Sequence[Any]) -> Any:
        with torch_library().no_grad():
            return run(*inputs)

    return call
