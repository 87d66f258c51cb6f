"""Aliasing alone: views, inputs written in place, outputs that share storage with inputs or each other, tied weights.

What is compiled has eager PyTorch's values, and shares storage where eager PyTorch does. Each rule that this needs is
put in wrongly by hand once, and is found.
"""

import warnings

import pytest
import torch
from torch import Tensor, nn

import downset as ds
from downset.integrations import optimizer_update, scheduler_problem, step_parts
from tests.fresh_graphs import fresh_graphs
from tests.integrations.test_inductor_options import Watched

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]

COMPILE = torch.compile


@torch.library.custom_op("downset_tests::shift_", mutates_args={"x"})
def shift_(x: Tensor, by: Tensor) -> None:
    """Writes in place, as an operator that Inductor calls and does not generate: then a test compiles no C++."""
    x.add_(by)


@shift_.register_fake
def _(x, by):
    return None


def wide_and_narrow(y, up, down):
    """Little, of much that lives shortly."""
    return y.mm(up).mm(down)


def write_behind_a_read(x, y, up, down):
    """The read makes much that is kept: in fewest bytes it would come last."""
    old = x.mm(up)
    shift_(x, wide_and_narrow(y, up, down))
    return old, wide_and_narrow(x, up, down)


def write_behind_a_read_of_a_view(x, y, up, down):
    old = x.t().mm(up)
    shift_(x[:4], wide_and_narrow(y, up, down)[:4])
    return old


def read_behind_a_write(x, y, up, down):
    """What is read first makes much that is kept: in fewest bytes the last two would come before it."""
    kept = y.mm(up)
    shift_(x.view(64)[8:], kept.mm(down).view(64)[:56])
    return kept, wide_and_narrow(x, up, down)


def inputs_come_back(x, y, up, down):
    shift_(y, wide_and_narrow(x, up, down))
    return x.t(), y, y[2:], x


def outputs_share(x, y, up, down):
    large = y.mm(up)
    made = wide_and_narrow(x, up, down)
    return made, made.t(), large[1:], large.view(-1), y.mm(made)


FUNCTIONS = [
    write_behind_a_read,
    write_behind_a_read_of_a_view,
    read_behind_a_write,
    inputs_come_back,
    outputs_share,
]


def shared(tensors):
    """By tensor: the first of the list that lies in its storage, and where in it."""
    held = [tensor.untyped_storage().data_ptr() for tensor in tensors]
    return [(held.index(of), t.storage_offset(), t.shape, t.stride()) for of, t in zip(held, tensors, strict=True)]


def called(function):
    """Inputs and outputs after a call."""
    generator = torch.Generator().manual_seed(3)
    inputs = [torch.randn(*size, generator=generator) for size in ((8, 8), (8, 8), (8, 256), (256, 8))]
    return [*inputs, *function(*inputs)]


def ordered(function, *, dynamic=None):
    """Inputs and outputs after a call that is compiled in our order, and whether that differs from the given one."""
    options = ds.inductor.options()
    options["_post_fusion_custom_pass"] = watched = Watched(options["_post_fusion_custom_pass"], stop=False)
    torch._dynamo.reset()
    with fresh_graphs(reorder_for_peak_memory=False):
        seen = called(COMPILE(function, fullgraph=True, dynamic=dynamic, options=options))
    ((before, after),) = watched.seen
    return seen, before != after


def assert_same(ours, theirs):
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-3)
    assert shared(ours) == shared(theirs)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_values_and_storages_are_those_of_eager_pytorch(function):
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="downset")
        ours, moved = ordered(function)
    assert_same(ours, called(function))
    assert moved or function is not write_behind_a_read_of_a_view


def test_open_sizes_are_ordered_by_what_the_compiler_takes_them_for():
    ours, moved = ordered(write_behind_a_read_of_a_view, dynamic=True)
    assert moved
    assert_same(ours, called(write_behind_a_read_of_a_view))


def waits(keeps):
    """Predecessors by those of Inductor's dependencies that a rule keeps."""

    def predecessors(nodes, in_sequence):
        made_by = {name: at for at, node in enumerate(nodes) for name in node.get_buffer_names()}
        written = {buffer.get_name() for node in nodes for buffer in node.get_outputs() if buffer.get_mutations()}
        kept = [[dep.name for dep in node.unmet_dependencies if keeps(dep, written)] for node in nodes]
        return tuple(tuple(sorted({made_by[n] for n in names} - {at})) for at, names in enumerate(kept))

    return predecessors


