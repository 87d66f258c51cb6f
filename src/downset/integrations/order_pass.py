"""Our order as a pass of Inductor's scheduler, which runs after fusion, in place of Inductor's own pass for memory.

Inductor's own pass is off (`order_options`), because it would undo orders by its estimate, which counts buffers that
fused kernels keep in registers. Its orders are among those that are compared. This file names everything that is used
of Inductor's scheduler. If another version of torch differs, the pass warns once and leaves the choice to Inductor's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import chain
from typing import Any

from downset.compiled import LiveBuffer, OrderReport
from downset.errors import UnsupportedError, UsageError
from downset.integrations.code_fingerprint import code_fingerprint
from downset.integrations.codegen_reuse import written_over_by
from downset.integrations.fused_peak import PeakCheck
from downset.integrations.joined_calls import largest_calls
from downset.integrations.model_source import module_of, part_of_step, source_line
from downset.integrations.planned_order import planned_order
from downset.integrations.random_operators import draws
from downset.integrations.scheduler_order import least_called_order, live_at, parts_first, rise_by_device
from downset.integrations.scheduler_problem import kept_in_kernels, names_of_storages, problem_of
from downset.integrations.scheduler_storages import copies, held_together, on_host, origins, parts_of_calls, workspaces
from downset.integrations.torch_features import scheduler_pass
from downset.integrations.user_warning import warn_user
from downset.memory.liveness import OrderProblem, Storage, peak_bytes, profile
from downset.orders.plan import judge_order
from downset.process.garbage import uncollected
from downset.results.inspections import StepNeed
from downset.text import format_bytes

__all__ = ["Report", "check_report", "order_options", "order_pass"]

Report = Callable[[Any], None]
"""Called with an `OrderReport` or a `RecomputeReport`."""


@dataclass(frozen=True, slots=True)
class _SchedulerProblem:
    """The problem of a scheduler before it is ordered."""

    nodes: Sequence[Any]
    inputs: Mapping[str, Any]
    outputs: Any
    left_out: frozenset[str]
    """Buffers that kernels keep in registers."""
    estimated: OrderProblem
    """The bytes that Inductor estimates."""
    problem: OrderProblem
    """The same without what kernels keep in registers."""
    overwriting: OrderProblem
    """The same where kernels write over what they read last: `problem` itself where none share a call."""
    names: tuple[str, ...]
    """The buffer that each storage of `problem` stands for."""
    orders: dict[str, list[Any]]
    """Inductor's orders: the given one and its three heuristics."""
    parts: Mapping[int, Sequence[int]]
    """By call of several results: the nodes that take one out."""


def check_report(report: object) -> None:
    """Raise UsageError for a `report` that is not a function."""
    if report is not None and not callable(report):
        raise UsageError(f"report is {report!r}; give a function of one report, such as print")


def order_options(
    *, work_limit: int, report: Report | None, check: PeakCheck | None, limited: bool, exact: bool = False
) -> dict[str, Any]:
    """Options of `torch.compile` that order by our pass alone. Parameters as of `order_pass`; where `limited` or
    `exact`, buffers are also allocated and freed as planned: Inductor otherwise keeps a freed one until another of its
    size is made."""
    ordered = order_pass(work_limit=work_limit, report=report, check=check, limited=limited)
    reuse = {"allow_buffer_reuse": False} if exact or limited else {}
    return {"_post_fusion_custom_pass": ordered, "reorder_for_peak_memory": False, **reuse}


def order_pass(*, work_limit: int, report: Report | None, check: PeakCheck | None, limited: bool) -> Any:
    """A pass of the scheduler. `check` is called with the peak of each ordered graph, with calls that kernels share.
    `limited`: every kernel on a processor is a call of its own, so that it holds no more than it reads and makes. Call
    it only if `scheduler_passes()`."""
    return _pass_class()(work_limit, report, limited, check)


