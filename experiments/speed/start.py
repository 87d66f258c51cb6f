"""The time that parsing in a process of its own, and a process that watches, add to the start of `downset inspect`.

    python -m experiments.speed.start [--rounds 21]

A round runs the command as it ships, and the same command in one process, which parses too, in turns of changing
order. Wall-clock seconds; medians, and the median of the differences by round with its 95 % interval (order
statistics). Only on a quiet machine do they say something. `watcher_mb`: memory that the watching process shares with
no other, while a command reads.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

import onnx

from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from tests.models import branchy_model, installed_model
from zoo import ZOO

SHIPS = "from downset.__main__ import main; main()"
ALONE = """
import importlib
from downset.process import isolation
def parsed(module, function, given, **more):
    return getattr(importlib.import_module(module), function)(**given), ""
isolation.parsed = parsed
isolation.warm_parser = lambda module: None
from downset.cli import main
main()
"""


def seconds(program: str, model: Path) -> float:
    begin = time.perf_counter()
    subprocess.run([sys.executable, "-P", "-c", program, "inspect", str(model)], capture_output=True, check=True)
    return time.perf_counter() - begin


def watcher_mb(folder: Path) -> float:
    """The memory of the process that watches a command, which waits for its input."""
    pipe = folder / "records.csv"
    os.mkfifo(pipe)
    with subprocess.Popen(
        [sys.executable, "-P", "-m", "downset", "arena", str(pipe)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as command:
        with pipe.open("w"):  # opens once the command reads
            lines = Path(f"/proc/{command.pid}/smaps_rollup").read_text().splitlines()
            private = [int(line.split()[1]) for line in lines if line.startswith("Private_")]
            command.terminate()
        command.wait()
    return round(1024 * sum(private) / 1e6, 1)


def models(folder: Path) -> Iterator[tuple[str, Path]]:
    branchy_model(folder / "branchy.onnx")
    yield "branchy.onnx", folder / "branchy.onnx"
    onnx.save(ZOO["swiftnet_hpd"](), str(folder / "swiftnet.onnx"))
    yield "swiftnet.onnx", folder / "swiftnet.onnx"
    yield "sine_float.tflite", installed_model("tflite-micro", "sine_float.tflite")


def rows(options: Namespace) -> Iterator[Row]:
    rounds = 3 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        watcher = watcher_mb(Path(folder))
        for name, model in models(Path(folder)):
            taken: dict[str, list[float]] = {SHIPS: [], ALONE: []}
            for number in range(-1, rounds):  # the first warms the disk's cache
                for program in (SHIPS, ALONE) if number % 2 else (ALONE, SHIPS):
                    times = seconds(program, model)
                    if number >= 0:
                        taken[program].append(times)
            more = sorted(one - other for one, other in zip(taken[SHIPS], taken[ALONE], strict=True))
            inside = max(int(rounds / 2 - 0.98 * rounds**0.5), 0)
            yield {
                "model": name,
                "rounds": rounds,
                "with_worker_s": round(statistics.median(taken[SHIPS]), 3),
                "without_s": round(statistics.median(taken[ALONE]), 3),
                "difference_s": round(statistics.median(more), 3),
                "low_s": round(more[inside], 3),
                "high_s": round(more[-1 - inside], 3),
                "watcher_mb": watcher,
            }


EXPERIMENT = Experiment(
    "speed_start",
    rows,
    (
        *fields("model", "rounds"),
        *fields("with_worker_s", "without_s", "difference_s", "low_s", "high_s", spec=".3f"),
        *fields("watcher_mb"),
    ),
    key=("model",),
    quick="three rounds, nothing written",
    options={"--rounds": {"type": int, "default": 21}},
)

if __name__ == "__main__":
    run(EXPERIMENT)
