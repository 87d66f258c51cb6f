"""CPU time of `downset fit` on diamonds of elementwise operators, and the power of the operators by which it grows.

    python -m experiments.speed.fit_scale [--quick] [--operators 250,500] [--forms .onnx,.tflite] [--time-limit 10s]

A diamond is Relu, Sigmoid and their Add; diamonds stand in a row, on tensors of 8 x 8 x 4 values, as an .onnx file for
ONNX Runtime, by default and with segments in strips asked for, and as a .tflite file for TFLite Micro. CPU seconds of
the command and the processes that it waited for, as the system reports them; modules are found compiled
(`start.as_installed`). The exponent is the slope of log CPU seconds over log operators, from 500 operators on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from experiments.frame import Experiment, fields, names_of, run
from experiments.rows import Row
from experiments.speed.start import as_installed
from experiments.speed.trees import print_growth

OPERATORS = (250, 500, 1_000, 2_000, 5_000, 10_000, 20_000)
SHAPE = {".onnx": (1, 4, 8, 8), ".tflite": (1, 8, 8, 4)}
FROM_OPERATORS = 500
"""Below, most of the time is that of the start."""


def write_onnx(operators: int, path: Path) -> None:
    from onnx import TensorProto, helper, save

    nodes, last = [], "x"
    for diamond in range(operators // 3):
        one, other, joined = (f"{kind}{diamond}" for kind in "rsa")
        nodes.append(helper.make_node("Relu", [last], [one]))
        nodes.append(helper.make_node("Sigmoid", [last], [other]))
        nodes.append(helper.make_node("Add", [one, other], [joined]))
        last = joined
    for tail in range(operators % 3):
        nodes.append(helper.make_node("Relu", [last], [f"t{tail}"]))
        last = f"t{tail}"
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE[".onnx"]) for name in ("x", last)]
    graph = helper.make_graph(nodes, "diamonds", ends[:1], ends[1:])
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)


def write_tflite(operators: int, path: Path) -> None:
    from tests.tflite_net import TfliteNet

    _, size, _, channels = SHAPE[".tflite"]
    net = TfliteNet(size=size)
    last = net.input(channels)
    for _ in range(operators // 3):
        one = net.op("RELU", (last,), channels)
        other = net.op("LOGISTIC", (last,), channels)
        last = net.op("ADD", (one, other), channels, "AddOptions")
    for _ in range(operators % 3):
        last = net.op("RELU", (last,), channels)
    net.save(path, [last])


WRITERS: dict[str, Callable[[int, Path], None]] = {".onnx": write_onnx, ".tflite": write_tflite}
FORMS = (".onnx", ".onnx --max-recompute 100%", ".tflite")
"""Suffixes, with further options of the command."""


def row_of(form: str, operators: int, time_limit: str, environment: Mapping[str, str]) -> Row:
    suffix, *more = form.split()
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / f"diamonds{suffix}"
        WRITERS[suffix](operators, model)
        begin = time.perf_counter()
        command = [sys.executable, "-P", "-m", "downset", "fit", str(model), *more, "--json", "-q"]
        command += ["--time-limit", time_limit]
        with (
            (Path(folder) / "out.json").open("wb") as out,
            subprocess.Popen(command, stdout=out, env=environment) as process,
        ):
            _, status, used = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        row: Row = {"format": form, "operators": operators, "time_limit": time_limit}
        if process.returncode:
            return {**row, "error": f"exit code {process.returncode}"}
        said = json.loads((Path(folder) / "out.json").read_text())
        row["file_kb"] = model.stat().st_size // 1024
        row["cpu_s"] = round(used.ru_utime + used.ru_stime, 2)
        row["wall_s"] = round(time.perf_counter() - begin, 2)
        row["arena_bytes"] = said["arena_bytes"]["after"]
        return row


def rows(options: Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        environment = as_installed(Path(folder))
        for form in options.forms:
            row_of(form, 3, options.time_limit, environment)  # compiles modules
            for operators in (250, 500) if options.quick else options.operators:
                yield row_of(form, operators, options.time_limit, environment)


def exponents(rows: Sequence[Row]) -> None:
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in rows:
        if "error" not in row and row["operators"] >= FROM_OPERATORS:
            points[row["format"]].append((row["operators"], row["cpu_s"]))
    print_growth(points)


EXPERIMENT = Experiment(
    "speed_fit_scale",
    rows,
    (
        *fields("format"),
        *fields("operators", "arena_bytes", spec=","),
        ("file KB", "{file_kb}"),
        ("CPU s", "{cpu_s:.2f}"),
        ("wall s", "{wall_s:.2f}"),
    ),
    key=("format", "operators"),
    quick="250 and 500 operators, nothing written",
    options={
        "--operators": {
            "type": lambda text: [int(number) for number in text.split(",")],
            "default": OPERATORS,
            "help": "the numbers of operators, with commas between them",
        },
        "--forms": {"type": names_of(FORMS), "default": FORMS, "help": "some of them, with commas between them"},
        "--time-limit": {"default": "10s", "help": "of each command"},
    },
    after=exponents,
)

if __name__ == "__main__":
    run(EXPERIMENT)
