"""The command line inside the test's process, and programs in processes of their own."""

import io
import os
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from unittest.mock import patch

from click.testing import CliRunner

from downset.cli import main
from downset.commands.group import downset
from downset.commands.wording import command_named, worded
from downset.messages import Call, Message, Setting


def output_of(*arguments):
    """What the command prints to stdout; a user's mistake raises its DownsetError."""
    done = CliRunner().invoke(downset, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def completed(*arguments, env=None):
    """How the command ends in this process: with a `returncode`, `stdout` and `stderr`."""
    out, err = io.StringIO(), io.StringIO()
    words = ["downset", *map(str, arguments)]
    status = 0
    with (
        patch.object(sys, "argv", words),
        patch.dict(os.environ, env or {}),
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def typed(value, name="fit"):
    """A message, setting or call of the library in the words of the command `name`."""
    return worded(Message(value) if isinstance(value, Setting | Call) else value, command_named(name))


def said_by_every_process(program):
    """What a program of Python prints, which is the same however its process orders sets."""
    said = {
        subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(said) == 1
    return said.pop()
