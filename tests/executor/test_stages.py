"""Schedules of stages, executed: equal to ONNX Runtime's outputs whatever runs side by side or merged."""

import numpy as np
import pytest

from downset.errors import UnsupportedError, UsageError
from downset.executor.arena import seeded_inputs
from downset.executor.binder import Binder
from downset.executor.device import open_device
from downset.executor.lane_program import lower
from downset.executor.stage_engine import check_plan, stage_engine
from downset.formats.reading import load
from downset.graph.core import fingerprint
from downset.lattice import bits, ready
from downset.results.plans import Evidence, StagePlan
from downset.runtimes import ort
from downset.stages.greedy import greedy
from downset.stages.prepared import VARIANTS, prepare
from downset.stages.problem import Stage, StageProblem
from downset.stages.unit_graph import group_units, search_blocks
from downset.tuning.timer import merge_families
from tests.models import installed_model
from tests.networks import branches, branchy, random_network
from zoo import ZOO

TOLERANCE = 2e-5
"""Of the largest output; kernels sum in other orders than ONNX Runtime's."""


def expected(path, graph, values, batch=1):
    names = [graph.tensors[tensor].name for tensor in graph.inputs]
    feeds = dict(zip(names, values, strict=True))
    if batch == 1:
        return ort.run_on(path, feeds)
    parts = [ort.run_on(path, {name: value[at : at + 1] for name, value in feeds.items()}) for at in range(batch)]
    return [np.concatenate(outputs) for outputs in zip(*parts, strict=True)]


def close(ours, theirs):
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.shape == other.shape
        scale = max(float(np.abs(other).max()), 1e-30)
        assert float(np.abs(mine - other).max()) <= TOLERANCE * scale


def merged_stages(units, families):
    """Everything ready at once, what can merge merged."""
    stages, done = [], 0
    while done != (1 << len(units.units)) - 1:
        now = sum(1 << unit for unit in ready(units.predecessors, done))
        done |= now
        for family in families:
            if (family & now).bit_count() > 1:
                stages.append(Stage(tuple((unit,) for unit in bits(family & now)), merged=True))
                now &= ~family
        if now:
            stages.append(Stage(tuple((unit,) for unit in bits(now))))
    return tuple(stages)


def schedules_of(graph, units):
    yield "sequential", tuple(Stage(((unit,),)) for unit in range(len(units.units)))
    yield "greedy", greedy(StageProblem(units.predecessors), lambda _: 0.0).stages
    yield "two at a time", greedy(StageProblem(units.predecessors), lambda _: 0.0, max_groups=2).stages
    yield "merged", merged_stages(units, merge_families(graph, units))


def outputs(graph, units, stages, *, barriers, threads, values=None):
    device = open_device("cpu", threads=threads)
    binder = Binder(graph)
    program = lower(units, stages, barriers=barriers, max_lanes=device.max_lanes)
    values = seeded_inputs(graph) if values is None else values
    with device.engine(binder, program, inputs=graph.inputs, outputs=graph.outputs, values=values) as engine:
        first = [value.numpy().copy() for value in engine([binder.place(value) for value in values])]
        again = engine([binder.place(value) for value in values])
        for one, other in zip(first, again, strict=True):
            assert np.array_equal(one, other.numpy())
    return first


@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("barriers", [True, False])
def test_every_schedule_computes_the_same(tmp_path, threads, barriers):
    path = branchy(tmp_path / "m.onnx")
    graph = prepare(load(path))
    units = group_units(graph)
    theirs = expected(path, graph, seeded_inputs(graph))
    names = []
    for name, stages in schedules_of(graph, units):
        close(outputs(graph, units, stages, barriers=barriers, threads=threads), theirs)
        names.append((name, any(stage.merged for stage in stages)))
    assert ("merged", True) in names


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_compute_the_same(tmp_path, seed):
    path = random_network(tmp_path / "m.onnx", seed=seed)
    graph = prepare(load(path))
    units = group_units(graph)
    theirs = expected(path, graph, seeded_inputs(graph))
    for _, stages in schedules_of(graph, units):
        close(outputs(graph, units, stages, barriers=False, threads=3), theirs)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("squeezenet", {"image": 64}),
        ("inception_v3", {"image": 75}),
        ("randwire_large", {"image": 32, "channels": 8}),
        ("nasnet_large", {"image": 96, "filters": 16}),
    ],
)
def test_the_paper_s_networks_compute_the_same(tmp_path, name, options):
    import onnx

    path = tmp_path / f"{name}.onnx"
    onnx.save(ZOO[name](**options), str(path))
    graph = prepare(load(path))
    units = group_units(graph)
    theirs = expected(path, graph, seeded_inputs(graph))
    for label, stages in schedules_of(graph, units):
        if label != "two at a time":
            close(outputs(graph, units, stages, barriers=False, threads=2), theirs)


@pytest.mark.models
def test_a_real_model_computes_the_same(tmp_path):
    fixed = tmp_path / "m.onnx"
    ort.optimise_offline(installed_model("swift-f0", "model.onnx"), fixed, shapes={"audio": (1, 16000)})
    graph = prepare(load(fixed))
    units = group_units(graph)
    values = seeded_inputs(graph)
    values[1:] = [np.float32(50.0), np.float32(2000.0)]  # the range of pitches it looks for
    theirs = expected(fixed, graph, values)
    assert all(np.isfinite(value).all() for value in theirs)
    for _, stages in schedules_of(graph, units):
        close(outputs(graph, units, stages, barriers=False, threads=2, values=values), theirs)


