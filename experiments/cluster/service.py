"""A service in network namespaces, made by the commands of the guide: workers, a driver that listens, and cameras.

    python -m experiments.cluster.service [--quick]      # needs root; --quick: four devices, less than a minute

Frames of YOLOv8n, then of a ViT, come at a camera's pace from one client, ten minutes each; another one stops reading
for most of the time. The process of one device is killed, and the link of another one is cut for some seconds. Every
frame has its own content; each result is compared with ONNX Runtime's, in its place. Half an hour in all.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

import downset as ds
from downset.distributed.keys import open_keys
from downset.distributed.service.protocol import decode_response, encode_request
from downset.distributed.wire.connection import client_context
from experiments.cluster.frame_cost import vision_transformer
from experiments.frame import Experiment, names_of
from experiments.rows import Row
from experiments.testbed.bed import Bed, open_bed
from experiments.testbed.driven import error_in_a_line, run
from zoo import ZOO

_NETWORKS: dict[str, Callable[[Path], None]] = {
    "yolov8n": lambda path: onnx.save(ZOO["yolov8n"](image=_IMAGE), str(path)),
    "vit": vision_transformer,
}
_ROOT = Path(__file__).resolve().parents[2]
_IMAGE = 96
_RATE_MBPS = 50.0
_STARTS_S = 300.0
_PAUSED = 6
_CUT_S = 15.0


def rows(options: Namespace) -> Iterator[Row]:
    devices, seconds, pace_s = (4, 30.0, 0.2) if options.quick else (options.devices, 60.0 * options.minutes, 0.2)
    for network in options.networks:
        with error_in_a_line(), tempfile.TemporaryDirectory() as folder:
            _NETWORKS[network](Path(folder) / "net.onnx")
            row = served(devices, seconds, pace_s, Path(folder))
        yield {"network": network, **row, "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())}


def served(devices: int, seconds: float, pace_s: float, folder: Path) -> Row:
    """Device k is in namespace k + 1; the driver is in the first, the cameras in the last one."""
    names = [f"d{number}" for number in range(devices)]
    text = [f'[network]\nkind = "links"\nrate_mbps = {_RATE_MBPS:g}\n']
    text += [f'[[device]]\nname = "{name}"\nmac_per_s = 3e8\n' for name in names]
    (folder / "home.toml").write_text("\n".join(text))
    with open_bed([1.0] * (devices + 2), rate_mbps=_RATE_MBPS, medium="links") as bed:
        driver = bed.address(0)
        keys(folder, ["init"])
        keys(folder, ["issue", "driver", "--host", driver])
        for number, name in enumerate(names, 1):
            keys(folder, ["issue", name, "--host", bed.address(number)])
        for name in ("camera", "slow"):
            keys(folder, ["issue", name, "--client"])
        begun_s = time.monotonic()
        workers = [
            start(bed, number, folder, name, ["worker", "--head", f"{driver}:6379", "--name", name, "--keys",
                  f"downset-keys/{name}", "--shards", f"shards-{name}", "--object-store", "80MB", "--threads", "1"])
            for number, name in enumerate(names, 1)
        ]  # fmt: skip
        service = start(bed, 0, folder, "serve", ["serve", "net.onnx", "--cluster", "home.toml", "--head",
                        f"{driver}:6379", "--listen", f"{driver}:8443", "--keys", "downset-keys/driver",
                        "--log-json", "--wait", f"{_STARTS_S:g}s", "--threads", "1"])  # fmt: skip
        wait_until(folder, "listening at", service)
        started_s = time.monotonic() - begun_s
        orders = {"address": f"{driver}:8443", "seconds": seconds, "pace_s": pace_s, "folder": str(folder)}
        (folder / "orders.json").write_text(json.dumps(orders))
        with (folder / "camera.log").open("wb") as log:
            command = [sys.executable, "-m", "experiments.cluster.service", str(folder / "orders.json")]
            camera = bed.start(devices + 1, command, env={**os.environ, "PYTHONPATH": path()}, output=log)
        faults = disturb(bed, names, seconds)
        camera.wait(seconds + 300.0)
        if camera.returncode:
            raise SystemExit((folder / "camera.log").read_text()[-3000:])
        os.kill(service.pid, signal.SIGINT)
        code = service.wait(90.0)
        for worker in workers:
            os.kill(worker.pid, signal.SIGTERM)
        for worker in workers:
            worker.wait(60.0)
        left = sum(len(bed.processes(number)) for number in range(devices + 2))
        said = [json.loads(line) for line in (folder / "serve.log").read_text().splitlines() if line.startswith("{")]
        lines = [
            line["message"] for line in said if "lost" in line["message"] or "counts for nothing" in line["message"]
        ]
    row = json.loads((folder / "row.json").read_text())
    measured = {"started_s": round(started_s, 1), "exit_code": code, "processes_left": left, "said": lines}
    return {"devices": devices, "faults": faults, **row, **measured, "load": round(os.getloadavg()[0], 1)}


def path() -> str:
    return os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH", "")]))


def keys(folder: Path, words: Sequence[str]) -> None:
    subprocess.run([sys.executable, "-m", "downset", "keys", *words], cwd=folder, check=True, capture_output=True)


def start(bed: Bed, device: int, folder: Path, name: str, words: Sequence[str]) -> subprocess.Popen[bytes]:
    """A command of the guide on a machine of the bed; what it says goes to NAME.log."""
    script = 'cd "$0" && exec "$@"'
    with (folder / f"{name}.log").open("wb") as log:
        command = ["/bin/sh", "-c", script, str(folder), sys.executable, "-m", "downset", *words]
        return bed.start(device, command, output=log)


def wait_until(folder: Path, said: str, service: subprocess.Popen[bytes]) -> None:
    until = time.monotonic() + _STARTS_S
    while said not in (text := (folder / "serve.log").read_text()):
        if time.monotonic() > until or service.poll() is not None:
            raise SystemExit(f"the service did not start: {text[-2000:]}")
        time.sleep(0.5)


def disturb(bed: Bed, names: Sequence[str], seconds: float) -> list[str]:
    """Kill a process of a device after a third of the time, and cut the link of another one after the second."""
    time.sleep(seconds / 3)
    faults = []
    for process in bed.processes(2):
        if Path(f"/proc/{process}/cmdline").read_bytes().startswith(b"ray::RayDevice"):
            os.kill(process, signal.SIGKILL)
            faults.append(f"{names[1]} killed")
    time.sleep(seconds / 3)
    bed.cut(3)
    time.sleep(min(_CUT_S, seconds / 6))
    bed.cut(3, off=False)
    return [*faults, f"{names[2]} cut off"]


# In the last namespace.


def cameras(orders: dict[str, Any]) -> None:
    """Both clients; the row of what they saw goes into the folder. Raises AssertionError for a wrong result."""
    folder, address = Path(orders["folder"]), orders["address"]
    camera = folder / "downset-keys/camera"
    with ds.ServiceClient(address, keys=camera, in_flight=8, timeout_s=120.0) as client:
        (tensor,) = client.model()["inputs"]
        slow = threading.Thread(target=lambda: late.update(paused(orders, tensor)))
        late: dict[str, float] = {}
        slow.start()
        sent_s: list[float] = []
        took_s: list[float] = []
        count, largest = 0, 0.0
        session = onnxruntime.InferenceSession(str(folder / "net.onnx"), one_thread())
        for outputs in client.run(paced(tensor, orders, sent_s)):
            took_s.append(time.monotonic() - sent_s[count])
            largest = max(largest, difference(session, frame_of(tensor, count), outputs))
            count += 1
        slow.join()
    assert count == len(sent_s), f"{len(sent_s) - count} frames are missing"
    text = metrics(address, camera)
    refused = [value for name, value in text.items() if name.startswith('downset_requests_total{status="5')]
    took_s.sort()
    row = {
        "frames": count,
        "paused_client_frames": late["frames"],
        "largest_difference": max(largest, late["difference"]),
        "latency_s": [round(took_s[int(part * (count - 1))], 3) for part in (0.5, 0.99, 1)],
        **{kind: int(text[f'downset_events_total{{kind="{kind}"}}']) for kind in ("lost", "back", "replanned")},
        "replayed": int(text["downset_frames_replayed_total"]),
        "computed": int(text["downset_frames_total"]),
        "refused": int(sum(refused)),
        "device_mb": round(max(value for name, value in text.items() if "memory_bytes" in name) / 1e6),
    }  # fmt: skip
    (folder / "row.json").write_text(json.dumps(row))


def paced(tensor: dict[str, Any], orders: dict[str, Any], sent_s: list[float]) -> Iterator[np.ndarray]:
    begun_s = time.monotonic()
    while (due_s := begun_s + len(sent_s) * orders["pace_s"]) < begun_s + orders["seconds"]:
        time.sleep(max(0.0, due_s - time.monotonic()))
        sent_s.append(time.monotonic())
        yield frame_of(tensor, len(sent_s) - 1)


def frame_of(tensor: dict[str, Any], number: int) -> np.ndarray:
    return np.random.default_rng(number).standard_normal(tensor["shape"]).astype(np.float32)


def paused(orders: dict[str, Any], tensor: dict[str, Any]) -> dict[str, float]:
    """A client that sends frames, and reads its answers when most of the time is over."""
    folder = Path(orders["folder"])
    host, _, port = orders["address"].rpartition(":")
    context: ssl.SSLContext = client_context(open_keys(folder / "downset-keys/slow", token=False))
    connections = []
    for number in range(_PAUSED):
        body, headers = encode_request({tensor["name"]: frame_of(tensor, 10**6 + number)}, 300.0)
        head = [
            f"POST /v2/models/net/infer HTTP/1.1\r\nHost: {host}\r\nContent-Length: {len(body)}\r\nConnection: close"
        ]
        head += [f"{name}: {value}" for name, value in headers.items()]
        plain = socket.create_connection((host, int(port)))
        connections.append(context.wrap_socket(plain, server_hostname=host))
        connections[-1].sendall("\r\n".join(head).encode() + b"\r\n\r\n" + body)
    time.sleep(0.8 * orders["seconds"])
    session, largest = onnxruntime.InferenceSession(str(folder / "net.onnx"), one_thread()), 0.0
    for number, connection in enumerate(connections):
        head_bytes, _, body = b"".join(iter(lambda c=connection: c.recv(1 << 16), b"")).partition(b"\r\n\r\n")
        fields = dict(line.lower().split(": ", 1) for line in head_bytes.decode().split("\r\n")[1:])
        assert head_bytes.startswith(b"HTTP/1.1 200"), head_bytes
        outputs = decode_response(body, int(fields["inference-header-content-length"]))
        largest = max(largest, difference(session, frame_of(tensor, 10**6 + number), outputs))
    return {"frames": len(connections), "difference": largest}


def difference(session: Any, frame: np.ndarray, outputs: dict[str, Any]) -> float:
    """The largest difference from ONNX Runtime's results, relative to their largest value."""
    names = [output.name for output in session.get_outputs()]
    expected = session.run(names, {session.get_inputs()[0].name: frame})
    largest = 0.0
    for name, array in zip(names, expected, strict=True):
        np.testing.assert_allclose(outputs[name], array, rtol=1e-3, atol=1e-4 * float(np.abs(array).max()))
        largest = max(largest, float(np.abs(outputs[name] - array).max() / np.abs(array).max()))
    return largest


def one_thread() -> Any:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    return options


def metrics(address: str, camera: Path) -> dict[str, float]:
    context = client_context(open_keys(camera, token=False))
    with urllib.request.urlopen(f"https://{address}/metrics", context=context) as answer:
        lines = [line for line in answer.read().decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


EXPERIMENT = Experiment(
    "cluster_service",
    rows,
    key=("network", "devices"),
    quick="four devices, half a minute; nothing written",
    options={
        "--networks": {"type": names_of(_NETWORKS), "default": list(_NETWORKS), "help": "one after the other"},
        "--devices": {"type": int, "default": 8, "help": "how many"},
        "--minutes": {"type": float, "default": 10.0, "help": "how long frames come"},
    },
    lines=lambda row, mark: [
        f"{row['network']} on {row['devices']} devices{mark}",
        *(f"    {name:22} {value}" for name, value in row.items()),
    ],
)


if __name__ == "__main__":
    run(EXPERIMENT, cameras)
