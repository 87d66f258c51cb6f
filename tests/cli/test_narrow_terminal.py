"""What every command prints on a terminal of 60 columns: no number is cut, and none is parted from its unit."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import pytest

from downset.cli import main
from tests.every_command import FAILS, SUCCEEDS, write_files
from tests.without_ray import start_no_ray

COLUMNS = 60
CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
FAILURES = [arguments for _, code, _, arguments in FAILS if code != "usage"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("narrow")
    write_files(folder)
    return folder


END = b"\x00end\x00"
"""What ends the reading: a process that the command keeps for the next one holds the terminal open."""


def shown():
    """The rows that a terminal of 60 columns is sent by the command in this process, before it cuts those that are
    longer."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    with ThreadPoolExecutor(1) as reading:
        sent = reading.submit(_until_end, ours)
        try:
            with _standard_streams(theirs), contextlib.suppress(SystemExit):
                main()
        finally:
            os.write(theirs, END)
            said = sent.result()
    os.close(theirs)
    os.close(ours)
    return [row.rstrip() for row in re.split(r"[\r\n]+", CONTROL.sub("", said.decode()))]


def _until_end(terminal):
    said = b""
    while not said.endswith(END):
        said += os.read(terminal, 1 << 16)
    return said.removesuffix(END)


@contextlib.contextmanager
def _standard_streams(terminal):
    """All three of this process are the terminal."""
    names = ("stdin", "stdout", "stderr")
    before = [(getattr(sys, name), os.dup(number)) for number, name in enumerate(names)]
    for number, name in enumerate(names):
        os.dup2(terminal, number)
        setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    try:
        yield
    finally:
        for number, (name, (stream, kept)) in enumerate(zip(names, before, strict=True)):
            getattr(sys, name).close()
            setattr(sys, name, stream)
            os.dup2(kept, number)
            os.close(kept)


@pytest.fixture
def narrow(files, monkeypatch, tmp_path):
    """`narrow(argument, …)`: the rows of that command, in the folder of the files, with devices of this process."""
    start_no_ray(monkeypatch, tmp_path)
    monkeypatch.chdir(files)
    for name in ("COLUMNS", "LINES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path))

    def call(arguments):
        monkeypatch.setattr(sys, "argv", ["downset", *arguments])
        return shown()

    return call


def check_rows(rows):
    assert any(rows)
    for row in rows:
        assert len(row) <= COLUMNS or len(row.split()) == 1, row
    for row, below in pairwise(rows):
        parted = re.search(r"\d$", row) and re.match(r" *([KMG]?B|[mµ]?s|bytes|frames/s)\b(?!:)", below)
        assert not parted, (row, below)


@pytest.mark.parametrize("command", SUCCEEDS)
def test_no_line_is_cut_inside_a_number(narrow, tmp_path, command):
    arguments = [word for word in SUCCEEDS[command] if word != "-q"]
    if command == "profile-cluster":
        arguments += ["-o", str(tmp_path / "c")]  # else it prints that file
    check_rows(narrow(arguments))


@pytest.mark.parametrize("arguments", FAILURES, ids=" ".join)
def test_no_line_of_a_failure_is_cut_inside_a_number(narrow, arguments):
    check_rows(narrow(arguments))


def test_in_a_pipe_a_line_stays_one(files, run, monkeypatch):
    monkeypatch.chdir(files)
    monkeypatch.setenv("COLUMNS", str(COLUMNS))
    _, out, _ = run("simulate", "pipeline.json", "--frames", "20")
    assert re.search(r"^period, planned: .{60,}$", out, re.MULTILINE), out
    _, _, err = run("fit", "m.onnx", "--arena", "1", "--time-limit", "1s")
    assert len(err.splitlines()[0]) > COLUMNS
