"""The hash by which PyTorch's caches tell versions of our passes apart covers all code that decides what they do."""

import ast
from pathlib import Path

import downset
from downset.integrations.code_fingerprint import code_files

PACKAGE = Path(downset.__file__).parent
DECIDING = ("integrations", "memory", "orders", "rewrites")


def imported(path):
    """The files of these folders that a file imports, in functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("downset."):
            parts = node.module.split(".")[1:]
            for names in (parts, *([*parts, alias.name] for alias in node.names)):
                file = PACKAGE.joinpath(*names).with_suffix(".py")
                if names[0] in DECIDING and file.is_file():
                    yield file


def test_all_that_the_passes_import_is_hashed():
    ahead = [PACKAGE / "integrations" / f"{name}_pass.py" for name in ("factor", "order", "recompute")]
    reached = set(ahead)
    while ahead:
        further = set(imported(ahead.pop())) - reached
        reached |= further
        ahead += further
    assert PACKAGE / "rewrites" / "recompute_segments.py" in reached
    assert not reached - set(code_files())
