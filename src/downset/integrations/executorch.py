"""ExecuTorch in less memory: the order of operators, and where their tensors lie.

    from executorch.exir import ExecutorchBackendConfig
    import downset.integrations.executorch

    planning = downset.integrations.executorch.planning_pass()
    program = edge.to_executorch(ExecutorchBackendConfig(memory_planning_pass=planning))

Written for ExecuTorch 1.4.1 and 1.5.1. `order_pass` and `planning_pass` import ExecuTorch when they are called;
`algorithm` needs nothing of it but the tensors' specs that `MemoryPlanningPass` hands over.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from downset.errors import InfeasibleError, UnsupportedError
from downset.extras import optional_library
from downset.integrations.executorch_memories import MemoriesReport, MemorySettings, MovableGraph, banked_algorithm
from downset.integrations.executorch_offsets import PlacementSettings, Spec, plan_specs
from downset.integrations.executorch_order import Dialect, GraphReport, reordered
from downset.integrations.executorch_own import own_bytes, states_of
from downset.integrations.user_warning import warn_user
from downset.results.memories import MemoriesPlan

__all__ = [
    "GraphReport",
    "MemoriesReport",
    "Spec",
    "algorithm",
    "memories_pass",
    "order_pass",
    "planning_pass",
    "suite_member",
]

Report = Callable[[GraphReport], None]


def planning_pass(
    *,
    method: str = "best",
    time_limit_s: float = 2.0,
    work_limit: int = 20_000,
    report: Report | None = None,
    **options: Any,
) -> Any:
    """A `MemoryPlanningPass` for `ExecutorchBackendConfig(memory_planning_pass=...)` that orders the operators of every
    graph, then places tensors by `algorithm` with the other arguments.

    It runs last, after the delegation to backends, which sorts nodes again. A graph gets our order only if that takes
    fewer bytes than the given one, with both placed by `method`; in either case every `memory.alloc` moves directly in
    front of its call. `report` is called with a `GraphReport` for each graph; ExecuTorch's own planner then runs, too,
    for its bytes. `work_limit`: how many states the search
    for the order may visit. A graph that cannot be ordered keeps its order, with one warning. `options` are those of
    `MemoryPlanningPass`, such as `alloc_graph_input`.
    """
    passes = optional_library("executorch.exir.passes", what="planning for ExecuTorch", extra="executorch")
    settings = PlacementSettings(method, time_limit_s)

    class OrderingMemoryPlanningPass(passes.MemoryPlanningPass):  # type: ignore[misc, name-defined, unused-ignore]
        """Orders nodes, then plans memory as its parent does."""

        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            graphs, own = _graph_modules(graph_module), dict[int, int]()
            if report is not None:
                own = own_bytes(partial(passes.MemoryPlanningPass, **options), graph_module, graph_signature, graphs)
            for inner in graphs:
                whole = inner is graph_module
                dialect = Dialect.out_variants(
                    graph_signature if whole else None,
                    alignment=self.alignment,
                    inputs=self.alloc_graph_input and whole,
                    outputs=self.alloc_graph_output or not whole,
                    buffers=self.alloc_mutable_buffers and not getattr(self, "share_mutable_buffers", False),
                )
                _reorder(inner, dialect, settings, work_limit, report, own.get(id(inner)))
            return super().run(graph_module, graph_signature)

    return OrderingMemoryPlanningPass(memory_planning_algo=_algorithm(settings), **options)


def memories_pass(
    *,
    fast_bytes: int,
    slow_bytes: int,
    method: str = "joint",
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    report: Callable[[MemoriesReport], None] | None = None,
    **options: Any,
) -> Any:
    """A `MemoryPlanningPass` for `ExecutorchBackendConfig(memory_planning_pass=...)` for fast memory (`mem_id` 1) with
    slow memory behind it (`mem_id` 2): it orders the operators of a graph, and clones tensors from one memory to the
    other where that makes fewer bytes go to and from slow memory.

    `method`, `time_limit_s` and `work_limit` as in `plan_memories`; each operand of a call in slow memory counts once.
    `report` is called with a `MemoriesReport`. A buffer that calls write to lies in slow memory and stays there. Where
    ExecuTorch's own `banked_greedy` (1.5) makes fewer bytes go, its placement is the result. `options` are
    those of `MemoryPlanningPass`. Raises InfeasibleError where the memories hold no plan, and UnsupportedError for a
    graph with conditions or loops.
    """
    passes = optional_library("executorch.exir.passes", what="planning for ExecuTorch", extra="executorch")
    settings = MemorySettings(fast_bytes, slow_bytes, method, time_limit_s, work_limit)

    class TwoMemoriesPlanningPass(passes.MemoryPlanningPass):  # type: ignore[misc, name-defined, unused-ignore]
        """Puts moves into the graph, then plans memory as its parent does, by the plan."""

        def run(self, graph_module: Any, graph_signature: Any = None) -> Any:
            if len(_graph_modules(graph_module)) > 1:
                raise UnsupportedError("a graph with conditions or loops is not planned for two memories")
            dialect = Dialect.out_variants(
                graph_signature,
                alignment=self.alignment,
                inputs=self.alloc_graph_input,
                outputs=self.alloc_graph_output,
                buffers=self.alloc_mutable_buffers,
            )
            graph = MovableGraph(graph_module, dialect)
            plan: MemoriesPlan | InfeasibleError
            try:
                plan = graph.planned(settings)
            except InfeasibleError as error:
                plan = error
            restore = states_of([graph_module])
            banked = self._banked(graph_module, graph_signature)
            theirs = None if banked is None else graph.placed_slow_bytes()
            if theirs is not None and (isinstance(plan, InfeasibleError) or theirs < graph.slow_bytes(plan)):
                _tell(report, MemoriesReport(0, 0, theirs, None))
                return banked
            if isinstance(plan, InfeasibleError):
                raise plan
            restore()
            moved = graph.write(plan)
            _tell(report, moved.report)

            def downset(alignment: int, specs: Any, *_: Any, **__: Any) -> list[int]:
                return moved.place(list(specs), alignment)

            self.memory_planning_algo = downset
            return super().run(graph_module, graph_signature)

        def _banked(self, graph_module: Any, graph_signature: Any) -> Any:
            """The plan of ExecuTorch's own planner; None where it has none or finds no plan."""
            algorithm = None if getattr(self, "share_mutable_buffers", False) else banked_algorithm(settings)
            if algorithm is None:
                return None
            from executorch.exir.banked_memory_planning import BankPlacementError

            self.memory_planning_algo = algorithm
            try:
                return super().run(graph_module, graph_signature)
            except BankPlacementError:
                return None

    return TwoMemoriesPlanningPass(**options)


