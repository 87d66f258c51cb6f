"""How the time of a re-plan splits, in the testbed: a device dies or stalls while frames flow; noticed, planned, moved.

    python -m experiments.testbed.replans [--devices 4] [--medium links] [--model vgg16] [--quick]

Needs root. The plan is PICO's, which uses every device. Seconds count from the fault; `replayed` frames begin again,
and the longest gap is the longest time without a result.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from experiments.frame import Experiment, fields, run
from experiments.rows import Row
from experiments.testbed.driven import Work, driver_rows, error_in_a_line
from experiments.testbed.faults import FAULTS
from experiments.testbed.measured import where_and_when
from experiments.testbed.settings import CLUSTERS, MODELS, Setting

_FAULTS = ((FAULTS[0], 1, True), (FAULTS[0], 1, False), (FAULTS[1], 2, True), (FAULTS[2], 3, True))


def rows(options: Namespace) -> Iterator[Row]:
    row = {"devices": options.devices, "equal": False, "medium": options.medium, **where_and_when()}
    work = Work([options.model], faults=_FAULTS[:1] if options.quick else _FAULTS, row=row, quick=options.quick)
    with error_in_a_line():
        yield from driver_rows(Setting(CLUSTERS[options.devices], options.medium), work, keep=options.keep)


EXPERIMENT = Experiment(
    "testbed_replans",
    rows,
    (
        *fields("network", "devices", "medium", "fault", "device", "prepared", "placed", "noticed_s"),
        ("planning ms", "{planning_s!m:.0f}"),
        *fields("moving_s"),
        *fields("moved_bytes", spec=","),
        *fields("replayed", "running_again_s", "longest_gap_s", "submitted", "came", "in_order", "load"),
    ),
    key=("network", "method", "devices", "medium", "fault", "prepared"),
    quick="one fault, nothing written",
    options={
        "--devices": {"type": int, "choices": sorted(CLUSTERS), "default": 4},
        "--medium": {"choices": ("links", "shared"), "default": "links"},
        "--model": {"choices": sorted(MODELS), "default": "vgg16"},
        "--keep": {"type": Path, "help": "a folder for the measured cluster, the log and the rows"},
    },
)


if __name__ == "__main__":
    run(EXPERIMENT)
