"""A policy of memory for trainers that capture a whole step as a graph and take PyTorch's tags, as torchtitan's
GraphTrainer does: every operator of the forward pass is saved for the backward pass, or runs again.

Such trainers mark the nodes of the backward pass (`meta["autograd_backward"]`) and make the copies by PyTorch's own
pass. Written against torchtitan's experiments/graph_trainer/memory_policy.py at 0014ac2c.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from downset.errors import UsageError
from downset.integrations.fx_training import traced
from downset.integrations.recompute_plan import plan_again
from downset.integrations.user_warning import warn_user
from downset.text import format_bytes

__all__ = ["memory_policy"]


def memory_policy(peak_bytes: int, *, choices: int | None = None) -> Callable[..., Any]:
    """A function `(gm, *, config=None)` that tags each operator of the forward pass in a captured step by
    `CheckpointPolicy.MUST_SAVE` or `MUST_RECOMPUTE`, so that the step keeps within `peak_bytes` by the estimate of
    `compile_step`, and returns the graph:

        register_memory_policy("downset")(ds.inductor.memory_policy(4_000_000_000))

    Nodes that carry a tag to save keep it. A limit that nothing keeps to is told, and the least peak taken. Raises
    UsageError for a limit that is not a number above 0.
    """
    if not isinstance(peak_bytes, int) or isinstance(peak_bytes, bool) or peak_bytes < 1:
        raise UsageError(f"peak_bytes is {peak_bytes!r}; give a whole number of bytes above 0, such as 4_000_000")

    def policy(gm: Any, *, config: Any = None) -> Any:
        del config
        _tag(gm.graph, peak_bytes, choices)
        return gm

    return policy


def _tag(graph: Any, peak_bytes: int, choices: int | None) -> None:
    from torch.utils.checkpoint import CheckpointPolicy

    backward: set[Any] = set()
    for node in graph.nodes:
        if node.meta.get("autograd_backward") or any(of in backward for of in node.all_input_nodes):
            backward.add(node)
    trace = traced(graph, backward, apart=False)
    plan = plan_again(trace.graph, peak_bytes, choices=choices)
    if not plan.within:
        least = format_bytes(plan.chosen.judged.peak_bytes)
        warn_user(
            f"downset finds no choice within {format_bytes(peak_bytes)} B; the least of those tried takes {least} B"
        )
    again = {trace.nodes[operator] for operator in plan.chosen.again}
    for node in graph.nodes:
        if node.op != "call_function" or node in backward:
            continue
        makers = trace.sources.get(node, ())
        runs_again = bool(makers) and trace.nodes[makers[-1]] in again
        policy = CheckpointPolicy.MUST_RECOMPUTE if runs_again else CheckpointPolicy.MUST_SAVE
        if node.meta.get("recompute") is not CheckpointPolicy.MUST_SAVE:
            node.meta["recompute"] = policy
