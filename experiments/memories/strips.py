"""MobileNet v2 in float32 with 256 KB of fast memory: bytes of activations to and from slow memory, as whole tensors
and in the file of `fit_memories`, which has segments in strips of rows.

    python -m experiments.memories.strips [--quick]

Input and output of the network lie in slow memory where tensors are whole. A direct access costs what the reference
kernel reads. `bound`: no residency of its sequence costs less. The first row is a plan. The last is what

    downset fit FLOAT.tflite --fast 256KB --slow 8MB --persistent slow --work-limit 500000 -o OUT.tflite

writes: it runs in TFLite Micro's stock wheel, its outputs are those of the original bit for bit, it is proven, and a
machine of the tests counts its bytes from the file alone. `persistent`: what TFLite Micro keeps at the end of slow
memory, on this host; its accesses are not counted. TiGrIS 0.12.1 (`-m 256K+8M`) moves 21.23 MB.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from downset import Graph, fit_memories, load
from downset.budget import Budget
from downset.memories.moves import implied
from downset.memories.of_graph import MemoriesRequest, memories_form
from downset.memories.residency import exact_residency
from downset.memory.models import TFLM_WITHOUT_OFFSETS
from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.serenity.float_copy import write_float_copy
from experiments.serenity.swiftnet import MODEL

SOURCE = MODEL.parent / "mobilenet_v2_1.0_224_quant.tflite"
FAST_BYTES, SLOW_BYTES = 256 * 1024, 8 * 1024**2
TIGRIS_BYTES = 21_230_000
WORK, QUICK_WORK = 500_000, 50_000


def whole_row(network: Graph) -> Row:
    """The exact residency of the operators in their sequence."""
    request = MemoriesRequest(FAST_BYTES, TFLM_WITHOUT_OFFSETS, inputs="slow", outputs="slow")
    problem, order = memories_form(network, request).problem, range(len(network.ops))
    residency = exact_residency(problem, order, clock=Budget(3600.0, 5_000_000).start(), most_width=512)
    taken = implied(problem, order, residency.residences)
    row: Row = {"program": "whole tensors", "operators": len(network.ops)}
    row |= {"moved": taken.moved_bytes, "direct": taken.direct_bytes, "total": taken.cost}
    return row | {"bound": residency.bound, "tigris": TIGRIS_BYTES}


def file_row(source: Path, target: Path, work: int) -> Row:
    """The file that `fit` writes, counted by a machine that reads it alone."""
    from tests.oracles_memories import ran

    given: dict[str, Any] = {
        "fast_bytes": FAST_BYTES,
        "slow_bytes": SLOW_BYTES,
        "time_limit_s": math.inf,
        "work_limit": work,
    }
    fitted = fit_memories(source, **given, persistent="slow", output=target)
    counted = ran(target)
    assert (counted.moved, counted.direct) == (fitted.plan.moved_bytes, fitted.plan.direct_bytes), "not the plan"
    assert fitted.outputs.equal and fitted.outputs.proven
    row: Row = {"program": "strips of rows, the file", "operators": len(fitted.graph.ops) + counted.moves}
    row |= {"moves": counted.moves, "macs": fitted.extra_macs}
    row |= {"planned": int(fitted.plan.cost_without_offsets), "bound": int(fitted.plan.order_bound)}
    row |= {"moved": counted.moved, "direct": counted.direct, "total": counted.moved + counted.direct}
    return row | {"fast": counted.tops[True], "persistent": fitted.tail_bytes, "tigris": TIGRIS_BYTES}


def rows(options: Namespace) -> Iterator[Row]:
    if not SOURCE.exists():
        return
    with TemporaryDirectory() as folder:
        source = Path(folder) / "float.tflite"
        write_float_copy(SOURCE, source)
        yield whole_row(load(source))
        yield file_row(source, Path(folder) / "moved.tflite", QUICK_WORK if options.quick else WORK)


EXPERIMENT = Experiment(
    "memories_strips",
    rows,
    (
        *fields("program", "operators", "moves"),
        *fields("macs", spec="+.1%"),
        *fields("planned", "bound", "moved", "direct", "total", "fast", "persistent", "tigris", spec=","),
    ),
    key=("program",),
    quick="a tenth of the work, nothing written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
