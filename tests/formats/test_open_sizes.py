"""Sizes that a file leaves open: each is given once, a batch is 1 unless it is given, and no other size is assumed."""

import json
import shlex
from itertools import chain

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.commands.group import COMMANDS as NAMES_OF_COMMANDS
from downset.commands.options import parse_dims
from downset.commands.wording import command_named
from downset.errors import LoadError, UsageError
from downset.formats.open_sizes import settled
from downset.formats.reading import load, open_sizes
from downset.runtimes.compare import compare
from tests.command import output_of, typed
from tests.models import branchy_model

NAMELESS = ("", "?", "-1", "*")
NAMES = ("batch", "N", "height", "unk__214", "p2o.DynamicDimension.1", "seq len", "s0", "Größe")


def wanted(inputs, shapes=(), dims=()):
    """The error for the sizes that these inputs leave open; "" if there is none."""
    try:
        settled(inputs, dict(shapes), dict(dims)).check()
    except LoadError as error:
        return error.message
    return ""


def assumed(*inputs):
    """The sizes that count as a batch."""
    sizes = settled({"xyz"[number]: axes for number, axes in enumerate(inputs)}, {}).sizes
    return [one.name for one in sizes if one.assumed]


def model(path, inputs):
    """A file in which an operator reads each input. An open axis is a text, or -1 as some exporters write it; None for
    an input that states no axes."""
    helper, values, nodes = onnx.helper, [], []
    for name, axes in inputs.items():
        value = helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, axes)
        for dim, size in zip(value.type.tensor_type.shape.dim, axes or (), strict=True):
            if size == "":
                dim.Clear()
        values.append(value)
        nodes.append(helper.make_node("Relu", [name], [f"of {name}"]))
    outputs = [helper.make_tensor_value_info(f"of {name}", onnx.TensorProto.FLOAT, None) for name in inputs]
    opset = [helper.make_opsetid("", 17)]
    onnx.save(
        helper.make_model(helper.make_graph(nodes, "g", values, outputs), opset_imports=opset, ir_version=8), path
    )
    return path


@given(st.data())
def test_a_size_for_each_name_gives_the_graph_that_whole_shapes_give(tmp_path_factory, data):
    symbol = st.one_of(st.integers(1, 4), st.sampled_from((*NAMES, *NAMELESS, -1)))
    axes = data.draw(st.lists(st.lists(symbol, max_size=4), min_size=1, max_size=3))
    inputs = {f"in {number}": one for number, one in enumerate(axes)}
    path = model(tmp_path_factory.mktemp("open") / "m.onnx", inputs)
    dims, shapes = {}, {}
    for name, symbols in inputs.items():
        sizes = []
        for axis, size in enumerate(symbols):
            key = size if size in NAMES else f"{name}[{axis}]"
            is_open = isinstance(size, str) or size < 0
            sizes.append(dims.setdefault(key, data.draw(st.integers(1, 5))) if is_open else size)
        shapes[name] = tuple(sizes)
    by_place = {f"{name}[{axis}]": shapes[name][axis] for name in inputs for axis in range(len(shapes[name]))}
    words = shlex.split(" ".join(f"--dim {shlex.quote(f'{key}={size}')}" for key, size in dims.items()))[1::2]
    assert parse_dims(words) == dims
    one, *others = (load(path, shapes=shapes), load(path, dims=dims), load(path, dims=by_place))
    for other in others:
        assert (one.tensors, one.ops, one.inputs, one.outputs) == (
            other.tensors,
            other.ops,
            other.inputs,
            other.outputs,
        )
    left_out = {key: size for key, size in dims.items() if size != 1}  # what is left out is asked for, or is a batch
    sizes = open_sizes(path, dims=left_out)
    batches = {one.name for one in sizes.sizes if one.assumed}
    assert {one.name for one in sizes.missing} == set(dims) - set(left_out) - batches
    assert sizes.known is not bool(sizes.missing) and all(one.name in sizes.wanted for one in sizes.missing)
    if sizes.known:
        assert load(path, dims=left_out).tensors == one.tensors


