"""Passes of PyTorch's compiler that make operators run again in the backward pass.

If forward and backward are two graphs, our partitioner marks which operators run again and which results are saved, and
PyTorch's partitioner divides the graph by these marks. If a whole step is one graph, one pass adds the copies to it,
and a pass of the scheduler keeps them behind the forward pass, because the compiler would fuse a copy with its
original. This file, fx_training.py and random_operators.py name everything that is used of PyTorch. If another version
differs, one warning says that downset recomputed nothing.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache, partial
from typing import Any

from downset.compiled import RecomputeReport, RepeatedOperator
from downset.errors import UsageError
from downset.integrations.call_workspaces import workspaces_of
from downset.integrations.chunk_pass import chunk_graph, chunked_graphs, operators, wait_for_chunks
from downset.integrations.code_fingerprint import code_fingerprint
from downset.integrations.free_recompute import nearly_free
from downset.integrations.fused_peak import NOTHING, PeakCheck, RecomputeSettings, check_free, check_peak
from downset.integrations.fx_training import Traced, behind_forward, sets_of, traced
from downset.integrations.host_copies import check_link, copy_to_host, has_own_memory, place_host_copies, with_moves
from downset.integrations.model_source import module_of, source_line
from downset.integrations.planned_order import PLANNED
from downset.integrations.random_operators import states_where_drawn
from downset.integrations.scheduler_storages import origins
from downset.integrations.torch_features import scheduler_pass, scheduler_passes
from downset.integrations.training_graph import planned_steps, priced
from downset.integrations.user_warning import warn_user
from downset.integrations.variants import StepVariant, plan_variants
from downset.methods import check_choices
from downset.process.garbage import uncollected
from downset.text import format_bytes

__all__ = ["recompute_options"]

_AGAIN = "downset_again"
_BUDGETS = (0.5, 0.2, 0.1)
"""PyTorch's `activation_memory_budget`s whose choices are tried too."""
_MOST_PLANS = 4
"""The most plans of one step with less and less: a compile until its kernels are fused for each."""


def recompute_options(
    peak_bytes: int | None,
    *,
    choices: int | None,
    report: Callable[[Any], None] | None,
    whole: bool,
    again: bool = True,
    link_bytes_s: float | None = None,
) -> tuple[dict[str, Any], PeakCheck | None]:
    """(options of `torch.compile` that keep a step within `peak_bytes`, a check of the peak of an ordered graph).

    The check takes the peak of a graph once its kernels are fused, as reports state it, and warns where it is above
    the limit: recomputation is chosen before fusion, by another estimate. With `again` it raises PlanAgain where
    another choice may hold less, or take less time within the limit. `whole`: the step is one graph; otherwise it is a
    forward and a backward graph.
    Without `peak_bytes` a whole step runs again what takes next to no time, as PyTorch's partitioner does where forward
    and backward are two graphs, and the check raises PlanAgain where that may hold more; for two graphs there is none.
    `link_bytes_s`: within a limit, results also move to the host and back over such a link. Raises UsageError for a
    limit, a link or a number of sets that is not a number above 0, and for a link without a limit."""
    check_choices(choices)
    check_link(link_bytes_s)
    if link_bytes_s is not None and peak_bytes is None:
        raise UsageError("link_bytes_s moves results to the host within a limit: give peak_bytes, too")
    if peak_bytes is not None and (not isinstance(peak_bytes, int) or isinstance(peak_bytes, bool) or peak_bytes < 1):
        raise UsageError(f"peak_bytes is {peak_bytes!r}; give a whole number of bytes above 0, such as 4_000_000")
    if not scheduler_passes():
        return {}, None
    if peak_bytes is None:
        if not whole:
            return {}, None
        free = RecomputeSettings(None, choices, None)
        passes = _pass_classes()
        options = {"joint_custom_post_pass": passes["graph"](free), "_pre_fusion_custom_pass": passes["behind"]()}
        return options, partial(check_free, free)
    most_plans = _MOST_PLANS if again else 1
    settings = RecomputeSettings(peak_bytes, choices, report, most_plans=most_plans, link_bytes_s=link_bytes_s)
    passes = _pass_classes()
    if whole:
        operators()  # compiled code from a cache calls them
        options = {"joint_custom_post_pass": passes["graph"](settings), "_pre_fusion_custom_pass": passes["behind"]()}
    else:
        options = {"custom_partitioner_fn": passes["partitioner"](settings)}
    return options, partial(check_peak, settings)


