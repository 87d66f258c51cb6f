"""Reading, reordering and placing .tflite files, held against TFLite Micro and LiteRT themselves."""

import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema
from ai_edge_litert.tools import flatbuffer_utils

from downset.arenas.plan import plan_arena
from downset.arenas.planners import ARENAS
from downset.errors import InfeasibleError, LoadError, UnsupportedError
from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.formats.tflite import flatbuffer
from downset.formats.tflite import read as tflite_reader
from downset.formats.tflite.read import load_tflite
from downset.formats.tflite.write import export_tflite
from downset.lattice import ancestors, masks
from downset.memory.liveness import lifetimes
from downset.orders.plan import plan_order
from downset.runtimes import tflm
from downset.runtimes.compare import compare_outputs
from tests.models import installed_model
from tests.tflite_net import TfliteNet

EMBEDDING = installed_model("pyopen-wakeword", "embedding_model.tflite")
STREAMING = installed_model("pymicro-wakeword", "okay_nabu.tflite")


def head_as_tflm_plans(graph, steps):
    living = lifetimes(graph, steps, "tflm")
    rank = [living.record_of.index(record) for record in range(len(living.records))]
    offsets = ARENAS["tflm_greedy"](living.records, rank=rank).solution
    return max(at + record.nbytes for at, record in zip(offsets, living.records, strict=True))


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("pyopen-wakeword", "embedding_model.tflite"),
        ("pyopen-wakeword", "hey_rhasspy.tflite"),
        ("pymicro-wakeword", "alexa.tflite"),
        ("pymicro-wakeword", "okay_nabu.tflite"),
    ],
)
def test_our_model_of_tflite_micro_gives_its_head_to_the_byte(package, name, tmp_path):
    path = installed_model(package, name)
    graph = load(path)
    assert tflm.measure(path).head_bytes == head_as_tflm_plans(graph, range(len(graph.ops)))
    order = plan_order(graph, method="kahn", memory="tflm")
    export_tflite(tmp_path / "k.tflite", graph, order.steps)
    assert tflm.measure(tmp_path / "k.tflite").head_bytes == head_as_tflm_plans(graph, order.steps)


def test_tflite_micro_obeys_embedded_offsets(tmp_path):
    graph = load(EMBEDDING)
    steps = range(len(graph.ops))
    arena = plan_arena(graph, plan_order(graph, method="file", memory="tflm"))
    for shift in (0, 64_000):
        moved = {tensor: offset + shift for tensor, offset in arena.tensor_offsets.items()}
        export_tflite(tmp_path / "m.tflite", graph, steps, offsets=moved)
        assert tflm.measure(tmp_path / "m.tflite").head_bytes == arena.arena_bytes + shift


def test_the_metadata_counts_the_tensors_of_all_subgraphs(tmp_path):
    graph = load(STREAMING)
    order = plan_order(graph, memory="tflm")
    arena = plan_arena(graph, order)
    export_tflite(tmp_path / "m.tflite", graph, order.steps, offsets=arena.tensor_offsets)
    model = flatbuffer_utils.read_model(str(tmp_path / "m.tflite"))
    (entry,) = (item for item in model.metadata if item.name == b"OfflineMemoryAllocation")
    plan = np.frombuffer(bytes(model.buffers[entry.buffer].data), np.int32)
    count = sum(len(subgraph.tensors) for subgraph in model.subgraphs)
    assert len(model.subgraphs) == 2
    assert plan[:3].tolist() == [1, 0, count]
    assert len(plan) == 3 + count
    assert {i: at for i, at in enumerate(plan[3:].tolist()) if at >= 0} == dict(arena.tensor_offsets)
    again = load(tmp_path / "m.tflite")
    assert [op.outputs for op in again.ops] == [graph.ops[v].outputs for v in order.steps]
    export_tflite(tmp_path / "n.tflite", again, range(len(again.ops)))
    names = [item.name for item in flatbuffer_utils.read_model(str(tmp_path / "n.tflite")).metadata or []]
    assert b"OfflineMemoryAllocation" not in names


def test_variables_are_read_before_they_are_written_again_in_every_order():
    graph = load(STREAMING)
    above = ancestors(masks(graph.predecessors()))
    handles = {op.outputs[0]: index for index, op in enumerate(graph.ops) if op.kind == "tflite::VAR_HANDLE"}
    reads = {op.inputs[0]: index for index, op in enumerate(graph.ops) if op.kind == "tflite::READ_VARIABLE"}
    writes = {op.inputs[0]: index for index, op in enumerate(graph.ops) if op.kind == "tflite::ASSIGN_VARIABLE"}
    (once,) = (index for index, op in enumerate(graph.ops) if op.kind == "tflite::CALL_ONCE")
    assert handles and reads.keys() == writes.keys()
    for variable, read in reads.items():
        assert above[writes[variable]] >> read & 1
        assert above[read] >> once & 1


@pytest.mark.parametrize("method", ["kahn", "dfs", "greedy", "optimal"])
def test_any_order_of_a_network_with_state_computes_the_same(method, tmp_path):
    graph = load(STREAMING)
    export_tflite(tmp_path / "m.tflite", graph, plan_order(graph, method=method, memory="tflm").steps)
    assert compare_outputs(STREAMING, tmp_path / "m.tflite", runtime="litert").equal
    assert compare_outputs(STREAMING, tmp_path / "m.tflite", runtime="tflm").equal