@cache
def _pass_class() -> Any:
    class OrderPass(scheduler_pass()):  # type: ignore[misc, unused-ignore]
        """Orders nodes for least peak memory. Inductor sees equal settings as equal, so its caches stay valid."""

        def __init__(self, work_limit: int, report: Report | None, single: bool, check: PeakCheck | None) -> None:
            self._work_limit, self._report, self._single, self._check = work_limit, report, single, check
            self._warned_of: set[str] = set()

        def uuid(self) -> str:
            return f"downset {code_fingerprint()} {self._work_limit} {self._single}"

        def __reduce__(self) -> tuple[Any, ...]:
            """Pickle the settings that caches see, without the receiver of reports and its past reports."""
            return _again, (self.uuid(), self._work_limit, self._single)

        def __call__(self, nodes: list[Any]) -> list[Any]:
            try:
                if self._single:
                    _call_singly(nodes)
                ordered, order_report, held = _ordered(nodes, self._work_limit, single=self._single)
            except Exception as error:  # a compile that works without downset must not fail with it
                self._warn(f"{type(error).__name__}: {error}")
                return _inductor_order(nodes)
            if order_report is not None and order_report.devices and not order_report.chosen:
                self._warn(order_report.devices, kind="devices")
            if self._check is not None and order_report is not None:
                self._check(held, last=_last_of_step(nodes))
            if self._report is not None and order_report is not None:
                self._report(order_report)
            return ordered

        def _warn(self, reason: str, *, kind: str = "") -> None:
            """Warn once for each reason, or once for each `kind` of reasons if given."""
            if (kind or reason) not in self._warned_of:
                self._warned_of.add(kind or reason)
                warn_user(f"downset leaves a graph in Inductor's own order: {reason}")

    return OrderPass


def _again(uuid: str, work_limit: int, single: bool) -> Any:
    del uuid
    return _pass_class()(work_limit, None, single, None)


def _call_singly(nodes: Sequence[Any]) -> None:
    """Let the code of this graph call every kernel by itself, where kernels on a processor share calls."""
    from torch._inductor.virtualized import V

    for device in {device for node in nodes if (device := node.get_device()) is not None and device.type == "cpu"}:
        V.graph.scheduler.get_backend(device).ready_to_flush = lambda: True


@uncollected()
def _ordered(nodes: list[Any], work_limit: int, *, single: bool) -> tuple[list[Any], OrderReport | None, int]:
    """The nodes in the order in which they run, the report, and the peak, calls that kernels share included; no report
    if there is nothing to order. `single`: whether every kernel is a call of its own."""
    if len(nodes) < 2:
        return nodes, None, 0
    joined = [False] * len(nodes) if single else _joined(nodes)
    scheduler = _planned(nodes, joined=any(joined))
    counted = scheduler.problem
    planned = planned_order(nodes, counted.predecessors, lambda node: [*origins(node)])
    order = least_called_order(counted, scheduler.overwriting, joined, work_limit=work_limit, planned=planned)
    order = judge_order(counted, _behind_calls(scheduler, order.steps, joined), like=order.evidence)
    ours = [nodes[step] for step in order.steps]
    counted_here, estimated = peak_bytes(scheduler.estimated, order.steps), _inductor_peak(scheduler, ours)
    if estimated != counted_here:
        raise UnsupportedError(f"Inductor counts {estimated} bytes where downset counts {counted_here}")
    step_of = {node: step for step, node in enumerate(nodes)}
    steps_of = {
        name: tuple(step_of[node] for node in order_of_nodes) for name, order_of_nodes in scheduler.orders.items()
    }
    peaks = {name: peak_bytes(counted, steps) for name, steps in steps_of.items()}
    best = min(peaks, key=lambda name: peaks[name])
    theirs = steps_of[best]
    chosen = order.peak_bytes < peaks[best] or (
        order.peak_bytes == peaks[best]
        and any(joined)
        and largest_calls(scheduler.overwriting, order.steps, joined)[:1]
        < largest_calls(scheduler.overwriting, theirs, joined)[:1]
    )
    devices = _devices(scheduler)
    risen = rise_by_device(counted, devices, theirs, order.steps) if chosen else {}
    chosen = chosen and not risen
    runs = order.steps if chosen else theirs
    peak, live = live_at(counted, runs)
    order_report = OrderReport(
        _graph_name(nodes),
        len(nodes),
        peaks["given"],
        peaks[best],
        order,
        chosen,
        f"{nodes[peak].get_name()} {_source(nodes[peak])}".strip(),
        tuple(_live_buffers(scheduler, live)),
        _needs(scheduler, theirs),
        _needs(scheduler, runs),
        _on_devices(devices, risen),
    )
    held = largest_calls(scheduler.overwriting, runs, joined)[0] if any(joined) else order_report.peak_bytes
    return [nodes[step] for step in runs], order_report, held


