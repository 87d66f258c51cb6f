"""Rewritten files are proven from the certificate that they carry, and nothing that computes something else ever is."""

import copy
import itertools
import json

import numpy as np
import onnx
import onnxruntime
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from ai_edge_litert.tools import flatbuffer_utils
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.equivalence.prove import prove
from downset.fitting.fit import fit
from downset.formats.certificates import (
    METADATA_KEY,
    Certificate,
    packed_certificate,
    read_certificate,
    write_certificate,
)
from downset.formats.reading import load
from downset.formats.writing import export
from downset.graph.cost import row_form
from downset.graph.parts import Part
from downset.orders.plan import plan_order
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import find_segments
from downset.rewrites.concat.partition import partition, partition_sites
from downset.rewrites.tflite_form import tflite_form, writable_rows
from tests.effort import cases
from tests.equivalence.mutants import ONNX, TFLITE, Mutant
from tests.equivalence.read_once import read_once
from tests.models import branchy_model, constant
from tests.rewrites import test_rewrite_onnx, test_rewrite_tflite
from tests.rewrites.test_rewrite_onnx import Net
from tests.tflite_net import TfliteNet


@pytest.fixture(autouse=True)
def _reads(monkeypatch):
    read_once(monkeypatch)


def written(graph, path):
    export(path, graph, plan_order(graph, method="kahn"))
    return path


@given(data=st.data())
@settings(max_examples=cases(40))
def test_every_rewriting_of_an_onnx_file_is_proven(tmp_path_factory, data):
    net, outputs = data.draw(test_rewrite_onnx.networks())
    folder = tmp_path_factory.mktemp("net")
    path = net.save(folder / "m.onnx", outputs)
    graph = load(path)
    chosen = [site for site in partition_sites(graph) if data.draw(st.booleans())]
    made = partition(graph, chosen, accumulate=data.draw(st.sampled_from(["sum", "chain", "fused"])))
    found = prove(path, written(made.graph, folder / "r.onnx"))
    assert found.proven, found.reason
    assert found.exact == sums_nothing(made)
    assert found.rewrites == len(made.graph.source.parts)


def sums_nothing(made):
    """Whether no tensor that is left adds up parts: what no output needs is left out of the rewritten graph."""
    left = {made.graph.tensors[tensor].name for op in made.graph.ops for tensor in op.outputs}
    return not any(split.kind == "channel-wise" and split.result in left for split in made.splits)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@given(data=st.data())
@settings(max_examples=20)
def test_every_rewriting_of_a_tflite_file_is_proven(tmp_path_factory, dtype, data):
    net, outputs = data.draw(test_rewrite_tflite.networks(dtype))
    folder = tmp_path_factory.mktemp("net")
    path = net.save(folder / "m.tflite", outputs)
    graph = load(path)
    chosen = [site for site in partition_sites(graph) if data.draw(st.booleans())]
    made = partition(graph, chosen)
    found = prove(path, written(made.graph, folder / "r.tflite"))
    assert found.proven, found.reason
    assert found.exact == sums_nothing(made)


def test_a_bias_of_zeros_is_added_by_every_part_or_by_none(tmp_path):
    """The parts after the first add zeros, which are then the original's bias once more."""
    net = TfliteNet()
    source = net.input(4)
    joined = net.concat([net.conv(source, 2), net.conv(source, 2), net.conv(source, 2)])
    kernel = net.tensor((4, 1, 1, 6), value=np.arange(24).reshape(4, 1, 1, 6))
    graph = load(
        net.save(tmp_path / "m.tflite", [net.conv(joined, 4, weights=(kernel, net.tensor((4,), value=[0] * 4)))])
    )
    rewritten = partition(graph, partition_sites(graph))
    assert [split.kind for split in rewritten.splits] == ["channel-wise"]
    proof = prove(tmp_path / "m.tflite", written(rewritten.graph, tmp_path / "r.tflite"))
    assert proof.proven, proof.reason


