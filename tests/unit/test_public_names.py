"""The public names are what they are whatever was imported before."""

import subprocess
import sys

import pytest

import downset as ds

CHECK = """
import types
import downset as ds
for name in ds.__all__:
    assert not isinstance(getattr(ds, name), types.ModuleType), name
"""


@pytest.mark.parametrize(
    "before",
    ["", "import downset.load", "from downset.verify import verify", "import downset.fit, downset.export.onnx"],
)
def test_public_names_are_never_modules(before):
    done = subprocess.run([sys.executable, "-c", before + CHECK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_all_of_them_exist_and_others_do_not():
    assert set(ds.__all__) == set(dir(ds))
    with pytest.raises(AttributeError, match="no attribute 'plan_everything'"):
        getattr(ds, "plan_everything")  # noqa: B009 (the name is public or is not)


def test_a_memory_model_of_ones_own():
    from dataclasses import replace

    own = replace(ds.MEMORY_MODELS["live"], name="mine", alignment=128)
    tensors = tuple(ds.Tensor(name, (10,), "uint8", 10) for name in "xyz")
    graph = ds.Graph("chain", tensors, (ds.Op("A", "Relu", (0,), (1,)), ds.Op("B", "Relu", (1,), (2,))), (0,), (2,))
    order = ds.plan_order(graph, memory=own)
    arena = ds.plan_arena(graph, order.steps, memory=own)
    assert (order.peak_bytes, arena.arena_bytes, arena.memory) == (256, 256, "mine")
