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
from pathlib import Path
from typing import Any

from downset.distributed.keys import issue_keys, make_authority
from experiments.rows import save_rows
from experiments.testbed.bed import TestbedError, open_bed
from experiments.testbed.settings import CLUSTERS, METHODS, MODELS, Setting, device_names, write_model

NAME = "testbed_periods"
ROOT = Path(__file__).resolve().parents[2]
_PORT = 6379


def run(
    setting: Setting, models: list[str], methods: list[str], *, quick: bool, row: dict[str, Any],
    limit_s: float = 3000.0,
) -> list[dict[str, Any]]:  # fmt: skip
    """Rows of one testbed. Raises TestbedError where it cannot be made."""
    folder = Path(tempfile.mkdtemp(prefix="dsb"))
    names = device_names(setting.ghz)
    try:
        authority = make_authority(folder / "keys")
        with open_bed(setting.cpu_shares, rate_mbps=setting.rate_mbps, medium=setting.medium) as bed:
            hosts = [bed.address(number) for number in range(len(names))]
            driver = issue_keys(authority, "driver", hosts=hosts[:1])
            orders = {
                "prefix": bed.prefix, "cpu_shares": bed.cpu_shares, "names": names, "medium": setting.medium,
                "head": f"{hosts[0]}:{_PORT}", "keys": str(driver), "out": str(folder), "methods": methods, "row": row,
                "models": [str(write_model(model, folder)) for model in models],
                "effort": {"least_s": 0.15 if quick else 0.5},
                "least_frames": 12 if quick else 30, "most_s": 15.0 if quick else 40.0,
            }  # fmt: skip
            (folder / "orders.json").write_text(json.dumps(orders))
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
            for number, name in enumerate(names):
                keys = issue_keys(authority, f"d{number}", hosts=hosts[number : number + 1])
                command = [
                    sys.executable, "-m", "experiments.testbed.node", name, hosts[number], orders["head"], keys,
                    folder / f"n{number}",
                ]  # fmt: skip
                bed.start(number, command, env=environment, output=subprocess.DEVNULL)
            with (folder / "driver.log").open("wb") as log:
                drive = [sys.executable, "-m", "experiments.testbed.drive", folder / "orders.json"]
                driving = bed.start(0, drive, env=environment, output=log, free=True)
                _follow(driving, folder / "driver.log", limit_s)
        rows = folder / "rows.jsonl"
        return [json.loads(line) for line in rows.read_text().splitlines()] if rows.exists() else []
    finally:
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
                driving.kill()
                raise TestbedError(f"the driver took more than {limit_s:g} s")
            time.sleep(0.2)
        print(said.read()[-1500:], flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--devices", type=int, choices=sorted(CLUSTERS), default=4)
    parser.add_argument("--medium", choices=("links", "shared"), default="links")
    parser.add_argument("--models", default="vgg16,yolov2")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--quick", action="store_true", help="fewer frames, nothing written")
    options = parser.parse_args()
    models, methods = options.models.split(","), options.methods.split(",")
    unknown = [name for name in models if name not in MODELS] + [name for name in methods if name not in METHODS]
    if unknown:
        parser.error(f"no such model or method: {', '.join(unknown)}")
    setting = Setting(CLUSTERS[options.devices], options.medium)
    row = {
        "devices": options.devices,
        "medium": options.medium,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
    }
    row["at"] = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    try:
        rows = run(setting, models, methods, quick=options.quick, row=row)
    except TestbedError as error:
        sys.exit(f"testbed: {error}")
    for one in rows:
        print({key: one.get(key) for key in ("network", "method", "planned_s", "simulated_s", "measured_s", "error")})
    if rows and not options.quick:
        print("written:", save_rows(NAME, rows, by=("network", "method", "devices", "medium")))


if __name__ == "__main__":
    main()
