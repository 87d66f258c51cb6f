"""Takes a testbed down: its processes, control groups and namespaces. Runs as a process that outlives the maker.

python -m experiments.testbed.take_down PREFIX    # when its standard input ends
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["CPU", "CPUACCT", "NETNS", "groups_below", "groups_of", "names_of", "take_down"]

CPU, CPUACCT = Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup/cpuacct")
NETNS = Path("/run/netns")
_PATIENCE_S = 20.0


def names_of(process: int) -> str:
    """The prefix of the names of all that a process makes."""
    return f"dsbed{process}-"


def groups_of(prefix: str) -> list[Path]:
    """The control groups of this prefix, wherever in their hierarchies their maker was."""
    return [group for controller in (CPU, CPUACCT) for group in groups_below(controller, prefix)]


def groups_below(controller: Path, prefix: str) -> list[Path]:
    """The control groups of this prefix in one hierarchy. Groups of others may vanish meanwhile: a walk passes over
    them, where a glob ends with an error."""
    return [Path(folder) for folder, *_ in os.walk(controller) if Path(folder).name == prefix]


def take_down(prefix: str) -> None:
    """Kill what runs in the namespaces and groups of this prefix, and remove them. Nothing to do is not an error."""
    spaces = [path.name for path in NETNS.glob(f"{prefix}*")] if NETNS.is_dir() else []
    groups = groups_of(prefix)
    until = time.monotonic() + _PATIENCE_S
    # A process that was just started may join its group after a first look. And a group stays busy for a moment after
    # the last process in it is no longer listed: it is still ending. So look, kill and remove until all is gone.
    over = False
    while not over:
        over = time.monotonic() > until
        processes = _inside(spaces, groups)
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if over or not processes:
            for space in spaces:
                subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)
            spaces = []
            for group in groups:
                for folder in (*group.glob("*/"), group):
                    with contextlib.suppress(OSError):
                        folder.rmdir()
            if not any(group.is_dir() for group in groups):
                return
        time.sleep(0.05)


def _inside(spaces: list[str], groups: list[Path]) -> set[int]:
    processes: set[int] = set()
    for space in spaces:
        listed = subprocess.run(["ip", "netns", "pids", space], check=False, capture_output=True, text=True)
        processes.update(map(int, listed.stdout.split()))
    for group in groups:
        for file in group.glob("**/cgroup.procs"):
            with contextlib.suppress(OSError):
                processes.update(map(int, file.read_text().split()))
    return processes - {os.getpid()}


def main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    sys.stdin.buffer.read()  # until the maker closes it or is gone
    take_down(sys.argv[1])


if __name__ == "__main__":
    main()
