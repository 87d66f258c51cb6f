"""Figures of a process that opens a model in ONNX Runtime and runs it, by a script that imports nothing of downset.
Heap that imports left free is given back first: a model that used it would not grow the process."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from downset.results.sessions import SessionSettings
from downset.runtimes.ort_settings import session_code
from experiments.rows import Row

__all__ = ["Reading", "figures_of", "in_turns", "reading"]

_LIMIT_S = 300.0
_SCRIPT = """\
import ctypes, hashlib, json, os, sys, time
os.environ["ORT_DISABLE_TELEMETRY"] = "1"
import numpy as np
import onnxruntime as ort
def resident():
    lines = (line.split() for line in open("/proc/self/status"))
    return {line[0]: 1024 * int(line[1]) for line in lines if line[0] in ("VmRSS:", "VmHWM:", "RssAnon:", "RssFile:")}
def mapped():
    parts, name = {"library": 0, "weights": 0}, ""
    for line in open("/proc/self/smaps"):
        words = line.split()
        if not words[0].endswith(":"):
            name = words[5] if len(words) > 5 else ""
        elif words[0] in ("Rss:", "Anonymous:") and name.startswith("/"):
            sign = 1 if words[0] == "Rss:" else -1
            parts["library" if ".so" in name else "weights"] += sign * 1024 * int(words[1])
    return parts
with np.load(sys.argv[2]) as arrays:
    inputs = dict(arrays)
ort.set_default_logger_severity(4)
getattr(ctypes.CDLL(None), "malloc_trim", int)(0)
open("/proc/self/clear_refs", "w").write("5")
before, kept = resident(), mapped()
SETTINGS
session = ort.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
loaded = resident()
open("/proc/self/clear_refs", "w").write("5")
for _ in range(3):
    outputs = session.run(None, inputs)
after = resident()
peak, anonymous = max(loaded["VmHWM:"], after["VmHWM:"]) - before["VmRSS:"], after["VmHWM:"] - after["RssFile:"]
rest = after["VmRSS:"] - before["VmRSS:"]
library, weights = (value - kept[part] for part, value in mapped().items())
digest = hashlib.sha256(b"".join(np.asarray(value).tobytes() for value in outputs)).hexdigest()
begin, runs = time.process_time(), 0
while runs < 3 or (runs < 2000 and time.process_time() - begin < 0.2):
    session.run(None, inputs)
    runs += 1
cpu_s = (time.process_time() - begin) / runs
print(json.dumps([peak, anonymous, rest, library, weights, cpu_s, digest, before["RssAnon:"]]))
"""

Kinds = Mapping[str, tuple[Path, SessionSettings]]
"""By a name: the file, and the settings with which it is opened."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes by which one process grew, seconds of processor time of a run, and a digest of its outputs. Of what is left
    at rest, `library_bytes` are clean pages of libraries, and `weights_bytes` those of other files."""

    peak_bytes: int
    anonymous_bytes: int
    rest_bytes: int
    library_bytes: int
    weights_bytes: int
    cpu_s: float
    outputs: str


def reading(path: Path, settings: SessionSettings, inputs: Path) -> Reading | None:
    """The reading of a new process of the script, whose anonymous memory is looked at each millisecond; None where it
    fails. `inputs`: an .npz file."""
    script = _SCRIPT.replace("SETTINGS", "\n".join(session_code(settings)))
    command = [sys.executable, "-c", script, str(path), str(inputs)]
    most_bytes, end = 0, time.monotonic() + _LIMIT_S
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        while process.poll() is None and time.monotonic() < end:
            with contextlib.suppress(OSError):
                lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
                anonymous = [1024 * int(line.split()[1]) for line in lines if line.startswith("RssAnon:")]
                most_bytes = max([most_bytes, *anonymous])
            time.sleep(0.001)
        process.kill()
        assert process.stdout is not None
        printed = process.stdout.read().splitlines()
    if not printed:
        return None
    peak, anonymous_at_peak, *others, before = json.loads(printed[-1])
    return Reading(peak, max(anonymous_at_peak, most_bytes) - before, *others)


def in_turns(kinds: Kinds, inputs: Path, rounds: int) -> dict[str, list[Reading]]:
    """The readings of each kind, which take turns, every second round in reverse sequence; none of a kind of which one
    failed."""
    readings: dict[str, list[Reading]] = {kind: [] for kind in kinds}
    failed: set[str] = set()
    for turn in range(rounds):
        for kind in kinds if turn % 2 == 0 else reversed(list(kinds)):
            one = None if kind in failed else reading(*kinds[kind], inputs)
            failed |= set() if one else {kind}
            readings[kind] += [one] if one else []
    return {kind: [] if kind in failed else each for kind, each in readings.items()}


def figures_of(kind: str, readings: list[Reading], default: list[Reading]) -> Row:
    """The fields of a row: medians, the least and the most time, and the median over rounds of the ratio to the
    default's time."""
    if not readings:
        return {}
    key, times = kind.replace(" ", "_"), [one.cpu_s for one in readings]
    names = ("peak_bytes", "anonymous_bytes", "rest_bytes", "library_bytes", "weights_bytes")
    row: dict[str, Any] = {f"{key}_{name}": median(getattr(one, name) for one in readings) for name in names}
    row |= {f"{key}_cpu_s": median(times), f"{key}_low_s": min(times), f"{key}_high_s": max(times)}
    ratios = [one.cpu_s / usual.cpu_s for one, usual in zip(readings, default, strict=False)]
    return row | {f"{key}_ratio": float(np.median(ratios))}
