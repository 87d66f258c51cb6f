"""Keys of a cluster: what is written, who may read it, and what is refused, one line each.

`openssl verify` and Python's TLS are the oracles: neither shares code with `cryptography`'s builders.
"""

import os
import re
import socket
import ssl
import stat
import threading
from datetime import UTC, datetime, timedelta

import pytest

from downset.distributed import keys as keys_module
from downset.distributed.keys import (
    issue_keys,
    make_authority,
    new_token,
    open_keys,
    ray_environment,
    token_environment,
)
from downset.errors import LoadError, UsageError

HOST = "127.0.0.2"


@pytest.fixture
def authority(tmp_path):
    return make_authority(tmp_path / "authority")


@pytest.fixture
def device(authority):
    return issue_keys(authority, "d0", hosts=[HOST, "d0.local"])


def test_every_file_is_private_whatever_the_mask(tmp_path):
    import os

    before = os.umask(0)
    try:
        made = issue_keys(make_authority(tmp_path / "authority"), "d0", hosts=[HOST])
    finally:
        os.umask(before)
    files = [path for path in (tmp_path / "authority").rglob("*") if path.is_file()]
    assert {path.name for path in made.iterdir()} == {"authority.crt", "device.crt", "device.key", "token"}
    assert len(files) == 3 + 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in (made, made.parent)} == {0o700}
    assert (made / "token").read_bytes() == (made.parent / "token").read_bytes()


def handshake(server, client, *, host=HOST):
    """What the client of a TLS connection with certificates on both ends reads; raises as TLS does."""
    ours = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ours.load_cert_chain(server / "device.crt", server / "device.key")
    ours.load_verify_locations(server / "authority.crt")
    ours.verify_mode = ssl.CERT_REQUIRED
    theirs = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    theirs.load_cert_chain(client / "device.crt", client / "device.key")
    theirs.load_verify_locations(client / "authority.crt")
    one, other = socket.socketpair()

    def serve():
        try:
            with ours.wrap_socket(one, server_side=True) as end:
                end.sendall(b"hello")
        except (ssl.SSLError, OSError):
            one.close()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    other.settimeout(10)
    try:
        with theirs.wrap_socket(other, server_hostname=host) as end:
            return end.recv(5)
    finally:
        other.close()
        thread.join(10)


def test_devices_of_one_authority_meet_under_their_hosts(authority, device):
    second = issue_keys(authority, "d1", hosts=["10.0.0.7"])
    assert [handshake(device, second, host=name) for name in (HOST, "d0.local", "127.0.0.1")] == [b"hello"] * 3
    assert handshake(second, device, host="10.0.0.7") == b"hello"
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(device, second, host="10.0.0.7")


def test_keys_say_whose_they_are_and_where(device):
    keys = open_keys(device)
    for host in (HOST, "d0.local", "D0.local.", "127.0.0.1"):
        keys.check_host(host)
    with pytest.raises(
        UsageError, match=r"'d0' for 127\.0\.0\.2, d0\.local.* at 10\.0\.0\.9: issue keys for the host 10"
    ):
        keys.check_host("10.0.0.9")
    keys.check_name("d0")
    keys.check_name("living room")  # no keys can have this name
    with pytest.raises(UsageError, match="the keys of 'd0', and the name is 'd9': give the name 'd0', or the keys of"):
        keys.check_name("d9")


def test_addresses_have_one_spelling(authority):
    keys = open_keys(issue_keys(authority, "six", hosts=["fd00:0::1"]))
    keys.check_host("[fd00::1]")


def test_devices_of_two_authorities_do_not_meet(tmp_path, device):
    stranger = issue_keys(make_authority(tmp_path / "other"), "d0", hosts=[HOST])
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(device, stranger)
    (stranger / "authority.crt").write_bytes((device / "authority.crt").read_bytes())  # it believes us, not we it
    with pytest.raises((ssl.SSLError, ConnectionError)):
        assert handshake(device, stranger) == b"hello"


def test_a_device_cannot_sign_for_others(device):
    with pytest.raises(LoadError, match="cannot read"):
        issue_keys(device, "d9", hosts=[HOST])
    (device / "authority.key").write_bytes((device / "device.key").read_bytes())
    (device / "authority.key").chmod(0o600)
    with pytest.raises(LoadError, match="is not the key of"):
        issue_keys(device, "d9", hosts=[HOST])


@pytest.mark.parametrize("name", ["authority.crt", "device.crt", "device.key", "token"])
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602])
def test_keys_that_others_can_read_or_write_are_refused(device, name, mode):
    assert open_keys(device).name == "d0"
    (device / name).chmod(mode)
    with pytest.raises(LoadError, match=rf"{name} is open to other users \(mode {mode:o}\); chmod 600"):
        open_keys(device)