@pytest.mark.parametrize("name", ["batch", "batch_size", "Batch", "N", "b", "unk__214", "p2o.DynamicDimension.0", "s0"])
@pytest.mark.parametrize("nameless", [False, True])
def test_a_first_axis_is_a_batch(name, nameless):
    name = NAMELESS[len(name) % len(NAMELESS)] if nameless else name
    called = "x[0]" if nameless else name
    assert assumed([name, 3]) == [called] and assumed([name, 3, "height"]) == [called]


@pytest.mark.parametrize(
    "inputs",
    [
        (["seq"],),
        (["time", 80],),
        (["length"],),
        (["N"],),  # the only axis of all
        (["?"],),
        (["unk__1"],),
        (["N", "N"],),
        (["batch", "batch"],),
        (["N", 3], [3, "N"]),
        ([1, "N"],),
        ([1, "?"],),
        (["frames", 3, 8, 8],),
        (["s", 3],),
        (["seq + 1", 3], ["seq", 3]),
    ],
)
def test_a_first_axis_that_is_something_else_is_asked_for(inputs):
    assert assumed(*inputs) == []
    assert "sizes are left open: " in wanted({"xyz"[number]: axes for number, axes in enumerate(inputs)})


def test_a_batch_may_stand_behind_other_axes_where_its_name_says_so():
    assert assumed(["batch", "samples"], [2, "batch", 128]) == ["batch"] and assumed([2, "batch_size", 8]) == [
        "batch_size"
    ]


def test_a_batch_is_told_in_one_line():
    note = settled({"image": ["batch", 3], "mask": ["batch", 1], "y": ["?", 2]}, {}).note
    places = "the batch is 1: batch (axis 0 of 'image', axis 0 of 'mask'), axis 0 of 'y'; "
    assert note == places + "dims={'batch': 2, 'y[0]': 2} makes it 2"
    assert typed(note) == places + "--dim batch=2 --dim 'y[0]=2' makes it 2"
    assert settled({"image": ["batch", 3]}, {}, {"batch": 1}).note == ""
    assert settled({"image": ["batch", 3]}, {"image": (1, 3)}).note == ""


def test_the_error_lists_every_size_once_with_its_places_and_words_to_copy():
    said = wanted({"image": ["batch", 3, "height", ""], "mask": ["batch", "height"], "c": None})
    assert "left open: height (axis 2 of 'image', axis 1 of 'mask'), axis 3 of 'image', how many axes 'c' has" in said
    assert "add for example --dim height=64 --dim 'image[3]=64' --shape c=1,64, with" in typed(said)
    assert "dims={'height': 64, 'image[3]': 64} shapes={'c': (1, 64)}" in said


@pytest.mark.parametrize("nameless", NAMELESS)
def test_axes_whose_name_is_none_are_apart(nameless):
    inputs = {"x": ["frames", 3, nameless, nameless], "y": [nameless]}
    assert "frames (axis 0 of 'x'), axis 2 of 'x', axis 3 of 'x', axis 0 of 'y': add" in wanted(inputs)
    dims = {"frames": 2, "x[2]": 5, "x[3]": 6, "y[0]": 7}
    assert settled(inputs, {}, dims).shapes == {"x": (2, 3, 5, 6), "y": (7,)}


def test_many_open_sizes_are_one_line():
    said = wanted({"x": [""] * 40})
    assert "\n" not in said and len(set(typed(said).split("--dim "))) == 41  # axis 0 is the batch; the last is all


@pytest.mark.parametrize(
    ("dims", "says"),
    [
        ({"height": 0}, "--dim height=0: a size is a whole number above 0 and below 2**48"),
        ({"height": -3}, "--dim height=-3: a size is a whole number above 0 and below 2**48"),
        ({"height": 2.5}, "--dim height=2.5: a size is a whole number above 0 and below 2**48"),
        ({"height": 1 << 48}, "--dim height=281474976710656: a size is a whole number above 0 and below 2**48"),
        ({"width": 4}, "--dim width=4 is not one of the open sizes: batch, height, x[3]"),
        ({"x[4]": 4}, "--dim 'x[4]=4' is not one of the open sizes: batch, height, x[3]"),
        ({"x[1]": 4}, "--dim 'x[1]=4' is another size than the 3 that the file fixes"),
        ({"height": 4, "x[2]": 5}, "--dim 'x[2]=5' contradicts --dim height=4"),
    ],
)
def test_sizes_that_do_not_fit_are_one_line(dims, says):
    with pytest.raises(UsageError) as error:
        settled({"x": ["batch", 3, "height", "?"]}, {}, dims)
    assert typed(error.value.message) == says
    assert settled({"x": ["batch", 3, "height", "?"]}, {}, {"x[1]": 3}).missing