def _behind_calls(scheduler: _SchedulerProblem, steps: Sequence[int], joined: Sequence[bool]) -> tuple[int, ...]:
    """The order with the results of calls taken out of their tuples at once, unless kernels then share larger calls."""
    order, problem = parts_first(scheduler.problem, steps, scheduler.parts), scheduler.overwriting
    if any(joined) and largest_calls(problem, order, joined) > largest_calls(problem, steps, joined):
        return tuple(steps)
    return order


def _planned(nodes: list[Any], *, joined: bool) -> _SchedulerProblem:
    """`joined`: whether kernels share calls. Where none do, what libraries allocate inside calls counts, and what
    kernels write over."""
    from torch._inductor import memory
    from torch._inductor.virtualized import V
    from torch.utils._ordered_set import OrderedSet

    scheduler = V.graph.scheduler
    if getattr(scheduler, "_multi_stream_nodes", False):
        raise UnsupportedError("the model places its operators on several streams")
    outputs = OrderedSet(V.graph.get_output_names())
    _, inputs = memory.prepare_planning_info(
        nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, OrderedSet(V.graph.graph_inputs.keys()), outputs
    )
    orders = {
        "given": nodes,
        "lpmf": memory.topological_sort_lpmf(nodes, inputs, scheduler.name_to_buf, outputs),
        "bfs": memory.topological_sort_bfs(nodes),
        "dfs": memory.topological_sort_dfs(nodes),
    }
    estimated = problem_of(nodes, inputs, outputs, in_sequence=_in_sequence)
    left_out = kept_in_kernels(nodes, {*scheduler.mutation_real_name, *scheduler.mutation_renames})
    named = zip(names_of_storages(nodes, inputs, outputs), estimated.storages, strict=True)
    unseen = left_out | on_host(nodes)
    allocated = [(name, storage) for name, storage in named if name not in unseen]
    allocated += [] if joined else [*copies(nodes), *workspaces(nodes, unseen)]
    parts = parts_of_calls(nodes)
    allocated = held_together(allocated, nodes, parts)
    names = tuple(name for name, _ in allocated)
    storages = tuple(storage for _, storage in allocated)
    plain = replace(estimated, storages=storages)
    overwriting = replace(plain, in_place=_in_place(nodes, allocated))
    problem = plain if joined else overwriting
    return _SchedulerProblem(nodes, inputs, outputs, left_out, estimated, problem, overwriting, names, orders, parts)


def _in_place(nodes: Sequence[Any], allocated: Sequence[tuple[str, Storage]]) -> tuple[tuple[int, ...], ...]:
    """By node: the storages over which its kernel writes a result of their size, if it is the last that reads them."""
    try:
        pairs = written_over_by(nodes)
    except Exception:  # a version that decides it otherwise: nothing is counted as written over
        return ()
    places: dict[str, int] = {}
    for index, (name, _) in enumerate(allocated):
        places.setdefault(name, index)  # workspaces have the names of buffers, and come behind them

    def taken_over(position: int) -> Iterator[int]:
        for result, operand in pairs[position]:
            if result in places and operand in places:
                new, old = allocated[places[result]][1], allocated[places[operand]][1]
                read = position in old.consumers and not old.kept
                if read and new.producers == (position,) and new.nbytes == old.nbytes:
                    yield places[operand]

    return tuple(tuple(sorted({*taken_over(position)})) for position in range(len(nodes)))


def _inductor_order(nodes: list[Any]) -> list[Any]:
    """The order that Inductor chooses by itself; the nodes as they came if it does not choose one either."""
    try:
        from torch._inductor import memory
        from torch._inductor.virtualized import V
        from torch.utils._ordered_set import OrderedSet

        scheduler = V.graph.scheduler
        inputs, outputs = OrderedSet(V.graph.graph_inputs.keys()), OrderedSet(V.graph.get_output_names())
        return list(
            memory.reorder_for_peak_memory(nodes, scheduler.name_to_buf, scheduler.name_to_fused_node, inputs, outputs)
        )
    except Exception:
        return nodes


def _joined(nodes: Sequence[Any]) -> list[bool]:
    """Whether each node is part of one call with its neighbours, as kernels of loops on a processor are."""
    devices = {str(device) for node in nodes if (device := node.get_device()) is not None}
    return [devices == {"cpu"} and not (node.is_extern() or node.is_template()) for node in nodes]


