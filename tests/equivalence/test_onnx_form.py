"""Pairs of .onnx files that look alike and compute otherwise, and pairs that look otherwise and are the same."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset.equivalence.prove import prove
from downset.errors import LoadError
from downset.fitting.fit import fit
from tests.equivalence.onnx_carriers import OPSET, info, model


def saved(made, path):
    path.write_bytes(made.SerializeToString())
    return path


def computed(path, **feeds):
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    feeds = {"x": np.float32([-2, -1, 1, 2]), **feeds}
    return onnxruntime.InferenceSession(str(path), options).run(None, feeds)[0]


def constant(name, *values):
    return numpy_helper.from_array(np.asarray(values, np.float32), name)


@pytest.mark.parametrize("ir_version", [3, 8])
def test_inputs_with_equal_default_values_are_not_swapped(tmp_path, ir_version):
    def file(name, first, second):
        nodes = [helper.make_node("Mul", ["x", first], ["m"]), helper.make_node("Add", ["m", second], ["y"])]
        made = model(nodes, [constant("a", 2, 2, 2, 2), constant("b", 2, 2, 2, 2)], inputs=("x", "a", "b"))
        made.ir_version = ir_version
        return saved(made, tmp_path / name)

    one, other = file("one.onnx", "a", "b"), file("other.onnx", "b", "a")
    assert computed(one).tobytes() == computed(other).tobytes()
    if ir_version > 3:  # ONNX Runtime takes no values for initializers of older files
        given = np.float32([5, 6, 7, 8])
        assert not np.array_equal(computed(one, a=given), computed(other, a=given))
    assert prove(one, one).proven and "takes the place of" in prove(one, other).reason


def test_default_values_are_compared(tmp_path):
    nodes = [helper.make_node("Mul", ["x", "a"], ["y"])]
    one, other, none, fixed = (
        saved(model(nodes, weights, inputs=inputs), tmp_path / f"{number}.onnx")
        for number, (weights, inputs) in enumerate(
            [
                ([constant("a", 1, 2, 3, 4)], ("x", "a")),
                ([constant("a", 1, 2, 3, 5)], ("x", "a")),
                ([], ("x", "a")),
                ([constant("a", 1, 2, 3, 4)], ("x",)),
            ]
        )
    )
    assert "another default value" in prove(one, other).reason
    assert not prove(one, none).proven and not prove(none, one).proven
    assert not prove(one, fixed).proven and not prove(fixed, one).proven


def with_function(path, value, *, outside=True):
    """A file whose function reads a weight beside the file."""
    path.parent.mkdir(exist_ok=True)
    tensor = constant("t", *[value] * 4)
    if outside:
        (path.parent / "w.bin").write_bytes(tensor.raw_data)
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
    body = [helper.make_node("Constant", [], ["w"], value=tensor), helper.make_node("Mul", ["a", "w"], ["b"])]
    function = helper.make_function("my", "F", ["a"], ["b"], body, OPSET)
    return saved(model([helper.make_node("F", ["x"], ["y"], domain="my")], functions=[function]), path)


def test_weights_of_functions_beside_the_file_are_compared_and_brought(tmp_path):
    one, other = (with_function(tmp_path / str(value) / "m.onnx", value) for value in (1.5, 2.5))
    assert one.read_bytes() == other.read_bytes() and not np.array_equal(computed(one), computed(other))
    assert "in function my::F' has another value" in prove(one, other).reason
    inside = with_function(tmp_path / "inside.onnx", 1.5, outside=False)
    assert prove(one, inside).proven and prove(inside, one).proven
    (tmp_path / "fitted").mkdir()
    fit(one, output=tmp_path / "fitted" / "m.onnx", time_limit_s=1)
    assert np.array_equal(computed(one), computed(tmp_path / "fitted" / "m.onnx"))


def test_weights_of_functions_outside_the_folder_are_refused(tmp_path):
    path = with_function(tmp_path / "m.onnx", 1.5)
    made = onnx.load(str(path), load_external_data=False)
    made.functions[0].node[0].attribute[0].t.external_data[0].value = "../w.bin"
    with pytest.raises(LoadError, match="not beside the file"):
        prove(saved(made, path), path)


def test_names_of_operators_are_not_joined(tmp_path):
    def file(number, op_type, domain="", overload=""):
        made = model([helper.make_node(op_type, ["x"], ["y"], domain=domain, overload=overload)])
        for name in ("a", "a::b", "com.microsoft"):
            made.opset_import.append(helper.make_opsetid(name, 1))
        return saved(made, tmp_path / f"{number}.onnx")

    names = [
        ("f g",),
        ("f", "", "g"),
        ("c", "a::b"),
        ("b::c", "a"),
        ("a::b::c",),
        ("com.microsoft::Gelu",),
        ("Gelu", "com.microsoft"),
        ("c", "a", "b"),
        ("b::c", "a", ""),
    ]
    files = [file(number, *name) for number, name in enumerate(names)]
    for index, one in enumerate(files):
        for further, other in enumerate(files):
            same = names[index] == names[further][:2] or names[index][:2] == names[further] or index == further
            assert prove(one, other).proven == same, (names[index], names[further])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (np.float32([0.0]), np.float32([-0.0])),
        (np.uint32([0x7FC00000]).view(np.float32), np.uint32([0x7FC00001]).view(np.float32)),
        (np.uint32([0x7FC00000]).view(np.float32), np.uint32([0x7F800001]).view(np.float32)),
    ],
)
@pytest.mark.parametrize("field", ["raw_data", "float_data", "floats", "f"])
def test_floats_are_compared_by_their_bits(tmp_path, one, other, field):
    def file(name, value):
        bits = value.tobytes()
        tensor = TensorProto(dims=[1], data_type=1)
        attribute = onnx.AttributeProto(name="value", type=4)
        if field == "raw_data":
            tensor.raw_data = bits
        elif field == "float_data":
            tensor.MergeFromString(b"\x22\x04" + bits)  # field 4, packed
        attribute.t.CopyFrom(tensor)
        if field == "f":
            attribute = onnx.AttributeProto(name="value_float", type=1)
            attribute.MergeFromString(b"\x15" + bits)
        elif field == "floats":
            attribute = onnx.AttributeProto(name="value_floats", type=6)
            attribute.MergeFromString(b"\x3d" + bits)
        node = onnx.NodeProto(op_type="Constant", output=["c"], attribute=[attribute])
        return saved(model([node, helper.make_node("Add", ["x", "c"], ["y"])]), tmp_path / name)

    first, second = file("one.onnx", one), file("other.onnx", other)
    assert prove(first, first).proven and not prove(first, second).proven


def test_strings_are_compared_with_their_zeros(tmp_path):
    def file(name, *texts):
        node = helper.make_node("Any", ["x", "c"], ["y"])
        return saved(
            model([node], [TensorProto(name="c", data_type=8, dims=[len(texts)], string_data=texts)]), tmp_path / name
        )

    one = file("one.onnx", b"a", b"b")
    assert prove(one, file("same.onnx", b"a", b"b")).proven
    for number, texts in enumerate([(b"a\0", b"b"), (b"ab", b""), (b"a", b"c")]):
        assert not prove(one, file(f"{number}.onnx", *texts)).proven


@pytest.mark.parametrize(
    "kind",
    [
        TensorProto.FLOAT,
        TensorProto.INT8,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.INT4,
        TensorProto.BOOL,
        TensorProto.UINT64,
        TensorProto.COMPLEX64,
        TensorProto.FLOAT8E4M3FN,
    ],
)
def test_encodings_of_one_tensor_are_the_same(tmp_path, kind):
    def file(name, tensor):
        return saved(model([helper.make_node("Any", ["x", "w"], ["y"])], [tensor]), tmp_path / name)

    typed = helper.make_tensor("w", kind, [2, 2], [1, 0, 1, 1])
    raw = numpy_helper.from_array(numpy_helper.to_array(typed), "w")
    outside = TensorProto(name="w", dims=[2, 2], data_type=kind, data_location=TensorProto.EXTERNAL)
    outside.external_data.add(key="location", value="w.bin")
    (tmp_path / "w.bin").write_bytes(raw.raw_data)
    files = [file(f"{number}.onnx", tensor) for number, tensor in enumerate((typed, raw, outside))]
    assert all(prove(one, other).proven for one in files for other in files)
    changed = file("other.onnx", helper.make_tensor("w", kind, [2, 2], [1, 1, 1, 1]))
    assert not any(prove(one, changed).proven for one in files)


def test_stated_shapes_that_a_runtime_believes_are_compared(tmp_path):
    """ONNX Runtime folds a Shape by the stated sizes, also where the input has others."""

    def file(name, stated):
        made = model([helper.make_node("Relu", ["x"], ["r"]), helper.make_node("Shape", ["r"], ["y"])])
        made.graph.input[0].CopyFrom(info("x", ("N",)))
        made.graph.output[0].CopyFrom(info("y", (1,), TensorProto.INT64))
        made.graph.value_info.extend(stated)
        return saved(made, tmp_path / name)

    one, other = file("one.onnx", []), file("other.onnx", [info("r", (7,))])
    assert computed(one) != computed(other)
    assert "another type" in prove(one, other).reason


def test_an_operator_that_no_output_needs_hides_no_difference(tmp_path):
    def file(name, threshold, dead=(), last=(), first=()):
        nodes = [
            *first,
            helper.make_node("Greater", ["x", "t"], ["g"], name="above"),
            helper.make_node("Not", ["g"], ["n"]),
        ]
        nodes += [*dead, helper.make_node("Cast", ["n"], ["y"], to=1), *last]
        return saved(model(nodes, [constant("t", threshold)]), tmp_path / name)

    dead = [helper.make_node("Abs", ["x"], ["d"], name="dead")]
    one = file("one.onnx", 1.0)
    bit = np.nextafter(np.float32(1.0), np.float32(2.0))
    more = [file("a.onnx", bit, dead), file("b.onnx", bit, (), dead), file("first.onnx", bit, first=dead)]
    for other in (*more, file("c.onnx", bit)):
        for reason in (prove(one, other).reason, prove(other, one).reason):
            assert "Greater 'above'" in reason and "other values" in reason
    for other in (file("d.onnx", 1.0, dead), file("e.onnx", 1.0, (), dead)):
        assert "Abs 'dead'" in prove(one, other).reason and "Abs 'dead'" in prove(other, one).reason
    assert prove(file("d.onnx", 1.0, dead), file("e.onnx", 1.0, (), dead)).proven


def test_a_function_that_calls_itself_is_refused(tmp_path):
    def function(name, calls):
        node = helper.make_node(calls, ["a"], ["b"], domain="my")
        return helper.make_function("my", name, ["a"], ["b"], [node], [*OPSET, helper.make_opsetid("my", 1)])

    made = model([helper.make_node("F", ["x"], ["y"], domain="my")], functions=[function("F", "G"), function("G", "F")])
    path = saved(made, tmp_path / "m.onnx")
    with pytest.raises(LoadError, match=r"my::[FG] calls itself"):
        prove(path, path)
    chain = [function(f"F{number}", f"F{number + 1}") for number in range(2000)]
    deep = saved(model([helper.make_node("F0", ["x"], ["y"], domain="my")], functions=chain), tmp_path / "deep.onnx")
    with pytest.raises(LoadError, match="RecursionError"):
        prove(deep, deep)


def test_names_in_a_body_hide_those_around_it(tmp_path):
    """The inner `k` hides the outer one; with another name it is the same network."""

    def file(name, inner, read):
        body = helper.make_graph(
            [helper.make_node("Mul", ["x", read], ["t"])], "b", [], [info("t")], [constant(inner, 3, 3, 3, 3)]
        )
        other = helper.make_graph([helper.make_node("Mul", ["x", "k"], ["e"])], "e", [], [info("e")])
        nodes = [
            helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
            helper.make_node("Cast", ["s"], ["c"], to=9),
            helper.make_node("If", ["c"], ["z"], then_branch=body, else_branch=other),
            helper.make_node("Add", ["z", "k"], ["y"]),
        ]
        return saved(model(nodes, [constant("k", 5, 5, 5, 5)]), tmp_path / name)

    hides, apart, outer = file("a.onnx", "k", "k"), file("b.onnx", "m", "m"), file("c.onnx", "m", "k")
    assert prove(hides, apart).proven and prove(apart, hides).proven
    assert not prove(hides, outer).proven and not prove(apart, outer).proven


@pytest.mark.parametrize("key", ["offset", "length"])
@pytest.mark.parametrize("number", [" 16", "16 ", "+16", "1_6", "\u0661\u0666", "-16", ""])
def test_numbers_of_places_that_onnx_runtime_refuses_are_refused(tmp_path, key, number):
    (tmp_path / "w.bin").write_bytes(np.arange(8, dtype=np.float32).tobytes())

    def file(name, stated):
        outside = TensorProto(name="a", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
        for entry in ({"location": "w.bin", "offset": "16", "length": "16"} | stated).items():
            outside.external_data.add(key=entry[0], value=entry[1])
        return saved(model([helper.make_node("Mul", ["x", "a"], ["y"])], [outside], inputs=("x",)), tmp_path / name)

    one, other = file("one.onnx", {}), file("other.onnx", {key: number})
    assert computed(one).tolist() == [-8, -5, 6, 14]
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        computed(other)
    with pytest.raises(LoadError, match="is not a number"):
        prove(one, other)
