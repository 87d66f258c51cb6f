"""Which `raise Unproven` of the proof are reached."""

import ast
import sys
from pathlib import Path

from downset.equivalence.claims import Unproven


def raise_lines(module):
    """By the first line of each `raise Unproven(...)` of a module: its last line."""
    tree = ast.parse(Path(module.__file__).read_text())
    return {
        (Path(module.__file__).name, one.lineno): one.end_lineno
        for one in ast.walk(tree)
        if isinstance(one, ast.Raise) and isinstance(one.exc, ast.Call) and one.exc.func.id == "Unproven"
    }


def recorded(monkeypatch):
    """A set that gets (file, line) of each Unproven that is made from now on."""
    made = set()

    def remember(self, *arguments):
        frame = sys._getframe(1)
        made.add((Path(frame.f_code.co_filename).name, frame.f_lineno))
        Exception.__init__(self, *arguments)

    monkeypatch.setattr(Unproven, "__init__", remember)
    return made


def never_raised(made, *modules):
    """The `raise Unproven` of these modules that `made` has not."""
    lines = {first: last for module in modules for first, last in raise_lines(module).items()}
    return sorted(
        (name, line)
        for (name, line), last in lines.items()
        if not any((name, number) in made for number in range(line, last + 1))
    )
