"""Workers: limits hold, whatever happens in one is an error of ours here, and none outlives its parent."""

import ast
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import closing
from importlib import metadata
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from downset.commands.waiting import reading
from downset.errors import InfeasibleError, LimitReached, UnsupportedError, UsageError
from downset.messages import Setting
from downset.process import isolation
from downset.process.isolation import Worker, isolated, parsed
from downset.process.limits import limits
from downset.runtimes.inputs import run_inputs
from tests.fitting.test_fit_rewrite import tflite_model
from tests.fitting.test_processes import wide_model
from tests.models import branchy_model

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def _workers_find_the_tests(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def pid_of(ask):
    return int(ask("tests.workers", "process", {})[0]["pid"])


def gone(pid):
    """Whether the process ends; a zombie is gone too, its parent only has not asked yet."""
    for _ in range(600):
        try:
            if "\nState:\tZ" in Path(f"/proc/{pid}/status").read_text():
                return True
        except OSError:
            return True
        time.sleep(0.05)
    return False


def test_every_call_has_a_process_in_which_nothing_has_run():
    runs = [pid_of(ask) for ask in (parsed, isolated) * 2]
    assert len({*runs, os.getpid()}) == 5
    assert all(gone(pid) for pid in runs)
    marked = [int(ask("tests.workers", "mark", {})[0]["marks"]) for ask in (parsed, isolated) * 2]
    assert marked == [1] * 4


def test_a_fresh_interpreter_has_imported_no_library():
    """For what measures resident memory: pages that a process has read already do not count as growth."""
    for fresh in (False, True):
        modules = isolated("tests.workers", "ort_here", {}, fresh=fresh)[0]["modules"].tolist()
        assert ("onnxruntime" in modules) is not fresh


@pytest.mark.parametrize("runs", ["tflm", "litert", "ort_session"])
def test_a_worker_that_runs_a_model_has_what_it_needs(runs, tmp_path):
    """A library that the server has not imported is imported again in each of its workers."""
    if runs == "ort_session":
        model, arguments = branchy_model(tmp_path / "m.onnx"), {"file_order": False, **run_inputs(None, 0)}
    else:
        model, arguments = tflite_model(tmp_path / "m.tflite"), {"steps": 1, "seed": 0}
        arguments |= {} if runs == "tflm" else {"shapes": {}}
    arguments |= {"path": str(model)}
    asked = {"module": f"downset.runtimes.{runs}", "function": "run_here", "arguments": arguments}
    server = isolation._Server()
    try:
        server.connect({"module": asked["module"], "libraries": isolation._CODE[runs][1]}).close()
        with closing(Worker("tests.workers", server=server)) as worker:
            imported = worker.ask("imported_by", asked)[0]["modules"].tolist()
    finally:
        server.stop()
    assert not [name for name in imported if name.partition(".")[0] in ("numpy", "ai_edge_litert", "onnxruntime")]


def test_a_conversation_keeps_its_process_until_a_call_fails():
    with closing(Worker("tests.workers")) as worker:
        assert [int(worker.ask("mark", {})[0]["marks"]) for _ in range(3)] == [1, 2, 3]
        process = int(worker.ask("process", {})[0]["pid"])
        with pytest.raises(InfeasibleError):
            worker.ask("refuse", {})
        assert gone(process)


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_no_worker_is_forked_from_a_process_with_threads():
    """A fork has one thread, and what others have locked stays locked in it."""
    libraries = sorted({library for _, names in isolation._CODE.values() for library in names})
    server = isolation._Server()
    try:
        with server.connect({"module": "tests.workers", "libraries": libraries}) as connection:
            assert connection.recv(1) == b"", "it closes the connection once it has imported them"
        mapped = Path(f"/proc/{server.process.pid}/maps").read_text()
        assert "numpy" in mapped and "onnxruntime" in mapped
        assert len(list(Path(f"/proc/{server.process.pid}/task").iterdir())) == 1
    finally:
        server.stop()


FORKS = """
import io, json.tool, os, signal, sys, threading
import numpy
from downset.process import isolation
opened, pipe = open(sys.argv[1]), os.pipe()
signal.signal(signal.SIGWINCH, lambda *_: os.write(2, b"in the fork"))
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGWINCH))
print("not printed twice", end="")
stdout, sys.stdout = sys.stdout, io.StringIO()
if "thread" in sys.argv:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
isolation.fork_server()
if "thread" in sys.argv:
    sys.exit(bool(isolation._SHARED))
server = isolation._SHARED[0].process
found, printed = isolation.isolated("tests.workers", "surroundings", {})
assert printed == "printed\\n", printed
kept = [sys.argv[1], *(os.readlink(f"/proc/self/fd/{end}") for end in pipe)]
assert not set(kept) & set(found["files"].tolist())
assert found["handled"].tolist() == [signal.SIGINT], found["handled"]
assert found["session"] == server.pid != os.getsid(0)
assert found["threads"] == 2
assert "json.tool" in found["modules"]
assert "" in sys.path and "" not in found["path"], "the current folder"
asked = [int(isolation.isolated("tests.workers", name, {})[0]["pid"]) for name in ("process", "process", "ask_another")]
assert len({*asked, server.pid, os.getpid()}) == 5
os.kill(server.pid, signal.SIGKILL)
for _ in range(2):
    try:
        after = int(isolation.isolated("tests.workers", "process", {})[0]["pid"])
    except isolation.UnsupportedError as error:
        assert "crashed (signal 9)" in str(error)
assert after and isolation._SHARED[0].process is not server
server._status = None
assert server.poll() == 0, "a signal handler took the status"
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
@pytest.mark.parametrize("threads", [[], ["thread"]])
def test_a_command_forks_the_server_which_keeps_nothing_but_imports(threads, tmp_path):
    """No file, pipe, handler or text of the command; where the command has threads, nothing is forked. What crashes is
    one error, and the next call has a new interpreter."""
    opened = tmp_path / "opened"
    opened.touch()
    done = subprocess.run(
        [sys.executable, "-c", FORKS, str(opened), *threads],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "not printed twice", "")


ALONE = """
import os, subprocess, sys
from pathlib import Path
from downset.cli import main
from downset.formats.reading import fork_workers
from downset.process import isolation, supervisor

def refused(*_, **__):
    raise AssertionError("a new interpreter")

subprocess.Popen = refused
fork_workers(sys.argv[2], run=True)
assert not isolation._SHARED, "a fork of a program that no process of ours watches"
supervisor._watcher = os.open(os.devnull, os.O_WRONLY)
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
from downset.runtimes.ort_forms import bound_to, make_form
model = Path(sys.argv[2])
form = model.with_name("form.onnx")
version = make_form(model, form, "all")
assert bound_to(form, version).runtime == version
assert "onnxruntime" not in sys.modules
print(version)
"""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_a_command_starts_no_interpreter_and_imports_no_runtime(tmp_path):
    path = wide_model(tmp_path / "m.onnx")
    done = subprocess.run(
        [sys.executable, "-P", "-c", ALONE, "inspect", str(path)], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == metadata.version("onnxruntime")


READING = """
import json, os, subprocess, sys
from downset.cli import main
from downset.process import isolation, supervisor

def refused(*_, **__):
    raise AssertionError("a new interpreter")

subprocess.Popen = refused
supervisor._watcher = os.open(os.devnull, os.O_WRONLY)
for words, expected in json.loads(sys.argv[1]):
    sys.argv = ["downset", *words]
    try:
        main()
    except SystemExit as ended:
        assert ended.code == expected, (words, ended.code)
    assert [type(server.process) for server in isolation._SHARED] == [isolation._Fork], words
    isolation._stop_server()
sys.argv = ["downset", "order", "graph.json"]
try:
    main()
except SystemExit as ended:
    assert ended.code == 0
assert not isolation._SHARED, "a server that nobody asks"
"""


COMMANDS = [path for path in sorted((ROOT / "src/downset/commands").glob("*.py")) if path.stem != "inputs"]
READS = {"load", "load_open", "known_sizes", "open_sizes", "fit_model", "fit_to_memories", "stream_hops", "compare"}
"""Functions that open models."""


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="only Linux lists threads")
def test_a_command_that_reads_a_model_forks_its_workers(tmp_path):
    """Those that start threads, too: they fork before. A command whose file no worker reads forks nothing."""
    branchy_model(tmp_path / "m.onnx")
    (tmp_path / "frames.npy").write_bytes(b"no array")
    graph = {"tensors": [{"size": 1}, {"size": 1}], "ops": [{"name": "a", "ins": [0], "outs": [1]}]}
    (tmp_path / "graph.json").write_text(json.dumps(graph | {"inputs": [0], "outputs": [1]}))
    runs = [(["order", "m.onnx"], 0), (["serve", "m.onnx", "--cluster", "rpi_8", "--input", "frames.npy"], 5)]
    done = subprocess.run(
        [sys.executable, "-P", "-c", READING, json.dumps(runs)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: path.stem)
def test_every_command_reads_models_where_workers_are_forked_before(path):
    tree = ast.parse(path.read_text())
    waits = [node for node in ast.walk(tree) if isinstance(node, ast.With) and "reading(" in ast.unparse(node.items[0])]
    inside = {id(node) for wait in waits for node in ast.walk(wait)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    assert not [node.func.id for node in calls if node.func.id in READS and id(node) not in inside]


def test_workers_are_forked_before_a_thread_shows_progress(monkeypatch):
    threads = []
    monkeypatch.setattr(
        "downset.formats.reading.fork_workers", lambda path, run: threads.append(threading.active_count())
    )
    before = threading.active_count()
    with reading(Console(force_terminal=True, file=io.StringIO()), "m.onnx"):
        assert threads == [before] == [threading.active_count() - 1]


def gone_now(pid):
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("ask", [isolated, parsed])
def test_what_goes_wrong_in_a_worker_is_one_error_of_ours(ask):
    with pytest.raises(UnsupportedError, match=r"^tests.workers crashed \(signal 6\)") as found:
        ask("tests.workers", "crash", {})
    assert "\n" not in str(found.value)
    with pytest.raises(UnsupportedError, match="ended with status 0"):
        ask("tests.workers", "leave", {})
    with pytest.raises(InfeasibleError, match=r"^two lines$"):
        ask("tests.workers", "refuse", {})
    with pytest.raises(UsageError) as found:
        ask("tests.workers", "name_settings", {})
    assert found.value.message.parts == ("give ", Setting("shapes", {"x": [1, 3]}), " or ", Setting("trust"))
    with pytest.raises(UnsupportedError, match=r"failed: RecursionError \(too deep\)"):
        ask("tests.workers", "break_down", {})
    with pytest.raises(UnsupportedError, match="ModuleNotFoundError"):
        ask("tests.no_such_module", "f", {})
    assert ask("tests.workers", "talk", {"text": "one"})[1].strip() == "one"
    assert ask("tests.workers", "talk", {"text": "two"})[1].strip() == "two"


def test_time_is_limited():
    with pytest.raises(LimitReached, match=r"took longer than 0\.5 s"):
        isolated("tests.workers", "sleep", {}, timeout_s=0.5)


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="only Linux says who waits for a processor")
def test_time_in_which_others_have_the_processor_does_not_count(monkeypatch):
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})  # of this process and of those it starts
    monkeypatch.setenv("PINNED", "1")  # which makes it start another server
    spin = [sys.executable, "-c", "while True: pass"]
    busy = [subprocess.Popen(spin, start_new_session=True) for _ in range(5)]  # Linux shares out by session
    try:
        monkeypatch.setattr(isolation, "BUSY", 1000)
        isolated("tests.workers", "compute", {"seconds": 0.5}, timeout_s=1.6)
        monkeypatch.setattr(isolation, "BUSY", 1)
        with pytest.raises(LimitReached):
            isolated("tests.workers", "compute", {"seconds": 0.5}, timeout_s=1.6)
    finally:
        os.sched_setaffinity(0, before)
        for process in busy:
            process.kill()
            process.wait()


@pytest.mark.parametrize("ask", [isolated, parsed])
def test_memory_is_limited(ask):
    with limits(memory_bytes=1 << 29):
        assert ask("tests.workers", "fill", {"nbytes": 1000})[0]["sum"] == 1000
        with pytest.raises(LimitReached, match=r"536,870,912 bytes .*memory_bytes"):
            ask("tests.workers", "fill", {"nbytes": 1 << 29})
    assert ask("tests.workers", "fill", {"nbytes": 1 << 29})[0]["sum"].shape == (1,)


def test_a_limit_that_no_worker_starts_in_is_refused():
    with pytest.raises(UsageError), limits(memory_bytes=1000):
        pass


def test_the_current_folder_is_not_on_the_path(tmp_path, monkeypatch):
    (tmp_path / "json.py").write_text(f"import os\nos.mkdir({str(tmp_path / 'it_ran')!r})\n")
    monkeypatch.chdir(tmp_path)
    assert not isolated("tests.workers", "current_folder", {})[0]["on_path"]
    assert not (tmp_path / "it_ran").exists()


def test_a_worker_whose_end_is_reported_late_can_be_left_twice(monkeypatch):
    """By the call that fails and by the context around it; on a busy machine nothing is reported in between."""
    with closing(Worker("tests.workers")) as worker:
        assert worker.ask("mark", {})[0]["marks"] == 1
        with monkeypatch.context() as busy:
            busy.setattr(Worker, "_line", lambda *_: None)
            worker.close()


def test_a_request_that_nobody_reads_any_more_ends_as_a_crash(monkeypatch):
    """The connection of a process that is killed with a request unread is reset: it does not just end."""
    monkeypatch.setenv("DOWNSET_TEST", "unread")  # another environment: a server of its own
    with closing(Worker("tests.workers")) as worker:
        processes = [int(worker.ask("process", {})[0]["pid"]), worker._server.process.pid]
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        killers = [threading.Timer(0.2, os.kill, (process, signal.SIGKILL)) for process in processes]
        for killer in killers:
            killer.start()
        with pytest.raises(UnsupportedError, match="signal 9"):
            worker.ask("mark", {})
        for killer in killers:
            killer.join()


def test_a_worker_survives_the_thread_that_asked_first(monkeypatch):
    monkeypatch.setenv("DOWNSET_TEST", "thread")  # another environment: a server of its own, started in the thread
    workers = []
    thread = threading.Thread(target=lambda: workers.append(Worker("tests.workers")))
    thread.start()
    thread.join()
    time.sleep(0.2)
    with closing(workers[0]) as worker:
        assert worker.ask("mark", {})[0]["marks"] == 1


PARENT = """
import sys
from downset.process.isolation import parsed
parsed("tests.workers", "sleep", {"path": sys.argv[1]})
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_no_worker_outlives_its_parent(tmp_path, number):
    """Nor does the server, nor what a worker has started."""
    with subprocess.Popen([sys.executable, "-c", PARENT, tmp_path / "pids"], stderr=subprocess.DEVNULL) as parent:
        while not (tmp_path / "pids").exists():
            time.sleep(0.01)
        processes = (tmp_path / "pids").read_text().split()
        assert len(processes) == 3 and not any(map(gone_now, processes))
        parent.send_signal(number)
        parent.wait(timeout=60)
    assert all(map(gone, processes))


def test_answers_are_arrays():
    answer, _ = isolated("tests.workers", "fill", {"nbytes": 3})
    np.testing.assert_array_equal(answer["sum"], [3])


def test_names_of_files_are_meant_from_where_the_parent_is(tmp_path, monkeypatch):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        monkeypatch.chdir(folder)
        for ask in (parsed, isolated):
            assert str(ask("tests.workers", "where", {})[0]["folder"]) == str(folder)


def test_a_worker_that_is_killed_leaves_nothing(tmp_path, monkeypatch):
    """Its libraries make temporary files, too; the caller's own are never touched."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    answer, _ = isolated("tests.workers", "leave_files", {"seconds": 0.0})
    places = [Path(bytes(answer[name]).decode()) for name in ("python", "environment")]
    assert {place.parents[1] for place in places} == {tmp_path}
    assert not any(place.exists() for place in places)
    with pytest.raises(LimitReached):
        isolated("tests.workers", "leave_files", {"seconds": 600.0}, timeout_s=4.0)
    assert not list(tmp_path.iterdir())
