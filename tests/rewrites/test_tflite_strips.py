"""Networks computed in strips, written as .tflite files: LiteRT and TFLite Micro compute what they did before."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from hypothesis import assume, event, given, reject, settings
from hypothesis import strategies as st
from tflite_micro import runtime as micro

from downset.arenas.plan import plan_arena
from downset.equivalence.prove import prove
from downset.errors import UnsupportedError
from downset.formats.reading import load
from downset.formats.writing import export
from downset.graph.cost import row_form
from downset.graph.kinds import kind_of
from downset.memory.liveness import order_problem, profile
from downset.memory.models import memory_model
from downset.memory.overlaps import KERNELS
from downset.orders.plan import plan_order
from downset.partial.price import Pricing
from downset.partial.rewrite import InStrips, in_strips
from downset.partial.segments import find_segment, find_segments
from downset.rewrites.tflite_form import CONCAT_INPUTS, IN_PLACE, tflite_form, tflite_forms, writable_rows
from tests.effort import cases
from tests.strip_networks import StripNet, strip_networks, viewed_networks


def drawn(shape, dtype, seed):
    random = np.random.default_rng(seed)
    if np.dtype(dtype) == np.int8:
        return random.integers(-128, 128, shape).astype(np.int8)
    return random.uniform(-1, 1, shape).astype(dtype)


def in_litert(path, seed=0):
    """The built-in kernels, optimised ones where there are, without delegates."""
    resolver = OpResolverType.BUILTIN_WITHOUT_DEFAULT_DELEGATES
    interpreter = Interpreter(str(path), experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], drawn(detail["shape"], detail["dtype"], seed))
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


def in_micro(path, count, seed=0):
    interpreter = micro.Interpreter.from_file(str(path), arena_size=1 << 22)
    detail = interpreter.get_input_details(0)
    interpreter.set_input(drawn(detail["shape"], detail["dtype"], seed), 0)
    interpreter.invoke()
    return [np.array(interpreter.get_output(index)) for index in range(count)]


@pytest.mark.parametrize("dtype", ["int8", "float32"])
@given(data=st.data())
@settings(max_examples=cases(60))
def test_strips_compute_what_the_network_does(tmp_path_factory, dtype, data):
    """int8 bit for bit, in both runtimes, with the planned offsets in force in TFLite Micro, and without them."""
    net, outputs = data.draw(strip_networks(dtype))
    folder = tmp_path_factory.mktemp("net")
    path = net.save(folder / "m.tflite", outputs)
    graph = load(path)
    windows = [index for index, op in enumerate(graph.ops) if kind_of(op.kind).rows == "window"]
    cut_off = [index for index in windows if data.draw(st.booleans())]
    form = writable_rows(graph, row_form(graph, halos_required=False), cut_off=cut_off)
    segments = sorted(find_segments(graph, form), key=lambda segment: segment.first - segment.stop)
    assume(segments)
    segment = data.draw(st.sampled_from(segments))
    recomputed = data.draw(st.one_of(st.just(segment.operators), st.sets(st.sampled_from(list(segment.operators)))))
    part = InStrips(
        segment.first, segment.stop, data.draw(st.integers(2, 14)), frozenset(recomputed), data.draw(st.booleans())
    )
    try:
        by_rows = in_strips(graph, [part], form=form)
    except UnsupportedError:  # fewer rows than strips
        reject()
    if not cut_off:
        _check_forms(by_rows)
    striped = tflite_form(by_rows, cut_off=cut_off, in_place=data.draw(st.sampled_from(IN_PLACE)))
    kinds = {op.kind for op, at in zip(striped.ops, striped.source.op_index, strict=True) if at < 0}
    event(f"{sorted(kinds - {'Conv', 'Concat', 'tflite::SLICE'})}")
    assert max((len(op.inputs) for op in striped.ops if op.kind == "Concat"), default=0) <= CONCAT_INPUTS
    order = plan_order(striped, memory="tflm", time_limit_s=0.2)
    export(folder / "placed.tflite", striped, order, plan_arena(striped, order, time_limit_s=0.2))
    export(folder / "free.tflite", striped, order)
    check = np.testing.assert_array_equal
    if dtype == "float32":
        check = lambda one, other: np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)  # noqa: E731
    for file in ("placed.tflite", "free.tflite"):
        proof = prove(path, folder / file)
        assert proof.proven, proof.reason
    for run in (in_litert, lambda file: in_micro(file, len(outputs))):
        expected = run(path)
        for file in ("placed.tflite", "free.tflite"):
            for ours, original in zip(run(folder / file), expected, strict=True):
                check(ours, original)


def _check_forms(by_rows):
    """The forms differ in copies that are made in place alone; each choice includes those before it."""
    forms = tflite_forms(by_rows)
    copies = [
        {
            (index, name): value
            for index, op in enumerate(form.ops)
            for name, value in op.attrs.items()
            if name in COPIES
        }
        for form in forms
    ]
    cuts = {key: value for key, value in copies[3].items() if key[1] == "lies_at"}
    assert not copies[0] and copies[1] == cuts
    assert all(len(value) == 1 for (_, name), value in copies[2].items() if name == "in_place")
    source = forms[3].source
    for at, op in enumerate(forms[3].ops):
        if op.kind == "Concat" and source.op_index[at] < 0 and source.tensor_index[op.outputs[0]] >= 0:
            assert copies[3][at, "in_place"] == tuple(range(len(op.inputs)))
    assert all(fewer.items() <= more.items() for fewer, more in pairwise(copies))
    plain = [[replace(op, attrs={k: op.attrs[k] for k in op.attrs if k not in COPIES}) for op in f.ops] for f in forms]
    assert all(ops == plain[0] for ops in plain)
    assert [form.ops for form in forms] == [tflite_form(by_rows, in_place=choice).ops for choice in IN_PLACE]
    assert {name for op in plain[0] for name in op.attrs} <= {name for op in by_rows.ops for name in op.attrs}


COPIES = ("lies_at", "in_place")
OVER = (*(f"tflm-{kernels}" for kernels in KERNELS), "tflm-esp-nn-s3", "tflm-esp-nn-p4@1.2.1")
PRICED = ("tflm", *OVER, "litert", "ort", "torch")
"""Memory models: results lie over inputs, the scratch of kernels counts, which depends on the rows of a strip, or
reshapes are views."""


def test_operators_that_widen_weights_stay(tmp_path):
    """Strips read what they make; a file without them reads tensors that nothing makes."""
    net = StripNet(0, dtype="float32")
    path = net.save(tmp_path / "m.tflite", [net.widened(net.widened(net.start(9, 4, 3)))])
    graph = load(path)
    part = InStrips(0, len(graph.ops), 3)
    striped = tflite_form(in_strips(graph, [part]))
    assert [op.kind for op in striped.ops].count("DequantizeLinear") == 2
    price = Pricing(graph, row_form(graph), memory_model("tflm")).strips(find_segment(graph, 0, len(graph.ops)), 3)
    assert price.extra_operators == len(striped.ops) - len(graph.ops)
    export(tmp_path / "s.tflite", striped, plan_order(striped, method="file", memory="litert"))
    assert prove(path, tmp_path / "s.tflite").proven
    np.testing.assert_allclose(in_litert(tmp_path / "s.tflite")[0], in_litert(path)[0], rtol=1e-5)


@given(data=st.data())
@settings(max_examples=cases(20))
def test_prices_are_the_peaks_of_what_is_written(tmp_path_factory, data):
    """Where no cut and no join lies in place; results may lie over inputs."""
    net, outputs = data.draw(strip_networks("int8"))
    graph = load(net.save(tmp_path_factory.mktemp("net") / "m.tflite", outputs))
    windows = [index for index, op in enumerate(graph.ops) if kind_of(op.kind).rows == "window"]
    form = writable_rows(
        graph, row_form(graph, halos_required=False), cut_off=[at for at in windows if data.draw(st.booleans())]
    )
    found = find_segments(graph, form, most_crossing=data.draw(st.integers(1, 3)))
    segments = sorted(found, key=lambda segment: segment.first - segment.stop)
    assume(segments)
    segment = data.draw(st.sampled_from(segments))
    recomputed = frozenset(data.draw(st.sets(st.sampled_from(list(segment.operators)))))
    strips, even = data.draw(st.integers(1, 9)), data.draw(st.booleans())
    try:
        by_rows = in_strips(graph, [InStrips(segment.first, segment.stop, strips, recomputed, even)], form=form)
    except UnsupportedError:
        reject()
    written = tflite_form(by_rows, in_place="nothing")
    made = segment.stop - segment.first + len(written.ops) - len(graph.ops)
    for memory in PRICED:
        price = Pricing(graph, form, memory_model(memory)).strips(segment, strips, recomputed=recomputed, even=even)
        live = profile(order_problem(written, memory), range(len(written.ops)))
        assert price.peak_bytes == max(live[segment.first : segment.first + made]), memory


@given(data=st.data())
@settings(max_examples=cases(100))
def test_prices_of_tensors_that_share_bytes_are_the_peaks_of_what_is_written(tmp_path_factory, data):
    """Views and sums of tensors that lie in the same bytes, inside a segment and around it."""
    net, outputs = data.draw(viewed_networks())
    graph = load(net.save(tmp_path_factory.mktemp("net") / "m.tflite", outputs))
    form = writable_rows(graph, row_form(graph, halos_required=False))
    segments = list(find_segments(graph, form, most_crossing=4))  # short ones first
    assume(segments)
    segment = data.draw(st.sampled_from(segments if data.draw(st.booleans()) else segments[:3]))
    part = InStrips(segment.first, segment.stop, data.draw(st.sampled_from([1, 1, 2, 3])))
    try:
        written = tflite_form(in_strips(graph, [part], form=form), in_place="nothing")
    except UnsupportedError:
        reject()
    made = segment.stop - segment.first + len(written.ops) - len(graph.ops)
    for memory in ("tflm-reference", "litert", "ort", "torch"):
        price = Pricing(graph, form, memory_model(memory)).strips(segment, part.strips)
        live = profile(order_problem(written, memory), range(len(written.ops)))
        assert price.peak_bytes == max(live[segment.first : segment.first + made]), memory


@pytest.mark.parametrize(("memory", "peak_bytes"), [("litert", 3 * 128), ("ort", 3 * 256), ("tflm", 2 * 128)])
def test_views_of_rows_take_no_bytes(tmp_path, memory, peak_bytes):
    """By hand: two cuts of 64 bytes, which ONNX Runtime aligns to 256, and what they are cut from; in LiteRT also the
    graph's input. TFLite Micro copies one of them before it makes the other."""
    net = StripNet(0, dtype="int8")
    x = net.start(4, 8, 4)
    window = {"strideH": 1, "strideW": 1, "padding": 1, "dilationHFactor": 1, "dilationWFactor": 1}
    convolved = net.add_op("CONV_2D", (x, *net._weights(x, (4, 1, 1, 4), 0)), net.shape(x), "Conv2DOptions", **window)
    looked = net.add_op(
        "RESHAPE", (convolved,), (1, 4, 1, 8, 4), "ReshapeOptions", like=convolved, newShape=[1, 4, 1, 8, 4]
    )
    last = net.add_op("RESHAPE", (looked,), net.shape(x), "ReshapeOptions", like=looked, newShape=[*net.shape(x)])
    graph = load(net.save(tmp_path / "m.tflite", [last]))
    form = writable_rows(graph, row_form(graph, halos_required=False))
    segment = find_segment(graph, 1, 2)
    price = Pricing(graph, form, memory_model(memory)).strips(segment, 2)
    written = tflite_form(in_strips(graph, [InStrips(1, 2, 2)], form=form), in_place="nothing")
    live = profile(order_problem(written, memory), range(len(written.ops)))
    assert price.peak_bytes == max(live[1:-1]) == peak_bytes


