"""A service of frames: every frame is answered once and in order, whatever clients and networks do. The devices are
threads of this process; requests are written by hand here, as the published protocol has them."""

from __future__ import annotations

import asyncio
import asyncio.constants
import http.client
import json
import socket
import ssl
import threading
import time
import warnings
from contextlib import contextmanager, suppress

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from downset.distributed.keys import issue_keys, make_authority, open_keys
from downset.distributed.service import client as client_module
from downset.distributed.service.client import AsyncServiceClient, ServiceClient
from downset.distributed.service.protocol import (
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    most_request_bytes,
)
from downset.distributed.wire import connection as wire
from downset.distributed.wire.connection import client_context, dialled
from downset.distributed.wire.messages import VERSION, Hello
from downset.errors import DownsetError, LoadError, UnsupportedError, UsageError
from downset.formats.reading import load
from downset.pipelines.plan import plan_pipeline
from tests.distributed.test_serving_faults import NAMES, THREE, wait_for
from tests.distributed.thread_fleet import (
    LOCAL,
    ThreadFleet,
    assert_same,
    authority,
    frames_of,
    keys_of,
    running,
    unsplit,
)
from tests.effort import cases
from tests.models import branchy_model

pytest.importorskip("onnxruntime")
pytest.importorskip("aiohttp")
pytest.importorskip("prometheus_client")
from downset.distributed.service.server import Service, ServiceLimits

INFER = "/v2/models/net/infer"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return branchy_model(tmp_path_factory.mktemp("model") / "branchy.onnx")


@pytest.fixture(scope="module")
def graph(model):
    return load(model)


@pytest.fixture(scope="module")
def camera():
    return issue_keys(authority(), "camera", hosts=None)


