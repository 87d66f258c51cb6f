"""`repr` is one short line that says what a thing is, however large it is and whatever a file calls it."""

from dataclasses import replace

import numpy as np
import pytest

import downset as ds
from downset.clusters.model import Cluster, Device, Link, Network
from downset.distributed.serving.serve import RunningPipeline
from downset.memory.liveness import lifetimes
from downset.reports.document import Document, Verdict
from downset.reports.text import Report
from downset.results.comparisons import Comparison, Proof
from downset.results.fit import Figure, Measured
from downset.results.memories import MemoriesPlan, Move, Residence
from downset.results.memories_fit import MemoriesFit
from downset.results.merged import FileTimes, MergedFile, MergedNetwork
from downset.results.pipelines import (
    Block,
    Buffer,
    DeviceMemory,
    PipelineSchedule,
    PipelineStage,
    Resource,
    ResourceOrder,
    Rows,
    Strip,
    Task,
    Transfer,
    Turn,
)
from downset.results.plans import Evidence, Found, Stage, StagePlan
from downset.results.serving import DeviceUse, Served, ServeEvent, Simulation
from downset.results.sessions import Latency, SessionSettings, SessionTaken
from downset.results.stages import StageCandidate, StageResult, StageRun
from downset.results.two_memories import TwoMemories

LONGEST = 300
COUNT = 1000


def chain(count=COUNT):
    """Operators one behind the other, whose names, attributes and scales are long and hold line breaks."""
    scales = {"scale": np.ones(4096, np.float32), "zero_point": [0] * 4096, "axis": 0}
    tensors = tuple(
        ds.Tensor(f"tensor\n{at} " + "x" * 200, (10,), "uint8", 10, quantization=scales) for at in range(count + 1)
    )
    attrs = {"weights": list(range(5000)), "text": "y\n" * 5000}
    ops = tuple(ds.Op(f"op\n{at} " + "z" * 200, "Relu", (at,), (at + 1,), attrs) for at in range(count))
    return ds.Graph("net\n" + "n" * 500, tensors, ops, (0,), (count,))