@cache
def _pass_classes() -> dict[str, Any]:
    from torch._inductor.custom_graph_pass import CustomGraphPass, CustomPartitionerFn

    class Partitioner(CustomPartitionerFn):  # type: ignore[misc, unused-ignore]
        """PyTorch's partitioner on a graph that is marked with our choice."""

        def __init__(self, settings: RecomputeSettings) -> None:
            self._settings = settings

        def uuid(self) -> str:
            return self._settings.uuid()

        def __reduce__(self) -> tuple[Any, ...]:
            return _again, ("partitioner", *self._settings.within())

        def __call__(self, gm: Any, joint_inputs: Any, **options: Any) -> Any:
            from torch._functorch.partitioners import min_cut_rematerialization_partition

            self._settings.divides()
            try:
                _mark(gm, self._settings, options)
            except Exception as error:  # a compile that works without downset must not fail with it
                _warn(error)
            with _moving(self._settings), states_where_drawn():
                return min_cut_rematerialization_partition(gm, joint_inputs, **options)

    class GraphPass(CustomGraphPass):  # type: ignore[misc, unused-ignore]
        """Adds the copies of our choice to the graph of a whole step."""

        def __init__(self, settings: RecomputeSettings) -> None:
            self._settings = settings

        def uuid(self) -> str:
            return self._settings.uuid()

        def __reduce__(self) -> tuple[Any, ...]:
            return _again, ("graph", *self._settings.within())

        def __call__(self, graph: Any) -> None:
            try:
                _copy(graph, self._settings)
            except Exception as error:  # a compile that works without downset must not fail with it
                _warn(error)

    class Behind(scheduler_pass()):  # type: ignore[misc, unused-ignore]
        """Makes copies wait for the forward pass."""

        def uuid(self) -> str:
            return f"downset {code_fingerprint()} behind"

        def __reduce__(self) -> tuple[Any, ...]:
            return _again, ("behind", self.uuid())

        def __call__(self, nodes: list[Any]) -> list[Any]:
            try:
                return _wait(nodes)
            except Exception as error:  # a compile that works without downset must not fail with it
                _warn(error)
                return nodes

    return {"partitioner": Partitioner, "graph": GraphPass, "behind": Behind}


def _again(kind: str, uuid: str, *within: Any) -> Any:
    del uuid
    pass_class = _pass_classes()[kind]
    if not within:
        return pass_class()
    peak_bytes, choices, link_bytes_s = within
    return pass_class(RecomputeSettings(peak_bytes, choices, None, link_bytes_s=link_bytes_s))


def _moving(settings: RecomputeSettings) -> AbstractContextManager[Any]:
    """Lets PyTorch's partitioner move to the host what is marked so."""
    from torch._functorch import config

    return nullcontext() if settings.link_bytes_s is None else config.patch(enable_activation_offloading=True)


def _warn(error: Exception) -> None:
    warn_user(f"downset recomputes nothing in a graph: {type(error).__name__}: {error}")


@uncollected()
def _mark(gm: Any, settings: RecomputeSettings, options: dict[str, Any]) -> None:
    """Mark for PyTorch's partitioner what runs again and what does not; nothing if PyTorch's choice is the same."""
    from torch._functorch import partitioners
    from torch._functorch.compile_utils import fx_graph_cse
    from torch.utils.checkpoint import CheckpointPolicy

    if any(partitioners.must_recompute(node) for node in gm.graph.nodes):
        return  # the model states what runs again
    gm.graph.eliminate_dead_code()
    gm.graph = fx_graph_cse(gm.graph)
    node_info = partitioners.classify_nodes(
        gm, options.get("static_lifetime_input_indices") or [], options["num_fwd_outputs"]
    )
    if not node_info.required_bw_nodes:
        return
    workspaces = workspaces_of(gm.graph.nodes)
    graph = traced(gm.graph, _backward(gm.graph, node_info), apart=True, workspaces=workspaces)
    theirs = _their_sets(gm, node_info, graph)
    chosen, moved = _chosen({1: graph}, settings, theirs)
    again = chosen.again
    if set(again) == theirs[0] and not moved:
        return
    for node in gm.graph.nodes:
        if node.op != "call_function" or not node_info.is_required_fw(node):
            continue
        makers = graph.sources.get(node, ())
        if makers and graph.nodes[makers[-1]] is not node and node.target is not operator.getitem:
            continue  # a view: PyTorch decides whether it or what it shows is saved
        if makers and makers[-1] in moved:
            node.meta["recompute"], node.meta["should_offload"] = CheckpointPolicy.MUST_SAVE, True
        elif makers and makers[-1] in again:
            node.meta["recompute"] = CheckpointPolicy.MUST_RECOMPUTE
        elif makers:
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def _backward(graph: Any, node_info: Any) -> set[Any]:
    """The nodes of the backward pass, and those that only it reads. A write in place of the forward pass is not among
    them."""
    backward = set(node_info.required_bw_nodes)
    for node in reversed(graph.nodes):
        if not node_info.is_required_fw(node) and any(user in backward for user in node.users):
            backward.add(node)
    return backward


