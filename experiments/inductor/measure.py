"""One training step of one network, run one way, in a process of its own: peak, time, compile time, losses.

    python -m experiments.inductor.measure NETWORK eager|inductor|whole|ordered

Prints one JSON document. `inductor` compiles the model with its loss and leaves the optimiser eager; `whole` and
`ordered` compile the whole step as one graph, in Inductor's order and in ours. AdamW, one thread.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import downset as ds
from experiments.inductor.networks import NETWORKS, Case

WAYS = ("eager", "inductor", "whole", "ordered")
STEPS = 10


def training_step(case: Case, way: str, reports: list[Any]) -> Callable[[], torch.Tensor]:
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=case.learning_rate)
    if way in ("whole", "ordered"):
        step = ds.inductor.compile_step(
            case.model, case.loss_fn, optimizer, order=way == "ordered", report=reports.append
        )

        def whole() -> torch.Tensor:
            loss = step(case.inputs, case.targets)
            if step.fallback:
                raise SystemExit(step.fallback)
            return loss

        return whole
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)

    def forward(*given: Any) -> torch.Tensor:
        return case.loss_fn(case.model(*given), case.targets)

    loss_of = torch.compile(forward, fullgraph=True) if way == "inductor" else forward

    def plain() -> torch.Tensor:
        loss = loss_of(*inputs)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return plain


def peak_bytes(step: Callable[[], torch.Tensor]) -> int:
    """The most bytes that the allocator holds during a step beside what it held before: the profiler's sums."""
    with torch.profiler.profile(profile_memory=True) as profiler:
        step()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = sorted((e["ts"], at, e["args"]["Bytes"]) for at, e in enumerate(events) if e["name"] == "[memory]")
    held = peak = 0
    for _, _, nbytes in memory:
        held += nbytes
        peak = max(peak, held)
    return peak


def measured(network: str, way: str) -> dict[str, Any]:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    reports: list[Any] = []
    step = training_step(NETWORKS[network](), way, reports)
    begin, begin_cpu = time.perf_counter(), cpu_s()
    losses = [float(step())]
    first_s, first_cpu_s = time.perf_counter() - begin, cpu_s() - begin_cpu
    losses += [float(step()) for _ in range(2)]
    seconds = []
    for _ in range(STEPS):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    row = {
        "network": network,
        "way": way,
        "peak_bytes": peak_bytes(step),
        "losses": [round(loss, 6) for loss in losses],
    }
    row.update(step_s=round(statistics.median(seconds), 5), first_step_s=round(first_s, 2))
    row.update(first_step_cpu_s=round(first_cpu_s, 2))
    if reports:
        (report,) = reports
        evidence = report.order.evidence
        row.update(nodes=report.nodes, inductor_estimate=report.inductor_bytes, our_estimate=report.order.peak_bytes)
        row.update(bound=evidence.bound, proven=evidence.proven, planning_s=round(evidence.seconds, 4))
    return row


def cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it has waited for."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(of.ru_utime + of.ru_stime for of in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("way", choices=WAYS)
    options = parser.parse_args()
    print(json.dumps(measured(options.network, options.way)))


if __name__ == "__main__":
    main()
