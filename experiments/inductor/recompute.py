"""Recomputation by the true peak against PyTorch's `activation_memory_budget`: forward and backward, peak and time.

    python -m experiments.inductor.recompute [--quick] [--networks gpt,dlrm] [--budgets 1.0]

Inductor compiles model and loss once for every budget of PyTorch's and once for every limit of ours, in one process.
Peak bytes are the profiler's allocations from the forward pass to the gradients, in addition to the parameters. Every
round times each of them once, on one thread: a step's time is its median, and `time` the median ratio to the first row
of the same round. Limits are shares of the estimated peak without recomputation; `estimate` is the peak that our plan
claims, before the compiler fuses the graph. `planning s` are CPU seconds, a part of those of the first step.
"""

from __future__ import annotations

import itertools
import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from unittest import mock

import torch
import torch._functorch.config
import torch._inductor.config

import downset as ds
from downset.integrations import recompute_pass
from experiments.frame import Experiment, fields, names_of, run
from experiments.inductor.measure import cpu_s, peak_bytes
from experiments.inductor.networks import NETWORKS, Case
from experiments.rows import Row

BUDGETS = (1.0, 0.8, 0.5, 0.3, 0.15, 0.1, 0.05)
SHARES = (0.2, 0.3, 0.45, 0.6, 0.75)
MEASURED = ("residual", "gpt", "dlrm")
ROUNDS = 21
NUMBERS = itertools.count()


def compiled(case: Case, **settings: Any) -> Callable[[], torch.Tensor]:
    """Loss and gradients of a batch, compiled at its first call."""
    inputs = case.inputs if isinstance(case.inputs, tuple) else (case.inputs,)

    def forward(*given: Any) -> torch.Tensor:
        return case.loss_fn(case.model(*given), case.targets)

    # Dynamo keeps what it compiled by code object: each has one of its own and stays compiled with the others.
    code = forward.__code__.replace(co_name=f"forward_{next(NUMBERS)}")
    own = FunctionType(code, forward.__globals__, code.co_name, None, forward.__closure__)
    loss_of = torch.compile(own, fullgraph=True, **settings)

    def step() -> torch.Tensor:
        case.model.zero_grad(set_to_none=True)
        loss = loss_of(*inputs)
        loss.backward()
        return loss.detach()

    return step


def rows(options: Namespace) -> Iterator[Row]:
    torch.set_num_threads(1)
    torch._inductor.config.force_disable_caches = True  # what a cache finds is not divided, or told, or compiled again
    torch._inductor.config.compile_threads = 1  # compilers are children of this process, whose time counts
    for name in ["gpt_tiny"] if options.quick else options.networks:
        budgets = BUDGETS[::3] if options.quick else options.budgets
        yield from rows_of(name, budgets, SHARES[::2] if options.quick else SHARES)


def rows_of(name: str, budgets: Sequence[float], shares: Sequence[float]) -> list[Row]:
    """All ways of one network: compiled one after another, then timed in turns, so that all meet the same machine."""
    torch.manual_seed(0)
    case = NETWORKS[name]()
    rows: list[Row] = []
    steps = []
    for budget in budgets:
        with torch._functorch.config.patch(activation_memory_budget=budget):
            steps.append(compiled(case))
            rows.append({"network": name, "way": "pytorch", "setting": budget, **first_step(steps[-1])})
    whole = 0
    for share in (1.0, *shares):
        reports: list[Any] = []
        limit = int(whole * share) if whole else 2**60
        steps.append(compiled(case, options=ds.inductor.options(report=reports.append, peak_bytes=limit)))
        with planning_cpu_s() as spent:
            row = {"network": name, "way": "downset", "setting": share, **first_step(steps[-1])}
        (report,) = (told for told in reports if isinstance(told, ds.inductor.RecomputeReport))
        whole = whole or report.none_bytes
        rows.append(
            {
                **row,
                "estimate": report.peak_bytes,
                "again": len(report.operators),
                "tried": report.tried,
                "planning_s": round(sum(spent), 2),
            }
        )
    for row in rows:
        if abs(row["loss"] - rows[0]["loss"]) > 1e-3 * abs(row["loss"]):
            raise SystemExit(f"{name}: losses differ: {row}, {rows[0]}")
    for row, step in zip(rows, steps, strict=True):
        case.model.zero_grad(set_to_none=True)
        row["peak_bytes"] = peak_bytes(step)
    seconds: list[list[float]] = [[] for _ in steps]
    for _ in range(ROUNDS):
        for step, times in zip(steps, seconds, strict=True):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
    for row, times in zip(rows, seconds, strict=True):
        ratios = [mine / base for mine, base in zip(times, seconds[0], strict=True)]
        row.update(step_s=round(statistics.median(times), 5), of_first=round(statistics.median(ratios), 3))
    return rows


@contextmanager
def planning_cpu_s() -> Iterator[list[float]]:
    """The CPU seconds of every search for what runs again."""
    spent: list[float] = []

    def timed(*arguments: Any, **options: Any) -> Any:
        begin = time.thread_time()
        try:
            return plan_variants(*arguments, **options)
        finally:
            spent.append(time.thread_time() - begin)

    plan_variants = recompute_pass.plan_variants
    with mock.patch.object(recompute_pass, "plan_variants", timed):
        yield spent


def budgets_of(text: str) -> list[float]:
    return [BUDGETS[0], *(budget for budget in BUDGETS[1:] if str(budget) in text.split(","))]


def first_step(step: Callable[[], torch.Tensor]) -> Row:
    begin = cpu_s()
    loss = float(step())
    return {"loss": round(loss, 6), "first_step_cpu_s": round(cpu_s() - begin, 2)}


def against(rows: Sequence[Row]) -> None:
    """Prints for every budget our least peak in no more time, and our least time in no more bytes."""
    for theirs in (row for row in rows if row["way"] == "pytorch"):
        mine = [row for row in rows if row["way"] == "downset" and row["network"] == theirs["network"]]
        fast = min((r["peak_bytes"] for r in mine if r["of_first"] <= 1.02 * theirs["of_first"]), default=None)
        small = min((r["of_first"] for r in mine if r["peak_bytes"] <= theirs["peak_bytes"]), default=None)
        print(
            f"{theirs['network']}, budget {theirs['setting']}: in its time (+2 %) "
            + ("none of ours" if fast is None else f"{fast / theirs['peak_bytes']:.2f} of its peak")
            + "; in its bytes "
            + ("none of ours" if small is None else f"{small / theirs['of_first']:.2f} of its time")
        )


EXPERIMENT = Experiment(
    "inductor_recompute",
    rows,
    (
        *fields("network", "way", "setting"),
        *fields("peak_bytes", spec=","),
        ("ms a step", "{step_s!m:.1f}"),
        ("time", "{of_first:.2f}"),
        ("estimate", lambda row: f"{row['estimate']:,}" if "estimate" in row else None),
        ("run again", lambda row: str(row["again"]) if "again" in row else None),
        ("CPU s of first step", "{first_step_cpu_s:.1f}"),
        ("planning s", "{planning_s}"),
    ),
    key=("network", "way", "setting"),
    quick="a tiny GPT and fewer settings, nothing written",
    options={
        "--networks": {"type": names_of(NETWORKS), "default": MEASURED, "help": "some, between commas"},
        "--budgets": {"type": budgets_of, "default": BUDGETS, "help": "some of PyTorch's, between commas, 1.0 first"},
    },
    after=against,
)

if __name__ == "__main__":
    run(EXPERIMENT)
