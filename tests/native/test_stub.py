"""`_native.pyi` says what the compiled module has: `make native` writes it."""

import ast
from pathlib import Path

from nanobind.stubgen import StubGen

import downset
from downset import _native

STUB = Path(downset.__file__).parent / "_native.pyi"


def test_the_stub_is_that_of_the_module_built():
    generated = StubGen(_native, quiet=True)
    generated.put(_native)
    written, built = ast.parse(STUB.read_text()), ast.parse(generated.get())
    names = {ast.unparse(node) for node in built.body if not isinstance(node, ast.ImportFrom | ast.Import)}
    assert {ast.unparse(node) for node in written.body if not isinstance(node, ast.ImportFrom | ast.Import)} == names
    assert len(names) > 20