def image_network(path, stride=2):
    """What strips meet: windows with pads and strides, an inner pad, a constant of rows, a pool, a shortcut."""
    net = Net(3)
    x = net.input(2)
    rows = net.constant(1, 4, 12, 1)
    y = net.node("Mul", [net.conv(x, 4, 3), rows], 4)
    shortcut = net.node("Relu", [y], 4)
    y = net.node("Add", [net.conv(shortcut, 4, 3, group=4), shortcut], 4)
    y = net.node("MaxPool", [y], 4, kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[stride, stride])
    y = net.node("AveragePool", [y], 4, kernel_shape=[2, 2], pads=[0, 0, 1, 1], count_include_pad=1)
    return net.save(path, [net.conv(y, 3, 3)], size=12)


@pytest.mark.parametrize("even", [False, True])
@pytest.mark.parametrize("strips", [2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_every_segment_in_strips_is_proven(tmp_path, stride, strips, even):
    model = onnx.load(image_network(tmp_path / "m.onnx", stride))
    model.graph.output[0].type.tensor_type.ClearField("shape")  # `Net` knows no strides
    onnx.save(model, str(tmp_path / "m.onnx"))
    graph = load(tmp_path / "m.onnx")
    form = row_form(graph, halos_required=False)
    segments = [segment for segment in find_segments(graph, form, most_crossing=2) if segment.stop - segment.first > 1]
    assert len(segments) > 5
    for segment in segments:
        for recomputed in (frozenset(), frozenset(segment.operators)):
            made = in_strips(graph, [InStrips(segment.first, segment.stop, strips, recomputed, even)], form=form)
            assert made.source.parts
            found = prove(tmp_path / "m.onnx", written(made, tmp_path / "r.onnx"))
            assert found.proven and found.exact, (segment, found.reason)


def same_in_onnx_runtime(one, other):
    """Whether two files compute alike; what does not run computes nothing."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    onnxruntime.set_default_logger_severity(4)
    try:
        sessions = [onnxruntime.InferenceSession(str(path), options) for path in (one, other)]
        random = np.random.default_rng(0)
        feeds = {v.name: random.standard_normal(v.shape, np.float32) for v in sessions[0].get_inputs()}
        results = [session.run(None, feeds) for session in sessions]
    except Exception:
        return False
    return all(np.allclose(mine, its, 1e-4, 1e-3) for mine, its in zip(*results, strict=True))


def same_in_litert(one, other):
    results = []
    try:
        for path in (one, other):
            interpreter = Interpreter(str(path), experimental_op_resolver_type=OpResolverType.BUILTIN_REF)
            interpreter.allocate_tensors()
            random = np.random.default_rng(0)
            for detail in interpreter.get_input_details():
                value = random.integers(-100, 100, detail["shape"]).astype(detail["dtype"])
                interpreter.set_tensor(detail["index"], value)
            interpreter.invoke()
            results.append([interpreter.get_tensor(d["index"]).astype(float) for d in interpreter.get_output_details()])
    except (ValueError, RuntimeError):
        return False
    return all(np.allclose(mine, its, 1e-4, 1e-3) for mine, its in zip(*results, strict=True))


def rewritten_onnx(folder, how):
    if how == "strips":
        path = image_network(folder / "m.onnx", 1)
        graph = load(path)
        last = list(find_segments(graph, row_form(graph, halos_required=False)))[-1]
        made = in_strips(graph, [InStrips(last.first, last.stop, 2)])
    else:
        net = Net(5)
        x = net.input(2)
        joined = net.concat([net.conv(x, 2), net.conv(x, 3, 3), net.conv(x, 2)])
        moved = net.conv(net.node("Relu", [joined], 7), 7, 3, group=7)
        path = net.save(folder / "m.onnx", [net.conv(moved, 3, 3)])
        graph = load(path)
        made = partition(graph, partition_sites(graph), accumulate=how).graph
    return path, written(made, folder / "r.onnx")


def check_mutants(path, other, kind, folder, *, every_one_counts):
    """No change of the file `other` is proven where ONNX Runtime computes something else with it, and none at all where
    every one counts."""
    left, made = [], 0
    for mutant in ONNX[kind](onnx.load(str(other))):
        made += 1
        changed = mutant.save(folder / "mutant.onnx")
        if proven(path, changed) and not same_in_onnx_runtime(path, changed):
            left.append(mutant.what)
        if every_one_counts:
            assert not proven(path, changed), mutant.what
    assert made >= 2 and left == []


@pytest.mark.parametrize("how", ["chain", "fused", "sum", "strips"])
@pytest.mark.parametrize("kind", sorted({*ONNX} - {"bodies"}))
def test_what_is_proven_of_a_changed_onnx_file_computes_the_same(tmp_path, how, kind):
    """Some changes change nothing (an attribute at its default left out, a Slice that ends behind the end, two addends
    swapped): ONNX Runtime decides."""
    path, other = rewritten_onnx(tmp_path, how)
    assert prove(path, other).proven
    counts = kind == "interface" or (kind == "constants" and how != "strips")
    check_mutants(path, other, kind, tmp_path, every_one_counts=counts)


def striped_tflite(folder, dtype):
    """Two windows whose strips are padded, cut off, joined and cut out."""
    net = TfliteNet(6, dtype=dtype, size=7)
    x = net.input(2)
    path = net.save(folder / "m.tflite", [net.conv(net.depthwise(net.conv(x, 3, 3)), 2)])
    graph = load(path)
    form = row_form(graph)
    form = writable_rows(graph, form, cut_off=[1])
    every = InStrips(0, len(graph.ops), 2, frozenset(range(len(graph.ops))))
    made = tflite_form(in_strips(graph, [every], form=form), cut_off=[1])
    assert {"Pad", "tflite::SLICE", "Concat"} <= {op.kind for op in made.ops}
    return path, written(made, folder / "r.tflite")


@pytest.mark.parametrize("kind", TFLITE)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_proven_of_a_changed_file_in_strips_computes_the_same(tmp_path, dtype, kind):
    path, other = striped_tflite(tmp_path, dtype)
    assert prove(path, other).proven
    model = flatbuffer_utils.read_model(str(other))
    found = list(tried(path, TFLITE[kind](model), tmp_path))
    assert found and [what for what, _, wrong in found if wrong] == []


@pytest.mark.parametrize("kind", TFLITE)
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_what_is_proven_of_a_changed_tflite_file_computes_the_same(tmp_path, dtype, kind):
    net = TfliteNet(6, dtype=dtype)
    x = net.input(2)
    joined = net.concat([net.conv(x, 2), net.conv(x, 3, 3), net.conv(x, 2)])
    path = net.save(tmp_path / "m.tflite", [net.conv(net.depthwise(net.op("RELU", (joined,), 7)), 3)])
    graph = load(path)
    made = partition(graph, partition_sites(graph)).graph
    other = written(made, tmp_path / "r.tflite")
    assert prove(path, other).rewrites and prove(path, other).proven
    model = flatbuffer_utils.read_model(str(other))
    found = list(tried(path, itertools.islice(TFLITE[kind](model), 0, None, 2), tmp_path))
    assert found and [what for what, _, wrong in found if wrong] == []
    if kind in ("constants", "quantization", "order"):
        assert [what for what, known, _ in found if known] == []


@pytest.mark.parametrize("field", ["quantizedDimension", "scale", "detailsType", "shape"])
def test_the_form_of_parts_is_that_of_the_original(field, tmp_path):
    """LiteRT's fast kernels read the axis of a single scale; a scale for each channel stands where one does."""
    path, other = striped_tflite(tmp_path, "int8")
    tensors = flatbuffer_utils.read_model(str(other)).subgraphs[0].tensors
    parts = [place for place, tensor in enumerate(tensors) if b"/strip" in tensor.name]
    assert parts
    for place in parts:
        model = flatbuffer_utils.read_model(str(other))
        tensor = model.subgraphs[0].tensors[place]
        scale = np.repeat(tensor.quantization.scale, 2)
        held = tensor if field == "shape" else tensor.quantization
        setattr(held, field, {"scale": scale, "shape": [-1, *tensor.shape[1:]]}.get(field, 1))
        assert not proven(path, Mutant(field, model).save(tmp_path / "changed.tflite")), tensor.name


def tried(path, mutants, folder):
    """(mutant, whether it is proven, whether it is proven and computes something else) of all that can be written."""
    for mutant in mutants:
        try:
            changed = mutant.save(folder / "mutant.tflite")
        except Exception:
            continue
        known = proven(path, changed)
        yield mutant.what, known, known and not same_in_litert(path, changed)


def proven(one, other):
    from downset.errors import LoadError

    try:
        return prove(one, other).proven
    except LoadError:
        return False


def test_no_certificate_makes_a_changed_weight_right(tmp_path):
    """A certificate only says what to prove: of a file that computes something else no statement is proven."""
    path, other = rewritten_onnx(tmp_path, "chain")
    model = onnx.load(str(other))
    changed = next(iter(ONNX["constants"](model))).model
    (entry,) = [entry for entry in changed.metadata_props if entry.key == METADATA_KEY]
    document = json.loads(entry.value)
    random = np.random.default_rng(0)
    names = [value.name for value in model.graph.initializer] + [n for node in model.graph.node for n in node.output]
    for _ in range(60):
        said = copy.deepcopy(document)
        part = said["parts"][str(random.choice(sorted(said["parts"])))]
        match int(random.integers(4)):
            case 0:
                part["of"] = str(random.choice(names))
            case 1:
                part["box"] = [[int(random.integers(4)), *sorted(map(int, random.integers(0, 8, 2)))]]
            case 2:
                part["terms"] = sorted(map(int, random.integers(0, 8, 2)))
            case 3:
                part["terms"] = None
        entry.value = json.dumps(said)
        assert not proven(path, Mutant("said", changed).save(tmp_path / "c.onnx"))


@given(st.binary(max_size=40))
@settings(max_examples=cases(40))
def test_a_damaged_certificate_proves_nothing_and_breaks_nothing(tmp_path_factory, data):
    from downset.errors import LoadError

    for damaged in (data, b"{" + data, packed_certificate({})[:-3] + data):
        try:
            assert isinstance(read_certificate(damaged), Certificate)
        except LoadError as error:
            assert "certificate" in str(error)


def test_fit_proves_what_it_rewrites_and_verify_repeats_it(tmp_path, run):
    net = Net()
    x = net.input(2)
    y = net.conv(net.concat([net.conv(x, 8) for _ in range(5)]), 4)
    path = net.save(tmp_path / "m.onnx", [net.conv(y, 2)], size=16)
    result = fit(path, output=tmp_path / "f.onnx", time_limit_s=20)
    proof = result.outputs.proof
    assert result.shipped == "rewritten" and proof.proven and not proof.optimised and proof.rewrites == 4
    status, out, _ = run("verify", path, tmp_path / "f.onnx", "--json")
    found = json.loads(out)
    assert status == 0 and found["proven"] and found["reason"] == ""
    assert found["proof"]["proven"] and found["proof"]["rewrites"] == 4
    assert found["max_abs_error"] == result.outputs.max_abs_error
    model = onnx.load(str(tmp_path / "f.onnx"))
    del model.metadata_props[:]
    onnx.save(model, str(tmp_path / "bare.onnx"))
    status, out, _ = run("verify", path, tmp_path / "bare.onnx", "--accept-runs")
    assert status == 0 and "not proven the same network" in out


def test_at_other_sizes_rewriting_is_proven_too(tmp_path):
    """Strips hold for the sizes that they were cut at; concatenations taken apart for any."""
    path = branchy_model(tmp_path / "m.onnx", open_batch=True)
    graph = load(path, shapes={"x": (2, 3, 8, 8)})
    made = partition(graph, partition_sites(graph)).graph
    other = written(made, tmp_path / "r.onnx")
    assert prove(path, other, shapes={"x": (2, 3, 8, 8)}).proven
    assert prove(path, other, shapes={"x": (5, 3, 8, 8)}).proven


def test_rows_that_a_strip_keeps_for_the_next_are_proven(tmp_path):
    """No rewrite here makes such files: the statements are about tensors, whatever made them."""
    net = Net(9)
    x = net.input(2)
    y = net.conv(x, 3, 3)
    z = net.conv(y, 2, 3)
    path = net.save(tmp_path / "m.onnx", [z], size=8)
    original = onnx.load(str(path))
    first, second = original.graph.node
    made = onnx.ModelProto()
    made.CopyFrom(original)
    del made.graph.node[:]
    parts = {}

    def add(node, output, of, rows):
        node.output[:] = [output]
        node.name = output
        made.graph.node.append(node)
        if output != z:
            parts[output] = Part(of, ((2, *rows),))

    def conv(like, read, output, of, rows, above, below):
        node = onnx.NodeProto()
        node.CopyFrom(like)
        node.input[0] = read
        (pads,) = [attribute for attribute in node.attribute if attribute.name == "pads"]
        pads.ints[:] = [above, 1, below, 1]
        add(node, output, of, rows)

    def cut(read, output, of, start, rows):
        limits = {"starts": start, "ends": start + rows[1] - rows[0], "axes": 2}
        for name, value in limits.items():
            made.graph.initializer.append(constant(f"{output}/{name}", np.asarray([value], np.int64)))
        node = onnx.helper.make_node("Slice", [read, *(f"{output}/{name}" for name in limits)], [output])
        add(node, output, of, rows)

    def join(inputs, output, of, rows):
        add(onnx.helper.make_node("Concat", inputs, [output], axis=2), output, of, rows)

    cut(x, "x_top", x, 0, (0, 6))
    conv(first, "x_top", "y_top", y, (0, 5), 1, 0)
    conv(second, "y_top", "z_top", z, (0, 4), 1, 0)
    cut("y_top", "y_kept", y, 3, (3, 5))
    cut(x, "x_low", x, 4, (4, 8))
    conv(first, "x_low", "y_low", y, (5, 8), 0, 1)
    join(["y_kept", "y_low"], "y_lower", y, (3, 8))
    conv(second, "y_lower", "z_low", z, (4, 8), 0, 1)
    join(["z_top", "z_low"], z, z, (0, 8))

    def saved(name, certificate):
        del made.metadata_props[:]
        made.metadata_props.add(key=METADATA_KEY, value=write_certificate(certificate).decode())
        return Mutant(name, made).save(tmp_path / f"{name}.onnx")

    found = prove(path, saved("kept", parts))
    assert found.proven and found.exact, found.reason
    assert same_in_onnx_runtime(path, tmp_path / "kept.onnx")
    for name, part in parts.items():  # one row off, or nothing said
        moved = Part(part.of, ((2, part.box[0][1] + 1, part.box[0][2] + 1),))
        assert not prove(path, saved("moved", {**parts, name: moved})).proven
        assert not prove(path, saved("silent", {key: one for key, one in parts.items() if key != name})).proven


def test_a_concatenation_inside_another_is_proven_where_nothing_else_is_rewritten(tmp_path):
    """No tensor is new, and one operator is gone: the file says that it is rewritten, and of which tensor."""
    net, tflite = Net(5), TfliteNet(5, dtype="int8")
    x, z = net.input(2), tflite.input(2)
    inner, deep = net.concat([net.conv(x, 2), net.conv(x, 3)]), tflite.concat([tflite.conv(z, 2), tflite.conv(z, 3)])
    made = [
        net.save(tmp_path / "m.onnx", [net.concat([inner, net.conv(x, 2), inner])]),
        tflite.save(tmp_path / "m.tflite", [tflite.concat([deep, tflite.conv(z, 2), deep])]),
    ]
    for path in made:
        graph = load(path)
        flat = partition(graph, partition_sites(graph)).graph
        assert len(flat.ops) == len(graph.ops) - 1
        found = prove(path, written(flat, tmp_path / f"flat{path.suffix}"))
        assert found.proven and found.exact and found.rewrites == 1, found.reason


def test_a_tensor_that_a_concatenation_reads_twice_is_padded_in_each_place(tmp_path):
    """It holds two boxes of the result, and each padded part belongs to one of them."""
    net = Net(3)
    x = net.input(2)
    twice = net.conv(x, 2)
    net.weights.append(constant("pads", np.asarray([0, 0, 1, 0, 0, 0, -1, 0], np.int64)))
    joined = net.node("Pad", [net.concat([twice, net.conv(x, 2), twice]), "pads"], 6)
    path = net.save(tmp_path / "m.onnx", [net.conv(joined, 3)])
    graph = load(path)
    for how in ("chain", "fused", "sum"):
        made = partition(graph, partition_sites(graph), accumulate=how)
        found = prove(path, written(made.graph, tmp_path / f"{how}.onnx"))
        assert found.proven and found.rewrites, found.reason
