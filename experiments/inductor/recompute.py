"""Recomputation by the true peak against PyTorch's `activation_memory_budget`: forward and backward, peak and time.

    python -m experiments.inductor.recompute [--quick] [--networks gpt,unet] [--ours]

Inductor compiles model and loss once for every budget of PyTorch's and once for every limit of ours, in one process.
Peak bytes are the profiler's allocations from the forward pass to the gradients, beside the parameters; a step's
time is the median of ten on one thread. Limits are shares of the estimated peak without recomputation;
`estimate` is the peak that our plan claims, before the compiler fuses the graph.
"""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch._functorch.config

import downset as ds
from experiments.frame import Experiment, fields, run
from experiments.inductor.measure import STEPS, peak_bytes
from experiments.inductor.networks import NETWORKS, Case
from experiments.rows import Row, load_rows

BUDGETS = (1.0, 0.8, 0.5, 0.3, 0.1)
SHARES = (0.45, 0.6, 0.75)


def compiled(case: Case, **settings: Any) -> Callable[[], torch.Tensor]:
    """Loss and gradients of a batch, compiled at its first call."""
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)
    torch._dynamo.reset()

    def forward(*given: Any) -> torch.Tensor:
        return case.loss_fn(case.model(*given), case.targets)

    loss_of = torch.compile(forward, fullgraph=True, **settings)

    def step() -> torch.Tensor:
        loss = loss_of(*inputs)
        loss.backward()
        return loss.detach()

    return step


def rows(options: Namespace) -> Iterator[Row]:
    torch.set_num_threads(1)
    torch._functorch.config.enable_autograd_cache = False  # what it finds is not divided, or told, again
    names = ["gpt_tiny"] if options.quick else (options.networks or "gpt").split(",")
    for name in names:
        budgets = () if options.ours else BUDGETS[::3] if options.quick else BUDGETS
        yield from rows_of(name, budgets, SHARES[::2] if options.quick else SHARES)


def rows_of(name: str, budgets: Sequence[float], shares: Sequence[float]) -> Iterator[Row]:
    torch.manual_seed(0)
    case = NETWORKS[name]()
    first = None
    for budget in budgets:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            row = {"network": name, "way": "pytorch", "setting": budget, **measured(case, compiled(case))}
        first = first or row
        yield row
    recorded = {
        row["setting"]: row
        for row in load_rows("inductor_recompute")
        if row["way"] == "downset" and row["network"] == name
    }
    whole = None if budgets else recorded.get(1.0, {}).get("estimate")
    for share in shares if whole else (1.0, *shares):
        reports: list[Any] = []
        settings = ds.inductor.options(report=reports.append, peak_bytes=int(whole * share) if whole else 2**60)
        row = {"network": name, "way": "downset", "setting": share, **measured(case, compiled(case, options=settings))}
        (report,) = (told for told in reports if isinstance(told, ds.inductor.RecomputeReport))
        whole = whole or report.none_bytes
        row.update(estimate=report.peak_bytes, again=len(report.operators))
        if first and abs(row["loss"] - first["loss"]) > 1e-3 * abs(row["loss"]):
            raise SystemExit(f"{name}: losses differ: {row}, {first}")
        yield row


def measured(case: Case, step: Callable[[], torch.Tensor]) -> Row:
    """Every step begins without gradients."""
    begin = time.process_time()
    loss = float(step())
    first_s = time.process_time() - begin
    seconds = []
    for _ in range(STEPS):
        case.model.zero_grad(set_to_none=True)
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    case.model.zero_grad(set_to_none=True)
    row: Row = {"loss": round(loss, 6), "peak_bytes": peak_bytes(step), "step_s": round(statistics.median(seconds), 5)}
    case.model.zero_grad(set_to_none=True)
    return {**row, "first_step_cpu_s": round(first_s, 2)}


def against(rows: Sequence[Row]) -> None:
    """Prints for every budget our least peak in no more time, and our least time in no more bytes."""
    for theirs in (row for row in rows if row["way"] == "pytorch"):
        mine = [row for row in rows if row["way"] == "downset" and row["network"] == theirs["network"]]
        fast = min((r["peak_bytes"] for r in mine if r["step_s"] <= 1.02 * theirs["step_s"]), default=None)
        small = min((r["step_s"] for r in mine if r["peak_bytes"] <= theirs["peak_bytes"]), default=None)
        print(
            f"{theirs['network']}, budget {theirs['setting']}: in its time (+2 %) "
            + ("none of ours" if fast is None else f"{fast / theirs['peak_bytes']:.2f} of its peak")
            + "; in its bytes "
            + ("none of ours" if small is None else f"{small / theirs['step_s']:.2f} of its time")
        )


EXPERIMENT = Experiment(
    "inductor_recompute",
    rows,
    (
        *fields("network", "way", "setting"),
        *fields("peak_bytes", spec=","),
        ("ms a step", "{step_s!m:.1f}"),
        ("estimate", lambda row: f"{row['estimate']:,}" if "estimate" in row else None),
        ("run again", lambda row: str(row["again"]) if "again" in row else None),
        ("CPU s of first step", "{first_step_cpu_s:.1f}"),
    ),
    key=("network", "way", "setting"),
    quick="a tiny GPT and fewer settings, nothing written",
    options={
        "--networks": {"help": "some of them, between commas"},
        "--ours": {"action": "store_true", "help": "only our limits, with what is recorded of the others"},
    },
    after=against,
)

if __name__ == "__main__":
    run(EXPERIMENT)
