"""Data of large tensors stay in the file: the skeleton of a file, what is read and written through it, and what is
proven of it, are those of the whole file, as protobuf reads it. Here every tensor is large."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from google.protobuf.message import DecodeError
from onnx import TensorProto, helper, numpy_helper

from downset.equivalence import onnx_form
from downset.equivalence.prove import prove
from downset.errors import LoadError, UsageError
from downset.formats.onnx import inference, skeleton
from downset.formats.onnx.bodies import tensors_of
from downset.formats.onnx.data_files import stored_value
from downset.formats.onnx.inference import read_skeleton
from downset.formats.onnx.skeleton import digest, left_out, save, streamed
from downset.formats.reading import load
from downset.process.whole_files import write_whole
from tests.effort import cases

ROOT = Path(__file__).resolve().parents[2]
RANDOM = np.random.default_rng(7)
LEFT_OUT = 19
"""The tensors of `model_of_all_kinds` inside the file whose data are stored as raw bytes, floats or doubles."""
FLOATS = RANDOM.standard_normal((5, 7), dtype=np.float32)
NANS = np.frombuffer(bytes.fromhex("0100807f 0000c07f 010080ff 00000080"), np.float32)


@pytest.fixture(autouse=True)
def _every_tensor_is_large(monkeypatch):
    """The reader runs here, since a worker would have its own limit."""
    for module in (skeleton, onnx_form):
        monkeypatch.setattr(module, "LEAST_BYTES", 8)
    monkeypatch.setattr(
        inference, "parsed", lambda module, function, arguments, **_: (getattr(inference, function)(**arguments), "")
    )
    inference._skeleton.cache_clear()
    yield
    inference._skeleton.cache_clear()


def typed(name, kind, values, dims=None):
    return helper.make_tensor(name, kind, dims or [len(values)], values)


def field(number, content):
    return bytes([number << 3 | 2, len(content) & 127 | 128, len(content) >> 7]) + content


def floats_as_stored(name, array):
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=array.shape)
    return TensorProto.FromString(tensor.SerializeToString() + field(4, array.tobytes()))


def outside(name, array, start, location="w.bin"):
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", location), ("offset", str(start)), ("length", str(array.nbytes))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def sparse(name, values, indices, dims):
    return onnx.SparseTensorProto(
        values=numpy_helper.from_array(values, name), indices=numpy_helper.from_array(indices, "i"), dims=dims
    )


def stored_by_default(array, name):
    tensor = numpy_helper.from_array(array, name)
    tensor.data_location = TensorProto.DEFAULT
    return tensor


def model_of_all_kinds(folder):
    """A network with a tensor stored in every way, at every place; it is not one that runs."""
    (folder / "w.bin").write_bytes(b"odd" + FLOATS.tobytes() + b"?" + NANS.tobytes())
    weights = [
        numpy_helper.from_array(FLOATS, "raw"),
        stored_by_default(FLOATS, "stated"),
        floats_as_stored("nans", NANS),
        typed("floats", TensorProto.FLOAT, FLOATS.reshape(-1).tolist()),
        typed("doubles", TensorProto.DOUBLE, [1.5, -0.0, 3.0]),
        typed("complex", TensorProto.COMPLEX64, [1 + 2j, 3 - 1j]),
        typed("complex128", TensorProto.COMPLEX128, [1 + 2j, 3 - 1j]),
        typed("small integers", TensorProto.INT8, [*range(-20, 20)]),
        typed("half", TensorProto.FLOAT16, [0.5] * 20),
        typed("int32", TensorProto.INT32, [*range(-20, 20)]),
        typed("int64", TensorProto.INT64, [*range(-20, 20)]),
        typed("uint64", TensorProto.UINT64, [1 << 63] * 5),
        typed("texts", TensorProto.STRING, [b"a text of bytes", b"another one"]),
        typed("quarter", TensorProto.INT4, [1, -2, 3] * 7),
        numpy_helper.from_array(np.arange(40, dtype=np.int64), "raw int64"),
        numpy_helper.from_array(np.zeros((0, 4), np.float32), "empty"),
        outside("unaligned", FLOATS, 3),
        outside("further", NANS, 4 + FLOATS.nbytes),
    ]
    values = numpy_helper.from_array(FLOATS, "value")
    body = helper.make_graph(
        [helper.make_node("Constant", [], ["c"], value=values), helper.make_node("Add", ["c", "b"], ["y_then"])],
        "then",
        [],
        [helper.make_tensor_value_info("y_then", 1, [5, 7])],
        [numpy_helper.from_array(FLOATS + 1, "b"), outside("far", FLOATS, 3)],
    )
    other = helper.make_graph(
        [helper.make_node("Identity", ["raw"], ["y_else"])],
        "else",
        [],
        [helper.make_tensor_value_info("y_else", 1, [5, 7])],
    )
    nodes = [
        helper.make_node("If", ["choice"], ["y"], then_branch=body, else_branch=other),
        helper.make_node("Constant", [], ["s"], sparse_value=sparse("sv", FLOATS[0], np.arange(7), [7])),
        helper.make_node("Constant", [], ["k"], value=typed("k", TensorProto.FLOAT, [0.25] * 9)),
        helper.make_node("own", ["raw"], ["z"], domain="own", many=[values, values]),
    ]
    function = helper.make_function(
        "own", "own", ["a"], ["f"], [helper.make_node("Constant", [], ["f"], value=values)],
        [helper.make_opsetid("", 17)], ["many"],
    )  # fmt: skip
    outputs = [helper.make_tensor_value_info(name, 1, None) for name in ("y", "s", "k", "z")]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("choice", 9, [])], outputs, weights,
        sparse_initializer=[sparse("sparse", FLOATS[1], np.arange(7), [9])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=9)
    trained = model.training_info.add()
    trained.algorithm.initializer.append(numpy_helper.from_array(FLOATS, "rate"))
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def test_what_is_written_is_what_protobuf_writes_of_the_whole_file(tmp_path):
    path = model_of_all_kinds(tmp_path)
    light, whole = read_skeleton(path), onnx.load(path, load_external_data=False)
    assert sum(left_out(tensor) is not None for tensor in tensors_of(light)) == LEFT_OUT
    assert len(light.SerializeToString()) != len(whole.SerializeToString())
    assert b"".join(streamed(light)) == whole.SerializeToString() == path.read_bytes()
    assert digest(light) == digest(whole)
    save(light, path)  # in the place of the file that holds the data
    assert path.read_bytes() == whole.SerializeToString()


def test_every_value_is_the_one_that_onnx_reads(tmp_path):
    path = model_of_all_kinds(tmp_path)
    light, whole = read_skeleton(path), onnx.load(path)
    for one, other in zip(tensors_of(light), tensors_of(whole), strict=True):
        if not other.data_type:  # of a message that is not set
            continue
        ours, theirs = stored_value(onnx, path, one), numpy_helper.to_array(other)
        if ours.dtype == object:
            assert ours.tolist() == theirs.tolist()
            continue
        bits = NANS if one.name == "nans" else theirs  # which ONNX changes on their way through Python's floats
        assert (ours.dtype, ours.shape, ours.tobytes()) == (theirs.dtype, theirs.shape, bits.tobytes()), one.name


def in_other_ways(model):
    """The same model with floats stored in the other field, and all data outside brought inside."""
    for tensor in tensors_of(model):
        if tensor.data_location == TensorProto.EXTERNAL or not tensor.HasField("raw_data"):
            if tensor.data_type in (TensorProto.UNDEFINED, TensorProto.STRING, TensorProto.INT4):
                continue
            value = NANS if tensor.name == "nans" else stored_value(onnx, Path("m.onnx"), tensor)
            tensor.CopyFrom(numpy_helper.from_array(value, tensor.name))
        elif tensor.data_type == TensorProto.FLOAT:
            tensor.CopyFrom(floats_as_stored(tensor.name, numpy_helper.to_array(tensor)))


def test_a_proof_does_not_depend_on_how_tensors_are_stored(tmp_path, monkeypatch):
    path = model_of_all_kinds(tmp_path)
    monkeypatch.chdir(tmp_path)
    model = onnx.load(path, load_external_data=False)
    in_other_ways(model)
    other = tmp_path / "other.onnx"
    other.write_bytes(model.SerializeToString())
    assert prove(path, other).proven
    assert prove(other, path).proven
    assert prove(path, path).proven


def test_a_proof_notices_a_byte_of_any_tensor(tmp_path):
    path = model_of_all_kinds(tmp_path)
    whole, data = onnx.load(path, load_external_data=False), path.read_bytes()
    large = [left_out(tensor) for tensor in tensors_of(read_skeleton(path))]
    ranges = [one for one in large if one is not None]
    assert len(ranges) == LEFT_OUT
    for number, one in enumerate(ranges):
        changed = bytearray(data)
        changed[one.start + (number * 5) % one.nbytes] ^= 1
        other = tmp_path / f"other{number}.onnx"
        other.write_bytes(bytes(changed))
        assert onnx.load(other, load_external_data=False) != whole
        assert not prove(path, other).proven, number


def test_a_file_that_has_changed_since_it_was_read_is_refused(tmp_path):
    path = model_of_all_kinds(tmp_path)
    for change in (lambda: os.truncate(path, 900), lambda: path.write_bytes(bytes(5000)), path.unlink):
        data = path.read_bytes()
        light = read_skeleton(path)
        change()
        with pytest.raises(LoadError, match=r"has changed since it was read|cannot read .*m\.onnx"):
            b"".join(streamed(light))
        with pytest.raises(LoadError, match=r"has changed since it was read|cannot read .*m\.onnx"):
            write_whole(tmp_path / "out.onnx", streamed(light))
        assert not [*tmp_path.glob("*out*"), *tmp_path.glob(".*")]
        path.write_bytes(data)


def test_the_output_is_never_the_file_that_holds_the_data(tmp_path):
    path = model_of_all_kinds(tmp_path)
    data = path.read_bytes()
    with pytest.raises(UsageError, match="is the file being read"):
        write_whole(path, streamed(read_skeleton(path)), source=path)
    assert path.read_bytes() == data


def outcome(data):
    try:
        return b"".join(streamed(onnx.ModelProto.FromString(data)))
    except (DecodeError, ValueError):
        return None


def damaged(data, draw):
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 2, 5))):
        at = draw.randrange(len(changed))
        match draw.randrange(4):
            case 0:
                changed[at] ^= 1 << draw.randrange(8)
            case 1:
                del changed[at : at + draw.randrange(1, 40)]
            case 2:
                changed[at:at] = changed[(begin := draw.randrange(len(changed))) : begin + draw.randrange(60)]
            case 3:
                del changed[at:]
        if not changed:
            break
    return bytes(changed)


def test_damaged_files_mean_what_they_mean_to_protobuf(tmp_path):
    """Bits flipped, bytes cut out and repeated: the skeleton is refused with the file, or is the file's."""
    whole, path = model_of_all_kinds(tmp_path).read_bytes(), tmp_path / "d.onnx"
    draw, refused, count = random.Random(3), 0, cases(1500)
    for _ in range(count):
        data = damaged(whole, draw)
        path.write_bytes(data)
        expected = outcome(data)
        refused += expected is None
        assert outcome(skeleton.skeleton(str(path))) == expected
    assert count // 20 < refused < count * 19 // 20


