"""The contract of all planner families: what every method of every family takes, refuses and declares."""

import inspect
import math
from dataclasses import dataclass, replace
from typing import get_type_hints

import pytest

from downset.arenas.plan import plan_arena, plan_shared
from downset.arenas.planners import ARENAS, SHARED, SHARED_CONTRACT, ArenaOptions, SharedOptions
from downset.arenas.planners import CONTRACT as ARENA_CONTRACT
from downset.clusters.model import Cluster, Device, Network
from downset.errors import InfeasibleError, InvalidPlan, UsageError
from downset.memory.liveness import OrderProblem, Storage
from downset.memory.records import Record
from downset.methods import Method, choose
from downset.orders.plan import plan_order
from downset.orders.planners import CONTRACT as ORDER_CONTRACT
from downset.orders.planners import ORDERS, OrderOptions
from downset.pipelines.drafts import FoundPipeline
from downset.pipelines.plan import plan_pipeline
from downset.pipelines.planners import CONTRACT as PIPELINE_CONTRACT
from downset.pipelines.planners import PIPELINERS, PipelineOptions
from downset.pipelines.problem import chain_problem
from downset.pipelines.single import single_draft
from downset.results.plans import Found, Stage
from downset.stages.plan import plan_stages
from downset.stages.planners import CONTRACT as STAGE_CONTRACT
from downset.stages.planners import STAGERS, StageOptions
from downset.stages.problem import FoundStages, StageProblem

DIAMOND = OrderProblem(
    ((), (0,), (0,), (1, 2)),
    tuple(Storage(4 - v, (v,), c) for v, c in enumerate(((1, 2), (3,), (3,), (3,)))),
    ((),) * 4,
)
RECORDS = (Record("a", 0, 2, 8), Record("b", 1, 3, 4), Record("c", 2, 4, 8))
UNITS = StageProblem((0, 1, 1, 6))
CHAIN = chain_problem([(8, 3, 1, 2), (4, 3, 1, 2), (6, 1, 1, 2)], rows=6, row_bytes=2)
CLUSTER = Cluster((Device("one", 10.0), Device("two", 5.0)), Network("links", 10.0))


def price(stage):
    return float(max(map(len, stage.groups)))


def any_order(problem, *, time_limit_s):
    assert time_limit_s > 0
    return Found(tuple(range(len(problem.predecessors))), problem.floor_bytes)


def any_offsets(records, *, ties):
    assert ties in ("tflite", "paper")
    return Found(tuple(8 * at for at in range(len(records))), 0)


def any_objects(records):
    return Found(tuple(range(len(records))), 0)


def any_stages(problem, price, *, max_groups=1):
    stages = tuple(Stage(((unit,),)) for unit in range(len(problem.predecessors)))
    return FoundStages(stages, sum(map(price, stages)), 0.0, proven=False, timings=len(stages))


def any_pipeline(problem, cluster, **_):
    return FoundPipeline((single_draft(problem, 0),), 0.0)


@dataclass(frozen=True)
class Family:
    methods: object
    contract: object
    options: type
    own: object
    """A user's callable of the family's shape."""
    front_door: object
    arguments: tuple

    def plan(self, method, **options):
        return self.front_door(*self.arguments, method=method, **options)


FAMILIES = {
    "orders": Family(ORDERS, ORDER_CONTRACT, OrderOptions, any_order, plan_order, (DIAMOND,)),
    "offsets": Family(ARENAS, ARENA_CONTRACT, ArenaOptions, any_offsets, plan_arena, (RECORDS,)),
    "objects": Family(SHARED, SHARED_CONTRACT, SharedOptions, any_objects, plan_shared, (RECORDS,)),
    "stages": Family(STAGERS, STAGE_CONTRACT, StageOptions, any_stages, plan_stages, (UNITS, price)),
    "pipelines": Family(PIPELINERS, PIPELINE_CONTRACT, PipelineOptions, any_pipeline, plan_pipeline, (CHAIN, CLUSTER)),
}
EVERY_FAMILY = pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
EVERY_METHOD = pytest.mark.parametrize(
    ("family", "name"),
    [pytest.param(family, name, id=f"{of}-{name}") for of, family in FAMILIES.items() for name in family.methods],
)


@EVERY_METHOD
def test_signatures_conform(family, name):
    """The problem by position, the clock by keyword, options by keyword with a default, nothing accepted unseen, typed
    result."""
    method = family.methods[name]
    signature = inspect.signature(method.plan)
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    count = len(family.contract.problem)
    assert tuple(signature.parameters)[:count] == family.contract.problem
    assert kinds[:count] == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * count
    assert set(kinds[count:]) <= {inspect.Parameter.KEYWORD_ONLY}
    assert set(method.options) == set(list(signature.parameters)[count:])
    assert set(method.options) - {"clock"} == set(method.plan.__kwdefaults__ or {})
    assert signature.return_annotation == family.contract.returns.__name__


@EVERY_FAMILY
def test_the_typed_options_are_those_of_the_methods(family):
    own = {option for method in family.methods.values() for option in method.options} - set(family.contract.settings)
    assert set(get_type_hints(family.options)) == own


