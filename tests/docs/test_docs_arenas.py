"""docs/arenas.md, run as it is written: Python by doctest, the console line by line."""

import doctest
import re
import sys
from pathlib import Path

import pytest

from downset.cli import main

PAGE = Path(__file__).resolve().parents[2] / "docs" / "arenas.md"


def test_python_examples_print_what_the_page_says():
    failed, tried = doctest.testfile(str(PAGE), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert failed == 0
    assert tried > 40


def test_console_examples_print_what_the_page_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(r"```console\n(.*?)```", PAGE.read_text(), re.DOTALL)
    steps = [step.split("\n", 1) for step in block.removeprefix("$ ").split("\n$ ")]
    same = doctest.OutputChecker().check_output
    for position, (command, expected) in enumerate(steps):
        program, *arguments = command.split()
        if program == "cat":
            path = Path(arguments[0])
            if position == 0:  # the page shows the file before it is used
                path.write_text(expected + "\n")
            said = path.read_text()
        else:
            assert program == "downset"
            monkeypatch.setattr(sys, "argv", [program, *arguments])
            with pytest.raises(SystemExit) as end:
                main()
            assert end.value.code == (3 if "downset:" in expected else 0)
            done = capsys.readouterr()
            said = done.out + done.err
        assert same(expected.rstrip("\n") + "\n", said, doctest.ELLIPSIS), (command, said)
    assert len(steps) == 5
