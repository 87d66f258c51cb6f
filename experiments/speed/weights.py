"""Memory, time, reads and processes of `downset fit` for .onnx files with large weights, without what it measures.

    python -m experiments.speed.weights [--megabytes 1,60,210,1000] [--quick]

100 operators in branches, with random weights, inside the file or in one beside it. Processes that run ONNX Runtime
stand apart: `CPU` and `resident` are of all others (the command, the process that watches it, the server of workers and
those that parse), CPU seconds, and the sum of their peaks, of the parsers the largest; `of the file` is resident bytes
by the file's. `reads`: how many times the bytes of the file they read, the written file included. `processes`: all that
were started; `of runtime`: those among them that run ONNX Runtime. `CPU of runtime`: what these took. `all`: the most
that all processes held at a time (shared pages once), by samples. `onnx.load`: CPU seconds and peak of a new
interpreter that reads the file, weights included, and `x load` the CPU seconds by these. The first file has hardly any
weights: what it takes is the start and the searches. `of weights`: the CPU seconds beyond those of the first file, by
what `onnx.load` takes beyond them. `onnx.load` is a median of five runs, `fit` of three for the first file and one run
for each other. `limit`: bytes that each process may take at most, as on a machine of twice as many; without one half of
this machine's memory. `limit of all`: bytes that all processes together may take, the runtime's included, which the
kernel imposes (memory_group.py); `none` where it lets this user impose none.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from experiments.frame import Experiment, fields, names_of, run
from experiments.rows import Row
from experiments.speed.memory_group import memory_group
from experiments.speed.start import as_installed

COUNTED = """
import json, os, resource, sys
from pathlib import Path
from downset.process import isolation

calls, tick, ask, servers = {}, os.sysconf("SC_CLK_TCK"), isolation.Worker.ask, []

def taken(pid, alone=False):
    process = Path("/proc") / str(pid)
    stat = (process / "stat").read_text().rpartition(")")[2].split()
    lines = [line for name in (f"task/{pid}/io", "status") for line in (process / name).read_text().splitlines()]
    said = dict(line.split(":", 1) for line in lines)
    seconds = sum(map(int, stat[11 : 13 if alone else 15])) / tick
    return seconds, int(said["rchar"]), 1024 * int(said["VmHWM"].split()[0])

def counted(self, function, arguments, **options):
    try:
        return ask(self, function, arguments, **options)
    finally:
        servers.append(self._server.process.pid)
        if self._pid:
            calls[self._pid] = (self._module, function, *taken(self._pid))

isolation.Worker.ask = counted
from downset.__main__ import main
from downset.process.supervisor import outliving_process
try:
    main()
finally:
    shared = [taken(server.process.pid, True) for server in isolation._SHARED]
    shared.append(taken(outliving_process(), True))
    own = taken(os.getpid(), True)
    processes = len(calls) + len(set(servers)) + 1
    Path(os.environ["COUNTS"]).write_text(json.dumps([list(calls.values()), shared, own, processes]))
