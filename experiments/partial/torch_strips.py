"""Exported programs of PyTorch before and after `fit` with its default limits: what fresh processes allocate at most,
and their processor time in turns.

    python -m experiments.partial.torch_strips [--quick]

The process loads a file with `torch.export.load` and runs its module: it shares no code with downset. Weights are
random.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from downset import fit
from downset.extras import torch_library
from experiments.frame import Experiment, fields, run
from experiments.partial.torch_models import MODELS
from experiments.rows import Row

_PROCESS = """
import json, sys, time, torch
from torch.profiler import ProfilerActivity, profile
torch.manual_seed(0)
module, value = torch.export.load(sys.argv[1]).module(), torch.randn(json.loads(sys.argv[2]))
torch.set_num_threads(1)
with torch.no_grad():
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        module(value)
    seconds = []
    for _ in range(15):
        began = time.process_time()
        module(value)
        seconds.append(time.process_time() - began)
live = most = 0
for event in sorted(profiled.profiler.kineto_results.events(), key=lambda event: event.start_ns()):
    if event.name() == "[memory]":
        live += event.nbytes()
        most = max(most, live)
print("SAID", most, sorted(seconds)[7])
"""
_TURNS = 3


def _process(path: Path, shape: tuple[int, ...]) -> tuple[int, float]:
    """(the most bytes allocated, the seconds of a run) of a fresh process."""
    command = [sys.executable, "-c", _PROCESS, str(path), json.dumps(shape)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, timeout=300).stdout
    nbytes, seconds = said.split("SAID ")[1].split()
    return int(nbytes), float(seconds)


def _saved(torch: Any, path: Path, name: str) -> tuple[Path, tuple[int, ...]]:
    torch.manual_seed(0)
    model, shape = MODELS[name](torch)
    torch.export.save(torch.export.export(model.eval(), (torch.randn(shape),)), path)
    return path, shape


def rows(options: Namespace) -> Iterator[Row]:
    torch = torch_library()
    with tempfile.TemporaryDirectory() as folder:
        for name in list(MODELS)[: 1 if options.quick else None]:
            path, shape = _saved(torch, Path(folder) / f"{name}.pt2", name)
            output = path.with_suffix(".fitted.pt2")
            result = fit(path, output=output)
            turns = [(_process(path, shape), _process(output, shape)) for _ in range(_TURNS)]
            assert result.measured is not None
            yield {
                "network": name,
                "bytes_before": turns[0][0][0],
                "bytes_after": turns[0][1][0],
                "said_before": result.measured.before,
                "said_after": result.measured.after,
                "time_ratio": round(median(after[1] / before[1] for before, after in turns), 2),
                "disk_ratio": round(output.stat().st_size / path.stat().st_size, 2),
                "proven": result.outputs.proven,
                "torch": torch.__version__,
            }


EXPERIMENT = Experiment(
    "torch_strips",
    rows,
    (
        *fields("network"),
        ("bytes", "{bytes_before:,} → {bytes_after:,}"),
        ("fit says", "{said_before:,} → {said_after:,}"),
        ("time", "{time_ratio}x"),
        ("on disk", "{disk_ratio}x"),
        *fields("proven", "torch"),
    ),
    key=("network",),
)

if __name__ == "__main__":
    run(EXPERIMENT)
