"""Makes the whole steps of `experiments.speed.steps`: AdamW, batches as in experiments.inductor, larger networks.

python -m experiments.speed.steps.generate [NAME …]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import torch
from torch._inductor import memory
from torch._inductor.custom_graph_pass import CustomSchedulerPass
from torch._inductor.virtualized import V
from torch.utils._ordered_set import OrderedSet

import downset as ds
from downset.integrations.scheduler_problem import problem_of
from downset.integrations.whole_step import TrainingStep
from experiments.inductor.networks import GPT, Case, RandWire, UNet, dlrm, images, language, resnet50
from experiments.speed.steps import save_step

STEPS: dict[str, Callable[[], Case]] = {
    "gpt_12x256": lambda: language(GPT(2048, 256, 12, 64), 2048, 4, 64),
    "gpt_48x64": lambda: language(GPT(512, 64, 48, 32), 512, 2, 32),
    "gpt_100x64": lambda: language(GPT(512, 64, 100, 32), 512, 2, 32),
    "moe_6x64": lambda: language(GPT(512, 64, 6, 32, experts=8), 512, 2, 32),
    "unet": lambda: images(UNet(16, 4), 2, 64, 2, dense=True),
    "resnet50": lambda: images(resnet50(100), 2, 64, 100),
    "randwire_32": lambda: images(RandWire(32, 24, 1), 2, 64, 10),
    "randwire_96": lambda: images(RandWire(96, 24, 2), 2, 32, 10),
    "dlrm_26": lambda: dlrm(26),
    "dlrm_200": lambda: dlrm(200),
}


class Scheduled(Exception):
    """Ends a compile once its problem is known."""


class Capture(CustomSchedulerPass):
    def __init__(self) -> None:
        self.problem: ds.OrderProblem | None = None

    def uuid(self) -> None:
        return None

    def __call__(self, nodes: list[Any]) -> list[Any]:
        scheduler = V.graph.scheduler
        outputs = OrderedSet(V.graph.get_output_names())
        _, inputs = memory.prepare_planning_info(
            nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, OrderedSet(V.graph.graph_inputs), outputs
        )
        self.problem = problem_of(nodes, inputs, outputs, in_sequence=frozenset().__contains__)
        raise Scheduled


def problem_of_step(case: Case) -> ds.OrderProblem:
    capture = Capture()
    optimizer = torch.optim.AdamW(case.model.parameters(), lr=1e-3)
    step: TrainingStep = ds.inductor.compile_step(case.model, case.loss_fn, optimizer)
    options = step._options
    step._options = lambda: {**options(), "_post_fusion_custom_pass": capture}
    with torch._inductor.config.patch(force_disable_caches=True):
        try:
            step(case.inputs, case.targets)
        except Exception:
            if capture.problem is None:
                raise
    if capture.problem is None:
        raise SystemExit(f"not one graph: {step.fallback}")
    return capture.problem


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=list(STEPS))
    for name in parser.parse_args().names:
        torch.manual_seed(0)
        torch._dynamo.reset()
        begin = time.perf_counter()
        problem = problem_of_step(STEPS[name]())
        path = save_step(name, problem)
        print(name, len(problem.predecessors), path.stat().st_size, f"{time.perf_counter() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
