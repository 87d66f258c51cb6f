"""A program of stages on the CPU: a worker thread a lane, oneDNN's kernels, hand-over by queues.

PyTorch's operators release the interpreter lock, so lanes do run side by side. A region is a run of steps with the same
number of threads a kernel: stages with several groups share the threads out, the others use them all.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from downset.run.bound import Binder, Call
from downset.run.library import torch_library
from downset.run.merged import bind_merged
from downset.run.program import Program
from downset.stages.unit_graph import UnitGraph

__all__ = ["CpuEngine"]


@dataclass(frozen=True, slots=True)
class _Task:
    calls: tuple[Call, ...]
    receive: tuple[SimpleQueue[None], ...]
    send: tuple[SimpleQueue[None], ...]
    drop: tuple[int, ...]  # tensors that nobody reads any more once this task has ended


@dataclass(frozen=True, slots=True)
class _Region:
    threads: int
    lanes: tuple[tuple[_Task, ...], ...]


class CpuEngine:
    """Callable: values of `inputs` to values of `outputs` (tensors of the graph, as PyTorch tensors).

    Close it, or use it in a with statement: it owns threads.
    """

    def __init__(
        self,
        binder: Binder,
        units: UnitGraph,
        program: Program,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        threads: int,
    ) -> None:
        self._torch = torch_library()
        self._inputs, self._outputs, self._threads = tuple(inputs), tuple(outputs), threads
        self._regions = _regions(binder, units, program, set(outputs), threads)
        self._fixed = binder.fixed_outputs(outputs)
        self._workers = [_Worker(lane) for lane in range(1, max((len(r.lanes) for r in self._regions), default=1))]

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        torch = self._torch
        table: dict[int, Any] = {**self._fixed, **dict(zip(self._inputs, values, strict=True))}
        before = torch.get_num_threads()
        try:
            with torch.no_grad():
                for region in self._regions:
                    torch.set_num_threads(region.threads)
                    busy = self._workers[: len(region.lanes) - 1]
                    for worker, tasks in zip(busy, region.lanes[1:], strict=True):
                        worker.start(tasks, table, region.threads)
                    failures = [_execute(region.lanes[0], table)]
                    failures += [worker.wait() for worker in busy]
                    for failure in failures:
                        if failure is not None:
                            raise failure
                return [table[tensor] for tensor in self._outputs]
        finally:
            torch.set_num_threads(before)

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def __enter__(self) -> CpuEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _execute(tasks: Sequence[_Task], table: dict[int, Any]) -> BaseException | None:
    """After a failure the rest is not computed, but its tokens are sent: nobody may wait for ever."""
    failure: BaseException | None = None
    for task in tasks:
        for queue in task.receive:
            queue.get()
        if failure is None:
            try:
                for call in task.calls:
                    table.update(zip(call.outputs, call.run([table[tensor] for tensor in call.inputs]), strict=False))
                for tensor in task.drop:
                    table.pop(tensor, None)
            except BaseException as error:  # handed over to the caller's thread
                failure = error
        for queue in task.send:
            queue.put(None)
    return failure


class _Worker:
    def __init__(self, lane: int) -> None:
        self._orders: SimpleQueue[tuple[Sequence[_Task], dict[int, Any], int] | None] = SimpleQueue()
        self._done: SimpleQueue[BaseException | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"downset-lane-{lane}", daemon=True)
        self._thread.start()

    def start(self, tasks: Sequence[_Task], table: dict[int, Any], threads: int) -> None:
        self._orders.put((tasks, table, threads))

    def wait(self) -> BaseException | None:
        return self._done.get()

    def stop(self) -> None:
        self._orders.put(None)
        self._thread.join()

    def _serve(self) -> None:
        torch = torch_library()
        with torch.no_grad():
            while (order := self._orders.get()) is not None:
                tasks, table, threads = order
                torch.set_num_threads(threads)  # a setting of the calling thread
                self._done.put(_execute(tasks, table))


def _regions(
    binder: Binder, units: UnitGraph, program: Program, outputs: set[int], threads: int
) -> tuple[_Region, ...]:
    lanes_of_stage: dict[int, set[int]] = {}
    for step in program.steps:
        lanes_of_stage.setdefault(step.stage, set()).add(step.lane)
    spans: list[list[int]] = []  # steps by region
    kinds: list[tuple[bool, int]] = []
    for at, step in enumerate(program.steps):
        parallel = len(lanes_of_stage[step.stage]) > 1
        kind = (parallel, step.stage if program.barriers and parallel else -1)
        if not spans or kinds[-1] != kind:
            spans.append([])
            kinds.append(kind)
        spans[-1].append(at)
    drops = _drops(binder, units, program, spans, [parallel for parallel, _ in kinds], outputs)
    regions = []
    for span, (parallel, _) in zip(spans, kinds, strict=True):
        used = sorted({program.steps[at].lane for at in span}) if parallel else [0]
        each = max(1, threads // len(used))
        lanes: dict[int, list[_Task]] = {lane: [] for lane in used}
        inside = set(span)
        edges = {
            (waited, at): SimpleQueue[None]()
            for at in span
            for waited in program.steps[at].waits
            if parallel and waited in inside
        }
        for at in span:
            step = program.steps[at]
            if len(step.units) > 1:
                calls = bind_merged(binder, [units.units[unit] for unit in step.units], threads=each)
            else:
                calls = binder.bind(units.units[step.units[0]], threads=each)
            receive = tuple(queue for (_, target), queue in edges.items() if target == at)
            send = tuple(queue for (source, _), queue in edges.items() if source == at)
            lanes[step.lane if parallel else 0].append(_Task(calls, receive, send, drops[at]))
        regions.append(_Region(each, tuple(tuple(lanes[lane]) for lane in used)))
    return tuple(regions)


def _drops(
    binder: Binder,
    units: UnitGraph,
    program: Program,
    spans: Sequence[Sequence[int]],
    parallel: Sequence[bool],
    outputs: set[int],
) -> Mapping[int, tuple[int, ...]]:
    """By step: what it may drop. A tensor goes with a reader that ends after all its other readers in every run: one in
    a later region, or one that waits for them; failing that, with the first step of the next region."""
    graph = binder.graph
    region_of = {at: number for number, span in enumerate(spans) for at in span}

    def ends_before(one: int, other: int) -> bool:
        same = region_of[one] == region_of[other]
        return bool(program.before[other] >> one & 1) or not same or not parallel[region_of[one]]

    readers: dict[int, list[int]] = {}
    for at, step in enumerate(program.steps):
        for unit in step.units:
            for op in units.units[unit]:
                for tensor in graph.ops[op].inputs:
                    if tensor not in graph.constants:
                        readers.setdefault(tensor, []).append(at)
    drops: dict[int, list[int]] = {at: [] for at in range(len(program.steps))}
    for tensor, steps in readers.items():
        if tensor in outputs:
            continue
        last = max(steps)
        if all(ends_before(at, last) for at in set(steps) - {last}):
            drops[last].append(tensor)
        elif region_of[last] + 1 < len(spans):
            drops[spans[region_of[last] + 1][0]].append(tensor)
    return {at: tuple(dropped) for at, dropped in drops.items()}