def _their_sets(gm: Any, node_info: Any, graph: Traced) -> list[set[int]]:
    """The sets of operators that run again by PyTorch's choice, and by its choices for smaller budgets."""
    from torch._functorch import config, partitioners

    for node in reversed(gm.graph.nodes):
        node.dist_from_bw = 0 if node.op != "output" and not node_info.is_required_fw(node) else int(1e9)
        if node.dist_from_bw and node.op != "output":
            node.dist_from_bw = min([int(1e9), *(user.dist_from_bw + 1 for user in node.users)])
    budgets = (1.0, *_BUDGETS) if config.activation_memory_budget_runtime_estimator == "flops" else (1.0,)
    saved = (partitioners.choose_saved_values_set(gm.graph, node_info, memory_budget=budget) for budget in budgets)
    return [sets_of(graph, values) for values in saved]


def _chosen(
    traces: Mapping[int, Traced], settings: RecomputeSettings, theirs: Sequence[set[int]]
) -> tuple[StepVariant, frozenset[int]]:
    """(the number of chunks and the operators that run again, those of them whose results move to the host instead).
    They are reported, and a peak above the limit is warned of. `traces`: the graph by number of chunks, with 1 among
    them."""
    assert settings.peak_bytes is not None
    begin = time.perf_counter()
    limit = settings.target() or settings.peak_bytes
    link = settings.link_bytes_s if has_own_memory(traces[1].nodes) else None
    graphs = {count: trace.graph if link is None else with_moves(trace, link) for count, trace in traces.items()}
    plan = plan_variants(graphs, limit, settings.choices, theirs)
    seconds = time.perf_counter() - begin
    chosen = StepVariant(0.0, plan.none.peak_bytes, 1, ()) if limit == NOTHING else plan.chosen
    settings.none[:] = [plan.none.peak_bytes]
    peak, trace = chosen.peak_bytes, traces[chosen.chunks]
    moved = graphs[chosen.chunks].moved.intersection(chosen.again)
    settings.front[:] = [(variant.peak_bytes, variant.cost) for variant in plan.front]
    settings.taken = peak, chosen.cost
    if not plan.within and peak not in settings.not_within:
        least = format_bytes(plan.least_bytes)
        settings.not_within.append(peak)
        proof = f"proven that none comes below {least} B" if plan.least_bytes > settings.peak_bytes else "not proven"
        warn_user(
            f"downset finds no choice of what runs again within {format_bytes(settings.peak_bytes)} B ({proof}): this "
            f"graph takes the least peak of {plan.tried} choices, {format_bytes(peak)} B",
        )
    if settings.report is not None:
        pytorch = priced(traces[1].graph, theirs[0]) if theirs else None
        settings.report(
            RecomputeReport(
                settings.peak_bytes,
                peak,
                chosen.cost,
                plan.none.peak_bytes,
                (pytorch.cost, pytorch.peak_bytes) if pytorch else None,
                tuple(_repeated(trace, operator) for operator in chosen.again if operator not in moved),
                tuple((variant.cost, variant.peak_bytes) for variant in plan.front),
                plan.tried,
                seconds,
                chosen.chunks,
                tuple(_repeated(trace, operator) for operator in sorted(moved)),
            )
        )
    return chosen, moved


def _repeated(trace: Traced, operator: int) -> RepeatedOperator:
    node = trace.nodes[operator]
    source = source_line(filter(None, [node.meta.get("stack_trace")])) or module_of([node])
    return RepeatedOperator(node.name, source, trace.graph.nbytes[operator], trace.graph.costs[operator])


