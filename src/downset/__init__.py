"""downset decides when every operator of a trained network runs and where every tensor lives, and makes it so."""

from __future__ import annotations

from importlib import import_module
from typing import Any

_PUBLIC = {
    "Arena": "plans",
    "Cluster": "clusters.model",
    "DownsetError": "errors",
    "Evidence": "plans",
    "Fit": "results",
    "Graph": "graph.core",
    "InfeasibleError": "errors",
    "InvalidPlan": "errors",
    "LimitReached": "errors",
    "LoadError": "errors",
    "MEMORY_MODELS": "memory.models",
    "MemoryModel": "memory.models",
    "Op": "graph.core",
    "Order": "plans",
    "OrderProblem": "memory.liveness",
    "Pipeline": "plans",
    "Record": "memory.records",
    "SharedObjects": "plans",
    "Storage": "memory.liveness",
    "Tensor": "graph.core",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "export": "formats.writing",
    "fit": "fitting.fit",
    "lifetimes": "memory.liveness",
    "load": "formats.reading",
    "load_cluster": "clusters.toml_file",
    "memory_map": "reports.memory_map",
    "order_problem": "memory.liveness",
    "peak_bytes": "memory.liveness",
    "plan_arena": "arenas.plan",
    "plan_order": "orders.plan",
    "plan_pipeline": "pipelines.plan",
    "plan_shared": "arenas.plan",
    "plan_stages": "stages.plan",
    "plan_together": "joint.order_and_arena",
    "report": "reports.text",
    "verify": "arenas.check",
    "verify_pipeline": "pipelines.check",
}
__all__ = sorted(_PUBLIC)
__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: `import downset` stays as light as `import numpy`."""
    try:
        module = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module 'downset' has no attribute {name!r}") from None
    value = getattr(import_module(f"downset.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
