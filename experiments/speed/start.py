"""CPU time of short commands next to that of Python itself and of peers, and the part of it that isolation takes.

    python -m experiments.speed.start [--rounds 15] [--vela /path/to/vela] [--quick]

User and system time of the command and of all processes that it starts, in seconds: medians over rounds, in each of
which everything runs once. `one process`: the same command without the process that watches and without workers;
a dash where it measures, which it does in workers. Modules are found compiled, as `pip install` leaves them, whatever
the environment says of that. `python`: `python -c pass`. `peer`: `onnx.load` of the same file in
a new interpreter, or Vela (`pip install ethos-u-vela` into an environment of its own), which compiles the same file
for Ethos-U55 and runs nothing. The model of `fit` comes from ../shared/models; its row is left out without it.
`watcher_mb`: memory that the watching process shares with no other, while a command reads.
"""

from __future__ import annotations

import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments.frame import Experiment, fields, run
from experiments.rows import Row

SHIPS = "from downset.__main__ import main; main()"
UNWATCHED = "from downset.cli import main; main()"
ALONE = """
import importlib
from downset.process import isolation
def isolated(module, function, arguments, **limits):
    return getattr(importlib.import_module(module), function)(**arguments), ""
isolation.isolated = isolated
isolation.warm_workers = isolation.fork_server = lambda *names: None
from downset.cli import main
main()
"""
LOAD = "import onnx, sys; onnx.load(sys.argv[1])"
MODEL = Path(__file__).resolve().parents[3] / "shared" / "models" / "vww_96_int8.tflite"


def as_installed(folder: Path) -> dict[str, str]:
    """The environment without Python's variables, in which modules that were imported once are found compiled, in this
    folder."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**kept, "PYTHONPYCACHEPREFIX": str(folder)}


def cpu_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """CPU seconds of a command and of the processes that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


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


def write_graph(path: Path, operators: int = 100) -> None:
    draw = random.Random(3)
    tensors = [{"size": draw.randrange(1, 1000)} for _ in range(operators + 1)]
    reads = [sorted({draw.randrange(max(0, index - 6), index + 1) for _ in range(2)}) for index in range(operators)]
    unread = sorted(set(range(1, operators + 1)) - {tensor for read in reads for tensor in read})
    ops = [{"name": f"op{index}", "ins": read, "outs": [index + 1]} for index, read in enumerate(reads)]
    path.write_text(json.dumps({"tensors": tensors, "ops": ops, "inputs": [0], "outputs": unread}))


def write_onnx(path: Path, layers: int = 40) -> None:
    """A chain of small convolutions; 14 KB."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, weights = (
        [],
        [numpy_helper.from_array(np.ones((8, 8, 1, 1), np.float32), f"w{index}") for index in range(layers)],
    )
    for index in range(layers):
        nodes.append(helper.make_node("Conv", [f"r{index}", f"w{index}"], [f"c{index}"], kernel_shape=[1, 1]))
        nodes.append(helper.make_node("Relu", [f"c{index}"], [f"r{index + 1}"]))
    ends = [helper.make_tensor_value_info(f"r{index}", TensorProto.FLOAT, [1, 8, 16, 16]) for index in (0, layers)]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def jobs(folder: Path, vela: str | None) -> Iterator[tuple[str, list[str], str, list[str]]]:
    """(name, arguments of downset, the peer's name, the peer's command)"""
    write_graph(folder / "graph.json")
    write_onnx(folder / "model.onnx")
    yield "--version", ["--version"], "", []
    yield "--help", ["--help"], "", []
    yield "order, 100 operators", ["order", str(folder / "graph.json")], "", []
    model = str(folder / "model.onnx")
    yield "inspect, 14 KB .onnx", ["inspect", model], "onnx.load", [sys.executable, "-P", "-c", LOAD, model]
    if MODEL.exists():
        compiled = [vela, str(MODEL), "--output-dir", str(folder / "vela")] if vela else []
        arguments = ["fit", str(MODEL), "-o", str(folder / "fitted.tflite")]
        yield "fit, 333 KB .tflite", arguments, "Vela" if vela else "", compiled


def medians(commands: Mapping[str, Sequence[str]], rounds: int, environment: Mapping[str, str]) -> dict[str, float]:
    """By name: the median CPU seconds. Every second round runs in reverse; one before them compiles modules."""
    taken: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(-1, rounds):
        for name in list(commands)[:: 1 if number % 2 else -1]:
            seconds = cpu_s(commands[name], environment)
            if number >= 0:
                taken[name].append(seconds)
    return {name: round(statistics.median(seconds), 3) for name, seconds in taken.items()}


def rows(options: Namespace) -> Iterator[Row]:
    rounds = 3 if options.quick else options.rounds
    with tempfile.TemporaryDirectory() as folder:
        watcher, environment = watcher_mb(Path(folder)), as_installed(Path(folder) / "compiled")
        for name, arguments, peer, peers in jobs(Path(folder), options.vela):
            commands = {"ships": [sys.executable, "-P", "-c", SHIPS, *arguments]}
            if arguments[0] != "fit":
                program = ALONE if arguments[0] == "inspect" else UNWATCHED
                commands["alone"] = [sys.executable, "-P", "-c", program, *arguments]
            commands |= {"python": [sys.executable, "-c", "pass"]} | ({"peer": peers} if peers else {})
            cpu = medians(commands, rounds, environment)
            yield {
                "command": name,
                "rounds": rounds,
                "cpu_s": cpu["ships"],
                "one_process_s": cpu.get("alone"),
                "python_s": cpu["python"],
                "peer": peer or None,
                "peer_s": cpu.get("peer"),
                "watcher_mb": watcher,
            }


EXPERIMENT = Experiment(
    "speed_start",
    rows,
    (
        ("command", "{command}"),
        ("rounds", "{rounds}"),
        ("CPU s", "{cpu_s:.3f}"),
        ("one process", "{one_process_s:.3f}"),
        ("python", "{python_s:.3f}"),
        ("peer", "{peer}"),
        ("peer CPU s", "{peer_s:.3f}"),
        *fields("watcher_mb"),
    ),
    key=("command",),
    quick="three rounds, nothing written",
    options={
        "--rounds": {"type": int, "default": 15},
        "--vela": {"default": shutil.which("vela"), "help": "the program of ethos-u-vela, where it is not on the path"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
