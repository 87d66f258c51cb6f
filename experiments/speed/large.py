"""Memory and time of `downset order` and `downset inspect` on networks of 100,000 and 250,000 operators.

    python -m experiments.speed.large

Blocks of three branches and their sum, in a row, as .onnx files. Peak resident memory of the largest of the command's
processes, as the system reports it, and wall-clock seconds.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from experiments.frame import Experiment, fields, run
from experiments.rows import Row

PEAK = """
import resource, subprocess, sys
with open(sys.argv[1], "wb") as file:
    done = subprocess.run([sys.executable, "-m", "downset", *sys.argv[2:]], stdout=file)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
sys.exit(done.returncode)
"""
TIME_LIMIT = "60s"
BLOCK = 4


def write_blocks(operators: int, path: Path) -> None:
    """Three activations and their sum, again and again: exactly so many operators."""
    from onnx import TensorProto, helper, save

    nodes, current = [], "x"
    for block in range(operators // BLOCK):
        branches = [f"b{block}_{branch}" for branch in range(BLOCK - 1)]
        kinds = ("Relu", "Sigmoid", "Tanh")
        nodes += [helper.make_node(kind, [current], [name]) for kind, name in zip(kinds, branches, strict=True)]
        current = f"s{block}"
        nodes.append(helper.make_node("Sum", branches, [current]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in ("x", current)]
    save(helper.make_model(helper.make_graph(nodes, "blocks", ends[:1], ends[1:])), path)


def rows(options: Namespace) -> Iterator[Row]:
    for operators in (4_000,) if options.quick else (100_000, 250_000):
        with tempfile.TemporaryDirectory() as folder:
            model, out = Path(folder) / "blocks.onnx", Path(folder) / "out.json"
            write_blocks(operators, model)
            for command in ("inspect", "order"):
                begin = time.perf_counter()
                done = subprocess.run(
                    [sys.executable, "-c", PEAK, out, command, model, "--json", "--time-limit", TIME_LIMIT],
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                seconds, said = time.perf_counter() - begin, json.loads(out.read_text())
                yield {
                    "command": command,
                    "operators": said["operators"] if command == "inspect" else len(said["order"]),
                    "peak_rss_bytes": 1024 * int(done.stdout),
                    "seconds": round(seconds, 1),
                    "proven": said.get("proven"),
                    "peak_bytes": said["peak_bytes"],
                }


EXPERIMENT = Experiment(
    "speed_large",
    rows,
    (*fields("command"), *fields("operators", "peak_rss_bytes", "seconds", spec=","), *fields("proven")),
    key=("command", "operators"),
    quick="4,000 operators, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
