"""Files that crash, hang, flood or surprise: every command answers in one line and a documented exit code, soon."""

import faulthandler
import json
import os
import platform
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from onnx import helper

from downset.distributed.profiling import joined, measure
from downset.fitting.fit import fit
from downset.formats.reading import load
from downset.process import isolation
from downset.tuning.profiles import Profiles
from tests import hostile_files
from tests.effort import LONG
from tests.fuzz.stand_in import without_devices
from tests.models import branchy_model

pytestmark = pytest.mark.own_processes("parsers")

COLLECTED = Path(__file__).resolve().parents[3] / "shared" / "data" / "hostile"
"""Files that once did harm, where this machine has them; those that are made here are of the same kinds."""
ANSWERS = (0, 2, 3, 4, 5, 6)
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u202a-\u202e\u2066-\u2069]")


@pytest.fixture(autouse=True)
def _soon(request, monkeypatch):
    """Parsers that hang get one second, and a test that hangs itself ends the run."""
    if re.search("hang|unfold|fexp", request.node.name):
        monkeypatch.setattr(isolation, "PARSING_S", 1.0)
    monkeypatch.setattr(isolation, "RUNNING_S", 3.0)
    for module, name in ((joined, "joined_cluster"), (measure, "measure_cluster")):
        monkeypatch.setattr(module, name, getattr(module, name))  # what follows is undone after the test
    without_devices()
    faulthandler.dump_traceback_later(240, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hostile")
    hostile_files.write_all(folder)
    branchy_model(folder / "whole.onnx")
    return folder


def commands(path, folder, whole):
    """Every command that takes a file, with this one as each of its files; `whole` is a lawful model. The first three
    are two that load the file, and one that takes it for a plan. Nothing is served: frames are refused at the end."""
    yield ("inspect", path, "--time-limit", "1s", "--json")
    yield ("fit", path, "--time-limit", "1s", "-o", folder / f"out{path.suffix}")
    yield ("simulate", path)
    yield ("inspect", path, "--time-limit", "1s")
    yield ("order", path, "--time-limit", "1s")
    yield ("fit", path, "--time-limit", "1s", "--max-recompute", "20%")
    yield ("fit", path, "--fast", "256KB", "--slow", "8MB", "--time-limit", "1s")
    yield ("verify", path, path, "--time-limit", "1s")
    yield ("stage", path, "--time-limit", "1s", "--no-profiles", "--budget-timings", "2")
    yield ("run", path, "--plan", path, "--time-limit", "1s")
    yield ("split", path, "--cluster", "pico_1mac", "--time-limit", "1s", "--export", folder / "shards")
    yield ("serve", path, "--cluster", "pico_1mac", "--input", path, "--time-limit", "1s")
    yield ("serve", whole, "--plan", path, "--input", path)
    yield ("serve", whole, "--cluster", path, "--input", path)
    yield ("run", whole, "--plan", path)
    yield ("split", whole, "--cluster", path)
    yield ("verify", whole, path, "--time-limit", "1s")
    yield ("verify", whole, whole, "--input", path)
    yield ("arena", path)
    yield ("profile-cluster", "--devices", "a", "--local", "--model", path, "-o", folder / "cluster.toml")
    yield ("worker", "--head", "127.0.0.1:1", "--name", "a", "--keys", path, "--wait", "1s")
    yield ("keys", "issue", "a", "--host", "10.0.0.5", "--authority", path)
    yield ("fit", path, "--time-limit", "1s", "--int8", "--header", folder / "model.h")
    yield ("fit", path, "--time-limit", "1s", "--session", folder / "session.json", "-o", folder / f"fit{path.suffix}")
    yield ("stage", path, "--time-limit", "1s", "--no-profiles", "--budget-timings", "2", "--ort-streams", folder / "s")


def check(run, folder, path, whole, part):
    """`part`: these commands are enough, except with LONG=1."""
    for command in [*commands(path, folder, whole)][slice(None) if LONG else part]:
        status, out, err = run(*command)
        said = (command, status, out[-300:], err[-600:])
        assert status in ANSWERS, said
        assert not RAW.search(out) and not RAW.search(err), said
        assert "Traceback" not in out + err, said
        if status:
            assert err.startswith("downset: error: ") and err.count("\n") == 1, said
            assert out == "" or ("--json" in command and json.loads(out)["ok"] is False), said
        left = [entry.name for entry in folder.iterdir() if entry.name.endswith(".part")]
        assert not left, said


NAMES = [
    *(f"{name}.onnx" for name in [*hostile_files.ONNX, "cut"]),
    "escapes.json",
    "makes_nothing.json",
    "no_archive.pt2",
    "reads_before_writing.tflite",
    "damaged_behind.tflite",
]


SLOW = (
    {"crashes.onnx": 1, "hangs.onnx": 0, "unfolds.onnx": 0}
    | dict.fromkeys(("loops.onnx", "claims.onnx", "dead_branch.onnx", "strings.onnx"), 3)
    | {"calls_itself.onnx": 10, "traps.onnx": 3}
)
"""How many commands are enough: for the first ones every command starts a new parser again and again, or waits as long
as one may take, as `test_what_is_refused_says_why` does; the others are lawful and run in runtimes, as escapes.onnx
does with every command."""


@pytest.mark.parametrize("name", NAMES)
def test_every_command_answers(run, made, tmp_path, name):
    """Each to every second command, and together to all of them."""
    part = slice(SLOW[name]) if name in SLOW else slice(NAMES.index(name) % 2, None, 2)
    check(run, tmp_path, made / name, made / "whole.onnx", part)


ALL = sorted(p.name for p in COLLECTED.rglob("*") if p.is_file() and p.suffix != ".md")
NONE = [pytest.param("", marks=pytest.mark.skip(reason="no collected files beside this checkout"))]


@pytest.mark.parametrize("name", (ALL if LONG else ALL[::3]) or NONE)
def test_every_command_answers_to_what_was_collected(run, made, tmp_path, name):
    (path,) = COLLECTED.rglob(name)
    check(run, tmp_path, path, made / "whole.onnx", slice(3))


@pytest.mark.parametrize(
    ("name", "status", "says"),
    [
        ("crashes.onnx", 5, "shape inference crashed (signal 11)"),
        ("hangs.onnx", 6, "longer than 1 s"),
        ("unfolds.onnx", 6, "longer than 1 s"),
        ("calls_itself.onnx", 5, "calls_itself.onnx"),
        ("no_text.onnx", 5, "is not UTF-8"),
        ("outside.onnx", 5, "not beside the file"),
        ("reads_before_writing.tflite", 5, "has read before"),
    ],
)
def test_what_is_refused_says_why(fails, made, name, status, says):
    fails(status, "inspect", made / name, "--time-limit", "1s", says=says)


def test_what_is_lawful_among_them_works(run, made, tmp_path):
    status, _, err = run("fit", made / "dead_branch.onnx", "--max-recompute", "20%", "-o", tmp_path / "out.onnx")
    assert (status, (tmp_path / "out.onnx").exists()) == (0, True), err
    assert run("verify", made / "strings.onnx", made / "strings.onnx")[0] == 0
    assert run("split", made / "makes_nothing.json", "--cluster", "pico_1mac")[0] == 5


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors do not trap")
def test_a_crash_of_onnx_runtime_ends_no_command(run, made, tmp_path):
    """Also where it is timed in turns with what runs in this process."""
    stage = ("stage", made / "traps.onnx", "--no-profiles", "--budget-timings", "2", "-o", tmp_path / "plan.json")
    status, out, err = run(*stage, "--time-limit", "1s")
    assert (status, (tmp_path / "plan.json").exists()) == (0, True), err
    assert "ONNX Runtime was not timed: ONNX Runtime crashed (signal 8)" in out + err
    status, out, _ = run("verify", made / "traps.onnx", made / "traps.onnx")
    assert status == 0 and "proven" in out and "outputs not compared: ONNX Runtime crashed (signal 8)" in out


def test_a_damaged_tflite_file_is_refused_where_it_is_written(fails, made, tmp_path):
    assert load(made / "damaged_behind.tflite").ops
    fails(5, "fit", made / "damaged_behind.tflite", "-o", tmp_path / "o.tflite", says="cannot be written again")
    assert not (tmp_path / "o.tflite").exists()


def test_an_operator_larger_than_the_machine_is_refused_before_memory_is_taken(fails, made, monkeypatch):
    monkeypatch.setattr("downset.executor.arena.seeded_inputs", lambda graph, seed=0: pytest.fail("values are made"))
    stage = ("stage", made / "claims.onnx", "--no-profiles", "--budget-timings", "2", "--time-limit", "1s")
    monkeypatch.setattr("downset.executor.binder.machine_bytes", lambda: 1 << 30)
    fails(6, *stage, says="reads and makes 137,438,953,472 bytes, and this machine has 1,073,741,824")


@pytest.mark.parametrize(
    ("kind", "attributes", "made"),
    [
        ("Conv", {"dilations": [1 << 62, 1], "pads": [1 << 62] * 4}, (1, 4, 8, 8)),
        ("MaxPool", {"kernel_shape": [1 << 40, 3], "pads": [1 << 40, 1, 1 << 40, 1]}, (1, 3, 1 << 40, 8)),
    ],
)
def test_rows_that_do_not_fit_64_bits_are_an_answer(run, tmp_path, kind, attributes, made):
    node = helper.make_node(kind, ["x", "w"][: 1 + (kind == "Conv")], ["y"], **attributes)
    weights = helper.make_tensor("w", 1, (4, 3, 3, 3), np.ones(108, np.float32))
    given, result = (hostile_files.value(name, shape) for name, shape in (("x", (1, 3, 8, 8)), ("y", made)))
    whole = hostile_files.model([node], [given], [result], initializers=[weights][: kind == "Conv"])
    (tmp_path / "m.onnx").write_bytes(whole.SerializeToString())
    status, _, err = run("split", tmp_path / "m.onnx", "--cluster", "pico_1mac", "--time-limit", "1s")
    assert status in ANSWERS, err


def test_a_header_of_a_numpy_file_is_not_trusted(run, made, tmp_path):
    plan = tmp_path / "plan.json"
    stage = ("stage", made / "whole.onnx", "-o", plan, "--no-profiles", "--budget-timings", "2", "--time-limit", "1s")
    assert run(*stage)[0] == 0
    whole = tmp_path / "x.npy"
    np.save(whole, np.zeros((1, 3, 8, 8), np.float32))
    data = whole.read_bytes()
    generator = np.random.default_rng(0)
    for _ in range(200 if LONG else 20):
        damaged = bytearray(data)
        for at in generator.integers(0, 128, generator.integers(1, 5)):
            damaged[at] = generator.integers(0, 256)
        whole.write_bytes(damaged)
        status, _, err = run("run", made / "whole.onnx", "--plan", plan, "--input", whole, "--runs", "1")
        assert status in ANSWERS and "Traceback" not in err, (bytes(damaged[:128]), status, err)


@pytest.mark.parametrize("row", range(len(hostile_files.ODD_TIMINGS)))
def test_measurements_that_are_damaged_are_begun_anew(run, tmp_path, monkeypatch, row):
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path))
    lawful = row == len(hostile_files.ODD_TIMINGS) - 1
    for command in (("list",), ("list", "--json"), ("clear",)):
        for old in tmp_path.iterdir():
            old.unlink()
        hostile_files.profiles(tmp_path / "profiles.sqlite", *hostile_files.ODD_TIMINGS[row])
        status, out, err = run("profiles", *command)
        assert status == 0 and not RAW.search(out + err), (out, err)
        assert lawful or "was damaged" in err or command == ("clear",)
        known = Profiles(tmp_path / "profiles.sqlite").matching(hostile_files.NAME, "v", "f", 1)
        assert known == ({"s": 1.0} if lawful and command != ("clear",) else {})