"""
LOAD = """
import onnx, sys, time
onnx.load(sys.argv[1])
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(time.process_time(), status["VmHWM"].split()[0])
"""
RUNTIME = "downset.runtimes."
File = tuple[int, bool, str, int | None, int]
FILES: Sequence[File] = (
    (1, False, "", None, 3),
    (60, False, "", 1000, 1),
    (210, False, "", None, 1),
    (1000, True, "2GB", 4000, 1),
)
"""Decimal megabytes of weights, whether they lie beside the model, the limit of a process, megabytes that all processes
together may take, and runs of `fit`."""
SIZES = [str(file[0]) for file in FILES]
LOADS = 5
"""Runs of `onnx.load`."""
BRANCHES = 33


def write_branches(path: Path, megabytes: int, beside: bool) -> int:
    """100 operators: branches, whose wide tensors the file makes one after another before it makes anything narrow.
    Returns the bytes of the file and of the one beside it."""
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    side = round((megabytes * 1e6 / 4 / BRANCHES) ** 0.5)
    draw, weights, wide, narrow = np.random.default_rng(3), [], [], []
    for index in range(BRANCHES):
        weight = draw.standard_normal((side, side), dtype=np.float32) / np.float32(side**0.5)
        weights.append(numpy_helper.from_array(weight, f"w{index}"))
        wide.append(helper.make_node("MatMul", ["x", f"w{index}"], [f"m{index}"], name=f"matmul{index}"))
        wide.append(helper.make_node("Tanh", [f"m{index}"], [f"t{index}"], name=f"tanh{index}"))
        narrow.append(helper.make_node("ReduceMax", [f"t{index}"], [f"r{index}"], name=f"max{index}", axes=[1]))
    total = helper.make_node("Sum", [f"r{index}" for index in range(BRANCHES)], ["y"], name="sum")
    shapes = {"x": [64, side], "y": [64, 1]}
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = helper.make_graph([*wide, *narrow, total], "branches", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, path, save_as_external_data=beside, location=f"{path.name}.data")
    return sum(file.stat().st_size for file in path.parent.glob(f"{path.name}*"))


def loaded(path: Path) -> tuple[float, int]:
    """(CPU seconds, peak resident bytes) of onnx.load in a new interpreter."""
    command = [sys.executable, "-P", "-c", LOAD, str(path)]
    cpu_s, kib = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    return float(cpu_s), 1024 * int(kib)


def descendants(process: int) -> Iterator[int]:
    yield process
    try:
        children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    except OSError:
        return
    for child in children:
        yield from descendants(int(child))


def held(process: int) -> int:
    """Bytes that a process and its descendants hold now; a page that several share counts once."""
    total = 0
    for one in descendants(process):
        try:
            lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total


def fitted(
    path: Path, folder: Path, bytecode: Path, limit: str, prefixed: Callable[[list[str]], list[str]]
) -> dict[str, Any]:
    """The figures of one command, which runs as `prefixed` says."""
    counts, ended, most = folder / "counts.json", threading.Event(), [0]
    command = [sys.executable, "-P", "-c", COUNTED, "fit", str(path), "-o", str(folder / "fitted.onnx"), "--json"]
    command += ["--time-limit", "5s", *(["--worker-memory", limit] if limit else [])]
    environment = as_installed(bytecode) | {"COUNTS": str(counts)}
    with subprocess.Popen(
        prefixed(command), env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as running:

        def watch() -> None:
            while not ended.wait(0.05):
                most[0] = max(most[0], held(running.pid))

        watcher = threading.Thread(target=watch)
        watcher.start()
        document = json.loads(running.communicate()[0])
        ended.set()
        watcher.join()
    if not document["ok"]:
        raise RuntimeError(document["error"]["message"])
    calls, servers, own, processes = json.loads(counts.read_text())
    ours = [(cpu_s, nbytes, peak) for module, _, cpu_s, nbytes, peak in calls if not module.startswith(RUNTIME)]
    theirs = [cpu_s for module, _, cpu_s, *_ in calls if module.startswith(RUNTIME)]
    resident = own[2] + sum(peak for _, _, peak in servers) + max(peak for _, _, peak in ours)
    return {
        "cpu_s": round(sum(cpu_s for cpu_s, _, _ in [own, *servers, *ours]), 2),
        "resident_bytes": resident,
        "read_bytes": sum(nbytes for _, nbytes, _ in [own, *ours]),
        "processes": processes + 1,
        "of_runtime": len(theirs),
        "runtime_cpu_s": round(sum(theirs), 2),
        "all_bytes": most[0],
        "shipped": document["shipped"],
        "proven": document["outputs"]["proof"]["proven"],
    }


def rows(options: Namespace) -> Iterator[Row]:
    chosen = ("1", "60") if options.quick else options.megabytes
    with tempfile.TemporaryDirectory() as bytecode:
        measured(Path(bytecode), (1, False, "", None, 1))  # compiles the modules, as an installed package has them
        first = measured(Path(bytecode), FILES[0])
        for file in FILES:
            if str(file[0]) in chosen:
                row = first if file == FILES[0] else measured(Path(bytecode), file)
                load_s = row["load_cpu_s"] - first["load_cpu_s"]
                yield row | {"of_weights": round((row["cpu_s"] - first["cpu_s"]) / load_s, 1) if load_s > 0 else None}


def measured(bytecode: Path, file: File) -> Row:
    megabytes, beside, limit, most_megabytes, runs = file
    with ExitStack() as stack:
        group = None
        if most_megabytes is not None:
            with suppress(PermissionError, FileNotFoundError):  # this user may make no group
                group = stack.enter_context(memory_group(most_megabytes * 10**6))
        imposed = most_megabytes if group else None
        prefixed = group.command if group else list
        source = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        path = source / "branches.onnx"
        row: Row = {
            "weights": "beside" if beside else "inside",
            "megabytes": megabytes,
            "file_bytes": write_branches(path, megabytes, beside),
            "limit": limit or None,
        }
        loaded(path)  # warms the disk's cache
        loads = [loaded(path) for _ in range(LOADS)]
        row |= {
            "load_cpu_s": round(statistics.median(cpu_s for cpu_s, _ in loads), 2),
            "load_bytes": max(nbytes for _, nbytes in loads),
        }
        rounds = [_round(path, bytecode, limit, prefixed) for _ in range(runs)]
        median = sorted(rounds, key=lambda one: one["cpu_s"])[runs // 2]
        return row | median | {"limit_of_all_bytes": imposed and imposed * 10**6}


def _round(path: Path, bytecode: Path, limit: str, prefixed: Callable[[list[str]], list[str]]) -> Row:
    with tempfile.TemporaryDirectory() as folder:
        return fitted(path, Path(folder), bytecode, limit, prefixed)


def _mb(name: str) -> Any:
    return lambda row: f"{row[name] / 1e6:,.0f}"


EXPERIMENT = Experiment(
    "speed_weights",
    rows,
    (
        ("file MB", _mb("file_bytes")),
        *fields("weights", "limit"),
        ("onnx.load: CPU s", "{load_cpu_s:.2f}"),
        ("MB", _mb("load_bytes")),
        ("fit: CPU s", "{cpu_s:.2f}"),
        ("x load", lambda row: f"{row['cpu_s'] / row['load_cpu_s']:.1f}"),
        *fields("of_weights"),
        ("resident MB", _mb("resident_bytes")),
        ("of the file", lambda row: f"{row['resident_bytes'] / row['file_bytes']:.2f}"),
        ("reads", lambda row: f"{row['read_bytes'] / row['file_bytes']:.1f}"),
        *fields("processes", "of_runtime"),
        ("CPU s of runtime", "{runtime_cpu_s:.1f}"),
        ("all MB", _mb("all_bytes")),
        ("limit of all", lambda row: _mb("limit_of_all_bytes")(row) if row.get("limit_of_all_bytes") else "none"),
        *fields("shipped", "proven"),
    ),
    key=("megabytes", "weights"),
    quick="up to 60 MB, nothing written",
    options={
        "--megabytes": {
            "type": names_of(SIZES),
            "default": SIZES,
            "help": "the files to measure, with commas between them",
        }
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
