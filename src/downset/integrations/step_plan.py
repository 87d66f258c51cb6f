"""Plans what a training step keeps, computes again, computes in chunks or moves to the host, for any graph of PyTorch.

The graph is one of forward, loss and backward (with or without the update), as torch.fx makes it behind AOTAutograd or
`make_fx`. Nothing of it changes: a plan is data, and `tag_step` writes it into nodes as PyTorch's own checkpoint
policies, which its partitioner and trainers on top of it read.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping
from numbers import Integral
from typing import Any

from downset.compiled import OperatorPlan, StepPlan
from downset.errors import UsageError
from downset.extras import torch_library
from downset.integrations.chunk_pass import chunked_graphs
from downset.integrations.fx_training import behind_forward, traced
from downset.integrations.host_copies import check_link, with_moves
from downset.integrations.variants import plan_variants
from downset.methods import check_choices
from downset.results.plans import Evidence

__all__ = ["plan_step", "tag_step"]


def plan_step(
    graph: Any, limit_bytes: int, *, link_bytes_s: float | None = None, choices: int | None = None
) -> StepPlan:
    """The plan that adds the least time with a peak of at most `limit_bytes`, or that of the least peak found.

    `graph`: a `torch.fx.Graph` or `GraphModule` whose nodes have their values (`meta["val"]`) and whose backward pass
    is marked: by `meta["autograd_backward"]`, by `meta["partitioner_tag"]`, or by inputs `tangents_…`.
    `link_bytes_s`: bytes a second between the device and its host; without it nothing moves there. `choices`: how many
    sets of each form are tried. A larger limit never gives a slower plan, a smaller one never a higher peak. Raises
    UsageError for graphs without a backward pass, and for numbers that are not above 0.
    """
    torch_library("planning a training step")
    if not isinstance(limit_bytes, Integral) or isinstance(limit_bytes, bool) or limit_bytes < 1:
        raise UsageError(f"limit_bytes is {limit_bytes!r}; give a whole number of bytes above 0, such as 4_000_000")
    check_link(link_bytes_s)
    check_choices(choices)
    begin = time.perf_counter()
    graph = getattr(graph, "graph", graph)
    forms = {1: graph, **chunked_graphs(graph)}
    behind = {count: behind_forward(form) for count, form in forms.items()}
    if not behind[1]:
        raise UsageError("plan_step found no backward pass: trace loss and gradients together")
    traces = {count: traced(form, behind[count].keys(), apart=False) for count, form in forms.items()}
    moves = link_bytes_s is not None
    graphs = {count: with_moves(of, link_bytes_s) if moves else of.graph for count, of in traces.items()}
    plan = plan_variants(graphs, limit_bytes, choices)
    chosen, moved = plan.chosen, graphs[plan.chosen.chunks].moved
    trace, late = traces[chosen.chunks], graphs[chosen.chunks].late
    nbytes = graphs[chosen.chunks].nbytes
    actions = {
        trace.nodes[v].name: OperatorPlan(
            trace.nodes[v].name,
            "keep" if v not in chosen.again else "offload" if v in moved else "recompute",
            nbytes[v],
        )
        for v in range(len(trace.nodes))
        if v not in late and nbytes[v]
    }
    if chosen.chunks > 1:
        actions.update(_in_chunks(graph, forms[chosen.chunks], traces[1]))
    return StepPlan(
        tuple(actions[node.name] for node in graph.nodes if node.name in actions),
        chosen.chunks,
        chosen.peak_bytes,
        plan.none.peak_bytes,
        plan.within,
        plan.least_bytes,
        Evidence("step", chosen.cost, 0.0, not chosen.cost, plan.tried, time.perf_counter() - begin),
        tuple((of.cost, of.peak_bytes) for of in plan.front),
    )


def _in_chunks(graph: Any, chunked: Any, trace: Any) -> Mapping[str, OperatorPlan]:
    """The operators of a graph that are not part of its form in chunks: they run by rows there."""
    kept = {node.name for node in chunked.nodes}
    nbytes = {node.name: size for node, size in zip(trace.nodes, trace.graph.nbytes, strict=True)}
    names = [node.name for node in graph.nodes if node.name not in kept and nbytes.get(node.name)]
    return {name: OperatorPlan(name, "chunk", nbytes[name]) for name in names}


def tag_step(graph: Any, plan: StepPlan) -> None:
    """Write a plan into a graph's nodes as PyTorch's own policies (`meta["recompute"]`): MUST_RECOMPUTE and MUST_SAVE.
    A result that moves to the host is saved and has `meta["should_offload"]`; chunks have no tag of PyTorch."""
    torch_library("tagging a training step")
    from torch.utils.checkpoint import CheckpointPolicy

    policies = {
        "keep": CheckpointPolicy.MUST_SAVE,
        "offload": CheckpointPolicy.MUST_SAVE,
        "recompute": CheckpointPolicy.MUST_RECOMPUTE,
    }
    action_of = {of.name: of.action for of in plan.operators}
    for node in getattr(graph, "graph", graph).nodes:
        of = node.args[0] if node.target is operator.getitem else node  # one result of several
        action = action_of.get(of.name)
        if action in policies:
            node.meta["recompute"] = policies[action]
        if action == "offload":
            node.meta["should_offload"] = True
