"""What the terminal says: verdicts with their bytes, suggestions, examples that parse, figures that are never cut."""

import io
import json
import os
import random
import re
import shlex
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table as Grid
from rich.text import Text

import downset
from docs_site.pages import leaves
from downset.commands.examples import EXAMPLES
from downset.commands.group import COMMANDS, _imported
from downset.commands.serve import _rate
from downset.reports import terminal
from downset.reports.document import Column, Table, columns
from downset.reports.inspection import inspection_document
from downset.reports.terminal import print_document, print_table
from downset.results.serving import Served
from downset.text import format_bytes, format_size, shortened
from tests.models import branchy_model, installed_model
from tests.plain_graphs import random_graph

RECORDS = "id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n"


@contextmanager
def standard_input(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))
    yield


@pytest.mark.parametrize(
    ("typed", "meant"),
    [(("fti", "x.onnx"), "fit"), (("simulat",), "simulate"), (("fit", "x.onnx", "--rm", "1"), "--ram")],
)
def test_what_is_misspelt_is_answered_with_what_is_close(fails, typed, meant):
    fails(2, *typed, says=meant)


def test_a_command_that_is_close_to_none_gets_the_list(fails):
    fails(2, "xyzzy", says="there are fit, inspect")


def leaf(command):
    return _imported(command)


def test_the_line_of_frames_keeps_to_its_room_and_cuts_no_figure():
    found = Served(9, 5, 1.0, 0.0125, 0.025, 0.025, (0.1, 0.2, 0.3, 0.4), 0.05, 2, (), ())
    full = _rate(found, 200)
    assert full == "80 frames/s, planned 40, p50 100 ms, p99 300 ms, planned again 2 times"
    for room in range(12, 90):
        line = _rate(found, room)
        assert len(line) <= room and full.startswith(line) and full[len(line) : len(line) + 1] in ("", ",")


def test_order_names_what_moved(run, tmp_path):
    path = branchy_model(tmp_path / "net.onnx")
    status, out, _ = run("order", path, "--method", "greedy")
    told = json.loads(run("order", path, "--method", "greedy", "--json")[1])
    moved = [one for one in told["operators"] if one["moved"]]
    assert status == 0 and moved and f"{len(moved)} of {len(told['order'])} operators moved" in out
    assert [one["file_step"] for one in told["operators"]] == told["order"]
    for one in moved:
        assert re.search(rf"{one['step']} .* {one['file_step']} .* {re.escape(one['name'])} ", out), one


def test_order_lists_the_largest_tensors_at_the_peak(run, tmp_path):
    """Ten, and what all others take together; JSON has each of them."""
    count = 30
    graph = {
        "tensors": [{"name": f"t{size}", "size": size} for size in range(1, count + 1)] + [{"size": 5}],
        "ops": [{"ins": list(range(count)), "outs": [count]}],
        "inputs": list(range(count)),
        "outputs": [count],
    }
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(graph))
    status, out, _ = run("order", path)
    live = json.loads(run("order", path, "--json")[1])["peak"]
    assert status == 0 and live["bytes"] == sum(one["bytes"] for one in live["tensors"]) == 470
    assert [one["bytes"] for one in live["tensors"]] == sorted([*range(1, count + 1), 5], reverse=True)
    listed = re.findall(r"^│ (t\d+) +│ +(\d+) │$", out, re.MULTILINE)
    assert listed == [(f"t{size}", str(size)) for size in range(count, count - 10, -1)]
    rest = 470 - sum(range(count - 9, count + 1))
    assert f"\n{rest} B in 21 more, none of them larger\n" in out


EVERY = ["", *(name for name, _ in leaves())]
"""The name of every command, subcommands instead of their groups; "" is `downset` itself."""


def test_every_command_has_examples():
    assert sorted(EXAMPLES) == sorted(EVERY) and all(EXAMPLES.values())
    for command, own in EXAMPLES.items():
        assert all(f"{example} ".startswith(f"downset {command} ".replace("  ", " ")) for example in own), command


@pytest.mark.parametrize("example", [example for examples in EXAMPLES.values() for example in examples])
def test_examples_parse(example):
    """With the command's own parser: every option is there, and every value is of its kind."""
    program, command, *arguments = shlex.split(example.split(" < ")[0])
    assert program == "downset"
    made = leaf(command)
    if hasattr(made, "commands"):
        made, arguments = made.commands[arguments[0]], arguments[1:]
    with made.make_context(command, arguments):
        pass


