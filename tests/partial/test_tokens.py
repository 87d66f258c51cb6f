"""Attention and normalisations in strips: equal in ONNX Runtime, proven, and priced as they are."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from onnx import numpy_helper

from downset.equivalence.prove import prove
from downset.errors import UnsupportedError
from downset.formats.onnx.write import export_onnx
from downset.formats.reading import load
from downset.graph.cost import row_form
from downset.memory.liveness import order_problem, peak_bytes
from downset.memory.models import memory_model
from downset.partial.price import Pricing
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.search import PartialLimits, partial_front
from downset.partial.segments import computed_whole, find_segment, find_segments
from downset.rewrites.two_passes import has_row_means, in_two_passes, normalised_bytes, two_passes
from tests.effort import cases
from tests.partial.drawn_parts import drawn_parts
from tests.token_networks import OnnxNet, normalised_networks, token_networks

MANY = 32
in_a_folder = settings(
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def session(path):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads, options.log_severity_level = 1, 3
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def outputs(path):
    random, runs = np.random.default_rng(3), session(path)
    values = {one.name: random.standard_normal(one.shape).astype(np.float32) for one in runs.get_inputs()}
    return runs.run(None, values)


def check_equal(original, other):
    for one, two in zip(outputs(original), outputs(other), strict=True):
        np.testing.assert_allclose(two, one, rtol=2e-4, atol=2e-4 * max(float(np.abs(one).max()), 1e-3))


def striped(data, tmp_path, graph, original):
    form = row_form(graph, halos_required=False)
    parts = drawn_parts(data, graph, form, crossing=MANY, strips=5)
    try:
        result = in_strips(graph, parts)
    except UnsupportedError as error:
        assert "padding alone" in str(error)
        assume(False)
    for name in ("live", "ort"):
        model = memory_model(name)
        pricing = Pricing(graph, form, model)
        for part in parts:
            alone = in_strips(graph, [part])
            segment = find_segment(graph, part.first, part.stop)
            price = pricing.strips(segment, part.strips, recomputed=part.recomputed, even=part.even)
            assert price.extra_operators == len(alone.ops) - len(graph.ops)
            transient = pricing.around.transient
            highest = max([price.peak_bytes, *transient[: part.first], *transient[part.stop :]])
            peak = peak_bytes(order_problem(alone, model), range(len(alone.ops)))
            # Results that lie in their input, such as those of reshapes, may take fewer bytes than the price says.
            assert highest == peak if name == "live" else highest >= peak
    export_onnx(tmp_path / "strips.onnx", result, range(len(result.ops)))
    check_equal(original, tmp_path / "strips.onnx")
    return result


@given(token_networks(), st.data())
@settings(in_a_folder, max_examples=cases(40))
def test_attention_in_strips_is_equal_proven_and_priced_as_it_is(tmp_path, model, data):
    original = tmp_path / "one.onnx"
    onnx.save(model, original)
    graph = load(original)
    result = striped(data, tmp_path, graph, original)
    proof = prove(original, tmp_path / "strips.onnx")
    assert proof.proven or not result.source.parts, proof.reason


@given(normalised_networks(), st.data())
@settings(in_a_folder, max_examples=cases(30))
def test_normalisations_in_two_passes_are_equal_and_proven_up_to_rounding(tmp_path, model, data):
    original = tmp_path / "one.onnx"
    onnx.save(model, original)
    graph = load(original)
    sizes = [*normalised_bytes(graph), 0]
    assume(len(sizes) > 1)
    divided = two_passes(graph, stored_bytes=data.draw(st.sampled_from(sizes[1:])))
    assert in_two_passes(divided) or has_row_means(divided)
    assert not in_two_passes(graph)
    assert not has_row_means(graph)
    striped(data, tmp_path, divided, original)
    proof = prove(original, tmp_path / "strips.onnx")
    assert proof.proven and not proof.exact, proof.reason


@pytest.mark.parametrize("version", [17, 18])
@pytest.mark.parametrize(
    "what", ["pool", "mean", "mean of all", "mean without dimensions", "layer", "layer by channel"]
)
def test_what_reads_all_rows_is_computed_in_strips(tmp_path, version, what):
    """A global mean, in every spelling, and a LayerNormalization over an image: no operator reads all rows of one."""
    net = OnnxNet(2, version)
    image = (2, 4, 9, 5)
    x = net.op("Conv", [net.start(2, 3, 9, 5), net.drawn(4, 3, 3, 3)], image, pads=[1] * 4)
    axes, keeps = [1, 2, 3] if what == "mean of all" else [2, 3], what != "mean without dimensions"
    if what.startswith("layer"):
        axis = 1 if what == "layer" else 2
        x = net.op("LayerNormalization", [x, net.drawn(*image[axis:]), net.drawn(*image[axis:])], image, axis=axis)
        x = net.op("Conv", [x, net.drawn(2, 4, 3, 3)], (2, 2, 9, 5), pads=[1] * 4)
    elif what == "pool":
        x = net.op("GlobalAveragePool", [x], (2, 4, 1, 1))
    else:
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(image) if keeps or axis not in axes)
        if version < 18:
            x = net.op("ReduceMean", [x], shape, axes=axes, keepdims=int(keeps))
        else:
            x = net.op("ReduceMean", [x, net.constant(np.array(axes, np.int64))], shape, keepdims=int(keeps))
    onnx.save(net.model(x), tmp_path / "one.onnx")
    graph = load(tmp_path / "one.onnx")
    divided = two_passes(graph, stored_bytes=0)
    form = row_form(divided, halos_required=False)
    found = [
        one
        for one in find_segments(divided, form, most_crossing=MANY)
        if all(form.rows[tensor] == 9 for tensor in one.results)
    ]
    parts, at = [], 0
    while left := [one for one in found if one.first >= at]:
        longest = max(left, key=lambda one: (-one.first, one.stop))
        parts.append(InStrips(longest.first, longest.stop, 3))
        at = longest.stop
    result = in_strips(divided, parts)
    made = [result.tensors[one] for op in result.ops for one in op.outputs if one not in result.outputs]
    if not what.startswith("layer"):
        assert max(tensor.nbytes for tensor in made) < 4 * math.prod(image), "the image is whole"
    export_onnx(tmp_path / "strips.onnx", result, range(len(result.ops)))
    check_equal(tmp_path / "one.onnx", tmp_path / "strips.onnx")
    proof = prove(tmp_path / "one.onnx", tmp_path / "strips.onnx")
    assert proof.proven and not proof.exact, proof.reason


def check_bound(data, tmp_path, model, *, divided):
    """No plan in strips is below the bound: neither drawn ones, by the bytes of what is written, nor the front's."""
    onnx.save(model, tmp_path / "one.onnx")
    graph = load(tmp_path / "one.onnx")
    if divided:
        graph = two_passes(graph, stored_bytes=0)
        assume(in_two_passes(graph))
    parts = drawn_parts(data, graph, row_form(graph, halos_required=False), crossing=MANY, strips=5)
    try:
        result = in_strips(graph, parts)
    except UnsupportedError:
        assume(False)
    for name in ("live", "ort"):
        front = partial_front(graph, memory=name, limits=PartialLimits(time_limit_s=math.inf, work_limit=300))
        peak = peak_bytes(order_problem(result, name), range(len(result.ops)))
        assert 0 < front.bound_bytes <= min(peak, front.least.price.peak_bytes), name


