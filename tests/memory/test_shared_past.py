"""What docs/memory-models-ort.md says of a decoder's past: which operators write it in place in ONNX Runtime, and that
a Concat of past and new is counted as it is."""

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import downset as ds
from downset.memory.liveness import order_problem, profile

HEADS, DEPTH, LONGEST, PAST = 2, 8, 16, 5
CACHE = (1, HEADS, LONGEST, DEPTH)


def value(name, shape, kind=TensorProto.FLOAT):
    return helper.make_tensor_value_info(name, kind, shape)


def session(node, inputs, outputs, version):
    graph = helper.make_graph([node], "step", inputs, outputs)
    versions = [helper.make_opsetid("", version), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=versions, ir_version=10)
    return onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])


@pytest.fixture
def drawn():
    random = np.random.default_rng(0)
    return lambda *shape: random.standard_normal(shape).astype(np.float32)


def in_one_buffer(runs, feeds, pairs):
    """(the first output, the buffers) of a run in which each pair of an input and an output is one buffer."""
    binding = runs.io_binding()
    arrays = {name: feeds[name].copy() for name, _ in pairs}  # a value of ONNX Runtime refers to the array's memory
    shared = {name: onnxruntime.OrtValue.ortvalue_from_numpy(array) for name, array in arrays.items()}
    for name, array in feeds.items():
        if name not in shared:
            binding.bind_cpu_input(name, array)
    for name, result in pairs:
        binding.bind_ortvalue_input(name, shared[name])
        binding.bind_ortvalue_output(result, shared[name])
    results = {result for _, result in pairs}
    other = next((each.name for each in runs.get_outputs() if each.name not in results), None)
    if other is not None:
        binding.bind_output(other)
    runs.run_with_iobinding(binding)
    last = binding.get_outputs()[-1].numpy().copy() if other is not None else None
    return last, [one.numpy().copy() for one in shared.values()]


def test_grouped_attention_writes_a_past_of_the_greatest_length_in_place(drawn):
    node = helper.make_node(
        "GroupQueryAttention",
        ["q", "k", "v", "past_k", "past_v", "ends", "total"],
        ["y", "present_k", "present_v"],
        domain="com.microsoft",
        num_heads=HEADS,
        kv_num_heads=HEADS,
    )
    step, length = (1, 1, HEADS * DEPTH), [1, HEADS, "length", DEPTH]
    inputs = [value(name, step) for name in "qkv"] + [value(f"past_{name}", length) for name in "kv"]
    inputs += [value(name, [1], TensorProto.INT32) for name in ("ends", "total")]
    results = [value("y", step), *(value(f"present_{name}", [1, HEADS, "result", DEPTH]) for name in "kv")]
    runs = session(node, inputs, results, 17)
    feeds = {name: drawn(*step) for name in "qkv"}
    feeds |= {"ends": np.array([PAST], np.int32), "total": np.array([PAST + 1], np.int32)}
    pasts = {f"past_{name}": drawn(1, HEADS, PAST, DEPTH) for name in "kv"}
    apart = runs.run(None, {**feeds, **pasts})
    room = {name: np.zeros(CACHE, np.float32) for name in pasts}
    for name, past in pasts.items():
        room[name][:, :, :PAST] = past
    last, caches = in_one_buffer(runs, {**feeds, **room}, [("past_k", "present_k"), ("past_v", "present_v")])
    assert last.tobytes() == apart[0].tobytes()
    for cache, present in zip(caches, apart[1:], strict=True):
        assert np.array_equal(cache[:, :, : PAST + 1], present)


def test_tensor_scatter_writes_in_place(drawn):
    node = helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], mode="linear", axis=2)
    inputs = [value("past", CACHE), value("new", (1, HEADS, 1, DEPTH)), value("at", [1], TensorProto.INT64)]
    runs = session(node, inputs, [value("present", CACHE)], 24)
    feeds = {"past": drawn(*CACHE), "new": drawn(1, HEADS, 1, DEPTH), "at": np.array([PAST], np.int64)}
    expected = feeds["past"].copy()
    expected[:, :, PAST : PAST + 1] = feeds["new"]
    _, (cache,) = in_one_buffer(runs, feeds, [("past", "present")])
    assert np.array_equal(cache, expected)


def test_fit_names_the_pairs_that_may_be_one_buffer(drawn, tmp_path):
    """The pairs that it names are written in place, and those of a Concat are not named."""
    nodes = [
        helper.make_node("TensorScatter", ["past", "new", "at"], ["present"], mode="linear", axis=2),
        helper.make_node("ReduceSum", ["present"], ["y"], keepdims=0),
        helper.make_node("Concat", ["other", "new"], ["longer"], axis=2),
    ]
    inputs = [value("past", CACHE), value("new", (1, HEADS, 1, DEPTH)), value("at", [1], TensorProto.INT64)]
    inputs.append(value("other", (1, HEADS, PAST, DEPTH)))
    results = [value("y", []), value("present", CACHE), value("longer", (1, HEADS, PAST + 1, DEPTH))]
    graph = helper.make_graph(nodes, "step", inputs, results)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=10)
    onnx.save(model, tmp_path / "step.onnx")
    fitted = ds.fit(tmp_path / "step.onnx", output=tmp_path / "f.onnx", time_limit_s=1)
    (told,) = [note for note in fitted.notes if "one buffer" in note]
    nbytes = 4 * HEADS * LONGEST * DEPTH
    assert told.endswith(f"(io_binding): past and present; {nbytes:,} B less for it")
    runs = onnxruntime.InferenceSession(str(tmp_path / "f.onnx"), providers=["CPUExecutionProvider"])
    feeds = {"past": drawn(*CACHE), "new": drawn(1, HEADS, 1, DEPTH), "at": np.array([PAST], np.int64)}
    feeds["other"] = drawn(1, HEADS, PAST, DEPTH)
    expected = feeds["past"].copy()
    expected[:, :, PAST : PAST + 1] = feeds["new"]
    binding = runs.io_binding()
    shared = onnxruntime.OrtValue.ortvalue_from_numpy(feeds["past"].copy())
    for name, array in feeds.items():
        if name != "past":
            binding.bind_cpu_input(name, array)
    binding.bind_ortvalue_input("past", shared)
    binding.bind_ortvalue_output("present", shared)
    binding.bind_output("y")
    binding.bind_output("longer")
    runs.run_with_iobinding(binding)
    assert np.array_equal(shared.numpy(), expected)


def test_a_concatenation_of_past_and_new_is_counted_whole(tmp_path):
    """While it runs the past (the caller's, live), what is new and the result are there."""
    nodes = [helper.make_node("Relu", ["x"], ["new"]), helper.make_node("Concat", ["past", "new"], ["y"], axis=1)]
    ends = [value("x", (1, 1, 64)), value("past", (1, "past", 64)), value("y", (1, "length", 64))]
    graph = helper.make_graph(nodes, "step", ends[:2], ends[2:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, tmp_path / "step.onnx")
    graph = ds.load(tmp_path / "step.onnx", dims={"past": 31})
    past, one, result = 31 * 256, 256, 32 * 256
    assert profile(order_problem(graph, "live"), range(2))[1] >= past + one + result
    assert profile(order_problem(graph, "ort"), range(2))[1] == one + result
