"""downset decides when every operator of a trained network runs and where every tensor lives, and makes it so.

docs/python.md shows every public function. Their types are in `__init__.pyi`, which lists the same names.
"""

from __future__ import annotations

from importlib import import_module

_HOME = {
    "Arena": "results.plans",
    "AsyncServiceClient": "distributed.service.client",
    "Cluster": "clusters.model",
    "Comparison": "results.comparisons",
    "DeviceUse": "results.serving",
    "Disturbance": "distributed.simulator",
    "DownsetError": "errors",
    "Evidence": "results.plans",
    "Firmware": "formats.firmware",
    "Fit": "results.fit",
    "Graph": "graph.core",
    "InfeasibleError": "errors",
    "Inspection": "results.inspections",
    "InvalidPlan": "errors",
    "LimitReached": "errors",
    "LoadError": "errors",
    "MEMORY_MODELS": "memory.models",
    "MemoriesFit": "results.memories_fit",
    "MemoriesPlan": "results.memories",
    "MemoryModel": "memory.models",
    "MergedNetwork": "results.merged",
    "Method": "methods",
    "Move": "results.memories",
    "Op": "graph.core",
    "Order": "results.plans",
    "OrderProblem": "memory.liveness",
    "Pipeline": "results.pipelines",
    "Plan": "formats.plan_json",
    "Prices": "memories.of_graph",
    "Profiles": "tuning.profiles",
    "Recomputation": "results.fit",
    "Record": "memory.records",
    "Report": "reports.text",
    "Residence": "results.memories",
    "RunningPipeline": "distributed.serving.serve",
    "ServeEvent": "results.serving",
    "Served": "results.serving",
    "ServiceClient": "distributed.service.client",
    "SessionSettings": "results.sessions",
    "SessionTaken": "results.sessions",
    "Shard": "formats.shards.write",
    "SharedObjects": "results.plans",
    "Simulation": "results.serving",
    "Stage": "results.plans",
    "StageLimits": "tuning.search",
    "StagePlan": "results.plans",
    "StageProblem": "stages.problem",
    "StageResult": "results.stages",
    "StageRun": "results.stages",
    "Storage": "memory.liveness",
    "Tensor": "graph.core",
    "TorchDevice": "executor.device",
    "Together": "results.plans",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "compare": "runtimes.compare",
    "export": "formats.writing",
    "export_merged": "tuning.merged_file",
    "export_shards": "formats.shards.write",
    "firmware": "formats.firmware",
    "fit": "fitting.fit",
    "fit_memories": "fitting.memories",
    "inductor": "integrations",
    "inspect": "reports.inspection",
    "lifetimes": "orders.check",
    "load": "formats.reading",
    "load_cluster": "clusters.toml_file",
    "memory_map": "reports.memory_map",
    "open_device": "executor.device",
    "order_problem": "memory.liveness",
    "ort_session": "runtimes.ort_settings",
    "peak_bytes": "orders.check",
    "plan_arena": "arenas.plan",
    "plan_by_every_method": "pipelines.replan",
    "plan_memories": "memories.plan",
    "plan_order": "orders.plan",
    "plan_pipeline": "pipelines.plan",
    "plan_recompute": "rewrites.recompute",
    "plan_shared": "arenas.plan",
    "plan_stages": "stages.plan",
    "plan_step": "integrations.step_plan",
    "plan_together": "joint.order_and_arena",
    "read_plan": "formats.plan_json",
    "read_records": "formats.records_csv",
    "report": "reports.text",
    "run_stages": "executor.stage_engine",
    "serve": "distributed.serving.serve",
    "simulate": "distributed.simulator",
    "stage_backend": "integrations.stage_backend",
    "stage_module": "integrations.stage_module",
    "tune_stages": "tuning.tune",
    "verify": "joint.check",
    "write_plan": "formats.plan_json",
}
"""Public name -> the module that defines it. A name is imported when it is first used: `import downset` is light."""

__all__ = sorted(_HOME)
__version__ = "0.2.0"


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    return value


def __dir__() -> list[str]:
    return __all__
