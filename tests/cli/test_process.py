"""The command line as a process: closed and full streams, signals in native code, and errors of our own."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from downset.commands import group
from tests.command import completed

COMMAND = [sys.executable, "-m", "downset"]


@pytest.fixture
def wide(tmp_path):
    """A graph whose description is longer than a pipe holds."""
    count = 5000
    ops = [{"ins": [at], "outs": [at + 1], "name": f"a name that takes room {at}"} for at in range(count)]
    graph = {"tensors": [{"size": 1}] * (count + 1), "ops": ops, "inputs": [0], "outputs": [count]}
    path = tmp_path / "wide.json"
    path.write_text(json.dumps(graph))
    return path


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_pipe_that_closes_exits_141_without_a_word(wide, options):
    with subprocess.Popen(
        [*COMMAND, "inspect", str(wide), *options], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as running:
        assert running.stdout.read(1)
        running.stdout.close()
        assert running.stderr.read() == b""
        assert running.wait(timeout=120) == 128 + signal.SIGPIPE


def test_a_process_ends_as_the_command_does(tmp_path):
    """Other tests call the command in their own process: its status and its words are the same there."""
    records = tmp_path / "r.csv"
    records.write_text("id,lower,upper,size\na,0,1,4\n")
    for status, arguments in ((0, (records,)), (3, (records, "--capacity", "1")), (5, (tmp_path,))):
        command = ["arena", *map(str, arguments)]
        done = subprocess.run([*COMMAND, *command], capture_output=True, text=True, check=False, timeout=120)
        here = completed(*command)
        assert here.returncode == status
        assert (done.returncode, done.stdout, done.stderr) == (status, here.stdout, here.stderr)


def test_a_full_stderr_changes_no_exit_code(wide, tmp_path):
    missing = tmp_path / "missing.json"
    for expected, arguments in ((0, ["order", wide, "--method", "file"]), (5, ["order", missing]), (2, ["order"])):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [*COMMAND, *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=full, check=False, timeout=120
            )
        assert done.returncode == expected


def test_no_output_takes_the_place_of_what_is_printed_to(tmp_path):
    records, printed = tmp_path / "r.csv", tmp_path / "out"
    records.write_text("id,lower,upper,size\na,0,1,4\n")
    for output in ("/dev/stdout", printed):
        with printed.open("w") as file:
            command = [*COMMAND, "arena", str(records), "-o", str(output)]
            done = subprocess.run(command, stdout=file, stderr=subprocess.PIPE, text=True, check=False, timeout=120)
        assert (done.returncode, done.stderr.count("\n")) == (2, 1) and "is where this process prints" in done.stderr


OPENED = """
import os, sys
os.closerange(0, 3)
from downset.process.command import settled_streams
with settled_streams():
    file = open(sys.argv[1], "wb")
    for number in range(3):
        os.write(number, b"printed")
"""


def test_no_file_takes_the_number_of_a_stream_that_is_closed(tmp_path):
    subprocess.run([sys.executable, "-c", OPENED, str(tmp_path / "made")], check=True, timeout=120)
    assert (tmp_path / "made").read_bytes() == b""


def _as_command(program, tmp_path, *arguments, **options):
    """A process whose command does what `busy` of the program does; its temporary files lie in a folder of its own."""
    started = "from downset.commands import group\ngroup.downset.main = busy\nfrom downset.__main__ import main; main()"
    (tmp_path / "scratch").mkdir()
    return subprocess.Popen(
        [sys.executable, "-c", f"{program}\n{started}", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path / "scratch")},
        **options,
    )


def test_an_interrupt_while_modules_are_imported_is_no_traceback(tmp_path):
    """The module that interrupts is there once: the process that watches imports it to say what happened."""
    (tmp_path / "rich_click.py").write_text(
        "import os, signal\nos.remove(__file__)\nos.kill(os.getpid(), signal.SIGINT)\n"
    )
    # A process that is started in the background ignores interrupts until it is told not to.
    code = (
        "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from downset.__main__ import main; main()"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, "--help"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        stderr=subprocess.PIPE,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (128 + signal.SIGINT, b"downset: stopped\n")


NATIVE = """
import ctypes

