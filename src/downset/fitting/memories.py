"""Fits a network to fast memory with slow memory behind it: a `.tflite` file with moves that TFLite Micro executes."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from downset.errors import DownsetError, InfeasibleError, InvalidPlan, LimitReached, UnsupportedError, UsageError
from downset.fitting.job import FilePath, Listener, SearchTime
from downset.fitting.memories_incumbent import Incumbent, read_incumbent
from downset.fitting.memories_networks import EARLIER_SHARE, MemoriesJob, NetworkToPlan, most_scratch, networks_to_plan
from downset.fitting.memories_options import TwoMemoriesOptions, check_memories_options, memories_call
from downset.fitting.memories_result import MovedFile, other_plans, result_of
from downset.fitting.preparing import int8_note, refuse_moves
from downset.formats.firmware_memories import description_bytes, note_bytes
from downset.formats.reading import check_readable, load
from downset.formats.tflite.read import body_operators, resource_variables
from downset.formats.tflite.write import export_in_memories
from downset.graph.core import Graph
from downset.memories.plan import plan_memories
from downset.memories.program import MovedProgram, program_of
from downset.memory.models import MemoryModel
from downset.memory.records import align_up
from downset.messages import Message, Setting
from downset.partial.memory_form import tflm_kept
from downset.process.file_ranges import check_state, file_state
from downset.process.limits import limits
from downset.process.whole_files import copy_whole
from downset.results.comparisons import Comparison
from downset.results.memories import MemoriesPlan
from downset.results.memories_fit import MemoriesFit
from downset.results.policy import Policy
from downset.results.two_memories import ALIGNMENT, MemorySide, TwoMemories
from downset.runtimes import tflm
from downset.runtimes.compare import compare_outputs, prove_same
from downset.runtimes.feeds import FeedSource, read_feeds
from downset.text import format_bytes

__all__ = ["fit_memories", "fit_to_memories"]

_BETWEEN_EACH = "TFLite Micro places these by itself, perhaps between the memories"
_ROUNDS = 4
"""Plans for a larger persistent part that are tried at most: each move takes a node and a tensor of it."""
_RUN_DISTANCE = 1 << 26
"""The distance at which a file is run here whose own is too long for this machine."""


def fit_memories(  # noqa: PLR0913 - users know its keywords
    model: FilePath,
    *,
    fast_bytes: int,
    slow_bytes: int,
    distance_bytes: int | None = None,
    output: FilePath | None = None,
    kernels: str | None = None,
    persistent: MemorySide = "fast",
    prices: Mapping[str, float] | None = None,
    larger: float | None = None,
    time_limit_s: float = 10.0,
    work_limit: int | None = None,
    seed: int = 0,
    inputs: Sequence[FilePath] = (),
    incumbent: FilePath | None = None,
) -> MemoriesFit:
    """Order the network in a .tflite file, and decide what lies in fast memory when and what is moved, for the least
    bytes to and from slow memory, in strips of rows where that takes fewer; prove it, run it, and write `output`, which
    stock TFLite Micro executes.

    `fast_bytes` holds tensors, TFLite Micro's persistent part as measured on this host, and the kernels' scratch where
    fast memory lies lower; `slow_bytes` the rest. `distance_bytes`: the address of slow memory less that of fast
    memory, negative where slow memory lies lower; by default slow memory begins where fast memory ends. A move is a
    RESHAPE to the same shape, and one table of offsets places all tensors from the lower memory on. `kernels`: the
    library of the firmware, as `fit` takes it: room is left for its scratch, and operators of which that is not known
    are refused; "reference" if not given. `persistent`: the memory at whose end the persistent part lies; in "slow"
    memory the bytes that are counted leave its accesses out. `larger`: how many times as large as the original the file
    may be; strips make it larger. `prices`: what a byte costs to `load`, to `store`, and to `read` and `write`
    by an operator in slow memory, in any unit; 1 each if not given. `time_limit_s`, `work_limit`, `seed` and `inputs`:
    as `fit` takes them. `incumbent`: a file that was fitted to two memories from this model, with no more of either
    memory; the result costs no more than it does, whatever the limits.

    Raises InfeasibleError where an operator needs more fast memory, or all tensors together more memory, than there
    is; UnsupportedError for files with variables, states, bodies or moves, and where TFLite Micro does not run the
    file; other DownsetErrors for bad input. No output is written then.
    """
    options = TwoMemoriesOptions(
        model,
        fast_bytes,
        slow_bytes,
        distance_bytes=distance_bytes,
        output=output,
        kernels=kernels,
        persistent=persistent,
        prices=prices,
        larger=larger,
        time_limit_s=time_limit_s,
        work_limit=work_limit,
        seed=seed,
        inputs=inputs,
        incumbent=incumbent,
    )
    return fit_to_memories(options, Listener())


def fit_to_memories(options: TwoMemoriesOptions, listener: Listener) -> MemoriesFit:
    """`fit_memories`, with its keywords as one value."""
    check_memories_options(options)
    path = Path(options.model)
    check_readable(path)
    state = file_state(path.stat())
    graph = _readable(path)
    read_feeds(graph, options.inputs)  # a mistake is told before the searches
    with limits(operators=len(graph.ops)), tempfile.TemporaryDirectory(prefix="downset-") as folder:
        job = MemoriesJob(options, graph, Path(folder), listener, SearchTime(options.time_limit_s))
        most_scratch(graph, options.library)  # an unknown one is told before TFLite Micro runs
        _check_allocation(path, graph, _memories(job, 0, 0))
        listener.progress("running the original in TFLite Micro")
        tail_bytes = _persistent_of(path, options.seed)
        incumbent = read_incumbent(job)
        with listener.searching():
            moved = _made(job, tail_bytes, incumbent)
        listener.progress("comparing it with the original")
        outputs = _compared(job, moved)
        others = other_plans(job.options, graph, moved.memories)
        check_state(path, state)
        if options.output is not None:
            copy_whole(moved.path, Path(options.output))
        result = result_of(options, moved, outputs, others, original=graph)
    return replace(result, command=memories_call(options))


def _readable(path: Path) -> Graph:
    """The network of a file whose tensors a plan can place, all of them. Raises UnsupportedError for any other."""
    refuse_moves(path)
    graph = load(path)
    kept = [tensor.name for tensor in graph.tensors if tensor.role == "state"]
    if resource_variables(path) or graph.states or kept:
        raise UnsupportedError(
            f"{path} keeps variables from run to run, and {_BETWEEN_EACH}: files with variables are not fitted "
            "to two memories"
        )
    if body_operators(path):
        raise UnsupportedError(
            f"{path} runs bodies (If, While, CallOnce), and {_BETWEEN_EACH}: such files are not fitted to two memories"
        )
    return graph


def _persistent_of(path: Path, seed: int) -> int:
    """The persistent part of a file in TFLite Micro, measured. Raises UnsupportedError where that does not run it, with
    what to do about a file that computes on uint8."""
    try:
        return tflm.measure(path, seed=seed, steps=1).tail_bytes
    except UnsupportedError as error:
        exact, note = int8_note(path)
        if not note:
            raise
        advice = ("; write that file first, without ", Setting("fast_bytes")) if exact else ()
        raise UnsupportedError(f"{path}: ", note, *advice) from error


def _made(job: MemoriesJob, tail_bytes: int, incumbent: Incumbent | None) -> MovedFile:
    """The file of least cost: of the incumbent, of the network as it is, and of the network in strips. `tail_bytes`:
    the persistent part of the original."""
    best: MovedFile | None = None
    errors: list[DownsetError] = []
    largest = Policy(None, job.options.larger)
    before = Path(job.options.model).stat().st_size
    if incumbent is not None:
        best = _of_incumbent(job, incumbent)
        if not largest.keeps_size(before, best.path.stat().st_size):
            best = None
    earlier = None if incumbent is None else NetworkToPlan(incumbent.graph, incumbent.model, EARLIER_SHARE)
    for number, network in enumerate(networks_to_plan(job, tail_bytes, errors, earlier)):
        kept = tail_bytes + max(0, tflm_kept(network.graph) - tflm_kept(job.graph))
        try:
            moved = _of_network(job, network, align_up(kept, ALIGNMENT), job.folder / f"moved_{number}.tflite")
        except (InfeasibleError, UnsupportedError, LimitReached) as error:
            errors.append(error)
            continue
        if number and not largest.keeps_size(before, moved.path.stat().st_size):
            continue
        if best is None or moved.plan.evidence.value < best.plan.evidence.value:
            best = moved
        if not best.plan.evidence.value:
            return best
    if best is None:
        raise _refusal(errors)
    return best


def _refusal(errors: Sequence[DownsetError]) -> DownsetError:
    """Why the network as it is has no file, which comes first, and why strips have none where those need less."""
    first, last = errors[0], errors[-1]
    whole, strips = (error.figures.get("least_bytes", math.inf) for error in (first, last))
    if len(errors) == 1 or (isinstance(last, InfeasibleError) and float(strips) >= float(whole)):
        return first
    return InfeasibleError(Message(first.message, "; in strips: ", last.message), figures=first.figures)


def _of_network(job: MemoriesJob, network: NetworkToPlan, persistent: int, path: Path) -> MovedFile:
    """The file of the best plan of a network, with the room that its own persistent part takes."""
    graph, tail_bytes = network.graph, persistent
    scratch, planned = most_scratch(graph, job.options.library), None
    for _ in range(_ROUNDS):
        memories = _memories(job, persistent, scratch)
        if (
            planned is None
            or memories.fast_capacity < planned.fast_bytes
            or memories.slow_capacity < planned.slow_bytes
        ):
            job.listener.progress("planning both memories")
            planned = _plan(job, network, memories)
        moved = _written(path, graph, planned, network.model, memories)
        tail_bytes = moved.tail_bytes
        if tail_bytes <= persistent:
            _check_allocation(path, graph, memories)
            return moved
        persistent = align_up(tail_bytes + (tail_bytes - persistent) // 4, ALIGNMENT)
    raise LimitReached(
        f"TFLite Micro's persistent part grew with the moves of every plan, last to {format_bytes(tail_bytes)} B; give "
        "more ",
        Setting("fast_bytes"),
    )


def _of_incumbent(job: MemoriesJob, incumbent: Incumbent) -> MovedFile:
    """The file of the incumbent's own plan, for the memories of this job."""
    path, memories = job.folder / "moved_as_before.tflite", incumbent.memories
    moved = _written(path, incumbent.graph, incumbent.plan, incumbent.model, memories)
    if moved.tail_bytes > memories.persistent_bytes:
        raise UsageError(
            Message(
                Setting("incumbent", str(job.options.incumbent)),
                f" has room for {format_bytes(memories.persistent_bytes)} B of TFLite Micro's persistent part, which "
                f"takes {format_bytes(moved.tail_bytes)} B here: fit it again on this host",
            )
        )
    _check_allocation(path, incumbent.graph, memories)
    return moved


