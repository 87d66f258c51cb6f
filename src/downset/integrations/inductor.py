"""PyTorch's compiler with our order: less peak memory, the same results.

    model = torch.compile(model, options=ds.inductor.options())
    step = ds.inductor.compile_step(model, loss_fn, optimizer)

docs/pytorch.md is the guide. Written for torch 2.13.
"""

from __future__ import annotations

import warnings
from typing import Any

from downset.integrations.order_pass import Report, order_pass, scheduler_passes
from downset.integrations.scheduler_order import LiveBuffer, OrderReport
from downset.integrations.whole_step import TrainingStep, compile_step

__all__ = ["LiveBuffer", "OrderReport", "TrainingStep", "compile_step", "options"]


def options(*, work_limit: int = 20_000, report: Report | None = None) -> dict[str, Any]:
    """A value for `torch.compile(…, options=…)`: every graph that is compiled runs in the order of least peak memory.

    `report` is called with an `OrderReport` for each graph that is ordered; what comes from a cache is not ordered
    again. A graph that cannot be ordered keeps Inductor's order, with one warning. `work_limit`: states that the
    search for an order of one graph may take; every process decides alike.
    """
    if not scheduler_passes():
        warnings.warn("this torch takes no pass for its scheduler: Inductor keeps its own order", stacklevel=2)
        return {}
    return {"_post_fusion_custom_pass": order_pass(work_limit=work_limit, report=report)}
