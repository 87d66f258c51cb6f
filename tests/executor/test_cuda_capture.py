"""What the CUDA engine captures, on a stand-in for torch.cuda that keeps streams, events and calls: every read must be
ordered behind what makes it by streams and events alone, for nothing else survives in a CUDA graph."""

import gc
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch

from downset.errors import UnsupportedError
from downset.executor import cuda
from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.lane_program import lower, possibly_live_bytes
from downset.formats.reading import load
from downset.runtimes import ort
from downset.stages.greedy import greedy
from downset.stages.prepared import prepare
from downset.stages.problem import Stage, StageProblem
from downset.stages.unit_graph import group_units
from downset.tuning.timer import merge_families
from tests.cuda_stand_in import standing_in
from tests.executor.test_stages import merged_stages
from tests.networks import branchy, random_network, view_beside


@pytest.fixture
def stand_in(monkeypatch):
    with standing_in(monkeypatch) as made:
        yield made


def check_order(stand_in):
    """Each read comes behind the nearest earlier call that made the tensor."""
    maker = {}
    for item, calls in sorted(stand_in.calls.items()):
        reads = [tensor for call, _ in calls for tensor in call.inputs]
        makes = [tensor for call, _ in calls for tensor in call.outputs]
        inside = set(makes)
        for tensor in reads:
            if tensor in maker and tensor not in inside:
                assert maker[tensor] in stand_in.behind(item), f"call {item} reads tensor {tensor} unordered"
        maker.update(dict.fromkeys(makes, item))


def engine_of(path, stages_of, *, copies=1, dtype="float32", change=lambda program: program):
    graph = prepare(load(path))
    units = group_units(graph)
    program = change(lower(units, stages_of(graph, units), barriers=False))
    values = seeded_inputs(graph)
    binder = Binder(graph, device="cuda", dtype=dtype)
    return cuda.CudaEngine(
        binder, program, inputs=graph.inputs, outputs=graph.outputs, values=values, copies=copies
    ), program


def all_at_once(graph, units):
    return greedy(StageProblem(units.predecessors), lambda _: 0.0).stages


def merged(graph, units):
    return merged_stages(units, merge_families(graph, units))


def in_order(graph, units):
    return tuple(Stage(((unit,),)) for unit in range(len(units.units)))


@pytest.mark.parametrize("stages_of", [all_at_once, merged, in_order])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_capture_orders_every_read(tmp_path, stand_in, stages_of, copies):
    engine, program = engine_of(branchy(tmp_path / "m.onnx"), stages_of, copies=copies)
    check_order(stand_in)
    assert sum(any(call.outputs for call, _ in calls) for calls in stand_in.calls.values()) == copies * len(
        program.steps
    )
    edges = sum(len(step.waits) for step in program.steps)
    events = sum(len(before) > 1 for before in stand_in.after.values())
    assert events <= copies * (edges + 2 * (program.lanes + 1))  # the watch has a lane of its own
    assert len(engine.results) == 1
    assert torch.isfinite(engine.results[0]).all()
    if stages_of is all_at_once:
        assert program.lanes > 1
        priorities = sorted(stream.priority for stream in engine._streams)
        assert priorities[0] == -1
        assert priorities[-1] == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_are_captured_in_order(tmp_path, stand_in, seed):
    engine_of(random_network(tmp_path / "m.onnx", seed=seed), all_at_once)
    check_order(stand_in)


def test_the_check_finds_a_missing_edge(tmp_path, stand_in):
    def without_waits(program):
        return replace(program, steps=tuple(replace(step, waits=()) for step in program.steps))

    engine_of(branchy(tmp_path / "m.onnx"), all_at_once, change=without_waits)
    with pytest.raises(AssertionError, match="unordered"):
        check_order(stand_in)