def _written(path: Path, graph: Graph, plan: MemoriesPlan, model: MemoryModel, memories: TwoMemories) -> MovedFile:
    """The file of a plan, measured."""
    program = program_of(graph, plan, model)
    export_in_memories(path, graph, program, memories)
    run_path, ran_at = _runnable(path, graph, program, memories)
    tail_bytes = tflm.measure(run_path, steps=1).tail_bytes
    return MovedFile(path, graph, plan, program, memories, tail_bytes, run_path, ran_at)


def _memories(job: MemoriesJob, persistent: int, scratch: int) -> TwoMemories:
    options = job.options
    memories = TwoMemories(
        options.fast_bytes // ALIGNMENT * ALIGNMENT,
        options.slow_bytes // ALIGNMENT * ALIGNMENT,
        options.distance,
        persistent,
        scratch,
        options.library,
        options.persistent,
    )
    taken = (memories.fast_bytes - memories.fast_capacity, memories.slow_bytes - memories.slow_capacity)
    for name, capacity, used in zip(
        ("fast_bytes", "slow_bytes"), (memories.fast_capacity, memories.slow_capacity), taken, strict=True
    ):
        if capacity < ALIGNMENT:
            raise InfeasibleError(
                Message(
                    Setting(name, getattr(options, name)),
                    f" leaves no room for tensors: TFLite Micro's persistent part and the kernels' scratch take "
                    f"{format_bytes(used)} B",
                    *_to_slow_memory(options if name == "fast_bytes" else None),
                ),
                figures={"limit_bytes": getattr(options, name), "least_bytes": used + ALIGNMENT},
            )
    return memories


