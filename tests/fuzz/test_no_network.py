"""No command reaches for a network: each runs where the system ends a process that opens a socket for one.

The filter is Linux's seccomp, which children inherit: runtimes that look up a host in C++ are caught too.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.models import branchy_model, installed_model

pytestmark = pytest.mark.own_processes("parsers")

NO_NETWORK = """
import ctypes, os, runpy, sys

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
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True) if sys.argv[0] != "-c" else exec(sys.argv[1])
"""


def alone(folder, *arguments):
    env = {**os.environ, "HOME": str(folder), "XDG_CACHE_HOME": str(folder / "cache"), "DOWNSET_CACHE": str(folder)}
    command = [sys.executable, "-c", NO_NETWORK, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=env, cwd=folder, check=False, timeout=300)


@pytest.mark.parametrize("family", ["AF_INET", "AF_INET6"])
def test_the_filter_works(tmp_path, family):
    opened = (
        f"import socket; socket.socket(socket.AF_UNIX); print('so far', flush=True); socket.socket(socket.{family})"
    )
    done = alone(tmp_path, "-c", opened)
    assert (done.returncode, done.stdout) == (-signal.SIGSYS, "so far\n")


def test_no_command_opens_a_socket(tmp_path):
    model = branchy_model(tmp_path / "m.onnx")
    micro = installed_model("pymicro-wakeword", "okay_nabu.tflite")
    (tmp_path / "r.csv").write_text("id,lower,upper,size\na,0,1,4\n")
    commands = [
        ("inspect", model),
        ("order", model),
        ("fit", model, "-o", "fitted.onnx", "--time-limit", "2s"),
        ("fit", micro, "--time-limit", "2s"),
        ("verify", model, model),
        ("stage", model, "--budget-timings", "4", "--time-limit", "2s", "-o", "stages.json"),
        ("run", model, "--plan", "stages.json", "--check"),
        ("split", model, "--cluster", "pico_1mac", "-o", "pipeline.json", "--export", "shards"),
        ("simulate", "pipeline.json", "--frames", "10"),
        ("arena", "r.csv"),
        ("profiles", "list"),
        ("keys", "init"),
        ("keys", "issue", "d0", "--host", "10.0.0.5"),
    ]
    for command in commands:
        done = alone(tmp_path, "downset", *command)
        assert done.returncode == 0, (command, done.stderr)
        assert "signal 31" not in done.stderr, (command, done.stderr)  # a worker that was ended is only a note to `fit`


def test_onnx_runtime_leaves_nothing_in_the_users_cache(tmp_path):
    """Its telemetry, if it were on, would begin with files there."""
    done = alone(tmp_path, "downset", "fit", branchy_model(tmp_path / "m.onnx"), "--time-limit", "2s")
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in Path(tmp_path).rglob("*")) == ["m.onnx"]