def test_collected_measurements_are_answered_to(run, tmp_path, monkeypatch):
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path))
    for path in COLLECTED.glob("*.sqlite"):
        shutil.copyfile(path, tmp_path / "profiles.sqlite")
        assert run("profiles", "list")[0] == 0


def _cluster(**changed):
    """A whole cluster with one of its lines changed."""
    lines = {"rate": "rate_mbps = 10", "speed": "mac_per_s = 1e9", "more": "", **changed}
    device = f'[[device]]\nname = "a"\n{lines["speed"]}\n'
    return f'[network]\nkind = "links"\n{lines["rate"]}\n{device}{lines["more"]}'


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_cluster(more="".join(f'[[device]]\nname = "d{k}"\nmac_per_s = 1e9\n' for k in range(600))), "length <= 512"),
        (_cluster(more=".".join("a" * 50_000) + " = 1"), "has more than 200 dots"),
        (_cluster(speed="mac_per_s = " + "9" * 5000), "not TOML"),
        (_cluster(more="x = " + "[" * 100_000), "not TOML"),
    ],
)
def test_a_cluster_that_is_too_much_is_refused_at_once(fails, made, tmp_path, text, says):
    (tmp_path / "c.toml").write_text(text)
    fails(5, "split", made / "whole.onnx", "--cluster", tmp_path / "c.toml", says=says)


