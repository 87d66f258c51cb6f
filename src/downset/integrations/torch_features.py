"""Tells what a version of PyTorch offers to our passes of its compiler."""

from __future__ import annotations

from functools import cache
from typing import Any

from downset.extras import torch_library

__all__ = ["marks_backward", "scheduler_pass", "scheduler_passes"]

_OLDEST = "2.11"
"""The oldest version of PyTorch whose scheduler takes our passes and whose caches know them."""


def scheduler_passes() -> bool:
    """Whether this torch lets passes order its scheduler's nodes and caches the result."""
    torch = torch_library("ordering what Inductor compiles")
    if torch.__version__ < _OLDEST:
        return False
    from torch._inductor import config

    return hasattr(config, "_post_fusion_custom_pass")


@cache
def scheduler_pass() -> Any:
    """The base of passes of the scheduler. torch 2.11 has none of its own: its caches ask passes of graphs for their
    `uuid`, and pickle what the scheduler calls. Call it only if `scheduler_passes()`."""
    from torch._inductor import custom_graph_pass

    return getattr(custom_graph_pass, "CustomSchedulerPass", custom_graph_pass.CustomGraphPass)


def marks_backward() -> bool:
    """Whether this torch marks the backward pass in the graph of a whole step, as torch 2.13 does. Without marks
    nothing runs again in one graph, which then holds more than PyTorch's forward and backward graphs."""
    return hasattr(torch_library("compiling training steps").fx.traceback, "_mark_autograd_backward")
