"""What `fit` says "measured in torch" is what PyTorch's profiler reports of its own module, and no file ships that
allocates more."""

import random
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")

import downset as ds  # noqa: E402
from downset.fitting.candidates import Candidate  # noqa: E402
from downset.fitting.choosing import least  # noqa: E402
from downset.fitting.job import FitOptions, Job  # noqa: E402
from downset.formats.torch import effects  # noqa: E402
from downset.formats.torch.archive import DTYPES  # noqa: E402
from downset.formats.torch.effects import earlier_calls, written_names  # noqa: E402
from downset.formats.torch.program import TorchCall, TorchValue  # noqa: E402
from downset.formats.torch.runnable import runnable_operator, runnable_program, torch_dtype  # noqa: E402
from downset.graph.core import WORKSPACE  # noqa: E402
from downset.reports.fit_steps import fit_next_steps  # noqa: E402
from downset.reports.terminal import step_lines  # noqa: E402
from downset.runtimes import torch_eager  # noqa: E402
from downset.runtimes.targets import TARGETS, Taken  # noqa: E402
from tests.effort import LONG, cases  # noqa: E402
from tests.torch_networks import drawn_file, profiled_peaks, saved  # noqa: E402


def near(said, profiled):
    """Within 1 % or 1 KiB: libraries keep a few bytes from one run to the next."""
    return abs(said - profiled) <= max(1024, profiled / 100)


