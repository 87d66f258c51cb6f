"""Calls of a staged module on a GPU: they wait for nothing, keep to the order of streams, and note NaN.

    python -m experiments.ios.gpu_calls [--quick]

Measured on a CUDA device, with PyTorch's `set_sync_debug_mode("error")`, which ends a program that waits. Each row is a
property of the module that `stage_module` makes of the detector of experiments/ios/today.py, and whether it held; the
last rows are host seconds of a call, until it returns and until its result is there, against the exported program
itself. Nothing is printed where there is no CUDA device.
"""

from __future__ import annotations

import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from statistics import median
from typing import Any

from downset import StageLimits, open_device, stage_module
from downset.errors import UnsupportedError
from downset.extras import torch_library
from experiments.frame import Experiment, run
from experiments.rows import Row

_ROUNDS = 31


def difference(ours: Any, theirs: Any) -> float:
    return float((ours - theirs).abs().max() / theirs.abs().max())


def without_waiting(call: Callable[[], Any]) -> Any:
    """The result of the call; PyTorch raises RuntimeError at whatever would wait for the device."""
    torch = torch_library()
    torch.cuda.set_sync_debug_mode("error")
    try:
        return call()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def host_seconds(call: Callable[[], Any]) -> tuple[float, float]:
    """(seconds until the call returns, until its result is there): medians."""
    torch, returned, ended = torch_library(), [], []
    for _ in range(_ROUNDS):
        torch.cuda.synchronize()
        begin = time.perf_counter()
        call()
        returned.append(time.perf_counter() - begin)
        torch.cuda.synchronize()
        ended.append(time.perf_counter() - begin)
    return median(returned), median(ended)


def held(staged: Any, plain: Any, shape: tuple[int, ...]) -> Iterator[Row]:
    """Properties by name, each with whether it held."""
    torch = torch_library()
    values = [torch.randn(shape, device="cuda") for _ in range(4)]
    expected = [plain(value) for value in values]
    first = staged(values[0])
    torch.cuda.synchronize()
    results = without_waiting(lambda: [staged(value) for value in values])
    worst = max(difference(one, other) for one, other in zip([first, *results], [expected[0], *expected], strict=True))
    yield {"property": "calls wait for nothing, and later calls leave earlier results alone", "held": worst < 2e-2}
    for pinned in (False, True):
        memory = torch.empty(shape, pin_memory=pinned)
        outputs = []
        for value in values:
            memory.copy_(value)
            outputs.append(without_waiting(lambda memory=memory: staged(memory)))
            memory.fill_(float("nan"))
        worst = max(difference(one, other) for one, other in zip(outputs, expected, strict=True))
        what = "pinned" if pinned else "pageable"
        yield {"property": f"an input in {what} memory may change when the call returns", "held": worst < 2e-2}
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    outputs = []
    for turn in range(12):
        with torch.cuda.stream(streams[turn % 3]):
            outputs.append(without_waiting(lambda turn=turn: staged(values[turn % 4])))
    torch.cuda.synchronize()
    worst = max(difference(output, expected[turn % 4]) for turn, output in enumerate(outputs))
    yield {"property": "calls on three streams do not disturb one another", "held": worst < 2e-2}
    yield {"property": "finite inputs are not noted as others", "held": not staged.met_nonfinite()}
    broken = values[0].clone()
    broken[0, 0, 5, 7] = float("nan")
    without_waiting(lambda: staged(broken))
    noted = staged.met_nonfinite()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        after = staged(broken)
    yield {"property": "NaN is noted, and the next call warns", "held": noted and len(told) == 1}
    same = torch.equal(after.isnan(), plain(broken).isnan())
    yield {"property": "calls after the warning keep NaN where the program does", "held": same}


def rows(options: Namespace) -> Iterator[Row]:
    try:
        device = open_device("cuda")
    except UnsupportedError as error:
        print(error)
        return
    from experiments.ios.today import exported

    torch = torch_library()
    program = exported("detector", 1)
    shape = (1, 3, 416, 416)
    staged = stage_module(program, device, limits=StageLimits(timings=20 if options.quick else 100), runs=9)
    plain = program.module().to("cuda")
    with torch.no_grad():
        for row in held(staged, plain, shape):
            yield {**row, "device": device.name}
        again = stage_module(program, device, plan=staged.plan)
        views = stage_module(program, device, plan=staged.plan, views=True)
        value = torch.randn(shape, device="cuda")
        for name, call in (("exported program", plain), ("staged", again), ("staged, views", views)):
            call(value)
            returned, ended = host_seconds(lambda call=call: call(value))
            yield {"property": f"seconds of a call: {name}", "returned_s": returned, "ended_s": ended}


EXPERIMENT = Experiment(
    "ios_gpu_calls",
    rows,
    (
        ("property", "{property}"),
        ("held", "{held}"),
        ("returns after, ms", "{returned_s!m:.3f}"),
        ("ends after, ms", "{ended_s!m:.3f}"),
    ),
    quick="fewer timings; nothing is written",
)

if __name__ == "__main__":
    run(EXPERIMENT)
