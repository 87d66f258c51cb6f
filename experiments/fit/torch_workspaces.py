"""Bytes that PyTorch's kernels hold in addition to tensors, measured on two branches by the number of threads.

    python -m experiments.fit.torch_workspaces [--quick]

A branch is a 3x3 convolution from 8 to 32 channels on 64x64 positions and a 1x1 convolution back; a sum joins the two.
`model`: the peak of the tensors alone in the file's order. Which convolutions oneDNN computes in another layout, with
copies of what they read and make, depends on the processor too.
"""

from __future__ import annotations

import os
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from downset import load, order_problem, peak_bytes
from downset.extras import torch_library
from downset.runtimes.torch_eager import measure
from experiments.frame import Experiment, fields, run
from experiments.rows import Row


def saved(path: Path) -> Path:
    """The network in a file."""
    torch = torch_library()

    class TwoBranches(torch.nn.Module):  # type: ignore[misc,name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.wide = torch.nn.ModuleList(torch.nn.Conv2d(8, 32, 3, padding=1) for _ in range(2))
            self.narrow = torch.nn.ModuleList(torch.nn.Conv2d(32, 8, 1) for _ in range(2))

        def forward(self, image):  # type: ignore[no-untyped-def]
            first, second = (layer(image) for layer in self.wide)
            return self.narrow[0](first) + self.narrow[1](second)

    program = torch.export.export(TwoBranches().eval(), (torch.randn(1, 8, 64, 64),))
    torch.export.save(program, path)
    return path


def rows(options: Namespace) -> Iterator[Row]:
    del options
    with tempfile.TemporaryDirectory() as folder:
        path = saved(Path(folder) / "two_branches.pt2")
        graph = load(path)
        tensors = peak_bytes(order_problem(graph, "torch"), range(len(graph.ops)))
        before = os.environ.get("OMP_NUM_THREADS")
        for threads in (1, 2):
            os.environ["OMP_NUM_THREADS"] = str(threads)  # of the process that measures
            peak = measure(path)
            yield {
                "network": "two branches",
                "threads": peak.threads,
                "model_bytes": tensors,
                "measured_bytes": peak.total_bytes,
                "torch": torch_library().__version__,
                "workspaces": {graph.ops[call].name: nbytes for call, nbytes in sorted(peak.workspaces.items())},
            }
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


EXPERIMENT = Experiment(
    "torch_workspaces",
    rows,
    (
        *fields("network", "threads", "torch"),
        ("model", "{model_bytes:,}"),
        ("measured", "{measured_bytes:,}"),
        *fields("workspaces"),
    ),
    key=("network", "threads"),
)

if __name__ == "__main__":
    run(EXPERIMENT)
