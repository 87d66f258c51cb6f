"""Each command in a way that succeeds, and in ways that fail, on small files."""

import numpy as np

from tests.cluster_toml import cluster_toml
from tests.command import output_of
from tests.models import branchy_model

RECORDS = "id,lower,upper,size\na,0,2,100\nb,1,3,50\nc,2,4,100\n"
CLUSTER = cluster_toml({"fast": 2e9, "slow": 1e9})
STAGE = ("--threads", "1", "--budget-timings", "1", "--no-profiles")

SUCCEEDS = {
    "fit": ("fit", "m.onnx", "--time-limit", "1s", "-q"),
    "inspect": ("inspect", "m.onnx"),
    "verify": ("verify", "m.onnx", "m.onnx"),
    "order": ("order", "m.onnx"),
    "arena": ("arena", "records.csv"),
    "split": ("split", "m.onnx", "--cluster", "home.toml", "-q"),
    "simulate": ("simulate", "pipeline.json", "--frames", "20"),
    "serve": ("serve", "m.onnx", "--cluster", "home.toml", "--input", "frames.npy", "-o", "served.npz", "-q"),
    "worker": ("worker", "--head", "127.0.0.1:9", "--name", "d0", "--keys", "mine/d0", "--wait", "1ms", "-q"),
    "stage": ("stage", "m.onnx", *STAGE, "-q"),
    "run": ("run", "m.onnx", "--plan", "stages.json", "--runs", "1", "--check"),
    "profiles": ("profiles", "list"),
    "keys": ("keys", "init", "--authority", "authority"),
    "profile-cluster": ("profile-cluster", "--devices", "d0,d1", "--local", "--probe-time", "1ms", "-q"),
    "doctor": ("doctor",),
}
FAILS = [
    ("fit", "infeasible", 3, ("fit", "m.onnx", "--arena", "1", "--time-limit", "1s")),
    ("fit", "usage", 2, ("fit", "m.onnx", "--ram", "plenty")),
    ("fit", "usage", 2, ("fit",)),
    ("inspect", "load", 5, ("inspect", "none.onnx")),
    ("inspect", "usage", 2, ("inspect", "m.onnx", "--colour")),
    ("verify", "invalid", 4, ("verify", "m.onnx", "other.onnx")),
    ("verify", "load", 5, ("verify", "home.toml", "home.toml")),
    ("order", "usage", 2, ("order", "m.onnx", "--method", "magic")),
    ("arena", "infeasible", 3, ("arena", "records.csv", "--capacity", "10")),
    ("split", "load", 5, ("split", "m.onnx", "--cluster", "none.toml")),
    ("simulate", "usage", 2, ("simulate", "stages.json")),
    ("serve", "usage", 2, ("serve", "m.onnx", "--cluster", "home.toml", "--input", "few.npy")),
    ("worker", "usage", 2, ("worker", "--head", "nowhere", "--name", "d0", "--keys", "mine/d0")),
    ("stage", "usage", 2, ("stage", "m.onnx", "--runs", "1")),
    ("run", "invalid", 4, ("run", "other.onnx", "--plan", "stages.json", "--shape", "x=2,3,8,8")),
    ("profiles", "usage", 2, ("profiles", "forget")),
    ("keys", "load", 5, ("keys", "issue", "d0", "--host", "10.0.0.5", "--authority", "none")),
    ("profile-cluster", "usage", 2, ("profile-cluster", "--devices", "d0")),
    ("doctor", "usage", 2, ("doctor", "--colour")),
    ("downset", "usage", 2, ("magic",)),
]


def write_files(folder):
    """A model with another that computes something else, records, a cluster, and plans of stages and of a pipeline."""
    model = branchy_model(folder / "m.onnx")
    data = bytearray(model.read_bytes())
    at = data.find(b"\x00\x00\x80\x3f" * 8)  # the bias of ones
    data[at : at + 4] = b"\x00\x00\x00\x40"
    (folder / "other.onnx").write_bytes(data)
    (folder / "records.csv").write_text(RECORDS)
    (folder / "home.toml").write_text(CLUSTER)
    output_of("stage", model, *STAGE, "-o", folder / "stages.json", "-q")
    output_of("split", model, "--cluster", folder / "home.toml", "-o", folder / "pipeline.json", "-q")
    np.save(folder / "frames.npy", np.zeros((3, 1, 3, 8, 8), np.float32))
    np.save(folder / "few.npy", np.zeros((3, 1, 3, 8), np.float32))
    output_of("keys", "init", "--authority", folder / "mine")
    output_of("keys", "issue", "d0", "--host", "127.0.0.2", "--authority", folder / "mine")