class TwoBranches(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.ModuleList(torch.nn.Conv2d(8, 32, 3, padding=1) for _ in range(2))
        self.narrow = torch.nn.ModuleList(torch.nn.Conv2d(32, 8, 1) for _ in range(2))

    def forward(self, x):
        first, second = (layer(x) for layer in self.wide)
        return self.narrow[0](first) + self.narrow[1](second)


def test_fit_says_what_the_profiler_reports_and_ships_no_more(tmp_path):
    """The two branches run one after the other in the file that ships; what kernels hold is in the plan."""
    files = [(saved(tmp_path / "two.pt2", TwoBranches(), 1, 8, 32, 32), (1, 8, 32, 32))]
    files += [drawn_file(tmp_path / f"{seed}.pt2", seed) for seed in range(40 if LONG else 3)]
    pairs, said = [], []
    for path, shape in files:
        result = ds.fit(path, output=tmp_path / f"out_{path.name}", time_limit_s=2)
        assert result.measured is not None, result.not_measured
        assert result.measured.after <= result.measured.before
        assert result.shipped != "original" or result.measured.after == result.measured.before
        pairs += [(path, shape), (tmp_path / f"out_{path.name}", shape)]
        said += [result.measured.before, result.measured.after]
    profiled = profiled_peaks(pairs)
    assert [pair for pair in zip(said, profiled, strict=True) if not near(*pair)] == []
    assert said[1] < said[0], "the two branches gain nothing: this shows little"


@pytest.mark.own_processes("torch")
def test_a_plan_counts_what_kernels_hold(tmp_path):
    """Without views the model's peak is the measured one, up to the rounding of tensors to 64 bytes."""
    path = saved(tmp_path / "two.pt2", TwoBranches(), 1, 8, 32, 32)
    result = ds.fit(path, time_limit_s=2)
    assert torch_eager.measure(path, trust=True).total_bytes == result.measured.before
    held = [tensor for tensor in result.graph.tensors if tensor.name.endswith(WORKSPACE)]
    assert held
    assert result.measured is not None
    assert 0 <= result.peak.before - result.measured.before <= 64 * len(result.graph.tensors)
    assert 0 <= result.peak.after - result.measured.after <= 64 * len(result.graph.tensors)
    assert any(note.startswith("planned with what") for note in result.notes)
    assert not any(WORKSPACE in line for line in step_lines(fit_next_steps(result)))


def test_of_files_that_measure_the_same_the_original_ships(tmp_path):
    original = Candidate("original", tmp_path / "a", 100, measured={"total_bytes": 7})
    order = Candidate("order", tmp_path / "b", 50, measured={"total_bytes": 7})
    job = Job(tmp_path / "a.pt2", TARGETS["torch"], FitOptions("a.pt2"), tmp_path)
    assert least(job, [original, order], lambda item: item) is original
    less = Candidate("order", tmp_path / "b", 200, measured={"total_bytes": 6})
    assert least(job, [original, less], lambda item: item) is less


def test_a_gain_that_measuring_does_not_show_does_not_ship(tmp_path, monkeypatch):
    """PyTorch as it was seen: the order of less live bytes allocates more."""
    path = saved(tmp_path / "two.pt2", TwoBranches(), 1, 8, 16, 16)
    measured = replace(TARGETS["torch"], measure=lambda file, **_: Taken({"total_bytes": 100 if file == path else 101}))
    monkeypatch.setitem(TARGETS, "torch", measured)
    result = ds.fit(path, output=tmp_path / "out.pt2", time_limit_s=2)
    assert (result.shipped, result.measured.before, result.measured.after) == ("original", 100, 100)
    assert (tmp_path / "out.pt2").read_bytes() == path.read_bytes()


def test_the_peak_of_known_allocations():
    """A workspace is what is freed before its call ends; what is let go between two calls belongs to neither."""
    changes = [(1, 100), (2, 50), (3, -50), (6, -10), (8, 30), (9, 40), (9, -40)]
    assert torch_eager._peaks(changes, [(0, 5, 0), (7, 10, 1)]) == (160, {0: 50, 1: 40})


# --- calls that write in place


@pytest.mark.parametrize("seed", range(cases(30)))
def test_every_order_of_a_program_that_writes_in_place_gives_its_outputs(tmp_path, seed):
    """PyTorch runs the written file: a reader of the old bytes never comes behind the call that overwrites them."""
    draw = random.Random(seed)
    kinds = ["relu", "sigmoid", "view", "half", "add_", "relu_", "mul_", "sum"]
    calls = [(draw.choice(kinds), draw.randrange(place + 1), draw.randrange(place + 1)) for place in range(8)]

    class InPlace(torch.nn.Module):
        def forward(self, x):
            values = [x * 1.5]
            for kind, one, other in calls:
                first, second = values[one], values[other]
                values.append(
                    {
                        "relu": lambda a, b: torch.relu(a),
                        "sigmoid": lambda a, b: torch.sigmoid(a),
                        "view": lambda a, b: a.view(4, -1).view(a.shape),
                        "half": lambda a, b: a[:, :].transpose(0, 1).t(),
                        "add_": lambda a, b: a.add_(b),
                        "relu_": lambda a, b: a.relu_(),
                        "mul_": lambda a, b: a.mul_(0.5),
                        "sum": lambda a, b: a - b,
                    }[kind](first, second)
                )
            return tuple(value.clone() for value in values)

    network = InPlace()
    path = saved(tmp_path / "m.pt2", network, 4, 6)
    graph = ds.load(path)
    value = torch.randn(4, 6)
    expected = network(value)
    before = graph.predecessors()
    for _ in range(4):
        steps, done = [], set()
        while len(steps) < len(graph.ops):
            ready = [v for v in range(len(graph.ops)) if v not in done and done.issuperset(before[v])]
            steps.append(draw.choice(ready))
            done.add(steps[-1])
        order = replace(ds.plan_order(graph, method="kahn", memory="torch"), steps=tuple(steps))
        ds.export(tmp_path / "r.pt2", graph, order)
        for one, other in zip(expected, torch.export.load(tmp_path / "r.pt2").module()(value), strict=True):
            assert torch.equal(one, other), (calls, steps)


def _schemas():
    for name in torch._C._dispatch_get_all_op_names():
        base, _, overload = name.removeprefix("aten::").partition(".")
        if name.startswith("aten::"):
            yield base, overload or "default", torch._C._get_schema(f"aten::{base}", overload)


def _is_tensor(argument):
    return "Tensor" in str(argument.type)


def test_every_operator_that_pytorch_says_writes_is_known_to_write():
    seen = 0
    for base, overload, schema in _schemas():
        args = [TorchValue(a.name, (1,)) for a in schema.arguments if not a.kwarg_only]
        args = [value if _is_tensor(a) else None for value, a in zip(args, schema.arguments, strict=False)]
        kwargs = {a.name: TorchValue(a.name, (1,)) for a in schema.arguments if a.kwarg_only and _is_tensor(a)}
        call = TorchCall("c", f"aten.{base}.{overload}", tuple(args), kwargs, ())
        writes = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        assert writes <= written_names(call), schema
        seen += bool(writes)
    assert seen > 500


def test_no_operator_whose_results_pytorch_says_alias_counts_as_fresh():
    for base, overload, schema in _schemas():
        alias = any(r.alias_info is not None and not r.alias_info.is_write for r in schema.returns)
        call = TorchCall("c", f"aten.{base}.{overload}", (), {}, ())
        assert not (alias and effects._is_fresh(call)), schema


def test_calls_that_write_wait_for_readers_and_readers_for_them():
    def call(name, target, args, result):
        return TorchCall(name, target, tuple(TorchValue(a, (2,)) for a in args), {}, (TorchValue(result, (2,)),))

    calls = [
        call("a", "aten.mul.Tensor", "xy", "a"),
        call("v", "aten.view.default", "a", "v"),
        call("s", "aten.sum.default", "v", "s"),
        call("r", "aten.relu_.default", "a", "r"),
        call("t", "aten.sum.default", "v", "t"),
        call("o", "mine.own.default", "t", "o"),
    ]
    assert earlier_calls(calls) == [(), (), (), (0, 1, 2), (3,), (4,)]


# --- what runs without trust


def test_weights_that_run_are_those_that_pytorch_loads(tmp_path):
    """Of each element type, with their strides."""
    weights = torch.rand(6, 2).mul(9).t()

    class EachType(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in DTYPES.values():
                self.register_buffer(f"of_{name}", weights.to(torch_dtype(torch, name)))

        def forward(self, x):
            return [x + value.to(x.dtype) for value in self.buffers()]

    path = saved(tmp_path / "types.pt2", EachType(), 2, 6)
    program, loaded = runnable_program(path), torch.export.load(path)
    assert len(program.weights) == len(DTYPES) == len(loaded.state_dict)
    for name, expected in loaded.state_dict.items():
        weight = program.weights[f"b_{name}"]
        assert (weight.dtype, weight.shape, weight.stride()) == (expected.dtype, expected.shape, expected.stride())
        assert weight.to(torch.complex128).equal(expected.to(torch.complex128)), name
    assert ds.fit(path, time_limit_s=1).measured is not None


def test_no_operator_that_opens_a_file_runs_from_a_file():
    """Every operator with a name of a file among its arguments is refused, and every private one outside the core."""
    ran = 0
    for base, overload, schema in _schemas():
        words = {a.name for a in schema.arguments if str(a.type) in ("str", "Optional[str]")}
        target = f"aten.{base}.{overload}"
        try:
            operator = runnable_operator(torch, target)
        except ds.UnsupportedError:
            continue
        ran += 1
        assert not words & {"filename", "path", "file", "name"}, target
        assert base[0] != "_" or base.startswith(("_assert_", "__")) or torch.Tag.core in operator.tags
    assert ran > 1000


@pytest.mark.parametrize(
    "target",
    [
        "os.system",
        "aten.from_file.default",
        "aten.__class__.default",
        "aten.conv2d",
        "aten.conv2d.__init__",
        "mine.own.default",
        "aten.conv2d.nothing",
    ],
)
def test_other_names_are_refused(target):
    with pytest.raises(ds.UnsupportedError, match="trust=True"):
        runnable_operator(torch, target)


def test_an_onnx_file_is_not_measured_in_pytorch(tmp_path):
    with pytest.raises(ds.UnsupportedError, match=r"PyTorch runs \.pt2 files, not net\.onnx"):
        torch_eager.measure(tmp_path / "net.onnx")