@EVERY_METHOD
def test_an_unknown_option_is_named(family, name):
    with pytest.raises(UsageError, match=f"method '{name}' takes no option 'max_opps'"):
        family.plan(name, max_opps=3)
    with pytest.raises(UsageError, match="takes no option 'max_opps'"):
        family.methods[name](*family.arguments, max_opps=3)


@pytest.mark.parametrize(
    ("plan", "given", "meant"),
    [
        (plan_arena, "capacity", "capacity_bytes"),
        (plan_shared, "capacity", "capacity_bytes"),
        (plan_arena, "time_limit", "time_limit_s"),
        (plan_arena, "qqq", None),
    ],
)
def test_an_argument_close_to_a_misspelt_one_is_named(plan, given, meant):
    with pytest.raises(UsageError) as refused:
        plan([Record("a", 0, 1, 8)], **{given: 8})
    assert ("did you mean" in str(refused.value)) == (meant is not None)
    if meant is not None:
        assert str(refused.value).endswith(f"did you mean {meant!r}?")


@EVERY_METHOD
def test_an_engine_is_refused_in_one_line(family, name):
    """A search is one program; before, callers chose between two."""
    for plan in (family.methods[name], Method(family.front_door)):
        with pytest.raises(UsageError, match="takes no option 'engine'") as refused:
            plan(*family.arguments, engine="nativ")
        assert "\n" not in str(refused.value)


@EVERY_METHOD
def test_an_option_of_its_own_reaches_the_method(family, name):
    """By name, as `Method`, and for each of its options: the value that it has anyway changes nothing."""
    method, settings = family.methods[name], family.contract.settings
    defaults = {option: value for option, value in (method.plan.__kwdefaults__ or {}).items() if option not in settings}
    plans = [family.plan(name), family.plan(method), family.plan(name, **defaults)]
    assert len({plan.evidence.value for plan in plans}) == 1
    assert [plan.evidence.method for plan in plans] == [name] * 3


def test_an_option_of_its_own_has_its_effect():
    twins = (Record("a", 0, 1, 8), Record("b", 0, 1, 8))
    assert plan_arena(twins, method="tflm_greedy", rank=(0, 1)).offsets == (8, 0)
    assert plan_arena(twins, method="tflm_greedy", rank=(1, 0)).offsets == (0, 8)
    assert all(len(stage.units) == 1 for stage in plan_stages(UNITS, price, max_ops=1, max_groups=1).stages)
    assert any(len(stage.units) > 1 for stage in plan_stages(UNITS, price).stages)
    splits = [plan_pipeline(CHAIN, CLUSTER, method="early_fused", fused=count).stages[0].blocks for count in (1, 2)]
    assert [blocks[0].stop for blocks in splits] == [1, 2]


@EVERY_METHOD
def test_only_what_is_declared_to_prove_claims_a_proof(family, name):
    """On problems this small every search ends: what proves has its proof, and it is no worse than any other's plan.
    Pipelines by the paper's model: priced by resources their bound proves little, however small the problem."""
    model = {"comm": "paper"} if family.front_door is plan_pipeline else {}
    plan = family.plan(name, **model)
    values = [family.plan(other, **model).evidence.value for other in family.methods]
    if family.methods[name].proves:
        assert plan.evidence.proven
        assert plan.evidence.value <= min(values) * (1 + 1e-9)
    else:
        assert not plan.evidence.proven or plan.evidence.value <= min(values) * (1 + 1e-9)


@EVERY_FAMILY
def test_a_callable_of_the_same_shape_serves(family):
    plan = family.plan(family.own)
    assert plan.evidence.method == family.own.__name__
    assert plan.evidence.value >= min(family.plan(name).evidence.value for name in family.methods)
    declared = family.plan(Method(family.own, proves=True))
    assert replace(declared.evidence, seconds=0) == replace(plan.evidence, seconds=0)


BOUNDED = pytest.mark.parametrize(
    "family",
    [family for name, family in FAMILIES.items() if name != "pipelines"],
    ids=[name for name in FAMILIES if name != "pipelines"],
)


def stating(family, **fields):
    """A callable of the family whose result states these bounds and proofs: `bound` as a share of its plan's value."""
    value = family.plan(family.own).evidence.value
    named = {"bound": "bound_s" if family.contract.bound == "bound_s" else "bound"}
    needed = {"orders": {"time_limit_s": 1.0}, "offsets": {"ties": "tflite"}}.get(family.contract.plans, {})
    changed = {
        named.get(field, field): stated * value if field == "bound" else stated for field, stated in fields.items()
    }
    return lambda *problem: replace(family.own(*problem, **needed), **changed)


@BOUNDED
@pytest.mark.parametrize("proves", [False, True])
@pytest.mark.parametrize("share", [1.5, math.inf, math.nan])
def test_a_bound_above_the_value_of_its_own_plan_is_refused(family, proves, share):
    with pytest.raises(InvalidPlan, match=r"states a bound of .*, above the value"):
        family.plan(Method(stating(family, bound=share), proves=proves))


