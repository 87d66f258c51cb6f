"""Stages on CUDA: the paper's four networks and four of today, against sequence, eager and torch.compile.

    python -m experiments.ios.gpu [--quick] [--networks A,B] [--batches 1,8,32] [--dtype float16] [--peers A,B]
                                  [--missing] [--warm]

All times are measured. `sequential` is one CUDA graph of the same kernels on one stream: the baseline that matters.
Everything else takes turns with it. A ratio is sequential by the other, the median over rounds with an interval of
95 %. Device seconds lie between two events, the first behind a kernel that spins until the host has issued the call:
they hold the copy of the inputs and no launch. End-to-end seconds are the host's, from the call on an idle device to
the end.
`ios` prices all stages of all endings, where no more than --timings differ. `eager` is PyTorch operator by operator
(channels last, batch normalisation folded); the other peers are torch.compile of the same operators by its modes, and
`frozen`, reduce-overhead with constant weights. `ort-cuda` and `ort-tensorrt` are ONNX Runtime with CUDA graphs on
the file of the paper's networks, where its package has these providers; the row says so where not. Each network is
measured in a process of its own within its share of --seconds, and its row is saved at once, with what is known by
then and why there is no more. --missing leaves out what is recorded whole; --warm compiles for all networks side by
side first, so that the compilers' caches hold what the measurements need. clock_mhz: of the multiprocessors, right
behind the timing, where the driver tells it.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import tempfile
import time
from argparse import SUPPRESS, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import numpy as np

from downset import DownsetError, Graph, StageLimits, StageResult, TorchDevice, open_device, tune_stages
from downset.budget import Budget
from downset.errors import LimitReached, UnsupportedError
from downset.executor.arena import seeded_inputs
from downset.executor.device_clock import DeviceClock
from downset.executor.lane_program import concurrent_arena, lower, possibly_live_bytes
from downset.executor.plain_function import network_function
from downset.executor.stage_engine import stage_engine
from downset.extras import torch_library
from downset.results.plans import Stage, StagePlan
from downset.stages.ios import ios
from downset.stages.prepared import planned_graph, prepare
from downset.stages.unit_graph import UnitGraph, group_units, search_blocks, unit_predecessors
from downset.text import unheard
from downset.tuning.search import Tuning, Variant
from downset.tuning.timer import block_problem, renamed
from experiments.children import last_line, stop
from experiments.frame import Experiment, names_of, run
from experiments.ios.cpu import median_interval
from experiments.ios.fig6 import beside_paper, candidates
from experiments.rows import Row, load_rows
from zoo import ZOO
from zoo import graph as zoo_graph

NETWORKS = ("squeezenet", "inception_v3", "randwire_large", "nasnet_large")
TODAY = ("moe_layer", "decoder_step", "unet_block", "detector")
GOALS = {"inception_v3": 1.3, "nasnet_large": 1.6, "randwire_large": 1.5, "squeezenet": 1.05}
SHARES = {"inception_v3": 2.5, "randwire_large": 2.5, "nasnet_large": 3.5}
"""Shares of the time, 1 for others; later networks get what one leaves over."""
LEAST_S = 35.0
"""Seconds without which no network is begun: it is left to another call, with --missing."""
PEERS: Mapping[str, Mapping[str, Any]] = {
    "eager": {},
    "default": {},
    "reduce-overhead": {"mode": "reduce-overhead"},
    "frozen": {"options": {"freezing": True, "triton.cudagraphs": True}},
    "max-autotune": {"mode": "max-autotune"},
}
"""By name: the arguments of torch.compile."""
PROVIDERS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "ort-cuda": ("CUDAExecutionProvider", {"enable_cuda_graph": "1"}),
    "ort-tensorrt": ("TensorrtExecutionProvider", {"trt_cuda_graph_enable": "1", "trt_fp16_enable": "1"}),
}
"""ONNX Runtime's providers by the name of the peer, with their options."""
_ROUNDS = 31
_ROOT = Path(__file__).resolve().parents[2]