@pytest.mark.parametrize(
    "command",
    [("split", "M", "--cluster"), ("simulate",), ("arena",), ("run", "M", "--plan"), ("serve", "M", "--input")],
)
def test_devices_are_read_by_no_command(fails, made, command):
    name, *options = (made / "whole.onnx" if word == "M" else word for word in command)
    fails(5, name, *options, "/dev/zero", says="/dev/zero")


@pytest.mark.parametrize("option", [(), ("--align", 1 << 60)])
def test_records_beyond_64_bits_are_refused(fails, tmp_path, option):
    nbytes = 1 if option else 10**17
    rows = "".join(f"r{row},0,9,{nbytes}\n" for row in range(5000))
    (tmp_path / "r.csv").write_text(f"id,lower,upper,size\n{rows}")
    fails(5, "arena", tmp_path / "r.csv", "--time-limit", "1s", *option, says="64 bits")


def test_names_of_records_draw_nothing_on_a_terminal(run, tmp_path, monkeypatch):
    records = tmp_path / "r.csv"
    records.write_text("id,lower,upper,size\n\x1b[31mred,0,1,4\n")
    assert "\x1b[31mred" in run("arena", records, "-o", "-")[1]
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert "\x1b" not in run("arena", records, "-o", "-")[1]


def test_links_of_a_models_cache_are_followed_and_others_are_not(fails, run, tmp_path):
    """As in a cache of downloads: names are links into one folder of blobs."""
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "1"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    made = hostile_files.outside("w.bin")
    (blobs / "a").write_bytes(made.SerializeToString())
    (blobs / "b").write_bytes(np.arange(4, dtype=np.float32).tobytes())
    (snapshot / "m.onnx").symlink_to("../../blobs/a")
    (snapshot / "w.bin").symlink_to("../../blobs/b")
    graph = load(snapshot / "m.onnx")
    (constant,) = graph.constants
    np.testing.assert_array_equal(graph.constant(constant), [0, 1, 2, 3])
    assert run("verify", snapshot / "m.onnx", snapshot / "m.onnx")[0] == 0
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(16))
    (snapshot / "w.bin").unlink()
    (snapshot / "w.bin").symlink_to(secret)
    for command in ("inspect", "fit"):
        fails(5, command, snapshot / "m.onnx", says="not beside the file")


