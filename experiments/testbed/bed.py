"""The testbed: N devices as network namespaces around one bridge, each with a share of the processor.

The bridge has a namespace of its own, and all addresses stay inside: the machine's network is not touched. A rate is
either that of every device's own link, each way (`links`), or that of all bytes together, one radio cell (`shared`).
Names hold the number of the process that made them. A second process takes everything down when the first one ends,
however it ends.

A bed's control groups lie below those of its maker, whose part of the processor they divide.
It needs root, `ip`, `tc`, `nsenter` and the cpu controller of cgroup v1. `missing` says what is not there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

from experiments.testbed.take_down import CPU, CPUACCT, NETNS, groups_below, groups_of, names_of, take_down

__all__ = ["Bed", "TestbedError", "missing", "open_bed"]

PERIOD_US = 20_000
"""The period of the processor's quota. With the kernel's 100 ms a device of a tenth stands still for 90 ms at
a time."""
_QUEUE = ("burst", "8kb", "latency", "100ms")
"""Settings of every shaper: a burst of five packets, and no more queue than an access point has."""
_WEIGHT = 100 * 1024
"""The weight of the bed against other processes of its maker's group: its small shares must be there when they are
due."""
_NETWORK = "10.99.0"
"""The network of all beds: no address of one is seen outside it."""


class TestbedError(Exception):
    """A feature that the machine does not have, or an action that it refused, in one line."""

    __test__ = False  # pytest takes classes called Test... for tests


def missing() -> str | None:
    """A line on what this machine does not have for a testbed; None where it has all."""
    if os.geteuid() != 0:
        return "the testbed makes network namespaces and control groups: run it as root"
    for program in ("ip", "tc", "nsenter"):
        if shutil.which(program) is None:
            return f"the testbed needs the program {program} (Debian: apt install iproute2 util-linux)"
    if not (CPU / "cpu.cfs_quota_us").exists():
        return f"the testbed needs the cpu controller of cgroup v1 at {CPU}"
    name = f"{names_of(os.getpid())}try"
    try:
        _do("ip", "netns", "add", name)
        try:
            _do("ip", "-n", name, "link", "add", "ifb0", "type", "ifb")
            _do("tc", "-n", name, "qdisc", "add", "dev", "ifb0", "root", "tbf", "rate", "1mbit", *_QUEUE)
        finally:
            _do("ip", "netns", "del", name)
    except TestbedError as error:
        return f"the testbed cannot be made here: {error}"
    return None


@dataclass(frozen=True, slots=True)
class Bed:
    """A testbed that is up. Devices are numbered in the order of `cpu_shares`, shares of one core."""

    prefix: str
    cpu_shares: tuple[float, ...]

    def address(self, device: int) -> str:
        return f"{_NETWORK}.{device + 1}"

    def start(
        self,
        device: int,
        command: Sequence[str | Path],
        *,
        env: Mapping[str, str] | None = None,
        output: IO[bytes] | int | None = None,
        free: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a device, in a session of its own. `free`: outside the device's share of the processor."""
        groups = [group / ("free" if free else str(device)) for group in groups_of(self.prefix)]
        joins = " && ".join(f'echo $$ > "{group / "cgroup.procs"}"' for group in groups)
        script = f'{joins} && exec nsenter --net="{NETNS / self._namespace(device)}" "$@"'
        return subprocess.Popen(
            ["/bin/sh", "-c", script, "sh", *map(str, command)],
            env=None if env is None else dict(env),
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def throttle(self) -> None:
        """Limit every device to its share from now on. Call it when processes there have imported what they need."""
        for device, share in enumerate(self.cpu_shares):
            (self._group(device) / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self._group(device) / "cpu.cfs_quota_us").write_text(str(max(1000, round(share * PERIOD_US))))

    def release(self) -> None:
        """Take the limits of the processor off again."""
        for device in range(len(self.cpu_shares)):
            (self._group(device) / "cpu.cfs_quota_us").write_text("-1")

    def share(self, device: int, share: float) -> None:
        """Give one device another share: a device that becomes slow."""
        (self._group(device) / "cpu.cfs_quota_us").write_text(str(max(1000, round(share * PERIOD_US))))

    def used_s(self, device: int) -> float:
        """Seconds of processor that the device has used."""
        return int((self._group(device, CPUACCT) / "cpuacct.usage").read_text()) / 1e9

    def processes(self, device: int) -> list[int]:
        return [int(line) for line in (self._group(device) / "cgroup.procs").read_text().split()]

    def cut(self, device: int, *, off: bool = True) -> None:
        """Take a device's link down, or up again."""
        _do("ip", "-n", self._namespace(device), "link", "set", "eth0", "down" if off else "up")

    def dropped_packets(self) -> int:
        """Packets for which the shapers' queues had no room."""
        total = 0
        for name in [self.prefix + "cell", *(self._namespace(device) for device in range(len(self.cpu_shares)))]:
            words = _do("tc", "-s", "-n", name, "qdisc", "show").replace(",", "").split()
            total += sum(int(words[index + 1]) for index, word in enumerate(words) if word == "(dropped")
        return total

    def cell_bytes(self) -> int:
        """Bytes that have gone through the shared cell."""
        words = _do("tc", "-s", "-n", self.prefix + "cell", "qdisc", "show", "dev", "ifb0").split()
        return int(words[words.index("Sent") + 1])

    def _namespace(self, device: int) -> str:
        return f"{self.prefix}{device}"

    def _group(self, device: int, controller: Path = CPU) -> Path:
        (group,) = groups_below(controller, self.prefix)
        return group / str(device)


@contextmanager
def open_bed(
    cpu_shares: Sequence[float], *, rate_mbps: float | Sequence[float], medium: Literal["links", "shared"]
) -> Iterator[Bed]:
    """Devices with these shares of one core, unlimited until `Bed.throttle`.

    `rate_mbps` (10⁶ bits a second): of every link, each way, or one for each device's; of the shared cell only one.
    Raises TestbedError where `missing` finds something. Whatever was started is killed at the end."""
    lacks = missing()
    if lacks is not None:
        raise TestbedError(lacks)
    rates = [float(rate_mbps)] * len(cpu_shares) if isinstance(rate_mbps, int | float) else [*map(float, rate_mbps)]
    if medium == "shared" and len(set(rates)) > 1:
        raise TestbedError("a shared cell has one rate")
    if len(rates) != len(cpu_shares) or not all(0 < share <= 1 for share in cpu_shares) or min(rates, default=0) <= 0:
        raise TestbedError("a testbed needs devices, shares of a core above 0 and at most 1, and a rate for each")
    bed = Bed(names_of(os.getpid()), tuple(cpu_shares))
    with _taken_down(bed.prefix):
        for controller in (CPU, CPUACCT):
            for name in ("free", *map(str, range(len(rates)))):
                (_own_group(controller) / bed.prefix / name).mkdir(parents=True, exist_ok=True)
        (_own_group(CPU) / bed.prefix / "cpu.shares").write_text(str(_WEIGHT))
        _make_cell(bed.prefix, rates[0] if medium == "shared" else None)
        for device, rate in enumerate(rates):
            _make_device(bed, device, rate if medium == "links" else None)
        yield bed


def _own_group(controller: Path) -> Path:
    """The control group that this process is in; the top one where that is not seen from here, as in a container."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, inside = line.split(":", 2)
        if controller.name in names.split(",") and (group := controller / inside.lstrip("/")).is_dir():
            return group
    return controller


@contextmanager
def _taken_down(prefix: str) -> Iterator[None]:
    """A process of its own that takes everything down when this one closes the pipe, or dies."""
    take_down(prefix)
    watcher = subprocess.Popen(
        [sys.executable, "-m", "experiments.testbed.take_down", prefix],
        stdin=subprocess.PIPE,
        start_new_session=True,
        cwd=Path(__file__).resolve().parents[2],
    )
    assert watcher.stdin is not None
    try:
        yield
    finally:
        watcher.stdin.close()
        watcher.wait(60)


def _make_cell(prefix: str, shared_mbps: float | None) -> None:
    cell = f"{prefix}cell"
    _do("ip", "netns", "add", cell)
    _do("ip", "-n", cell, "link", "add", "br0", "type", "bridge")
    _do("ip", "-n", cell, "link", "set", "br0", "up")
    if shared_mbps is not None:
        _do("ip", "-n", cell, "link", "add", "ifb0", "type", "ifb")
        _do("ip", "-n", cell, "link", "set", "ifb0", "up")
        _do("tc", "-n", cell, "qdisc", "add", "dev", "ifb0", "root", "tbf", "rate", f"{shared_mbps}mbit", *_QUEUE)


def _make_device(bed: Bed, device: int, link_mbps: float | None) -> None:
    cell, name, port = f"{bed.prefix}cell", f"{bed.prefix}{device}", f"port{device}"
    _do("ip", "netns", "add", name)
    _do("ip", "-n", name, "link", "set", "lo", "up")
    _do("ip", "-n", name, "link", "add", "eth0", "type", "veth", "peer", "name", port, "netns", cell)
    for space, end in ((name, "eth0"), (cell, port)):
        # One packet at a time: a shaper drops what is larger than its burst.
        _do("ip", "-n", space, "link", "set", end, "gso_max_segs", "1")
        if link_mbps is not None:
            _do("tc", "-n", space, "qdisc", "add", "dev", end, "root", "tbf", "rate", f"{link_mbps}mbit", *_QUEUE)
    _do("ip", "-n", name, "addr", "add", f"{bed.address(device)}/24", "dev", "eth0")
    _do("ip", "-n", name, "link", "set", "eth0", "up")
    _do("ip", "-n", cell, "link", "set", port, "master", "br0")
    _do("ip", "-n", cell, "link", "set", port, "up")
    if link_mbps is None:
        _do("tc", "-n", cell, "qdisc", "add", "dev", port, "ingress")
        _do(
            "tc",
            "-n",
            cell,
            "filter",
            "add",
            "dev",
            port,
            "parent",
            "ffff:",
            "protocol",
            "all",
            "u32",
            "match",
            "u32",
            "0",
            "0",
            "action",
            "mirred",
            "egress",
            "redirect",
            "dev",
            "ifb0",
        )


def _do(*command: str) -> str:
    done: Any = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise TestbedError(f"{' '.join(command)}: {said}")
    return str(done.stdout)
