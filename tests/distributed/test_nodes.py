"""What nodes of a cluster are started with: names, addresses and heads that cannot be are refused, in one line."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from downset.distributed.keys import issue_keys, make_authority
from downset.distributed.serving import nodes
from downset.distributed.serving.nodes import (
    LEAST_STORE_BYTES,
    NodeOptions,
    NodeProcess,
    free_port,
    head_address,
    host_and_port,
    start_node,
)
from downset.distributed.serving.ray_fleet import cluster
from downset.errors import UsageError

LONG = "a" * 64


@pytest.mark.parametrize(
    "text",
    [
        "",
        "10.0.0.1",
        ":1",
        "host:0",
        "host:65536",
        "host:-1",
        "host: 1",
        "host:²",
        "host:\u0661",
        "host:" + "9" * 5000,
        f"{LONG}.example:1",
        "a..b:1",
        ".:1",
        "\udcff:1",
        "\x1b[2J:1",
        "a\x00b:1",
    ],
)
def test_a_head_that_cannot_be_is_refused(text):
    with pytest.raises(UsageError, match="is not HOST:PORT"):
        host_and_port(text)


@pytest.mark.parametrize("text", ["10.0.0.1:6379", "board.local:1", "bücher.example:65535", "::1:6379", "[::1]:6379"])
def test_heads_are_read(text):
    host, port = host_and_port(text)
    assert f"{host}:{port}" == text


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_head_on_loopback_has_the_address_at_which_ray_listens_there_alone(host):
    assert head_address(f"{host}:6379") == ("127.0.0.1", 6379)
    assert head_address("10.0.0.1:6379") == ("10.0.0.1", 6379)


@pytest.mark.parametrize("port", [10_002, 16_379, 19_999])
def test_a_head_on_a_port_of_rays_workers_is_refused(port):
    with pytest.raises(UsageError, match=f"cannot listen on port {port}: Ray keeps ports 10002 to 19999"):
        head_address(f"10.0.0.1:{port}")
    assert [head_address(f"10.0.0.1:{near}")[1] for near in (10_001, 20_000)] == [10_001, 20_000]


def test_a_free_port_is_none_of_rays_workers(monkeypatch):
    found = iter([12_000, 19_999, 20_000])
    monkeypatch.setattr(nodes, "_bound_port", lambda *_: next(found))
    assert free_port("127.0.0.2") == 20_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "it wrote no reason"),
        ("ValueError: in use\nPort information: 1\n", "ValueError: in use"),
        ("[2026-11-25 07:07:53,777 C 52 52] (raylet) node_manager.cc:524: an error\n", "an error"),
    ],
)
def test_what_a_node_said_is_known_when_its_folder_is_gone(tmp_path, text, said):
    file = tmp_path / "node.log"
    file.write_text(text)
    log = os.open(file, os.O_RDONLY)
    file.unlink()
    try:
        assert NodeProcess(SimpleNamespace(), NodeOptions("127.0.0.2", tmp_path), log).last_error() == said
    finally:
        os.close(log)


def test_a_node_that_ray_did_not_wait_for_says_so(tmp_path):
    said = "INFO node.py:438 -- Failed to get node info\nException: The current node timed out during startup. This\n"
    for text, running, too_slow in ((said, None, False), (said, 1, True), ("OSError: in use\n", 1, False)):
        (tmp_path / "node.log").write_text(text)
        log = os.open(tmp_path / "node.log", os.O_RDONLY)
        node = NodeProcess(SimpleNamespace(poll=lambda code=running: code), NodeOptions("127.0.0.2", tmp_path), log)
        assert node.too_slow is too_slow
        os.close(log)


def test_shared_memory_that_is_not_there_is_said_before_anything_starts(tmp_path, monkeypatch):
    """Also where each object store has room, and all together have not."""
    started = []
    monkeypatch.setattr(nodes.subprocess, "Popen", lambda *_, **__: started.append(1))
    monkeypatch.setattr(nodes.shutil, "disk_usage", lambda _: SimpleNamespace(free=5 * LEAST_STORE_BYTES - 1))
    with pytest.raises(UsageError, match=r"takes 419,430,400 bytes and \S+ has 419,430,399 left"), cluster(["d"] * 4):
        pass
    monkeypatch.undo()
    monkeypatch.setattr(nodes.subprocess, "Popen", lambda *_, **__: started.append(1))
    monkeypatch.setattr(nodes, "_SHARED_MEMORY", tmp_path / "shm")
    with pytest.raises(UsageError, match="shm: No such file or directory; mount a tmpfs there"), cluster(["d"]):
        pass
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(nodes.os, "access", lambda *_: False)
    with pytest.raises(UsageError, match="shm: this user cannot write there"), cluster(["d"]):
        pass
    assert not started


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    authority = tmp_path_factory.mktemp("keys") / "authority"
    make_authority(authority)
    return issue_keys(authority, "board", hosts=["127.0.0.3"])


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        (("--name", ""), "is not a name of a device"),
        (("--name", "n" * 64), "is not a name of a device"),
        (("--name", "a\x1b[2Jb"), "is not a name of a device"),
        (("--name", "\udcff"), "is not a name of a device"),
        (("--head", f"{LONG}.example:1"), "is not HOST:PORT"),
        (("--head", "a..b:1"), "is not HOST:PORT"),
        (("--address", f"{LONG}.example"), "is not an address"),
        (("--address", ""), "is not an address"),
        (("--address", "10.9.9.9"), "issue keys for the host 10.9.9.9, too"),
        (("--name", "other"), "holds the keys of 'board', and the name is 'other'"),
        (("--head", "127.0.0.2:16379"), "Ray keeps ports 10002 to 19999 for its workers"),
    ],
)
def test_worker_refuses_what_cannot_be(keys, tmp_path, fails, changed, says):
    given = {"--head": "127.0.0.2:1", "--name": "board", "--address": "127.0.0.3", **dict([changed])}
    words = [word for pair in given.items() for word in pair]
    fails(2, "worker", *words, "--keys", keys, "--shards", tmp_path, "--wait", "1ms", says=says)


@pytest.mark.parametrize("name", ["../beside", "{folder}/absolute", "a/b", "."])
def test_a_device_of_a_strangers_cluster_names_no_file(name, tmp_path, monkeypatch):
    own = tmp_path / "own"
    monkeypatch.setattr(nodes, "optional_library", lambda *_, **__: None)
    monkeypatch.setattr(nodes.subprocess, "Popen", lambda *_, **__: SimpleNamespace(pid=1))
    monkeypatch.setattr(nodes, "check_stores", lambda _: None)
    device = name.format(folder=tmp_path)
    start_node(NodeOptions("127.0.0.2", own, head="127.0.0.2:1", device=device, environment={"RAY_AUTH_MODE": "token"}))
    assert [path for path in tmp_path.iterdir() if path != own] == []
    assert all(path.is_file() for path in own.iterdir())
