"""A device on which stages are measured and run: the CPU with a number of threads, or one CUDA device."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from downset.errors import UsageError
from downset.executor.binder import DTYPES, Binder
from downset.executor.cpu import CpuEngine
from downset.executor.cuda import CudaEngine
from downset.executor.device_clock import DeviceClock, need_cuda
from downset.executor.lane_program import LaneProgram
from downset.extras import torch_library
from downset.graph.float_types import OWN
from downset.messages import Call, Setting
from downset.text import unheard

__all__ = ["Elsewhere", "TorchDevice", "open_device"]

_MOST_THREADS = 1024
"""The most threads that a user may ask for. With far more, PyTorch's thread pool ends the process."""
_COPIES = 10
_REPLAYS = 9
_STAGE_S = 0.15
"""Seconds for which a stage on the CPU is run again and again; at least three runs, at most fifty."""
_UNCOUNTED = 2
"""Rounds of whole networks before those that count."""
_REST_S = 0.02
"""Longer than threads of ONNX Runtime and of OpenMP look for work after a run, by their defaults."""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A network that is run and timed in another process. `seconds()` runs it once and returns its time."""

    seconds: Callable[[], float]


@dataclass(frozen=True, slots=True)
class TorchDevice:
    """`kind`: cpu or cuda. `name` and `versions`: processor and libraries for which measurements hold. `dtype`: the
    float type to which all floats are cast, or "model" for each in its own. `threads`: of the CPU; 1 on CUDA."""

    kind: str
    name: str
    versions: str
    dtype: str
    threads: int

    @property
    def max_lanes(self) -> int | None:
        """The most lanes that can run side by side: on the CPU the number of threads; None: no limit."""
        return self.threads if self.kind == "cpu" else None

    def engine(
        self,
        binder: Binder,
        program: LaneProgram,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: Sequence[Any],
        copies: int = 1,
    ) -> Any:
        """An engine that takes the values of `inputs`, runs the program and returns the values of `outputs`. `values`
        and `copies` are for CUDA: values of inputs to begin with, and runs of the program in a call."""
        if self.kind == "cuda":
            return CudaEngine(binder, program, inputs=inputs, outputs=outputs, values=values, copies=copies)
        return CpuEngine(binder, program, inputs=inputs, outputs=outputs, threads=self.threads)

    def time_stage(self, binder: Binder, program: LaneProgram, inputs: Sequence[int], outputs: Sequence[int]) -> float:
        """The median of measured seconds of a short program, on random values. It is run many times."""
        values = [self.random(binder, tensor) for tensor in inputs]
        if self.kind == "cuda":
            engine = self.engine(binder, program, inputs=inputs, outputs=outputs, values=values, copies=_COPIES)
            clock = DeviceClock()
            return median(clock.seconds(engine.graph.replay) for _ in range(_REPLAYS)) / _COPIES
        placed = list(map(binder.place, values, inputs))
        with self.engine(binder, program, inputs=inputs, outputs=outputs, values=values) as engine:
            engine(placed)
            samples: list[float] = []
            begin = time.perf_counter()
            while len(samples) < 3 or (time.perf_counter() - begin < _STAGE_S and len(samples) < 50):
                started = time.perf_counter()
                engine(placed)
                samples.append(time.perf_counter() - started)
        return median(samples)

    def time_whole(
        self,
        engines: Mapping[str, Any],
        values: Sequence[Any],
        *,
        runs: int,
        apart: bool = False,
        progress: Callable[[int, int], None] = unheard,
    ) -> dict[str, list[float]]:
        """Measured seconds of each run, by engine. The engines take turns in rotating order, after two rounds that do
        not count. `progress` is called with the rounds done and all rounds, before each round and at the end.

        `apart`: for engines with thread pools of their own, whose threads look for work for a while after a run. Then
        each timed run follows a rest, in which the threads of the engine before it stop, and a run of its own that
        does not count."""
        names = list(engines)
        clock = DeviceClock() if self.kind == "cuda" else None
        samples: dict[str, list[float]] = {name: [] for name in names}
        for turn in range(-_UNCOUNTED, runs):
            progress(turn + _UNCOUNTED, runs + _UNCOUNTED)
            for place in range(len(names)):
                name = names[(place + turn) % len(names)]
                if apart:
                    time.sleep(_REST_S)
                    _seconds(engines[name], values, clock)
                taken = _seconds(engines[name], values, clock)
                if turn >= 0:
                    samples[name].append(taken)
        progress(runs + _UNCOUNTED, runs + _UNCOUNTED)
        return samples

    def random(self, binder: Binder, tensor: int) -> Any:
        """A value for a tensor of the graph, in the type in which it is computed: random floats that depend on its
        number only, or integers 0."""
        torch, meta = torch_library(), binder.graph.tensors[tensor]
        generator = torch.Generator().manual_seed(tensor)
        dtype = binder.dtype_of(tensor)
        if dtype.is_floating_point:
            return torch.randn(meta.shape, generator=generator, dtype=torch.float32).to(dtype)
        return torch.zeros(meta.shape, dtype=dtype)


def _seconds(engine: Any, values: Sequence[Any], clock: DeviceClock | None) -> float:
    """Measured seconds of one run; on CUDA the device's, of the graph alone."""
    if isinstance(engine, Elsewhere):
        return engine.seconds()
    if clock is not None:
        return clock.seconds(engine.graph.replay)
    started = time.perf_counter()
    engine(values)
    return time.perf_counter() - started


def open_device(kind: str, *, dtype: str = OWN, threads: int | None = None) -> TorchDevice:
    """The CPU or the CUDA device of this machine. `dtype`: "model" computes each tensor in the model's own element
    type; "float64", "float32", "float16" or "bfloat16" asks for a cast of all floats to it. `threads`: of the CPU; by
    default one for each core that the process may use. Raises UnsupportedError if there is no CUDA device, and
    UsageError for an unknown kind or element type or a number of threads out of range."""
    if not kind:
        raise UsageError(
            "no device is named: a plan that was made from prices has none; use `", Call("tune_stages"), "`"
        )
    if kind not in ("cpu", "cuda"):
        raise UsageError(f"unknown device {kind!r}; known: cpu, cuda")
    if dtype not in DTYPES:
        raise UsageError("unknown element type (", Setting("dtype"), f") {dtype!r}; known: {', '.join(DTYPES)}")
    if kind == "cuda":
        torch = need_cuda()
        versions = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
        return TorchDevice(kind, torch.cuda.get_device_name(), versions, dtype, 1)
    torch = torch_library()
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    threads = cores if threads is None else threads
    if not 1 <= threads <= _MOST_THREADS:
        raise UsageError(f"threads must be from 1 to {_MOST_THREADS}; given {threads}")
    name = f"{_processor()}, {threads} thread{'s' if threads > 1 else ''}"
    return TorchDevice(kind, name, f"torch {torch.__version__}", dtype, threads)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
