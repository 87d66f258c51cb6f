"""The import law of docs/decisions/0008: which part may import which, and where other libraries come in.

The tables are total: a file, folder or library that is not in them fails. They are checked over every import in the
code, those inside functions and those for types included.
"""

import ast
import json
import subprocess
import sys
import tomllib
from functools import cache
from importlib.metadata import version
from itertools import chain
from pathlib import Path

import pytest

import downset
from tests.fitting.test_fit_rewrite import tflite_model
from tests.models import branchy_model

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "downset"

LEVELS = (
    {"messages"},
    {"errors"},
    {"budget"},
    {"text", "extras", "native", "methods"},
    {"lattice", "process"},
    {"graph"},
    {"memory", "kernels", "clusters"},
    {"results"},
    {"compiled"},
    {"orders", "reports"},
    {"arenas", "rewrites"},
    {"partial", "memories"},
    {"stages", "pipelines"},
    {"formats"},
    {"equivalence"},
    {"joint", "runtimes"},
    {"executor", "fitting"},
    {"tuning", "distributed"},
    {"integrations", "commands"},
    {"cli"},
    {"__init__", "__main__"},
)
"""Every file and folder of the package. Each imports itself and what stands on an earlier line, nothing else."""

LIBRARIES = {
    "numpy": {
        "graph",
        "memory",
        "results",
        "arenas",
        "rewrites",
        "stages",
        "pipelines",
        "process",
        "equivalence",
        "tuning",
        "commands",
    },
    "msgspec": {"clusters", "commands"},
    "rich_click": {"commands"},
    "rich": {"commands", "reports"},
}
"""Core dependencies, and who imports them apart from the executing folders."""

EXECUTING = {"formats", "kernels", "executor", "runtimes", "distributed", "integrations"}
EXTRAS = {
    "ai_edge_litert",
    "aiohttp",
    "cryptography",
    "executorch",
    "flatbuffers",
    "google",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "prometheus_client",
    "ray",
    "tflite_micro",
    "torch",
}
"""Optional libraries: imported by the executing folders only, inside functions."""
ELSEWHERE = {"platformdirs": {"tuning"}, "jinja2": {"reports"}}
"""Optional libraries with another home, inside functions too."""

PLANNERS = {
    "orders": {"beam", "dfs", "exhaustive", "greedy", "kahn", "optimal", "serenity", "planners", "plan"},
    "arenas": {"best", "exact", "greedy_by_size", "local_search", "strip_packing", "planners", "plan"},
    "stages": {"greedy", "ios", "lazy", "endings", "planners", "plan"},
    "pipelines": {
        "exact",
        "set_search",
        "pico",
        "coedge",
        "early_fused",
        "planners",
        "plan",
        "paper_timing",
        "strips",
        "judging",
        "tasks",
        "set_problem",
        "accounting",
        "buffers",
        "memory",
        "within_memory",
        "scheduling.events",
        "scheduling.loads",
        "scheduling.schedule",
        "scheduling.slots",
    },
    "joint": {"order_and_arena"},
    "memories": {
        "belady",
        "bound",
        "file_order",
        "joint",
        "least_peak",
        "moves",
        "placing",
        "planners",
        "plan",
        "program",
        "residency",
        "searched",
    },
}
"""Modules that no `check` may reach, by family; a name that no longer exists fails."""


@cache
def modules():
    return {
        ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__"): ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
    }


def imported(tree):
    """(module, whether it is imported when this one is) of every import. `from p import m` names module p.m."""
    at_once = {id(node) for node in tree.body}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, id(node) in at_once) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            ours = [name for name in inside if name.removeprefix("downset.") in modules() and name != "downset"]
            yield from ((name, id(node) in at_once) for name in (ours or [node.module]))


def part(module):
    return module.removeprefix("downset.").split(".")[0]


def own(module):
    """The modules of the package that this one names in an import."""
    return {
        name.removeprefix("downset.") for name, _ in imported(modules()[module]) if name.split(".")[0] == "downset"
    } - {"downset", module}