@pytest.mark.parametrize("parts", ["graph", "tensor", "attribute", "data"])
def test_messages_in_several_parts_are_merged_as_protobuf_does(tmp_path, parts):
    floats = TensorProto(name="w", data_type=1, dims=[70])
    half = field(4, FLOATS.tobytes())
    tensor = floats.SerializeToString() + (half + half if parts == "data" else half)
    tensors = field(5, tensor) + field(5, half if parts == "tensor" else b"")
    attribute = field(1, b"value") + field(5, tensor) + (field(5, half) if parts == "attribute" else b"")
    node = field(1, field(5, attribute) + field(4, b"Constant") + field(2, b"c"))
    graph = tensors + node
    data = field(7, graph) + (field(7, graph) if parts == "graph" else b"")
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    assert outcome(skeleton.skeleton(str(path))) == outcome(data) is not None


def test_a_name_of_another_process_is_data(tmp_path):
    """Nothing that a file states can stand for bytes of a file."""
    path = model_of_all_kinds(tmp_path)
    forged = read_skeleton(path)
    other = os.urandom(len(skeleton.TOKEN))
    data = forged.SerializeToString().replace(skeleton.TOKEN, other)
    assert other in data
    path.write_bytes(data)
    assert b"".join(streamed(read_skeleton(path))) == data


