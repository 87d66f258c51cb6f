"""Sessions of ONNX Runtime: what is measured is what is printed, written and opened."""

import math
import os
import re
import shutil
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
from downset.errors import LoadError, UnsupportedError, UsageError
from downset.extras import onnxruntime_library
from downset.fitting.candidates import Candidate, PlannedGraph
from downset.fitting.choosing import least
from downset.fitting.job import FitOptions, Job
from downset.fitting.measuring import TIMING_S, estimate_runs, front_of, growth
from downset.formats.onnx.metadata import fitted_metadata, write_metadata
from downset.process.isolation import Worker
from downset.results.fit import Rewrite
from downset.results.sessions import DEFAULT, FILE_ORDER, FITTED, Latency, SessionTaken
from downset.runtimes import latencies, ort
from downset.runtimes.ort_process import plain_settings
from downset.runtimes.ort_script import relative_parts
from downset.runtimes.ort_settings import open_session, session_code, session_settings
from downset.runtimes.targets import TARGETS
from tests.models import branchy_model, constant

ALL = (DEFAULT, *FITTED)
SESSIONS_OPENED: list[int] = []
"""The sessions that each call of a worker opened for the fixture `fitted`, and in `CANDIDATES` its candidates."""
CANDIDATES: list[int] = []
_SESSIONS = ("measure_here", "time_here", "growth_here", "ort_here", "program_here")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit of a small network, whose file and program lie in different folders; made for the first test below."""
    folder = tmp_path_factory.mktemp("fitted")
    (folder / "programs").mkdir()
    path = branchy_model(folder / "m.onnx")
    program = folder / "programs" / "open.py"
    ask, doing = Worker.ask, []

    def counted(worker, function, arguments, **options):
        answer = ask(worker, function, arguments, **options)
        count = len(arguments.get("sessions", "1"))
        if function == "measure_here":
            measured = zip(
                arguments["settings"], (name for name in answer[0] if name.startswith("bytes_")), strict=False
            )
            count = sum(1 if settings["name"] == FILE_ORDER.name else 3 for settings, _ in measured)
        SESSIONS_OPENED.append(count if function in _SESSIONS else 0)
        return answer

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Worker, "ask", counted)
        result = ds.fit(
            path, output=folder / "f.onnx", session=program, arena_bytes=1 << 30, time_limit_s=2, progress=doing.append
        )
    CANDIDATES.extend(int(count) for text in doing for count in re.findall(r"running (\d+) candidate", text))
    return folder, result


@pytest.mark.own_processes("measures")
def test_sessions_are_as_many_as_the_estimate_of_their_time_says(fitted):
    """Within a factor of two: the last of them are narrowed in one to seven sessions, and candidates are told apart
    only where several are left."""
    job = SimpleNamespace(target=TARGETS["ort"], options=FitOptions("m"))
    expected = estimate_runs(job, 4.0, *CANDIDATES)[1] - 2 * TIMING_S
    assert expected / 2 < sum(SESSIONS_OPENED) < 2 * expected


def figures(printed):
    return {name: float(value) for name, value in re.findall(r"^(\w+) ([\d.]+)$", printed, re.MULTILINE)}


@pytest.mark.own_processes("measures")
def test_the_written_program_measures_in_a_fresh_process_what_is_claimed(fitted, tmp_path):
    folder, result = fitted
    program = folder / "programs" / "open.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, cwd=tmp_path, check=True)
    told, claim = figures(done.stdout), result.taken
    assert claim.held_bytes == result.measured.after
    assert (told["in_use_bytes"], told["held_bytes"]) == (claim.in_use_bytes, claim.held_bytes)
    assert told["process_bytes"] == pytest.approx(claim.process_bytes, rel=0.3, abs=4 << 20)
    assert told["median_ms"] > 0
    assert not re.search(r"import downset|\._|capi", program.read_text()), "public API of onnxruntime only"


@pytest.mark.own_processes("measures")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports resident memory so")
def test_growth_is_measured_in_an_interpreter_that_has_not_imported_the_library(tmp_path):
    """Pages of the library that another process has mapped already would count as growth, 7 MB of 23: the oracle is a
    process that this test starts."""
    path, settings = branchy_model(tmp_path / "m.onnx"), plain_settings(DEFAULT)
    inputs = {"x": ("float32", (1, 3, 8, 8))}
    (measured,) = ort.process_growth([(path, DEFAULT)])
    made = {"shapes": {}, "seed": 0, "given": ""}
    call = f"growth_here([({str(path)!r}, {settings!r})], {inputs!r}, {made!r}, 1, False, 60)"
    program = f"from downset.runtimes.ort_process import growth_here; print(int({call}['figures'][0, 0, 0]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert measured == pytest.approx(int(done.stdout), rel=0.2)


OPENED = "import sys, downset as ds; ds.ort_session(sys.argv[1])"
WORKED = """import sys
from downset.runtimes import ort
try:
    ort.run(sys.argv[1])
