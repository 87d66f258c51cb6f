"""ExecuTorch programs planned by its own greedy planner and by ours: bytes of all memories, and planning time.

    python -m experiments.arenas.executorch_peer [--quick]

Needs ExecuTorch 1.4 in addition to torch (it is not a dependency); otherwise the committed rows are printed, marked
`recorded`. Each program is exported from the same float32 module, planned, and run in ExecuTorch's runtime: outputs are
compared with eager PyTorch. `seconds`: the whole of `to_executorch`, wall time, median of three after one that is not
counted."""

from __future__ import annotations

import statistics
import time
from argparse import Namespace
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, max_pool2d, relu

from downset.integrations.executorch import algorithm
from experiments.frame import Experiment, fields, run
from experiments.rows import Row


class Branches(nn.Module):
    """A small CNN of two branches that meet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, padding=1)
        self.left = nn.Conv2d(16, 24, 3, padding=1, stride=2)
        self.deep = nn.Conv2d(24, 24, 3, padding=1)
        self.narrow = nn.Conv2d(24, 8, 1)
        self.right = nn.Conv2d(16, 8, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        left = relu(self.left(x))
        left = relu(self.deep(left)) + left
        return (torch.sigmoid(self.narrow(left)) * avg_pool2d(self.right(x), 2)).mean((2, 3))


class Inception(nn.Module):
    """Four parallel branches, concatenated, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.ModuleList(
                [
                    nn.Conv2d(c, 16, 1),
                    nn.Conv2d(c, 16, 1),
                    nn.Conv2d(16, 24, 3, padding=1),
                    nn.Conv2d(c, 8, 1),
                    nn.Conv2d(8, 16, 5, padding=2),
                    nn.Conv2d(c, 8, 1),
                ]
            )
            for c in (16, 64)
        )
        self.stem = nn.Conv2d(3, 16, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = relu(self.stem(x))
        for one, before, wide, narrow, wider, pooled in self.parts:
            ends = [one(x), wide(relu(before(x))), wider(relu(narrow(x))), pooled(avg_pool2d(x, 3, 1, 1))]
            x = relu(torch.cat(ends, dim=1))
        return x.mean((2, 3))


class UNet(nn.Module):
    """Down twice, up twice, with connections across."""

    def __init__(self) -> None:
        super().__init__()
        widths = [(3, 8), (8, 16), (16, 32), (48, 16), (24, 8)]
        self.layers = nn.ModuleList(nn.Conv2d(a, b, 3, padding=1) for a, b in widths)

    def forward(self, x: Tensor) -> Tensor:
        first = relu(self.layers[0](x))
        second = relu(self.layers[1](max_pool2d(first, 2)))
        x = relu(self.layers[2](max_pool2d(second, 2)))
        x = relu(self.layers[3](torch.cat([interpolate(x, scale_factor=2.0), second], dim=1)))
        return self.layers[4](torch.cat([interpolate(x, scale_factor=2.0), first], dim=1))


def networks() -> dict[str, tuple[nn.Module, tuple[int, ...]]]:
    torch.manual_seed(0)
    encoder = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True)
    return {
        "two branches": (Branches().eval(), (1, 3, 32, 32)),
        "inception blocks": (Inception().eval(), (1, 3, 32, 32)),
        "U-Net": (UNet().eval(), (1, 3, 32, 32)),
        "transformer layer": (encoder.eval(), (1, 16, 64)),
    }


def planned(module: nn.Module, inputs: tuple[Tensor], planner: Callable[..., Any] | None) -> tuple[int, float, Any]:
    """Bytes of all memories, seconds of planning and emission, and the program."""
    from executorch.exir import ExecutorchBackendConfig, to_edge
    from executorch.exir.passes import MemoryPlanningPass

    exported, seconds = torch.export.export(module, inputs), []
    for _ in range(4):
        edge = to_edge(exported)
        config = ExecutorchBackendConfig(memory_planning_pass=MemoryPlanningPass(memory_planning_algo=planner))
        begin = time.perf_counter()
        program = edge.to_executorch(config)
        seconds.append(time.perf_counter() - begin)
    nbytes = sum(program.executorch_program.execution_plan[0].non_const_buffer_sizes)
    return nbytes, statistics.median(seconds[1:]), program


def row_of(name: str, module: nn.Module, shape: tuple[int, ...]) -> Row:
    from executorch.runtime import Runtime

    inputs = (torch.randn(shape),)
    theirs, their_seconds, _ = planned(module, inputs, None)
    ours, our_seconds, program = planned(module, inputs, algorithm())
    (result,) = Runtime.get().load_program(program.buffer).load_method("forward").execute(inputs)
    torch.testing.assert_close(result, module(*inputs))
    row: Row = {"network": name, "executorch_bytes": theirs, "ours_bytes": ours}
    return row | {
        "ratio": round(ours / theirs, 4),
        "executorch_s": round(their_seconds, 3),
        "ours_s": round(our_seconds, 3),
    }


def rows(_options: Namespace) -> Iterator[Row]:
    if find_spec("executorch") is not None:
        for name, case in networks().items():
            yield row_of(name, *case)


EXPERIMENT = Experiment(
    "arenas_executorch",
    rows,
    (
        *fields("network"),
        ("ExecuTorch's greedy", "{executorch_bytes:,}"),
        ("ours", "{ours_bytes:,}"),
        ("ratio", "{ratio:.3f}"),
        ("its seconds", "{executorch_s:.3f}"),
        ("ours", "{ours_s:.3f}"),
    ),
)

if __name__ == "__main__":
    run(EXPERIMENT)