def test_every_part_has_its_place():
    parts = {part(module) for module in modules()}
    placed = list(chain.from_iterable(LEVELS))
    assert len(placed) == len(set(placed))
    assert parts == set(placed), f"not in the table: {parts - set(placed)}; gone: {set(placed) - parts}"


def test_imports_go_one_way():
    level = {name: number for number, names in enumerate(LEVELS) for name in names}
    for module in modules():
        for other in own(module):
            one, two = part(module), part(other)
            assert one == two or level[two] < level[one], f"{module} imports {other}"


def test_no_circle_between_files():
    """Imports inside functions and for types count too: what two files need of each other belongs in a third."""
    state = {}

    def visit(module, path):
        if state.get(module) == "open":
            raise AssertionError(" imports ".join([*path[path.index(module) :], module]))
        if module in state or module not in modules():
            return
        state[module] = "open"
        for other in sorted(own(module)):
            visit(other, [*path, module])
        state[module] = "done"

    for module in modules():
        visit(module, [])


@pytest.mark.parametrize("family", sorted(PLANNERS))
def test_checks_reach_no_planner(family):
    """Neither by name, through any chain of imports, nor by running: packages import nothing of their own."""
    planners = {f"{family}.{name}" for name in PLANNERS[family]}
    assert planners <= set(modules()), f"no such module: {planners - set(modules())}"
    every = {f"{other}.{name}" for other, names in PLANNERS.items() for name in names}
    reached, left = set(), [f"{family}.check"]
    while left:
        module = left.pop()
        if module in reached or module not in modules():
            continue
        reached.add(module)
        left += own(module)
    assert not reached & every, f"{family}.check reaches {reached & every}"
    loaded = subprocess.run(
        [sys.executable, "-c", f"import sys, downset.{family}.check; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert f"downset.{family}.check" in loaded
    assert not {name.removeprefix("downset.") for name in loaded} & every


def test_the_simulator_knows_nothing_of_the_planners():
    """Through no chain of imports: what it agrees with, it agrees with by itself."""
    runs = ("distributed.serving.", "distributed.profiling.")  # what drives real devices plans again when one is lost
    simulates = [name for name in modules() if name.startswith("distributed.") and not name.startswith(runs)]
    reached, left = set(), simulates
    assert {"distributed.simulator", "distributed.plan_run", "distributed.paper_run"} <= set(left)
    while left:
        module = left.pop()
        if module not in reached and module in modules():
            reached.add(module)
            left += own(module)
    assert not {module for module in reached if part(module) == "pipelines"}


def test_proofs_of_sameness_share_no_code_with_what_rewrites():
    """Through no chain of imports: neither with the rewrites, nor with what they edit graphs and follow rows with."""
    reached, left = set(), [module for module in modules() if part(module) == "equivalence"]
    assert {"equivalence.prove", "equivalence.bijection", "equivalence.read_tflite"} <= set(left)
    while left:
        module = left.pop()
        if module not in reached and module in modules():
            reached.add(module)
            left += own(module)
    assert not {module for module in reached if part(module) in ("rewrites", "stages", "joint", "fitting")}
    assert "graph.parts" in reached  # the certificate's form alone: data
    assert not reached & {"graph.edit", "graph.halos", "graph.halo_maps", "graph.row_form", "formats.tflite.write"}
    assert not {module for module in reached if module.startswith("formats.") and "write" in module}


def test_folders_import_nothing_of_their_own():
    for path in SOURCE.glob("*/**/__init__.py"):
        name = ".".join(path.parent.relative_to(SOURCE).parts)
        assert not own(name), f"downset.{name} imports {own(name)}"


def test_libraries_have_their_places():
    standard = set(sys.stdlib_module_names) | {"downset"}
    used = {library: set() for library in LIBRARIES}
    for module, tree in modules().items():
        for other, at_once in imported(tree):
            library = other.split(".")[0]
            if library in standard:
                continue
            home = part(module)
            if library in EXTRAS or library in ELSEWHERE:
                assert not at_once, f"{module} imports {other} when it is imported"
                assert home in ELSEWHERE.get(library, EXECUTING), f"{module} imports {other}"
            else:
                assert library in LIBRARIES, f"{module} imports {library}, which is in no table"
                assert home in EXECUTING | LIBRARIES[library], f"{module} imports {library}"
                used[library].add(home)
    assert {library: homes - EXECUTING for library, homes in used.items()} == LIBRARIES


def test_what_opens_an_extra_is_imported_by_executing_folders_only():
    """`extras` hands out optional libraries by name: who imports it reaches them."""
    asked = set()
    for module, tree in modules().items():
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            if ast.unparse(call.func) == "optional_library" and isinstance(call.args[0], ast.Constant):
                library = call.args[0].value.split(".")[0]
                asked.add(library)
                assert library in EXTRAS | set(ELSEWHERE), f"{module} asks for {library}, which is in no table"
                assert part(module) in {"extras"} | ELSEWHERE.get(library, EXECUTING), f"{module} asks for {library}"
        if "extras" in own(module) and module != "commands.doctor":  # it says what installs them, and opens none
            assert part(module) in EXECUTING | {"tuning", "reports"}, f"{module} imports extras"
    assert asked >= {"onnx", "torch", "onnxruntime", "tflite_micro", "platformdirs"}


def test_one_version():
    stated = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert downset.__version__ == stated
    assert f"## [{stated}]" in (ROOT / "CHANGELOG.md").read_text()
    assert version("downset") == stated


IMPORTED = """
import atexit, sys
atexit.register(lambda: open("modules", "w").write(" ".join(sys.modules)))
from downset.cli import main
main()
"""
GRAPH = {"tensors": [{"size": 1}] * 2, "ops": [{"name": "op", "ins": [0], "outs": [1]}], "inputs": [0], "outputs": [1]}
HEAVY = {"numpy", "onnx", "onnxruntime", "torch", "ai_edge_litert", "tflite_micro", "flatbuffers", "ray", "jinja2"}
ONLY_COMMANDS = {"commands.examples", "commands.group"}


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["--version"], {*HEAVY, "click", "rich", "subprocess", "tempfile", "importlib.metadata"}),
        (["--help"], {*HEAVY, "msgspec", "subprocess"}),
        (["order", "g.json"], {*HEAVY, "subprocess", "downset.formats.onnx.read"}),
        (
            ["inspect", "m.onnx"],
            {*HEAVY - {"numpy", "onnx"}, "msgspec", "downset.formats.tflite.read", "downset.formats.torch"},
        ),
        (
            ["fit", "m.tflite", "--time-limit", "0.1s"],
            {"onnx", "onnxruntime", "torch", "tflite_micro", "downset.formats.torch", "downset.pipelines"},
        ),
    ],
)
def test_a_short_command_imports_only_what_it_uses(tmp_path, arguments, absent):
    branchy_model(tmp_path / "m.onnx")
    tflite_model(tmp_path / "m.tflite")
    (tmp_path / "g.json").write_text(json.dumps(GRAPH))
    subprocess.run(
        [sys.executable, "-P", "-c", IMPORTED, *arguments],
        cwd=tmp_path,
        check=True,
        capture_output=True,
    )
    loaded = set((tmp_path / "modules").read_text().split())
    assert "downset.cli" in loaded and not loaded & absent
    if arguments == ["--help"]:
        commands = {name.removeprefix("downset.") for name in loaded if name.startswith("downset.commands.")}
        assert commands == ONLY_COMMANDS


def test_the_process_of_a_device_loads_no_planner():
    """Every megabyte counts there: neither planners nor files of models, nor the library that makes keys."""
    code = "import downset.distributed.serving.ray_fleet, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-P", "-c", code], check=True, capture_output=True, text=True)
    loaded = set(done.stdout.split())
    assert "downset.distributed.serving.device_run" in loaded
    assert not loaded & {*HEAVY - {"numpy"}, "cryptography", "click", "rich", "google"}
    ours = ("downset.pipelines", "downset.formats", "downset.graph", "downset.commands", "downset.reports")
    assert not [name for name in loaded if name.startswith(ours)]
