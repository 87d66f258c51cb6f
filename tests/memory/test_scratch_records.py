"""Scratch of every kernel library is part of plans, by the same records, and never makes a plan worse than one of the
tensors alone with the scratch put into its gaps."""

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.arenas.plan import plan_arena
from downset.fitting.fit import fit
from downset.formats.tflite.read import load_tflite
from downset.graph.core import Graph, Op, Tensor
from downset.joint.order_and_arena import plan_together
from downset.memory import cmsis_nn, esp_nn
from downset.memory.kernel_needs import KernelNeeds, kernel_needs
from downset.memory.liveness import lifetimes, order_problem, profile
from downset.memory.models import memory_model, without_overlaps, without_scratch
from tests.effort import cases
from tests.tflite_net import TfliteNet

LIBRARIES = ("cmsis-nn-dsp", "cmsis-nn-mve", "esp-nn-s3@1.2.3", "esp-nn-p4@1.2.3", "esp-nn-s3")


def network(folder, seed, kinds):
    """Convolutions in a row, each with a branch whose ends are joined."""
    net = TfliteNet(seed, size=7, dtype="int8")
    x = net.input(kinds[0][1])
    ends = [net.conv(x, 4)]
    for kind, channels in kinds:
        x = net.depthwise(x) if kind == "depthwise" else net.conv(x, channels, 3 if kind == "window" else 1)
        ends.append(net.conv(x, 3))
    return net.save(folder / "m.tflite", [net.concat([x, *ends])])


def put_into_gaps(steps, arena, buffers):
    """By hand: the height of an arena of tensors after every operator's scratch, the largest first, goes to the lowest
    bytes that are free at its step."""
    top = arena.arena_bytes
    for step, operator in enumerate(steps):
        taken = sorted(
            (offset, offset + record.nbytes)
            for record, offset in zip(arena.records, arena.offsets, strict=True)
            if record.start <= step < record.stop
        )
        for nbytes in sorted(buffers.get(operator, ()), reverse=True):
            lowest = 0
            for begin, end in taken:
                if begin - lowest >= nbytes:
                    break
                lowest = max(lowest, end)
            taken = sorted([*taken, (lowest, lowest + nbytes)])
            top = max(top, lowest + nbytes)
    return top


KINDS = st.lists(
    st.tuples(st.sampled_from(["depthwise", "window", "point"]), st.integers(1, 12)), min_size=2, max_size=4
)


@given(KINDS, st.integers(0, 3), st.sampled_from(LIBRARIES))
def test_a_plan_with_scratch_is_no_larger_than_one_without_and_the_scratch_in_its_gaps(
    tmp_path_factory, kinds, seed, library
):
    graph = load_tflite(network(tmp_path_factory.mktemp("m"), seed, kinds))
    model, buffers = memory_model(f"tflm-{library}"), kernel_needs(graph, library).buffers
    alone = plan_together(graph, memory=without_scratch(model), time_limit_s=20)
    with_scratch = plan_together(graph, memory=model, time_limit_s=20)
    steps = alone.order.steps
    assert with_scratch.arena.arena_bytes <= put_into_gaps(steps, alone.arena, buffers)
    for method in ("best", "local_search"):
        tensors, held = (plan_arena(graph, steps, method=method, memory=one) for one in (without_scratch(model), model))
        assert held.arena_bytes <= put_into_gaps(steps, tensors, buffers)


def random_network(seed):
    """(a network of random sizes, random scratch by operator)."""
    random = Random(seed)
    sizes, ops = [random.randint(1, 60) * 16 for _ in range(random.randint(8, 40) + 1)], []
    for made in range(1, len(sizes)):
        nearest = max(0, made - random.choice([2, 4, 8]))
        read = {random.randint(nearest, made - 1) for _ in range(random.randint(1, 2))}
        ops.append(Op(f"o{made}", "tflite::X", tuple(read), (made,), {}))
    read = {tensor for op in ops for tensor in op.inputs}
    tensors = tuple(
        Tensor(f"t{place}", (nbytes,), "int8", nbytes, "activation" if place else "input")
        for place, nbytes in enumerate(sizes)
    )
    outputs = tuple(place for place in range(1, len(sizes)) if place not in read)
    buffers = {at: (random.randint(1, 80) * 16,) for at in range(len(ops)) if random.random() < 0.6}
    return Graph("random", tensors, tuple(ops), (0,), outputs), buffers


def test_random_scratch_never_makes_an_arena_larger_than_its_gaps_do(monkeypatch):
    """Placed together with the scratch, tensors may end higher than with the scratch put in later."""
    model = replace(memory_model("tflm"), name="given", scratch="given")
    helped = 0
    for seed in range(cases(2000)):
        graph, buffers = random_network(seed)
        monkeypatch.setattr("downset.memory.storages.kernel_needs", lambda graph, library, b=buffers: KernelNeeds(b))
        steps = range(len(graph.ops))
        tensors, held = (plan_arena(graph, steps, memory=one) for one in (without_scratch(model), model))
        in_gaps = put_into_gaps(steps, tensors, buffers)
        assert held.arena_bytes <= in_gaps, seed
        helped += held.arena_bytes == in_gaps and not held.evidence.proven
    assert helped


@given(KINDS, st.sampled_from(LIBRARIES))
def test_every_library_s_scratch_is_records_of_one_step(tmp_path_factory, kinds, library):
    graph = load_tflite(network(tmp_path_factory.mktemp("m"), 0, kinds))
    steps, needs = range(len(graph.ops)), kernel_needs(graph, library)
    for model in (memory_model(f"tflm-{library}"), without_overlaps(memory_model(f"tflm-{library}"))):
        tensors, held = (lifetimes(graph, steps, one).records for one in (without_scratch(model), model))
        scratch = sorted((record.start, record.stop, record.nbytes) for record in set(held) - set(tensors))
        asked = [(at, at + 1, nbytes) for at, sizes in needs.buffers.items() for nbytes in sizes]
        assert scratch == sorted(asked)
        plain, full = (profile(order_problem(graph, one), steps) for one in (without_scratch(model), model))
        assert full == [nbytes + sum(needs.buffers.get(at, ())) for at, nbytes in enumerate(plain)]


def test_without_overlaps_scratch_still_counts():
    for library in LIBRARIES:
        model = memory_model(f"tflm-{library}")
        apart = without_overlaps(model)
        assert (apart.kernels, apart.in_place, apart.scratch) == (None, frozenset(), library)
        assert memory_model(apart.name) == apart
        assert replace(without_scratch(apart), name="tflm", counts="") == replace(memory_model("tflm"), counts="")
    assert without_overlaps(memory_model("tflm-reference")) == memory_model("tflm")


@pytest.mark.parametrize("library", ["cmsis-nn-dsp", "esp-nn-s3@1.2.3"])
def test_the_formulas_of_a_network_are_computed_once(tmp_path, monkeypatch, library):
    graph = load_tflite(network(tmp_path, 0, [("window", 6), ("depthwise", 6)]))
    asked = []
    for module, name in ((cmsis_nn, "cmsis_request"), (esp_nn, "esp_request")):
        formula = getattr(module, name)

        def counted(graph, op, *args, formula=formula, **options):
            asked.append(op.name)
            return formula(graph, op, *args, **options)

        monkeypatch.setattr(module, name, counted)
    plan_together(graph, memory=f"tflm-{library}", time_limit_s=5)
    assert sorted(asked) == sorted(op.name for op in graph.ops)


@pytest.mark.parametrize("library", ["cmsis-nn-dsp", "cmsis-nn-mve", "esp-nn-s3"])
def test_a_fit_holds_the_scratch_in_its_arena_and_names_what_may_overlap(tmp_path, library):
    path = network(tmp_path, 2, [("window", 16), ("depthwise", 16), ("window", 9)])
    result = fit(path, kernels=library, time_limit_s=3.0)
    scratch = [record for record in result.together.arena.records if record.id.startswith("scratch ")]
    assert sorted(record.nbytes for record in scratch) == sorted(
        nbytes for sizes in kernel_needs(result.graph, library).buffers.values() for nbytes in sizes
    )
    assert result.measured.needed[1] == result.arena.after + result.measured.details[result.shipped]["tail_bytes"]
    assert result.measured.needed[1] <= result.measured.needed[0]
    overlapping = memory_model(result.memory).kernels is not None
    assert result.assumed_kernels == (library if overlapping else None)
