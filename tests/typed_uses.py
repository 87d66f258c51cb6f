"""Uses of the public names as a user's program has them: two lines are wrong, and mypy says so of these two only."""

from typing import Any, assert_type

import numpy as np
import numpy.typing as npt

import downset as ds

graph = ds.load("model.onnx", shapes={"x": (1, 3, 224, 224)})
assert_type(graph, ds.Graph)
assert_type(ds.inspect(graph, memory="ort"), ds.Inspection)
order = ds.plan_order(graph, method="optimal", memory="tflm")
recomputed: tuple[str, ...] = ds.plan_recompute(graph, 10**6).recomputed
traced: Any = None  # a torch.fx.Graph
assert_type(ds.plan_step(traced, 10**6).within, bool)
assert_type(order, ds.Order)
assert_type(order.peak_bytes, int)
assert_type(order.evidence.proven, bool)
arena = ds.plan_arena(graph, order, method="best")
assert_type(arena, ds.Arena)
assert_type(ds.plan_arena([ds.Record("a", 0, 1, 100)]), ds.Arena)
assert_type(ds.plan_shared(arena.records), ds.SharedObjects)
memories = ds.plan_memories(graph, fast=2**18, slow=2**23, prices=ds.Prices(load=2.0))
assert_type(memories, ds.MemoriesPlan)
assert_type(memories.moves, tuple[ds.Move, ...])
together = ds.plan_together(graph, memory="live")
assert_type(together, ds.Together)
cluster = ds.load_cluster("pico_1mac")
pipeline = ds.plan_pipeline(graph, cluster, max_latency_s=2.0)
assert_type(pipeline, ds.Pipeline)
assert_type(ds.plan_by_every_method(graph, cluster), dict[str, ds.Pipeline | None])
assert_type(ds.simulate(pipeline, disturbances=[ds.Disturbance(0, 1.0)]), ds.Simulation)
assert_type(ds.export_shards("shards", graph, pipeline), tuple[ds.Shard, ...])
with ds.serve(graph, pipeline, head="10.0.0.1:6379", keys="keys/driver") as served:
    assert_type(served, ds.RunningPipeline)
    assert_type(served.submit(np.zeros((1, 3, 8, 8), np.float32)), int)
    for found in served:
        assert_type(found, dict[str, npt.NDArray[Any]])
    assert_type(served.report(), ds.Served)
    assert_type(served.report().events, tuple[ds.ServeEvent, ...])
    assert_type(served.report().devices, tuple[ds.DeviceUse, ...])
device = ds.open_device("cpu", threads=1)
tuned = ds.tune_stages(graph, device, limits=ds.StageLimits(timings=10), profiles=ds.Profiles())
assert_type(tuned, ds.StageResult)
outputs = ds.run_stages(graph, tuned.plan, compare=True).outputs
merged_ratio: float = ds.export_merged("net.onnx", "merged.onnx", threads=(1,), candidate="stacked").ratio
staged = ds.stage_module(object(), device, plan=tuned.plan, limits=ds.StageLimits(timings=10))
backend = ds.stage_backend(object(), [], options={"runs": 1})
assert_type(outputs["y"], npt.NDArray[Any])
assert_type(ds.compare("a.tflite", "b.tflite"), ds.Comparison)
in_memories = ds.fit_memories("model.tflite", fast_bytes=1 << 18, slow_bytes=1 << 23, prices={"load": 2.0})
assert_type(in_memories, ds.MemoriesFit)
fitted = ds.fit("model.tflite", output="fitted.tflite", ram_bytes=1 << 20)
assert_type(fitted, ds.Fit)
if fitted.measured is not None:
    assert_type(fitted.measured.rows, tuple[ds.SessionTaken, ...])
assert_type(fitted.session, ds.SessionSettings | None)
ds.ort_session("fitted.onnx").run(None, {})

ds.export("fitted.tflite", graph, order, arena)
ds.write_plan("plan.json", tuned.plan)
plan = ds.read_plan("plan.json")
if isinstance(plan, ds.StagePlan):
    ds.verify(graph, plan)
    assert_type(plan.stages, tuple[ds.Stage, ...])
ds.verify(graph, order, arena)
ds.verify(graph, together)
ds.verify(pipeline)
ds.verify(fitted)
assert_type(ds.report(graph, order, arena), ds.Report)
assert_type(ds.report(tuned), ds.Report)
assert_type(ds.firmware(fitted).header, str)
assert_type(ds.memory_map([("before", fitted.before)]), str)
try:
    ds.run_stages(graph, tuned.plan, [np.zeros((1, 3), np.float32)])
except ds.InvalidPlan as error:
    assert_type(error.exit_code, int)

ds.plan_everything(graph)
ds.plan_order(graph, methd="optimal")
