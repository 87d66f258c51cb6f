"""The protocol between devices: who is refused, what is malformed, and that neither changes a result."""

from __future__ import annotations

import contextlib
import socket
import ssl
import struct
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from downset.distributed.keys import issue_keys, make_authority, open_keys
from downset.distributed.wire.connection import client_context, dialled
from downset.distributed.wire.endpoint import Endpoint, Outgoing, Peer, Sender
from downset.distributed.wire.messages import (
    ENTER,
    MOST_HEADER_BYTES,
    PREFIX,
    RESULT,
    VERSION,
    BrokenConnection,
    Credits,
    DeviceReport,
    Done,
    Hello,
    MalformedMessage,
    RowsOf,
    header_bytes,
    header_of,
)
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.distributed.test_serving_faults import NAMES, THREE, wait_for
from tests.distributed.thread_fleet import LOCAL, ThreadFleet, assert_same, frames_of, keys_of, running, unsplit
from tests.effort import cases
from tests.models import branchy_model

HELLO = Hello(VERSION, "session", 1, "d1")


class Listening:
    """An endpoint that keeps what it is sent."""

    def __init__(self):
        self.got, self.ended = [], []
        self.endpoint = Endpoint(keys_of("d0"), LOCAL, self._accepted)

    def _accepted(self, connection, hello):
        self.got.append((connection.certificate, hello))
        try:
            while True:
                header, nbytes = connection.receive_header()
                array = np.empty(nbytes, np.uint8)
                connection.receive_into([array])
                self.got.append((header, array))
        except (EOFError, OSError, MalformedMessage) as error:
            self.ended.append(error)


@pytest.fixture
def listening():
    found = Listening()
    yield found
    found.endpoint.close()


def test_rows_arrive_as_they_were_sent(listening):
    """Of every size on both sides of a record of TLS, of every number of dimensions, one after another."""
    drawn = np.random.default_rng(0)
    connection = listening.endpoint.dial(listening.endpoint.here, HELLO)
    sent = []
    for number, shape in enumerate([(), (0,), (1,), (3, 0), (16_383,), (16_384,), (33_000,), (2, 3, 5), (1 << 21,)]):
        arrays = [drawn.standard_normal(shape).astype(np.float32), drawn.integers(0, 9, (3,)).astype(np.int64)]
        connection.send(RowsOf(1, number, 2), arrays)
        sent.append((RowsOf(1, number, 2), b"".join(array.tobytes() for array in arrays)))
    wait_for(lambda: len(listening.got) == 1 + len(sent))
    assert listening.got[0] == ("d0", HELLO)  # dialled with the keys of d0
    assert [(header, array.tobytes()) for header, array in listening.got[1:]] == sent
    connection.close()


@pytest.fixture(scope="module")
def strangers(tmp_path_factory):
    """Keys of another authority, and keys of ours for another host alone."""
    folder = tmp_path_factory.mktemp("keys")
    return open_keys(issue_keys(make_authority(folder / "theirs"), "d0", hosts=[LOCAL]))


def refused(listening, dial):
    """Nobody is accepted, and the next one of ours is."""
    with contextlib.suppress(OSError, EOFError):
        dial()
    listening.endpoint.dial(listening.endpoint.here, HELLO).close()
    wait_for(lambda: listening.ended)
    assert [hello for _, hello in listening.got] == [HELLO]


def test_who_has_no_keys_of_ours_is_refused(listening, strangers):
    here = listening.endpoint.here

    def foreign():
        context = client_context(strangers)
        context.load_verify_locations(keys_of("d0").authority)  # he knows ours
        dialled(context, here.host, here.port).send(HELLO)

    def bare():
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(keys_of("d0").authority)
        dialled(context, here.host, here.port).send(HELLO)

    def old():
        context = client_context(keys_of("d0"))
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2
        dialled(context, here.host, here.port).send(HELLO)

    def clear():
        with socket.create_connection((here.host, here.port), timeout=10) as plain:
            head = header_bytes(HELLO)
            plain.sendall(PREFIX.pack(len(head), 0) + head)
            plain.recv(1)

    for dial in (foreign, bare, old, clear):
        listening.got.clear()
        listening.ended.clear()
        refused(listening, dial)


def test_a_server_of_another_authority_or_host_or_name_is_refused(listening, strangers):
    here, theirs = listening.endpoint.here, Endpoint(strangers, LOCAL, lambda *_: None)
    try:
        with pytest.raises(ssl.SSLError):
            listening.endpoint.dial(theirs.here, HELLO)
    finally:
        theirs.close()
    context = client_context(keys_of("d0"))
    plain = socket.create_connection((here.host, here.port))
    with pytest.raises(ssl.SSLCertVerificationError), plain:
        context.wrap_socket(plain, server_hostname="192.168.7.7")
    with pytest.raises(ConnectionRefusedError, match="'d0' answers in place of 'd7'"):
        listening.endpoint.dial(Peer(here.host, here.port, "d7"), HELLO)
    assert not [hello for _, hello in listening.got if hello == HELLO]