except Exception as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("code", "file"),
    [(None, "programs/open.py"), (OPENED, "f.onnx"), (WORKED, "f.onnx")],
    ids=["file", "ours", "worker"],
)
def test_telemetry_is_off_wherever_onnx_runtime_is_imported(fitted, tmp_path, code, file):
    """A stand-in for it says what it finds in the environment when it is imported, into a file."""
    said = "import os, pathlib\nfound = os.environ.get('ORT_DISABLE_TELEMETRY')\n"
    said += f"pathlib.Path({str(tmp_path / 'found')!r}).write_text(repr(found))\n"
    (tmp_path / "onnxruntime.py").write_text(said)
    env = {name: text for name, text in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    command = [sys.executable, *(["-c", code] if code else []), str(fitted[0] / file)]
    subprocess.run(command, env={**env, "PYTHONPATH": str(tmp_path)}, capture_output=True, check=False, timeout=240)
    assert (tmp_path / "found").read_text() == "'1'"


def test_the_program_and_the_library_open_the_same_session(fitted):
    folder, result = fitted
    names = {"__file__": str(folder / "programs" / "open.py"), "__name__": "opened"}
    exec((folder / "programs" / "open.py").read_text(), names)
    theirs, ours = names["open_session"](), ds.ort_session(folder / "f.onnx")
    assert options(theirs) == options(ours)
    inputs = names["made_up_inputs"]()
    for one, other in zip(theirs.run(None, inputs), ours.run(None, inputs), strict=True):
        np.testing.assert_array_equal(one, other)
    assert session_settings(folder / "f.onnx") == result.session


def options(session):
    found = session.get_session_options()
    names = {name for settings in ALL for name in settings.options}
    entries = {name for settings in ALL for name in settings.config}
    return {name: getattr(found, name) for name in names} | {
        name: found.get_session_config_entry(name) for name in entries if "use_env" not in name
    }


@pytest.mark.parametrize("settings", ALL, ids=lambda settings: settings.name)
def test_the_code_of_settings_does_what_opening_by_them_does(settings, tmp_path):
    library = onnxruntime_library()
    registered = []

    class Recording:
        """The library, and what arenas were registered."""

        def __getattr__(self, name):
            return getattr(library, name)

        def create_and_register_allocator(self, memory, arena):
            registered.append(arena)
            library.create_and_register_allocator(memory, arena)

        def OrtArenaCfg(self, keys):  # noqa: N802  the library's name
            registered.append(dict(keys))
            return library.OrtArenaCfg(keys)

    path = branchy_model(tmp_path / "m.onnx")
    ours = open_session(Recording(), path, settings)
    first, names = list(registered), {"ort": Recording()}
    registered.clear()
    exec("\n".join(session_code(settings)), names)
    made = library.InferenceSession(str(path), names["options"], providers=["CPUExecutionProvider"])
    assert options(made) == options(ours)
    assert [item for item in registered if isinstance(item, dict)] == [item for item in first if isinstance(item, dict)]
    for name, value in settings.options.items():
        shown = getattr(made.get_session_options(), name)
        assert shown == value or str(shown) == str(value), name


def test_rows_tell_apart_what_the_file_gains_and_what_its_settings_gain(fitted):
    folder, result = fitted
    rows = result.measured.rows
    assert [row.settings.arena != {} for row in rows] == [False, True, False, True][: len(rows)]
    assert {row.file for row in rows[:2]} == {"original"}
    assert {row.file for row in rows[2:]} <= {result.shipped}
    files = {"original": folder / "m.onnx", result.shipped: folder / "f.onnx"}
    for row in rows:
        taken = ort.measure_peak(files[row.file], settings=row.settings)
        if row.settings.follows_file:
            assert (row.in_use_bytes, row.held_bytes) == (taken.peak_bytes, taken.held_bytes), row
        else:
            assert taken.peak_bytes == pytest.approx(row.in_use_bytes, rel=0.25), "loads differ"
        assert row.held_bytes >= row.in_use_bytes
        assert row.latency.ratio_low <= row.latency.ratio <= row.latency.ratio_high
    assert rows[0].latency.ratio_low == rows[0].latency.ratio_high == 1.0
    assert (result.measured.before, result.measured.after) == (rows[0].held_bytes, result.taken.held_bytes)
    assert result.measured.after <= result.measured.before


def test_a_file_that_was_not_fitted_names_no_session(tmp_path):
    with pytest.raises(UsageError, match="does not say how it was measured"):
        ds.ort_session(branchy_model(tmp_path / "m.onnx"))
    (tmp_path / "t.onnx").write_text("no model")
    with pytest.raises(LoadError, match=r"t\.onnx is not an ONNX model"):
        ds.ort_session(tmp_path / "t.onnx")
    with pytest.raises(LoadError, match="cannot read"):
        ds.ort_session(tmp_path / "none.onnx")


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"session": "file order; rm"}, "unknown session settings"),
        ({"session": "file order", "region_bytes": "-1"}, "asks for an arena"),
        ({"session": "file order", "region_bytes": "9" * 30}, "asks for an arena"),
        ({"session": "file order", "region_bytes": "0"}, "asks for an arena"),
    ],
)
def test_metadata_choose_among_settings_and_set_nothing(entries, said, tmp_path):
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    for key, value in entries.items():
        model.metadata_props.add(key=f"downset.{key}", value=value)
    onnx.save(model, str(tmp_path / "h.onnx"))
    with pytest.raises(LoadError, match=said):
        session_settings(tmp_path / "h.onnx")


