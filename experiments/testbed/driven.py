"""A driver inside a testbed: keys, workers on all devices, the driver with its orders, and the rows that it writes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from downset.distributed.keys import issue_keys, make_authority
from experiments.frame import Experiment
from experiments.frame import run as run_experiment
from experiments.rows import Row
from experiments.testbed.bed import TestbedError, open_bed
from experiments.testbed.settings import Setting, device_names, write_model

__all__ = ["Work", "driver_rows", "error_in_a_line", "run"]

ROOT = Path(__file__).resolve().parents[2]
_PORT = 6379


@dataclass(frozen=True, slots=True)
class Work:
    """The work of the driver in a testbed. `row`: what all rows say. `faults`: (what, device, whether prepared for),
    with the first model. `steady`: nothing else runs on the machine, so that what devices compute is measured once a
    model and not before each plan. `driver`: the module that is started with the orders."""

    models: Sequence[str] = ()
    methods: Sequence[str] = ()
    faults: Sequence[tuple[str, int, bool]] = ()
    steady: bool = False
    spare_frames: int | None = None
    row: Mapping[str, Any] = field(default_factory=dict)
    quick: bool = False
    driver: str = "experiments.testbed.drive"


@contextmanager
def error_in_a_line() -> Iterator[None]:
    """End the script in one line where no testbed can be made."""
    try:
        yield
    except TestbedError as error:
        sys.exit(f"testbed: {error}")


def run(experiment: Experiment, drive: Callable[[dict[str, Any]], None]) -> None:
    """Run a script that is both: with a file of orders the driver inside the testbed, else the experiment."""
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        drive(json.loads(Path(sys.argv[1]).read_text()))
    else:
        run_experiment(experiment)


def driver_rows(
    setting: Setting, work: Work, *, keep: Path | None = None, limit_s: float = 3000.0, names: Sequence[str] = ()
) -> Iterator[Row]:
    """The rows of one testbed as its driver writes them to rows.jsonl, for `limit_s` seconds at most. `keep`: where
    measured clusters, logs and rows go. `names`: of the devices; else as the paper calls them. Raises TestbedError
    where it cannot be made."""
    folder = Path(tempfile.mkdtemp(prefix="dsb"))
    names = tuple(names) or device_names(setting.ghz)
    try:
        authority = make_authority(folder / "keys")
        with open_bed(setting.cpu_shares, rate_mbps=setting.rate_mbps, medium=setting.medium) as bed:
            hosts = [bed.address(number) for number in range(len(names))]
            driver = issue_keys(authority, "driver", hosts=hosts[:1])
            orders = {
                "prefix": bed.prefix,
                "cpu_shares": bed.cpu_shares,
                "names": names,
                "medium": setting.medium,
                "head": f"{hosts[0]}:{_PORT}",
                "keys": str(driver),
                "out": str(folder),
                "methods": work.methods,
                "row": work.row,
                "faults": work.faults,
                "quick": work.quick,
                "models": [str(write_model(model, folder)) for model in work.models],
                "effort": {"least_s": 0.15 if work.quick else 0.3},
                "most_s": 12.0 if work.quick else 18.0,
                "steady": work.steady,
                "spare_frames": work.spare_frames,
            }
            (folder / "orders.json").write_text(json.dumps(orders))
            environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TMPDIR": str(folder)}
            for number, name in enumerate(names):
                keys = issue_keys(authority, f"d{number}", hosts=hosts[number : number + 1])
                command = [
                    sys.executable,
                    "-m",
                    "downset",
                    "worker",
                    "--head",
                    orders["head"],
                    "--name",
                    name,
                    "--keys",
                    keys,
                    "--address",
                    hosts[number],
                    "--threads",
                    "1",
                    "--shards",
                    folder / f"n{number}",
                    "-q",
                ]
                bed.start(number, command, env=environment, output=subprocess.DEVNULL)
            with (folder / "driver.log").open("wb") as log:
                drive = [sys.executable, "-m", work.driver, folder / "orders.json"]
                driving = bed.start(0, drive, env=environment, output=log, free=True)
                yield from _written(driving, folder, limit_s)
    finally:
        if keep is not None:
            keep.mkdir(parents=True, exist_ok=True)
            for file in (*folder.glob("*.toml"), *folder.glob("*.log"), *folder.glob("*.jsonl")):
                shutil.copy(file, keep)
        shutil.rmtree(folder, ignore_errors=True)


def _written(driving: subprocess.Popen[bytes], folder: Path, limit_s: float) -> Iterator[Row]:
    """Yield what the driver writes until it ends or its time is over; its log goes to stderr."""
    begun, over, part = time.monotonic(), False, ""
    (folder / "rows.jsonl").touch()
    with (folder / "driver.log").open() as said, (folder / "rows.jsonl").open() as written:
        while not over:
            over = driving.poll() is not None
            for line in said:
                if line[:2].isdigit():
                    print(line.rstrip()[:400], file=sys.stderr, flush=True)
            while line := written.readline():
                part += line
                if part.endswith("\n"):
                    yield json.loads(part)
                    part = ""
            if not over and time.monotonic() - begun > limit_s:
                print(f"the driver took more than {limit_s:g} s and is ended", file=sys.stderr)
                return  # what runs in the bed ends with the bed
            time.sleep(0 if over else 0.2)
        if driving.returncode:
            text = (folder / "driver.log").read_text()
            print(f"the driver ended with {driving.returncode}: {text[-1500:]}", file=sys.stderr)
