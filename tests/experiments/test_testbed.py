"""The testbed shapes what it says it shapes, and leaves nothing behind; where it cannot be made it says why in a line.

Where this machine cannot make one (no root, no control groups), the tests hold it to refusing, and to doing nothing.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from experiments.frame import run
from experiments.testbed import bed as beds
from experiments.testbed import shaping
from experiments.testbed import take_down as taking
from experiments.testbed.bed import TestbedError, missing, open_bed
from experiments.testbed.take_down import CPU, CPUACCT, NETNS, groups_of, names_of, take_down

ROOT = Path(__file__).resolve().parents[2]
LACKS = missing()
MBPS = 8.0
"""So slow that any machine could send it many times over."""


def left(process):
    return [*NETNS.glob(f"{names_of(process)}*"), *groups_of(names_of(process))]


def outside():
    """What of the machine's own network a testbed must not change."""
    names = sorted(path.name for path in Path("/sys/class/net").iterdir())
    return names, Path("/proc/net/route").read_text()


def built_or_refused(run, cpu_shares, **options):
    """`run(bed)` inside a testbed; where this machine lacks something, that is what it is refused for."""
    before = outside()
    if LACKS is not None:
        with pytest.raises(TestbedError) as refused, open_bed(cpu_shares, **options):
            pass
        assert str(refused.value) == LACKS
        assert LACKS.count("\n") == 0
    else:
        with open_bed(cpu_shares, **options) as bed:
            assert outside() == before
            run(bed)
    assert not left(os.getpid())
    assert outside() == before


def holds_of_some(measure, law):
    """A busy machine delays clocks and senders, so that one measurement may say anything; where the law does not hold,
    none of six says that it does."""
    measured = []
    for _ in range(6):
        measured.append(measure())
        if law(measured[-1]):
            return
    raise AssertionError(measured)


def test_without_root_it_refuses_in_a_line_and_does_nothing(monkeypatch):
    done = []
    monkeypatch.setattr(beds.os, "geteuid", lambda: 1000)
    monkeypatch.setattr(beds.subprocess, "run", lambda *words, **_: done.append(words))
    monkeypatch.setattr(beds.subprocess, "Popen", lambda *words, **_: done.append(words))
    with pytest.raises(SystemExit) as end:
        run(shaping.EXPERIMENT, ["--quick"])
    said = str(end.value)
    assert "run it as root" in said
    assert "\n" not in said
    assert not done


def test_a_link_has_its_rate_and_disjoint_links_do_not_meet():
    def run(bed):
        holds_of_some(
            lambda: shaping.flows_mbps(bed, [(0, 1), (2, 3)], 1_000_000)[0],
            lambda got: max(got) <= 1.1 * MBPS and sum(got) > 1.2 * MBPS,
        )

    built_or_refused(run, [0.5] * 4, rate_mbps=MBPS, medium="links")


def test_a_cell_has_one_rate_for_all():
    def run(bed):
        holds_of_some(
            lambda: shaping.flows_mbps(bed, [(0, 1), (2, 3)], 1_000_000)[1], lambda together: together <= 1.1 * MBPS
        )

    built_or_refused(run, [0.5] * 4, rate_mbps=MBPS, medium="shared")


def test_a_device_has_no_more_than_its_share():
    def run(bed):
        holds_of_some(
            lambda: shaping.shares(bed, 1.5),
            lambda got: all(one <= 1.25 * share for one, share in zip(got, bed.cpu_shares, strict=True)),
        )

    built_or_refused(run, [0.3, 0.1], rate_mbps=MBPS, medium="shared")


def test_impossible_beds_are_refused():
    for shares, rate, medium in (
        ([0.5, 2.0], 50, "links"),
        ([0.5, 0.5], [50, 20], "shared"),
        ([0.5], [50, 20], "links"),
    ):
        with pytest.raises(TestbedError), open_bed(shares, rate_mbps=rate, medium=medium):
            pass
        assert not left(os.getpid())


MAKES = """
import sys, time
from experiments.testbed.bed import TestbedError, open_bed
try:
    with open_bed([0.5, 0.5], rate_mbps=8, medium="links") as bed:
        print(bed.start(1, ["sleep", "600"]).pid, flush=True)
        time.sleep(600)
except TestbedError as error:
    print(error, flush=True)
"""


def test_a_maker_that_is_killed_leaves_nothing():
    maker = subprocess.Popen([sys.executable, "-c", MAKES], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    said = maker.stdout.readline().strip()
    if LACKS is not None:
        assert said == LACKS
        maker.wait(120)
        return
    inside = int(said)
    assert left(maker.pid)
    maker.send_signal(signal.SIGKILL)
    maker.wait(120)
    for _ in range(1200):
        if not left(maker.pid):
            break
        time.sleep(0.1)
    assert not left(maker.pid)
    stat = Path(f"/proc/{inside}/stat")  # its parent is gone: it is gone too, or waits to be buried
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


GROUPS = """
from experiments.testbed.bed import TestbedError, open_bed
from experiments.testbed.take_down import groups_of
try:
    with open_bed([0.5], rate_mbps=8, medium="links") as bed:
        bed.start(0, ["sleep", "600"])
        bed.throttle()
        print(*groups_of(bed.prefix), bed.used_s(0) >= 0)
except TestbedError as error:
    print(error)
"""


def test_groups_lie_below_the_maker_s():
    """A bed has the part of the processor that its maker has, not one of its own in addition."""
    command = [sys.executable, "-c", GROUPS]
    if LACKS is None:
        maker = CPU / f"{names_of(os.getpid())}maker"
        maker.mkdir()
        command = ["/bin/sh", "-c", f'echo $$ > {maker}/cgroup.procs && exec "$@"', "sh", *command]
    said = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300, check=True).stdout.strip()
    if LACKS is not None:
        assert said == LACKS
        return
    maker.rmdir()
    group, accounted, used = said.split()
    assert (Path(group).parent, Path(accounted).parent, used) == (maker, CPUACCT, "True")


def test_taking_down_what_is_not_there_is_no_error():
    take_down("dsbed0-nothing")


def test_a_process_that_joins_after_the_first_look_is_killed_too(tmp_path, monkeypatch):
    late = subprocess.Popen(["sleep", "600"])
    busy = tmp_path / "group" / "busy"  # as a control group that has a process in it, the folder cannot be removed
    busy.parent.mkdir()
    busy.touch()
    looks = []

    def inside(spaces, groups):
        looks.append(groups)
        if late.poll() is not None:
            busy.unlink(missing_ok=True)
        return {late.pid} if len(looks) > 1 and late.poll() is None else set()

    monkeypatch.setattr(taking, "groups_of", lambda _: [busy.parent])
    monkeypatch.setattr(taking, "_inside", inside)
    take_down("dsbed0-late")
    assert late.wait(60) == -signal.SIGKILL
    assert not busy.parent.exists()
