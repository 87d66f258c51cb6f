"""The memory map of SwiftNet that README and the first page of the site show, from the uint8 file that
its authors published.

    python -m docs_site.swiftnet swiftnet_hpd_vwwc224_uint8.tflite

writes docs/swiftnet.svg. The file is not in this repository: `tests/docs/test_pictures.py` holds the committed picture
to today's drawing and to the figures of README.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import downset as ds
from downset.fitting.candidates import arena_as_placed
from downset.joint.order_and_arena import plan_together
from downset.reports.arena_view import arena_view
from downset.runtimes.targets import TARGETS

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "swiftnet.svg"
WORK_LIMIT = 2_000_000


def swiftnet(path: str | Path) -> str:
    """The arenas of the file as it is and as planned, for TFLite Micro."""
    graph, target = ds.load(path), TARGETS["tflm"]
    given = tuple(range(len(graph.ops)))
    before = arena_as_placed(graph, given, target, math.inf)
    plan = plan_together(graph, memory=target.memory, time_limit_s=math.inf, work_limit=WORK_LIMIT)
    views = [
        arena_view(heading, graph, steps, arena, memory=target.memory, bound_bytes=plan.arena.evidence.bound)
        for heading, steps, arena in (("before", given, before), ("after", plan.order.steps, plan.arena))
    ]
    return ds.memory_map(views, caption="SwiftNet on TFLite Micro: tensors in one arena")


if __name__ == "__main__":
    PICTURE.write_text(swiftnet(sys.argv[1]))