def _to_slow_memory(options: TwoMemoriesOptions | None) -> tuple[str | Setting, ...]:
    """The end of a message about too little fast memory: the persistent part may lie in slow memory."""
    if options is None or options.persistent == "slow":
        return ()
    return ("; ", Setting("persistent", "slow"), " puts the persistent part into slow memory")


def _check_allocation(path: Path, graph: Graph, memories: TwoMemories) -> None:
    """Raise InfeasibleError where TFLite Micro has no room for its notes while it allocates the tensors of the file."""
    described, noted = (count(path, graph, memories.kernels) for count in (description_bytes, note_bytes))
    fast_room = memories.fast_bytes - memories.fast_persistent_bytes
    in_slow = noted if memories.distance > 0 else noted + described
    needs = ((fast_room, noted + described - in_slow, "fast"), (memories.slow_end, in_slow, "slow"))
    for room, needed, side in needs:
        if room < needed:
            raise InfeasibleError(
                f"{side} memory has {format_bytes(room)} B without the persistent part, and TFLite Micro needs "
                f"{format_bytes(needed)} B there while it allocates tensors",
                figures={"limit_bytes": room, "least_bytes": needed},
            )


def _plan(job: MemoriesJob, network: NetworkToPlan, memories: TwoMemories) -> MemoriesPlan:
    options, budget = job.options, job.budget(network.share)
    try:
        with job.search_time.running():
            return plan_memories(
                network.graph,
                fast=memories.fast_capacity,
                slow=memories.slow_capacity,
                memory=network.model,
                method=network.method,
                prices=options.byte_prices,
                time_limit_s=budget.seconds,
                work_limit=budget.states,
                seed=budget.seed,
            )
    except InfeasibleError as error:
        least = error.figures.get("least_bytes")
        taken = options.fast_bytes - memories.fast_capacity
        kept = "TFLite Micro's persistent part and " if options.persistent == "fast" else ""
        if not isinstance(least, int) or error.figures.get("limit_bytes") != memories.fast_capacity:
            raise
        raise InfeasibleError(
            Message(
                error.message,
                f"; with {format_bytes(taken)} B for {kept}scratch, ",
                Setting("fast_bytes", least + taken),
                " is enough",
            ),
            figures={"limit_bytes": options.fast_bytes, "least_bytes": least + taken},
        ) from None


