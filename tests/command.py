"""The command line inside the test's process, and programs in processes of their own."""

import subprocess
import sys

from click.testing import CliRunner

from downset.commands.group import downset


def output_of(*arguments):
    """What the command prints to stdout; a user's mistake raises its DownsetError."""
    done = CliRunner().invoke(downset, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


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