def test_pipes_and_devices_are_no_weights(fails, tmp_path):
    made = hostile_files.outside("w.bin")
    (tmp_path / "m.onnx").write_bytes(made.SerializeToString())
    os.mkfifo(tmp_path / "w.bin")
    fails(5, "inspect", tmp_path / "m.onnx", says="not a plain file")
    os.mkfifo(tmp_path / "m.tflite")
    fails(5, "inspect", tmp_path / "m.tflite", says="is a pipe or a device")


def test_a_module_beside_a_model_is_not_run(run, made, tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'it_ran')!r})\n")
    shutil.copy(made / "whole.onnx", tmp_path / "m.onnx")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(isolation, "RUNNING_S", 30.0)  # this one is lawful, and runs
    assert run("fit", "m.onnx", "--time-limit", "1s")[0] == 0
    assert fit("m.onnx", time_limit_s=1.0).outputs.max_abs_error < 1e-5
    assert not (tmp_path / "it_ran").exists()


def test_names_with_line_ends_stay_on_their_line(run, tmp_path):
    """Nothing that a file says looks like a line of ours."""
    name = "y\n\rdevice: median 0 ms\u2028\x85\x0b"
    model = hostile_files.model([helper.make_node("Relu", ["x"], [name])], *map(_values, ("x", name)))
    path, plan = tmp_path / "m.onnx", tmp_path / "plan.json"
    path.write_bytes(model.SerializeToString())
    stage = ("stage", path, "-o", plan, "--no-profiles", "--budget-timings", "2", "--time-limit", "1s")
    assert run(*stage)[0] == 0
    status, out, err = run("run", path, "--plan", plan, "--runs", "1")
    assert (status, err) == (0, "")
    said = out.splitlines()
    assert len(said) == 3 and said[1] == "runs: 1" and said[2].startswith("y??device: median 0 ms???: [4], from ")


