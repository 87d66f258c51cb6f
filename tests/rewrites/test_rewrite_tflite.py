"""Rewritten networks as .tflite files: LiteRT and TFLite Micro compute what they did before."""

import numpy as np
import pytest
from ai_edge_litert.interpreter import Interpreter, OpResolverType
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.arenas.plan import plan_arena
from downset.formats.reading import load
from downset.formats.writing import export
from downset.orders.plan import plan_order
from downset.rewrites.concat.partition import concat_partition, partition_sites
from downset.runtimes import tflm
from tests.effort import cases
from tests.tflite_net import TfliteNet


def run(path, seed=0):
    """LiteRT in this process, reference kernels, on small whole numbers. Its optimised integer kernel for depthwise
    convolutions rounds by the channel's place among all of them: there a channel alone may differ by one."""
    resolver = OpResolverType.BUILTIN_REF
    interpreter = Interpreter(str(path), experimental_op_resolver_type=resolver, num_threads=1)
    interpreter.allocate_tensors()
    random = np.random.default_rng(seed)
    for detail in interpreter.get_input_details():
        interpreter.set_tensor(detail["index"], random.integers(-3, 4, detail["shape"]).astype(detail["dtype"]))
    interpreter.invoke()
    return [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]


@st.composite
def networks(draw, dtype):
    net = TfliteNet(draw(st.integers(0, 99)), dtype=dtype)
    current = net.input(4)
    outputs = []
    for _ in range(draw(st.integers(1, 2))):
        parts = [net.conv(current, draw(st.sampled_from([2, 4]))) for _ in range(draw(st.integers(2, 3)))]
        if draw(st.integers(0, 3)) == 0:
            parts.append(draw(st.sampled_from([parts[0], current])))
        current = net.concat(parts, axis=draw(st.sampled_from([3, -1])))
        if draw(st.integers(0, 3)) == 0:
            outputs.append(draw(st.sampled_from([current, *parts])))
        for _ in range(draw(st.integers(0, 2))):
            relu = draw(st.booleans())
            if draw(st.booleans()):
                current = net.op("RELU", (current,), net.channels(current))
            else:
                current = net.depthwise(current, draw(st.sampled_from([1, 2])), relu=relu)
        joined, relu, kernel = current, draw(st.booleans()), draw(st.sampled_from([1, 3]))
        groups = draw(st.sampled_from([1, 1, 2])) if dtype == "float32" else 1
        current = net.conv(joined, 4, kernel, relu=relu, groups=groups)
        if draw(st.integers(0, 3)) == 0:  # the same weights once more
            weights = tuple(net.main.operators[-1].inputs[1:])
            other = joined if draw(st.booleans()) else net.concat([joined, net.conv(joined, 2)])
            if net.channels(other) == net.channels(joined):
                outputs.append(net.conv(other, 4, kernel, weights=weights))
    return net, list(dict.fromkeys([current, *outputs]))


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@given(data=st.data())
@settings(max_examples=cases(50))
def test_the_file_computes_the_same_bit_for_bit(tmp_path_factory, dtype, data):
    """Floats are whole numbers here; int8 is exact because only what acts on every channel alone is taken apart."""
    net, outputs = data.draw(networks(dtype))
    folder = tmp_path_factory.mktemp("net")
    graph = load(net.save(folder / "m.tflite", outputs))
    chosen = [site for site in partition_sites(graph) if data.draw(st.booleans())]
    rewritten = concat_partition(graph, chosen)
    order = plan_order(rewritten, memory="tflm")
    export(folder / "r.tflite", rewritten, order, plan_arena(rewritten, order))
    for ours, original in zip(run(folder / "r.tflite"), run(folder / "m.tflite"), strict=True):
        np.testing.assert_array_equal(ours, original)
    again = load(folder / "r.tflite")
    assert [op.kind for op in again.ops] == [rewritten.ops[step].kind for step in order.steps]
    ours, theirs = (sorted(t.nbytes for t in g.tensors if t.role == "activation") for g in (again, rewritten))
    assert ours == theirs


@pytest.mark.parametrize("accumulate", ["chain", "sum"])
def test_tflite_micro_needs_exactly_what_is_planned_and_computes_the_same(tmp_path, accumulate):
    net = TfliteNet(size=16)
    x = net.input(2)
    y = net.conv(net.concat([net.conv(x, 8) for _ in range(5)]), 4, 3, relu=accumulate == "chain")
    path = net.save(tmp_path / "m.tflite", [net.conv(y, 2)])
    graph = load(path)
    rewritten = concat_partition(graph, partition_sites(graph), accumulate=accumulate)
    order = plan_order(rewritten, memory="tflm")
    arena = plan_arena(rewritten, order)
    export(tmp_path / "r.tflite", rewritten, order, arena)
    original, ours = tflm.measure(path), tflm.measure(tmp_path / "r.tflite")
    assert arena.arena_bytes == ours.head_bytes < original.head_bytes
    for one, other in zip(ours.outputs, original.outputs, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-3)


def test_weights_and_tensors_that_nobody_reads_leave_the_file(tmp_path):
    net = TfliteNet(size=4)
    x = net.input(64)
    path = net.save(tmp_path / "m.tflite", [net.conv(net.concat([net.conv(x, 64), net.conv(x, 64)]), 64)])
    graph = load(path)
    rewritten = concat_partition(graph, partition_sites(graph))
    export(tmp_path / "r.tflite", rewritten, plan_order(rewritten, memory="tflm"))
    grown = (tmp_path / "r.tflite").stat().st_size - path.stat().st_size
    assert grown < 64 * 128 * 4 / 4  # not the joined weights in addition to their parts
    again = load(tmp_path / "r.tflite")
    assert len(again.tensors) == len(rewritten.tensors)
    for ours, original in zip(run(tmp_path / "r.tflite"), run(path), strict=True):
        np.testing.assert_array_equal(ours, original)


@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_padding_of_rows_is_padding_of_every_part(tmp_path, dtype):
    net = TfliteNet(dtype=dtype)
    x = net.input(2)
    padded = net.pad(net.concat([net.conv(x, 2), net.conv(x, 4)]))
    path = net.save(tmp_path / "m.tflite", [padded])
    graph = load(path)
    rewritten = concat_partition(graph, partition_sites(graph))
    assert [op.kind for op in rewritten.ops] == ["Conv", "Conv", "Pad", "Pad", "Concat"]
    export(tmp_path / "r.tflite", rewritten, plan_order(rewritten, method="file", memory="tflm"))
    for ours, original in zip(run(tmp_path / "r.tflite"), run(path), strict=True):
        assert ours.shape == (1, 6, 5, 6)
        np.testing.assert_array_equal(ours, original)
