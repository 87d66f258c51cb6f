"""What is used of Ray beyond its public interface: in one file, and told where a Ray lacks it."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from downset.distributed.serving import ray_private
from downset.errors import UnsupportedError

ray = pytest.importorskip("ray")
SOURCES = Path(ray_private.__file__).parents[1]


def test_private_names_of_ray_are_in_one_file():
    """Modules of Ray below `_private` or `_raylet`, and attributes that begin with an underscore of what Ray gives."""
    found = {}
    for path in SOURCES.rglob("*.py"):
        names = {
            node.value
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and re.fullmatch(r"ray(\.\w+)+", node.value)
        }
        if private := {name for name in names if "._" in name}:
            found[path.name] = private
    assert set(found) == {"ray_private.py"}
    assert found["ray_private.py"] == {"ray._raylet", "ray._private.worker", "ray._private.services"}


def test_this_ray_has_them():
    ray_private.check()


@pytest.mark.parametrize("missing", [(module, name) for module, own in ray_private._PRIVATE.items() for name in own])
def test_a_ray_without_one_of_them_is_told_in_one_line(missing):
    """`job_without_paths` uses an attribute of JobConfig, which the last test has."""
    modules = {}
    for module, names in ray_private._PRIVATE.items():
        modules[module] = SimpleNamespace()
        for name in names:
            inner, _, last = name.rpartition(".")
            owner = modules[module]
            for part in filter(None, inner.split(".")):
                owner.__dict__.setdefault(part, SimpleNamespace())
                owner = getattr(owner, part)
            if (module, name) != missing:
                setattr(owner, last, object())
    with pytest.raises(UnsupportedError, match=re.escape(".".join(missing))) as told:
        ray_private.check(modules)
    assert ray.__version__ in str(told.value) and "\n" not in str(told.value)


def test_a_job_names_no_folder_of_the_driver():
    job = ray_private.job_without_paths()
    job._py_driver_sys_path.extend(["/somewhere"])
    assert list(job._get_proto_job_config().py_driver_sys_path) == []