def test_a_fitted_file_says_what_it_is_and_what_it_holds(fitted):
    folder, result = fitted
    entries = {entry.key: entry.value for entry in onnx.load(str(folder / "f.onnx")).metadata_props}
    assert entries["downset.version"] == ds.__version__
    assert entries["downset.target"] == "ort"
    assert entries["downset.file"] == result.shipped
    assert entries["downset.inputs"] == "x=1,3,8,8"
    held = {node.domain for node in onnx.load(str(folder / "f.onnx")).graph.node}
    assert ("com.microsoft" in held) == any("ONNX Runtime's own" in note for note in result.notes)


def test_metadata_of_others_and_of_ours_stay(tmp_path):
    """What the file said before, and what a rewrite said of it, are not lost; what is said again replaces."""
    model = onnx.load(str(branchy_model(tmp_path / "m.onnx")))
    for key in ("author", "downset.certificate", "downset.version"):
        model.metadata_props.add(key=key, value="before")
    onnx.save(model, str(tmp_path / "m.onnx"))
    write_metadata(tmp_path / "m.onnx", tmp_path / "o.onnx", {"version": "after"})
    assert fitted_metadata(tmp_path / "o.onnx") == {"certificate": "before", "version": "after"}
    assert "author" in {entry.key for entry in onnx.load(str(tmp_path / "o.onnx")).metadata_props}


def test_options_that_only_onnx_runtime_has(tmp_path):
    path = branchy_model(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="session opens the written file: give output, too"):
        ds.fit(path, session=tmp_path / "s.py")
    with pytest.raises(UsageError, match="is for ONNX Runtime"):
        ds.fit(path, target="torch", output=tmp_path / "f.onnx", session=tmp_path / "s.py")
    with pytest.raises(UsageError, match="both name"):
        ds.fit(path, output=tmp_path / "f.onnx", session=tmp_path / "f.onnx")
    with pytest.raises(UsageError, match="factor from 1"):
        ds.fit(path, slower=0.9)
    assert not list(tmp_path.glob("f.*")) and not list(tmp_path.glob("s.py"))


def test_without_a_measurement_no_session_is_written_and_no_file_either(tmp_path, monkeypatch):
    def missing(*_, **__):
        raise UnsupportedError("no onnxruntime here")

    path = branchy_model(tmp_path / "m.onnx")
    monkeypatch.setattr(
        "downset.runtimes.ort.isolated",
        lambda *given, **named: (
            missing()
            if given[1] == "measure_here"
            else __import__("downset.process.isolation").process.isolation.isolated(*given, **named)
        ),
    )
    with pytest.raises(UnsupportedError, match="no session is written: not measured: no onnxruntime here"):
        ds.fit(path, output=tmp_path / "f.onnx", session=tmp_path / "s.py", time_limit_s=1)
    assert not (tmp_path / "f.onnx").exists() and not (tmp_path / "s.py").exists()


