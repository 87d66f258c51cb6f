"""Training steps on a GPU against what an expert writes by hand: peak bytes and milliseconds, with equal losses.

    python -m experiments.inductor.gpu [--quick] [--networks gpt2_small,vit] [--ways eager,ours] [--seconds 450]

The ways of `--against-hand`, on one CUDA device with TF32. Each way of a network is a process of its own; all compile
side by side, and then take turns: a round is five steps of each, timed from an idle device to its end. Peaks are the
most bytes that PyTorch's allocator holds during a step in addition to what it held before it; `reserved` is all that
the process has taken from the device by then, weights and fragments included. A way that is not ready in its
network's share of the time is a row that says so.
"""

from __future__ import annotations

import gc
import json
import os
import select
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

import downset as ds
from experiments.children import last_line, stop
from experiments.frame import Experiment, fields, names_of, run
from experiments.inductor.by_hand import HAND, WAYS, Step, step_of
from experiments.inductor.measure import whole_step
from experiments.inductor.networks import GPT, Case, UNet, ViT, images, language, resnet50
from experiments.rows import Row

LINK_BYTES_S = 25e9
"""Bytes a second between device and host that plans count with: what the fourth generation of PCI Express has."""
OWN = ("save on host", "ours 0.6", "ours 0.4", "ours 0.25", "ours 0.4, moving", "ours 0.25, moving")
MEASURED = ("eager", *HAND, "torch.compile", "budget 0.5", "budget 0.1", "ours", *OWN)
ROUNDS = 7
STEPS = 5


class InBFloat16(nn.Module):
    """Its model under autocast; the loss sees float32, as in most training loops."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast(inputs.device.type, torch.bfloat16):
            outputs = self.model(inputs)
        return outputs.float()


NETWORKS: Mapping[str, Callable[[], Case]] = {
    "gpt": lambda: language(GPT(16384, 768, 4, 512), 16384, 8, 512),
    "unet": lambda: images(UNet(32, 3, attention=True), 8, 256, 2, dense=True),
    "vit": lambda: images(ViT(224, 16, 384, 4, 1000), 64, 224, 1000),
    "gpt2_small": lambda: language(GPT(50257, 768, 12, 512), 50257, 4, 512),
    "gpt2_small_bf16": lambda: language(InBFloat16(GPT(50257, 768, 12, 512)), 50257, 4, 512),
    "resnet50": lambda: images(resnet50(1000), 32, 224, 1000, learning_rate=1e-6),
    "gpt_tiny": lambda: language(GPT(64, 32, 1, 16), 64, 2, 16),
}
"""By name; call after a seed. Sizes that people train with, in float32 or under autocast."""
_ROOT = Path(__file__).resolve().parents[2]


def on_device(case: Case) -> Case:
    return replace(case, model=case.model.to("cuda"), inputs=case.inputs.to("cuda"), targets=case.targets.to("cuda"))


def peak_of(step: Step) -> tuple[int, int]:
    """(bytes that a step holds in addition to what was there, bytes that the process has of the device)."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before, torch.cuda.max_memory_reserved()


def device_step(network: str, way: str, report: Callable[[Any], None]) -> Step:
    """The step; within a limit it is a share of the peak of eager PyTorch, measured before."""

    def make() -> Case:
        return on_device(NETWORKS[network]())

    if way == "save on host":
        plain = step_of(make, "eager", report)

        def saved() -> Tensor:
            with torch.autograd.graph.save_on_cpu(pin_memory=True):
                return plain()

        return saved
    if way == "ours":
        torch.manual_seed(0)
        return whole_step(make(), report=report, falls=True)
    if not way.startswith("ours "):
        return step_of(make, way, report)
    share, _, moving = way.removeprefix("ours ").partition(", ")
    eager = step_of(make, "eager", report)
    eager()
    limit = int(float(share) * peak_of(eager)[0])
    del eager
    gc.collect()
    torch.cuda.empty_cache()
    torch.manual_seed(0)
    link = {"link_bytes_s": LINK_BYTES_S} if moving else {}
    return whole_step(make(), peak_bytes=limit, report=report, falls=True, **link)