def test_sizes_may_not_contradict_a_shape():
    inputs = {"x": ["batch", "height"], "y": ["batch", "height"]}
    with pytest.raises(UsageError) as error:
        settled(inputs, {"x": (1, 8)}, {"height": 9})
    assert typed(error.value.message) == "--dim height=9 contradicts --shape, which gives axis 1 of 'x' the size 8"
    assert settled(inputs, {"x": (1, 8)}, {"height": 8}).shapes["y"] == (1, 8)  # one shape gives the names in others
    assert settled(inputs, {"x": (4, 8)}).shapes["y"] == (4, 8)
    assert settled(inputs, {"x": (1, 8), "y": (2, 9)}).shapes == {"x": (1, 8), "y": (2, 9)}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("past + new", 9),
        ("past+new", 9),
        ("2*past - 1", 9),
        ("floor(past/2 - 1/2) + 1", 3),
        ("max(past, new) % 3", 2),
        ("-(-past // 2)", 3),
    ],
)
def test_a_name_that_is_arithmetic_follows_from_others(name, size):
    inputs = {"x": [1, "new"], "cache": [1, "past"], "mask": [1, name]}
    assert [one.name for one in settled(inputs, {}).missing] == ["new", "past"]
    assert settled(inputs, {}, {"new": 4, "past": 5}).shapes["mask"] == (1, size)


@pytest.mark.parametrize("name", ["past - new", "past/2", "past % 5"])
def test_arithmetic_that_gives_no_size_is_one_line(name):
    inputs = {"x": [1, "new"], "cache": [1, "past"], "mask": [1, name]}
    said = wanted(inputs, dims={"new": 7, "past": 5})
    assert said == f"{name} (axis 1 of 'mask') is not a whole number above 0 with the sizes given: change dims"


def test_arithmetic_that_contradicts_what_is_given_is_one_line():
    inputs = {"x": [1, "new"], "cache": [1, "past"], "mask": [1, "past + new"]}
    assert settled(inputs, {}, {"past + new": 9}).sizes[2].size == 9
    with pytest.raises(UsageError) as error:
        settled(inputs, {}, {"past + new": 8, "past": 5, "new": 4})
    assert typed(error.value.message).endswith(
        "'past + new=8' contradicts the sizes that its name is made of, which give 9"
    )


@pytest.mark.parametrize("name", ["batch-size", "past + other", "open('x')", "past ** 9", "(" * 300, "past.real", "+"])
def test_a_name_that_only_looks_like_arithmetic_is_a_name(name):
    inputs = {"cache": [1, "past"], "mask": [1, 2, name]}
    sizes = settled(inputs, {}, {"past": 5})
    assert sizes.shapes.get("mask", (0, 0, 0))[2] <= 1 and all(one.size in (None, 1, 5) for one in sizes.sizes)


def test_letters_and_digits_that_are_no_sizes_are_usage_errors(fails, tmp_path):
    fails(2, "order", tmp_path / "m.onnx", "--shape", "audio=1,N", says="every size is a whole number above 0")
    for item in ("N", "N=", "=3", "N=0", "N=-1", "N=2.5", "N=x", "N=" + "9" * 30):
        fails(
            2,
            "order",
            tmp_path / "m.onnx",
            "--dim",
            item,
            says="is not NAME=64: a size is a whole number above 0 and below 2**48",
        )
    twice = ("--dim", "N=3", "--dim", "N=4")
    fails(2, "order", tmp_path / "m.onnx", *twice, says="--dim 'N=4' contradicts --dim N=3")


COMMANDS = {
    "fit": (),
    "order": (),
    "split": ("--cluster", "rpi_8"),
    "stage": ("--no-profiles",),
}