@pytest.mark.parametrize("stages_of", [all_at_once, merged, in_order])
@pytest.mark.parametrize("seed", range(4))
def test_replays_in_any_order_that_the_edges_allow_compute_the_same(tmp_path, stand_in, stages_of, seed):
    path = random_network(tmp_path / "m.onnx", seed=seed) if seed else branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, stages_of)
    assert stand_in.current is stand_in.default
    graph = prepare(load(path))
    values = [torch.from_numpy(value) for value in seeded_inputs(graph, seed=7)]
    expected = ort.run_on(path, {graph.tensors[graph.inputs[0]].name: values[0].numpy()})
    for _ in range(4):
        engine([-value for value in values])
        for ours, theirs in zip(engine(values), expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-5 * np.abs(theirs).max())
    assert stand_in.replays == 8


def test_outputs_alone_outlive_the_capture(tmp_path, stand_in, monkeypatch):
    made = []

    def run(calls, table):
        stand_in.execute(calls, table)
        if stand_in.capturing is not None:
            stand_in.add(stand_in.current)
            for tensor in (tensor for call in calls for tensor in call.outputs):
                stand_in.allocate(table[tensor])
                made.append(weakref.ref(table[tensor]))

    monkeypatch.setattr(cuda, "_run", run)
    engine, program = engine_of(branchy(tmp_path / "m.onnx"), all_at_once)
    assert len(made) >= len(program.steps) > 5
    stand_in.spoils.clear()
    stand_in.spoilt.clear()
    gc.collect()
    left = [ref() for ref in made if ref() is not None]
    assert [id(tensor) for tensor in left] == [id(tensor) for tensor in engine.results]


@pytest.mark.parametrize("seed", range(4))
def test_one_lane_holds_what_is_live_and_no_more(tmp_path, stand_in, seed):
    """`possibly_live_bytes` counts tensors of the graph, the caller's input among them. An activation computed inside
    its convolution has no tensor of its own; so the engine may hold less."""
    path = random_network(tmp_path / "m.onnx", seed=seed) if seed else branchy(tmp_path / "m.onnx")
    graph = prepare(load(path))
    engine, program = engine_of(path, in_order)
    live = possibly_live_bytes(graph, program)
    every = sum(graph.tensors[tensor].nbytes for op in graph.ops for tensor in op.outputs)
    assert engine.captured_bytes <= live < every


def test_garbage_is_not_counted_and_not_collected(tmp_path, stand_in, monkeypatch):
    """Collecting takes longer than a capture in a process that has much loaded."""
    path = branchy(tmp_path / "m.onnx")
    clean, _ = engine_of(path, all_at_once)
    stand_in.garbage = clean.captured_bytes // 2
    collected = []
    monkeypatch.setattr(gc, "collect", collected.append)
    engine, _ = engine_of(path, all_at_once)
    assert engine.captured_bytes == clean.captured_bytes > 0
    assert not collected


@pytest.mark.parametrize("seed", range(4))
def test_lanes_hold_no_more_than_every_tensor_and_let_go_of_some(tmp_path, stand_in, monkeypatch, seed):
    path = random_network(tmp_path / "m.onnx", seed=seed) if seed else branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, all_at_once, copies=2)
    with monkeypatch.context() as patch:
        patch.setattr(cuda._CapturedStorages, "let_go", lambda held, at: None)
        holding, _ = engine_of(path, all_at_once, copies=2)
    assert engine.captured_bytes < holding.captured_bytes


def views_elsewhere(graph, program, calls, table):
    """Tensors that show the bytes of one made on another lane."""
    lanes, found = {}, []
    for step, group in zip(program.steps, calls, strict=True):
        for tensor in (tensor for call in group for tensor in call.outputs if tensor in table):
            storage = table[tensor].untyped_storage().data_ptr()
            if lanes.setdefault(storage, step.lane) != step.lane:
                found.append(tensor)
    return found