def large():
    """By name: something large of every type with a list in it, made by hand."""
    graph = chain()
    order = ds.plan_order(graph, method="file")
    arena = ds.plan_arena(graph, order, method="greedy_by_size")
    together = ds.Together(order, arena)
    evidence = Evidence("sequential", 0.25, 0.2, proven=False)
    groups = tuple((at,) for at in range(COUNT))
    stages = tuple(Stage((group,)) for group in groups)
    staged = StagePlan(groups, stages, False, "cpu", "d" * 50, "torch", "float32", 1, 2, "f" * 32, evidence)
    candidate = StageCandidate("both", stages, False, (0.1, 0.2) * COUNT)
    cluster = Cluster(
        tuple(Device(f"device {at}", 1e9) for at in range(COUNT)),
        Network("links", 1e6, links=tuple(Link((0, at), 1e6, 0.0) for at in range(1, COUNT))),
    )
    strips = tuple(Strip(at, at, at + 1, 10, 0, 10, 10, 10) for at in range(COUNT))
    block = Block(0, 1, tuple(range(COUNT)), 0, COUNT, "leader", strips)
    part = PipelineStage(tuple(range(COUNT)), 0, tuple(range(COUNT)), (block,) * COUNT, 10, 0)
    tasks = tuple(
        Task(0, 0, 0, transfer=Transfer(0, at, (Rows(0, at, at + 1),) * COUNT, 10), after=tuple(range(COUNT)))
        for at in range(1, COUNT)
    )
    turns = tuple(Turn(at, 0) for at in range(COUNT))
    buffers = tuple(Buffer(at, 0, 0, 1, 10, 1, (at,), (at,)) for at in range(COUNT))
    orders = tuple(ResourceOrder(Resource("device", at), turns) for at in range(COUNT))
    schedule = PipelineSchedule(2, orders, buffers, 0.2)
    memory = tuple(DeviceMemory(at, 10, 0, 10) for at in range(COUNT))
    pipeline = ds.Pipeline(
        cluster,
        "resources",
        "leader",
        0,
        0,
        "outside",
        "outside",
        (part,) * COUNT,
        tasks,
        schedule,
        memory,
        0.25,
        0.5,
        evidence,
        space="space " * COUNT,
        note="note " * COUNT,
    )
    figure = Figure(2000, 1000, 900, proven=False)
    details = {f"candidate {at}": {"total_bytes": at} for at in range(COUNT)}
    fit = ds.Fit(
        "/a/long/path" * 50 + "/model.tflite",
        "tflm",
        graph,
        arena,
        together,
        figure,
        figure,
        "order",
        Measured("tflm", 2000, 1000, details),
        Comparison(True, 0.0, "litert"),
        None,
        ("note " * 100,) * COUNT,
    )
    memories = MemoriesPlan(
        tuple(range(COUNT)),
        tuple(Residence(at, at, at + 1, 0) for at in range(COUNT)),
        tuple(Move(at, at, True, 10) for at in range(COUNT)),
        tuple((at, 10 * at) for at in range(COUNT)),
        10,
        10 * COUNT,
        10 * COUNT,
        0,
        evidence,
        0.25,
        0.2,
        tuple(range(COUNT)),
    )
    two = TwoMemories(100, 10**6, 100, 10, 10, "reference")
    in_memories = MemoriesFit(
        fit.model, graph, memories, two, (), (), (), fit.outputs, 10, "reference", False, None, notes=("n" * COUNT,)
    )
    settings = SessionSettings("s" * COUNT, {str(at): at for at in range(COUNT)})
    many = tuple(float(at) for at in range(COUNT))
    uses = tuple(DeviceUse("d" * COUNT, 0.5, 0.1, 0.1, 0.4, 0.1, 0.1, COUNT, 10) for _ in range(COUNT))
    events = tuple(ServeEvent(float(at), "lost", "d" * COUNT, "why " * COUNT) for at in range(COUNT))
    served = Served(COUNT, COUNT, 9.0, 0.25, 0.2, 0.2, (1.0, 2.0, 3.0, 4.0), 0.5, 3, uses, events)
    times = FileTimes(1, ((0.2, 0.1),) * COUNT, ((0.2, 0.1),) * COUNT)
    merged = MergedFile("merged", ("concat",) * COUNT, COUNT, COUNT, Proof(True), (times,) * COUNT)
    return {
        "graph": graph,
        "operator": graph.ops[0],
        "tensor": graph.tensors[0],
        "source": replace(graph.source, path="p" * 1000, op_index=tuple(range(COUNT))),
        "problem": ds.order_problem(graph),
        "lifetimes": lifetimes(graph, order.steps),
        "record": ds.Record("r" * 1000, 0, 1, 10, gaps=tuple((at, at + 1) for at in range(COUNT))),
        "found": Found(tuple(range(COUNT)), 10),
        "order": order,
        "arena": arena,
        "shared": ds.plan_shared(arena.records, method="greedy_by_size"),
        "together": together,
        "stage": Stage(groups),
        "stages": staged,
        "candidate": candidate,
        "tuned": StageResult(staged, (candidate,) * COUNT, 10, None, 1.5, "why " * COUNT, ("note",) * COUNT),
        "ran": StageRun("cpu", {str(at): np.zeros(COUNT) for at in range(COUNT)}, many, 0.0, 1e-3),
        "cluster": cluster,
        "network": cluster.network,
        "block": block,
        "part": part,
        "pipeline": pipeline,
        "task": tasks[0],
        "transfer": tasks[0].transfer,
        "schedule": schedule,
        "resource order": orders[0],
        "buffer": replace(buffers[0], writers=tuple(range(COUNT)), readers=tuple(range(COUNT))),
        "measured": fit.measured,
        "settings": settings,
        "taken": SessionTaken("f" * COUNT, settings, 1, 2, 3, Latency(0.1, 9, 1.0, 0.9, 1.1, 0.1)),
        "fit": fit,
        "simulation": Simulation(COUNT, COUNT, 0.25, (1.0, 2.0, 3.0, 4.0), many, many, None, 1.0),
        "served": served,
        "running": RunningPipeline(graph, pipeline, driver=None, inbox=None),
        "merged": MergedNetwork(
            COUNT, (merged,) * COUNT, merged.name, False, (times,) * COUNT, "why " * COUNT, notes=("n" * COUNT,)
        ),
        "inspection": ds.inspect(graph),
        "memories": memories,
        "fit to memories": in_memories,
        "report": Report(Document("", "", Verdict("plain", "a line of a report", "a line of a report\n" * COUNT))),
        "firmware": ds.Firmware("h" * COUNT, "s" * COUNT),
        "recomputation": ds.Recomputation(graph, order, ("r" * COUNT,) * COUNT, 1.0, evidence, ((0.5, 10),) * COUNT),
    }


@pytest.fixture(scope="module")
def things():
    return large()


def test_every_one_is_one_short_line(things):
    for name, thing in things.items():
        text = repr(thing)
        assert "\n" not in text, name
        assert len(text) <= LONGEST, (name, len(text), text)
        assert type(thing).__name__ in text, name


def test_no_public_type_is_left_out(things):
    """But errors, and those whose size is fixed or that are only held."""
    import inspect as python_inspect

    types = {name for name in ds.__all__ if python_inspect.isclass(getattr(ds, name))}
    types = {name for name in types if not issubclass(getattr(ds, name), Exception)}
    small = {
        "AsyncServiceClient",
        "Comparison",
        "DeviceUse",
        "Disturbance",
        "Evidence",
        "MemoryModel",
        "Method",
        "Move",
        "Prices",
        "Profiles",
        "Residence",
        "ServeEvent",
        "ServiceClient",
        "Shard",
        "Storage",
        "TorchDevice",
    }
    limits = {"StageLimits", "StageProblem"}
    assert types <= {type(thing).__name__ for thing in things.values()} | small | limits


def test_they_say_what_matters(things):
    assert "1000 operators, 1001 tensors" in repr(things["graph"])
    assert "20 B, bound 10 B (file)" in repr(things["order"])
    assert "20 B, proven" in repr(things["arena"])
    assert "memory live" in repr(things["arena"])
    assert "period 0.25 s, bound 0.2 s" in repr(things["pipeline"])
    assert "2,000 -> 1,000 B" in repr(things["fit"])
    assert "model.tflite" in repr(things["fit"])
    assert "1000 stages" in repr(things["stages"])
    assert "1.500x" in repr(things["tuned"])
