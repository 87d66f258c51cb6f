"""Bytes to and from slow memory of the .tflite files of ../shared/models, by plan, with whole tensors.

    python -m experiments.memories.files [--quick] [--only NAME,...] [--ship] [--vela VELA] [--tigris TIGRIS]

Fast memory has half of the bytes of the file's order under memory model `tflm`, or what the operator of greatest need
takes where that is more. A direct access costs what the reference kernel reads and writes. `file`: the file's order
with exact residency; `least peak`: an order of least peak; `belady`: Belady's rule in the file's order; `ours`: order
and residency planned together. All with offsets. Only the work is limited, so that a run repeats.

`Vela` and `TiGrIS` are activations that two programs say they read and write in slow memory, with the same bytes of
fast memory: `ethos-u-vela` 5.2 for an Ethos-U65 (`Dedicated_Sram`), which reads blocks again; `tigris-ml` 0.12.1, which
cuts operators into tiles and counts the network's input and output besides. They do not do what ours does, and no ratio
is taken. A program that is absent, or refuses the file, has no figure.

`--ship` fits each file with all of that fast memory for tensors: slow memory lies lower and has the persistent part and
the kernels' scratch. `shipped` are the bytes that a machine of the tests counts in the written file alone, which is
proven and computes the same in TFLite Micro's stock wheel; it has strips where it has `more` operators than the
original. A file that computes on uint8 is fitted in its exact int8 form, as TFLite Micro runs no other.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from downset import DownsetError, Graph, InfeasibleError, MemoriesPlan, fit_memories, load, plan_memories
from downset.fitting.preparing import as_int8
from downset.formats.tflite.int8_form import uses_uint8
from downset.memory.liveness import order_problem, peak_bytes
from experiments.fit.peers import tigris, vela_summary
from experiments.frame import Experiment, fields, names_of, run
from experiments.rows import Row, load_rows
from experiments.serenity.swiftnet import MODEL

FOLDER = MODEL.parent
FILES = (
    "nasnet_mobile_keras_rand_int8",
    "swiftnet_hpd_vwwc224_uint8",
    "face_detection_front_pinto_f32",
    "mobilenet_v2_1.0_224_rand_int8",
    "mobilenet_v2_1.0_224_quant",
    "mobilenet_v2_0.35_160_rand_int8",
    "mobilenet_v1_0.25_128_quant",
    "pretrainedResnet_quant",
    "vww_96_int8",
    "deeplabv3_257_mv_gpu",
)
WORK, QUICK_WORK, SHIP_WORK = 300_000, 20_000, 100_000
SLOW_BYTES = 1 << 26
_VELA = (
    "--accelerator-config",
    "ethos-u65-256",
    "--system-config",
    "Ethos_U65_High_End",
    "--memory-mode",
    "Dedicated_Sram",
)
OTHERS = {"file": "file_order", "least_peak": "least_peak", "belady": "belady"}


def row_of(name: str, graph: Graph, work: int) -> Row:
    peak = peak_bytes(order_problem(graph, "tflm"), range(len(graph.ops)))
    plan = partial(plan_memories, graph, slow=1 << 30, memory="tflm", time_limit_s=3600.0, work_limit=work)
    fast = peak // 2 // 16 * 16
    try:
        others = {"file": plan(fast=fast, method="file_order")}
    except InfeasibleError as error:
        fast = int(error.figures["least_bytes"])
        others = {"file": plan(fast=fast, method="file_order")}
    others |= {column: plan(fast=fast, method=method) for column, method in OTHERS.items() if column not in others}
    ours: MemoriesPlan = plan(fast=fast, method="joint")
    row: Row = {"file": name, "operators": len(graph.ops), "peak": peak, "fast": fast}
    row |= {f"{column}_bytes": int(one.evidence.value) for column, one in others.items()}
    row |= {"moved": ours.moved_bytes, "direct": ours.direct_bytes, "ours": int(ours.evidence.value)}
    return row | {"bound": int(ours.evidence.bound), "proven": ours.evidence.proven}


def peers_of(path: Path, fast: int, options: Namespace) -> Row:
    """Bytes of activations to and from slow memory by other programs; none where a program is absent or refuses."""
    row: Row = {}
    if options.vela:
        summary = vela_summary(options.vela, path, *_VELA, "--arena-cache-size", str(fast))
        kinds = ("dram_feature_map_read_bytes", "dram_feature_map_write_bytes")
        row["vela"] = summary and sum(int(float(summary[kind])) for kind in kinds)
    if options.tigris:
        told = tigris(options.tigris, path, "-m", f"{fast}+64M")
        row["tigris"] = told and sum(told["slow"]["traffic"].values()) if _fits(told) else None
    return row


def _fits(told: Any) -> bool:
    return bool(told) and not told["fast"]["infeasible"] and bool(told["slow"]["traffic"])


def shipped(path: Path, fast: int, work: int) -> Row:
    """The figures of what `fit_memories` writes for this fast memory, or why it writes nothing."""
    from tests.oracles_memories import ran

    with TemporaryDirectory() as folder:
        target = Path(folder) / "moved.tflite"
        given: dict[str, Any] = {"slow_bytes": SLOW_BYTES, "distance_bytes": -SLOW_BYTES, "persistent": "slow"}
        try:
            model = as_int8(path, Path(folder) / "int8", seed=0)[0] if uses_uint8(path) else path
            fitted = fit_memories(
                model, fast_bytes=fast, **given, time_limit_s=math.inf, work_limit=work, output=target
            )
        except DownsetError as error:
            return {"shipped": None, "refused": str(error.message)[:200]}
        counted = ran(target)
        assert (counted.moved, counted.direct) == (fitted.plan.moved_bytes, fitted.plan.direct_bytes), "not the plan"
        assert fitted.outputs.equal and fitted.outputs.proven
        more = len(fitted.graph.ops) - fitted.original_operators if fitted.original_operators else 0
        row: Row = {"shipped_moved": counted.moved, "shipped_direct": counted.direct}
        row |= {"shipped": counted.moved + counted.direct, "more": more, "moves": counted.moves}
        return row | {"macs": round(fitted.extra_macs, 4), "kept": fitted.tail_bytes, "ship_work": work}


def rows(options: Namespace) -> Iterator[Row]:
    before = {row["file"]: row for row in load_rows("memories_files")}
    for name in options.only or FILES:
        path = FOLDER / f"{name}.tflite"
        if not path.exists():
            continue
        row: Row = before.get(name, {})
        if options.ship and row:
            yield row | shipped(path, row["fast"], QUICK_WORK if options.quick else options.work)
            continue
        row = row | row_of(name, load(path), QUICK_WORK if options.quick else WORK)
        yield row | peers_of(path, row["fast"], options)


EXPERIMENT = Experiment(
    "memories_files",
    rows,
    (
        *fields("file", "operators"),
        *fields("peak", "fast", spec=","),
        ("file order", "{file_bytes:,}"),
        ("least peak", "{least_peak_bytes:,}"),
        ("belady", "{belady_bytes:,}"),
        *fields("moved", "direct", "ours", "bound", spec=","),
        *fields("proven"),
        *fields("shipped", "more", "moves", spec=","),
        *fields("macs", spec="+.1%"),
        ("Vela", "{vela:,}"),
        ("TiGrIS", "{tigris:,}"),
    ),
    key=("file",),
    quick="a fifteenth of the work, nothing written",
    options={
        "--only": {"type": names_of(FILES), "help": "only these files"},
        "--ship": {"action": "store_true", "help": "fit the files, next to what is recorded of their plans"},
        "--work": {"type": int, "default": SHIP_WORK, "help": "the work limit of each search of such a fit"},
        "--vela": {"default": None, "help": "the program of ethos-u-vela"},
        "--tigris": {"default": None, "help": "the program of tigris-ml"},
    },
)

if __name__ == "__main__":
    run(EXPERIMENT)
