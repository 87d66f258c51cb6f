"""What ExecuTorch's memory-planning pass hands to an algorithm, recorded once so that tests can replay it without it.

    PYTHONPATH=build/executorch/1.5.1 python -m tests.executorch_specs

writes tests/golden/executorch_specs.json (tests/installed_apart.py installs ExecuTorch there). A program is a list
of calls, one for each graph it plans (the bodies of conditions first); a call has the alignment, what bodies reserve in
each memory, every spec, and the bytes that ExecuTorch's own greedy planner takes.
"""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

__all__ = ["FILE", "edge_program", "load_programs", "modules", "record_programs"]

FILE = Path(__file__).parent / "golden" / "executorch_specs.json"


def load_programs() -> dict[str, list[dict[str, Any]]]:
    return json.loads(FILE.read_text())


@cache
def modules() -> dict[str, tuple[Any, tuple[int, ...]]]:
    import torch

    from experiments.memories.executorch_networks import networks

    class Condition(torch.nn.Module):
        def forward(self, x):
            y = x * 2.0
            return torch.cond(x.sum() > 0, lambda y: (y + 1.0) * y, lambda y: y - 1.0, (y,)) + y

    class Keeper(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(64))

        def forward(self, x):
            self.seen.copy_(x * 3.0)
            return torch.tanh(self.seen * 2.0) + x

    first = ("two branches", "inception blocks", "U-Net", "transformer layer")
    return {name: networks()[name] for name in first} | {
        "condition": (Condition(), (5, 7)),
        "keeper": (Keeper(), (64,)),
    }


@cache
def _edge_program(name: str) -> Any:
    import torch
    from executorch.exir import to_edge

    module, shape = modules()[name]
    return to_edge(torch.export.export(module.eval(), (torch.randn(shape),)))


def edge_program(name: str) -> Any:
    """The exported module, to be lowered once: lowering writes into it."""
    return copy.deepcopy(_edge_program(name))


@cache
def record_programs(*names: str) -> dict[str, list[dict[str, Any]]]:
    from executorch.exir import ExecutorchBackendConfig
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite, greedy
    from executorch.exir.passes import MemoryPlanningPass

    programs: dict[str, list[dict[str, Any]]] = {}
    for name in names:
        calls: list[dict[str, Any]] = []

        def planner(alignment, specs, graph_module, graph_signature, extra_padding=0, calls=calls):
            specs = list(specs)
            places = {id(spec): place for place, spec in enumerate(specs)}
            call = {"alignment": alignment, "specs": []}
            call["reserved"] = list(getattr(graph_module, "input_mem_buffer_sizes", None) or [])
            for spec in specs:
                base = getattr(spec, "inplace_base", None)
                row = [spec.allocated_memory, spec.lifetime, spec.mem_id, None if base is None else places[id(base)]]
                call["specs"].append(row)
            suite = MemoryPlanningAlgorithmSuite([greedy])
            call["greedy_bytes"] = suite(alignment, specs, graph_module, graph_signature, extra_padding)
            calls.append(call)
            return list(call["greedy_bytes"])

        passed = MemoryPlanningPass(memory_planning_algo=planner)
        edge_program(name).to_executorch(ExecutorchBackendConfig(memory_planning_pass=passed))
        programs[name] = json.loads(json.dumps(calls))
    return programs


if __name__ == "__main__":
    lines = (f" {json.dumps(name)}: {json.dumps(calls)}" for name, calls in record_programs(*modules()).items())
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")