def test_strangers_that_say_nothing_keep_nobody_out(listening):
    here, idle = listening.endpoint.here, []
    try:
        idle.extend(socket.create_connection((here.host, here.port)) for _ in range(20))
        listening.endpoint.dial(here, HELLO).close()
        wait_for(lambda: listening.ended)
        assert [hello for _, hello in listening.got] == [HELLO]
    finally:
        for plain in idle:
            plain.close()


@given(st.binary(max_size=200))
@settings(max_examples=cases(200))
def test_bytes_that_are_no_header_are_malformed(data):
    try:
        found = header_of(data)
    except MalformedMessage:
        return
    assert header_bytes(found)


@pytest.mark.parametrize(
    "data",
    [
        PREFIX.pack(0, 0),
        PREFIX.pack(MOST_HEADER_BYTES + 1, 0),
        PREFIX.pack(1 << 31, 1 << 60),
        PREFIX.pack(5, 0) + b"\xc1\xc1\xc1\xc1\xc1",
        PREFIX.pack(len(header_bytes(HELLO)), 1 << 62) + header_bytes(HELLO),
        struct.pack("!B", 22) * 300,
    ],
)
def test_a_first_message_that_is_malformed_ends_its_connection(data, listening):
    here = listening.endpoint.here
    context = client_context(keys_of("d1"))
    with dialled(context, here.host, here.port)._tls as tls, contextlib.suppress(OSError):
        tls.sendall(data)
        tls.settimeout(30)
        assert tls.recv(1) == b""
    assert not listening.got


def test_a_sender_tells_that_its_peer_is_gone(listening):
    broken, messages = [], [Outgoing(RowsOf(1, k, 0), [np.zeros(1 << 20, np.uint8)]) for k in range(100)]
    Sender(
        "d0",
        lambda: listening.endpoint.dial(listening.endpoint.here, HELLO),
        lambda: messages.pop(0) if messages else None,
        broken.append,
    )
    wait_for(lambda: len(listening.got) == 101)
    assert not broken
    gone = socket.create_server((LOCAL, 0))
    port = gone.getsockname()[1]
    gone.close()
    Sender("d9", lambda: listening.endpoint.dial(Peer(LOCAL, port, "d9"), HELLO), lambda: messages, broken.append)
    wait_for(lambda: len(broken) == 1)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return branchy_model(tmp_path_factory.mktemp("model") / "branchy.onnx")


def served(model, tmp_path, disturb, frames=60):
    """A pipeline that `disturb(fleet, count, pipeline)` disturbs; every frame comes once, in order, as it should."""
    graph = load(model)
    plan, given = plan_pipeline(graph, THREE), frames_of(graph, frames)
    fleet, found = ThreadFleet(NAMES, tmp_path / "devices", delay_s=0.01), []
    with running(graph, plan, tmp_path, fleet=fleet) as pipeline:
        for outputs in pipeline.run(given):
            found.append(outputs)
            disturb(fleet, len(found), pipeline)
        report = pipeline.report()
    assert_same(found, unsplit(model, given))
    assert report.completed == frames
    return [event for event in report.events if event.kind not in ("slow", "recovered")]


def test_who_has_keys_and_is_not_of_the_run_changes_nothing(model, tmp_path):
    """Keys of a device: with another session, an earlier run, another's name, an own name a second time; then rows,
    results and credits of all kinds. Nothing is accepted, and nobody is blamed."""

    def disturb(fleet, count, pipeline):
        if count % 10 != 5:
            return
        run = pipeline._driver._run
        setup, number = run.setup, run.number
        attacker = Endpoint(keys_of("d1"), LOCAL, lambda *_: None)
        for name, peer in setup.peers.items():
            for hello in (
                Hello(VERSION, "another", number, "d1"),
                Hello(VERSION, setup.session, number - 1, "d1"),
                Hello(VERSION, setup.session, number + 1, "d1"),
                Hello(VERSION, setup.session, number, "d0"),
                Hello(VERSION, setup.session, number, ""),
                Hello(VERSION, setup.session, number, "nobody"),
                *([Hello(VERSION, setup.session, number, "d1")] if name == "" else []),  # it reports there already
            ):
                with contextlib.suppress(OSError):
                    connection = attacker.dial(peer, hello)
                    for task in (ENTER, RESULT, 0, 1, 2):
                        connection.send(RowsOf(number, count, task), [np.full(768, 7, np.uint8)])
                    connection.send(Credits(number, dict.fromkeys(range(20), 1 << 40)))
                    time.sleep(0.005)
                    connection.close()
        attacker.close()

    assert not served(model, tmp_path, disturb)


@contextlib.contextmanager
def at_rest(run, sender):
    """The thread that sends to a peer waits for its next message, and sends nothing meanwhile."""
    while True:
        with run._lock:
            if run._wakes["send", sender.peer]._waiters:
                yield
                return
        time.sleep(0.001)


