"""Pipelines measured in the testbed: planned against measured period, by method, network and medium.

    python -m experiments.testbed.measured [--quick] [--devices 4] [--medium links] [--models vgg16] [--methods exact]

Needs root. Every run measures the cluster first (profile-cluster), plans by each method on the file that this gives,
runs each plan on Ray under TLS, and says what each device was planned to do and did.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from argparse import Namespace
from collections.abc import Iterator
from pathlib import Path

from experiments.frame import Experiment, fields, names_of, run
from experiments.rows import Row
from experiments.testbed.driven import Work, driver_rows, error_in_a_line
from experiments.testbed.settings import CLUSTERS, EQUAL, METHODS, MODELS, Setting

NAME = "testbed_periods"


def rows(options: Namespace) -> Iterator[Row]:
    speeds = EQUAL if options.equal else CLUSTERS
    if options.devices not in speeds:
        sys.exit(f"the paper's speeds are those of {' or '.join(map(str, CLUSTERS))} devices; others are --equal")
    setting = Setting(speeds[options.devices], options.medium, share=options.share)
    row = {"devices": options.devices, "equal": options.equal, "medium": options.medium, "asked_share": options.share}
    row |= {"asked_spare_frames": options.spare_frames, **where_and_when()}
    work = Work(
        options.models,
        options.methods,
        row=row,
        quick=options.quick,
        steady=options.steady,
        spare_frames=options.spare_frames,
    )
    with error_in_a_line():
        for recorded in driver_rows(setting, work, keep=options.keep, limit_s=options.limit):
            if "error" in recorded:
                print(f"{recorded['network']}, {recorded['method']}: {recorded['error']}", file=sys.stderr)
            else:
                yield recorded


def where_and_when() -> Row:
    now = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return {"machine": f"{platform.machine()}, {os.cpu_count()} cores", "at": now}


EXPERIMENT = Experiment(
    NAME,
    rows,
    (
        *fields("network", "devices", "equal", "medium", "method", "spare_frames"),
        *fields("planned_s", "simulated_s", "measured_s", spec=".4f"),
        *fields("load"),
    ),
    key=("network", "method", "devices", "equal", "medium", "asked_share", "asked_spare_frames"),
    quick="fewer frames, nothing written",
    options={
        "--devices": {"type": int, "choices": sorted(EQUAL), "default": 4},
        "--medium": {"choices": ("links", "shared"), "default": "links"},
        "--models": {"type": names_of(MODELS), "default": ["vgg16", "yolov2"]},
        "--methods": {"type": names_of(METHODS), "default": list(METHODS)},
        "--equal": {"action": "store_true", "help": "devices of one speed, as Figure 12 has them"},
        "--share": {"type": float, "help": "of one core a GHz; else that of settings.SHARE_PER_GHZ"},
        "--spare-frames": {"type": int, "help": "frames inside beyond a plan's window; else as serving has"},
        "--steady": {"action": "store_true", "help": "nothing else runs here: measure devices once a model"},
        "--keep": {"type": Path, "help": "a folder for the measured clusters, the log and the rows"},
        "--limit": {"type": float, "default": 3000.0, "help": "seconds; rows made until then are kept"},
    },
)


if __name__ == "__main__":
    run(EXPERIMENT)
