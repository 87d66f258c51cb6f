"""Public names: all exist, and none is also a module."""

from pathlib import Path

import pytest

import downset as ds


def test_no_public_name_is_also_a_file_or_folder():
    """An import of a submodule binds its name in the package: a function of that name would be lost."""
    parts = {path.stem for path in Path(ds.__file__).parent.iterdir()}
    assert {"graph", "formats", "cli"} <= parts
    assert not parts & set(ds.__all__)


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
