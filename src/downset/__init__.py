"""downset decides when every operator of a trained network runs and where every tensor lives, and makes it so."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

_PUBLIC = {
    "Arena": "plans",
    "Cluster": "cluster",
    "DownsetError": "errors",
    "Evidence": "plans",
    "Fit": "fit",
    "Graph": "graph",
    "InfeasibleError": "errors",
    "InvalidPlan": "errors",
    "LimitReached": "errors",
    "LoadError": "errors",
    "MEMORY_MODELS": "memory_models",
    "MemoryModel": "memory_models",
    "Op": "graph",
    "Order": "plans",
    "OrderProblem": "liveness",
    "Pipeline": "plans",
    "Record": "records",
    "SharedObjects": "plans",
    "Storage": "liveness",
    "Tensor": "graph",
    "UnsupportedError": "errors",
    "UsageError": "errors",
    "export": "export",
    "fit": "fit",
    "lifetimes": "liveness",
    "load": "load",
    "load_cluster": "cluster",
    "memory_map": "report",
    "order_problem": "liveness",
    "peak_bytes": "liveness",
    "plan_arena": "plan",
    "plan_order": "plan",
    "plan_pipeline": "split",
    "plan_shared": "plan",
    "plan_stages": "plan",
    "plan_together": "together",
    "report": "report",
    "verify": "verify",
    "verify_pipeline": "verify_pipeline",
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


class _Package(ModuleType):
    def __setattr__(self, name: str, value: Any) -> None:
        # Importing a submodule binds it here, whoever imports it; the public name stays the function.
        if not (name in _PUBLIC and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package