class Served:
    def __init__(self, pipeline, service, fleet):
        self.pipeline, self.service, self.fleet = pipeline, service, fleet
        self.address = f"{LOCAL}:{service.port}"

    def ask(self, method="GET", path=INFER, body=b"", headers=None):
        """(status, body, headers) of one request on a connection of its own, in clear."""
        connection = http.client.HTTPConnection(LOCAL, self.service.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            return answer.status, answer.read(), dict(answer.getheaders())
        finally:
            connection.close()

    def infer(self, form, rest=b"", headers=None):
        text = json.dumps(form).encode()
        length = {"Inference-Header-Content-Length": str(len(text))} if rest else {}
        return self.ask("POST", INFER, text + rest, {**length, **(headers or {})})


@contextmanager
def serving(graph, folder, *, keys=None, limits=None, delay_s=0.0):
    plan = plan_pipeline(graph, THREE)
    fleet = ThreadFleet(NAMES, folder / "devices", delay_s=delay_s)
    with (
        running(graph, plan, folder, fleet=fleet) as pipeline,
        Service(pipeline, graph, "net", (LOCAL, 0), keys, limits) as service,
    ):
        yield Served(pipeline, service, fleet)


@pytest.fixture(scope="module")
def served(graph, tmp_path_factory):
    """One in clear, for all tests that do not disturb it."""
    with serving(graph, tmp_path_factory.mktemp("served")) as found:
        yield found


def tensor(frame, **more):
    array = frame["x"]
    return {"name": "x", "datatype": "FP32", "shape": list(array.shape), **more}


def test_frames_of_both_clients_come_once_and_in_order_while_a_device_dies(model, graph, camera, tmp_path):
    given = frames_of(graph, 60)
    expected = unsplit(model, given)
    with serving(graph, tmp_path, keys=keys_of("driver")) as served:

        async def live():
            async def frames():
                for frame in given[:30]:
                    await asyncio.sleep(0.002)
                    yield frame

            async with AsyncServiceClient(served.address, keys=camera, in_flight=6) as client:
                assert await client.ready()
                return [outputs async for outputs in client.run(frames())]

        found = []
        other = threading.Thread(target=lambda: found.extend(asyncio.run(live())))
        other.start()
        mine = []
        with ServiceClient(served.address, keys=camera) as client:
            for outputs in client.run(given[30:]):
                mine.append(outputs)
                if len(mine) == 10:
                    served.fleet.kill("d1")
        other.join(60)
        assert_same(found, expected[:30])
        assert_same(mine, expected[30:])
        assert served.pipeline.figures().completed == 60  # none was computed twice


def test_the_forms_of_the_protocol_have_one_answer(served, model, graph):
    (frame,) = frames_of(graph, 1, seed=7)
    frame["x"][0, 0, 0, :3] = 0.5, 1e-30, 3e30
    (expected,) = unsplit(model, [frame])
    data = frame["x"].tobytes()
    as_bytes = {"parameters": {"binary_data_output": True}}
    sized = tensor(frame, parameters={"binary_data_size": len(data)})
    answers = [
        served.infer({"inputs": [tensor(frame, data=frame["x"].tolist())]}),
        served.infer({"inputs": [tensor(frame, data=frame["x"].ravel().tolist())], **as_bytes}),
        served.infer({"id": "seven", "inputs": [sized]}, data),
        served.infer({"inputs": [sized], "outputs": [{"name": "flat", "parameters": {"binary_data": True}}]}, data),
        served.ask("POST", INFER, data, {"Inference-Header-Content-Length": "0"}),
    ]
    assert [status for status, _, _ in answers] == [200] * 5
    for _, body, headers in answers:
        length = int(headers.get("Inference-Header-Content-Length", len(body)))
        said, rest = json.loads(body[:length]), body[length:]
        assert said["model_name"] == "net"
        for one in said["outputs"]:
            wanted = expected[one["name"]]
            assert (one["datatype"], one["shape"]) == ("FP32", list(wanted.shape))
            if (size := one.get("parameters", {}).get("binary_data_size")) is not None:
                assert rest[:size] == wanted.tobytes()
                rest = rest[size:]
            else:
                assert np.array_equal(np.array(one["data"], np.float32).reshape(wanted.shape), wanted)
        assert not rest
    assert json.loads(answers[2][1])["id"] == "seven"
    assert len(json.loads(answers[3][1][: int(answers[3][2]["Inference-Header-Content-Length"])])["outputs"]) == 1


X = {"name": "x", "datatype": "FP32", "shape": [1, 3, 8, 8]}
REFUSED = {
    "no JSON": (b"{", {}, 400, "Open Inference Protocol"),
    "no object": (b"[]", {}, 400, "Open Inference Protocol"),
    "nested without an end": (b"[" * 60_000, {}, 400, "Open Inference Protocol"),
    "no inputs": ({"inputs": []}, {}, 400, "a frame has"),
    "another name": ({"inputs": [X | {"name": "y", "data": [0] * 192}]}, {}, 400, "the inputs are"),
    "twice": ({"inputs": [X | {"data": [0] * 192}] * 2}, {}, 400, "'x' is there twice"),
    "another shape": ({"inputs": [X | {"shape": [192], "data": [0] * 192}]}, {}, 400, "the frame has float32 [192]"),
    "too little": ({"inputs": [X | {"data": [0] * 191}]}, {}, 400, "its data is not float32 [1, 3, 8, 8]"),
    "ragged": ({"inputs": [X | {"data": [[0], [0, 1]]}]}, {}, 400, "its data is not"),
    "text": ({"inputs": [X | {"data": ["a"] * 192}]}, {}, 400, "its data is not"),
    "negative shape": ({"inputs": [X | {"shape": [-1, 3, 8, 8], "data": [0]}]}, {}, 400, "has the shape"),
    "a shape of no array": ({"inputs": [X | {"shape": [0] * 70, "data": []}]}, {}, 400, "its data is not"),
    "a number of no float32": ({"inputs": [X | {"data": [1e39] * 192}]}, {}, 400, "its data is not float32"),
    "an endless timeout": (
        {"inputs": [X | {"data": [0] * 192}], "parameters": {"timeout": 10**400}},
        {},
        400,
        "from 1",
    ),
    "unknown type": ({"inputs": [X | {"datatype": "BYTES", "data": ["a"]}]}, {}, 400, "one of BOOL"),
    "another type": ({"inputs": [X | {"datatype": "FP64", "data": [0] * 192}]}, {}, 400, "the frame has float64"),
    "no such output": ({"inputs": [X | {"data": [0] * 192}], "outputs": [{"name": "z"}]}, {}, 400, "no output 'z'"),
    "a timeout of 0": ({"inputs": [X | {"data": [0] * 192}], "parameters": {"timeout": 0}}, {}, 400, "microseconds"),
    "bytes of another size": (b"\0" * 5, {"Inference-Header-Content-Length": "0"}, 400, "has 768 bytes, and 5 came"),
    "a length that is no number": (b"{}", {"Inference-Header-Content-Length": "-1"}, 400, "a number of bytes"),
    "a long key": (b"{}", {"Idempotency-Key": "k" * 200}, 400, "at most 128 characters"),
    "oversized": (b" " * 200_000, {}, 413, "at most"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_bad_request_is_one_line_and_disturbs_nothing(case, served, model, graph, caplog):
    content, headers, status, said = REFUSED[case]
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    before = served.pipeline.figures().frames
    caplog.clear()
    found, answer, _ = served.ask("POST", INFER, body, headers)
    assert found == status
    reason = json.loads(answer)["error"]
    assert said in reason and "\n" not in reason and len(reason) < 700
    assert [record.levelname for record in caplog.records if record.name == "downset.service"] == ["WARNING"]
    assert served.pipeline.figures().frames == before
    (frame,) = frames_of(graph, 1)
    with ServiceClient(served.address) as client:
        assert_same([client.infer(frame)], unsplit(model, [frame]))


def test_nan_is_accepted_and_comes_back_as_bytes(served, graph, model):
    (frame,) = frames_of(graph, 1)
    frame["x"][0, 1, 2, 3] = np.nan
    with ServiceClient(served.address) as client:
        found = client.infer(frame)
    (expected,) = unsplit(model, [frame])
    assert any(np.isnan(array).any() for array in expected.values())
    for name, array in expected.items():
        assert np.array_equal(found[name], array, equal_nan=True)
    data = frame["x"].tobytes()
    sized = tensor(frame, parameters={"binary_data_size": len(data)})
    status, answer, _ = served.infer({"inputs": [sized]}, data)
    assert status == 406 and "ask for binary_data" in json.loads(answer)["error"]


def test_a_key_is_computed_once_and_holds_one_frame(served, graph, model):
    one, other = frames_of(graph, 2, seed=3)
    (expected,) = unsplit(model, [one])
    before = served.pipeline.figures().frames
    headers = {"Inference-Header-Content-Length": "0", "Idempotency-Key": "frame-1"}
    answers = []
    repeats = [
        threading.Thread(target=lambda: answers.append(served.ask("POST", INFER, one["x"].tobytes(), headers)))
        for _ in range(6)
    ]
    for thread in repeats:
        thread.start()
    for thread in repeats:
        thread.join()
    answers.append(served.ask("POST", INFER, one["x"].tobytes(), headers))
    assert served.pipeline.figures().frames == before + 1
    for status, body, more in answers:
        assert status == 200
        found = decode_response(body, int(more["Inference-Header-Content-Length"]))
        assert_same([found], [expected])
    status, answer, _ = served.ask("POST", INFER, other["x"].tobytes(), headers)
    assert status == 400 and "another frame was sent under the key" in json.loads(answer)["error"]


class Cutting:
    """A network between clients and a service that cuts connections after random numbers of bytes, both ways."""

    def __init__(self, port, seed):
        self._port, self._drawn = port, np.random.default_rng(seed)
        self._listener = socket.create_server((LOCAL, 0))
        self.port, self.cuts = self._listener.getsockname()[1], 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection((LOCAL, self._port))
                for a, b in ((near, far), (far, near)):
                    left = int(self._drawn.integers(500, 12_000))
                    threading.Thread(target=self._pass, args=(a, b, left), daemon=True).start()

    def _pass(self, source, target, left):
        with suppress(OSError):
            while left > 0 and (data := source.recv(min(left, 4096))):
                target.sendall(data)
                left -= len(data)
            self.cuts += left <= 0
            for end in (source, target):
                end.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listener.close()


def test_no_frame_is_lost_or_computed_twice_where_connections_break(served, graph, model):
    given = frames_of(graph, 40, seed=11)
    before = served.pipeline.figures().frames
    network = Cutting(served.service.port, seed=5)
    try:
        with ServiceClient(f"{LOCAL}:{network.port}", in_flight=3) as client:
            found = list(client.run(given))
    finally:
        network.close()
    assert_same(found, unsplit(model, given))
    assert network.cuts > 5
    assert served.pipeline.figures().frames == before + 40


def test_frames_of_many_threads_have_keys_of_their_own(monkeypatch):
    """Threads change places at every line of the client here, as they may at any time."""
    seen = []

    def persistent(method, path, body=b"", headers=None):
        seen.append(headers["Idempotency-Key"])
        return 200, b'{"outputs": []}', None

    def at_a_line(frame, event, argument):
        if frame.f_code.co_filename != client_module.__file__:
            return None
        time.sleep(1e-4)
        return at_a_line

    with ServiceClient(f"{LOCAL}:1", in_flight=4) as client:
        monkeypatch.setattr(client, "_model", {"inputs": []})
        monkeypatch.setattr(client, "_persistent", persistent)
        before = threading.gettrace()
        threading.settrace(at_a_line)
        try:
            for answer in [client.submit({}) for _ in range(40)]:
                assert answer.result(60) == {}
        finally:
            threading.settrace(before)
    assert len(set(seen)) == 40


class Echoes:
    """A pipeline whose results are large: `gate` holds them back."""

    def __init__(self, graph, nbytes):
        self.names = [graph.tensors[t].name for t in graph.outputs]
        self.large = np.zeros(nbytes // 4, np.float32)
        self.waiting, self.changed, self.over = [], threading.Condition(), False
        self.gate = threading.Event()
        self.gate.set()
        self.taken = []

    def inputs_of(self, frame):
        return frame

    def submit(self, frame):
        with self.changed:
            self.taken.append(float(frame["x"].flat[0]))
            self.waiting.append(frame)
            self.changed.notify_all()
        return 0

    def results(self, *, wait):
        while True:
            with self.changed:
                while not self.waiting and not self.over:
                    self.changed.wait(0.1)
                if not self.waiting:
                    return
                frame = self.waiting.pop(0)
            self.gate.wait(60)
            marked = self.large.copy()
            marked[0] = frame["x"].flat[0]
            yield dict.fromkeys(self.names, marked)

    def finish(self):
        with self.changed:
            self.over = True
            self.changed.notify_all()

    def figures(self):
        raise NotImplementedError


@contextmanager
def echoing(graph, nbytes, limits, *, keys=None):
    pipeline = Echoes(graph, nbytes)
    with Service(pipeline, graph, "net", (LOCAL, 0), keys, limits) as service:
        yield Served(pipeline, service, None)


def marked(number):
    return np.full((1, 3, 8, 8), number, np.float32)


@pytest.mark.parametrize(("nbytes", "holds"), [(6 << 20, True), (80 << 10, True), (30 << 10, False)])
def test_a_client_that_stops_reading_loses_nothing_and_keeps_nobody_waiting(nbytes, holds, graph, camera, monkeypatch):
    """Its answers are larger than all buffers between both ends, which `holds` their places, or than the kernel's. It
    pauses longer than the kernel keeps a connection whose bytes nobody acknowledges, and asyncio one that closes."""
    monkeypatch.setattr(wire, "_UNACKNOWLEDGED_MS", 200)
    monkeypatch.setattr(asyncio.constants, "SSL_SHUTDOWN_TIMEOUT", 0.2)
    limits, paused = ServiceLimits(queue=4, of_a_client=3), []
    with echoing(graph, nbytes, limits, keys=keys_of("driver")) as served:
        if nbytes < 1 << 20:
            served.service._listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        for number in range(3):
            plain = socket.socket()
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            plain.connect((LOCAL, served.service.port))
            tls = client_context(open_keys(camera, token=False)).wrap_socket(plain, server_hostname=LOCAL)
            head = f"POST {INFER} HTTP/1.1\r\nHost: x\r\nInference-Header-Content-Length: 0\r\nContent-Length: 768\r\n"
            tls.sendall(head.encode() + b"Connection: close\r\n\r\n" + marked(number).tobytes())
            paused.append(tls)
        wait_for(lambda: len(served.pipeline.taken) == 3)
        wait_for(lambda: served.service._admission.inside == 0)
        with ServiceClient(served.address, keys=camera) as same:
            status, answer, _ = same._ask("POST", INFER, b"{}")
            assert status == (503 if holds else 400)
            assert not holds or "3 requests of this client are open" in json.loads(answer)["error"]
        with ServiceClient(served.address, keys=keys_of("d0").folder, in_flight=3) as client:
            found = [outputs["flat"][0] for outputs in client.run(marked(10 + k) for k in range(4))]
        assert found == [10, 11, 12, 13]
        time.sleep(1.0)
        for number, connection in enumerate(paused):
            connection.settimeout(30)
            data = b"".join(iter(lambda c=connection: c.recv(1 << 20), b""))
            head, _, body = data.partition(b"\r\n\r\n")
            length = int(head.lower().split(b"inference-header-content-length: ")[1].split(b"\r\n")[0])
            assert decode_response(body, length)["flat"][0] == number
            connection.close()


def test_a_full_queue_is_told_and_a_client_tries_again(graph):
    limits = ServiceLimits(queue=2, of_a_client=16)
    with echoing(graph, 4096, limits) as served:
        served.pipeline.gate.clear()
        served.service._admission._pipeline.submit = slow = Slow(served.pipeline)
        with ServiceClient(served.address, in_flight=8) as client:
            answers = [client.submit(marked(k)) for k in range(8)]
            wait_for(lambda: served.service._admission.waiting == 2)
            status, answer, headers = served.ask(
                "POST", INFER, marked(99).tobytes(), {"Inference-Header-Content-Length": "0"}
            )
            assert status == 503 and headers["Retry-After"] == "1" and "queue" in json.loads(answer)["error"]
            slow.gate.set()
            served.pipeline.gate.set()
            assert [answer.result(60)["flat"][0] for answer in answers] == list(range(8))
        assert sorted(served.pipeline.taken) == list(range(8))


class Slow:
    """A pipeline that has no room for more frames, until the gate opens."""

    def __init__(self, pipeline):
        self.gate, self._submit = threading.Event(), type(pipeline).submit.__get__(pipeline)

    def __call__(self, frame):
        self.gate.wait(60)
        return self._submit(frame)


def test_a_frame_whose_deadline_passes_in_the_queue_is_not_computed(graph):
    with echoing(graph, 4096, ServiceLimits()) as served:
        served.service._admission._pipeline.submit = slow = Slow(served.pipeline)
        first = threading.Thread(target=lambda: served.infer(asking(1, 60)))
        first.start()
        wait_for(lambda: served.service._admission.inside == 1)
        status, answer, _ = served.infer(asking(2, 0.05))
        assert status == 504 and "deadline" in json.loads(answer)["error"]
        slow.gate.set()
        first.join()
        assert served.infer(asking(3, 60))[0] == 200
        assert served.pipeline.taken == [1, 3]


def asking(number, timeout_s):
    data = marked(number).ravel().tolist()
    return {"inputs": [X | {"data": data}], "parameters": {"timeout": round(timeout_s * 1e6)}}


def test_a_body_that_does_not_come_holds_its_place_for_a_time_only(graph):
    with echoing(graph, 4096, ServiceLimits(queue=1, body_s=0.3)) as served:
        with socket.create_connection((LOCAL, served.service.port)) as idle:
            idle.sendall(f"POST {INFER} HTTP/1.1\r\nHost: x\r\nContent-Length: 768\r\n\r\n".encode())
            idle.settimeout(60)
            assert b" 408 " in idle.recv(4096)
        with ServiceClient(served.address) as client:
            assert client.infer(marked(5))["flat"][0] == 5


def test_what_was_taken_is_answered_when_the_service_ends(graph):
    with echoing(graph, 4096, ServiceLimits()) as served:
        served.pipeline.gate.clear()
        with ServiceClient(served.address, in_flight=4, timeout_s=30) as client:
            answers = [client.submit(marked(k)) for k in range(4)]
            wait_for(lambda: len(served.pipeline.taken) == 4)
            closes = threading.Thread(target=served.service.close)
            closes.start()
            wait_for(lambda: served.ask(path="/v2/health/ready")[0] == 503)
            time.sleep(0.8)
            assert served.ask(path="/v2/health/live")[0] == 200
            served.pipeline.gate.set()
            assert [answer.result(30)["flat"][0] for answer in answers] == [0, 1, 2, 3]
            closes.join()
    with (
        ServiceClient(served.address, timeout_s=0.3) as client,
        pytest.raises(UnsupportedError, match="no answer"),
    ):
        client.infer(marked(1))


def test_a_pipeline_that_ends_is_told(graph, tmp_path):
    with pytest.raises(DownsetError, match="no plan is left"), serving(graph, tmp_path) as served:
        with ServiceClient(served.address, timeout_s=60) as client:
            client.infer(frames_of(graph, 1)[0])
            assert client.ready()
        for name in NAMES:
            served.fleet.names.discard(name)
        for name in NAMES:
            served.fleet.kill(name)
        wait_for(lambda: served.ask(path="/v2/health/ready")[0] == 503)
        with ServiceClient(served.address, timeout_s=0.2) as client, pytest.raises(UnsupportedError, match="no plan"):
            client.infer(frames_of(graph, 1)[0])
        served.service.wait()


def test_metrics_count_what_happened(graph, tmp_path):
    from prometheus_client.parser import text_string_to_metric_families

    with serving(graph, tmp_path) as served, ServiceClient(served.address) as client:
        list(client.run(frames_of(graph, 7)))
        served.ask("POST", INFER, b"{")
        wait_for(lambda: served.pipeline.figures().devices[0].computing)  # devices report behind their results
        status, text, headers = served.ask(path="/metrics")
    assert status == 200 and headers["Content-Type"].startswith("text/plain")
    found = {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
    }
    assert found["downset_frames_total",] == 7
    assert found["downset_requests_total", ("status", "200")] == 7
    assert found["downset_requests_total", ("status", "400")] == 1
    assert found["downset_request_seconds_count",] == 7
    assert found["downset_queue_frames",] == 0 == found["downset_inside_frames",]
    assert found["downset_device_share", ("device", "d0"), ("work", "computing")] > 0
    assert found["downset_events_total", ("kind", "lost")] == 0


def test_who_has_no_keys_of_ours_is_refused(graph, camera, tmp_path):
    theirs = issue_keys(make_authority(tmp_path / "theirs"), "camera", hosts=None)
    with serving(graph, tmp_path, keys=keys_of("driver")) as served:
        for keys in (theirs, None):
            client = ServiceClient(served.address, keys=keys, timeout_s=0.3)
            with client, pytest.raises((UsageError, UnsupportedError)):
                client.model()
        bare = ssl.create_default_context(cafile=camera / "authority.crt")
        with (
            pytest.raises(OSError),
            socket.create_connection((LOCAL, served.service.port)) as plain,
            bare.wrap_socket(plain, server_hostname=LOCAL) as tls,
        ):
            tls.sendall(b"GET /v2/health/live HTTP/1.1\r\nHost: x\r\n\r\n")
            assert not tls.recv(1)
            raise ConnectionResetError
        with ServiceClient(served.address, keys=camera) as client:
            assert client.ready()


def test_keys_of_a_client_open_no_cluster(camera, graph, tmp_path):
    """It has no token, nobody takes it for a server, and devices take no frame from it."""
    assert not (camera / "token").exists()
    with pytest.raises(LoadError, match=r"cannot read .*token: no such file; keys of a client"):
        open_keys(camera)
    keys = open_keys(camera, token=False)
    assert keys.hosts == ()
    with serving(graph, tmp_path) as served:
        here = served.fleet.processes["d0"].device._endpoint.here
        connection = dialled(client_context(keys), here.host, here.port)
        connection.send(Hello(VERSION, "session", 1, ""))
        connection._tls.settimeout(60)
        with pytest.raises((EOFError, OSError)):
            connection.receive_header()
        with ServiceClient(served.address) as client:
            assert client.infer(frames_of(graph, 1)[0])
        assert not served.pipeline.figures().events


def test_a_port_in_use_is_one_line(graph, served):
    with pytest.raises(UsageError, match="another program may listen there"):
        Service(Echoes(graph, 4), graph, "net", (LOCAL, served.service.port), None)


NUMBERS = st.sampled_from(["bool", "int8", "uint16", "int64", "uint64", "float16", "float32", "float64"])


@given(st.data())
@settings(max_examples=cases(25), deadline=None)
def test_arrays_travel_unchanged(data):
    """As requests and as answers; with bytes bit for bit, as JSON in value."""

    class Known:
        inputs, outputs, tensors = (), (), ()

    dtype = np.dtype(data.draw(NUMBERS))
    array = data.draw(arrays.arrays(dtype, arrays.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)))
    body, headers = encode_request({"a": array}, 1.0)
    asked = decode_request(body, int(headers["Inference-Header-Content-Length"]), Known)
    assert asked.timeout_s == 1.0
    back = asked.inputs["a"]
    assert (back.dtype, back.shape, back.tobytes()) == (array.dtype, array.shape, array.tobytes())
    wanted = type(asked)("", {}, (("a", data.draw(st.booleans())),), None)
    try:
        body, headers = encode_response("net", wanted, {"a": array})
    except UsageError:
        assert not np.isfinite(array).all()
        return
    length = headers.get("Inference-Header-Content-Length")
    again = decode_response(body, None if length is None else int(length))["a"]
    assert again.dtype == array.dtype and np.array_equal(again, array, equal_nan=array.dtype.kind == "f")


@given(st.binary(max_size=300), st.one_of(st.none(), st.integers(0, 300)))
@settings(max_examples=cases(200), deadline=None)
def test_any_bytes_are_a_request_or_one_line(graph, body, length):
    with suppress(UsageError):
        decode_request(body, length, graph)
    assert most_request_bytes(graph) > len(body)


@given(
    st.one_of(
        st.lists(st.sampled_from([-1, 0, 1, 2, 2**62, 10**20]), max_size=3),
        st.lists(st.sampled_from([0, 1]), min_size=63, max_size=66),
    ),
    st.sampled_from(["FP32", "FP16", "INT8", "UINT64", "BOOL"]),
    st.sampled_from([None, None, 0, 4]),
    st.lists(st.sampled_from([0, 1, -1, 1.5, 300, 1e6, 1e39, 1e300, 2**63, 10**400, True, None, [1]]), max_size=2),
    st.sampled_from([1, 10**15, 10**16, 10**400, 0, -5]),
)
@settings(max_examples=cases(300), deadline=None)
def test_any_tensor_is_of_the_values_that_it_names_or_one_line(graph, shape, datatype, nbytes, values, timeout):
    """The numbers of an accepted tensor are those that came; every refusal is an error of ours, without a warning."""
    tensor = {"name": "x", "datatype": datatype, "shape": shape, "data": values}
    if nbytes is not None:
        tensor["parameters"] = {"binary_data_size": nbytes}
    head = json.dumps({"inputs": [tensor], "parameters": {"timeout": timeout}}).encode()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            asked = decode_request(head + bytes(nbytes or 0), len(head), graph)
        except UsageError:
            return
    array = asked.inputs["x"]
    assert list(array.shape) == shape and 0 < asked.timeout_s < np.inf
    wanted = np.array(values if nbytes is None else [0] * array.size, np.float64).reshape(-1)
    assert np.allclose(array.reshape(-1).astype(np.float64), wanted, rtol=1e-3, atol=1e-7)


def test_results_wait_for_live_frames(model, graph, tmp_path):
    """`results(wait=True)` outlives a pause without frames, and ends with `finish`."""
    given = frames_of(graph, 12)
    with running(graph, plan_pipeline(graph, THREE), tmp_path) as pipeline:
        assert list(pipeline.results()) == []
        found = []
        reads = threading.Thread(target=lambda: found.extend(pipeline.results(wait=True)))
        reads.start()
        for number, frame in enumerate(given):
            if number == 6:
                wait_for(lambda: len(found) == 6)
                time.sleep(0.1)
                assert reads.is_alive()
            pipeline.submit(frame)
        pipeline.finish()
        reads.join(60)
        assert not reads.is_alive()
        assert_same(found, unsplit(model, given))
        with pytest.raises(UsageError, match="after `finish`"):
            pipeline.submit(given[0])
