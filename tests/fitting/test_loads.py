"""What `fit` says about the memory of an ONNX Runtime session holds at every load of the file, in every process."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import downset as ds
from downset.errors import LimitReached, UnsupportedError
from downset.fitting.verdict import within_in_some_loads
from downset.results.fit import Measured
from downset.results.sessions import DEFAULT, FILE_ORDER, FITTED, SessionTaken
from downset.runtimes import ort
from downset.runtimes.ort import program_bytes
from downset.runtimes.targets import TARGETS
from tests.effort import LONG
from tests.models import branchy_model, constant, installed_model
from zoo import ZOO

OPTIMISED = FITTED[1]
RUNS = 10 if LONG else 3
LIMITS = [None, 1 << 20]
CASES = list(product(range(20), LIMITS)) if LONG else list(zip((4, 2), LIMITS, strict=True))
MODELS = [("swift-f0", "model.onnx", {"audio": (1, 16000)})]
if LONG:
    MODELS += [("onnx", "light_inception_v1.onnx", None), ("zoo", "swiftnet_hpd", None), ("zoo", "darts", None)]


def random_network(path, seed):
    """Convolutions in branches of random width and depth, which are concatenated, some behind other operators: many
    orders are possible, and where a layout is blocked, nodes that convert it stand at many places."""
    random = np.random.default_rng(seed)
    nodes, weights = [], []

    def convolved(source, inside, outside):
        name = f"conv{len(weights)}"
        weights.append(constant(f"{name}.w", (0.1 * random.standard_normal((outside, inside, 3, 3))).astype("f4")))
        nodes.append(helper.make_node("Conv", [source, f"{name}.w"], [name], name=name, pads=[1] * 4))
        nodes.append(helper.make_node("Relu", [name], [f"{name}.r"], name=f"{name}.r"))
        return f"{name}.r", outside

    last = convolved("x", 3, 8)
    for block in range(3):
        branches = []
        for _ in range(random.integers(2, 4)):
            branch = convolved(*last, int(random.choice([4, 8, 12, 16])))
            if random.random() < 0.5:
                branch = convolved(*branch, int(random.choice([4, 8, 16])))
            if random.random() < 0.3:
                nodes.append(helper.make_node("Sigmoid", [branch[0]], [f"{branch[0]}.s"], name=f"{branch[0]}.s"))
                branch = f"{branch[0]}.s", branch[1]
            branches.append(branch)
        name = f"joined{block}"
        nodes.append(helper.make_node("Concat", [branch[0] for branch in branches], [name], name=name, axis=1))
        last = name, sum(branch[1] for branch in branches)
    nodes.append(helper.make_node("GlobalAveragePool", [last[0]], ["y"], name="pool"))
    ends = (("x", [1, 3, 20, 20]), ("y", [1, last[1], 1, 1]))
    ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)] for name, shape in ends]
    graph = helper.make_graph(nodes, "random", *ends, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def held(program):
    """What the program prints of its arena in fresh processes."""
    command = [sys.executable, str(program), "arena"]
    printed = [subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(RUNS)]
    return [int(re.search(r"^held_bytes (\d+)$", one, re.MULTILINE)[1]) for one in printed]


STARTED = """
import ctypes
system = ctypes.CDLL(None)
system.getauxval.restype = ctypes.c_void_p
print("in_use_bytes", int.from_bytes(ctypes.string_at(system.getauxval(25), 7), "little"))  # AT_RANDOM: of each exec
print("held_bytes", ctypes.cast(system.malloc, ctypes.c_void_p).value)
"""


@pytest.mark.own_processes("measures")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process the random bytes of its start")
def test_each_process_that_runs_the_program_is_a_new_interpreter(tmp_path):
    """In forks of one server the loads would agree, whatever depends on addresses."""
    (tmp_path / "started.py").write_text(STARTED)
    starts, addresses = zip(*program_bytes(tmp_path / "started.py", 3), strict=True)
    assert len(set(starts)) == 3
    if Path("/proc/sys/kernel/randomize_va_space").read_text().strip() != "0":
        assert len(set(addresses)) == 3


def with_settings(monkeypatch, fitted):
    """Let `fit` try these settings alone; of the original also the defaults."""
    row = TARGETS["ort"]
    only = replace(row, sessions=replace(row.sessions, fitted=fitted))
    monkeypatch.setattr("downset.fitting.job.targets_of", lambda suffix: (only,))


def check(path, folder, shapes=None, **options):
    """Fit a model with its program; runs of that hold what was said."""
    program = folder / "open.py"
    result = ds.fit(path, output=folder / "f.onnx", session=program, shapes=shapes, time_limit_s=1, **options)
    loads = result.measured.loads
    assert loads.processes >= 3
    assert loads.at_every_load == result.session.follows_file
    if loads.at_every_load:
        found = held(program)
        assert {*found} == {result.measured.after} == {loads.least_bytes, loads.most_bytes}
    if result.ram is not None:
        assert result.ram.state == "fits"
        assert max(found) <= result.ram.needed_bytes <= result.ram.limit_bytes
    return result


@pytest.mark.parametrize(("seed", "arena_bytes"), CASES)
def test_runs_of_the_program_hold_no_more_than_was_said(seed, arena_bytes, tmp_path):
    check(random_network(tmp_path / "m.onnx", seed), tmp_path, arena_bytes=arena_bytes)


@pytest.mark.own_processes("measures")
@pytest.mark.parametrize(("package", "name", "shapes"), MODELS)
def test_runs_of_the_program_of_a_larger_model(package, name, shapes, tmp_path):
    if package == "zoo":
        path = tmp_path / "m.onnx"
        onnx.save(ZOO[name](), str(path))
    else:
        path = installed_model(package, name)
    result = check(path, tmp_path, shapes, arena_bytes=1 << 30)
    if package == "swift-f0":  # which leaves the length open, and so does what is written
        assert result.together.order.evidence.proven
        assert result.together.arena.arena_bytes <= result.arena.before
        assert result.measured.after < result.measured.before
        assert result.outputs.equal
        assert not [note for note in result.notes if "left the file's order" in note]
        again = ort.measure_peak(tmp_path / "f.onnx", shapes=shapes, settings=result.session)
        assert again.held_bytes == result.measured.after


def test_only_settings_that_fix_the_order_fit(tmp_path, monkeypatch):
    """Above one ships that does. By the others nothing that was measured is a promise, whatever the limit."""
    with_settings(monkeypatch, (OPTIMISED,))
    path = random_network(tmp_path / "m.onnx", 3)
    with pytest.raises(LimitReached, match="orders nodes again at every load") as refused:
        ds.fit(path, output=tmp_path / "f.onnx", arena_bytes=1 << 30, time_limit_s=1)
    assert refused.value.result.ram.state == "not known"
    assert not (tmp_path / "f.onnx").exists()
    result = check(path, tmp_path)
    assert not result.measured.loads.at_every_load
    assert result.measured.after == result.measured.loads.most_bytes


def fit_json(run, *arguments):
    status, out, _ = run("fit", *arguments, "--time-limit", "20s", "--json")
    return status, json.loads(out)


@pytest.mark.parametrize(("more", "says"), [(1, "held up to"), (None, "did not run")])
def test_a_run_that_holds_more_refutes_the_verdict(more, says, tmp_path, monkeypatch, run):
    """One process of five; and a program that does not run shows nothing."""
    path = branchy_model(tmp_path / "m.onnx")
    status, said = fit_json(run, path, "--arena", "1MB")
    assert (status, said["ram"]["state"], said["measured"]["loads"]["at_every_load"]) == (0, "fits", True)
    held_bytes = said["measured"]["after"]

    def ran(program, processes):
        if more is None:
            raise UnsupportedError("no ONNX Runtime there")
        return [*[(1, held_bytes)] * (processes - 1), (1, held_bytes + more)]

    monkeypatch.setattr("downset.fitting.proving.ort.program_bytes", ran)
    output = tmp_path / "f.onnx"
    status, said = fit_json(run, path, "--arena", "1MB", "-o", output)
    assert (status, said["ram"]["state"]) == (6, "not known")
    assert said["ram"]["needed_bytes"] == held_bytes + (more or 0)
    assert not output.exists()
    assert says in said["error"]["message"]
    status, out, err = run("fit", path, "--time-limit", "20s", "-o", output)
    assert status == 0
    if more:
        assert f"{held_bytes:,} to {held_bytes + more:,}" in out
    else:
        assert says in err


def test_more_memory_never_turns_a_fit_into_none(tmp_path):
    path = random_network(tmp_path / "m.onnx", 2)
    least = ds.fit(path, arena_bytes=1 << 30, time_limit_s=1).measured.after
    fits = []
    for arena_bytes in (int(0.8 * least), least, 2 * least):
        try:
            fits.append(ds.fit(path, arena_bytes=arena_bytes, time_limit_s=1).ram.state == "fits")
        except ds.DownsetError:
            fits.append(False)
    assert fits == sorted(fits)
    assert fits[1:] == [True] * 2


def test_what_some_loads_held_within_the_limit_is_told():
    """Only of settings by which loads differ; what file order holds is in the verdict."""
    front = [
        SessionTaken(name, settings, 1, held)
        for name, settings, held in (
            ("a", OPTIMISED, 300),
            ("b", OPTIMISED, 200),
            ("c", FILE_ORDER, 100),
            ("d", DEFAULT, 400),
        )
    ]
    result = SimpleNamespace(measured=Measured("ort", 400, 500, front=front))
    for limit_bytes, told in ((199, []), (200, ["b, optimised, held 200 B"]), (350, ["b, optimised, held 200 B"])):
        assert [line.partition(" where")[0] for line in within_in_some_loads(result, limit_bytes)] == told


def test_defaults_fix_no_order():
    """Only what runs the file as it is does, since ONNX Runtime's optimisation chooses an order."""
    assert [settings.follows_file for settings in (DEFAULT, FILE_ORDER, OPTIMISED)] == [False, True, False]