def test_a_pipe_in_place_of_a_key_is_refused(device):
    (device / "token").unlink()
    os.mkfifo(device / "token", 0o600)
    with pytest.raises(LoadError, match="token is a pipe or a device"):
        open_keys(device)


def test_keys_of_somebody_else_are_refused(device, monkeypatch):
    mine = device.stat().st_uid
    monkeypatch.setattr(keys_module.os, "geteuid", lambda: mine + 1)
    with pytest.raises(LoadError, match="belongs to another user"):
        open_keys(device)


@pytest.mark.parametrize("name", ["authority.crt", "device.crt", "device.key", "token"])
def test_what_is_missing_or_damaged_is_named(device, name):
    (device / name).write_bytes(b"nothing of use")
    with pytest.raises(LoadError, match=rf"{name}.* (is no|holds no)"):
        open_keys(device)
    (device / name).unlink()
    with pytest.raises(LoadError, match=rf"cannot read .*{name}"):
        open_keys(device)


def test_files_of_two_devices_mixed_are_refused(authority, device, tmp_path):
    second = issue_keys(authority, "d1", hosts=[HOST])
    (device / "device.key").write_bytes((second / "device.key").read_bytes())
    with pytest.raises(LoadError, match="is not the key of"):
        open_keys(device)
    other = make_authority(tmp_path / "other")
    (second / "authority.crt").write_bytes((other / "authority.crt").read_bytes())
    with pytest.raises(LoadError, match="was not issued by"):
        open_keys(second)


def test_a_certificate_out_of_its_time_is_refused(device, monkeypatch):
    class Later(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(UTC) + timedelta(days=826)

    monkeypatch.setattr(keys_module, "datetime", Later)
    with pytest.raises(LoadError, match="a TLS certificate is valid from"):
        open_keys(device)


def test_nothing_is_written_over_and_nothing_half_left(authority, device):
    listed = sorted(authority.rglob("*"))
    with pytest.raises(UsageError, match="is there already"):
        make_authority(authority)
    with pytest.raises(UsageError, match="is there already"):
        issue_keys(authority, "d0", hosts=[HOST])
    for name, hosts, says in (
        ("../d1", [HOST], "not a device name"),
        ("d1", [], "at least one"),
        ("d1", ["a b"], "nor a"),
    ):
        with pytest.raises(UsageError, match=says):
            issue_keys(authority, name, hosts=hosts)
    assert sorted(authority.rglob("*")) == listed


def test_a_new_token_reaches_every_folder(authority, device):
    before = (device / "token").read_text()
    files = new_token(authority)
    after = (device / "token").read_text()
    assert set(files) == {authority / "token", device / "token"}
    assert after != before and after == (authority / "token").read_text()
    assert open_keys(device).token.read_text() == after


def test_the_environment_of_a_node(device):
    given = ray_environment(open_keys(device), inherited={"PATH": "/bin"})
    assert given["RAY_USE_TLS"] == "1" and given["RAY_AUTH_MODE"] == "token"
    assert given["RAY_AUTH_TOKEN_PATH"] == str(device / "token")
    assert given["RAY_TLS_CA_CERT"] == str(device / "authority.crt")
    token = (device / "token").read_text()
    assert re.fullmatch("[0-9a-f]{64}", token) and token not in "".join(given.values())
    for name in ("RAY_AUTH_TOKEN", "RAY_AUTH_MODE", "RAY_USE_TLS"):
        with pytest.raises(UsageError, match=f"{name} is set"):
            ray_environment(open_keys(device), inherited={name: "0"})


def test_the_environment_on_loopback_has_the_token_alone(tmp_path):
    token = make_authority(tmp_path / "keys") / "token"
    given = token_environment(token, inherited={})
    assert given["RAY_AUTH_MODE"] == "token" and "RAY_USE_TLS" not in given
    token.chmod(0o644)
    with pytest.raises(LoadError, match="open to other users"):
        token_environment(token, inherited={})


def test_the_commands(run, fails, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run("keys", "init")[0] == 0
    status, out, _ = run("keys", "issue", "d0", "--host", "10.0.0.5")
    assert status == 0 and "downset-keys/d0" in out
    assert open_keys(tmp_path / "downset-keys" / "d0").name == "d0"
    secret = (tmp_path / "downset-keys" / "token").read_text()
    status, out, err = run("keys", "token")
    assert status == 0 and secret not in out + err
    assert (tmp_path / "downset-keys" / "d0" / "token").read_text() != secret
    fails(2, "keys", "init", says="is there already")
    fails(2, "keys", "issue", "d/1", "--host", "10.0.0.5", says="is not a device name")
    (tmp_path / "downset-keys" / "authority.key").chmod(0o644)
    fails(5, "keys", "issue", "d1", "--host", "10.0.0.5", says="is open to other users")