def timed(name, in_use, process, ratio, spread=0.05):
    latency = Latency(ratio / 100, 31, ratio, ratio - spread, ratio + spread, 0.01)
    measured = {"in_use_bytes": in_use, "held_bytes": in_use, "total_bytes": in_use}
    return Candidate(name, Path(name), in_use, None, measured, FILE_ORDER, process, latency)


def test_the_front_is_what_no_other_beats_in_bytes_and_time():
    original = timed("original", 100, 0, 1.0, 0.0)
    fast, small = timed("fast", 60, 0, 1.08), timed("small", 20, 0, 2.0)
    worse, twin = timed("worse", 70, 0, 2.1), timed("twin", 20, 0, 2.0)
    assert front_of([original, worse, small, fast, twin]) == [original, fast, small]
    assert front_of([original, replace(fast, latency=None)]) == [original]


def test_least_is_the_smallest_process_and_among_equal_ones_the_least_arena():
    """Processes that differ by chance count as equal; a file is asked for its least arena only where it may win."""
    mib, asked = 1 << 20, []
    grown = {"original": 60 * mib, "slim": 30 * mib, "slimmer": 30 * mib + mib // 2, "copies": 50 * mib}

    def narrowed(item):
        asked.append(item.name)
        return item

    def processes(pairs, **_):
        return [grown[path.name] for path, _ in pairs]

    row = TARGETS["ort"]
    sessions = replace(row.sessions, processes=processes)
    job = Job(Path("m.onnx"), replace(row, sessions=sessions), FitOptions("m.onnx"), Path())
    by_default = replace(timed("original", 100, None, 1.0), settings=DEFAULT)
    given = [by_default, timed("slim", 20, None, 2.0), replace(timed("copies", 10, None, 1.0), settings=FITTED[1])]
    assert least(job, given, narrowed).name == "slim"
    in_strips = replace(job, options=FitOptions("m.onnx", strips=4))
    assert least(in_strips, given, narrowed).name == "copies", "whatever strips cost, the arena decides"
    other = replace(FILE_ORDER, name="other")
    given = [*given, replace(timed("slimmer", 15, None, 3.0), settings=other)]
    assert least(job, given, narrowed).name == "slimmer"
    held = timed("copies", 5, None, 1.0)  # least held by the settings of "slim", in a larger process
    for kind, name in (("kernel-wise", "slim"), ("row-wise", "copies")):  # strips were asked for
        rewritten = replace(held, plan=PlannedGraph(None, None, (Rewrite("r", (), kind, 1),)))
        assert least(job, [timed("slim", 20, None, 2.0), rewritten], narrowed).name == name
    asked.clear()
    assert least(job, [timed("slimmer", 15, None, 1.0), timed("slim", 20, None, 1.0)], narrowed).name == "slimmer"
    assert asked == ["slimmer"], "what has more in use cannot hold less"


def test_with_more_memory_the_file_is_chosen_by_its_process_among_those_that_fit():
    """Once one fits, one that fits is chosen at every larger limit, however little the process of another grows."""
    mib = 1 << 20
    grown = {"large": 20 * mib, "middle": 30 * mib, "small": 60 * mib}
    row = TARGETS["ort"]
    sessions = replace(row.sessions, processes=lambda pairs, **_: [grown[path.name] for path, _ in pairs])
    job = Job(Path("m.onnx"), replace(row, sessions=sessions), FitOptions("m.onnx"), Path())
    given = [
        replace(timed(name, held, None, 1.0), settings=replace(FILE_ORDER, name=name))
        for name, held in (("large", 90), ("middle", 60), ("small", 40))
    ]
    chosen = [least(job, given, lambda item: item, limit).name for limit in range(30, 100, 10)]
    assert chosen == ["small", "small", "small", "middle", "middle", "middle", "large"]
    assert least(job, given, lambda item: item).name == "large"


@pytest.mark.parametrize(("grown", "told"), [(33, []), (40, ["a process grows by 10,485,760 B more"]), (None, [])])
def test_a_process_that_grows_more_is_told(grown, told):
    """Differences by chance are not: a megabyte or 2 %."""
    mib = 1 << 20

    def row(name, process):
        return SessionTaken(name, FILE_ORDER, 1, 1, None if process is None else process * mib)

    rows = (row("original", 60), row("original", 30 if grown != 33 else 32), row("strips", 60), row("strips", grown))
    assert [note[: len(told[0]) if told else 0] for note in growth(rows)] == told
    assert growth(rows[:2]) == []


@pytest.mark.parametrize("count", range(1, 14))
def test_intervals_cover_the_median_as_often_as_they_say(count):
    """Against all ways in which rounds may fall above or below the true median."""
    rank = latencies._interval_rank(count)

    def missed(at):
        """The share of draws in which the values of ranks at and -1 - at lie on one side of it."""
        below = [sum(sides) for sides in product((0, 1), repeat=count)]
        return sum(number <= at or number >= count - at for number in below) / 2**count

    assert rank == 0 or missed(rank) <= 0.05
    assert 2 * (rank + 1) >= count or missed(rank + 1) > 0.05
    if count >= 6:
        assert missed(rank) <= 0.05
    assert math.isfinite(rank)


def open_batch(path, *, folded):
    """A network of open batch; `folded`: it computes a size that fixed sizes would fold away."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], name="conv", pads=[1, 1, 1, 1], kernel_shape=[3, 3]),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
    ]
    if folded:
        nodes += [
            helper.make_node("Shape", ["r"], ["s"], name="shape"),
            helper.make_node("Gather", ["s", "zero"], ["n"], name="gather"),
            helper.make_node("Concat", ["n", "rest"], ["size"], name="size", axis=0),
            helper.make_node("Reshape", ["r", "size"], ["y"], name="reshape"),
        ]
    else:
        nodes += [helper.make_node("Flatten", ["r"], ["y"], name="flatten")]
    random = np.random.default_rng(3)
    weights = [
        constant("w", random.standard_normal((4, 3, 3, 3)).astype(np.float32)),
        constant("zero", np.zeros(1, np.int64)),
        constant("rest", np.full(1, 256, np.int64)),
    ]
    graph = helper.make_graph(
        nodes,
        "open",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 256])],
        weights if folded else weights[:1],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def sizes(path):
    graph = onnx.load(str(path)).graph
    return [
        [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]
        for value in (*graph.input, *graph.output)
    ]


@pytest.mark.parametrize("folded", [False, True])
def test_sizes_that_the_original_leaves_open_stay_open(tmp_path, folded):
    path = open_batch(tmp_path / "m.onnx", folded=folded)
    result = ds.fit(path, output=tmp_path / "f.onnx", shapes={"x": (1, 3, 8, 8)}, time_limit_s=1)
    assert any("stay open; planned and measured for n = 1" in note for note in result.notes)
    assert sizes(tmp_path / "f.onnx") == sizes(path) == [["n", 3, 8, 8], ["n", 256]]
    assert result.outputs.other_sizes == ("n = 2",)
    for batch in (1, 3):
        shapes = {"x": (batch, 3, 8, 8)}
        ours, theirs = (ort.run(name, shapes=shapes)[0] for name in (tmp_path / "f.onnx", path))
        assert ours.shape == (batch, 256)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_sizes_that_a_branch_refuses_are_named(tmp_path):
    """ONNX Runtime loads the file; with five columns the branch that adds four does not fit."""
    branches = {
        "then_branch": [helper.make_node("Add", ["x", "four"], ["added"])],
        "else_branch": [helper.make_node("Identity", ["x"], ["same"])],
    }
    graphs = {
        name: helper.make_graph(nodes, name, [], [helper.make_empty_tensor_value_info(nodes[0].output[0])])
        for name, nodes in branches.items()
    }
    graph = helper.make_graph(
        [helper.make_node("If", ["which"], ["y"], name="either", **graphs)],
        "branches",
        [
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "columns"]),
            helper.make_tensor_value_info("which", TensorProto.BOOL, []),
        ],
        [helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.zeros((1, 4), np.float32), "four")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    ort.optimise_offline(path, tmp_path / "four.onnx", shapes={"x": (1, 4)})
    with pytest.raises(UnsupportedError, match=r"loads m\.onnx, but not with the sizes x=1,5: .*give others"):
        ort.optimise_offline(path, tmp_path / "five.onnx", shapes={"x": (1, 5)})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("folder", "is a directory"),
        ("link to a folder", "is a directory"),
        ("link to itself", "cannot write"),
        ("link to nothing", "does not exist"),
        ("gone/session.py", "does not exist"),
        ("null\0byte.py", "null"),
        ("a" * 300, "too long"),
        ("link to the model", "being read"),
        ("fitted.onnx", "both name"),
    ],
)
def test_a_session_that_cannot_be_written_is_refused_before_work(name, says, tmp_path):
    model = tmp_path / "m.onnx"
    model.write_bytes(b"not read before the paths are looked at")
    (tmp_path / "folder").mkdir()
    for link, target in {
        "a folder": "folder",
        "itself": "link to itself",
        "nothing": "gone/x",
        "the model": "m.onnx",
    }.items():
        (tmp_path / f"link to {link}").symlink_to(tmp_path / target)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(UsageError) as refused:
        ds.fit(model, output=tmp_path / "fitted.onnx", session=f"{tmp_path}/{name}")
    assert says in str(refused.value) and "\n" not in str(refused.value)
    assert sorted(tmp_path.iterdir()) == before


def test_times_before_and_after_agree_with_their_ratio():
    """The machine slows down after the third round: the medians of both files say 2x, the rounds say 1x."""
    seconds = np.array([[1.0, 1.0], [1.0, 1.0], [1.0, 1.01], [2.0, 2.0], [2.0, 2.02], [2.0, 2.02], [1.0, 2.0]])
    usual, other = latencies.latencies(seconds)
    assert other.median_s == 2.0 and usual.median_s == usual.usual_s == usual.run_s == 1.0 and usual.ratio == 1.0
    assert other.ratio == pytest.approx(1.01) and other.usual_s == 1.0 and other.run_s == pytest.approx(1.01)


def test_sessions_that_do_not_fit_into_memory_together_are_timed_in_groups(tmp_path, monkeypatch):
    """Each is compared with the first of its own group, and no group asks for more than a worker may take."""
    path, asked = tmp_path / "m.onnx", []
    inside = onnx.load(str(branchy_model(tmp_path / "inside.onnx")))
    onnx.save(inside, str(path), save_as_external_data=True, location="w.bin", size_threshold=0)
    held = path.stat().st_size + (tmp_path / "w.bin").stat().st_size
    assert (tmp_path / "w.bin").stat().st_size > 0
    sessions = [(path, DEFAULT.with_region(number)) for number in range(1, 7)]

    def seconds(group, **options):
        asked.append((group, options["budget_s"]))
        return np.array([[settings.region_bytes or 0 for _, settings in group]] * 7, float) * len(asked)

    monkeypatch.setattr(ort, "session_seconds", seconds)
    for together, groups in ((6, 1), (3, 3), (2, 5), (1, 5)):
        asked.clear()
        monkeypatch.setattr(ort, "worker_bytes", lambda count=together: 2 * held * count)
        found = ort.time_sessions(sessions, budget_s=2.0)
        assert [latency.ratio for latency in found] == [1, 2, 3, 4, 5, 6]
        assert len(asked) == groups and sum(budget for _, budget in asked) == pytest.approx(2.0)
        assert all(group[0] == sessions[0] and len(group) <= max(together, 2) for group, _ in asked)
    assert [latency.ratio for latency in ort.time_sessions(sessions[:1])] == [1]


def test_a_disk_without_room_for_the_optimised_file_is_named(tmp_path, monkeypatch):
    """ONNX Runtime says that writing failed, and not why."""
    model = branchy_model(tmp_path / "m.onnx")
    with pytest.raises(UnsupportedError, match=r"ONNX Runtime cannot load m\.onnx"):
        open_session(onnxruntime_library(), model, DEFAULT, optimised_path="/dev/full")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UsageError, match=r"cannot write /dev/full: No space left on device; TMPDIR may"):
        open_session(onnxruntime_library(), model, DEFAULT, optimised_path="/dev/full")


@pytest.mark.parametrize("place", ["beside", "linked", "linked/deep"])
def test_a_program_finds_a_model_by_any_path(place, tmp_path, monkeypatch):
    """Caches of model hubs keep files under other names, and link to them."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / "f00d").write_bytes(b"model")
    (tmp_path / "snapshot" / "deep").mkdir(parents=True)
    (tmp_path / "linked").symlink_to(tmp_path / "snapshot")
    for folder in ("", "snapshot", "snapshot/deep"):
        (tmp_path / folder / "m.onnx").symlink_to(tmp_path / "blobs" / "f00d")
    program = tmp_path / place.replace("beside", "") / "p.py"
    monkeypatch.chdir(tmp_path)
    models = ("m.onnx", "snapshot/m.onnx", "linked/m.onnx", "linked/deep/m.onnx", tmp_path / "snapshot/deep/m.onnx")
    for model in models:
        named = program.resolve().parent.joinpath(*relative_parts(model, program))
        assert named.name == "m.onnx" and named.samefile(model)
