"""The public names: all exist, none is also a module, types and run time list the same, and a wheel has them."""

import ast
import importlib
import inspect
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import downset as ds

ROOT = Path(__file__).resolve().parents[1]
STUB = ROOT / "src" / "downset" / "__init__.pyi"


def test_no_public_name_is_also_a_file_or_folder():
    """An import of a submodule binds its name in the package: a function of that name would be lost."""
    parts = {path.stem for path in Path(ds.__file__).parent.iterdir()}
    assert {"graph", "formats", "cli"} <= parts
    assert not parts & set(ds.__all__)


def test_all_of_them_exist_and_others_do_not():
    assert set(ds.__all__) == set(dir(ds))
    with pytest.raises(AttributeError, match="no attribute 'plan_everything'"):
        getattr(ds, "plan_everything")  # noqa: B009 (the name is public or is not)


def test_types_and_run_time_list_the_same_names_of_the_same_modules():
    tree = ast.parse(STUB.read_text())
    stated = {
        alias.asname: node.module
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name  # only `import x as x` is handed on by a stub
    }
    assert stated == {name: f"downset.{module}" for name, module in ds._HOME.items()}
    (listed,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    assert sorted(listed) == ds.__all__
    for name, module in stated.items():
        home = importlib.import_module(module)
        assert name in home.__all__, f"{name} is not public where it is defined"
        assert getattr(ds, name) is getattr(home, name)


def test_every_public_name_says_what_it_is():
    for name in ds.__all__:
        value = getattr(ds, name)
        if inspect.isfunction(value) or inspect.isclass(value):
            said = inspect.getdoc(value) or ""
            assert said[:1].isalpha() or said[:1] == "`", name
            assert not said.startswith(f"{name}("), f"{name} has no docstring of its own"


def test_a_wheel_ships_the_types(tmp_path):
    """Built without compiling: what is written in Python is the same."""
    build = (
        "import sys; from scikit_build_core.build import build_wheel;"
        f"print(build_wheel({str(tmp_path)!r}, {{'wheel.cmake': 'false'}}))"
    )
    subprocess.run([sys.executable, "-c", build], cwd=ROOT, check=True, capture_output=True, text=True)
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    assert {"downset/__init__.pyi", "downset/py.typed", "downset/clusters/pico_1mac.toml"} <= held


def test_a_memory_model_of_ones_own():
    from dataclasses import replace

    own = replace(ds.MEMORY_MODELS["live"], name="mine", alignment=128)
    tensors = tuple(ds.Tensor(name, (10,), "uint8", 10) for name in "xyz")
    graph = ds.Graph("chain", tensors, (ds.Op("A", "Relu", (0,), (1,)), ds.Op("B", "Relu", (1,), (2,))), (0,), (2,))
    order = ds.plan_order(graph, memory=own)
    arena = ds.plan_arena(graph, order.steps, memory=own)
    assert (order.peak_bytes, arena.arena_bytes, arena.memory) == (256, 256, "mine")