@pytest.mark.parametrize("command", sorted({*EVERY, *COMMANDS}))
def test_every_help_has_its_examples_and_the_units(run, command):
    status, out, _ = run(*command.split(), "--help")
    said = " ".join(out.replace("│", " ").split())
    assert status == 0 and "KB = 1024" in said
    shown = [own for name, own in EXAMPLES.items() if f"{name} ".startswith(f"{command} ")]
    assert shown and all(f"$ {example}" in said for own in shown for example in own)


def test_records_come_from_stdin(run, monkeypatch, tmp_path):
    (tmp_path / "records.csv").write_text(RECORDS)
    expected = run("arena", tmp_path / "records.csv", "-o", "-")
    with standard_input(monkeypatch, RECORDS):
        found = run("arena", "-", "-o", "-")
    assert found[:2] == expected[:2] and "a,0,2,100" in found[1]


def of_a_model(command, path):
    """A command's arguments with a model that is at fault."""
    others = {
        "split": ("--cluster", "pico_1mac"),
        "serve": ("--cluster", "pico_1mac", "--input", "x.npy"),
        "verify": (path,),
        "profile-cluster": ("--devices", "a,b", "--local", "--model", path, "-o", "c.toml"),
    }
    return (command, *(() if command == "profile-cluster" else (path,)), *others.get(command, ()))


MODEL_COMMANDS = ["fit", "inspect", "order", "verify", "stage", "split", "serve", "profile-cluster"]


@pytest.mark.parametrize("command", MODEL_COMMANDS)
@pytest.mark.parametrize("suffix", [".pt", ".pth"])
def test_a_pickled_model_is_told_how_to_be_exported(fails, tmp_path, command, suffix):
    (tmp_path / f"m{suffix}").write_bytes(b"PK\x03\x04 and more")
    fails(5, *of_a_model(command, tmp_path / f"m{suffix}"), says="torch.export.save(")


@pytest.mark.parametrize("command", MODEL_COMMANDS)
@pytest.mark.parametrize(("name", "said"), [("m.xyz", "suffix .xyz is not one of"), ("m", "suffix (none) is not one")])
def test_a_suffix_that_nothing_reads_is_one_mistake_in_every_command(fails, tmp_path, command, name, said):
    (tmp_path / name).write_bytes(b"something else")
    fails(5, *of_a_model(command, tmp_path / name), says=said)
    (tmp_path / name).unlink()
    fails(5, *of_a_model(command, tmp_path / name), says="does not exist")


def test_inputs_of_another_precision_are_refused(fails, run, tmp_path):
    import numpy as np

    branchy_model(tmp_path / "m.onnx")
    options = ("--threads", "1", "--budget-timings", "1", "--no-profiles", "-q")
    assert run("stage", tmp_path / "m.onnx", *options, "-o", tmp_path / "plan.json")[0] == 0
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8)))
    arguments = ("run", tmp_path / "m.onnx", "--plan", tmp_path / "plan.json", "--input", tmp_path / "x.npy")
    fails(2, *arguments, says="convert it with")
    np.save(tmp_path / "x.npy", np.zeros((1, 3, 8, 8), np.float32))
    assert run(*arguments, "--runs", "1")[0] == 0


@pytest.fixture(scope="module")
def wake_word():
    return installed_model("pymicro-wakeword", "okay_nabu.tflite")


def test_a_limit_that_is_kept_says_how_many_bytes_are_free(run, wake_word):
    status, out, _ = run("fit", wake_word, "--ram", "64KB", "--time-limit", "2s", "-q")
    needed, free = (
        int(number.replace(",", ""))
        for number in re.findall(r"([\d,]+) B (?:needed|free)", out)[:2]
        or re.findall(r": ([\d,]+) B needed .*?([\d,]+) B free", out)[0]
    )
    assert status == 0 and needed + free == 65_536
    assert f"kTensorArenaSize = {needed}" in out  # tail included


