"""One training step of one network as an expert writes it by hand, in a process of its own.

    python -m experiments.inductor.by_hand NETWORK WAY

Prints one JSON document with the losses of three steps, the peak bytes of a step by the profiler's allocations, and the
CPU seconds of a step (median). The ways by hand use `torch.utils.checkpoint` on each block, and the optimiser in
`register_post_accumulate_grad_hook`, so that a gradient is freed as soon as its parameter is updated; `both compiled`
also compiles each block by itself. AdamW with `fused=True`, one thread. `budget X` is torch.compile with PyTorch's
`activation_memory_budget`; `ours` is `compile_step`, without a limit or within a share of the peak that is estimated
where nothing runs again; its row has the peak that the report of the compiled graph says, where it was compiled here.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch._functorch.config
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import downset as ds
from experiments.inductor.measure import limit_of, median_s, peak_bytes, plain_step, whole_step
from experiments.inductor.networks import NETWORKS, Case, blocks_of

BUDGETS = (0.8, 0.5, 0.3, 0.1, 0.05)
SHARES = (0.6, 0.4, 0.2)
HAND = ("checkpoint", "in backward", "both", "both compiled")
"""The ways that an expert writes without our package."""
WAYS = (
    "eager",
    *HAND,
    "torch.compile",
    *(f"budget {budget}" for budget in BUDGETS),
    "ours",
    *(f"ours {share}" for share in SHARES),
)

Step = Callable[[], Tensor]


def step_of(make: Callable[[], Case], way: str, report: Callable[[Any], None]) -> Step:
    """The training step; its weights and batch are those of the seed. `report`: of a step of ours."""
    limit = None
    if way.startswith("ours "):
        torch.manual_seed(0)
        limit = int(float(way.removeprefix("ours ")) * limit_of(make, share=1.0))
    torch.manual_seed(0)
    case = make()
    if way.startswith("ours"):
        return whole_step(case, peak_bytes=limit, report=report)
    if way in ("checkpoint", "both", "both compiled"):
        for block in blocks_of(case.model):
            again = _checkpointed(block.forward)
            block.forward = torch.compile(again, dynamic=False) if way == "both compiled" else again
    if way.startswith("budget "):
        torch._functorch.config.activation_memory_budget = float(way.removeprefix("budget "))
    compiled = way == "torch.compile" or way.startswith("budget ")
    return _plain(case, in_backward=way in ("in backward", "both", "both compiled"), compiled=compiled)


def _checkpointed(forward: Callable[..., Any]) -> Callable[..., Any]:
    """The forward pass of a block, of which only the inputs are kept. The compiler takes it as a function of its own: a
    module whose `forward` is a partial call of `checkpoint` it passes by."""

    def again(*inputs: Any) -> Any:
        return checkpoint(forward, *inputs, use_reentrant=False)

    return again


def _plain(case: Case, *, in_backward: bool, compiled: bool) -> Step:
    parameters = list(case.model.parameters())
    groups = [[parameter] for parameter in parameters] if in_backward else [parameters]
    optimizers = [torch.optim.AdamW(group, lr=case.learning_rate, fused=True) for group in groups]
    if in_backward:
        for parameter, optimizer in zip(parameters, optimizers, strict=True):
            parameter.register_post_accumulate_grad_hook(partial(_update, optimizer))
    return plain_step(case, [] if in_backward else optimizers, compiled=compiled)


def _update(optimizer: Any, parameter: nn.Parameter) -> None:
    optimizer.step()
    parameter.grad = None


def measured(network: str, way: str) -> dict[str, Any]:
    torch.set_num_threads(1)
    reports: list[Any] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a limit that no choice keeps to
        step = step_of(NETWORKS[network], way, reports.append)
        losses = [float(step()) for _ in range(3)]
    step_cpu_s = median_s(step, time.process_time)
    planned = [of.peak_bytes for of in reports if isinstance(of, ds.inductor.OrderReport)]
    return {
        "network": network,
        "way": way,
        "peak_bytes": peak_bytes(step),
        **({"planned_bytes": planned[-1]} if planned else {}),
        "step_cpu_s": step_cpu_s,
        "losses": [round(loss, 6) for loss in losses],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("way", choices=WAYS)
    options = parser.parse_args()
    print(json.dumps(measured(options.network, options.way)))


if __name__ == "__main__":
    main()
