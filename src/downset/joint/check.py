"""`verify`: the checks of all families of plans. Reaches no planner."""

from __future__ import annotations

from typing import overload

from downset.arenas.check import verify_arena
from downset.arenas.check_records import verify_objects, verify_placement
from downset.errors import InvalidPlan, UsageError
from downset.graph.core import Graph, fingerprint
from downset.memory.liveness import OrderProblem
from downset.memory.models import MemoryModel, MemoryName, memory_model
from downset.orders.check import verify_order
from downset.pipelines.check import verify_pipeline, verify_without_graph
from downset.results.fit import Fit
from downset.results.pipelines import Pipeline
from downset.results.plans import Arena, Order, SharedObjects, StagePlan, Together
from downset.stages.check import verify_stages
from downset.stages.prepared import planned_graph, prepare

__all__ = ["verify"]


_Memory = MemoryName | MemoryModel | None


@overload
def verify(graph: Graph, plan: Order, arena: Arena | None = None, /, *, memory: _Memory = ...) -> None: ...


@overload
def verify(graph: Graph, plan: Together, /, *, memory: _Memory = ...) -> None: ...


@overload
def verify(graph: Graph, plan: StagePlan | Pipeline, /) -> None: ...


@overload
def verify(problem: OrderProblem, plan: Order, /) -> None: ...


@overload
def verify(plan: Arena | SharedObjects | Pipeline | Fit, /) -> None: ...


def verify(
    graph: Graph | OrderProblem | Arena | SharedObjects | Pipeline | Fit,
    plan: Order | Together | StagePlan | Pipeline | None = None,
    arena: Arena | None = None,
    /,
    *,
    memory: _Memory = None,
) -> None:
    """Raise InvalidPlan naming the first law that a plan breaks, or return None.

    `verify(graph, order)` and `verify(graph, order, arena)`: the order is a permutation that respects every edge; its
    stated peak is its peak; bound <= value, and they are equal if proven; every tensor keeps its bytes until its last
    reader ran; all bytes lie in the arena and are aligned; arena >= peak. O(steps x tensors). `verify(graph, together)`
    checks its order and its arena in the same way. `memory`: the memory model that they state, where it is the caller's
    own. `verify(problem, order)`: the laws of an order, and of the bare problem
    (`downset.orders.problem.check_problem`).

    `verify(graph, stages)`: the laws of `stages.check`, and that the plan was made for this network. The graph is the
    model's or the prepared one. `verify(graph, pipeline)`: the laws of `pipelines.check`, with halo arithmetic.

    Without a graph, `verify(pipeline)` checks the laws that need none; `verify(arena)` and `verify(shared)` check that
    records that live at the same time share no bytes; `verify(fit)` checks the fit's plan on the fit's graph.

    Raises UsageError if a plan is given without the graph that it needs, or an arena without its order, and for a
    `memory` that the plan does not state.
    """
    if memory is not None and not (isinstance(graph, Graph) and isinstance(plan, (Order, Together))):
        raise UsageError("memory= is that of an order of a graph: verify(graph, order, memory=...)")
    if isinstance(graph, OrderProblem):
        if not isinstance(plan, Order) or arena is not None:
            raise UsageError("a problem is verified with its order alone: verify(problem, order)")
        verify_order(graph, plan)
    elif not isinstance(graph, Graph):
        if plan is not None or arena is not None:
            raise UsageError("a plan is verified by itself, or behind its graph: verify(graph, plan)")
        _verify_alone(graph)
    elif isinstance(plan, Order):
        own = _stated_by(memory, plan, *([] if arena is None else [arena]))
        verify_order(graph, plan, memory=own[0])
        if arena is not None:
            verify_arena(graph, plan.steps, arena, memory=own[1])
    elif arena is not None:
        raise UsageError("an arena is verified with its order: verify(graph, order, arena)")
    elif isinstance(plan, Together):
        verify(graph, plan.order, plan.arena, memory=memory)
    elif isinstance(plan, StagePlan):
        verify_stages(_staged(graph, plan), plan)
    elif isinstance(plan, Pipeline):
        verify_pipeline(graph, plan)
    else:
        raise UsageError(f"with a graph an order, stages or a pipeline is verified, not {_kind(plan)}")


def _stated_by(memory: _Memory, *plans: Order | Arena) -> list[MemoryModel | None]:
    """The given model for each plan that states its name, or none; None for the others, which state another name.
    Raises UsageError where all of them do."""
    if memory is None:
        return [None] * len(plans)
    model = memory_model(memory)
    own = [model if plan.memory in ("", model.name) else None for plan in plans]
    if not any(own):
        names = " and ".join(dict.fromkeys(repr(plan.memory) for plan in plans))
        raise UsageError(f"memory= is {model.name!r}, and the plan was made under {names}")
    return own


def _verify_alone(plan: object) -> None:
    if isinstance(plan, Arena):
        verify_placement(plan)
    elif isinstance(plan, SharedObjects):
        verify_objects(plan)
    elif isinstance(plan, Pipeline):
        verify_without_graph(plan)
    elif isinstance(plan, Fit):
        verify(plan.graph, plan.together)
    else:
        if isinstance(plan, (Order, Together, StagePlan)):
            raise UsageError(f"{_kind(plan)} is verified with its graph: verify(graph, plan)")
        raise UsageError(f"a {type(plan).__name__} is not a plan that can be verified")


def _staged(graph: Graph, plan: StagePlan) -> Graph:
    """The graph whose operators the plan's units name. A plan that was measured names those of the prepared graph."""
    if fingerprint(graph) != plan.model:
        graph = prepare(graph, batch=plan.batch)
    if fingerprint(graph) != plan.model:
        raise InvalidPlan(
            f"the plan was made for another model: operators, attributes or shapes of {graph.name} differ"
        )
    return planned_graph(graph, plan)


def _kind(plan: object) -> str:
    return f"a plan of type {type(plan).__name__}"
