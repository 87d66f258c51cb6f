"""The command line as a user meets it: exit codes, one line for a mistake, JSON that keeps its schema."""

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import rich_click as click

from downset.commands.group import COMMANDS, _imported
from downset.errors import LoadError
from downset.formats.reading import load
from downset.text import parse_bytes, parse_seconds
from tests.command import output_of
from tests.models import branchy_model, installed_model

SCHEMAS = Path(__file__).resolve().parents[2] / "docs" / "schemas"
EMBEDDING = installed_model("pyopen-wakeword", "embedding_model.tflite")
PLAIN = {
    "name": "plain",
    "tensors": [{"name": n, "shape": [s], "size": s} for n, s in [("x", 4), ("a", 8), ("b", 2), ("y", 1)]],
    "ops": [
        {"name": "A", "ins": [0], "outs": [1]},
        {"name": "B", "ins": [0], "outs": [2]},
        {"name": "C", "ins": [1, 2], "outs": [3]},
    ],
    "inputs": [0],
    "outputs": [3],
}


@pytest.fixture
def plain(tmp_path):
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(PLAIN))
    return path


def test_order_of_a_plain_graph_prints_its_schema(plain):
    result = json.loads(output_of("order", plain, "--json"))
    jsonschema.validate(result, json.loads((SCHEMAS / "order.json").read_text()))
    # x and b (6 bytes) while a is made: 14; a and b (10) and y: 11; the other way round a stays through b: 14
    assert result["peak_bytes"] == result["bound_bytes"] == 14
    assert result["proven"]
    jsonschema.validate(json.loads(plain.read_text()), json.loads((SCHEMAS / "graph.json").read_text()))


def test_a_plain_graph_comes_from_stdin(run, monkeypatch):
    """The same plan as from a file, with the name `stdin` where the graph has none; mistakes name it, too."""

    def given(text, *options):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
        return run("order", "-", *options)

    status, out, err = given(json.dumps({key: value for key, value in PLAIN.items() if key != "name"}))
    assert (status, err) == (0, "") and "\nstdin: an order of 3 operators, memory model live\n" in out
    assert json.loads(given(json.dumps(PLAIN), "--json")[1])["peak_bytes"] == 14
    assert given("") == (5, "", "downset: error: stdin is not a plain graph: Input data was truncated\n")
    assert given(json.dumps(PLAIN), "--shape", "x=1")[0] == 2


@pytest.mark.parametrize(
    ("place", "key", "misspelt", "said"),
    [
        (("ops", 1), "name", "nme", "operator 1 has the key 'nme'; did you mean 'name'?"),
        (("ops", 2), "ins", "in", "operator 2 has the key 'in'; did you mean 'ins'?"),
        (("tensors", 3), "shape", "Shape", "tensor 3 has the key 'Shape'; did you mean 'shape'?"),
        ((), "outputs", "output", "the graph has the key 'output'; did you mean 'outputs'?"),
    ],
)
def test_a_misspelt_key_of_a_plain_graph_is_told(tmp_path, fails, place, key, misspelt, said):
    graph = json.loads(json.dumps(PLAIN))
    item = graph
    for step in place:
        item = item[step]
    item[misspelt] = item.pop(key)
    path = tmp_path / "plain.json"
    path.write_text(json.dumps(graph))
    fails(5, "order", path, says=f"plain.json: {said}")


def test_other_keys_of_a_plain_graph_are_ignored(tmp_path):
    """As the schema allows, with a close one too where the key itself is there."""
    graph = json.loads(json.dumps(PLAIN))
    graph["ops"][0] |= {"colour": "red", "names": ["A"]}
    graph["tensors"][0] |= {"dtype": "float32"}
    path = tmp_path / "plain.json"
    path.write_text(json.dumps({**graph, "origin": {"tool": 1}}))
    jsonschema.validate(json.loads(path.read_text()), json.loads((SCHEMAS / "graph.json").read_text()))
    assert [op.kind for op in load(path).ops] == ["A", "B", "C"]
    path.write_text(json.dumps({**graph, "ops": 3, "origin": 1}))
    with pytest.raises(LoadError, match="not a plain graph: Expected `array`"):
        load(path)


@pytest.mark.parametrize("method", ["file", "kahn", "dfs", "greedy", "beam", "optimal", "exhaustive"])
def test_every_order_method_has_a_name_on_the_command_line(plain, method):
    result = json.loads(output_of("order", plain, "--json", "--method", method, "--memory", "tflm"))
    assert result["method"] == method
    assert sorted(result["order"]) == [0, 1, 2]


