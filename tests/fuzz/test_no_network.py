"""No command reaches for a network: each runs where the system ends a process that opens a socket for one.

The filter is Linux's seccomp, which children inherit: runtimes that look up a host in C++ are caught too.
"""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from tests.models import branchy_model, installed_model

pytestmark = pytest.mark.own_processes("parsers")

NO_NETWORK = """
import ctypes, os, sys

class Step(ctypes.Structure):
    _fields_ = [("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("k", ctypes.c_uint)]

class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.POINTER(Step))]

socket = {"x86_64": 41, "aarch64": 198}[os.uname().machine]
LOAD, IF_EQUAL, RETURN, ALLOW, KILL = 0x20, 0x15, 0x06, 0x7FFF0000, 0x80000000
steps = (Step * 7)(
    Step(LOAD, 0, 0, 0), Step(IF_EQUAL, 0, 3, socket),          # the number of the system call
    Step(LOAD, 0, 0, 16), Step(IF_EQUAL, 2, 0, 2), Step(IF_EQUAL, 1, 0, 10),  # its family: IPv4 or IPv6
    Step(RETURN, 0, 0, ALLOW), Step(RETURN, 0, 0, KILL),
)
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0  # no new privileges
assert libc.prctl(22, 2, ctypes.byref(Program(7, steps)), 0, 0) == 0  # this filter, for good
exec(sys.argv.pop(1), {})
"""


TYPED = """
import shlex, sys
from downset.cli import main
for line in sys.argv[1:]:
    print("$", line, file=sys.stderr, flush=True)
    sys.argv = shlex.split(line)
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""
"""Several commands in one process, each of which is named on stderr before it runs."""


def alone(folder, program, *arguments):
    home = folder / "home"
    env = {**os.environ, "HOME": str(home), "XDG_CACHE_HOME": str(home / "cache"), "DOWNSET_CACHE": str(folder)}
    del env["ORT_DISABLE_TELEMETRY"]  # which conftest.py sets, as downset does
    command = [sys.executable, "-c", NO_NETWORK, program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, check=False, timeout=300)


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_the_filter_works(tmp_path, family):
    opened = (
        f"import socket; socket.socket(socket.AF_UNIX); print('so far', flush=True); socket.socket(socket.{family})"
    )
    done = alone(tmp_path, opened)
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "so far\n")


def test_no_command_opens_a_socket(tmp_path):
    """Nor leaves ONNX Runtime anything in the user's home: its telemetry, were it on, would begin with files there."""
    branchy_model(tmp_path / "m.onnx")
    shutil.copy(installed_model("pymicro-wakeword", "okay_nabu.tflite"), tmp_path / "m.tflite")
    (tmp_path / "r.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    (tmp_path / "home").mkdir()
    commands = [
        "downset inspect m.onnx",
        "downset order m.onnx",
        "downset fit m.onnx -o fitted.onnx --time-limit 2s",
        "downset fit m.tflite --time-limit 2s",
        "downset verify m.onnx m.onnx",
        "downset stage m.onnx --budget-timings 4 --time-limit 2s -o stages.json",
        "downset run m.onnx --plan stages.json --check",
        "downset split m.onnx --cluster pico_1mac -o pipeline.json --export shards",
        "downset simulate pipeline.json --frames 10",
        "downset arena r.csv",
        "downset profiles list",
        "downset keys init --authority keys",
        "downset keys issue d0 --host 10.0.0.5 --authority keys",
    ]
    done = alone(tmp_path, TYPED, *commands)
    assert done.returncode == 0, done.stderr
    assert [line[2:] for line in done.stderr.splitlines() if line.startswith("$ ")] == commands
    assert "signal 31" not in done.stderr, done.stderr  # a worker that was ended is only a note to `fit`
    assert not list((tmp_path / "home").rglob("*"))