def viewing(folder, seed):
    """(network with views, its stages); the first is `view_beside`, with the view on the second lane."""
    path = folder / f"{seed}.onnx"
    if seed:
        return random_network(path, seed=seed, operators=24, views=True), all_at_once
    groups = [(0,)], [(1,), (2,)], [(3,), (4,)], [(5,), (6,)]
    return view_beside(path), lambda graph, units: tuple(Stage(tuple(of)) for of in groups)


@pytest.mark.parametrize("seed", range(4))
def test_views_on_other_lanes_keep_what_they_show(tmp_path, stand_in, monkeypatch, seed):
    path, stages_of = viewing(tmp_path, seed)
    graph = prepare(load(path))
    tables = []
    let_go = cuda._CapturedStorages.let_go

    def seen(held, at):
        tables.append(dict(held._table))
        let_go(held, at)

    monkeypatch.setattr(cuda._CapturedStorages, "let_go", seen)
    engine, program = engine_of(path, stages_of)
    table = {tensor: value for one in tables for tensor, value in one.items()}
    elsewhere = views_elsewhere(graph, program, engine._calls, table)
    assert elsewhere
    values = [torch.from_numpy(value) for value in seeded_inputs(graph, seed=7)]
    expected = ort.run_on(path, {graph.tensors[graph.inputs[0]].name: values[0].numpy()})
    for _ in range(4):
        for ours, theirs in zip(engine(values), expected, strict=True):
            np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-5 * np.abs(theirs).max())


def ended(held, tensors, at):
    return all(held._touched[tensor] & ~held._program.before[at] == 0 for tensor in tensors)


def home(held, storage, at):
    return held._lanes[storage] == held._program.steps[at].lane


def by_issue(held, storage, tensors, at):
    """When all readers were issued, though they run on other lanes."""
    return all(held._touched[tensor] >> at == 0 for tensor in tensors)


def on_any_lane(held, storage, tensors, at):
    """When all readers precede the step, though the memory goes to another lane."""
    return ended(held, tensors, at)


def without_views(held, storage, tensors, at):
    """When the readers of what was allocated precede the step, and those of its views need not."""
    return home(held, storage, at) and ended(held, tensors[:1], at)


def by_the_last_view(held, storage, tensors, at):
    """When the readers of the last view precede the step, and those of the others need not."""
    return home(held, storage, at) and ended(held, tensors[-1:], at)


def on_the_lane_of_a_view(held, storage, tensors, at):
    """When all readers precede the step, on the lane that made the last view."""
    makers = [step for step, calls in enumerate(held._calls) for call in calls if tensors[-1] in call.outputs]
    return held._program.steps[makers[0]].lane == held._program.steps[at].lane and ended(held, tensors, at)


def for_readers_alone(held, storage, tensors, at):
    """When those that read precede the step, though a view is an output that nobody reads."""
    outputs = [tensor for tensor in tensors if held._touched[tensor] == -1]
    rest = [tensor for tensor in tensors if tensor not in outputs]
    return home(held, storage, at) and bool(rest) and ended(held, rest, at)


RULES = [by_issue, on_any_lane, without_views, by_the_last_view, on_the_lane_of_a_view, for_readers_alone]


@pytest.mark.parametrize("rule", RULES)
def test_what_is_let_go_too_early_is_spoilt(tmp_path, stand_in, monkeypatch, rule):
    class TooEarly(cuda._CapturedStorages):
        def let_go(self, at):
            for storage in [storage for storage in self._lanes if rule(self, storage, self._tensors[storage], at)]:
                tensors = self._tensors.pop(storage)
                del self._lanes[storage]
                stand_in.free([self._table[tensor] for tensor in tensors])  # the table keeps them: a replay shall tell

    monkeypatch.setattr(cuda, "_CapturedStorages", TooEarly)
    noticed = 0
    for seed in range(7):
        path, stages_of = viewing(tmp_path, seed)
        graph = prepare(load(path))
        engine, _ = engine_of(path, stages_of)
        values = [torch.from_numpy(value) for value in seeded_inputs(graph, seed=7)]
        noticed += not all(torch.isfinite(result).all() for _ in range(4) for result in engine(values))
    assert noticed


