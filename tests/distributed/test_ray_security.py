"""A real Ray head under our keys: what has no certificate, a foreign one, or no token is refused, at every port."""

import contextlib
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from downset.distributed.keys import issue_keys, make_authority, open_keys, ray_environment

HEAD = "127.0.0.2"
ASKS = """
from ray._raylet import GcsClient
print("nodes", len(GcsClient(address={address!r}).get_all_node_info()))
"""


def processes(session):
    """Process numbers of a session."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError, IndexError):
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) == session:
                found.append(int(folder.name))
    return found


def listening(session):
    """{(address in hexadecimal, port): name of the process} of all TCP sockets that a session listens on."""
    sockets = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            words = line.split()
            if words[3] == "0A":
                address, port = words[1].split(":")
                sockets[f"socket:[{words[9]}]"] = (address, int(port, 16))
    found = {}
    for process in processes(session):
        for descriptor in Path(f"/proc/{process}/fd").glob("*"):
            with contextlib.suppress(OSError):
                where = sockets.get(str(descriptor.readlink()))
                if where is not None:
                    found[where] = Path(f"/proc/{process}/comm").read_text().strip()
    return found


@pytest.fixture(scope="module")
def folders():
    """Keys of the head and of a device, of a stranger, and a stranger's key with our authority's certificate."""
    top = Path(tempfile.mkdtemp(prefix="dsk"))
    ours, theirs = make_authority(top / "ours"), make_authority(top / "theirs")
    issue_keys(ours, "head", hosts=[HEAD])
    issue_keys(ours, "d0", hosts=["127.0.0.3"])
    issue_keys(theirs, "d0", hosts=["127.0.0.3"])
    shutil.copyfile(ours / "authority.crt", theirs / "d0" / "authority.crt")
    yield {"ours": ours, "theirs": theirs, "top": top}
    shutil.rmtree(top)


@pytest.fixture(scope="module")
def head(folders):
    """(port, session) of a head node; all of its processes are gone afterwards."""
    with socket.socket() as free:
        free.bind((HEAD, 0))
        port = free.getsockname()[1]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    ray = Path(sys.executable).with_name("ray")
    command = [
        ray, "start", "--head", "--block", f"--node-ip-address={HEAD}", f"--port={port}", "--include-dashboard=false",
        "--include-log-monitor=false", "--num-cpus=1", f"--object-store-memory={80 << 20}", "--disable-usage-stats",
        f"--temp-dir={folders['top'] / 'ray'}",
    ]  # fmt: skip
    with (folders["top"] / "said").open("wb") as said:
        started = subprocess.Popen(
            command, stdout=said, stderr=said, start_new_session=True,
            env=clean | ray_environment(open_keys(folders["ours"] / "head"), inherited=clean),
        )  # fmt: skip
    try:
        for _ in range(2400):
            text = (folders["top"] / "said").read_text()
            names = [re.sub(r"\W", "", name) for name in listening(started.pid).values()]
            if "Ray runtime started" in text and names.count("raylet") == 2 and any("Runtime" in n for n in names):
                break
            assert started.poll() is None, text
            time.sleep(0.1)
        else:
            pytest.fail(text)
        yield port, started.pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            started.send_signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            started.wait(60)
        for process in processes(started.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        started.wait(60)


def told(port, keys):
    """What a TLS server says first (gRPC begins with its settings); raises as TLS does where it refuses the client."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(keys["ours"] / "authority.crt")
    context.set_alpn_protocols(["h2"])
    if "client" in keys:
        context.load_cert_chain(keys["client"] / "device.crt", keys["client"] / "device.key")
    with (
        socket.create_connection((HEAD, port), timeout=60) as plain,
        context.wrap_socket(plain, server_hostname=HEAD) as end,
    ):
        return end.recv(9)


def test_every_port_needs_a_certificate_of_ours_or_is_named_here(head, folders):
    _, session = head
    open_ports = listening(session)
    assert {name for name in open_ports.values() if "Runtime" not in name} == {"gcs_server", "raylet"}
    for (address, port), name in open_ports.items():
        if "Runtime" in name:  # the runtime-environment agent is plain HTTP; the docs say so
            assert address == "0200007F", f"{name} listens on {address}"
            with socket.create_connection((HEAD, port), timeout=60) as plain:
                plain.sendall(b"POST /get_or_create_runtime_env HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n")
                assert plain.recv(64).startswith(b"HTTP/1.1 401")
            continue
        settings = told(port, {**folders, "client": folders["ours"] / "d0"})
        assert settings[3:4] == b"\x04", f"{name} at {port}: no SETTINGS frame of HTTP/2, but {settings!r}"
        for client in ({}, {"client": folders["theirs"] / "d0"}):
            said = b""
            with contextlib.suppress(ssl.SSLError, ConnectionError):  # or it ends the connection without a word
                said = told(port, {**folders, **client})
            assert said == b"", f"{name} at {port} speaks without a certificate of ours"
        with socket.create_connection((HEAD, port), timeout=60) as plain:
            plain.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
            with contextlib.suppress(ConnectionError):
                assert plain.recv(9)[:1] != b"\x00", f"{name} at {port} answers in clear"


def asked(port, environment, home):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.run(
        [sys.executable, "-c", ASKS.format(address=f"{HEAD}:{port}")], capture_output=True, text=True, check=False,
        env=clean | {"HOME": str(home)} | environment, timeout=300,
    )  # fmt: skip


def test_a_certificate_without_the_token_is_refused(head, folders, tmp_path):
    given = ray_environment(open_keys(folders["ours"] / "d0"), inherited={})
    assert asked(head[0], given, tmp_path).stdout.strip() == "nodes 1"
    without = {name: value for name, value in given.items() if "AUTH" not in name}
    other = given | {"RAY_AUTH_TOKEN_PATH": str(folders["theirs"] / "token")}
    for environment in (without, other):
        done = asked(head[0], environment, tmp_path)
        assert done.returncode != 0 and not done.stdout
        assert "InvalidAuthToken" in done.stderr
