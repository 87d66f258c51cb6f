"""A file that was fitted to no more memory, as the incumbent of a fit: its network without its moves, and its plan."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from downset.errors import InvalidPlan, UsageError
from downset.fitting.memories_networks import MemoriesJob, most_scratch
from downset.fitting.memories_of_file import PlacedStorages, plan_of_file
from downset.formats.reading import check_readable, load
from downset.formats.tflite.read_moves import write_without_moves
from downset.graph.core import Graph
from downset.memories.bound import order_free_bound
from downset.memories.of_graph import MemoriesForm, MemoriesRequest, memories_form
from downset.memory.models import TFLM_WITHOUT_OFFSETS, MemoryModel, memory_model
from downset.messages import Message, Setting
from downset.results.memories import MemoriesPlan
from downset.results.two_memories import ALIGNMENT, TwoMemories
from downset.runtimes.compare import prove_same
from downset.text import format_bytes

__all__ = ["Incumbent", "read_incumbent"]

_BOUND_SHARE, _BOUND_NODES = 0.05, 1_500


class Incumbent(NamedTuple):
    """The network of the file, the model under which it was planned, its plan, and the memories of this fit with the
    file's persistent part."""

    graph: Graph
    model: MemoryModel
    plan: MemoriesPlan
    memories: TwoMemories


def read_incumbent(job: MemoriesJob) -> Incumbent | None:
    """The incumbent that the options name; None without one. Raises UsageError for a file that was not fitted to two
    memories from this model, or takes more of a memory than there is."""
    options = job.options
    if options.incumbent is None:
        return None
    path = Path(options.incumbent)
    check_readable(path)
    said = Setting("incumbent", str(path))
    target = job.folder / "incumbent.tflite"
    placed = write_without_moves(path, target)
    if not prove_same(options.model, path).proven:
        raise UsageError(Message(said, f" is not proven to compute what {options.model} computes"))
    graph = load(target)
    whole = len(graph.ops) == len(job.graph.ops)
    model = memory_model("tflm") if whole else TFLM_WITHOUT_OFFSETS
    memories = TwoMemories(
        options.fast_bytes // ALIGNMENT * ALIGNMENT,
        options.slow_bytes // ALIGNMENT * ALIGNMENT,
        options.distance,
        placed.memories.persistent_bytes,
        most_scratch(graph, options.library),
        options.library,
        options.persistent,
    )
    reading = PlacedStorages(graph, model, placed)
    for name, room, taken in (
        ("fast_bytes", memories.fast_capacity, reading.fast_bytes),
        ("slow_bytes", memories.slow_capacity, reading.slow_bytes),
    ):
        if taken > room:
            needed = getattr(options, name) - room + taken
            raise UsageError(
                Message(
                    said,
                    f" takes {format_bytes(needed)} B, more than ",
                    Setting(name, getattr(options, name)),
                    ": give a file that was fitted to less memory",
                )
            )
    request = MemoriesRequest(memories.fast_capacity, model, prices=options.byte_prices)
    try:
        return Incumbent(graph, model, _with_bound(job, memories_form(graph, request), reading), memories)
    except InvalidPlan as error:
        raise UsageError(Message(said, " has no plan that is understood: ", error.message)) from None


def _with_bound(job: MemoriesJob, form: MemoriesForm, reading: PlacedStorages) -> MemoriesPlan:
    plan = plan_of_file(reading, form)
    cost = round(plan.evidence.value * form.scale)
    with job.search_time.running():
        budget = job.budget(_BOUND_SHARE)
        clock = budget.start().part(seconds=budget.seconds, states=_BOUND_NODES)
        bound = order_free_bound(form.problem, cost, clock=clock)
    evidence = replace(plan.evidence, bound=bound / form.scale, proven=bound >= cost)
    return replace(plan, evidence=evidence, order_bound=evidence.bound)