def test_fit_of_real_models_is_never_worse_in_tflite_micro_and_reaches_the_proof(tmp_path):
    result = fit(EMBEDDING, output=tmp_path / "e.tflite", time_limit_s=5, rewrite="off")
    assert (result.arena.before, result.arena.after, result.arena.proven) == (663_552, 454_656, True)
    assert result.measured is not None
    assert tflm.measure(tmp_path / "e.tflite").total_bytes == result.measured.after < result.measured.before
    assert result.measured.before_s > 0 and result.measured.latency.median_s > 0
    assert result.outputs.equal
    streaming = fit(STREAMING, output=tmp_path / "s.tflite", time_limit_s=5)
    assert streaming.measured is not None
    assert streaming.measured.after <= streaming.measured.before
    assert streaming.arena.proven
    assert streaming.outputs.equal


def test_a_memory_limit_below_the_proof_is_infeasible_and_writes_nothing(tmp_path):
    with pytest.raises(InfeasibleError, match="to make it fit"):
        fit(EMBEDDING, output=tmp_path / "e.tflite", ram_bytes=8 * 1024, time_limit_s=1)
    assert not list(tmp_path.iterdir())


def test_an_open_size_says_what_to_add():
    path = installed_model("pyopen-wakeword", "melspectrogram.tflite")
    with pytest.raises(
        LoadError, match=r"open: axis 1 of .* add for example dims={'serving_default_input:0\[1\]': 64}"
    ):
        load(path)
    graph = load(path, shapes={"serving_default_input:0": (1, 16000)})
    assert graph.tensors[graph.inputs[0]].shape == (1, 16000)
    assert load(path, dims={"serving_default_input:0[1]": 16000}).tensors == graph.tensors
    assert plan_order(graph, memory="tflm").peak_bytes > 16000 * 4


def test_operators_with_subgraphs_and_absent_operators_say_so(tmp_path):
    graph = load(installed_model("pyopen-wakeword", "hey_jarvis.tflite"))
    assert "If" in {op.kind for op in graph.ops}
    model = flatbuffer_utils.read_model(str(EMBEDDING))
    code = model.operatorCodes[0]
    code.builtinCode, code.deprecatedBuiltinCode, code.customCode = schema.BuiltinOperator.CUSTOM, 32, b"Mystery"
    flatbuffer_utils.write_model(model, str(tmp_path / "c.tflite"))
    graph = load(tmp_path / "c.tflite")
    assert "tflite.custom::Mystery" in {op.kind for op in graph.ops}
    assert plan_order(graph, memory="tflm").evidence.proven
    with pytest.raises(UnsupportedError):
        tflm.measure(tmp_path / "c.tflite")


@pytest.mark.own_processes("parsers")
def test_a_crash_of_the_reader_is_an_error_here(tmp_path, monkeypatch):
    """The reader that a worker imports is another one, which ends its process."""
    tools = tmp_path / "ai_edge_litert" / "tools"
    tools.mkdir(parents=True)
    for folder in (tools.parent, tools):
        (folder / "__init__.py").touch()
    (tools.parent / "schema_py_generated.py").touch()
    (tools / "flatbuffer_utils.py").write_text(
        "import os\nread_model_from_bytearray = convert_object_to_bytearray = lambda _: os.abort()\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    flatbuffer._verify.cache_clear()
    with pytest.raises(UnsupportedError, match=r"the reader of \.tflite files crashed \(signal 6\)"):
        flatbuffer.read_flatbuffer(EMBEDDING)


def test_graphs_hold_their_constants_through_the_file(tmp_path):
    path = tmp_path / "m.tflite"
    path.write_bytes(STREAMING.read_bytes())
    model = flatbuffer_utils.read_model(str(path))
    loaded = load(path)
    assert loaded.constants
    for constant in loaded.constants:
        held = model.subgraphs[0].tensors[loaded.source.tensor_index[constant]]
        content = model.buffers[held.buffer].data
        assert loaded.constant(constant).tobytes() == np.asarray(content, np.uint8).tobytes()
    path.write_bytes(path.read_bytes() + b"\n")
    with pytest.raises(LoadError, match="has changed since it was read"):
        loaded.constant(constant)


def test_a_small_file_is_read_once_for_each_state_of_it(tmp_path, monkeypatch):
    """Its graph is kept: another of that name is read."""
    path, reads = tmp_path / "m.tflite", []
    read = tflite_reader._read
    monkeypatch.setattr(tflite_reader, "_read", lambda *given: reads.append(1) or read(*given))
    for channels in (3, 5):
        net = TfliteNet(size=4)
        net.save(path, [net.op("RELU", (net.input(channels),), channels)])
        graphs = [load_tflite(path) for _ in range(3)]
        assert graphs[0] is graphs[1] is graphs[2]
        assert [graphs[0].tensors[tensor].shape[-1] for tensor in graphs[0].inputs] == [channels]
    assert len(reads) == 2
    monkeypatch.setattr(tflite_reader, "_MOST_KEPT", 10)
    assert load_tflite(path) is not load_tflite(path)