def timed(calls: Mapping[str, Callable[[], Any]], runs: int) -> dict[str, Row]:
    """By name: device and end-to-end seconds in turns, after three rounds that are not counted, and the ratio of the
    first call to each. `exposed`: rounds in which launches were not hidden whole. Measured."""
    torch = torch_library()
    clocks = {name: DeviceClock() for name in calls}
    device: dict[str, list[float]] = {name: [] for name in calls}
    whole: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(-3, runs):
        for name, call in calls.items():
            seconds = clocks[name].seconds(call)
            begin = time.perf_counter()
            call()
            torch.cuda.synchronize()
            if turn >= 0:
                device[name].append(seconds)
                whole[name].append(time.perf_counter() - begin)
            else:
                clocks[name].exposed = 0
    first = next(iter(calls))
    return {
        name: {
            "device_s": deciles(device[name]),
            "end_to_end_s": deciles(whole[name]),
            "device_ratio": ratio(device[first], device[name]),
            "end_to_end_ratio": ratio(whole[first], whole[name]),
            "exposed": clocks[name].exposed,
        }
        for name in calls
    }


def deciles(seconds: Sequence[float]) -> dict[str, float]:
    low, high = (quantiles(seconds, n=10, method="inclusive")[place] for place in (0, 8))
    return {"p10": low, "p50": median(seconds), "p90": high}


def ratio(base: Sequence[float], other: Sequence[float]) -> dict[str, float]:
    """The median over rounds of base by other, and its interval of 95 %."""
    ratios = sorted(one / two for one, two in zip(base, other, strict=True))
    low, high = median_interval(ratios)
    return {"median": median(ratios), "low": low, "high": high}


def loaded(name: str, batch: int) -> Graph:
    if name not in TODAY:
        return prepare(zoo_graph(name), batch=batch)
    from experiments.ios.today import today_graph

    return prepare(today_graph(name, batch))


def clock_mhz() -> int | None:
    """The clock of the multiprocessors now; None where the driver does not tell it."""
    try:
        return int(torch_library().cuda.clock_rate())
    except Exception:
        return None


def difference(graph: Graph, result: StageResult, device: TorchDevice) -> float | str:
    """The largest difference between the chosen schedule and float32 operator by operator, over the largest value."""
    torch = torch_library()
    values = seeded_inputs(graph)
    engine = stage_engine(graph, result.plan, device, values)
    ours = [value.float().cpu().numpy() for value in engine.outputs()]
    plain, inputs = network_function(graph, device="cuda")
    tf32 = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        with torch.no_grad():
            theirs = [value.cpu().numpy() for value in plain(*inputs)]
    finally:
        torch.backends.cudnn.allow_tf32 = tf32
    worst = max(float(np.abs(a - b).max() / np.abs(b).max()) for a, b in zip(ours, theirs, strict=True))
    return worst if math.isfinite(worst) else "outputs are not finite"


def launches(graph: Graph, plan: StagePlan, device: TorchDevice) -> tuple[Callable[[], Any], Row]:
    """A call that copies the inputs in and starts the plan's graph, and the bytes of its capture: the most that it
    had allocated at a time (measured), and one arena that keeps apart what may be live side by side (analytic)."""
    engine = stage_engine(graph, plan, device, seeded_inputs(graph))
    planned = planned_graph(graph, plan)
    units = UnitGraph(plan.units, unit_predecessors(planned, plan.units))
    program = lower(units, plan.stages, barriers=plan.barriers, max_lanes=device.max_lanes)
    taken = {
        "captured_bytes": engine.engine.captured_bytes,
        "live_bytes": possibly_live_bytes(planned, program, dtype=device.dtype),
        "arena_bytes": concurrent_arena(planned, program, dtype=device.dtype).arena_bytes,
    }
    return lambda: engine.engine.launch(engine.values), taken


def provider_call(name: str, batch: int, dtype: str, peer: str) -> Callable[[], Any]:
    """A run of ONNX Runtime on inputs and outputs that lie on the device. It waits for the device at its end."""
    import onnxruntime

    provider, options = PROVIDERS[peer]
    if provider not in onnxruntime.get_available_providers():
        raise UnsupportedError(f"onnxruntime {onnxruntime.__version__} here has no {provider}")
    if name in TODAY:
        raise UnsupportedError("this network has no .onnx file")
    from onnxruntime.transformers.float16 import convert_float_to_float16

    model = ZOO[name]()
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = batch
    if dtype == "float16":
        model = convert_float_to_float16(model)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=[(provider, dict(options))])
    binding = session.io_binding()
    for value in session.get_inputs():
        array = np.zeros(value.shape, np.float16 if "float16" in value.type else np.float32)
        binding.bind_ortvalue_input(value.name, onnxruntime.OrtValue.ortvalue_from_numpy(array, "cuda", 0))
    for value in session.get_outputs():
        binding.bind_output(value.name, "cuda", 0)
    return lambda: session.run_with_iobinding(binding)


