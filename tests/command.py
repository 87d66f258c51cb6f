"""The command line inside the test's process."""

from click.testing import CliRunner

from downset.cli import downset


def output_of(*arguments):
    """What the command prints to stdout; a user's mistake raises its DownsetError."""
    done = CliRunner().invoke(downset, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout
