"""ESP-NN's scratch: formulas against sizes that its own functions returned, and plans that hold it.

tests/golden/esp_nn_sizes.csv holds what the functions of each version returned, compiled on a host by
experiments/fit/esp_nn.py, which compares 100,000 shapes of each kind.
"""

import csv
import itertools
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import downset as ds
from downset.arenas.check import verify_arena
from downset.errors import UsageError
from downset.fitting.fit import fit
from downset.fitting.verdict import check_ram
from downset.formats.tflite.read import load_tflite
from downset.memory.esp_nn import CHIPS, VERSIONS, EspWindow, esp_convolution, esp_overrun, esp_softmax
from downset.memory.kernel_libraries import LIBRARIES, kernel_library
from downset.memory.kernel_needs import kernel_needs
from downset.memory.liveness import order_problem, profile
from downset.memory.models import memory_model
from downset.messages import Setting
from tests.tflite_net import TfliteNet

SIZES = Path(__file__).parent.parent / "golden" / "esp_nn_sizes.csv"


def recorded():
    def pair(text):
        return tuple(int(part) for part in text.split("x"))

    with SIZES.open() as file:
        for row in csv.DictReader(file):
            sizes = [pair(row[name]) for name in ("image", "window", "stride", "result", "pads")]
            window = EspWindow(*sizes, int(row["depth"]), int(row["made"]))
            yield row["kernel"] == "depthwise", window, {name: int(row[name]) for name in row if "@" in name}


def test_formulas_give_what_the_library_asks_for():
    compared = 0
    for depthwise, window, asked in recorded():
        for name, nbytes in asked.items():
            chip, version = name.split("@")
            assert esp_convolution(window, chip, version, depthwise=depthwise) == nbytes, (name, window)
            assert esp_convolution(window, "generic", version, depthwise=depthwise) == 0
            compared += 1
    assert compared == 83 * 12


def test_a_softmax_asks_for_four_bytes_of_its_second_axis():
    net = TfliteNet(size=6, dtype="int8")
    made = net.op("SOFTMAX", (net.input(5),), 5, "SoftmaxOptions", beta=1.0)
    assert esp_softmax(6) == 24
    graph = load_in(net, made)
    assert {name: kernel_needs(graph, f"esp-nn-{name}").buffers for name in CHIPS} == {
        name: {0: (32,)} for name in CHIPS
    }


def load_in(net, made, folder=None):
    import tempfile

    with tempfile.TemporaryDirectory() as scratch:
        return load_tflite(net.save(Path(folder or scratch) / "m.tflite", [made]))


def small_network(seed, kinds):
    """Convolutions in a row with a branch, of the given kinds and channels."""
    net = TfliteNet(seed, size=9, dtype="int8")
    x = net.input(kinds[0][1])
    ends = [net.conv(x, 4)]
    for kind, channels in kinds:
        x = net.depthwise(x) if kind == "depthwise" else net.conv(x, channels, 3 if kind == "window" else 1)
        ends.append(net.conv(x, 3))
    return load_in(net, net.concat([x, *ends]))


