"""What every command prints on a terminal of 60 columns: no number is cut, and none is parted from its unit."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from itertools import pairwise

import pytest

from tests.every_command import FAILS, SUCCEEDS, write_files

COLUMNS = 60
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FAILURES = [arguments for _, code, _, arguments in FAILS if code != "usage"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    write_files(folder)
    return folder


def shown(arguments, folder, cache):
    """The rows that a terminal of 60 columns is sent, before it cuts those that are longer."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    sized = ("COLUMNS", "LINES")
    environment = {name: value for name, value in os.environ.items() if name not in sized}
    process = subprocess.Popen(
        [sys.executable, "-m", "downset", *arguments], cwd=folder, stdin=theirs, stdout=theirs, stderr=theirs,
        env={**environment, "TERM": "xterm", "DOWNSET_CACHE": str(cache)},
    )  # fmt: skip
    os.close(theirs)
    said = bytearray()
    with process:
        while data := _read(ours):
            said += data
    os.close(ours)
    return [row.rstrip() for row in re.split(r"[\r\n]+", CONTROL.sub("", said.decode()))]


def _read(terminal):
    try:
        return os.read(terminal, 1 << 16)
    except OSError:  # the other end is closed
        return b""


def check_rows(rows):
    assert any(rows)
    for row in rows:
        assert len(row) <= COLUMNS or len(row.split()) == 1, row
    for row, below in pairwise(rows):
        parted = re.search(r"\d$", row) and re.match(r" *([KMG]?B|[mµ]?s|bytes|frames/s)\b(?!:)", below)
        assert not parted, (row, below)


@pytest.mark.parametrize("command", SUCCEEDS)
def test_no_line_is_cut_inside_a_number(files, tmp_path, command):
    arguments = [word for word in SUCCEEDS[command] if word != "-q"]
    if command == "profile-cluster":
        arguments += ["-o", str(tmp_path / "c")]  # else it prints that file
    check_rows(shown(arguments, files, tmp_path))


@pytest.mark.parametrize("arguments", FAILURES, ids=" ".join)
def test_no_line_of_a_failure_is_cut_inside_a_number(files, tmp_path, arguments):
    check_rows(shown(arguments, files, tmp_path))


def test_in_a_pipe_a_line_stays_one(files, run, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    _, out, _ = run("simulate", "pipeline.json", "--frames", "20")
    assert re.search(r"^latency: .{60,}$", out, re.MULTILINE), out
    _, _, err = run("fit", "m.onnx", "--ram", "1", "--time-limit", "1s")
    assert len(err.splitlines()[0]) > COLUMNS