def test_inputs_given_are_never_written(tmp_path, stand_in):
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    units, binder = group_units(graph), Binder(graph, device="cuda")
    given = [binder.place(value) for value in seeded_inputs(graph)]
    before = [value.clone() for value in given]
    options = {"inputs": graph.inputs, "outputs": graph.outputs, "values": given}
    engine = cuda.CudaEngine(binder, lower(units, in_order(graph, units), barriers=False), **options)
    engine([torch.zeros_like(value) for value in given])
    assert all(torch.equal(value, old) for value, old in zip(given, before, strict=True))


def test_replays_without_an_edge_do_not(tmp_path, stand_in):
    def without_waits(program):
        return replace(program, steps=tuple(replace(step, waits=()) for step in program.steps))

    path = branchy(tmp_path / "m.onnx")
    engine, _ = engine_of(path, all_at_once, change=without_waits)
    graph = prepare(load(path))
    values = [torch.from_numpy(value) for value in seeded_inputs(graph, seed=7)]
    (expected,) = ort.run_on(path, {graph.tensors[graph.inputs[0]].name: values[0].numpy()})
    found = []
    for _ in range(8):
        engine([-value for value in values])
        found.append(bool(np.allclose(engine(values)[0].numpy(), expected, atol=1e-4)))
    assert not all(found)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_is_kept_throughout(tmp_path, stand_in, dtype):
    engine, _ = engine_of(branchy(tmp_path / "m.onnx"), merged, dtype=dtype)
    wanted = getattr(torch, dtype)
    made = {
        table[tensor].dtype for calls in stand_in.calls.values() for call, table in calls for tensor in call.outputs
    }
    assert made == {wanted}
    assert engine.static[0].dtype == wanted
    assert engine.static[0].is_contiguous(memory_format=torch.channels_last)


@pytest.mark.parametrize("asked", [False, True])
def test_algorithms_are_chosen_before_the_capture_and_never_in_it(tmp_path, stand_in, monkeypatch, asked):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", asked)
    seen = []
    execute = cuda._run

    def run(calls, table):
        seen.append((stand_in.capturing is not None, torch.backends.cudnn.benchmark, gc.isenabled()))
        execute(calls, table)

    monkeypatch.setattr(cuda, "_run", run)
    before = torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit, gc.isenabled()
    engine_of(branchy(tmp_path / "m.onnx"), all_at_once)
    assert {(benchmark, collected) for capturing, benchmark, collected in seen if not capturing} == {(True, True)}
    assert {(benchmark, collected) for capturing, benchmark, collected in seen if capturing} == {(False, False)}
    assert (torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit, gc.isenabled()) == before


@pytest.mark.parametrize("when", ["warming up", "capturing"])
def test_a_failure_names_the_operator_and_leaves_the_stream(tmp_path, stand_in, monkeypatch, when):
    execute = cuda._run

    def run(calls, table):
        kinds = {graph.ops[makers[tensor]].kind for call in calls for tensor in call.outputs}
        if "MaxPool" in kinds and (stand_in.capturing is not None) == (when == "capturing"):
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing\nmore lines")
        execute(calls, table)

    path = branchy(tmp_path / "m.onnx")
    graph = prepare(load(path))
    makers = graph.producers()
    monkeypatch.setattr(cuda, "_run", run)
    with pytest.raises(UnsupportedError, match=r"\(MaxPool\) cannot run in a CUDA graph here: CUDA error.*capturing$"):
        engine_of(path, all_at_once)
    assert stand_in.current is stand_in.default
    assert gc.isenabled()


def test_without_cuda_it_says_so():
    if torch.cuda.is_available():
        cuda.need_cuda()
        return
    with pytest.raises(UnsupportedError, match="no CUDA device"):
        cuda.need_cuda()