def test_fit_prints_its_schema_and_writes_only_what_was_asked(tmp_path, run):
    target = tmp_path / "fitted.tflite"
    picture = tmp_path / "map.svg"
    whole = ("--rewrite", "off", "--time-limit", "5s", "-q")
    status, out, err = run("fit", EMBEDDING, "-o", target, "--map", picture, "--json", *whole)
    assert (status, err) == (0, "")
    result = json.loads(out)
    jsonschema.validate(result, json.loads((SCHEMAS / "fit.json").read_text()))
    assert result["arena_bytes"] == {
        "before": 663552,
        "after": 454656,
        "bound": 454656,
        "proven": True,
        "gap": 0.0,
        "space": "every order and placement of the network that ships",
    }
    outputs = result["outputs"]
    assert (outputs["equal"], outputs["max_abs_error"], outputs["outputs_vary"]) == (True, 0.0, True)
    assert outputs["inputs_tried"] == 3 and outputs["tensors_inside"] == 63 and outputs["equal_with_offsets"]
    assert outputs["proof"]["proven"] and outputs["proof"]["exact"] and outputs["proof"]["reason"] == ""
    assert (result["shipped"], result["notes"]) == ("order+offsets", [])
    assert result["measured"]["runtime"] == "tflm"
    assert result["output_path"] == str(target)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["fitted.tflite", "map.svg"]
    assert picture.read_text().count("<rect") > 64
    result = json.loads(output_of("verify", EMBEDDING, target, "--json"))
    jsonschema.validate(result, json.loads((SCHEMAS / "verify.json").read_text()))
    assert result["equal"] and result["proof"]["proven"] and result["equal_with_offsets"]