@pytest.mark.parametrize(
    ("function", "keeps"),
    [
        (write_behind_a_read, lambda dep, written: not getattr(dep, "mutating_buf", None)),
        (write_behind_a_read_of_a_view, lambda dep, written: not getattr(dep, "mutating_buf", None)),
        (read_behind_a_write, lambda dep, written: dep.name not in written),
    ],
)
def test_a_wrong_order_of_reads_and_writes_is_found(function, keeps, monkeypatch):
    monkeypatch.setattr(scheduler_problem, "_predecessors", waits(keeps))
    ours, moved = ordered(function)
    assert moved
    with pytest.raises(AssertionError):
        assert_same(ours, called(function))


def test_a_wrong_life_of_outputs_is_found(monkeypatch):
    storages = scheduler_problem._storages
    monkeypatch.setattr(scheduler_problem, "_storages", lambda nodes, inputs, outputs: storages(nodes, inputs, ()))
    with pytest.warns(UserWarning, match="own order: UnsupportedError: Inductor counts .* bytes where downset counts"):
        _, moved = ordered(outputs_share)
    assert not moved


class Tied(nn.Module):
    """One weight under two names, two weights that lie in one tensor, and a buffer that is a view of another."""

    def __init__(self):
        super().__init__()
        self.into, self.out = nn.Linear(4, 8, bias=False), nn.Linear(4, 8, bias=False)
        self.out.weight = self.into.weight
        flat = torch.linspace(-1, 1, 24)
        self.scale, self.shift = nn.Parameter(flat[:8]), nn.Parameter(flat[8:16])
        self.register_buffer("seen", torch.zeros(2, 8))
        self.register_buffer("last", self.seen[1])

    def forward(self, x):
        x.mul_(2.0)  # the caller's
        made = torch.tanh(self.into(x)) * self.scale + self.shift + self.last
        with torch.no_grad():
            self.last.copy_(made.mean(0))
        return nn.functional.linear(made, self.out.weight.t())


class Alone(nn.Module):
    """Its loss is its parameter."""

    def __init__(self):
        super().__init__()
        self.only = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.only


def mean_square(made, target):
    return (made - target).square().mean()


def trained(kind, loss_fn, *, whole):
    """All tensors that a user holds after two steps; the target is a view of the input."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    model = kind()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    seen = []
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="downset")
        step = ds.inductor.compile_step(model, loss_fn, optimizer) if whole else None
        for _ in range(2):
            x = torch.linspace(-1, 1, 24).reshape(6, 4)
            target = x[:, :4]
            if step is not None:
                loss = step(x, target)
            else:
                root = loss_fn(model(x), target)
                root.backward()
                optimizer.step()
                optimizer.zero_grad()
                loss = root.detach()
            seen += [loss, x, target, x.clone()]
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers()]
    return [
        *seen,
        *(tensor.detach() for _, tensor in named),
        *(optimizer.state[p]["momentum_buffer"] for _, p in named[:3]),
    ]


def without_inductor(monkeypatch, backend):
    monkeypatch.setattr(torch, "compile", lambda function, **_: COMPILE(function, fullgraph=True, backend=backend))


CASES = [(Tied, mean_square), (Alone, lambda made, target: made)]


@pytest.mark.parametrize(("kind", "loss_fn"), CASES)
def test_a_whole_step_shares_what_the_eager_loop_shares(kind, loss_fn, monkeypatch):
    without_inductor(monkeypatch, "aot_eager")
    theirs = trained(kind, loss_fn, whole=False)
    assert len({of for of, *_ in shared(theirs)}) < len(theirs)
    assert_same(trained(kind, loss_fn, whole=True), theirs)


def twice(optimizer):
    return tuple(tuple(p for p in group["params"] for _ in range(2)) for group in optimizer.param_groups)


def of_copies(parts, inputs, targets):
    return parts.loss_fn(parts.model(inputs.clone()), *targets), None


def cloned(parts, inputs, targets):
    return parts.loss_fn(parts.model(inputs), *targets).clone(), None


def beside(parts, group, rate):
    for parameter, gradient, state in parts:
        state["momentum_buffer"].mul_(group["momentum"]).add_(gradient)
        parameter.data = parameter - rate * state["momentum_buffer"]


@pytest.mark.parametrize(
    ("case", "module", "name", "wrong"),
    [
        (0, optimizer_update, "trained", twice),
        (0, step_parts, "full_loss", of_copies),
        (1, step_parts, "full_loss", cloned),
        (0, optimizer_update, "_sgd", beside),
    ],
)
def test_a_whole_step_by_a_wrong_rule_is_found(case, module, name, wrong, monkeypatch):
    without_inductor(monkeypatch, "eager")
    theirs = trained(*CASES[case], whole=False)
    monkeypatch.setattr(module, name, wrong)
    ours = trained(*CASES[case], whole=True)
    with pytest.raises(AssertionError):
        assert_same(ours, theirs)