def busy(**_):
    lock = ctypes.create_string_buffer(64)
    libc = ctypes.CDLL(None)
    libc.pthread_mutex_init(lock, None)
    libc.pthread_mutex_lock(lock)
    print("busy", flush=True)
    libc.pthread_mutex_lock(lock)  # for ever: native code that gave the GIL back, and that no signal interrupts
"""
PATIENT = "def busy(**_):\n    import time\n    print('busy', flush=True)\n    time.sleep(600)"


@pytest.mark.parametrize("to_all", [False, True], ids=["to one", "to all, as a terminal does"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("program", [NATIVE, PATIENT], ids=["native", "python"])
def test_signals_are_answered(tmp_path, program, number, to_all):
    with _as_command(program, tmp_path, "inspect", "--json", start_new_session=True) as running:
        assert running.stdout.readline() == "busy\n"
        assert len(list((tmp_path / "scratch").iterdir())) == 1
        (os.killpg if to_all else os.kill)(running.pid, number)
        out, err = running.communicate(timeout=240)
    assert (running.returncode, err) == (128 + number, "downset: stopped\n")
    expected = {"code": "stopped", "exit_code": 128 + number, "message": "stopped"}
    assert json.loads(out)["error"] == expected
    assert not list((tmp_path / "scratch").iterdir())


def test_what_stops_in_order_has_time_for_it(tmp_path):
    program = """
import time
import downset.process.supervisor
from downset.process.command import stopping_in_order
downset.process.supervisor._LEAVES_S = 0.1

def busy(**_):
    with stopping_in_order(600.0):
        try:
            print("busy", flush=True)
            while True:  # a signal just before a sleep begins would be noticed only at its end
                time.sleep(0.05)
        finally:
            time.sleep(2)
            print("in order", flush=True)
"""
    with _as_command(program, tmp_path) as running:
        assert running.stdout.readline() == "busy\n"
        running.send_signal(signal.SIGTERM)
        assert running.communicate(timeout=240) == ("in order\n", "downset: stopped\n")
    assert running.returncode == 128 + signal.SIGTERM


CRASHES = [
    ("ctypes.string_at(0)", 5, "unsupported", "native code crashed (SIGSEGV) in ctypes/__init__.py, line "),
    ("os.abort()", 5, "unsupported", "native code crashed (SIGABRT) in "),
    ("os.kill(os.getpid(), 8)", 5, "unsupported", "native code crashed (SIGFPE) in "),
    ("os.kill(os.getpid(), 24)", 6, "limit", "the system ended the command (SIGXCPU)"),
    ("os._exit(1)", 5, "unsupported", "a library ended the command (exit code 1); this input"),
    (
        "from downset.process.supervisor import tell; tell('ending', 'Ray ended it'); os._exit(1)",
        5,
        "unsupported",
        "Ray ended it",
    ),
    ("os.kill(os.getpid(), 9)", 6, "limit", "the system ended the command (SIGKILL)"),
]


@pytest.mark.parametrize(("crash", "code", "kind", "said"), CRASHES, ids=[crash for crash, *_ in CRASHES])
def test_a_crash_in_the_commands_own_process_is_one_line(tmp_path, crash, code, kind, said):
    program = f"def busy(**_):\n    import ctypes, os\n    {crash}"
    with _as_command(program, tmp_path, "inspect", "m.onnx", "--json") as running:
        out, err = running.communicate(timeout=240)
    assert running.returncode == code
    assert err.startswith(f"downset: error: {said}") and err.count("\n") == 1
    error = json.loads(out)["error"]
    assert (error["code"], error["exit_code"], f"downset: error: {error['message']}\n") == (kind, code, err)
    assert not list((tmp_path / "scratch").iterdir())


@pytest.mark.parametrize("end", ["os._exit(1)", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize(("path", "outputs"), [("out.npy", 1), ("out.npz", 2)])
@pytest.mark.parametrize("finished", [0, 2, 3])
def test_finished_results_are_written_where_a_library_ends_the_command(tmp_path, path, outputs, finished, end):
    program = f"""