def test_the_json_of_what_does_not_fit_has_all_that_was_found_and_pictures_are_written(run, wake_word, tmp_path):
    pictures = ("--report", tmp_path / "r.html", "--map", tmp_path / "m.svg", "--trace", tmp_path / "t.json")
    status, out, _ = run(
        "fit", wake_word, "--ram", "1KB", "--time-limit", "2s", "-o", tmp_path / "o.tflite", *pictures, "--json", "-q"
    )
    found = json.loads(out)
    assert status == 3 and found["ok"] is False and not (tmp_path / "o.tflite").exists()
    assert found["ram"]["state"] == "does not fit" and found["ram"]["limit_bytes"] == 1024
    assert found["ram"]["free_bytes"] == 1024 - found["ram"]["needed_bytes"] < 0
    parts = found["parts"]
    assert parts["head_bytes"] + parts["tail_bytes"] == found["measured"]["after"]
    assert max(row["offset"] + row["bytes"] for row in found["offsets"]) + parts["scratch_bytes"] == parts["head_bytes"]
    assert sum(row["bytes"] for row in found["peak"]["tensors"]) >= found["peak"]["bytes"]
    assert (
        len(found["order"]) > found["peak"]["step"]
        and found["order"][found["peak"]["step"]] == found["peak"]["operator"]
    )
    assert {"downset", "python", "tflite-micro"} <= set(found["versions"])
    page = (tmp_path / "r.html").read_text()
    assert "Does not fit 1,024 B" in page and "limit 1,024 B" in page
    assert "<svg" in (tmp_path / "m.svg").read_text() and json.loads((tmp_path / "t.json").read_text())["traceEvents"]


def test_pictures_have_names_of_their_own(fails, wake_word, tmp_path):
    fails(2, "fit", wake_word, "--map", tmp_path / "x", "--report", tmp_path / "x", says="both name")
    fails(2, "fit", wake_word, "--report", wake_word, says="is the file being read")


ENDINGS = {"--report": ".html or .htm", "--map": ".svg", "--trace": ".json"}


@pytest.mark.parametrize("name", ["r.pdf", "r.htmlx", "r", "r.svg", "r.json", "r.html"])
def test_pictures_are_refused_where_their_names_say_something_else(fails, tmp_path, name):
    """Before the model is read: there is none."""
    drawing = {"fit": (*ENDINGS,), "arena": (*ENDINGS,)}
    for command in ("order", "stage", "split", "simulate", "serve"):
        drawing[command] = ("--report", "--trace")
    needed = {"split": ("--cluster", "rpi_8"), "serve": ("--cluster", "rpi_8", "--input", tmp_path / "x.npy")}
    for command, options in drawing.items():
        for option in options:
            if Path(name).suffix not in ENDINGS[option].split(" or "):
                asked = (command, tmp_path / "none.onnx", *needed.get(command, ()), option, tmp_path / name)
                fails(2, *asked, says=f"{name} must end in {ENDINGS[option]}")


def test_pictures_of_either_case_and_devices_are_written(run, tmp_path):
    records = tmp_path / "records.csv"
    records.write_text(RECORDS)
    for option, name in (("--report", "R.HTML"), ("--report", "r.htm"), ("--map", "M.SVG"), ("--trace", "t.json")):
        assert run("arena", records, option, tmp_path / name)[0] == 0
        assert (tmp_path / name).stat().st_size > 0
    assert run("arena", records, "--report", "/dev/null")[0] == 0