def order_pass(*, work_limit: int = 20_000, report: Report | None = None) -> Callable[[Any], Any]:
    """A pass for `ExecutorchBackendConfig(passes=[...])` that orders the operators of every graph, for users who plan
    memory with another pass.

    It knows neither which inputs are weights nor the sizes of inputs that may change. So it does not count inputs, and
    keeps the order of a graph with symbolic sizes; `planning_pass` handles both. Alignment is ExecuTorch's default, 16
    bytes. `work_limit` and `report` as in `planning_pass`.
    """
    infra = optional_library("torch.fx.passes.infra.pass_base", what="ordering for ExecuTorch", extra="executorch")

    def downset(graph_module: Any) -> Any:
        modules = _graph_modules(graph_module)
        changed = [_reorder(inner, Dialect.edge(), PlacementSettings(), work_limit, report) for inner in modules]
        return infra.PassResult(graph_module, any(changed))

    return downset


def algorithm(*, method: str = "best", time_limit_s: float = 2.0) -> Callable[..., list[int]]:
    """A value for `MemoryPlanningPass(memory_planning_algo=...)` that places tensors; it keeps the given order.

    The value returns the bytes of each memory and writes its place into every spec. Each memory is one arena, planned
    by `method`. If "best" leaves a gap to the lower bound, the exact search continues for up to `time_limit_s` for each
    memory. Raises UnsupportedError for a spec without a lifetime, or one in place of a tensor that is not planned with
    it.
    """
    return _algorithm(PlacementSettings(method, time_limit_s))


def suite_member(*, method: str = "best", time_limit_s: float = 2.0) -> Callable[..., Any]:
    """A value for the list of `MemoryPlanningAlgorithmSuite`, which keeps the smallest result of its members. Together
    with ExecuTorch's `greedy` the result is never larger than that of `greedy` alone."""
    settings = PlacementSettings(method, time_limit_s)

    def downset(
        alignment: int, specs: Iterable[Spec], graph_module: Any, graph_signature: Any, extra_padding: int = 0
    ) -> Any:
        from executorch.exir.memory_planning import MemoryAlgoResult, SpecAllocResult

        del graph_signature
        placed, nbytes = plan_specs(alignment, specs, graph_module, extra_padding, settings)
        return MemoryAlgoResult(
            {spec: SpecAllocResult(memory, 0, offset) for spec, memory, offset in placed}, list(nbytes)
        )

    return downset


def _algorithm(settings: PlacementSettings) -> Callable[..., list[int]]:
    def downset(
        alignment: int, specs: Iterable[Spec], graph_module: Any, graph_signature: Any, extra_padding: int = 0
    ) -> list[int]:
        del graph_signature
        placed, nbytes = plan_specs(alignment, specs, graph_module, extra_padding, settings)
        for spec, memory, offset in placed:
            spec.mem_id, spec.mem_offset, spec.mem_obj_id = memory, offset, 0
        return nbytes

    return downset


def _tell(report: Callable[[MemoriesReport], None] | None, memories_report: MemoriesReport) -> None:
    if report is not None:
        report(memories_report)


def _graph_modules(graph_module: Any) -> list[Any]:
    """The module itself, then the bodies of its conditions and loops."""
    from torch.fx import GraphModule

    return [inner for inner in graph_module.modules() if isinstance(inner, GraphModule)]


def _reorder(
    graph_module: Any,
    dialect: Dialect,
    settings: PlacementSettings,
    work_limit: int,
    report: Report | None,
    own: int | None = None,
) -> bool:
    """Order the nodes of a graph; whether any moved. `own`: the bytes that ExecuTorch's planner takes for it."""
    try:
        graph_report = reordered(graph_module, dialect, settings, work_limit)
    except Exception as error:  # an export that works without downset must not fail with it
        warn_user(f"downset leaves a graph in its order: {type(error).__name__}: {error}")
        return False
    if graph_report is None:
        return False
    if report is not None:
        report(replace(graph_report, own_bytes=own))
    return graph_report.chosen
