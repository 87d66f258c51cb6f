"""Sizes that a file leaves open: the user is asked for each, by its name, and none is proposed."""

import onnx
import pytest

from downset.errors import LoadError
from downset.formats.open_sizes import sizes_wanted
from downset.formats.reading import load
from tests.command import typed


def test_every_open_axis_is_named_and_none_gets_a_size():
    said = sizes_wanted({"image": ["batch", 3, "height", ""], "mask": ["batch", 1]})
    assert "N = axis 0 of 'image' (batch), axis 0 of 'mask' (batch); " in said
    assert "M = axis 2 of 'image' (height); K = axis 3 of 'image'; " in said
    assert "add --shape image=N,3,M,K --shape mask=N,1 with numbers in place of letters" in typed(said)
    assert "add shapes={'image': ('N', 3, 'M', 'K'), 'mask': ('N', 1)} with numbers" in said


def test_axes_without_names_are_apart_and_axes_may_be_unknown():
    said = sizes_wanted({"a": [""], "b": [""], "c": None})
    assert "N = axis 0 of 'a'; M = axis 0 of 'b'; how many axes 'c' has, and their sizes; " in said
    assert "--shape a=N --shape b=M --shape c=N,..." in typed(said)


@pytest.mark.parametrize("unnamed", ["?", "", "-1", "*"])
def test_axes_whose_name_is_none_are_apart(unnamed):
    said = sizes_wanted({"x": ["N", 3, unnamed, unnamed], "y": [unnamed]})
    assert "N = axis 0 of 'x' (N); M = axis 2 of 'x'; K = axis 3 of 'x'; L = axis 0 of 'y'; " in said
    assert "--shape x=N,3,M,K --shape y=L" in typed(said)


def test_letters_do_not_run_out():
    said = sizes_wanted({"x": [""] * 40})
    letters = typed(said).split("--shape x=")[1].split(" ")[0].split(",")
    assert len(set(letters)) == 40


@pytest.mark.parametrize("described", [True, False])
def test_a_file_says_how_its_axes_are_called(tmp_path, described):
    shape = ["batch", 4] if described else None
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    made = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, shape)
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [made])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "m.onnx")
    wanted = r"N = axis 0 of 'x' \(batch\); add shapes={'x': \('N', 4\)}" if described else "how many axes 'x' has"
    with pytest.raises(LoadError, match=wanted):
        load(tmp_path / "m.onnx")


def test_letters_that_are_left_in_are_no_sizes(fails, tmp_path):
    fails(2, "order", tmp_path / "m.onnx", "--shape", "audio=1,N", says="every size is a whole number above 0")