def _inductor_peak(scheduler: _SchedulerProblem, order: list[Any]) -> int:
    from torch._inductor import memory

    nbytes = int(memory.estimate_peak_memory(order, scheduler.inputs, scheduler.outputs)[0])
    if not hasattr(memory, "peak_memory_from_buf_info_list"):  # before torch 2.13 outputs were freed at the start
        outputs = (of for node in order for of in node.get_outputs() if of.get_name() in scheduler.outputs)
        nbytes += sum(of.mpi_buffer.size_free for of in outputs)
    return nbytes


def _devices(scheduler: _SchedulerProblem) -> list[str]:
    """The device of each storage of the problem."""
    from torch._inductor.virtualized import V

    node_of = {buffer.get_name(): buffer.node for node in scheduler.nodes for buffer in node.get_outputs()}
    names = scheduler.names
    return [str((node_of.get(name) or V.graph.graph_inputs[name]).get_device()) for name in names]


def _on_devices(devices: Iterable[str], risen: Mapping[str, int]) -> str:
    names = sorted({*devices})
    if len(names) < 2:
        return ""
    place = f"on {len(names)} devices ({', '.join(names)})"
    if not risen:
        return place
    device, nbytes = max(risen.items(), key=lambda item: item[1])
    return f"{place}, and our order takes {format_bytes(nbytes)} B more on {device}, so it keeps Inductor's"


def _in_sequence(node: Any) -> bool:
    """Whether a node must keep its place among similar ones: ranks meet in collectives, and generators draw one after
    another."""
    from torch._inductor.utils import is_collective, is_wait

    for part in node.get_nodes():
        if is_collective(part.node) or is_wait(part.node):
            return True
        if getattr(part.node, "op_overload", None) is not None and any(map(draws, part.node.get_origins())):
            return True
    return False


def _last_of_step(nodes: Sequence[Any]) -> bool:
    """Whether a graph is the last of a step that is compiled: a backward graph, which follows on a forward one, or a
    whole step."""
    from torch._inductor.virtualized import V

    return bool(V.graph.is_backward or _has_backward(nodes))


def _has_backward(nodes: Sequence[Any]) -> bool:
    return any(origin.meta.get("autograd_backward") for node in nodes for origin in origins(node))


def _graph_name(nodes: Sequence[Any]) -> str:
    from torch._inductor.virtualized import V

    kind = "backward" if V.graph.is_backward else "inference" if V.graph.is_inference else "forward"
    if kind == "inference" and _has_backward(nodes):
        kind = "training step"
    return f"{V.graph.name or 'graph'} {V.graph.graph_id} ({kind})"


def _source(node: Any) -> str:
    """The innermost line of the model (path:line) that a scheduler's node comes from; without one its module, or its
    part of a whole step, or ""."""
    parts = [part.node for part in node.get_nodes() if hasattr(part.node, "get_stack_traces")]
    traces = [[*part.get_stack_traces()] for part in parts]
    line = next(filter(None, map(source_line, traces)), "")
    return line or module_of(origins(node)) or part_of_step(chain.from_iterable(traces), origins(node))


def _needs(scheduler: _SchedulerProblem, steps: Sequence[int]) -> tuple[StepNeed, ...]:
    """The node of each step, the kind of its first operator, and the bytes that live while it runs."""
    live = profile(scheduler.problem, steps)
    return tuple(
        StepNeed(step, _kind(scheduler.nodes[operator]), scheduler.nodes[operator].get_name(), nbytes)
        for step, (operator, nbytes) in enumerate(zip(steps, live, strict=True))
    )


def _kind(node: Any) -> str:
    """The first operator that a node computes, by PyTorch's name; "" if none is known."""
    for origin in origins(node):
        if origin.op == "call_function":
            return str(getattr(origin.target, "__name__", origin.target)).split(".")[0]
    return ""


def _live_buffers(scheduler: _SchedulerProblem, live: Sequence[int]) -> list[LiveBuffer]:
    made_by = {name: node for node in scheduler.nodes for name in node.get_buffer_names()}
    names = scheduler.names
    return [
        LiveBuffer(
            names[index],
            scheduler.problem.storages[index].nbytes,
            _source(made_by[names[index]]) if names[index] in made_by else "",
        )
        for index in live
    ]