def test_element_types_are_the_graph_s(tmp_path):
    """Casts and integer arithmetic: a float cast to an integer and back loses its fraction."""
    import onnx
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT32, name="to_int"),
        helper.make_node("Add", ["i", "i"], ["j"], name="twice"),
        helper.make_node("Cast", ["j"], ["y"], to=TensorProto.FLOAT, name="to_float"),
    ]
    given, made = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 5]) for name in "xy")
    graph = helper.make_graph(nodes, "casts", [given], [made])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    loaded = prepare(load(path))
    units = group_units(loaded)
    stages = tuple(Stage(((unit,),)) for unit in range(len(units.units)))
    values = seeded_inputs(loaded)
    close(outputs(loaded, units, stages, barriers=False, threads=1), expected(path, loaded, values))


@pytest.mark.parametrize("merged", [False, True])
def test_what_is_no_number_stays_none(tmp_path, merged):
    """Through ReLUs inside convolutions, and not beyond the windows that it lies in."""
    path = branches(tmp_path / "m.onnx")
    graph, device = prepare(load(path)), open_device("cpu", threads=2)
    units = group_units(graph)
    stages = dict(schedules_of(graph, units))["merged" if merged else "sequential"]
    assert any(stage.merged for stage in stages) == merged
    plan = StagePlan(
        units.units,
        stages,
        True,
        "cpu",
        device.name,
        device.versions,
        "float32",
        1,
        2,
        fingerprint(graph),
        Evidence("by hand", 0.0, 0.0, False, 0),
    )
    check_plan(graph, plan, device)
    (values,) = seeded_inputs(graph)
    values[0, 1, 4, 5] = np.nan
    engine = stage_engine(graph, plan, device, [values])
    (ours,) = [value.numpy() for value in engine.outputs()]
    engine.close()
    (theirs,) = expected(path, graph, [values])
    assert 0 < np.isnan(theirs).sum() < theirs.size
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)


def test_constant_outputs_and_state(tmp_path):
    from dataclasses import replace

    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    weight = next(tensor for tensor in graph.constants if graph.tensors[tensor].shape)
    both = replace(graph, outputs=(*graph.outputs, weight))
    units = group_units(both)
    stages = tuple(Stage(((unit,),)) for unit in range(len(units.units)))
    *_, last = outputs(both, units, stages, barriers=False, threads=1)
    assert np.array_equal(last, graph.constant(weight))
    first = graph.ops[0].inputs[0]
    tensors = list(graph.tensors)
    tensors[first] = replace(tensors[first], role="state")
    with pytest.raises(UnsupportedError, match="from one run to the next"):
        Binder(replace(graph, tensors=tuple(tensors), inputs=())).bind([0])


def test_devices_that_there_are_not():
    for kind, options in (("gpu", {}), ("cpu", {"threads": 0}), ("cpu", {"dtype": "int3"})):
        with pytest.raises(UsageError):
            open_device(kind, **options)


def test_a_failure_on_a_lane_reaches_the_caller(tmp_path):
    """And nobody waits for ever for what will not come."""
    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    units = group_units(graph)
    binder = Binder(graph)
    stages = greedy(StageProblem(units.predecessors), lambda _: 0.0).stages
    program = lower(units, stages, barriers=False, max_lanes=3)
    device = open_device("cpu", threads=3)
    values = seeded_inputs(graph)
    with device.engine(binder, program, inputs=graph.inputs, outputs=graph.outputs, values=values) as engine:
        placed = [binder.place(value) for value in values]
        engine(placed)
        with pytest.raises(RuntimeError):
            engine([value[:, :2] for value in placed])
        engine(placed)


def test_units_of_the_paper_s_networks():
    """119, 120, 374 and 50 operators: of RandWire and NASNet the last sums join what reads them, as patterns say."""
    found = {}
    for name in ("inception_v3", "randwire_large", "nasnet_large", "squeezenet"):
        from zoo import graph as zoo_graph

        graph = zoo_graph(name, weights=False)
        units = group_units(graph)
        assert sorted(op for ops in units.units for op in ops) == list(range(len(graph.ops)))
        found[name] = len(units.units)
        parts = search_blocks(units.predecessors)
        done = 0
        for part in parts:
            assert len(part) <= 40
            done |= sum(1 << unit for unit in part)
            assert all(units.predecessors[unit] & ~done == 0 for unit in part)
        assert done.bit_count() == len(units.units) == sum(map(len, parts))
    assert found == {"inception_v3": 119, "randwire_large": 118, "nasnet_large": 373, "squeezenet": 50}


@pytest.mark.parametrize(
    ("variant", "name", "options"),
    [
        ("pools swapped", "inception_v3", {"image": 75}),
        ("separables merged", "randwire_large", {"image": 32, "channels": 8}),
    ],
)
def test_variants_compute_the_same(tmp_path, variant, name, options):
    import onnx

    same = prepare(load(branchy(tmp_path / "m.onnx")))  # a max pool, and separable convolutions of unequal kernels
    assert VARIANTS[variant](same) is same
    path = tmp_path / f"{name}.onnx"
    onnx.save(ZOO[name](**options), str(path))
    graph = prepare(load(path))
    changed = VARIANTS[variant](graph)
    theirs = expected(path, graph, seeded_inputs(graph))
    units = group_units(changed)
    families = merge_families(changed, units)
    if variant == "pools swapped":
        before = merge_families(graph, group_units(graph))
        assert sum(map(int.bit_count, families)) > sum(map(int.bit_count, before))
    else:
        assert sum(op.kind == "Conv" for op in changed.ops) < sum(op.kind == "Conv" for op in graph.ops)
    close(outputs(changed, units, merged_stages(units, families), barriers=False, threads=2), theirs)