def _values(name):
    return [hostile_files.value(name)]


def test_names_that_no_archive_takes_are_refused_before_the_run(fails, run, made, tmp_path):
    name = "n" * 70_000
    model = hostile_files.model([helper.make_node("Relu", ["x"], [name])], *map(_values, ("x", name)))
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    plan = tmp_path / "plan.json"
    assert run("stage", made / "whole.onnx", "-o", plan, "--no-profiles", "--budget-timings", "2")[0] == 0
    written = ("--plan", plan, "--output", tmp_path / "o.npz")
    fails(2, "run", tmp_path / "m.onnx", *written, says="too long for a .npz file")


_LONG = "z" * 100_000


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("graph.json", hostile_files.plain(ops=[{"ins": [7], "outs": [1], "name": _LONG}]).decode()),
        ("graph.json", hostile_files.plain(ops=[{"ins": [7], "outs": [1], "name": "z " * 50_000}]).decode()),
        ("cluster.toml", f"[network]\nkind = 'links'\nrate_mbps = 1\n{_LONG} = 1\n"),
        ("plan.json", json.dumps({"kind": "stages", "schema": _LONG})),
    ],
)
def test_messages_are_short_whatever_a_file_says(run, made, tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text)
    other = {"graph": ("inspect", path), "cluster": ("split", made / "whole.onnx", "--cluster", path)}
    status, out, err = run(*other.get(path.stem, ("simulate", path)))
    assert (status, out) == (5, "") and err.startswith("downset: error: ")
    assert err.count("\n") == 1 and len(err) < 2500


def test_an_output_that_is_a_link_in_a_circle_is_refused(fails, made, tmp_path):
    (tmp_path / "round").symlink_to("round")
    for option in ("--report", "--session", "-o"):
        more = ("-o", tmp_path / "out.onnx") if option == "--session" else ()
        fails(2, "fit", made / "whole.onnx", option, tmp_path / "round", *more, says="round")
    for name in ("round.h", "round.cc"):
        (tmp_path / name).symlink_to(name)
        written = ("-o", tmp_path / "out.tflite", "--header", tmp_path / name)
        fails(2, "fit", made / "damaged_behind.tflite", *written, says=name)
        (tmp_path / name).unlink()
    assert not (tmp_path / "out.tflite").exists()


@pytest.mark.parametrize(
    ("option", "value"), [("--ram", "9" * 400), ("--time-limit", "9" * 400), ("--fast", "9" * 400)]
)
def test_numbers_that_nothing_has_are_refused(fails, made, option, value):
    fails(2, "fit", made / "whole.onnx", option, value, says="is not a")
