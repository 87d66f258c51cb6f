"""The command line in this process, as several tests call it."""

import sys

import pytest

from downset.cli import main


@pytest.fixture
def run(monkeypatch, capfd):
    """`run("fit", path, …)` -> (exit status, what went to stdout, what went to stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["downset", *map(str, arguments)])
        status = 0
        try:
            main()
        except SystemExit as end:
            status = end.code or 0
        said = capfd.readouterr()
        return status, said.out, said.err

    return call


@pytest.fixture
def fails(run):
    """`fails(5, "fit", path, says="…")`: that exit status, nothing on stdout, and one line on stderr that says so."""

    def call(expected, *arguments, says):
        status, out, err = run(*arguments)
        assert (status, out) == (expected, ""), err
        assert err.startswith("downset: error: ")
        assert err.count("\n") == 1, err
        assert says in err

    return call