def by_hand(graph, op, chip, version):
    """The scratch of one operator, aligned; read from the network."""
    if op.kind != "Conv":
        return 0
    read, made = graph.tensors[op.inputs[0]].shape, graph.tensors[op.outputs[0]].shape
    sizes = [tuple(op.attrs[name][:2]) for name in ("kernel_shape", "strides")]
    window = EspWindow(read[1:3], *sizes, made[1:3], tuple(op.attrs["pads"][:2]), read[3], made[3])
    nbytes = esp_convolution(window, chip, version, depthwise=bool(op.attrs.get("depthwise")))
    return -(-nbytes // 16) * 16


@given(
    st.lists(st.tuples(st.sampled_from(["depthwise", "window", "point"]), st.integers(1, 18)), min_size=1, max_size=3),
    st.sampled_from(["s3", "p4"]),
    st.sampled_from(VERSIONS),
)
def test_an_operator_holds_its_scratch_while_it_runs_and_no_longer(kinds, chip, version):
    graph = small_network(0, kinds)
    steps = ds.plan_order(graph, memory="tflm").steps
    plain, with_scratch = (
        profile(order_problem(graph, memory), steps) for memory in ("tflm", f"tflm-esp-nn-{chip}@{version}")
    )
    own = [by_hand(graph, graph.ops[operator], chip, version) for operator in steps]
    assert with_scratch == [transient + nbytes for transient, nbytes in zip(plain, own, strict=True)]


@given(st.lists(st.tuples(st.sampled_from(["depthwise", "window"]), st.integers(1, 18)), min_size=1, max_size=2))
def test_the_best_order_is_that_of_all_orders_with_their_scratch(kinds):
    graph, memory = small_network(1, kinds), "tflm-esp-nn-s3@1.2.3"
    problem, before = order_problem(graph, memory), graph.predecessors()
    peaks = [
        max(profile(problem, steps))
        for steps in itertools.permutations(range(len(graph.ops)))
        if all(steps.index(early) < steps.index(late) for late, those in enumerate(before) for early in those)
    ]
    order = ds.plan_order(graph, memory=memory)
    assert (order.evidence.proven, order.peak_bytes) == (True, min(peaks))
    arena = ds.plan_arena(graph, order.steps, memory=memory)
    verify_arena(graph, order.steps, arena)
    held = [record for record in arena.records if record.id.startswith("scratch ")]
    assert all(record.stop == record.start + 1 for record in held)
    assert sorted(record.nbytes for record in held) == sorted(
        nbytes for op in graph.ops if (nbytes := by_hand(graph, op, "s3", "1.2.3"))
    )


def wide_and_narrow(folder):
    """A network whose largest scratch falls on a step where few tensors are live."""
    net = TfliteNet(2, size=24, dtype="int8")
    narrow = net.conv(net.input(3), 16)
    wide = net.conv(net.conv(narrow, 64), 2)
    made = net.concat([net.conv(net.depthwise(net.conv(narrow, 16)), 2), wide])
    return net.save(folder / "m.tflite", [made])


def test_a_fit_needs_no_more_than_the_original_with_the_same_kernels(tmp_path):
    """Planned without scratch, the shipped file may take more on the chip than the file as it was."""
    path = wide_and_narrow(tmp_path)
    for kernels in ("esp-nn-s3@1.1.2", "esp-nn-s3@1.2.3", "esp-nn-p4@1.2.3"):
        result = fit(path, kernels=kernels, time_limit_s=2.0)
        before, after = result.measured.needed
        tail = result.measured.details[result.shipped]["tail_bytes"]
        assert after <= before
        assert after == result.arena.after + tail, "the plan holds the scratch"
        assert result.arena.proven and result.memory == f"tflm-{kernels}"
        unaware = fit(path, time_limit_s=2.0)
        scratch = kernel_needs(result.graph, kernels).scratch_bytes
        assert unaware.measured.after < after <= unaware.measured.after + scratch
        assert result.assumed_kernels is None, "nothing overlaps"


def test_several_versions_count_as_the_most_of_them_and_prove_no_limit(tmp_path):
    path = wide_and_narrow(tmp_path)
    graph = load_tflite(path)
    each = [kernel_needs(graph, f"esp-nn-s3@{version}").buffers for version in VERSIONS]
    most = kernel_needs(graph, "esp-nn-s3").buffers
    assert most == {op: max(one.get(op, (0,)) for one in each) for op in set().union(*each)}
    for kernels, proven in (("esp-nn-s3@1.2.3", True), ("esp-nn-s3", False), ("cmsis-nn-dsp", False)):
        result = fit(path, kernels=kernels, time_limit_s=2.0)
        assert result.arena.proven
        with pytest.raises(ds.InfeasibleError if proven else ds.LimitReached):
            check_ram(result, Setting("ram_bytes", result.measured.needed[1] - 1))


def test_kernels_that_write_beyond_their_scratch_are_named(tmp_path):
    """Issue 30 of ESP-NN: 49x20x32, a 3x3 window with strides of two, padded by (1, 0)."""
    window = EspWindow((49, 20), (3, 3), (2, 2), (25, 10), (1, 0), 32, 32)
    assert esp_overrun(window, "s3", "1.2.3", depthwise=True)
    assert not esp_overrun(window, "s3", "1.1.2", depthwise=True)
    assert not esp_overrun(window._replace(pads=(1, 1)), "s3", "1.2.3", depthwise=True)
    assert not esp_overrun(window, "p4", "1.2.3", depthwise=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("esp-nn", "differ by chip; name esp-nn-s3"),
        ("esp-nn-s3@1.2", "no formulas are known for this version; known versions: 1.1.1, "),
        ("esp-nn-s3@", "no formulas are known"),
        ("cmsis-nn-dsp@6.0", "known versions: 4ab83cc3"),
        ("reference@1", "known versions: none"),
        ("esp-nn-c3", "must be one of reference, "),
        (7, "must be a name such as"),
    ],
)
def test_a_library_that_is_not_known_is_refused_and_no_other_taken(text, says, tmp_path):
    with pytest.raises(UsageError, match=says):
        kernel_library(text)
    with pytest.raises(UsageError, match=says):
        fit(wide_and_narrow(tmp_path), kernels=text)


def test_names_of_libraries_and_of_their_memory_models():
    for name, versions in LIBRARIES.items():
        assert kernel_library(name).versions == versions
        for version in versions:
            assert kernel_library(f"{name}@{version}").versions == (version,)
    assert memory_model("tflm-esp-nn-s3@1.2.1").scratch == "esp-nn-s3@1.2.1"
    with pytest.raises(UsageError, match="no formulas"):
        memory_model("tflm-esp-nn-s3@9")