@pytest.mark.parametrize(("command", "options"), COMMANDS.items())
def test_every_command_that_reads_a_model_asks_and_refuses_alike(fails, tmp_path, command, options):
    path = model(tmp_path / "m.onnx", {"x": ["batch", 3, "height", "?"]})
    fails(5, command, path, *options, says="add for example --dim height=64 --dim 'x[3]=64'")
    fails(5, command, path, *options, "--dim", "height=8", says="sizes are left open: axis 3 of 'x': add")
    for dims, says in (
        (("width=8",), "is not one of the open sizes"),
        (("x[1]=8",), "another size than the 3"),
        (("height=8", "x[2]=9"), "--dim 'x[2]=9' contradicts --dim height=8"),
    ):
        given_ones = chain.from_iterable(("--dim", dim) for dim in dims)
        fails(2, command, path, *options, *given_ones, says=says)
    both = ("--shape", "x=1,3,8,8", "--dim", "height=9")
    fails(2, command, path, *options, *both, says="--dim height=9 contradicts --shape")


def inspected(*arguments):
    return json.loads(output_of("inspect", *arguments, "--json"))


def test_a_network_is_inspected_while_sizes_are_open(tmp_path):
    path = model(tmp_path / "m.onnx", {"x": ["batch", 3, "height", "?"], "c": None})
    screen = output_of("inspect", path)
    assert "need sizes that the file leaves open: height (axis 2 of 'x'), axis 3 of 'x', how many axes 'c'" in screen
    assert "--dim height=64 --dim 'x[3]=64' --shape c=1,64" in screen and "[batch, 3, height, ?]" in screen
    assert "live bytes │" not in screen and "Relu_0" in screen
    left = inspected(path)
    assert left["inputs"] == [{"name": "x", "shape": ["batch", 3, "height", "?"]}, {"name": "c", "shape": None}]
    assert left["open_sizes"] == [
        {"name": "batch", "size": 1, "places": [{"input": "x", "axis": 0}]},
        {"name": "height", "size": None, "places": [{"input": "x", "axis": 2}]},
        {"name": "x[3]", "size": None, "places": [{"input": "x", "axis": 3}]},
    ]
    assert (left["peak_bytes"], left["activation_bytes"]) == (None, None)
    sizes = ("--dim", "height=8", "--dim", "x[3]=9", "--shape", "c=2")
    given_all = inspected(path, *sizes)
    assert [one["size"] for one in given_all["open_sizes"]] == [1, 8, 9] and given_all["peak_bytes"] > 0
    depends = {"inputs", "outputs", "open_sizes", "peak_bytes", "activation_bytes", "steps", "note"}
    assert {key: left[key] for key in left.keys() - depends} == {key: given_all[key] for key in left.keys() - depends}
    named = [[{**step, "live_bytes": 0} for step in one["steps"]] for one in (left, given_all)]
    assert named[0] == named[1]


def test_what_does_not_depend_on_sizes_is_the_same_before_they_are_given(tmp_path):
    """A network with weights, a constant and several branches, whose batch is left open and then not."""
    path = branchy_model(tmp_path / "m.onnx", open_batch=True)
    whole = onnx.load(str(path))
    whole.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "frames"
    onnx.save(whole, str(path))
    left, given_all = inspected(path), inspected(path, "--dim", "frames=1")
    for key in ("operators", "tensors", "weight_bytes", "width", "downsets"):
        assert left[key] == given_all[key]
    assert left["weight_bytes"] > 0 and left["width"] > 1


def test_a_network_is_inspected_whose_shapes_depend_on_values(tmp_path):
    helper = onnx.helper
    nodes = [helper.make_node("NonZero", ["x"], ["i"]), helper.make_node("Transpose", ["i"], ["y"])]
    value, result = (helper.make_tensor_value_info(name, 1, axes) for name, axes in (("x", [1, 3]), ("y", None)))
    onnx.save(helper.make_model(helper.make_graph(nodes, "g", [value], [result])), tmp_path / "m.onnx")
    screen = output_of("inspect", tmp_path / "m.onnx")
    assert "the peak and live bytes are not known: " in screen and "depends on values" in screen
    printed = inspected(tmp_path / "m.onnx")
    assert printed["peak_bytes"] is None and [step["kind"] for step in printed["steps"]] == ["NonZero", "Transpose"]
    assert printed["outputs"] == [{"name": "y", "shape": None}]