def malformed(run, task, nbytes):
    """(header, bytes of the payload) of messages that no device sends. Where their bytes end can be told."""
    number = run.number
    return [
        (RowsOf(number, 1 << 40, task), nbytes),
        (RowsOf(number, 0, task), nbytes + 1),  # though frame 0 has come
        (RowsOf(number, 0, task), nbytes - 1),
        (RowsOf(number, 30, 10_000), nbytes),
        (RowsOf(number - 1, 0, task), nbytes),
        (Hello(VERSION, run.setup.session, number, "d1"), 7),
        (DeviceReport(number, [Done(0, task, 0.1, 0.1)]), 0),
        (Credits(number, {10_000: 5}), 1 << 17),
    ]


@pytest.mark.parametrize("what", ["malformed", "cut", "garbage"])
def test_malformed_messages_count_for_nothing_and_a_broken_connection_costs_frames_that_begin_again(
    what, model, tmp_path, caplog
):
    """On the connection of a device to another one, in the middle of a run. Where its messages can still be told apart
    the run goes on; else it begins again with the same plan."""
    sent = []

    def disturb(fleet, count, pipeline):
        if count != 20:
            return
        run = next(
            process.device.run
            for process in fleet.processes.values()
            if any(sender.peer and sender._connection for sender in process.device.run._senders)
        )
        sender = next(sender for sender in run._senders if sender.peer and sender._connection)
        task = next(task for task in run._program.sends if run._program.steps[task].peer == sender.peer)
        nbytes = sum(map(run._program.nbytes, run._program.sends[task]))
        caplog.clear()
        with at_rest(run, sender):
            connection = sender._connection
            if what == "cut":
                connection.end()
            elif what == "garbage":
                connection._tls.sendall(b"\xff" * 64)
            else:
                connection._tls.sendall(PREFIX.pack(5, 3) + b"\xc1\xc1\xc1\xc1\xc1" + b"abc")  # no header
                sent.extend(malformed(pipeline._driver._run, task, nbytes))
                for header, size in sent:
                    connection.send(header, [np.zeros(size, np.uint8)])

    events = served(model, tmp_path, disturb)
    lines = [record.getMessage() for record in caplog.records if "counts for nothing" in record.getMessage()]
    if what == "malformed":
        assert not events and len(lines) == 1 + len(sent) == 9
    else:
        assert [event.kind for event in events] == ["replanned"]
        assert events[0].detail.endswith("broke; the plan stays")


def test_what_no_device_reports_counts_for_nothing(model, tmp_path, caplog):
    """On the connection of a device to the driver: tasks of others, times that are none, peers that are none."""
    sent = []

    def disturb(fleet, count, pipeline):
        if count != 20:
            return
        runs = (process.device.run for process in fleet.processes.values())
        run = next(run for run in runs if not run._program.starts and run._program.computations)
        sender = next(sender for sender in run._senders if not sender.peer and sender._connection)
        own, number = min(run._program.computations), run.number
        others = set(range(len(pipeline._driver._run._plan.tasks))) - {*run._program.computations}
        other = min(others - {*run._program.receives})
        inside = range(60)
        caplog.clear()
        sent.extend(
            [
                DeviceReport(number, [Done(frame, ENTER, 0.1, 0.1) for frame in inside]),
                DeviceReport(number, [Done(frame, other, 0.1, 0.1) for frame in inside]),
                *(
                    DeviceReport(number, [Done(frame, own, seconds, ago_s) for frame in inside])
                    for seconds, ago_s in ((np.nan, 0.1), (np.inf, 0.1), (-1.0, 0.1), (1e300, 0.1), (0.1, np.nan))
                ),
                BrokenConnection(number, "nobody", "it is\nnot there"),
                Credits(number, {own: 5}),
                RowsOf(number, 0, own),
            ]
        )
        with at_rest(run, sender):
            for header in sent:
                sender._connection.send(header)

    assert not served(model, tmp_path, disturb, frames=35)
    lines = [record.getMessage() for record in caplog.records if "counts for nothing" in record.getMessage()]
    assert len(lines) == len(sent) == 10 and not any("\n" in line for line in lines)


def test_a_peer_that_sends_nothing_but_malformed_messages_is_cut_off(listening):
    """Its lines end, too."""
    from downset.distributed.wire.endpoint import Incoming

    incoming, ends = Incoming("session", 1, {"d1": Peer(LOCAL, 0, "d0")}), []
    listening.endpoint._accepted = lambda connection, hello: ends.append(incoming.read(connection, hello, taken.append))
    taken = []
    connection = listening.endpoint.dial(listening.endpoint.here, HELLO)
    with contextlib.suppress(OSError):
        for _ in range(200):
            connection.send(RowsOf(7, 0, 0), [np.zeros(3, np.uint8)])
    wait_for(lambda: ends)
    assert ends == ["it sent what it must not again and again"] and not taken
    connection.close()