def test_fit_screen_says_what_to_do_next(tmp_path, monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    out = output_of("fit", EMBEDDING, "--time-limit", "1s")
    assert "constexpr size_t kTensorArenaSize = " in out
    assert "\x1b" not in out
    assert "454,656" in out
    assert not list(tmp_path.iterdir())


def test_inspect_prints_its_schema(tmp_path):
    result = json.loads(output_of("inspect", branchy_model(tmp_path / "m.onnx"), "--json"))
    jsonschema.validate(result, json.loads((SCHEMAS / "inspect.json").read_text()))
    assert result["operators"] == 10
    assert result["width"] == 2  # two branches, each a chain
    assert result["peak_bytes"] == max(step["live_bytes"] for step in result["steps"])
    at_peak = [place for place, step in enumerate(result["steps"]) if step["live_bytes"] == result["peak_bytes"]]
    marked = re.findall(r"^│ +(\d+) \* │", output_of("inspect", tmp_path / "m.onnx"), re.MULTILINE)
    assert [int(step) for step in marked] == at_peak


def test_help_lists_every_command():
    out = output_of("--help")
    for command in ("fit", "inspect", "verify", "order", "arena"):
        assert command in out and command in output_of(command, "-h")


def test_the_short_name_of_help_does_not_depend_on_who_asks_first():
    """Click keeps the option as it was made for the first context, which may be that of a command by itself."""
    for name in COMMANDS:
        command = _imported(name)
        command._help_option = None  # as if nobody had asked
        command.make_context(name, [], resilient_parsing=True)
        assert name in output_of(name, "-h")


def test_two_different_networks_do_not_verify(tmp_path, fails):
    one = branchy_model(tmp_path / "one.onnx")
    other = tmp_path / "other.onnx"
    data = bytearray(one.read_bytes())
    at = data.find(b"\x00\x00\x80\x3f" * 8)  # the bias of ones
    data[at : at + 4] = b"\x00\x00\x00\x40"
    other.write_bytes(data)
    fails(4, "verify", one, other, says="differ in ort")


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.tflite", None, "does not exist"),
        ("empty.onnx", b"", "is empty"),
        ("text.tflite", b"this is not a model at all", "not a TFLite model"),
        ("text.onnx", b"this is not a model at all, but it is long enough", "not an ONNX model"),
        ("cut.tflite", EMBEDDING.read_bytes()[:5000], "damaged"),
        ("really.onnx", EMBEDDING.read_bytes(), "suffix"),
        ("plain.json", b'{"tensors": 3}', "not a plain graph"),
        ("cycle.json", json.dumps({**PLAIN, "ops": PLAIN["ops"][::-1]}).encode(), "cycle"),
        ("what.xyz", b"????????????", "not one of"),
        ("huge.json", json.dumps({**PLAIN, "tensors": [{"size": 10**30}] * 4}).encode(), "add up to more than"),
        ("negative.json", json.dumps({**PLAIN, "tensors": [{"size": -1}] * 4}).encode(), "negative size"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bad_files_are_one_line_and_exit_5(tmp_path, fails, name, content, says):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    fails(5, "order", path, says=says)


def test_bad_options_are_one_line_and_exit_2(tmp_path, plain, fails):
    fails(2, "fit", EMBEDDING, "--ram", "plenty", says="not a size")
    fails(2, "fit", EMBEDDING, "--ram", "-3KB", says="not a size")
    fails(2, "fit", EMBEDDING, "--time-limit", "soon", says="not a duration")
    fails(2, "fit", EMBEDDING, "--target", "ort", says="choose tflm or litert")
    fails(2, "fit", EMBEDDING, "--shape", "x=1,y", says="--shape 'x=1,y'")
    fails(2, "fit", EMBEDDING, "-o", EMBEDDING, says="is the file being read")
    fails(2, "fit", EMBEDDING, "-o", tmp_path / "out.onnx", says="must end in .tflite")
    fails(2, "fit", EMBEDDING, "-o", tmp_path / "no" / "out.tflite", says="does not exist")
    fails(5, "fit", plain, says="downset order")
    fails(2, "order", plain, "--method", "magic", says="choose one of")
    fails(2, "order", plain, "--memory", "magic", says="live, paper")
    fails(2, "magic", says="magic")
    fails(2, "fit", says="MODEL")
    fails(2, "fit", EMBEDDING, "--colour", says="--colour")


def test_no_path_is_dropped_without_a_word(fails):
    """Of several paths none is left out: each option with a path says that it is repeatable, or refuses a second."""
    commands = [(name, _imported(name)) for name in COMMANDS]
    commands += [
        (f"{name} {one}", below) for name, all_ in commands for one, below in getattr(all_, "commands", {}).items()
    ]
    checked = set()
    for name, command in commands:
        for option in command.params:
            if not isinstance(option, click.Option) or not isinstance(option.type, click.Path):
                continue
            given = [option.opts[-1], "a", option.opts[-1], "b"]
            if "repeatable" in option.help or "for each" in option.help:
                assert option.process_value(click.Context(command), ["a", "b"]) == ("a", "b")
                continue
            with pytest.raises(click.BadParameter, match="given more than once; it takes one path"):
                command.make_context(name, given)
            assert option.process_value(click.Context(command), ["a"]) == "a"
            checked.add(option.opts[-1])
    assert {"--session", "--report", "--output", "--header", "--authority"} <= checked
    fails(2, "fit", "m.onnx", "--session", "a.py", "--session", "b.cc", says="'--session': given more than once")


def test_too_little_memory_is_exit_3_with_the_bytes_that_would_do(tmp_path, run):
    status, out, err = run("fit", EMBEDDING, "-o", tmp_path / "out.tflite", "--ram", "8KB", "--time-limit", "1s")
    assert (status, out) == (3, "")
    assert "its inputs or outputs alone take 31,632 B" in err.splitlines()[0]
    assert "note:" not in err
    said = (
        r"\nthe least found takes [\d,]{7} B, [\d,]{7} B above the limit(; in strips .*)?\n"
        r"(.*\n)*the peak is at step \d+ of \d+, .* are live; the largest are\n"
    )
    assert re.search(said, err)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_leaves_nothing_behind(tmp_path):
    old = tmp_path / "out.tflite"
    old.write_bytes(b"precious")
    limited = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
        "from downset import load; from downset.formats.tflite.write import export_tflite;"
        f"graph = load({str(EMBEDDING)!r}); resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000));"
        "\ntry: export_tflite('out.tflite', graph, range(len(graph.ops)))"
        "\nexcept Exception as error: print(type(error).__name__)"
    )
    done = subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.strip() == "UsageError", done.stderr
    assert [p.name for p in tmp_path.iterdir()] == ["out.tflite"]
    assert old.read_bytes() == b"precious"


def test_importing_the_package_imports_nothing_heavy():
    code = "import sys, downset; print([m for m in ('numpy', 'rich', 'click', 'onnx', 'torch') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


WITHOUT_NATIVE = """
import sys; sys.modules['downset._native'] = None
from downset import OrderProblem, Record, StageProblem, Storage, UnsupportedError, plan_arena, plan_order, plan_stages
problem = OrderProblem(((), (0,)), (Storage(3, (0,), (1,)), Storage(2, (1,), (1,))))
for plan in (
    lambda: plan_order(problem),
    lambda: plan_arena([Record('a', 0, 1, 4)]),
    lambda: plan_stages(StageProblem((0, 1)), lambda stage: 1.0),
):
    try: plan()
    except UnsupportedError as error: print(error)
print(plan_order(problem, method='file').peak_bytes)
"""


def test_without_the_native_module_the_error_says_how_to_build_it():
    done = subprocess.run([sys.executable, "-c", WITHOUT_NATIVE], capture_output=True, text=True, check=False)
    *errors, peak = done.stdout.splitlines()
    assert len(errors) == 3, done.stderr
    assert peak == "5"
    for error in errors:
        assert re.fullmatch(
            r"the native module is not built \(.*\); `python -m pip install \.` .* C\+\+20 compiler", error
        )


@pytest.mark.parametrize(("text", "nbytes"), [("256KB", 262144), ("1.5MB", 1572864), ("7", 7), ("2GiB", 2**31)])
def test_sizes(text, nbytes):
    assert parse_bytes(text) == nbytes


@pytest.mark.parametrize(("text", "seconds"), [("10s", 10.0), ("500ms", 0.5), ("2min", 120.0), ("1.5", 1.5)])
def test_durations(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("fit", "m.tflite", "--rma", "1KB"), "(see downset fit --help)"),
        (("profiles", "forget"), "(see downset profiles --help)"),
        (("fti",), "(see downset --help)"),
    ],
)
def test_a_misspelt_word_points_at_the_help_of_its_own_command(fails, arguments, says):
    fails(2, *arguments, says=says)
