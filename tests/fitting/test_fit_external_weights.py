"""`fit` of models whose weights lie in files next to them: measured, verified and shipped as any other."""

import errno
import filecmp
import os
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from downset.errors import LoadError, UsageError
from downset.fitting.fit import fit
from downset.formats.onnx.data_files import external_files
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.mapped import align, write_mapped
from downset.runtimes import ort
from tests.fitting.test_fit_rewrite import WITHIN
from tests.models import branchy_model, constant
from tests.rewrites.test_rewrite_onnx import Net


@pytest.fixture
def net(tmp_path):
    """A network that pays to rewrite, with its weights inside, and the same with its weights outside."""
    made = Net()
    x = made.input(2)
    y = made.conv(made.concat([made.conv(x, 8) for _ in range(5)]), 4)
    inside = made.save(tmp_path / "inside.onnx", [made.conv(y, 2)], size=16)
    return inside, outside(inside, tmp_path / "outside.onnx")


def outside(inside, path):
    model = onnx.load(str(inside))
    onnx.save(model, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    return path


def equal_runs(one, other):
    for ours, original in zip(ort.run(one), ort.run(other), strict=True):
        np.testing.assert_allclose(ours, original, rtol=1e-5, atol=1e-4)


def test_the_same_is_shipped_with_weights_inside_and_outside(net, tmp_path):
    (tmp_path / "out").mkdir()
    results = []
    for place in (tmp_path, tmp_path / "out"):
        results = [fit(path, output=place / f"f_{path.name}", time_limit_s=2, **WITHIN) for path in net]
        inside, external = results
        assert inside.shipped == external.shipped == "rewritten"
        assert inside.arena == external.arena
        runs = [result.measured.details["rewritten"]["run_bytes"] for result in results]
        assert runs[0] == runs[1] == inside.arena.after
        assert external.outputs.runtime == "ort"
        equal_runs(place / "f_outside.onnx", net[0])
        assert external_files(place / "f_outside.onnx") == ["w.bin"]
        assert external_files(place / "f_inside.onnx") == []
    assert filecmp.cmp(tmp_path / "w.bin", tmp_path / "out" / "w.bin", shallow=False)


def test_in_another_order_without_rewriting_it_is_compared_too(net, tmp_path):
    result = fit(net[1], output=tmp_path / "f.onnx", target="torch", rewrite="off", time_limit_s=2)
    assert result.outputs.equal
    result = fit(net[1], output=tmp_path / "f.onnx", rewrite="off", time_limit_s=2)
    assert result.outputs.equal
    assert result.measured is not None
    equal_runs(tmp_path / "f.onnx", net[0])


def test_other_weights_of_that_name_are_left_alone(net, tmp_path):
    """The file written would read them as its own."""
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "w.bin").write_bytes(b"something else")
    with pytest.raises(UsageError, match="holds something else"):
        fit(net[1], output=folder / "f.onnx", time_limit_s=2)
    assert [path.name for path in folder.iterdir()] == ["w.bin"]
    (folder / "w.bin").write_bytes((tmp_path / "w.bin").read_bytes())
    fit(net[1], output=folder / "f.onnx", time_limit_s=2)
    equal_runs(folder / "f.onnx", net[0])


@pytest.mark.parametrize("target", ["ort", "torch"])
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path: os.truncate(path, 40), r"outside.onnx: the weights '\w+' end outside w.bin, which has 40 bytes"),
        (Path.unlink, r"outside.onnx: its weights in w.bin cannot be read: No such file or directory"),
    ],
)
def test_weights_that_are_missing_or_cut_short_are_one_line_of_ours_and_no_file(net, tmp_path, target, damage, said):
    damage(tmp_path / "w.bin")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(LoadError) as refused:
        fit(net[1], output=tmp_path / "f.onnx", target=target, time_limit_s=2)
    assert re.fullmatch(f".*{said}", str(refused.value))
    assert sorted(tmp_path.iterdir()) == before


def test_a_temporary_folder_that_is_full_is_named_and_not_the_weights(net, tmp_path, monkeypatch):
    def full(original, link):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(original))

    def elsewhere(original, link):
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(os, "link", elsewhere)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(UsageError, match=r"cannot write \S+/w.bin: No space left on device; TMPDIR"):
        fit(net[1], output=tmp_path / "f.onnx", time_limit_s=2)


def test_the_output_never_takes_the_place_of_the_weights(tmp_path):
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.onnx", size_threshold=0)
    before = (tmp_path / "w.onnx").read_bytes()
    with pytest.raises(UsageError, match="is the file being read"):
        fit(tmp_path / "m.onnx", output=tmp_path / "w.onnx", time_limit_s=2)
    assert (tmp_path / "w.onnx").read_bytes() == before


def test_no_file_beside_the_output_takes_the_place_of_the_weights(tmp_path):
    """The weights of a form that is mapped get the output's name and `.data`. A second name of a file that is read is
    another matter: it is replaced, and what is read stays."""
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="f.onnx.data", size_threshold=0)
    before = (tmp_path / "f.onnx.data").read_bytes()
    with pytest.raises(UsageError, match=r"may get its weights in \S*f.onnx.data, which is being read"):
        fit(tmp_path / "m.onnx", output=tmp_path / "f.onnx", time_limit_s=2)
    with pytest.raises(UsageError, match="which is being read"):
        write_mapped(tmp_path / "m.onnx", read_skeleton(tmp_path / "m.onnx"), tmp_path / "f.onnx")
    assert (tmp_path / "f.onnx.data").read_bytes() == before
    assert not (tmp_path / "f.onnx").exists()
    os.link(tmp_path / "f.onnx.data", tmp_path / "g.onnx.data")
    write_mapped(tmp_path / "m.onnx", read_skeleton(tmp_path / "m.onnx"), tmp_path / "g.onnx")
    equal_runs(tmp_path / "g.onnx", tmp_path / "m.onnx")
    assert (tmp_path / "f.onnx.data").read_bytes() == before


