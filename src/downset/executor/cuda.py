"""A program of stages on CUDA: the whole of it captured once into one graph.

Lanes are streams. Only the edges of the program survive the capture, as events; they are the transitive reduction of
what its steps wait for. PyTorch's allocator knows the order of issue, not which lanes run side by side: an intermediate
is let go only where what may get its memory runs after everybody who reads it (`_CapturedStorages`).
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from downset.errors import UnsupportedError
from downset.executor.binder import Binder, KernelCall
from downset.executor.lane_program import LaneProgram, critical_lane
from downset.executor.merged import bind_merged
from downset.extras import torch_library
from downset.stages.unit_graph import UnitGraph

__all__ = ["CudaEngine", "need_cuda"]

_WARM_UP = 3
_ALGORITHMS = 4
"""How many algorithms of cuDNN are timed for each convolution, the likeliest first: some are compiled when tried."""


def need_cuda() -> Any:
    """The torch module. Raises UnsupportedError where there is no CUDA device."""
    torch = torch_library()
    if not torch.cuda.is_available():
        raise UnsupportedError(
            "no CUDA device on this machine (torch.cuda.is_available() is false); a plan for the CPU is made with "
            "`downset stage --device cpu`"
        )
    return torch


class CudaEngine:
    """Callable: values of `inputs` to values of `outputs`. Inputs are copied into static tensors; outputs are static
    too, valid until the next call.

    `captured_bytes`: the most that the capture had allocated at a time. Measured.

    `copies`: the program so many times in a row, each waiting for the one before, to time what is short.
    """

    def __init__(
        self,
        binder: Binder,
        units: UnitGraph,
        program: LaneProgram,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: Sequence[Any],
        copies: int = 1,
    ) -> None:
        torch = self._torch = need_cuda()
        self._program, self._outputs = program, tuple(outputs)
        self._given = tuple(inputs)
        self._held: dict[int, Any] = {}  # what the capture of a copy still holds when it ends
        self._started: list[Any] = []
        self._names = [_names(binder, units, step.units) for step in program.steps]
        self._now = "its inputs"  # what is being done, for a failure's message
        # The lane that has most of the longest chain of steps: its kernels go first where there is a choice.
        first = critical_lane(program)
        self._streams = [torch.cuda.Stream(priority=-1 if lane == first else 0) for lane in range(program.lanes)]
        try:
            # cuDNN chooses algorithms where calls are bound and warmed up, by timing them; the capture looks them up.
            with torch.no_grad(), _choosing(torch, True):
                self.static = [binder.place(value).clone() for value in values]  # never the caller's own memory
                self._fixed = binder.fixed_outputs(outputs)
                self._calls = [self._bind(binder, units, step) for step in range(len(program.steps))]
                self._warm_up()
            with torch.no_grad(), _choosing(torch, False), _uncollected():
                self._capture(copies, self._streams[first])
        except RuntimeError as error:  # of PyTorch: no memory, no kernel, nothing that a capture allows
            # The end of a capture that failed fails as well, and says less than what went before.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            why = str(cause).strip().partition("\n")[0]
            raise UnsupportedError(f"{self._now} cannot run in a CUDA graph here: {why}") from error
        finally:
            self._held.clear()

    def _bind(self, binder: Binder, units: UnitGraph, step: int) -> tuple[KernelCall, ...]:
        self._now = self._names[step]
        members = self._program.steps[step].units
        if len(members) > 1:
            return bind_merged(binder, [units.units[unit] for unit in members], threads=1)
        return binder.bind(units.units[members[0]])

    def _capture(self, copies: int, main: Any) -> None:
        torch = self._torch
        self.graph = torch.cuda.CUDAGraph()
        # A capture that fails to end leaves its stream the current one: the outer block takes it back.
        with torch.cuda.stream(main), torch.cuda.graph(self.graph, stream=main):
            # Beginning a capture may collect garbage, so what is allocated is counted from here.
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            for copy in range(copies):
                if copy:
                    self._join(main)
                self.results = self._issue(main)
            self._join(main)
        self.captured_bytes = torch.cuda.max_memory_allocated() - before

    def __call__(self, values: Sequence[Any]) -> list[Any]:
        self.launch(values)
        self._torch.cuda.synchronize()
        return list(self.results)

    def launch(self, values: Sequence[Any]) -> None:
        """Copy the inputs in and start the graph; nothing is waited for."""
        for static, value in zip(self.static, values, strict=True):
            static.copy_(value)
        self.graph.replay()

    def _warm_up(self) -> None:
        """Each call on its own stream: plans of cuDNN, workspaces of cuBLAS."""
        torch = self._torch
        for _ in range(_WARM_UP):
            table: dict[int, Any] = dict(zip(self._given, self.static, strict=True))
            for step, calls, name in zip(self._program.steps, self._calls, self._names, strict=True):
                self._now = name
                torch.cuda.synchronize()
                with torch.cuda.stream(self._streams[step.lane]):
                    _run(calls, table)
        torch.cuda.synchronize()

    def _issue(self, main: Any) -> list[Any]:
        torch = self._torch
        table: dict[int, Any] = {**self._fixed, **dict(zip(self._given, self.static, strict=True))}
        held = _CapturedStorages(self._program, self._calls, table, self._outputs)
        begin = torch.cuda.Event()
        begin.record(main)
        self._started = [main]
        awaited = {wait for step in self._program.steps for wait in step.waits}
        ended: dict[int, Any] = {}
        for index, (step, calls) in enumerate(zip(self._program.steps, self._calls, strict=True)):
            self._now = self._names[index]
            stream = self._streams[step.lane]
            if stream not in self._started:
                stream.wait_event(begin)
                self._started.append(stream)
            for wait in step.waits:
                stream.wait_event(ended[wait])
            held.let_go(index)
            with torch.cuda.stream(stream):
                _run(calls, table)
            held.take(index)
            if index in awaited:
                ended[index] = torch.cuda.Event()
                ended[index].record(stream)
        self._held = table
        return [table[tensor] for tensor in self._outputs]

    def _join(self, main: Any) -> None:
        """The capture must end on the stream it began on."""
        for stream in self._started:
            if stream is not main:
                event = self._torch.cuda.Event()
                event.record(stream)
                main.wait_event(event)


class _CapturedStorages:
    """The tensors of a capture by the storage that they lie in; each storage is let go as soon as that is safe.

    The allocator gives a freed block to later work of the stream that it was allocated on, and to no other. So a
    storage is let go before the first step of its lane that runs, in every run, after all steps that make or read a
    tensor in it. A view shares the storage of its source, and joins before that is let go, for the step that makes the
    view reads the source.
    """

    def __init__(
        self, program: LaneProgram, calls: Sequence[Sequence[KernelCall]], table: dict[int, Any], outputs: Sequence[int]
    ) -> None:
        self._program, self._calls, self._table = program, calls, table
        self._touched: dict[int, int] = {}  # tensor -> mask of the steps that make or read it
        for index, step in enumerate(calls):
            for call in step:
                for tensor in (*call.inputs, *call.outputs):
                    self._touched[tensor] = self._touched.get(tensor, 0) | 1 << index
        self._touched.update(dict.fromkeys(outputs, -1))  # valid after the last step
        self._not_ours = {_storage(value) for value in table.values()}
        self._lanes: dict[int, int] = {}  # storage -> the lane that it was allocated on
        self._tensors: dict[int, list[int]] = {}  # storage -> tensors that lie in it

    def take(self, step: int) -> None:
        """Hold what a step has just made."""
        for tensor in (tensor for call in self._calls[step] for tensor in call.outputs):
            storage = _storage(self._table[tensor])
            if storage not in self._not_ours:
                self._lanes.setdefault(storage, self._program.steps[step].lane)
                self._tensors.setdefault(storage, []).append(tensor)

    def let_go(self, step: int) -> None:
        """Drop what nobody reads any more when a step begins, if its memory is for the step's lane."""
        lane, ended = self._program.steps[step].lane, self._program.before[step]
        for storage in [storage for storage, home in self._lanes.items() if home == lane]:
            tensors = self._tensors[storage]
            if all(self._touched[tensor] & ~ended == 0 for tensor in tensors):
                del self._lanes[storage], self._tensors[storage]
                _drop(self._table, tensors)


def _storage(value: Any) -> int:
    return int(value.untyped_storage().data_ptr())


def _drop(table: dict[int, Any], tensors: Sequence[int]) -> None:
    for tensor in tensors:
        del table[tensor]


def _names(binder: Binder, units: UnitGraph, members: Sequence[int]) -> str:
    ops = [binder.graph.ops[op] for unit in members for op in units.units[unit]]
    return "operator " + ", ".join(f"{op.name!r} ({op.kind})" for op in ops)


@contextmanager
def _choosing(torch: Any, choose: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = choose, _ALGORITHMS
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before


@contextmanager
def _uncollected() -> Iterator[None]:
    """Suspend the garbage collector: it could destroy another engine's graph in the middle of a capture."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _run(calls: Sequence[KernelCall], table: dict[int, Any]) -> None:
    for call in calls:
        table.update(zip(call.outputs, call.run([table[tensor] for tensor in call.inputs]), strict=False))
