"""`downset serve --listen` and `downset worker --install` as users run them, with the programs that docs/service.md
shows. The devices are threads of the command's process."""

from __future__ import annotations

import configparser
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from downset.distributed.serving.nodes import free_port
from tests.cluster_toml import cluster_toml
from tests.distributed.thread_fleet import assert_same, unsplit
from tests.models import branchy_model
from tests.needs import program

pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/service.md").read_text()


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    branchy_model(tmp_path / "net.onnx")
    Path("home.toml").write_text(cluster_toml({"left": 1e5, "right": 1e5}, rate_mbps=800, overlap=True))
    return tmp_path


def test_the_page_from_its_first_command_to_its_last_line(here, run):
    """The commands, the client in Python, the one in a shell, the lines of JSON, and the end by SIGTERM."""
    program("curl", brings="apt install curl")
    block = re.search(r"```console\n(.*?)```", PAGE, re.DOTALL)[1]
    commands = [line[2:].split("    #")[0] for line in block.splitlines() if line.startswith("$ downset")]
    for command in commands[:-1]:
        assert run(*command.split()[1:])[0] == 0
    port = free_port("127.0.0.1")
    serve = commands[-1].replace("8443", str(port)).split()[1:]
    command = [sys.executable, "-m", "tests.distributed.serve_threads", str(here), *serve, "--log-json"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    service = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert any(line.startswith(f"listening at https://127.0.0.1:{port}/v2/models/net") for line in service.stderr)
        (client,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
        scope = {}
        exec(client.replace("8443", str(port)), scope)
        frames = [{"x": frame} for frame in scope["frames"]]
        with scope["ds"].ServiceClient(f"127.0.0.1:{port}", keys="downset-keys/camera") as again:
            assert_same(list(again.run(scope["frames"])), unsplit(here / "net.onnx", frames))
        frames[3]["x"].tofile("frame.bin")
        (shell,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        said = subprocess.run(shell.replace("8443", str(port)), shell=True, capture_output=True, text=True, check=True)
        (expected,) = unsplit(here / "net.onnx", [frames[3]])
        assert [output["name"] for output in json.loads(said.stdout)["outputs"]] == list(expected)
        assert Path("outputs.bin").read_bytes() == b"".join(array.tobytes() for array in expected.values())
        Path("frame.bin").write_bytes(b"short")
        wrong = subprocess.run(shell.replace("8443", str(port)), shell=True, capture_output=True, check=False)
        assert b"has 768 bytes, and 5 came" in Path("answer.bin").read_bytes() + wrong.stdout
    finally:
        service.send_signal(signal.SIGTERM)
        _, errors = service.communicate(timeout=120)
    assert service.returncode == 128 + signal.SIGTERM
    lines = [json.loads(line) for line in errors.splitlines() if line.startswith("{")]
    assert [(line["level"], line["client"], line["status"]) for line in lines] == [("warning", "camera", 400)]
    assert errors.splitlines()[-1] == "41 frames answered", errors


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--listen 0.0.0.0:8443", "takes frames from other machines, which needs --keys"),
        ("--listen nowhere", "'nowhere' is not HOST:PORT"),
        ("--listen 127.0.0.1:{busy}", "another program may listen there"),
        ("--listen 192.0.2.1:8443 --keys downset-keys/driver", "would refuse it at 192.0.2.1"),
        ("--listen 127.0.0.1:8443 --input frames.npy", "leave out --input"),
        ("", "--listen takes them from clients"),
    ],
)
def test_what_cannot_listen_is_one_line(words, says, here, run, fails):
    assert run("keys", "init")[0] == 0
    assert run("keys", "issue", "driver", "--host", "127.0.0.1")[0] == 0
    with socket.create_server(("127.0.0.1", 0)) as busy:
        words = words.format(busy=busy.getsockname()[1]).split()
        fails(2, "serve", "net.onnx", "--cluster", "home.toml", *words, says=says)


def test_keys_of_a_client_take_no_host(here, run, fails):
    assert run("keys", "init")[0] == 0
    fails(2, "keys", "issue", "camera", says="--client makes keys without one")
    fails(2, "keys", "issue", "camera", "--client", "--host", "10.0.0.9", says="leave out --host")


@pytest.mark.parametrize("folder", ["keys", "keys of $HOME 100%"])
def test_a_unit_runs_the_same_command(folder, tmp_path, monkeypatch, run, fails):
    """As systemd would read it: words in quotes, %% and $$; `systemd-analyze`, if it is here, finds nothing to say."""
    monkeypatch.chdir(tmp_path)
    assert run("keys", "init", "--authority", folder)[0] == 0
    assert run("keys", "issue", "d3", "--host", "127.0.0.1", "--authority", folder)[0] == 0
    words = ["worker", "--head", "10.0.0.1:6379", "--name", "d3", "--keys", f"{folder}/d3", "--shards", "shards"]
    status, out, _ = run(*words, "--install", "-")
    assert status == 0
    unit = configparser.ConfigParser(interpolation=None, strict=True)
    unit.optionxform = str
    unit.read_string(out)
    assert unit["Install"]["WantedBy"] == "multi-user.target" and unit["Service"]["Restart"] == "always"
    said = [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(unit["Service"]["ExecStart"])]
    assert said[:4] == [sys.executable, "-m", "downset", "worker"]
    assert dict(zip(said[4::2], said[5::2], strict=True)) == {
        "--head": "10.0.0.1:6379",
        "--name": "d3",
        "--keys": str(tmp_path / folder / "d3"),
        "--shards": str(tmp_path / "shards"),
        "--shards-limit": str(4 << 30),
        "--object-store": str(256 << 20),
        "--threads": "0",
    }
    assert run(*words, "--install", "downset-worker.service")[0] == 0
    assert Path("downset-worker.service").read_text() == out
    if shutil.which("systemd-analyze"):
        checked = subprocess.run(
            ["systemd-analyze", "verify", "./downset-worker.service"], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0 and "downset-worker" not in checked.stderr, checked.stderr
    fails(2, *[*words[:4], "d4", *words[5:]], "--install", "-", says="the name is 'd4'")
    fails(2, *[*words[:2], "nowhere", *words[3:]], "--install", "-", says="is not HOST:PORT")