@pytest.mark.parametrize(
    ("output", "session"),
    [("f.onnx", "w.onnx"), ("f.onnx", "f.onnx.data"), ("b/f.onnx", "b/w.onnx"), ("b/w.onnx", None)],
    ids=["weights read", "weights written", "weights copied", "output over its own"],
)
def test_neither_output_nor_program_takes_the_name_of_weights(output, session, tmp_path):
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.onnx", size_threshold=0)
    (tmp_path / "b").mkdir()
    before = (tmp_path / "w.onnx").read_bytes()
    program = None if session is None else tmp_path / session
    with pytest.raises(UsageError, match=r"is the file being read|the name of (the )?weights that are written next to"):
        fit(tmp_path / "m.onnx", output=tmp_path / output, session=program, time_limit_s=2)
    assert (tmp_path / "w.onnx").read_bytes() == before
    assert not list((tmp_path / "b").iterdir()) and not (tmp_path / "f.onnx").exists()


def test_weights_that_have_another_name_are_never_appended_to(tmp_path):
    """Of two files that a form refers to, the larger one may be the user's own, under a second name."""
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    onnx.save(model, str(tmp_path / "m.onnx"), save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "form").mkdir()
    with (tmp_path / "w.bin").open("ab") as file:
        file.write(bytes(1 << 16))
    before = (tmp_path / "w.bin").read_bytes()
    os.link(tmp_path / "w.bin", tmp_path / "form" / "w.bin")
    align(tmp_path / "form" / "m.onnx", read_skeleton(tmp_path / "m.onnx"), tmp_path / "form" / "a.onnx")
    assert (tmp_path / "w.bin").read_bytes() == before
    equal_runs(tmp_path / "form" / "a.onnx", tmp_path / "m.onnx")


def test_weights_of_a_body_lie_beside_the_file_as_well(tmp_path):
    body = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y_then"])],
        "then",
        [],
        [helper.make_tensor_value_info("y_then", TensorProto.FLOAT, [4])],
        [constant("w", np.arange(4, dtype=np.float32))],
    )
    other = helper.make_graph([], "else", [], [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])])
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [4]),
    ]
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=other)]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path / "m.onnx"
    for location, beside in (("w.bin", True), ("../w.bin", False)):
        branch = next(item.g for item in model.graph.node[0].attribute if item.name == "then_branch")
        weight = branch.initializer[0]
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        del weight.external_data[:]
        weight.external_data.add(key="location", value=location)
        path.write_bytes(model.SerializeToString())
        (tmp_path / "w.bin").write_bytes(np.arange(4, dtype=np.float32).tobytes())
        if beside:
            assert external_files(path) == ["w.bin"]
        else:
            with pytest.raises(LoadError, match="not beside the file"):
                fit(path, time_limit_s=2)


def test_weights_of_more_than_two_gigabytes(tmp_path):
    """More than a file of protobuf may hold. The table is sparse on the disk; a run reads few rows."""
    rows, columns = 1_100_000, 512
    table = TensorProto(name="table", data_type=TensorProto.FLOAT, dims=[rows, columns])
    table.data_location = TensorProto.EXTERNAL
    for key, value in (("location", "table.bin"), ("offset", "0"), ("length", str(4 * rows * columns))):
        table.external_data.add(key=key, value=value)
    with (tmp_path / "table.bin").open("wb") as file:
        file.truncate(4 * rows * columns)
        file.seek(4 * columns)  # of the row 1
        file.write(np.arange(columns, dtype=np.float32).tobytes())
    parts = [f"part{number}" for number in range(4)]
    nodes = [helper.make_node("Gather", ["table", "ids"], ["embedded"], name="embed")]
    for number, part in enumerate(parts):
        nodes.append(helper.make_node("Concat", ["embedded"] * (number + 2), [part], name=part, axis=1))
    # the file makes all that is wide before anything narrow
    nodes += [helper.make_node("ReduceMax", [part], [f"{part}/max"], name=f"{part}/max", axes=[1]) for part in parts]
    nodes.append(helper.make_node("Sum", [f"{part}/max" for part in parts], ["y"], name="sum"))
    graph = helper.make_graph(
        nodes,
        "embedding",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [16, 1])],
        [table],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "m.onnx")
    limit = 8 << 20  # the arena decides: what an order gains is little of a process that maps two gigabytes
    result = fit(tmp_path / "m.onnx", output=tmp_path / "f.onnx", time_limit_s=2, arena_bytes=limit)
    assert result.shipped == "order"
    assert result.outputs.equal
    assert result.arena.after < result.arena.before
    assert external_files(tmp_path / "f.onnx") == ["table.bin"]
    assert ort.run(tmp_path / "f.onnx")[0].max() == 4 * (columns - 1)
