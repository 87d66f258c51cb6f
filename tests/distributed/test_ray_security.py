"""A real Ray head under our keys: what has no certificate, a foreign one, or no token is refused, at every port."""

import contextlib
import json
import os
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from downset.distributed.keys import issue_keys, make_authority, open_keys, ray_environment
from downset.distributed.serving.nodes import NodeOptions, free_port, start_node
from tests.distributed.sockets import open_sockets, processes_of

HEAD = "127.0.0.2"
"""At an address that is not 127.0.0.1 Ray listens on all interfaces, as it does off loopback."""
ASKS = """
import json, os, sys
from ray import _raylet
for tokens in json.loads(sys.argv[2]):
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
        os.environ.pop(name, None)
    os.environ |= tokens
    _raylet.Config.initialize("")
    _raylet.AuthenticationTokenLoader.instance().reset_cache()
    try:
        print("nodes", len(_raylet.GcsClient(address=sys.argv[1]).get_all_node_info()))
    except Exception as error:
        print(type(error).__name__, error)
"""
"""Asks the head for its nodes, with each of several tokens in turn."""


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
    """A head node; all of its processes are gone afterwards."""
    environment = ray_environment(open_keys(folders["ours"] / "head"), inherited={})
    node = start_node(NodeOptions(HEAD, folders["top"] / "node", port=free_port(HEAD), environment=environment))
    try:
        for _ in range(2400):
            names = [socket.process for socket in sockets_of(node)]
            if names.count("raylet") == 2 and any("Runtime" in name for name in names):
                break
            assert node.running, node.last_error()
            time.sleep(0.1)
        else:
            pytest.fail(node.last_error())
        yield node
    finally:
        node.stop()
    assert not processes_of(session=node.session)


def sockets_of(node):
    return open_sockets(processes_of(session=node.session))


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
    found = sockets_of(head)
    assert {name for name, *_ in found if "Runtime" not in name} == {"gcs_server", "raylet"}
    for name, address, port in found:
        if "Runtime" in name:  # the runtime-environment agent is plain HTTP; the docs say so
            assert address == HEAD, f"{name} listens on {address}"
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


def test_a_certificate_without_the_token_is_refused(head, folders, tmp_path):
    device = ray_environment(open_keys(folders["ours"] / "d0"), inherited={})
    token = {name: value for name, value in device.items() if "AUTH" in name}
    other = token | {"RAY_AUTH_TOKEN_PATH": str(folders["theirs"] / "token")}
    clean = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", ASKS, f"{HEAD}:{head.options.port}", json.dumps([token, {}, other, token])],
        capture_output=True,
        text=True,
        check=True,
        env=clean | {"HOME": str(tmp_path)} | device,
        timeout=300,
    )
    first, without, foreign, last = (line for line in done.stdout.splitlines() if not line.startswith(" "))
    assert (first, last) == ("nodes 1", "nodes 1")
    assert "InvalidAuthToken" in without and "InvalidAuthToken" in foreign
