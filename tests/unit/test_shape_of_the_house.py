"""What CONTRIBUTING.md says of imports, read off the code: which way they go, and which libraries come in where."""

import ast
import tomllib
from importlib.metadata import version
from pathlib import Path

import downset

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "downset"
LAYERS = (
    {"errors", "units"},
    {"graph", "lattice", "records", "memory_models", "plans", "native"},
    {"sharing", "liveness"},
    {"rewrite"},
    {"orders", "arenas", "stages"},
    {"plan"},
    {"together", "rewrite.choose", "rewrite.row_strips"},
    {"fit", "candidates", "fitted"},
    {"commands"},
)
"""The chain in CONTRIBUTING.md: no file or folder imports from a later one. A file named apart is not its folder's."""
EXTRAS = {
    "ai_edge_litert", "executorch", "flatbuffers", "onnx", "onnx_ir", "onnxruntime", "platformdirs", "simpy",
    "tflite_micro", "torch",
}  # fmt: skip
PLANNERS = {"orders", "arenas", "stages", "pipelines", "rewrite", "plan", "together", "split"}


def modules():
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
    }


def imported(tree):
    """(module, whether it is imported when this one is) of every import that is not for types alone."""
    typing_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    at_once = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if id(node) in typing_only:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, id(node) in at_once


def part(module):
    return module.removeprefix("downset.").split(".")[0]


def test_imports_go_one_way():
    level = {name: number for number, names in enumerate(LAYERS) for name in names}

    def level_of(module):
        return level.get(module.removeprefix("downset."), level.get(part(module)))

    for module, tree in modules().items():
        for other, _ in imported(tree):
            if other.startswith("downset.") and None not in (level_of(module), level_of(other)):
                assert level_of(other) <= level_of(module), f"{module} imports {other}"


def test_verifiers_and_reports_know_no_planner():
    for module, tree in modules().items():
        if part(module).startswith("verify") or part(module) == "report":
            planners = {
                other for other, _ in imported(tree) if part(other) in PLANNERS and other.startswith("downset.")
            }
            assert not planners, f"{module} imports {planners}"


def test_libraries_beyond_the_core_are_imported_inside_functions_of_three_folders():
    used = set()
    for module, tree in modules().items():
        for other, at_once in imported(tree):
            library = other.split(".")[0]
            if library in EXTRAS:
                used.add(library)
                assert not at_once, f"{module} imports {other} when it is imported"
                home = part(module) in ("load", "export", "run")
                assert home or module in ("executorch", "pipelines.simulate"), f"{module} imports {other}"
    assert {"onnx", "torch", "onnxruntime", "tflite_micro", "simpy"} <= used


def test_one_version():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert downset.__version__ == stated
    assert f"## {stated}" in (ROOT / "CHANGELOG.md").read_text()
    assert version("downset") == stated