@given(token_networks(), st.data())
@settings(in_a_folder, max_examples=cases(20))
def test_the_bound_holds_where_several_tensors_cross(tmp_path, model, data):
    check_bound(data, tmp_path, model, divided=False)


@given(normalised_networks(), st.data())
@settings(in_a_folder, max_examples=cases(20))
def test_the_bound_holds_for_normalisations_in_two_passes(tmp_path, model, data):
    check_bound(data, tmp_path, model, divided=True)


def test_no_operator_of_a_vision_transformer_needs_all_rows(tmp_path):
    """From the convolution of patches to the result, through both spellings of heads."""
    net = OnnxNet(0)
    x = net.op("Conv", [net.start(1, 3, 16, 16), net.drawn(4, 3, 2, 2)], (1, 4, 8, 8), strides=[2, 2])
    x = net.transpose(net.reshape(x, 1, 4, 64), 0, 2, 1)
    queries, keys, values = (net.transpose(net.reshape(net.linear(x, 4), 1, 64, 2, 2), 0, 2, 1, 3) for _ in range(3))
    scores = net.op("MatMul", [queries, net.transpose(keys, 0, 1, 3, 2)], (1, 2, 64, 64))
    mixed = net.op("MatMul", [net.same("Softmax", scores), values], (1, 2, 64, 2))
    x = net.same("Add", x, net.reshape(net.transpose(mixed, 0, 2, 1, 3), 1, 64, 4))
    onnx.save(net.model(x), tmp_path / "vit.onnx")
    graph = load(tmp_path / "vit.onnx")
    form = row_form(graph)
    assert not computed_whole(graph, form)
    front = partial_front(graph, memory="ort", limits=PartialLimits(work_limit=3_000))
    assert front.least.price.peak_bytes < 0.5 * front.plans[0].price.peak_bytes
    assert front.bound_bytes <= front.least.price.peak_bytes