def test_verify_takes_a_size_that_one_file_leaves_open_from_the_other(tmp_path, fails):
    opened = model(tmp_path / "open.onnx", {"x": ["batch", 3, "height", "?"], "y": ["batch", 2]})
    fixed = model(tmp_path / "fixed.onnx", {"x": [2, 3, 8, 9], "y": [2, 2]})
    other = model(tmp_path / "other.onnx", {"x": ["batch", 3, "height", 9], "y": [2, 2]})
    for first, second in ((opened, fixed), (fixed, opened), (opened, opened)):
        compared = compare(first, second, dims={"height": 8, "x[3]": 9} if second == opened == first else None)
        assert compared.equal and compared.runs > 0 and compared.proven == (first == second)
        assert bool(compared.assumed) == (first == second)
    assert compare(opened, other, dims={"height": 4}).equal
    fails(5, "verify", opened, other, says="left open: height (axis 2 of 'x'): add for example --dim height=64")
    fails(2, "verify", opened, other, "--dim", "width=4", says="is not one of the open sizes")
    wider = model(tmp_path / "wider.onnx", {"x": [2, 3, 8, 9], "y": [2, 2], "z": [1]})
    assert "input 'z'" in compare(opened, wider).note


@pytest.mark.parametrize("described", [True, False])
def test_a_file_says_how_its_axes_are_called(tmp_path, described):
    path = model(tmp_path / "m.onnx", {"x": ["frames", 4] if described else None})
    with pytest.raises(LoadError, match=r"frames \(axis 0 of 'x'\)" if described else "how many axes 'x' has"):
        load(path)


def test_every_command_that_takes_shapes_takes_single_sizes():
    taking = {name: {one.name for one in command_named(name).params} for name in NAMES_OF_COMMANDS if name != "keys"}
    assert (
        {name for name, taken in taking.items() if "shapes" in taken}
        == {name for name, taken in taking.items() if "dims" in taken}
        >= {*COMMANDS, "inspect", "verify", "run", "serve", "simulate", "profile-cluster"}
    )


def test_formats_with_fixed_sizes_take_none(fails, tmp_path):
    (tmp_path / "g.json").write_text('{"tensors": [{"size": 1}], "ops": [], "inputs": [0], "outputs": [0]}')
    fails(2, "order", tmp_path / "g.json", "--dim", "N=1", says="--dim is for .onnx and .tflite")
    fixed = model(tmp_path / "m.onnx", {"x": [1, 4]})
    fails(2, "order", fixed, "--dim", "N=1", says="is not one of the open sizes: the file has none")


@given(st.data())
def test_one_size_for_all_others_is_that_of_each_name(data):
    """`*` is the same as every missing name with this size; what is given, assumed or derived stays."""
    symbol = st.one_of(st.integers(1, 4), st.sampled_from((*NAMES, *NAMELESS, "height + 1")))
    axes = data.draw(st.lists(st.lists(symbol, max_size=4), min_size=1, max_size=3))
    inputs = {f"in {number}": one for number, one in enumerate(axes)}
    missing = [one.name for one in settled(inputs, {}).missing]
    named = {name: data.draw(st.integers(1, 9)) for name in missing if data.draw(st.booleans())}
    size = data.draw(st.integers(1, 9))
    left = dict.fromkeys((one.name for one in settled(inputs, {}, named).missing), size)
    if left:
        assert settled(inputs, {}, {**named, "*": size}) == settled(inputs, {}, {**named, **left})
    else:
        with pytest.raises(UsageError, match="no open size is left"):
            settled(inputs, {}, {**named, "*": size})


@pytest.mark.parametrize("size", [0, -1, True, 1 << 48, 2.0])
def test_what_is_no_size_is_none_for_all_others_either(size):
    with pytest.raises(UsageError, match="a size is a whole number"):
        settled({"x": ["h", "w"]}, {}, {"*": size})


def test_the_batch_of_a_state_is_told_by_its_place():
    """As silero's voice detectors have it; an input alone, a name that says something or a second open axis is none."""
    assert assumed(["", ""], [2, "", 128], []) == ["x[0]", "y[1]"]
    assert assumed([2, "", 128]) == []
    assert assumed(["", ""], [2, "length", 128]) == ["x[0]"]
    assert assumed(["", ""], [2, "", ""]) == ["x[0]"]
    assert assumed(["", ""], [2, 3, ""]) == ["x[0]"]
    assert assumed(["", ""], [2, ""]) == ["x[0]"]
    assert assumed([1, 9], [2, "", 128]) == []