def test_a_folder_is_called_that(fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.tflite").mkdir()
    for folder in (".", "m.tflite"):
        fails(2, "fit", folder, says=f"{folder} is a directory; give a model file")


def test_what_does_not_fit_is_told_in_lines_and_says_what_was_written(run, wake_word, tmp_path):
    """The verdict first, then the operator at the peak with its tensors, what would help, and files."""
    page, model, header = (tmp_path / name for name in ("r.html", "o.tflite", "m.h"))
    status, out, err = run(
        "fit", wake_word, "--ram", "1KB", "--time-limit", "2s", "-o", model, "--header", header, "--report", page
    )
    lines = err.splitlines()
    assert (status, out) == (3, "")
    assert lines[0].startswith(f"downset: error: {wake_word} does not fit into 1,024 B: ")
    places = [number for number, line in enumerate(lines) if re.match(r"the peak is at step \d+ of \d+, ", line)]
    assert len(places) == 1 and re.match(r" +[\d,]+ B  \S", lines[places[0] + 1])
    helps = lines.index("to make it fit:")
    needed = re.fullmatch(r"  1\. Give it ([\d,]+) B of RAM \(--ram (\d+)\)\.", lines[helps + 1])
    assert places[0] < helps and needed[1] == f"{int(needed[2]):,}" and "KB were meant" not in err
    assert f"written: {page} (an HTML page)" in lines and page.exists()
    assert lines[-1] == f"not written: {model}, {header} (nothing is known to fit)"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html"]
    assert max(len(line) for line in lines[1:]) < 300


def test_bytes_in_place_of_kilobytes_are_told(run, wake_word):
    status, _, err = run("fit", wake_word, "--ram", "40", "--time-limit", "2s")
    assert status == 3 and "Write --ram 40KB if KB were meant: 40 are bytes." in err
    status, out, _ = run("fit", wake_word, "--ram", "40KB", "--time-limit", "2s")
    assert status == 0 and out.startswith("Fits 40,960 B: ")
    assert "KB were meant" not in run("fit", wake_word, "--ram", "2", "--time-limit", "2s")[2]  # too few as well


def test_what_fits_has_the_verdict_on_its_first_line(run, wake_word):
    status, out, _ = run("fit", wake_word, "--ram", "1MB", "--time-limit", "1s", "-q")
    lines = out.splitlines()
    assert status == 0
    assert re.fullmatch(r"Fits 1,048,576 B: [\d,]+ B needed \(measured in tflm\), [\d,]+ B free", lines[0])
    assert f"{Path(wake_word).name} on TFLite Micro: " in out and out.count("B free") == 1


def test_what_fits_says_which_files_were_written(run, wake_word, tmp_path):
    names = {"-o": "o.tflite", "--header": "m.h", "--report": "r.html", "--map": "m.svg", "--trace": "t.json"}
    options = [word for option, name in names.items() for word in (option, tmp_path / name)]
    status, out, _ = run("fit", wake_word, "--time-limit", "2s", *options)
    assert status == 0
    assert "written: " not in run("fit", wake_word, "--time-limit", "2s", "-q", *options)[1]
    assert {line.split(" (")[0] for line in out.splitlines() if line.startswith("written: ")} == {
        f"written: {tmp_path / name}" for name in names.values()
    }


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_no_digit_is_cut_however_narrow_the_terminal(width):
    out = Console(width=width, file=io.StringIO())
    row = ("peak", "1,234,567,890", "987,654,321", "987,654,320")
    print_table(out, Table(columns("bytes", "before", "after", "lower bound"), [row], "figures"))
    said = out.file.getvalue()
    assert all(figure in said for figure in ("1,234,567,890", "987,654,321", "987,654,320")) and "…" not in said


@pytest.mark.parametrize("width", [40, 60, 80])
def test_no_figure_of_inspect_is_cut(width):
    graph = random_graph(random.Random(3), 12)
    found = downset.inspect(graph)
    out = Console(width=width, file=io.StringIO())
    print_document(out, inspection_document(found))
    printed = out.file.getvalue()
    assert all(format_bytes(step.live_bytes) in printed for step in found.steps)
    assert "live bytes" in printed and "*: the peak" in printed and re.search(r"\d \*", printed)


def test_long_names_keep_both_ends():
    assert shortened("model/block_1/conv", 9) == "mode…conv"
    assert [shortened("abcdef", most) for most in (0, 1, 2, 6)] == ["", "a", "ab", "abcdef"]
    assert all(len(shortened("x" * 50, most)) <= most for most in range(60) if most < 50)


def test_sizes_have_the_unit_that_they_reach():
    assert [format_size(n) for n in (0, 1023, 1024, 1536, 200 * 1024, 3 << 20, 5 << 30)] == [
        "0 B",
        "1023 B",
        "1 KB",
        "1.5 KB",
        "200 KB",
        "3 MB",
        "5 GB",
    ]


def test_doctor_names_what_is_installed_and_what_extras_add(run):
    import onnxruntime

    status, out, _ = run("doctor")
    assert status == 0 and f"onnxruntime {onnxruntime.__version__}" in out
    assert "compiled searches: there" in out and "executorch" in out


def test_the_shell_completes_commands():
    done = subprocess.run(
        [sys.executable, "-m", "downset"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "_DOWNSET_COMPLETE": "bash_complete", "COMP_WORDS": "downset sim", "COMP_CWORD": "1"},
    )
    assert "plain,simulate" in done.stdout, done.stderr


def test_columns_are_as_wide_as_rich_finds_them():
    """The widths are counted without rich, which takes milliseconds for each row."""
    draw, letters = random.Random(0), "ab 漢字é\u0301🙂09,."
    for _ in range(100):
        columns = [
            Column("".join(draw.choices(letters, k=draw.randrange(9))), str, left=draw.random() < 0.5)
            for _ in range(draw.randrange(1, 6))
        ]
        rows = [["".join(draw.choices([*letters, "\n"], k=draw.randrange(30))) for _ in columns] for _ in range(3)]
        grid = Grid()
        for column in columns:
            grid.add_column(Text(column.title), no_wrap=True)
        for cells in rows:
            grid.add_row(*map(Text, cells))
        console = Console(width=1_000)
        widest = Measurement.get(console, console.options, grid).maximum
        assert terminal._width(terminal._widths(columns, rows)) == widest