def mutations(model):
    """Models that differ in one thing: rows cut elsewhere, a missing or repeated part, another mask or constant."""
    cuts = {name for node in model.graph.node if node.op_type == "Slice" for name in node.input[1:3]}
    shifted = {name: place for place, name in enumerate(one.name for one in model.graph.initializer) if name in cuts}
    for node in [node for node in model.graph.node if node.op_type == "Slice"][:6]:
        other = onnx.ModelProto()
        other.CopyFrom(model)
        for name in node.input[1:3]:
            if name in shifted:
                tensor = other.graph.initializer[shifted[name]]
                tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor) + 1, name))
        yield f"{node.name} one row on", other
    for node in [node for node in model.graph.node if node.op_type == "Gather"]:
        for number, tensor in enumerate(model.graph.initializer):
            for more in (1, 2) if tensor.name == node.input[1] else ():
                other = onnx.ModelProto()
                other.CopyFrom(model)
                value = numpy_helper.to_array(tensor) + more
                other.graph.initializer[number].CopyFrom(numpy_helper.from_array(value, tensor.name))
                yield f"{node.name} at another place", other
    for place, node in enumerate(model.graph.node):
        if node.op_type == "Concat" and len(node.input) > 1:
            for inputs in ([node.input[1], node.input[0], *node.input[2:]], list(node.input)[:-1]):
                other = onnx.ModelProto()
                other.CopyFrom(model)
                other.graph.node[place].input[:] = inputs
                yield f"{node.name} of other parts", other
            break
    for place, tensor in enumerate(model.graph.initializer):
        value = numpy_helper.to_array(tensor)
        if value.dtype == np.float32 and value.size and place % 3 == 0:
            other = onnx.ModelProto()
            other.CopyFrom(model)
            changed = value.copy().reshape(-1)
            changed[-1] += 0.5
            other.graph.initializer[place].CopyFrom(numpy_helper.from_array(changed.reshape(value.shape), tensor.name))
            yield f"another {tensor.name}", other


@pytest.mark.parametrize("kind", ["attention", "normalisation", "one token"])
def test_a_file_in_strips_that_was_tampered_with_is_not_proven(tmp_path, kind):
    net = OnnxNet(1)
    if kind == "attention":
        x, mask = net.start(1, 6, 4), net.start(6, 6)
        queries, keys, values = (net.linear(x, 4) for _ in range(3))
        scores = net.op("MatMul", [queries, net.transpose(keys, 0, 2, 1)], (1, 6, 6))
        weights = net.same("Softmax", net.same("Add", scores, mask), axis=-1)
        x = net.op("MatMul", [weights, values], (1, 6, 4))
        onnx.save(net.model(net.linear(x, 4)), tmp_path / "one.onnx")
        graph = load(tmp_path / "one.onnx")
    elif kind == "one token":
        x = net.same("Sigmoid", net.linear(net.start(1, 6, 4), 8))
        x = net.op("Gather", [x, net.constant(np.int64(-2))], (1, 8), axis=1)
        onnx.save(net.model(x), tmp_path / "one.onnx")
        graph = load(tmp_path / "one.onnx")
    else:
        x = net.op("Conv", [net.start(1, 2, 4, 3), net.drawn(4, 2, 3, 3)], (1, 4, 4, 3), pads=[1] * 4)
        flat = net.reshape(x, 1, 2, 24)
        flat = net.op("InstanceNormalization", [flat, net.drawn(2), net.drawn(2)], (1, 2, 24))
        x = net.op("Conv", [net.reshape(flat, 1, 4, 4, 3), net.drawn(2, 4, 3, 3)], (1, 2, 4, 3), pads=[1] * 4)
        onnx.save(net.model(x), tmp_path / "one.onnx")
        graph = two_passes(load(tmp_path / "one.onnx"), stored_bytes=0)
    parts = [InStrips(0, len(graph.ops), 1 if kind == "one token" else 3)]
    result = in_strips(graph, parts)
    export_onnx(tmp_path / "strips.onnx", result, range(len(result.ops)))
    proof = prove(tmp_path / "one.onnx", tmp_path / "strips.onnx")
    assert proof.proven, proof.reason
    tried = 0
    for what, other in mutations(onnx.load(tmp_path / "strips.onnx")):
        onnx.save(other, tmp_path / "other.onnx")
        assert not prove(tmp_path / "one.onnx", tmp_path / "other.onnx").proven, what
        tried += 1
    assert tried > (2 if kind == "one token" else 5)
