"""Our order in PyTorch's compiler: less peak memory and the same results.

    model = torch.compile(model, options=ds.inductor.options())
    step = ds.inductor.compile_step(model, loss_fn, optimizer)

docs/pytorch.md is the guide. Written for torch 2.13.
"""

from __future__ import annotations

from typing import Any

from downset.compiled import (
    LiveBuffer,
    ModulePeak,
    OperatorPlan,
    OrderReport,
    PeakReport,
    RecomputeReport,
    RepeatedOperator,
    StepPlan,
)
from downset.integrations.explain import explain
from downset.integrations.factor_pass import factor_options
from downset.integrations.memory_policy import memory_policy
from downset.integrations.order_pass import Report, check_report, order_options
from downset.integrations.recompute_pass import recompute_options
from downset.integrations.step_plan import tag_step
from downset.integrations.torch_features import scheduler_passes
from downset.integrations.training_loops import lightning_module, transformers_trainer
from downset.integrations.user_warning import warn_user
from downset.integrations.whole_step import TrainingStep, compile_step

__all__ = [
    "LiveBuffer",
    "ModulePeak",
    "OperatorPlan",
    "OrderReport",
    "PeakReport",
    "RecomputeReport",
    "RepeatedOperator",
    "StepPlan",
    "TrainingStep",
    "compile_step",
    "explain",
    "lightning_module",
    "memory_policy",
    "options",
    "tag_step",
    "transformers_trainer",
]


def options(
    *,
    work_limit: int = 20_000,
    report: Report | None = None,
    peak_bytes: int | None = None,
    choices: int | None = None,
    link_bytes_s: float | None = None,
) -> dict[str, Any]:
    """A value for `torch.compile(…, options=…)`: every graph that is compiled runs in the order of least peak memory.

    `report` is called with an `OrderReport` for each graph that is ordered. Graphs from a cache are not ordered again.
    A graph that cannot be ordered keeps Inductor's order, with one warning. `work_limit`: how many states the search
    for the order of one graph may visit; every process decides alike.

    With `peak_bytes` the backward pass recomputes what does not fit within so many bytes; the cheapest set of operators
    is taken of `choices` sets that are tried, and `report` is also called with a `RecomputeReport`. Without `choices`
    the number of sets depends on the graph, so that planning takes a few per cent of the compile; it is at most 100.
    `link_bytes_s`: the bytes a second between a device with memory of its own and the host; results then also move to
    the host and back where that is cheaper than a second run.
    Raises UsageError for a `report` that is not a function, for `peak_bytes`, `choices` or `link_bytes_s` that is not a
    number above 0, and for a link without `peak_bytes`.
    """
    check_report(report)
    if not scheduler_passes():
        warn_user("this torch takes no pass for its scheduler: Inductor keeps its own order")
        return {}
    again, check = recompute_options(
        peak_bytes, choices=choices, report=report, whole=False, again=False, link_bytes_s=link_bytes_s
    )
    ordered = order_options(work_limit=work_limit, report=report, check=check, limited=peak_bytes is not None)
    return {**ordered, **again, **factor_options()}