import os
from types import SimpleNamespace
import numpy as np
from downset.commands.frames import Results

def busy(**_):
    metas = [SimpleNamespace(name=f"y{{n}}", dtype="float32", shape=(1, 2), nbytes=8) for n in range({outputs})]
    with Results({path!r}, SimpleNamespace(tensors=metas, outputs=range({outputs})), 3) as results:
        for row in range({finished}):
            results.add({{meta.name: np.full((1, 2), row) for meta in metas}})
        {end}
"""
    (tmp_path / "here").mkdir()
    with _as_command(program, tmp_path, "serve", "--json", cwd=tmp_path / "here") as running:
        out, err = running.communicate(timeout=240)
    assert running.returncode in (5, 6) and err.count("downset: error") == 1
    written = [f"written: {path} (the results, a row for each frame)"] if finished else []
    assert err.splitlines()[1:] == [f"{finished} of 3 frames finished", *written]
    assert json.loads(out)["files"] == ([path] if finished else [])
    assert [entry.name for entry in (tmp_path / "here").iterdir()] == ([path] if finished else [])
    assert not list((tmp_path / "scratch").iterdir())
    if finished:
        found = np.load(tmp_path / "here" / path)
        for array in [found] if outputs == 1 else [found["y0"], found["y1"]]:
            np.testing.assert_array_equal(array, np.broadcast_to(np.arange(finished)[:, None, None], (finished, 1, 2)))


def test_a_crash_after_all_is_printed_changes_nothing(tmp_path):
    program = "def busy(**_):\n    import atexit, os\n    atexit.register(os.abort)\n    print('all')"
    with _as_command(program, tmp_path) as running:
        assert running.communicate(timeout=240) == ("all\n", "")
    assert running.returncode == 0


def test_a_command_that_has_printed_all_runs_its_exit_handlers_and_frees_nothing(tmp_path):
    program = """
class Held:
    def __del__(self):
        print("freed")
held = Held()
def busy(**_):
    import atexit
    atexit.register(print, "handled", flush=True)
    print("all", end=" ")
"""
    with _as_command(program, tmp_path) as running:
        assert running.communicate(timeout=240) == ("all handled\n", "")
    assert running.returncode == 0
    assert not list((tmp_path / "scratch").iterdir())


def test_a_command_that_is_killed_leaves_no_process(tmp_path):
    program = "import os\n\ndef busy(**_):\n    print(os.getpid(), flush=True)\n    os.read(os.pipe()[0], 1)"
    with _as_command(program, tmp_path) as running:
        worker = int(running.stdout.readline())
        assert worker != running.pid
        running.kill()
        assert running.stdout.read() == "", "it ends once nobody holds the pipe"


def test_an_error_of_our_own_is_one_line_a_report_and_exit_70(run, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))

    def broken(**_):
        raise ZeroDivisionError("a\nsecret")

    monkeypatch.setattr(group.downset, "main", broken)
    status, out, err = run("inspect", "m.onnx")
    assert (status, out, err.count("\n")) == (70, "", 1)
    assert err.startswith("downset: error: an error of downset itself (ZeroDivisionError: a secret); a report is in ")
    (report,) = tmp_path.iterdir()
    assert str(report) in err
    text = report.read_text()
    assert "arguments: ['inspect', 'm.onnx']" in text and "ZeroDivisionError" in text
    report.unlink()

    def full(*arguments, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", full)
    assert "no report could be written" in run("inspect", "m.onnx")[2]


@pytest.mark.parametrize("error", [OSError(39, "Directory not empty"), BrokenPipeError(32, "Broken pipe")])
def test_streams_that_are_a_caller_s_own_stay_as_they_are(run, monkeypatch, tmp_path, error):
    """Somebody who calls `main` in a process of his own reads from the streams that he put in place."""

    def broken(**_):
        raise error

    monkeypatch.setattr(group.downset, "main", broken)
    with (tmp_path / "printed").open("w+") as mine:
        monkeypatch.setattr(sys, "stdout", mine)
        run("inspect", "m.onnx")
        mine.write("still here")
        mine.seek(0)
        assert mine.read() == "still here"