@uncollected()
def _copy(graph: Any, settings: RecomputeSettings) -> None:
    """Let the loss run in chunks of rows, where a limit chose so, and add copies of what runs again to the graph, each
    before the first of its late readers."""
    if not behind_forward(graph):
        return
    settings.begins()
    limited = settings.peak_bytes is not None
    variants = {1: graph, **(chunked_graphs(graph) if limited else {})}
    traces = {count: _traced_step(of, limited=limited) for count, of in variants.items()}
    trace, moved = traces[1], frozenset[int]()
    if limited:
        chosen, moved = _chosen(traces, settings, ())
        repeated = chosen.again
        if chosen.chunks > 1:
            chunk_graph(graph)
            trace = _traced_step(graph, limited=True)
    elif settings.target() == NOTHING or not (repeated := nearly_free(trace.graph, settings.choices)):
        return
    else:
        settings.none[:] = [priced(trace.graph, ()).peak_bytes]
    late = behind_forward(graph)
    again = {trace.nodes[operator] for operator in repeated}
    moving = {trace.nodes[operator] for operator in moved}
    operators = set(trace.nodes)
    copies: dict[Any, Any] = {}
    hosts: dict[Any, Any] = {}

    def late_one(node: Any, reader: Any) -> Any:
        """The value that a late reader reads in place of a node: its copy, or the same view of a copy."""
        if node in late or node in copies or node.op != "call_function":
            return copies.get(node, node)
        if node not in again and (node in operators or not trace.sources[node]):
            return node
        if node in moving:
            hosts[node], copies[node] = copy_to_host(graph, node, reader)
            copies[node].meta[_AGAIN] = True
            return copies[node]
        changed = [of for of in node.all_input_nodes if late_one(of, reader) is not of]
        if node not in again and not changed:
            return node
        with graph.inserting_before(reader):
            copies[node] = graph.node_copy(node, lambda of: copies.get(of, of))
        copies[node].meta[_AGAIN] = True
        return copies[node]

    for node in late:
        for of in node.all_input_nodes:
            late_one(of, node)
        node.args = _mapped(node.args, copies)
        node.kwargs = _mapped(node.kwargs, copies)
    for position, (number, second) in enumerate(planned_steps(trace.graph, repeated) if limited else ()):
        node = trace.nodes[number]
        (copies[node] if second else node).meta[PLANNED] = position
    place_host_copies(hosts, operators.difference(late))
    graph.lint()


def _traced_step(graph: Any, *, limited: bool) -> Traced:
    """The step in one graph; what libraries allocate inside calls counts where a limit is set."""
    workspaces = workspaces_of(graph.nodes) if limited else None
    return traced(graph, behind_forward(graph).keys(), apart=False, workspaces=workspaces)


def _mapped(arguments: Any, copies: dict[Any, Any]) -> Any:
    import torch

    return torch.fx.map_arg(arguments, lambda of: copies.get(of, of))


@uncollected()
def _wait(nodes: list[Any]) -> list[Any]:
    """Make nodes that compute copies wait for the node of the forward pass that has the most nodes before it. The
    update has none: what follows on the backward pass is part of neither."""
    from torch._inductor.virtualized import V

    chunks = wait_for_chunks(nodes)
    copied = [node for node in nodes if any(origin.meta.get(_AGAIN) for origin in origins(node))]
    if copied:
        _wait_for_forward(nodes, copied)
    if not (copied or chunks):
        return nodes
    scheduler = V.graph.scheduler
    scheduler.nodes = scheduler.topological_sort_schedule(nodes)
    scheduler.compute_ancestors()
    return list(scheduler.nodes)


def _wait_for_forward(nodes: list[Any], copied: list[Any]) -> None:
    from torch._inductor.dependencies import WeakDep

    late = {
        name
        for node in nodes
        if any(origin.meta.get(_AGAIN) or origin.meta.get("autograd_backward") for origin in origins(node))
        for name in node.get_operation_names()
    }
    forward = [
        node
        for node in nodes
        if [*origins(node)] and late.isdisjoint(node.ancestors) and late.isdisjoint(node.get_operation_names())
    ]
    last = max(forward, key=lambda node: len(node.ancestors))
    (name,) = list(last.get_buffer_names())[:1]
    for node in copied:
        if name not in {dep.name for dep in node.unmet_dependencies} and node.get_name() not in last.ancestors:
            # An operation's name, as Inductor's own passes give: a buffer there would be taken for one that is mutated.
            node.add_fake_dep(WeakDep(name, mutating_buf=node.get_name()))