def peer_call(graph: Graph, device: TorchDevice, peer: str) -> Callable[[], Any]:
    """A call of a peer, with the copy of its inputs that a captured graph needs too."""
    from torch.fx.experimental.proxy_tensor import make_fx

    torch = torch_library()
    torch.backends.cudnn.benchmark, torch.backends.cudnn.benchmark_limit = True, 4  # as the engine chooses algorithms
    plain, inputs = network_function(graph, device="cuda", dtype=device.dtype)
    static = [value.clone() for value in inputs]
    with torch.no_grad():
        called = plain if peer == "eager" else torch.compile(make_fx(plain)(*static), **PEERS[peer])

    def call() -> Any:
        with torch.no_grad():
            for own, value in zip(static, inputs, strict=True):
                own.copy_(value)
            return called(*static)

    call()
    return call


def ios_stages(graph: Graph, device: TorchDevice, timings: int) -> tuple[Stage, ...]:
    """The paper's search, which prices all stages of all endings. Raises LimitReached for more than so many."""
    variant = Variant(Tuning(device, StageLimits(), None, unheard), "", graph)
    timer, stages = variant.timer, list[Stage]()
    for block in search_blocks(variant.units.predecessors):

        def price(stage: Stage, block: Sequence[int] = block) -> float:
            own = renamed([stage], block)[0]
            if timer.used >= timings and not timer.is_free(own):
                raise LimitReached(f"more than {timings} stages differ")
            return timer(own)

        problem = block_problem(variant.units, variant.search.families, block)
        stages += renamed(ios(problem, price, clock=Budget(20.0).start()).stages, block)
    return tuple(stages)


def attempt(call: Callable[[], Any]) -> Any:
    """The result of the call, or the reason in a line: a peer that fails is a row that says so."""
    try:
        return call()
    except Exception as error:
        lines = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {lines[0][:200]}"


def candidate_rows(result: StageResult) -> list[Row]:
    sequential = result.candidates[0].seconds
    return [
        {
            "name": one.name,
            "p10_s": one.percentile(0.1),
            "p50_s": one.percentile(0.5),
            "p90_s": one.percentile(0.9),
            "ratio": ratio(sequential, one.seconds),
            "stages": len(one.stages),
            "live_bytes": one.live_bytes,
        }
        for one in result.candidates
    ]


def milestones(
    name: str, batch: int, dtype: str, *, peers: Sequence[str], timings: int, seconds: float
) -> Iterator[Row]:
    """The row of one network, each time that more of it is known: stages first, what may take long last."""
    row: Row = {"network": name, "batch": batch, "dtype": dtype}
    begin = time.perf_counter()
    device = open_device("cuda", dtype=dtype)
    row |= {"device": device.name, "versions": device.versions}
    graph = loaded(name, batch)
    ready = time.perf_counter()
    limits = StageLimits(timings=timings, all_seconds=max(1.0, 0.25 * seconds))
    result = tune_stages(graph, device, limits=limits, runs=_ROUNDS)
    row |= {
        "chosen": result.plan.evidence.method,
        "speedup": result.speedup,
        "why": result.why,
        "notes": list(result.notes),
        "timings_used": result.timings_used,
        "bound_s": result.bound_s,
        "search_s": time.perf_counter() - ready,
        "candidates": candidate_rows(result),
    }
    yield row
    row["difference"] = attempt(lambda: difference(graph, result, device))
    units = group_units(graph).units
    one_by_one = tuple(Stage(((unit,),)) for unit in range(len(units)))
    plain = replace(result.plan, units=units, stages=one_by_one, barriers=False, variant="")
    calls: dict[str, Callable[[], Any]] = {}
    calls["sequential"], row["sequential_memory"] = launches(graph, plain, device)
    calls["chosen"], row["memory"] = launches(graph, result.plan, device)
    row["timed"] = timed(calls, _ROUNDS)
    row["clock_mhz"] = clock_mhz()
    yield row
    for peer in peers:

        def make(peer: str = peer) -> Callable[[], Any]:
            return provider_call(name, batch, dtype, peer) if peer in PROVIDERS else peer_call(graph, device, peer)

        timing = attempt(lambda peer=peer, make=make: timed({**calls, peer: make()}, _ROUNDS)[peer])
        row["timed"] = {**row["timed"], peer: timing}
        yield row
    stages = attempt(lambda: ios_stages(graph, device, timings))
    if isinstance(stages, str):
        row["timed"] = {**row["timed"], "ios": stages}
    else:
        call, _ = launches(graph, replace(plain, stages=stages, barriers=True), device)
        row["timed"] = {**row["timed"], "ios": timed({**calls, "ios": call}, _ROUNDS)["ios"]}
    row["seconds"] = time.perf_counter() - begin
    yield row


