"""README alone leads each kind of user to a page: its commands and programs run with the extras that they name."""

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from tests.extras_alone import EXTRAS, run_alone

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
ORDER_ONLY = "from tests.ordered_only import order_only; order_only(setattr)\n"
SECTION = README[README.index("## A page for each kind of user") :].split("\n## ")[0]
SHELL, ENGINE, TRAINING = re.findall(r"```(?:python)?\n(.*?)```", SECTION, re.DOTALL)
COPIES, COMMANDS = SHELL.split("downset fit", 1)
LINES = [f"downset {line}" for line in f" fit{COMMANDS}".split("\ndownset") for line in [line.strip()]]
QUICK = {"fit": "--time-limit 1s", "stage": "--threads 1 --budget-timings 1 --no-profiles", "split": "--time-limit 1s"}
SAID = {
    "micro.html": "Fits 262,144 B",
    "ort.html": "held in ONNX Runtime",
    "stage.html": "Candidates, measured",
    "split.html": "a frame every",
    "arena.html": "proven least",
    "training.html": "(training step)",
}
"""By page: words of the answer that its user looks for."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the models that the first lines copy from installed packages."""
    folder = tmp_path_factory.mktemp("readme")
    subprocess.run(["sh", "-c", COPIES.replace("python", sys.executable, 1)], cwd=folder, check=True)
    return folder


def extras_of(remark):
    (named,) = re.findall(r"#.*?([\w]+(?:,[\w]+)*)$", remark)
    return named.split(",")


def check(page, name):
    markup = page.read_text()
    assert markup.startswith("<!doctype html>") and SAID[name] in markup and "Written by downset" in markup


def test_the_models_are_in_packages_of_the_demo(folder):
    named = re.findall(r"\('([\w-]+)', '([\w.]+)'\)", COPIES)
    assert {name for _, name in named} == {path.name for path in folder.iterdir() if path.is_file()}
    brought = "".join([*EXTRAS["demo"], *EXTRAS["ort"]])
    assert len(named) == 3 and all(package in brought for package, _ in named)
    assert re.search(r"^\$ downset fit (\S+)", README, re.MULTILINE)[1] in {name for _, name in named}


def test_every_user_has_a_page():
    pages = re.findall(r"(\w+\.html)", SECTION)
    assert pages == list(SAID) and len(set(pages)) == 6
    users = (
        "fit the RAM",
        "CPU or GPU idles",
        "several devices|small devices",
        "You train",
        "You write an inference engine",
    )
    assert all(re.search(user, README) for user in users)


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[1])
def test_a_command_with_the_extras_of_its_remark(folder, line):
    command, remark = line.split("#")
    words = command.split()
    if words[2] == "model.onnx":  # test_guides.py fits the file itself
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, "samples"]) for name in "xy")
        nodes = [helper.make_node("Sin", ["x"], ["s"]), helper.make_node("Mul", ["s", "x"], ["y"])]
        graph = helper.make_graph(nodes, "small", [x], [y])
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(made, folder / "model.onnx")
    run_alone(folder, extras_of(f"#{remark}"), "-m", *words, *QUICK[words[1]].split())
    name = words[words.index("--report") + 1]
    check(folder / name, name)


@pytest.mark.parametrize(
    ("name", "program"), [("arena.html", ENGINE), ("training.html", TRAINING)], ids=["arena", "step"]
)
def test_a_program_with_the_extras_of_its_remark(folder, monkeypatch, name, program):
    monkeypatch.setenv("TORCHINDUCTOR_FORCE_DISABLE_CACHES", "1")  # a graph in the compiler's cache has no report
    first = program.splitlines()[0]
    assert first.startswith("import ")
    if name == "training.html":
        assert "range(8)" in program
        program = f"import sys; sys.path.append({str(ROOT)!r})\n{ORDER_ONLY}{program.replace('range(8)', 'range(1)')}"
    run_alone(folder, extras_of(first), "-c", program)
    check(folder / name, name)
