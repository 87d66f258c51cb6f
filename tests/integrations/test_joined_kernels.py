"""Kernels that share files: equal values from fewer compiles; where something is otherwise, Inductor's own way."""

import re
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._inductor import async_compile, codecache

import downset as ds
from downset.integrations import joined_kernels as joining
from downset.integrations.joined_kernels import joined, joined_kernels
from tests.fresh_graphs import fresh_graphs

pytestmark = [pytest.mark.native, pytest.mark.xdist_group("inductor")]
INCLUDE = "#include <torch/csrc/inductor/cpp_prefix.h>\n"
PLAIN = f'{INCLUDE}extern "C"  void  kernel(const float* in_ptr0,\n          float* out_ptr0)\n{{\n    {{\n    }}\n}}\n'


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        torch.nn.Linear(24, 40), torch.nn.LayerNorm(40), torch.nn.GELU(), torch.nn.Linear(40, 5), torch.nn.Softmax(-1)
    )


@contextmanager
def compiled_files():
    """The sources of the files that are compiled within it."""
    files, load = [], codecache.CppPythonBindingsCodeCache.load_async.__func__

    def kept(cls, main_code, *arguments, **options):
        files.append(main_code)
        return load(cls, main_code, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch, fresh_graphs():
        patch.setattr(codecache.CppPythonBindingsCodeCache, "load_async", classmethod(kept))
        yield files


def trained(steps=3):
    """(parameters after a few whole steps, the files that were compiled)"""
    model = network()
    with compiled_files() as files:
        step = ds.inductor.compile_step(
            model, torch.nn.functional.mse_loss, torch.optim.AdamW(model.parameters(), lr=1e-2)
        )
        for seed in range(steps):
            draw = torch.Generator().manual_seed(seed)
            step(torch.randn(8, 24, generator=draw), torch.randn(8, 5, generator=draw))
        assert not step.fallback
    return [parameter.detach().clone() for parameter in model.parameters()], files


def test_steps_are_equal_bit_for_bit_and_compile_fewer_files(monkeypatch):
    ours, shared = trained()
    with monkeypatch.context() as patch:
        patch.setattr(joining, "_template", lambda: None)
        theirs, single = trained()
    assert all(map(torch.equal, ours, theirs))
    assert len(shared) == 1 < len(single), "small kernels fill one file"
    names = re.findall(r"void\s+(kernel_\d+)\(", shared[0])
    assert len(names) == len({*names}) == len({*single})


class Broken(torch.nn.Module):
    """A model whose step cannot be one graph, but two."""

    def __init__(self):
        super().__init__()
        self.inner = network()

    def forward(self, x):
        torch._dynamo.graph_break()
        return self.inner(x)


def test_forward_and_backward_graphs_share_files_too():
    torch.manual_seed(0)
    model, batch = Broken(), (torch.randn(8, 24), torch.randn(8, 5))
    with compiled_files() as files, pytest.warns(UserWarning, match="not as one graph"):
        step = ds.inductor.compile_step(
            model, torch.nn.functional.mse_loss, torch.optim.SGD(model.parameters(), lr=1e-2)
        )
        for _ in range(3):
            step(*batch)
    assert step.rung.startswith("forward and backward graphs")
    assert files and all("kernel_0(" in file for file in files)


def test_a_plain_step_replaces_nothing():
    usual, during = async_compile.AsyncCompile, []

    class Watching(torch.nn.Linear):
        def forward(self, x):
            during.append(async_compile.AsyncCompile)
            return super().forward(x)

    model = Watching(3, 2)
    step = ds.inductor.compile_step(model, torch.nn.functional.mse_loss, torch.optim.NAdam(model.parameters()))
    step(torch.randn(4, 3), torch.randn(4, 2))  # plain: it makes the states of an optimiser that is traced
    assert during and {*during} == {usual}


def test_one_thread_and_the_log_of_kernels(monkeypatch):
    from torch._inductor.async_compile import kernel_code_log

    ours, _ = trained(1)
    told = []
    monkeypatch.setattr(kernel_code_log, "info", lambda _, source: told.append(source))
    monkeypatch.setattr(async_compile, "get_compile_threads", lambda: 1)
    joining._joining.cache_clear()
    theirs, shared = trained(1)
    joining._joining.cache_clear()
    assert all(map(torch.equal, ours, theirs))
    assert len(shared) == 1 and len(told) == len(re.findall(r"void\s+kernel_\d+\(", shared[0]))


def test_every_kernel_of_a_step_has_the_form_that_is_joined():
    """Otherwise nothing is shared, and all other tests here could pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(joining, "_template", lambda: None)
        _, single = trained(1)
    sources = [source[: source.index("// Python bindings")] for source in single]
    assert sources and all(joining._KERNEL.fullmatch(source) for source in sources)


@pytest.mark.parametrize("limit", [1, 4_000])
def test_few_kernels_a_file(limit, monkeypatch):
    ours, shared = trained(1)
    monkeypatch.setattr(joining, "_MOST_CHARACTERS", limit)
    theirs, several = trained(1)
    assert all(map(torch.equal, ours, theirs))
    assert len(several) > len(shared)


def test_a_file_that_cannot_be_compiled_is_compiled_kernel_by_kernel(monkeypatch):
    ours, _ = trained(1)
    file = joining._file
    monkeypatch.setattr(joining, "_file", lambda group: f"{file(group)}\nno C++")
    theirs, files = trained(1)
    assert all(map(torch.equal, ours, theirs))
    assert any("void  kernel_1(" in file for file in files), "a joined file was tried"
    assert len(files) > 1


@pytest.mark.parametrize(
    "source",
    [
        PLAIN.replace(" kernel(", " other("),
        PLAIN.replace('extern "C"', 'static float held;\nextern "C"'),
        PLAIN + 'extern "C" void second()\n{\n}\n',
        PLAIN.replace("    {\n", "#define X\n    {\n"),
        PLAIN.replace(INCLUDE, ""),
    ],
)
def test_a_source_that_holds_more_than_a_kernel_is_compiled_alone(source, monkeypatch):
    assert joining._KERNEL.fullmatch(PLAIN)
    taken = []
    monkeypatch.setattr(async_compile.AsyncCompile, "cpp_pybinding", lambda _, types, code: taken.append((types, code)))
    joining._joining()().cpp_pybinding(["float*"], source)
    assert taken == [(["float*"], source)]


def test_another_template_of_another_torch_joins_nothing(monkeypatch):
    usual = async_compile.AsyncCompile
    for template in ("", codecache.CppPythonBindingsCodeCache.suffix_template.replace("{arg_len}", "{args}")):
        joining._template.cache_clear()
        monkeypatch.setattr(codecache.CppPythonBindingsCodeCache, "suffix_template", template)
        with joined_kernels():
            assert async_compile.AsyncCompile is usual
    monkeypatch.undo()
    joining._template.cache_clear()
    with joined_kernels():
        assert issubclass(async_compile.AsyncCompile, usual) and async_compile.AsyncCompile is not usual
        with joined_kernels():
            pass
        assert async_compile.AsyncCompile is not usual
    assert async_compile.AsyncCompile is usual


@given(st.lists(st.integers(0, 400_000), max_size=30))
def test_files_hold_all_kernels_in_order_and_no_more_than_their_room(sizes):
    kernels = [SimpleNamespace(source="x" * size) for size in sizes]
    groups = joined(kernels)
    assert [kernel for group in groups for kernel in group] == kernels
    most = joining._MOST_CHARACTERS
    lengths = [sum(len(kernel.source) for kernel in group) for group in groups]
    assert all(length <= most or len(group) == 1 for group, length in zip(groups, lengths, strict=True))
    assert all(sum(pair) > most for pair in zip(lengths, (len(group[0].source) for group in groups[1:]), strict=False))