def measured(command: Sequence[str], path: Path, start: Row, seconds: float) -> Row:
    """The row that a process of its own left in `path`, whatever became of it: an error of CUDA leaves a process
    unusable, and a compiler may take any time. It and its children are stopped after `seconds`."""
    with tempfile.TemporaryFile("w+") as printed:
        child = subprocess.Popen(
            command,
            stdout=printed,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            cwd=_ROOT,
            start_new_session=True,
        )
        why = ""
        try:
            if status := child.wait(timeout=max(seconds, 1.0)):
                how = f"signal {-status}" if status < 0 else f"status {status}"
                why = f"ended with {how}: {last_line(printed)}"
        except subprocess.TimeoutExpired:
            why = f"stopped after {seconds:.0f} s"
        finally:
            stop(child)
    row = {**start, **(json.loads(path.read_text()) if path.exists() else {})}
    if "candidates" not in row:
        row["error"] = why or "no row was left"
    elif why:
        row["unfinished"] = why
    return row


def keep(path: Path, row: Row) -> None:
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(row, allow_nan=False))
    beside.replace(path)


def lines(row: Row, mark: str) -> Iterator[str]:
    if "error" in row:
        yield f"\n{row['network']}, batch {row['batch']}, {row['dtype']}{mark}: {row['error']}"
        return
    differ = row.get("difference", "not compared")
    clock = f", {row['clock_mhz']} MHz" if row.get("clock_mhz") else ""
    yield (
        f"\n{row['network']}, batch {row['batch']}, {row['dtype']}, {row['device']}{clock}, {row['versions']}{mark}: "
        f"{row['timings_used']} stage timings in {row['search_s']:.0f} s; largest difference of the outputs: "
        f"{differ if isinstance(differ, str) else format(differ, '.1e')}"
    )
    yield from candidates(row)
    yield "  with the copy of the inputs, in turns; sequential by each, median [95 % interval]:"
    yield f"  {'':20} {'device ms':>10} {'ratio':>22} {'end to end ms':>14} {'ratio':>22}"
    for name, timing in row.get("timed", {}).items():
        if isinstance(timing, str):
            yield f"  {name}: {timing}"
            continue
        cells = []
        for key in ("device", "end_to_end"):
            of = timing[f"{key}_ratio"]
            told = f"{of['median']:.3f} [{of['low']:.3f}, {of['high']:.3f}]"
            cells += [f"{timing[f'{key}_s']['p50'] * 1e3:10.3f}", f"{told:>22}"]
        exposed = f"  (launches not hidden in {timing['exposed']} rounds)" if timing["exposed"] else ""
        yield f"  {name:20} {cells[0]} {cells[1]} {cells[2]:>14} {cells[3]}{exposed}"
    for key, what in (("memory", "chosen"), ("sequential_memory", "sequential")):
        if key in row:
            held, live, arena = (f"{row[key][name]:,} B" for name in ("captured_bytes", "live_bytes", "arena_bytes"))
            yield (
                f"  {what}: the capture holds {held} of intermediates at a time; {live} may be live, and one "
                f"arena takes {arena} (analytic)"
            )
    if "unfinished" in row:
        yield f"  not all of it: {row['unfinished']}"
    yield from (f"  note: {note}" for note in row["notes"])
    goal = GOALS.get(row["network"])
    reached = f"; goal at batch 1: {goal}x" if goal and row["batch"] == 1 else ""
    bound = "not known" if row["bound_s"] is None else f"{row['bound_s'] * 1e3:.3f} ms"
    yield f"  speed-up {row['speedup']:.2f}x{reached}; {row['why']}; bound {bound}"
    yield from beside_paper(row, row["speedup"], f"measured, {row['dtype']}")


