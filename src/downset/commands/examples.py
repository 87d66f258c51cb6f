"""The end of every `--help`: examples that run as they stand, and the units of options."""

from __future__ import annotations

from collections.abc import Mapping

__all__ = ["EXAMPLES", "UNITS", "epilog", "examples"]

UNITS = (
    "Sizes: 256KB, 1.5MB or 262144 (KB = 1024 bytes). Times: 10s, 500ms, 2min. Exit codes: 0 done, 2 usage, 3 proven "
    "not to fit, 4 verification failed, 5 cannot load, 6 not known."
)

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "": (
        "downset doctor",
        "downset fit model.tflite -o fitted.tflite --report report.html",
        "downset split model.onnx --cluster pico_1mac -o plan.json",
    ),
    "fit": (
        "downset fit model.tflite -o fitted.tflite --ram 256KB --report report.html",
        "downset fit model.tflite -o fitted.tflite --header model.h",
        "downset fit model.tflite -o moved.tflite --fast 256KB --slow 8MB --distance -0x3C88000",
        "downset fit model.onnx -o fitted.onnx --session open.py --slower 1.1x",
    ),
    "inspect": ("downset inspect model.onnx", "downset inspect model.onnx --shape input=1,3,224,224 --json"),
    "verify": ("downset verify model.tflite fitted.tflite", "downset verify a.onnx b.onnx --input x.npy"),
    "order": ("downset order graph.json --report order.html", "downset order model.onnx --memory ort --json"),
    "arena": (
        "downset arena records.csv --capacity 64KB --align 64 -o placed.csv",
        "downset arena - -o - < records.csv",
    ),
    "stage": (
        "downset stage model.onnx --device cpu --report stages.html -o stages.json",
        "downset stage model.onnx --threads 2 --ort-streams streams.json",
        "downset stage model.onnx --export merged.onnx",
    ),
    "run": ("downset run model.onnx --plan stages.json --input x.npy --check",),
    "profiles list": ("downset profiles list", "downset profiles list --json"),
    "profiles clear": ("downset profiles clear",),
    "split": ("downset split model.onnx --cluster pico_1mac --report split.html -o plan.json",),
    "simulate": ("downset simulate plan.json --frames 1000 --fail rpi15_0@10s --report simulated.html",),
    "serve": (
        "downset serve model.onnx --cluster cluster.toml --input frames.npy -o out.npy",
        "downset serve model.onnx --cluster cluster.toml --listen 127.0.0.1:8443 --keys driver-keys",
    ),
    "worker": (
        "downset worker --head 10.0.0.1:6379 --name d3 --keys keys",
        "downset worker --head 10.0.0.1:6379 --name d3 --keys keys --install downset-worker.service",
    ),
    "profile-cluster": ("downset profile-cluster --devices d0,d1 --local -o cluster.toml",),
    "keys init": ("downset keys init", "downset keys init --authority home-keys --days 365"),
    "keys issue": (
        "downset keys issue d3 --host 10.0.0.3",
        "downset keys issue camera --client",
        "downset keys issue driver --host 10.0.0.1 --host driver.local -o driver-keys",
    ),
    "keys token": ("downset keys token", "downset keys token --authority home-keys"),
    "doctor": ("downset doctor", "downset doctor --json"),
}
"""The examples of each command, by its name with that of its group; "" is `downset` itself."""


def examples(command: str) -> tuple[str, ...]:
    """The examples of a command; those of all its commands for a group, such as `keys`."""
    return EXAMPLES.get(command) or tuple(
        example for name, own in EXAMPLES.items() if name.startswith(f"{command} ") for example in own
    )


def epilog(command: str) -> str:
    """The end of a command's help."""
    return "\n\n".join([*(f"$ {example}" for example in examples(command)), UNITS])
