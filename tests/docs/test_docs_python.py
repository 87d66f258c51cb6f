"""docs/python.md: its examples run, one after another, and it speaks of every public function."""

import inspect
import os
import re
from pathlib import Path

import pytest

import downset
from tests.without_ray import start_no_ray

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "python.md").read_text()
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_examples(tmp_path, monkeypatch, capsys):
    """Each leaves the environment of the process as it was."""
    start_no_ray(monkeypatch, tmp_path)
    pytest.importorskip("torch._inductor")  # PyTorch sets a variable when it first exports or compiles
    monkeypatch.chdir(tmp_path)
    names = {}
    for example in EXAMPLES:
        before = dict(os.environ)
        exec(example, names)
        assert dict(os.environ) == before, example
    said = capsys.readouterr().out
    assert f"{names['arena'].arena_bytes:,} B" in said
    assert {"fitted.onnx", "ordered.onnx", "plan.h", "plan.json", "shards"} <= {p.name for p in tmp_path.iterdir()}


@pytest.mark.parametrize("name", [name for name in downset.__all__ if inspect.isfunction(getattr(downset, name))])
def test_every_public_function_is_described_and_called(name):
    prose = re.sub(r"```python\n.*?```", "", PAGE, flags=re.DOTALL)
    assert re.search(rf"`{name}\(", prose), f"docs/python.md does not say what {name} does"
    assert re.search(rf"\bds\.{name}\(", "".join(EXAMPLES)), f"docs/python.md has no example of {name}"


def test_what_it_says_a_function_takes():
    """Each name in a stated signature is a parameter, and a stated default is the default."""
    stated = re.findall(r"`(\w+)\(([^`]*)\)`", PAGE)
    checked = 0
    for name, arguments in stated:
        function = getattr(downset, name, None)
        if not inspect.isfunction(function):
            continue
        parameters = inspect.signature(function).parameters
        for argument in (item.strip() for item in arguments.split(",")):
            key, _, default = argument.partition("=")
            if not default or not key.isidentifier():
                continue
            assert key in parameters, f"{name} takes no {key}"
            assert parameters[key].default == eval(default), (name, argument)
            checked += 1
    assert checked > 20