def one(options: Namespace) -> None:
    """Measure one network in a process of its own: its row goes to a file each time that more of it is known."""
    for row in milestones(
        options.networks[0],
        int(options.batches),
        options.dtype,
        peers=[peer for peer in options.peers if peer != "none"],
        timings=options.timings,
        seconds=options.seconds,
    ):
        keep(Path(options.one), row)


def child(options: Namespace, name: str, batch: int, *more: str) -> list[str]:
    """The command that does one network's part of these options."""
    command = [sys.executable, "-m", "experiments.ios.gpu", "--networks", name, "--batches", str(batch)]
    command += ["--dtype", options.dtype, "--timings", str(options.timings), "--peers", ",".join(options.peers)]
    return [*command, *more]


def warm(options: Namespace, todo: Sequence[tuple[str, int]], seconds: float) -> None:
    """Compile all networks for all peers side by side, within the seconds."""
    children = [
        subprocess.Popen(
            child(options, name, batch, "--compile"),
            cwd=_ROOT,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for name, batch in todo
    ]
    ends = time.monotonic() + seconds
    for process in children:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=max(0.1, ends - time.monotonic()))
        stop(process)


def is_whole(row: Row) -> bool:
    return "error" not in row and "unfinished" not in row


def rows(options: Namespace) -> Iterator[Row]:
    """All networks, each in a process of its own and within its share of the time."""
    if options.one:
        one(options)
        return
    try:
        device = open_device("cuda", dtype=options.dtype)
    except DownsetError as error:
        print(error)
        return
    names = ["squeezenet"] if options.quick else options.networks
    todo = [(name, batch) for batch in map(int, options.batches.split(",")) for name in names]
    if options.compile:
        for peer in options.peers:
            if peer in PEERS and peer != "eager":
                attempt(lambda peer=peer: peer_call(loaded(*todo[0]), device, peer))
        return
    if options.missing:
        there = {(row["network"], row["batch"]) for row in load_rows("ios_gpu") if is_whole(row)}
        todo = [of for of in todo if of not in there]
    ends = time.monotonic() + options.seconds
    if options.warm:
        warm(options, todo, 0.3 * options.seconds)
    with tempfile.TemporaryDirectory() as folder:
        for index, (name, batch) in enumerate(todo):
            weights = [SHARES.get(later, 1.0) for later, _ in todo[index:]]
            left = ends - time.monotonic()
            if index and left < LEAST_S:
                print(f"no time was left for {', '.join(f'{name} at batch {batch}' for name, batch in todo[index:])}")
                return
            seconds = max(LEAST_S, left * weights[0] / sum(weights))
            path = Path(folder) / f"{index}.json"
            command = child(options, name, batch, "--one", str(path), "--seconds", f"{seconds:.1f}")
            yield measured(command, path, {"network": name, "batch": batch, "dtype": options.dtype}, seconds)


EXPERIMENT = Experiment(
    "ios_gpu",
    rows,
    key=("network", "batch", "dtype"),
    quick="SqueezeNet at batch 1; the committed table is left alone",
    options={
        "--networks": {"type": names_of((*NETWORKS, *TODAY)), "default": [*NETWORKS, *TODAY]},
        "--dtype": {"default": "float16"},
        "--batches": {"default": "1"},
        "--timings": {"type": int, "default": 200},
        "--seconds": {"type": float, "default": 510.0, "help": "for everything"},
        "--peers": {"type": names_of((*PEERS, *PROVIDERS, "none")), "default": ["eager", "default", "reduce-overhead"]},
        "--missing": {"action": "store_true", "help": "leave out what is recorded whole"},
        "--warm": {"action": "store_true", "help": "compile for all networks side by side first"},
        "--one": {"help": SUPPRESS},
        "--compile": {"action": "store_true", "help": SUPPRESS},
    },
    lines=lines,
)

if __name__ == "__main__":
    run(EXPERIMENT)
