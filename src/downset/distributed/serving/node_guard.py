"""Runs a command in a new session, and kills every process of that session when its starter is gone.

    python -I node_guard.py FOLDER COMMAND...

The starter holds the other end of stdin. When that is closed, however the starter ended, the session is killed and
FOLDER is removed (unless it is empty text). Without this guard, Ray's nodes outlive their starter. It uses only the
standard library, so that it starts in milliseconds and takes little memory.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

__all__ = ["end_session", "session_processes"]

_LOOKS_S = 0.25
_ENDING_S = 5.0


def session_processes(session: int) -> list[int]:
    """The processes of a session that are not zombies, without this process."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state, _, _, of = (entry / "stat").read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):  # it has ended meanwhile
            continue
        if int(of) == session and state != "Z":
            pids.append(int(entry.name))
    return pids


def end_session(session: int) -> None:
    """Kill all processes of a session except this one. Returns when none is left, or after 5 s."""
    until = time.monotonic() + _ENDING_S
    while (left := session_processes(session)) and time.monotonic() < until:
        for process in left:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(process, signal.SIGKILL)
        time.sleep(0.02)


def _closed() -> bool:
    """Whether the other end of stdin is closed. Waits a moment for it."""
    readable, _, _ = select.select([0], [], [], _LOOKS_S)
    return bool(readable) and not os.read(0, 64)


def main() -> int:
    folder, command = sys.argv[1], sys.argv[2:]
    if os.getsid(0) != os.getpid():
        os.setsid()  # otherwise end_session would kill the starter's session
    stopped: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda number, _: stopped.append(number))
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    while child.poll() is None and not stopped and not _closed():
        pass
    end_session(os.getsid(0))
    until = time.monotonic() + _ENDING_S
    while folder and Path(folder).exists() and time.monotonic() < until:  # other nodes may write there until they end
        shutil.rmtree(folder, ignore_errors=True)
        time.sleep(0.02)
    code = child.wait()
    return code if code >= 0 else 1


if __name__ == "__main__":
    sys.exit(main())