LARGE_MB = 60
_SCRIPT = """
import gc, resource, sys
from pathlib import Path
from downset.equivalence import onnx_form
from downset.equivalence.prove import prove
from downset.formats.onnx.metadata import write_metadata
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.process import isolation

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
for path in map(Path, sys.argv[1:]):
    graph = load(path)
    export_onnx(path.with_suffix(".one.onnx"), graph, range(len(graph.ops)))
    write_metadata(path.with_suffix(".one.onnx"), path.with_suffix(".two.onnx"), {"version": "0"})
    assert prove(path, path.with_suffix(".two.onnx")).proven
    print(most())
isolation._stop_server()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_reading_writing_and_proving_take_a_share_of_the_weights(tmp_path):
    """Resident memory of this process and of the largest of its workers."""
    for name, side in (("small", 4), ("large", 1 << 10)):
        count = LARGE_MB * 250_000 // side**2 if side > 4 else 2
        weights = [
            numpy_helper.from_array(np.full((side, side), index, np.float32), f"w{index}") for index in range(count)
        ]
        nodes = [helper.make_node("MatMul", [f"x{index}", f"w{index}"], [f"x{index + 1}"]) for index in range(count)]
        ends = [helper.make_tensor_value_info(f"x{index}", 1, [1, side]) for index in (0, count)]
        graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), tmp_path / f"{name}.onnx")
    paths = [str(tmp_path / f"{name}.onnx") for name in ("small", "large")]
    printed = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *paths], capture_output=True, text=True, check=True, cwd=ROOT
    )
    before, after, workers = (int(line) << 10 for line in printed.stdout.split())
    size = Path(paths[1]).stat().st_size
    assert size > 50_000_000
    assert after - before < size / 3
    assert workers < before + size / 3


def test_weights_that_nobody_asks_for_are_not_read(tmp_path, monkeypatch):
    path = model_of_all_kinds(tmp_path)
    monkeypatch.setattr("downset.process.file_ranges.FileRange.pieces", None)
    model = read_skeleton(path)
    assert model.graph.name == "g"


def test_graphs_hold_their_constants_through_the_file(tmp_path):
    weight = numpy_helper.from_array(FLOATS, "w")
    ends = [helper.make_tensor_value_info(name, 1, [5, 7]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [weight])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    loaded = load(path)
    (constant,) = loaded.constants
    assert np.array_equal(loaded.constant(constant), FLOATS)
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(LoadError, match="has changed since it was read"):
        loaded.constant(constant)
