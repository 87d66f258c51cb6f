"""Runs a program of stages on the CPU: a worker thread for each lane, oneDNN's kernels, and queues between lanes.

PyTorch's operators release the interpreter lock, so lanes run side by side. A region is a span of consecutive steps
whose kernels use the same number of threads. A region can end only where all later steps wait for all earlier ones,
such as behind a stage of a program with barriers; so regions add no waiting to the program. The lanes of a region share
the threads equally; a region of steps one after another gives each step all threads. With barriers, therefore, a merged
stage or a stage of one group has all threads.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from queue import SimpleQueue
from typing import Any

from downset.executor.binder import Binder, KernelCall
from downset.executor.lane_program import LaneProgram
from downset.executor.merged import bind_merged
from downset.extras import torch_library
from downset.kernels.without_autocast import without_autocast

__all__ = ["CpuEngine"]


@dataclass(frozen=True, slots=True)
class _LaneTask:
    calls: tuple[KernelCall, ...]
    receive: tuple[SimpleQueue[None], ...]
    send: tuple[SimpleQueue[None], ...]
    drop: tuple[int, ...]  # tensors that no task reads after this one


@dataclass(frozen=True, slots=True)
class _Region:
    threads: int
    lanes: tuple[tuple[_LaneTask, ...], ...]


class CpuEngine:
    """A callable that takes the values of `inputs` as PyTorch tensors and returns those of `outputs`.

    It owns threads: close it, or use it in a with statement. An exception on any lane is raised to the caller.
    """

    def __init__(
        self,
        binder: Binder,
        program: LaneProgram,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        threads: int,
    ) -> None:
        self._torch = torch_library()
        self._inputs, self._outputs = tuple(inputs), tuple(outputs)
        self._made = binder, program, set(outputs), threads
        self._fixed = binder.fixed_outputs(outputs)
        self._open()

    def _open(self) -> None:
        self._regions = _regions(*self._made)
        self._workers = [_LaneThread(lane) for lane in range(1, max((len(r.lanes) for r in self._regions), default=1))]
        self._left = False

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        if self._left:
            self._open()
        torch = self._torch
        table: dict[int, Any] = {**self._fixed, **dict(zip(self._inputs, values, strict=True))}
        before = torch.get_num_threads()
        try:
            with torch.no_grad(), without_autocast():
                for region in self._regions:
                    torch.set_num_threads(region.threads)
                    busy = self._workers[: len(region.lanes) - 1]
                    failures: list[BaseException] = []
                    try:
                        for worker, tasks in zip(busy, region.lanes[1:], strict=True):
                            worker.start(tasks, table, failures, region.threads)
                        _execute(region.lanes[0], table, failures)
                        for worker in busy:
                            worker.wait()
                    except BaseException as error:  # between two kernels, such as KeyboardInterrupt
                        failures.append(error)
                        self._leave()
                        raise
                    if failures:
                        raise failures[0]
                return [table[tensor] for tensor in self._outputs]
        finally:
            torch.set_num_threads(before)

    def _leave(self) -> None:
        """Leave the lanes of a call that ends while they may still run. They compute nothing more, and end. The next
        call makes other lanes and queues, because these hold what this call has sent."""
        self._left = True
        for task in (task for region in self._regions for lane in region.lanes for task in lane):
            for queue in task.send:
                queue.put(None)
        for worker in self._workers:
            worker.leave()
        self._workers = []

    def close(self) -> None:
        for worker in self._workers:
            worker.stop()
        self._workers = []

    def __enter__(self) -> CpuEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _execute(tasks: Sequence[_LaneTask], table: dict[int, Any], failures: list[BaseException]) -> None:
    """Run the tasks of a lane. After a failure on any lane no further call is computed; the tokens are still sent, so
    that no lane waits for ever."""
    for task in tasks:
        for queue in task.receive:
            queue.get()
        if not failures:
            try:
                for call in task.calls:
                    table.update(zip(call.outputs, call.run([table[tensor] for tensor in call.inputs]), strict=False))
                for tensor in task.drop:
                    table.pop(tensor, None)
            except BaseException as error:  # the caller's thread raises it
                failures.append(error)
        for queue in task.send:
            queue.put(None)


class _LaneThread:
    def __init__(self, lane: int) -> None:
        self._orders: SimpleQueue[tuple[Sequence[_LaneTask], dict[int, Any], list[BaseException], int] | None] = (
            SimpleQueue()
        )
        self._done: SimpleQueue[None] = SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=f"downset-lane-{lane}", daemon=True)
        self._thread.start()

    def start(
        self, tasks: Sequence[_LaneTask], table: dict[int, Any], failures: list[BaseException], threads: int
    ) -> None:
        self._orders.put((tasks, table, failures, threads))

    def wait(self) -> None:
        self._done.get()

    def leave(self) -> None:
        """End the thread once it has done its order, and do not wait for that."""
        self._orders.put(None)

    def stop(self) -> None:
        self.leave()
        self._thread.join()

    def _serve(self) -> None:
        torch = torch_library()
        with torch.no_grad():
            while (order := self._orders.get()) is not None:
                tasks, table, failures, threads = order
                torch.set_num_threads(threads)  # a setting of the calling thread
                _execute(tasks, table, failures)
                self._done.put(None)


def _regions(binder: Binder, program: LaneProgram, outputs: set[int], threads: int) -> tuple[_Region, ...]:
    drops = _drops(binder, program, outputs)
    regions = []
    for span in _spans(program):
        # A span that could not be cut holds steps that may run side by side; all other spans are in sequence.
        parallel = not _in_a_row(program, span)
        used = (
            sorted({program.steps[position].lane for position in span}) if parallel else [program.steps[span[0]].lane]
        )
        each = max(1, threads // len(used))
        lanes: dict[int, list[_LaneTask]] = {lane: [] for lane in used}
        edges = {
            (waited, position): SimpleQueue[None]()
            for position in span
            for waited in program.steps[position].waits
            if parallel and waited in span
        }
        for position in span:
            step = program.steps[position]
            units = [program.units[unit] for unit in step.units]
            calls = bind_merged(binder, units, threads=each) if len(units) > 1 else binder.bind(units[0], threads=each)
            receive = tuple(queue for (_, target), queue in edges.items() if target == position)
            send = tuple(queue for (source, _), queue in edges.items() if source == position)
            lanes[step.lane if parallel else used[0]].append(_LaneTask(calls, receive, send, drops[position]))
        regions.append(_Region(each, tuple(tuple(lanes[lane]) for lane in used)))
    return tuple(regions)


def _in_a_row(program: LaneProgram, steps: Sequence[int]) -> bool:
    return all(program.before[later] >> earlier & 1 for earlier, later in pairwise(steps))


def _spans(program: LaneProgram) -> list[range]:
    """The steps of each region. A cut is where all later steps wait for all earlier ones; then neighbours of one step
    each are joined into one region."""
    common = [0] * len(program.steps)  # mask of the steps that this step and all later ones wait for
    mask = -1
    for step in reversed(range(len(program.steps))):
        mask &= program.before[step]
        common[step] = mask
    cuts = [step for step in range(1, len(program.steps)) if common[step] & (whole := (1 << step) - 1) == whole]
    spans: list[range] = []
    for start, stop in pairwise([0, *cuts, len(program.steps)] if program.steps else []):
        if spans and stop - start == 1 and _in_a_row(program, spans[-1]):
            spans[-1] = range(spans[-1].start, stop)
        else:
            spans.append(range(start, stop))
    return spans


def _drops(binder: Binder, program: LaneProgram, outputs: set[int]) -> Mapping[int, tuple[int, ...]]:
    """The tensors that each step drops when it ends. A tensor is dropped by the first step for which, in every run, all
    other readers of the tensor have ended before."""
    graph = binder.graph
    readers: dict[int, int] = {}
    for index, step in enumerate(program.steps):
        for unit in step.units:
            for op in program.units[unit]:
                for tensor in graph.ops[op].inputs:
                    if tensor not in graph.constants:
                        readers[tensor] = readers.get(tensor, 0) | 1 << index
    drops: dict[int, list[int]] = {index: [] for index in range(len(program.steps))}
    for tensor, steps in readers.items():
        if tensor not in outputs:
            after = range(steps.bit_length() - 1, len(program.steps))
            last = next((index for index in after if steps & ~(program.before[index] | 1 << index) == 0), None)
            if last is not None:
                drops[last].append(tensor)
    return {index: tuple(dropped) for index, dropped in drops.items()}
