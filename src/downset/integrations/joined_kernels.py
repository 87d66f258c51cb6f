"""Compiles the C++ kernels of a graph together, a few files in all.

Inductor starts a compiler for each kernel, which spends most of its time on headers; and a whole step has a kernel or
two for each parameter. Here kernels share files, each under a name of its own, with the bindings of Inductor's
template. This file names everything that is used of Inductor's cache of code. A source that holds more than a kernel is
compiled as Inductor does it, and so is every source where a version of torch has another template.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

__all__ = ["joined", "joined_kernels"]

_MOST_CHARACTERS = 250_000
"""The most characters of sources in one file, but for a single source: files are compiled side by side."""
_KERNEL = re.compile(
    r"\s*(?P<head>(?:#include [^\n]*\n)+)"
    r'(?P<begin>extern "C"\s+void\s+)kernel(?P<rest>\([^{}]*\)\s*\{\n(?:[ \t][^\n]*\n|\n)*\})\s*'
)
"""A source that holds one function and nothing else: what is within its braces is indented."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that waits for others."""

    types: tuple[str, ...]
    source: str
    head: str
    begin: str
    rest: str
    """The parts of the source: its includes, and what stands before and behind the name of the function."""


@contextmanager
def joined_kernels() -> Iterator[None]:
    """Within this, the kernels of each graph that Inductor compiles for the processor share files."""
    from torch._inductor import async_compile

    usual = async_compile.AsyncCompile
    if _template() is None or issubclass(usual, _joining()):
        yield
        return
    async_compile.AsyncCompile = _joining()
    try:
        yield
    finally:
        async_compile.AsyncCompile = usual


@cache
def _joining() -> Any:
    from torch._inductor.async_compile import AsyncCompile, get_compile_threads, kernel_code_log

    class Joining(AsyncCompile):  # type: ignore[misc, unused-ignore]
        """Inductor's compiler of a graph's kernels, which starts when it knows them all."""

        def cpp_pybinding(self, argtypes: list[str], source_code: str) -> Any:
            parts = _KERNEL.fullmatch(source_code)
            if parts is None:
                return super().cpp_pybinding(argtypes, source_code)
            kernel_code_log.info("CPP+Bindings Kernel:\n%s", source_code)
            return _Kernel(tuple(argtypes), source_code, **parts.groupdict())

        def wait(self, scope: dict[str, Any]) -> None:
            kernels = {name: value for name, value in scope.items() if isinstance(value, _Kernel)}
            submit = self.submit if get_compile_threads() > 1 else None
            begun = [(group, _begun(group, submit)) for group in joined([*dict.fromkeys(kernels.values())])]
            functions: dict[_Kernel, Any] = {}
            for group, library in begun:
                functions |= self._loaded(group, library)
            scope.update({name: functions[kernel] for name, kernel in kernels.items()})
            super().wait(scope)

        def _loaded(self, group: Sequence[_Kernel], library: Any) -> Mapping[_Kernel, Any]:
            """The functions of one file; where that cannot be compiled, of a file for each."""
            try:
                module = library()
            except Exception:  # of the compiler, of the process that runs it, or of the loader
                return {kernel: super(Joining, self).cpp_pybinding([*kernel.types], kernel.source) for kernel in group}
            return {kernel: getattr(module, f"kernel_{number}") for number, kernel in enumerate(group)}

    return Joining


def joined(kernels: Sequence[Any]) -> list[list[Any]]:
    """The kernels, in their order, in groups for one file each."""
    groups: list[list[Any]] = []
    room = 0
    for kernel in kernels:
        if not groups or len(kernel.source) > room:
            groups.append([])
            room = _MOST_CHARACTERS
        groups[-1].append(kernel)
        room -= len(kernel.source)
    return groups


def _begun(group: Sequence[_Kernel], submit: Any) -> Any:
    """Begin to compile one file; a function that waits for it and loads it."""
    from torch._inductor.codecache import CppPythonBindingsCodeCache

    return CppPythonBindingsCodeCache.load_async(_file(group), submit_fn=submit)


def _file(group: Sequence[_Kernel]) -> str:
    """The source of a file with these kernels and their bindings: a module with a function `kernel_N` for each."""
    template = _template()
    assert template is not None
    heads = dict.fromkeys(line for kernel in group for line in kernel.head.splitlines())
    functions, bindings, entries = [], [], []
    for number, kernel in enumerate(group):
        functions.append(f"{kernel.begin}kernel_{number}{kernel.rest}\n")
        parsed = ", ".join(f"parse_arg<{of.replace('const ', '')}>(args, {n})" for n, of in enumerate(kernel.types))
        call = f"kernel_{number}({parsed}); Py_RETURN_NONE;"
        given = {"arg_len": len(kernel.types), "call_entry_func": call, "entry_func": f"kernel_{number}"}
        bindings.append(template.function.format(**given))
        entries.append(template.entry.format(**given))
    return "\n".join(
        [
            *heads,
            *functions,
            template.helpers.format(entry_func="kernel", extra_parse_arg=""),
            *bindings,
            template.before.format(entry_func="kernel"),
            *entries,
            template.behind.format(entry_func="kernel"),
        ]
    )


@dataclass(frozen=True, slots=True)
class _Template:
    """Inductor's template of bindings, in parts: what all functions need, what one needs, and the module, before and
    behind the entries of its table."""

    helpers: str
    function: str
    before: str
    entry: str
    behind: str


@cache
def _template() -> _Template | None:
    """None where this torch has another one."""
    try:
        from torch._inductor.codecache import CppPythonBindingsCodeCache as Cache

        parts = re.fullmatch(
            r"(?P<helpers>.*)(?P<function>static PyObject\* \{entry_func\}_py\(.*)"
            r'(?P<before>static PyMethodDef .*?)(?P<entry>\{\{"\{entry_func\}"[^\n]*)\n(?P<behind>.*)',
            Cache.suffix_template,
            re.DOTALL,
        )
        plain = (Cache.entry_function, Cache.call_entry_function) == ("kernel", "kernel({}); Py_RETURN_NONE;")
        if parts is None or not plain:
            return None
        template = _Template(**parts.groupdict())
        example = {"arg_len": 1, "call_entry_func": "", "entry_func": "kernel", "extra_parse_arg": ""}
        for part in (template.helpers, template.function, template.before, template.entry, template.behind):
            part.format(**example)
    except (AttributeError, ImportError, IndexError, KeyError, ValueError):
        return None
    return template