@BOUNDED
def test_a_bound_that_is_rounded_is_taken(family):
    evidence = family.plan(Method(stating(family, bound=1 + 1e-12), proves=True)).evidence
    assert evidence.proven and evidence.bound == evidence.value


@BOUNDED
@pytest.mark.parametrize("fields", [{"bound": 1}, {"proven": True}, {"bound": 1, "proven": True}])
def test_only_a_callable_that_is_declared_to_prove_is_believed(family, fields):
    plain, stated = family.plan(family.own).evidence, stating(family, **fields)
    evidence = family.plan(stated).evidence
    assert not plain.proven and not evidence.proven and evidence.bound == plain.bound < plain.value
    evidence = family.plan(Method(stated, proves=True)).evidence
    assert evidence.proven and evidence.bound == evidence.value


def test_a_callable_that_meets_our_own_bound_is_proven():
    assert plan_arena(RECORDS, method=lambda records: Found((0, 8, 12), 0)).evidence.proven is False
    evidence = plan_arena(RECORDS, method=lambda records: Found((0, 8, 0), 0)).evidence
    assert evidence.proven and evidence.bound == 12


def test_a_bound_that_is_not_to_be_believed_proves_nothing_infeasible():
    """Under a capacity the search decides, whatever the callable states."""
    wasteful = any_offsets(RECORDS, ties="tflite")
    for proven in (False, True):
        plan = plan_arena(
            RECORDS, method=lambda records, proven=proven: replace(wasteful, bound=20, proven=proven), capacity_bytes=12
        )
        assert plan.arena_bytes == 12


@EVERY_METHOD
def test_a_callable_named_like_a_method_is_not_that_method(family, name):
    """It plans, under a name of its own, and gets what an unnamed one gets."""

    def impostor(*problem, **options):
        return family.own(*problem, **options) if family.own is any_pipeline else family.own(*problem, **needed)

    needed = {"orders": {"time_limit_s": 1.0}, "offsets": {"ties": "tflite"}}.get(family.contract.plans, {})
    unnamed = family.plan(impostor)
    impostor.__name__ = name
    found = family.plan(impostor)
    assert found.evidence.method == f"{name} (callable)"
    assert replace(found.evidence, seconds=0, method="") == replace(unnamed.evidence, seconds=0, method="")
    assert choose(impostor, family.methods, family.contract).method == Method(impostor)


def test_a_callable_is_given_what_its_signature_names_and_nothing_else():
    given = []

    def by_default(problem, time_limit_s=None):
        given.append(time_limit_s)
        return any_order(problem, time_limit_s=time_limit_s)

    def by_position(problem, /):
        return any_order(problem, time_limit_s=1.0)

    assert plan_order(DIAMOND, method=by_default, time_limit_s=3.0).steps == (0, 1, 2, 3)
    assert given == [3.0]
    assert plan_order(DIAMOND, method=by_position, time_limit_s=2.0).steps == (0, 1, 2, 3)
    with pytest.raises(UsageError, match="takes no option 'width'; its own are: none"):
        plan_order(DIAMOND, method=by_position, width=3)


@EVERY_FAMILY
def test_what_cannot_be_called_as_planners_are_is_a_usage_error(family):
    for given, message in (
        (7, "a name or a callable, not 7"),
        (lambda: None, "cannot be called as planners"),
        (lambda *problem, needed: None, "cannot be called as planners .* 'needed'"),
        (lambda *problem: "done", "returned str; a planner of"),
        ("fastest", "unknown method 'fastest' for .*; choose one of"),
    ):
        with pytest.raises(UsageError, match=message):
            family.plan(given)


@EVERY_FAMILY
@pytest.mark.parametrize("seconds", [math.nan, -1.0])
def test_time_limits_below_nothing_and_nan_are_usage_errors(family, seconds):
    with pytest.raises(UsageError, match=r"time_limit_s must be 0 s or more; given (nan|-1)"):
        family.plan(next(iter(family.methods)), time_limit_s=seconds)


def test_a_callable_named_exact_does_not_get_the_treatment_of_exact():
    """`exact` is asked again where a device's memory does not hold its plan, and other plans are tried then. A callable
    of that name has declared neither; one that takes `forbidden` is asked again, whatever its name."""
    cluster = Cluster((replace(CLUSTER.devices[0], memory_bytes=1), CLUSTER.devices[1]), CLUSTER.network)
    heavy = chain_problem([(8, 3, 1, 2), (4, 3, 1, 2)], rows=6, row_bytes=2)
    heavy = replace(heavy, ops=tuple(replace(op, weights=((10 + k, 100),)) for k, op in enumerate(heavy.ops)))
    assert plan_pipeline(heavy, cluster, method="exact").stages[0].devices == (1,)
    asked = []

    def exact(problem, cluster, *, forbidden=frozenset()):
        asked.append(forbidden)
        raise InfeasibleError("none of mine")

    with pytest.raises(InfeasibleError, match="none of mine"):
        plan_pipeline(heavy, cluster, method=exact)
    assert len(asked) == 1
    assert (0, 2, 0) in asked[0]
