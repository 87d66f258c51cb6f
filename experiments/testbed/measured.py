"""Pipelines measured in the testbed: planned against measured period, by method, network and medium.

    python -m experiments.testbed.measured --devices 4 --medium links [--models vgg16,yolov2] [--methods pico,exact]

Needs root. Every run measures the cluster first (profile-cluster), plans by each method on the file that this gives,
runs each plan on Ray under TLS, and says what each device was planned to do and did.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downset.distributed.keys import issue_keys, make_authority
from downset.distributed.serving.spare_frames import SPARE_FRAMES
from experiments.rows import save_rows
from experiments.testbed.bed import TestbedError, open_bed
from experiments.testbed.faults import FAULTS
from experiments.testbed.settings import CLUSTERS, EQUAL, METHODS, MODELS, Setting, device_names, write_model

NAME = "testbed_periods"
REPLANS = "testbed_replans"
BY = ("network", "method", "devices", "equal", "medium", "spare_frames", "fault", "prepared")
"""The columns that tell rows apart."""
ROOT = Path(__file__).resolve().parents[2]
_PORT = 6379


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the driver in a testbed. `row`: what all rows say. `faults`: (what, device, whether prepared for),
    with the first model. `steady`: nothing else runs on the machine, so that what devices compute is measured once a
    model and not before each plan."""

    models: Sequence[str] = ()
    methods: Sequence[str] = ()
    faults: Sequence[tuple[str, int, bool]] = ()
    steady: bool = False
    spare_frames: int = SPARE_FRAMES
    row: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    driver: str = "experiments.testbed.drive"


def run(
    setting: Setting, work: Work, *, keep: Path | None = None, limit_s: float = 3000.0, names: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """Rows of one testbed. `keep`: where measured clusters and logs go. Raises TestbedError where it cannot be made.
    `names`: of the devices; else as the paper calls them."""
    folder = Path(tempfile.mkdtemp(prefix="dsb"))
    names = tuple(names) or device_names(setting.ghz)
    try:
        authority = make_authority(folder / "keys")
        with open_bed(setting.cpu_shares, rate_mbps=setting.rate_mbps, medium=setting.medium) as bed:
            hosts = [bed.address(number) for number in range(len(names))]
            driver = issue_keys(authority, "driver", hosts=hosts[:1])
            orders = {
                "prefix": bed.prefix, "cpu_shares": bed.cpu_shares, "names": names, "medium": setting.medium,
                "head": f"{hosts[0]}:{_PORT}", "keys": str(driver), "out": str(folder),
                "methods": work.methods, "row": work.row, "faults": work.faults, "quick": work.quick,
                "models": [str(write_model(model, folder)) for model in work.models],
                "effort": {"least_s": 0.15 if work.quick else 0.3}, "most_s": 12.0 if work.quick else 18.0,
                "steady": work.steady, "spare_frames": work.spare_frames,
            }  # fmt: skip
            (folder / "orders.json").write_text(json.dumps(orders))
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
            for number, name in enumerate(names):
                keys = issue_keys(authority, f"d{number}", hosts=hosts[number : number + 1])
                command = [
                    sys.executable, "-m", "downset", "worker", "--head", orders["head"], "--name", name, "--keys", keys,
                    "--address", hosts[number], "--threads", "1", "--shards", folder / f"n{number}", "-q",
                ]  # fmt: skip
                bed.start(number, command, env=environment, output=subprocess.DEVNULL)
            with (folder / "driver.log").open("wb") as log:
                drive = [sys.executable, "-m", work.driver, folder / "orders.json"]
                driving = bed.start(0, drive, env=environment, output=log, free=True)
                _follow(driving, folder / "driver.log", limit_s)
        rows = folder / "rows.jsonl"
        return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    finally:
        if keep is not None:
            for file in (*folder.glob("*.toml"), *folder.glob("*.log"), *folder.glob("*.jsonl")):
                shutil.copy(file, keep)
        shutil.rmtree(folder, ignore_errors=True)


def _follow(driving: subprocess.Popen[bytes], log: Path, limit_s: float) -> None:
    """Show what the driver says until it ends."""
    begun = time.monotonic()
    with log.open("r") as said:
        while driving.poll() is None:
            for line in said:
                if line[:2].isdigit():
                    print(line.rstrip()[:400], flush=True)
            if time.monotonic() - begun > limit_s:
                print(f"the driver took more than {limit_s:g} s; its rows until then follow", flush=True)
                return  # what runs in the bed ends with the bed
            time.sleep(0.2)
        print(said.read()[-1500:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, choices=sorted(CLUSTERS), default=4)
    parser.add_argument("--medium", choices=("links", "shared"), default="links")
    parser.add_argument("--models", default="vgg16,yolov2")
    parser.add_argument("--methods", default=",".join(METHODS), help="none: no periods")
    parser.add_argument("--equal", action="store_true", help="devices of one speed, as Figure 12 has them")
    parser.add_argument("--faults", action="store_true", help="after that a device dies or stalls: how it goes on")
    parser.add_argument("--spare-frames", type=int, default=SPARE_FRAMES, help="frames inside beyond a plan's window")
    parser.add_argument("--steady", action="store_true", help="nothing else runs here: measure devices once a model")
    parser.add_argument("--keep", type=Path, help="a folder for the measured clusters, the log and the rows")
    parser.add_argument("--limit", type=float, default=3000.0, help="seconds; rows made until then are kept")
    parser.add_argument("--quick", action="store_true", help="fewer frames, nothing written")
    options = parser.parse_args()
    models, methods = options.models.split(","), options.methods.split(",")
    methods = [] if methods == ["none"] else methods
    unknown = [name for name in models if name not in MODELS] + [name for name in methods if name not in METHODS]
    if unknown:
        parser.error(f"no such model or method: {', '.join(unknown)}")
    faults = [(FAULTS[0], 1, True), (FAULTS[0], 1, False), (FAULTS[1], 2, True), (FAULTS[2], 3, True)]
    setting = Setting((EQUAL if options.equal else CLUSTERS)[options.devices], options.medium)
    row = {
        "devices": options.devices,
        "equal": options.equal,
        "medium": options.medium,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    row["at"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    work = Work(
        models, methods, faults if options.faults else (), row=row, quick=options.quick, steady=options.steady,
        spare_frames=options.spare_frames,
    )  # fmt: skip
    try:
        rows = run(setting, work, keep=options.keep, limit_s=options.limit)
    except TestbedError as error:
        sys.exit(f"testbed: {error}")
    for one in rows:
        print({key: one.get(key) for key in ("network", "method", "planned_s", "simulated_s", "measured_s", "error")})
    rows = [row for row in rows if "error" not in row]
    for name, kind in ((NAME, [row for row in rows if "fault" not in row]),
                       (REPLANS, [row for row in rows if "fault" in row])):  # fmt: skip
        if kind and not options.quick:
            print("written:", save_rows(name, kind, by=BY))


if __name__ == "__main__":
    main()