def one(network: str, way: str) -> None:
    """Print what is known once the step is compiled, then the seconds of a step for each line that is read."""
    torch.set_float32_matmul_precision("high")
    reports: list[Any] = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        step = device_step(network, way, reports.append)
        begin = time.perf_counter()
        losses = [float(step())]
        first_step_s = time.perf_counter() - begin
        losses += [float(step()) for _ in range(2)]
    peak_bytes, reserved_bytes = peak_of(step)
    planned = [of.peak_bytes for of in reports if isinstance(of, ds.inductor.OrderReport)]
    chosen = next((of for of in reversed(reports) if isinstance(of, ds.inductor.RecomputeReport)), None)
    row = {
        "peak_bytes": peak_bytes,
        "reserved_bytes": reserved_bytes,
        **({"planned_bytes": max(planned)} if planned else {}),
        **(
            {"limit_bytes": chosen.limit_bytes, "again": len(chosen.operators), "moved": len(chosen.moved)}
            if chosen
            else {}
        ),
        "first_step_s": round(first_step_s, 2),
        "losses": [round(loss, 6) for loss in losses],
        "device": torch.cuda.get_device_name(),
        "torch": str(torch.__version__),
    }
    own = [str(of.message) for of in told if "downset" in str(of.message)]
    print(json.dumps(row | ({"warnings": own} if own else {})), flush=True)
    for _ in sys.stdin:
        torch.cuda.synchronize()
        begin = time.perf_counter()
        for _ in range(STEPS):
            step()
        torch.cuda.synchronize()
        print((time.perf_counter() - begin) / STEPS, flush=True)


@dataclass
class Way:
    """One way of a network in a process of its own."""

    process: subprocess.Popen[str]
    errors: IO[str]
    row: Row
    step_s: list[float] = field(default_factory=list)

    def ready(self, ends: float) -> bool:
        """Whether the step is compiled by then."""
        if select.select([self._output], [], [], max(0.0, ends - time.monotonic()))[0]:
            line = self._line()
            while line and not line.startswith("{"):  # the head of the table
                line = self._line()
            if line:
                self.row |= json.loads(line)
            else:
                self.row["error"] = last_line(self.errors)
        else:
            self.row["error"] = "not ready in its network's share of the time"
        return "error" not in self.row

    def take_steps(self) -> None:
        assert self.process.stdin
        self.process.stdin.write("steps\n")
        self.process.stdin.flush()
        self.step_s.append(float(self._line()))

    @property
    def _output(self) -> IO[str]:
        assert self.process.stdout
        return self.process.stdout

    def _line(self) -> str:
        return self._output.readline()


def started(network: str, name: str) -> Way:
    errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - the process writes into it
    command = [sys.executable, "-m", "experiments.inductor.gpu", "--one", name, "--networks", network]
    pipe = subprocess.PIPE
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "2"}
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=errors, text=True, cwd=_ROOT, env=environment, start_new_session=True
    )
    return Way(process, errors, {"network": network, "way": name})


def of_network(network: str, names: Sequence[str], ends: float) -> Iterator[Row]:
    ways = [started(network, name) for name in names]
    try:
        ready = [way for way in ways if way.ready(ends)]
        for _ in range(ROUNDS):
            for way in ready:
                way.take_steps()
        for way in ready:
            way.row["step_s"] = round(statistics.median(way.step_s), 6)
            losses: list[float] = way.row["losses"]
            eager = ways[0].row.get("losses", losses)
            way.row["loss_difference"] = max(abs(a / b - 1) for a, b in zip(losses, eager, strict=True))
        yield from (way.row for way in ways)
    finally:
        for way in ways:
            stop(way.process)


def rows(options: Namespace) -> Iterator[Row]:
    if options.one:
        one(options.networks[0], options.one)
        return
    if not torch.cuda.is_available():
        print("this needs a CUDA device")
        return
    networks = ["gpt_tiny"] if options.quick else options.networks
    names = ["eager", *(name for name in options.ways if name != "eager")]
    ends = time.monotonic() + options.seconds
    for index, network in enumerate(networks):
        now = time.monotonic()
        yield from of_network(network, names, now + (ends - now) / (len(networks) - index))


EXPERIMENT = Experiment(
    "inductor_gpu",
    rows,
    (
        *fields("network", "way"),
        *fields("peak_bytes", "limit_bytes", "reserved_bytes", spec=","),
        *fields("again", "moved"),
        ("ms a step", "{step_s!m:.2f}"),
        ("s of first step", "{first_step_s:.1f}"),
        ("losses differ by", "{loss_difference:.1e}"),
    ),
    key=("network", "way"),
    quick="a tiny GPT; nothing written",
    options={
        "--networks": {"type": names_of(NETWORKS), "default": [name for name in NETWORKS if name != "gpt_tiny"]},
        "--ways": {"type": names_of((*WAYS, *OWN)), "default": MEASURED},
        "--seconds": {"type": float, "default": 450.0, "help": "for everything"},
        "--one": {"help": SUPPRESS},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
