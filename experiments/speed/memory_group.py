"""A limit of memory over a command and all its processes, by a control group of the kernel."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["MemoryGroup", "memory_group"]

_LIMITS = ("memory.limit_in_bytes", "memory.max")
"""The file of a group's limit in version 1 of control groups, and in version 2."""
_ENTER = 'echo $$ > "$0/cgroup.procs" && exec "$@"'


class MemoryGroup:
    """A group below the one of this process, by its folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command, which runs in the group with all processes that it starts."""
        return ["/bin/sh", "-c", _ENTER, str(self._folder), *arguments]


@contextmanager
def memory_group(nbytes: int) -> Iterator[MemoryGroup]:
    """A group whose processes together hold so many bytes at most, pages of files included; the kernel ends one that
    asks for more. Raises OSError where this process may not make one."""
    folder = _own_group() / f"downset-{os.getpid()}"
    folder.mkdir()
    try:
        limit = next((folder / name for name in _LIMITS if (folder / name).exists()), None)
        if limit is None:
            raise OSError(f"{folder} has no limit of memory: its parent does not delegate it")
        limit.write_text(str(nbytes))
        yield MemoryGroup(folder)
    finally:
        folder.rmdir()


def _own_group() -> Path:
    """The folder of the group that limits the memory of this process."""
    root, unified = Path("/sys/fs/cgroup"), ""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            return root / "memory" / path.lstrip("/")
        if number == "0":
            unified = path
    return root / unified.lstrip("/")
