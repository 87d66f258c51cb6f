"""What the CUDA engine captures, on a stand-in for torch.cuda that keeps streams, events and calls: every read must be
ordered behind what makes it by streams and events alone, for nothing else survives in a CUDA graph."""

from contextlib import contextmanager
from dataclasses import replace

import pytest
import torch

from downset.errors import UnsupportedError
from downset.load import load
from downset.run import cuda
from downset.run.arena import seeded_inputs
from downset.run.bound import Binder
from downset.run.program import lower
from downset.stage_timer import merge_families
from downset.staged import prepare
from downset.stages import Stage, StageProblem
from downset.stages.greedy import greedy
from downset.stages.unit_graph import group_units
from tests.integration.test_stages import merged_stages
from tests.networks import branchy, random_network


class Recorder:
    """Stands in for torch.cuda."""

    def __init__(self):
        self.current = self.capturing = None
        self.after = {}  # item -> items it comes after
        self.calls = {}  # item -> (tensors read, tensors made)
        self.tail = {}  # stream -> its last item
        self.joined = set()
        outer = self

        class Stream:
            def __init__(self, priority=0):
                self.priority = priority

            def wait_event(self, event):
                assert event.item is not None, "waits for an event that was never recorded"
                outer.add(self, extra={event.item})

        class Event:
            item = None

            def record(self, stream):
                self.item = outer.add(stream)

        class CUDAGraph:
            def replay(self):
                raise AssertionError("nothing is replayed here")

        self.Stream, self.Event, self.CUDAGraph = Stream, Event, CUDAGraph

    def add(self, stream, extra=frozenset()):
        item = len(self.after)
        before = {self.tail[stream]} if stream in self.tail else set()
        self.after[item] = before | set(extra)
        self.tail[stream] = item
        return item

    def behind(self, item):
        seen, stack = set(), list(self.after[item])
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack += self.after[at]
        return seen

    @contextmanager
    def graph(self, graph, stream):
        self.after, self.calls, self.tail = {}, {}, {}
        self.capturing = stream
        yield
        end = self.tail[stream]
        assert all(item == end or item in self.behind(end) for item in self.after), "unjoined work at the end"
        self.capturing = None

    @contextmanager
    def stream(self, stream):
        before, self.current = self.current, stream
        yield
        self.current = before

    def synchronize(self):
        assert self.capturing is None, "a capture must not synchronise"


@pytest.fixture
def recorder(monkeypatch):
    stand_in = Recorder()

    class Torch:
        cuda = stand_in
        backends = torch.backends
        no_grad = torch.no_grad

    monkeypatch.setattr(cuda, "need_cuda", lambda: Torch)
    execute = cuda._run

    def run(calls, table):
        if stand_in.capturing is not None:
            reads = [tensor for call in calls for tensor in call.inputs]
            makes = [tensor for call in calls for tensor in call.outputs]
            stand_in.calls[stand_in.add(stand_in.current)] = (reads, makes)
        execute(calls, table)

    monkeypatch.setattr(cuda, "_run", run)
    return stand_in


def check_order(recorder):
    """Each read comes behind the nearest earlier call that made the tensor."""
    maker = {}
    for item, (reads, makes) in sorted(recorder.calls.items()):
        inside = set(makes)
        for tensor in reads:
            if tensor in maker and tensor not in inside:
                assert maker[tensor] in recorder.behind(item), f"call {item} reads tensor {tensor} unordered"
        maker.update(dict.fromkeys(makes, item))


def engine_of(path, stages_of, *, copies=1, change=lambda program: program):
    graph = prepare(load(path))
    units = group_units(graph)
    program = change(lower(units, stages_of(graph, units), barriers=False))
    values = seeded_inputs(graph)
    binder = Binder(graph)
    return cuda.CudaEngine(
        binder, units, program, inputs=graph.inputs, outputs=graph.outputs, values=values, copies=copies
    ), program


def all_at_once(graph, units):
    return greedy(StageProblem(units.predecessors), lambda _: 0.0).stages


def merged(graph, units):
    return merged_stages(units, merge_families(graph, units))


def in_order(graph, units):
    return tuple(Stage(((unit,),)) for unit in range(len(units.units)))


@pytest.mark.parametrize("stages_of", [all_at_once, merged, in_order])
@pytest.mark.parametrize("copies", [1, 3])
def test_a_capture_orders_every_read(tmp_path, recorder, stages_of, copies):
    engine, program = engine_of(branchy(tmp_path / "m.onnx"), stages_of, copies=copies)
    check_order(recorder)
    assert len(recorder.calls) == copies * len(program.steps)
    edges = sum(len(step.waits) for step in program.steps)
    events = sum(len(before) > 1 for before in recorder.after.values())
    assert events <= copies * (edges + 2 * program.lanes)
    assert len(engine.results) == 1
    assert torch.isfinite(engine.results[0]).all()
    if stages_of is all_at_once:
        assert program.lanes > 1
        priorities = sorted(stream.priority for stream in engine._streams)
        assert priorities[0] == -1
        assert priorities[-1] == 0


@pytest.mark.parametrize("seed", range(6))
def test_random_networks_are_captured_in_order(tmp_path, recorder, seed):
    engine_of(random_network(tmp_path / "m.onnx", seed=seed), all_at_once)
    check_order(recorder)


def test_the_check_finds_a_missing_edge(tmp_path, recorder):
    def without_waits(program):
        return replace(program, steps=tuple(replace(step, waits=()) for step in program.steps))

    engine_of(branchy(tmp_path / "m.onnx"), all_at_once, change=without_waits)
    with pytest.raises(AssertionError, match="unordered"):
        check_order(recorder)


def test_without_cuda_it_says_so():
    if torch.cuda.is_available():
        cuda.need_cuda()
        return
    with pytest.raises(UnsupportedError, match="no CUDA device"):
        cuda.need_cuda()
