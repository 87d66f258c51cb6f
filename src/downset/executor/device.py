"""A device that stages are measured and run on: the CPU with so many threads, or one CUDA device."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from downset.errors import UnsupportedError, UsageError
from downset.executor.binder import DTYPES, Binder
from downset.executor.cpu import CpuEngine
from downset.executor.cuda import CudaEngine, need_cuda
from downset.executor.lane_program import LaneProgram
from downset.extras import torch_library
from downset.stages.unit_graph import UnitGraph

__all__ = ["Elsewhere", "TorchDevice", "open_device"]

_MOST_THREADS = 1024
"""Far more than that and PyTorch's pool of threads ends the process."""
_COPIES = 10
_REPLAYS = 9
_STAGE_S = 0.15
"""Time spent on one stage of the CPU, at least three runs."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A network that runs in another process, and is timed there: `seconds()` runs it once."""

    seconds: Callable[[], float]


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """`kind`: cpu or cuda. `name` and `versions` say for what a measurement holds. `threads`: of the CPU."""

    kind: str
    name: str
    versions: str
    dtype: str
    threads: int

    @property
    def max_lanes(self) -> int | None:
        """More lanes than threads would only take turns."""
        return self.threads if self.kind == "cpu" else None

    def engine(
        self,
        binder: Binder,
        units: UnitGraph,
        program: LaneProgram,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: Sequence[Any],
        copies: int = 1,
    ) -> Any:
        """A callable that runs the program on values of `inputs`."""
        if self.kind == "cuda":
            return CudaEngine(binder, units, program, inputs=inputs, outputs=outputs, values=values, copies=copies)
        return CpuEngine(binder, units, program, inputs=inputs, outputs=outputs, threads=self.threads)

    def time_stage(
        self, binder: Binder, units: UnitGraph, program: LaneProgram, inputs: Sequence[int], outputs: Sequence[int]
    ) -> float:
        """Median seconds of a program too short to be timed by one run, on random values. Measured."""
        values = [self.random(binder, tensor) for tensor in inputs]
        if self.kind == "cuda":
            engine = self.engine(binder, units, program, inputs=inputs, outputs=outputs, values=values, copies=_COPIES)
            return median(_replays(engine, _REPLAYS)) / _COPIES
        placed = [binder.place(value) for value in values]
        with self.engine(binder, units, program, inputs=inputs, outputs=outputs, values=values) as engine:
            engine(placed)
            samples: list[float] = []
            begin = time.perf_counter()
            while len(samples) < 3 or (time.perf_counter() - begin < _STAGE_S and len(samples) < 50):
                started = time.perf_counter()
                engine(placed)
                samples.append(time.perf_counter() - started)
        return median(samples)

    def time_whole(self, engines: Mapping[str, Any], values: Sequence[Any], *, runs: int) -> dict[str, list[float]]:
        """Seconds of each run by engine; the engines take turns, in rotating order, after two runs unmeasured."""
        names = list(engines)
        samples: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(-2, runs):
            for place in range(len(names)):
                name = names[(place + turn) % len(names)]
                engine = engines[name]
                if isinstance(engine, Elsewhere):
                    taken = engine.seconds()
                elif self.kind == "cuda":
                    (taken,) = _replays(engine, 1)
                else:
                    started = time.perf_counter()
                    engine(values)
                    taken = time.perf_counter() - started
                if turn >= 0:
                    samples[name].append(taken)
        return samples

    def random(self, binder: Binder, tensor: int) -> Any:
        """A value for any tensor of the graph, the same each time."""
        torch, meta = torch_library(), binder.graph.tensors[tensor]
        generator = torch.Generator().manual_seed(tensor)
        dtype = getattr(torch, meta.dtype)
        if dtype.is_floating_point:
            return torch.randn(meta.shape, generator=generator, dtype=torch.float32)
        return torch.zeros(meta.shape, dtype=dtype)


def _replays(engine: CudaEngine, runs: int) -> list[float]:
    torch = need_cuda()
    seconds = []
    for _ in range(runs):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        engine.graph.replay()
        end.record()
        torch.cuda.synchronize()
        seconds.append(begin.elapsed_time(end) / 1e3)
    return seconds


def open_device(kind: str, *, dtype: str = "float32", threads: int | None = None) -> TorchDevice:
    """The device of this machine. Raises UnsupportedError without CUDA or for half precision on the CPU, UsageError for
    a kind, type or number of threads that there is not."""
    if not kind:
        raise UsageError("no device is named: a plan that was made from prices has none; use `downset stage`")
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"unknown device {kind!r}; known: cpu, cuda")
    if dtype not in DTYPES:
        raise UsageError(f"unknown element type {dtype!r}; known: {', '.join(DTYPES)}")
    if kind == "cuda":
        torch = need_cuda()
        versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        return TorchDevice(kind, torch.cuda.get_device_name(), versions, dtype, 1)
    torch = torch_library()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = cores if threads is None else threads
    if not 1 <= threads <= _MOST_THREADS:
        raise UsageError(f"threads must be from 1 to {_MOST_THREADS}; given {threads}")
    if dtype != "float32":
        raise UnsupportedError(f"element type {dtype} is for --device cuda; the CPU's kernels compute in float32")
    name = f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"
    return TorchDevice(kind, name, f"torch {torch.__version__}", dtype, threads)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