@given(data=st.data())
@settings(max_examples=cases(20))
def test_padded_average_pools_are_priced_as_they_are_written(tmp_path_factory, data):
    """The file cannot pad for them, as they divide by the positions that are not padding: rows of SAME are cut off."""
    net = StripNet(data.draw(st.integers(0, 99)), dtype="int8")
    size = data.draw(st.integers(4, 9)), data.draw(st.integers(1, 5))
    x = net.start(*size, data.draw(st.integers(1, 3)))
    window = {"strideH": 1, "strideW": 1, "padding": 0, "fusedActivationFunction": 0}
    for _ in range(data.draw(st.integers(1, 3))):
        kernel = {"filterHeight": data.draw(st.integers(2, 4)), "filterWidth": data.draw(st.integers(2, 3))}
        name = data.draw(st.sampled_from(["AVERAGE_POOL_2D", "AVERAGE_POOL_2D", "MAX_POOL_2D"]))
        x = net.add_op(name, (x,), net.shape(x), "Pool2DOptions", like=x, **window, **kernel)
    graph = load(net.save(tmp_path_factory.mktemp("net") / "m.tflite", [x]))
    form = writable_rows(graph, row_form(graph, halos_required=False))
    segment = find_segment(graph, 0, len(graph.ops))
    recomputed = frozenset(data.draw(st.sets(st.sampled_from(list(segment.operators)))))
    strips = data.draw(st.integers(2, 4))
    try:
        by_rows = in_strips(graph, [InStrips(0, len(graph.ops), strips, recomputed)], form=form)
        written = tflite_form(by_rows, in_place="nothing")
    except UnsupportedError:
        reject()
    for memory in PRICED:
        price = Pricing(graph, form, memory_model(memory)).strips(segment, strips, recomputed=recomputed)
        assert price.extra_operators == len(written.ops) - len(graph.ops)
        assert price.peak_bytes == max(profile(order_problem(written, memory), range(len(written.ops)))), memory
