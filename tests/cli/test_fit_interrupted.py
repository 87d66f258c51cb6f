"""Ctrl-C during `fit`, as a terminal sends it: to every process of the group."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from downset.formats.reading import load
from downset.memory.liveness import check_graph
from downset.runtimes import tflm
from tests.tflite_net import TfliteNet

LONG = ("--time-limit", "1h")
ENDS_S = 120.0
"""Seconds in which a command that would search for an hour ends once it was interrupted, on a busy machine."""


@pytest.fixture(scope="module")
def hard(tmp_path_factory):
    """A network that no search proves: each operator joins three of the 120 tensors before it, of many sizes, so no
    branch can be taken apart; the best order known after a minute is 24 % above its bound."""
    numbers, net = random.Random(2), TfliteNet(size=8)
    tensors, read = [net.conv(net.input(4), numbers.randint(1, 24))], set()
    for _ in range(240):
        parts = numbers.sample(tensors[-120:], min(3, len(tensors)))
        joined = net.concat(parts) if len(parts) > 1 else parts[0]
        read.update((*parts, joined))
        tensors.append(net.conv(joined, numbers.randint(1, 24)))
    ends = [tensor for tensor in tensors if tensor not in read]
    while len(ends) > 1:  # TFLite Micro joins few at a time
        ends = [net.concat(ends[at : at + 8]) for at in range(0, len(ends), 8)]
    return net.save(tmp_path_factory.mktemp("hard") / "hard.tflite", ends)


class Command:
    """A running `fit`, in a session and process group of its own, which says when it searches. `before`: what the
    program does first. `interrupts`: how SIGINT is answered where it starts."""

    def __init__(self, folder, model, *options, before="", interrupts=signal.SIG_DFL):
        program = folder / "command.py"
        program.write_text(
            "import sys\n"
            "import downset.fitting.planning as planning\n"
            "plan = planning.plan_together\n"
            "def searching(*arguments, **options):\n"
            "    print('searching', file=sys.stderr, flush=True)\n"
            "    return plan(*arguments, **options)\n"
            "planning.plan_together = searching\n"
            f"{before}\n"
            "from downset.__main__ import main\n"
            "main()\n"
        )
        command = [sys.executable, str(program), "fit", str(model), *options]
        self.errors = folder / "stderr.txt"
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=errors,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, interrupts),
            )

    def wait_for(self, text, seconds=60.0):
        end = time.monotonic() + seconds
        while text not in self.errors.read_text():
            assert time.monotonic() < end and self.process.poll() is None, self.errors.read_text()
            time.sleep(0.05)

    def to_group(self, number):
        os.killpg(self.process.pid, number)

    def end(self):
        out, _ = self.process.communicate(timeout=ENDS_S)
        return self.process.returncode, out.decode(), self.errors.read_text()


@contextmanager
def running(*given, **options):
    command = Command(*given, **options)
    try:
        yield command
    finally:
        if command.process.poll() is None:
            command.to_group(signal.SIGKILL)
            command.process.wait()


def searches(command):
    """Wait until it has searched for a while."""
    command.wait_for("searching")
    time.sleep(0.2)


def interrupted(command, to_all=True):
    searches(command)
    (command.to_group if to_all else command.process.send_signal)(signal.SIGINT)
    command.wait_for("downset: the search ends; ")


@pytest.mark.parametrize("to_all", [True, False], ids=["group", "process"])
def test_the_first_one_ships_the_best_so_far_proven(to_all, hard, tmp_path):
    output = tmp_path / "fitted.tflite"
    with running(tmp_path, hard, *LONG, "--json", "-o", str(output)) as command:
        interrupted(command, to_all)
        status, out, errors = command.end()
    document = json.loads(out)
    assert (status, document["stopped_by"], errors.count("the search ends")) == (0, "interrupt", 1)
    assert document["outputs"]["proof"]["proven"], "it is proven as always"
    assert document["measured"]["after"] <= document["measured"]["before"]
    assert "segments in strips were not looked for: the search was interrupted" in document["notes"]
    check_graph(load(output))
    fitted, original = tflm.measure(output), tflm.measure(hard)
    assert fitted.total_bytes == document["measured"]["after"]
    assert [value.tobytes() for value in fitted.outputs] == [value.tobytes() for value in original.outputs]


def test_a_memory_limit_that_is_not_met_is_not_known(hard, tmp_path):
    output = tmp_path / "fitted.tflite"
    with running(tmp_path, hard, *LONG, "--ram", "390KB", "--json", "-o", str(output)) as command:
        interrupted(command)
        status, out, _ = command.end()
    assert (status, json.loads(out)["stopped_by"], output.exists()) == (6, "interrupt", False)


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["interrupt", "terminate"]
)
def test_the_second_one_stops_the_command_at_once(number, status, hard, tmp_path):
    output = tmp_path / "fitted.tflite"
    forever = "import downset.fitting.fit as fitting, time\nfitting.choose_by_process = lambda *given: time.sleep(3600)"
    with running(tmp_path, hard, *LONG, "-o", str(output), before=forever) as command:
        interrupted(command)
        command.to_group(number)
        assert command.end()[0] == status
    assert not output.exists()


def test_the_second_one_stops_a_search_inside_of_another_in_order(hard, tmp_path):
    """As where a model is fitted again with its states in variables: what is open is left in order, not killed."""
    left = tmp_path / "left"
    inside = (
        "import downset.fitting.fit as fitting, downset.process.supervisor, time\n"
        "downset.process.supervisor._PATIENCE_S = 60.0\n"  # however busy the machine is
        "from downset.process.command import answering_interrupt\n"
        "def choose(*given):\n"
        "    try:\n"
        "        with answering_interrupt(lambda: None):\n"
        "            print('inside', file=sys.stderr, flush=True)\n"
        "            time.sleep(3600)\n"
        "    finally:\n"
        f"        open({str(left)!r}, 'w').close()\n"
        "fitting.choose_by_process = choose"
    )
    with running(tmp_path, hard, *LONG, before=inside) as command:
        interrupted(command)
        command.wait_for("inside")
        command.process.send_signal(signal.SIGINT)  # to the group a busy kernel may wake another thread than Python's
        assert command.end()[0] == 130
    assert left.exists()


def test_who_was_told_that_the_search_ends_stops_it_with_the_next_one(hard, tmp_path):
    """However late the watching process runs: before it has counted the first one, nothing is said."""
    forever = "import downset.fitting.fit as fitting, time\nfitting.choose_by_process = lambda *given: time.sleep(3600)"
    with running(tmp_path, hard, *LONG, before=forever) as command:
        searches(command)
        command.process.send_signal(signal.SIGSTOP)
        command.to_group(signal.SIGINT)
        time.sleep(0.5)
        assert "the search ends" not in command.errors.read_text()
        command.process.send_signal(signal.SIGCONT)
        command.wait_for("downset: the search ends; ")
        command.to_group(signal.SIGINT)
        assert command.end()[0] == 130


def test_sigterm_stops_the_command_at_once(hard, tmp_path):
    with running(tmp_path, hard, *LONG) as command:
        searches(command)
        command.to_group(signal.SIGTERM)
        assert command.end()[0] == 128 + signal.SIGTERM


def test_with_nothing_found_yet_the_first_one_stops_it(hard, tmp_path):
    reads = (
        "import downset.fitting.fit as fitting, time\n"
        "def read(job):\n"
        "    print('reading', file=sys.stderr, flush=True)\n"
        "    time.sleep(3600)\n"
        "fitting.read = read"
    )
    with running(tmp_path, hard, *LONG, before=reads) as command:
        command.wait_for("reading")
        command.to_group(signal.SIGINT)
        assert command.end()[0] == 128 + signal.SIGINT


def test_an_ignored_interrupt_stays_ignored(hard, tmp_path):
    """As after `nohup` and in the background of a shell: the search goes on to its limit."""
    with running(tmp_path, hard, "--time-limit", "1s", "--json", interrupts=signal.SIG_IGN) as command:
        searches(command)
        command.to_group(signal.SIGINT)
        status, out, errors = command.end()
    assert status == 0
    assert json.loads(out)["stopped_by"] in ("time", "memory"), "a limit, not the interrupt"
    assert "the search ends" not in errors
