"""One training step of one network, run one way, in a process of its own: peak, time, compile time, losses.

    python -m experiments.inductor.measure NETWORK eager|inductor|whole|ordered|within [--planning]

Prints one JSON document. `inductor` compiles the model with its loss and leaves the optimiser eager; `whole` and
`ordered` compile the whole step as one graph, in Inductor's order and in ours; `within` is `ordered` with `peak_bytes`
at 0.6 of the estimated peak without recomputation. AdamW, one thread. `planning_cpu_s` are the CPU seconds of our
passes in the compile of a whole step and all that they do: Inductor's own orders to compare with, reports too.
`--planning` measures these alone: the compile ends behind them.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch

import downset as ds
from downset.integrations import order_pass, recompute_pass
from experiments.inductor.networks import NETWORKS, Case

WAYS = ("eager", "inductor", "whole", "ordered")
WITHIN = "within"
SHARE = 0.6
STEPS = 10


class Enough(BaseException):
    """Ends a compile once its report is there."""


def limit_of(make: Callable[[], Case], *, share: float = SHARE) -> int:
    """A share of the estimated peak of a whole step without recomputation."""
    told: list[int] = []

    def report(outcome: Any) -> None:
        told.append(outcome.none_bytes)
        raise Enough

    case = make()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=case.learning_rate)
    step = ds.inductor.compile_step(case.model, case.loss_fn, optimizer, report=report, peak_bytes=2**60, choices=1)
    with contextlib.suppress(Enough):
        step(case.inputs, case.targets)
    torch._dynamo.reset()
    return int(share * told[0])


def training_step(
    case: Case, way: str, reports: list[Any], peak_bytes: int | None = None
) -> Callable[[], torch.Tensor]:
    if way in ("whole", "ordered", WITHIN):
        return whole_step(case, order=way != "whole", report=reports.append, peak_bytes=peak_bytes)
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=case.learning_rate)
    return plain_step(case, [optimizer], compiled=way == "inductor")


def whole_step(case: Case, *, falls: bool = False, **options: Any) -> Callable[[], torch.Tensor]:
    """A step of `compile_step` with these options. Unless it `falls`, it does not run as less than one graph."""
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=case.learning_rate)
    step = ds.inductor.compile_step(case.model, case.loss_fn, optimizer, **options)

    def whole() -> torch.Tensor:
        loss = step(case.inputs, case.targets)
        if step.fallback and not falls:
            raise SystemExit(step.fallback)
        return loss

    return whole


def plain_step(case: Case, optimizers: Sequence[Any], *, compiled: bool) -> Callable[[], torch.Tensor]:
    """A plain step. `compiled`: the model with its loss is. `optimizers`: those that step after the backward pass."""
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)

    def forward(*given: Any) -> torch.Tensor:
        return case.loss_fn(case.model(*given), case.targets)

    loss_of = torch.compile(forward, fullgraph=True) if compiled else forward

    def plain() -> torch.Tensor:
        loss = loss_of(*inputs)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    return plain


def median_s(step: Callable[[], Any], now: Callable[[], float]) -> float:
    """The seconds that a step takes on this clock."""
    seconds = []
    for _ in range(STEPS):
        begin = now()
        step()
        seconds.append(now() - begin)
    return round(statistics.median(seconds), 5)


def peak_bytes(step: Callable[[], torch.Tensor]) -> int:
    """The most bytes that the allocator holds during a step in addition to what it held before: the profiler's sums."""
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = sorted((e["ts"], index, e["args"]["Bytes"]) for index, e in enumerate(events) if e["name"] == "[memory]")
    held = peak = 0
    for _, _, nbytes in memory:
        held += nbytes
        peak = max(peak, held)
    return peak


def measured(network: str, way: str) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    reports: list[Any] = []
    limit = limit_of(NETWORKS[network]) if way == WITHIN else None
    torch.manual_seed(0)
    step = training_step(NETWORKS[network](), way, reports, limit)
    with planning_cpu_s() as spent:
        begin, begin_cpu = time.perf_counter(), cpu_s()
        losses = [float(step())]
        first_s, first_cpu_s = time.perf_counter() - begin, cpu_s() - begin_cpu
    losses += [float(step()) for _ in range(2)]
    step_s = median_s(step, time.perf_counter)
    row = {
        "network": network,
        "way": way,
        "peak_bytes": peak_bytes(step),
        "losses": [round(loss, 6) for loss in losses],
    }
    row.update(step_s=step_s, first_step_s=round(first_s, 2))
    row.update(first_step_cpu_s=round(first_cpu_s, 2))
    chosen = [told for told in reports if isinstance(told, ds.inductor.RecomputeReport)]
    for again in chosen:  # none if the compiled graph came from PyTorch's cache, as with --again
        row.update(limit=limit, none_estimate=again.none_bytes, estimate=again.peak_bytes, again=len(again.operators))
    for report in (told for told in reports if isinstance(told, ds.inductor.OrderReport)):
        evidence = report.order.evidence
        row.update(nodes=report.nodes, inductor_estimate=report.inductor_bytes, our_estimate=report.order.peak_bytes)
        row.update(bound=evidence.bound, proven=evidence.proven, planning_s=round(evidence.seconds, 4))
        row.update(planning_cpu_s=round(sum(spent), 3))
    return row


@contextmanager
def planning_cpu_s() -> Iterator[list[float]]:
    """The CPU seconds of our passes, each time that one runs."""
    spent: list[float] = []

    def timed(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            begin = time.thread_time()
            try:
                return function(*arguments, **options)
            finally:
                spent.append(time.thread_time() - begin)

        return call

    with contextlib.ExitStack() as patches:
        for module, name in ((order_pass, "_ordered"), (recompute_pass, "_copy"), (recompute_pass, "_wait")):
            patches.enter_context(mock.patch.object(module, name, timed(getattr(module, name))))
        yield spent


def planning(network: str) -> dict[str, Any]:
    """Measure what our order of a whole step takes, without the rest of its compile."""

    def report(_: Any) -> None:
        raise Enough

    torch.manual_seed(0)
    torch._inductor.config.force_disable_caches = True
    case = NETWORKS[network]()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=case.learning_rate)
    step = ds.inductor.compile_step(case.model, case.loss_fn, optimizer, report=report)
    with planning_cpu_s() as spent, contextlib.suppress(Enough):
        step(case.inputs, case.targets)
    return {"planning_cpu_s": round(sum(spent), 3)}


def cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(of.ru_utime + of.ru_stime for of in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("way", choices=(*WAYS, WITHIN))
    parser.add_argument("--planning", action="store_true")
    options = parser.parse_args()
    print(json.dumps(planning(options.network) if options.planning else measured(options.network, options.way)))


if __name__ == "__main__":
    main()