def _runnable(path: Path, graph: Graph, program: MovedProgram, memories: TwoMemories) -> tuple[Path, int | None]:
    """(the file, or the same at a shorter distance where its own is too long for a run here; that distance)."""
    if memories.span_bytes <= tflm.LARGEST_SPAN:
        return path, None
    shorter = _RUN_DISTANCE if memories.distance > 0 else -_RUN_DISTANCE
    nearer = replace(memories, distance=shorter)
    if nearer.span_bytes > tflm.LARGEST_SPAN or abs(shorter) < max(memories.fast_bytes, memories.slow_bytes):
        raise UnsupportedError(f"memories of {memories.span_bytes:,} bytes of addresses are not run here")
    twin = path.with_stem(f"{path.stem}_nearer")
    export_in_memories(twin, graph, program, nearer)
    return twin, shorter


def _compared(job: MemoriesJob, moved: MovedFile) -> Comparison:
    """The proof of the file and a run of both. Raises InvalidPlan where the two differ."""
    original = Path(job.options.model)
    proof = prove_same(original, moved.path)
    source = FeedSource(None, job.options.seed, job.options.inputs)
    comparison = compare_outputs(original, moved.run_path, runtime="tflm", source=source, proof=proof)
    if not comparison.agrees() or (len(moved.graph.ops) == len(job.graph.ops) and not comparison.equal):
        raise InvalidPlan(
            f"{original}: in TFLite Micro the file with moves differs by up to {comparison.max_abs_error or 0:g} of "
            f"{comparison.largest:g}; nothing written"
        )
    return comparison
