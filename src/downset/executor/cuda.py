"""Runs a program of stages on CUDA: the whole program is captured once into one CUDA graph.

Lanes are streams. Events carry the waits of the program's steps, without those that others imply, into the graph.
PyTorch's allocator knows the order of issue but not which lanes run side by side. So an activation is freed only where
the step that may get its memory runs after all its readers (`_CapturedStorages`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from downset.errors import UnsupportedError
from downset.executor.binder import Binder, KernelCall
from downset.executor.device_clock import need_cuda
from downset.executor.lane_program import LaneProgram, critical_lane
from downset.executor.merged import bind_merged
from downset.kernels.without_autocast import without_autocast
from downset.process.garbage import uncollected

__all__ = ["CudaEngine"]

_WARM_UP = 3
_ALGORITHMS = 4
"""How many of cuDNN's algorithms are timed for each convolution, the likeliest first. Some are compiled for a trial."""


class CudaEngine:
    """A callable that takes the values of `inputs` and returns those of `outputs`. Inputs are copied into static
    tensors. Outputs are static tensors too; the next call overwrites them.

    A call waits for nothing: copies and the graph are work of the stream that is current where it is called, in the
    order of that stream. A call on another stream than the call before comes after that call by an event. An input in
    the CPU's memory is copied into pinned memory first, so the caller may change it as soon as the call returns.

    `captured_bytes`: the most bytes that the capture had allocated at a time; measured. `copies`: how many times the
    graph runs the program, one after another, to time short programs. Raises UnsupportedError naming an operator that
    cannot run in a CUDA graph.
    """

    def __init__(
        self,
        binder: Binder,
        program: LaneProgram,
        *,
        inputs: Sequence[int],
        outputs: Sequence[int],
        values: Sequence[Any],
        copies: int = 1,
    ) -> None:
        torch = self._torch = need_cuda()
        self._program, self._outputs = program, tuple(outputs)
        self._inputs = tuple(inputs)
        self._values: dict[int, Any] = {}  # values that are still held when a copy has been captured
        self._started: list[Any] = []
        self._names = [_names(binder, program, step.units) for step in program.steps]
        self._ended, self._last_stream = torch.cuda.Event(), None
        self._watch: KernelCall | None = None
        self._met: Any = None
        self._now = "its inputs"  # the operators being handled, for messages of failures
        # The lane with most of the longest chain of steps has priority: its kernels start first.
        first = critical_lane(program)
        self._streams = [torch.cuda.Stream(priority=-1 if lane == first else 0) for lane in range(program.lanes)]
        try:
            # cuDNN times and chooses algorithms while calls are bound and warmed up; the capture uses these choices.
            with _plainly(torch), _choosing(torch, True):
                # Never the caller's memory.
                self.static = [binder.place(value, of).clone() for value, of in zip(values, inputs, strict=True)]
                self._fixed = binder.fixed_outputs(outputs)
                self._calls = [self._bind(binder, step) for step in range(len(program.steps))]
                if copies == 1 and (binder.convolutions.fuses or any(len(step.units) > 1 for step in program.steps)):
                    self._watch = self._watching(binder.device)
                self._warm_up()
            # A collection of garbage could destroy another engine's graph during the capture.
            with _plainly(torch), _choosing(torch, False), uncollected():
                self._capture(copies, self._streams[first])
        except RuntimeError as error:  # from PyTorch: out of memory, no kernel, or not allowed in a capture
            # After a failure inside a capture its end fails too; the first error says more.
            cause = error.__context__ if isinstance(error.__context__, RuntimeError) else error
            why = str(cause).strip().partition("\n")[0]
            raise UnsupportedError(f"{self._now} cannot run in a CUDA graph here: {why}") from error
        finally:
            self._values.clear()

    def _bind(self, binder: Binder, step: int) -> tuple[KernelCall, ...]:
        self._now = self._names[step]
        units = [self._program.units[unit] for unit in self._program.steps[step].units]
        return bind_merged(binder, units, threads=1) if len(units) > 1 else binder.bind(units[0])

    def _capture(self, copies: int, main: Any) -> None:
        torch = self._torch
        self.graph = torch.cuda.CUDAGraph()
        # A capture that fails to end leaves its stream current; the outer block restores the stream before. A program
        # of views alone starts no kernel, of which PyTorch warns.
        with warnings.catch_warnings(), torch.cuda.stream(main), torch.cuda.graph(self.graph, stream=main):
            warnings.filterwarnings("ignore", "The CUDA Graph is empty")
            # The beginning of a capture may free memory, so allocated bytes are counted from here.
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            for copy in range(copies):
                if copy:
                    self._join(main)
                self.results = self._issue(main)
            self._join(main)
        self.captured_bytes = torch.cuda.max_memory_allocated() - before

    def __call__(self, values: Sequence[Any], take: Callable[[int, Any], Any] | None = None) -> list[Any]:
        """`take` is called with each output's position and its static tensor, and its results are returned; it may
        issue copies to the current stream."""
        self.launch(values)
        if take is None:
            return list(self.results)
        try:
            return [take(position, value) for position, value in enumerate(self.results)]
        finally:
            self._ended.record(self._last_stream)

    def launch(self, values: Sequence[Any]) -> None:
        """Copy the inputs in and start the graph on the current stream."""
        stream = self._torch.cuda.current_stream()
        if self._last_stream is not None and self._last_stream != stream:
            stream.wait_event(self._ended)
        try:
            with self._torch.no_grad():
                for static, value in zip(self.static, values, strict=True):
                    self._bring(static, value)
            self.graph.replay()
        finally:  # a call that fails has begun work of this stream, too
            self._last_stream = stream
            self._ended.record(stream)

    def _bring(self, static: Any, value: Any) -> None:
        if value.device.type == "cpu":
            # PyTorch gives this memory away again only behind the copy from it.
            pinned = self._torch.empty_like(static, device="cpu", pin_memory=True)
            value = pinned.copy_(value)
        static.copy_(value, non_blocking=True)

    @property
    def met_nonfinite(self) -> bool:
        """Whether a call that has ended had NaN or infinity among its inputs, of which merged convolutions and fused
        activations make other values. Read without waiting, so a call may have ended that this does not tell of yet.
        Always false for a program without them."""
        return self._met is not None and bool(self._met[0])

    def _watching(self, device: str) -> KernelCall:
        """A call that notes, for good, whether an input is not finite, in memory that the CPU reads. It makes no
        tensor of an input's size."""
        torch = self._torch
        noted = torch.zeros(1, dtype=torch.bool, device=device)
        met = self._met = torch.zeros(1, dtype=torch.bool, pin_memory=True)
        pairs = zip(self._inputs, self.static, strict=True)
        floats = tuple(tensor for tensor, value in pairs if value.is_floating_point() or value.is_complex())

        def run(values: list[Any]) -> Sequence[Any]:
            for value in values:
                if value.numel():
                    noted.logical_or_(torch.linalg.vector_norm(value, float("inf")).isfinite().logical_not())
            met.copy_(noted, non_blocking=True)
            return ()

        return KernelCall(floats, (), run)

    def _warm_up(self) -> None:
        """Run every step on its stream, so that cuDNN's plans and cuBLAS's workspaces exist before the capture."""
        torch = self._torch
        for _ in range(_WARM_UP):
            table: dict[int, Any] = dict(zip(self._inputs, self.static, strict=True))
            for step, calls, name in zip(self._program.steps, self._calls, self._names, strict=True):
                self._now = name
                torch.cuda.synchronize()
                with torch.cuda.stream(self._streams[step.lane]):
                    _run(calls, table)
            if self._watch is not None:
                with torch.cuda.stream(self._streams[-1]):
                    _run((self._watch,), table)
        torch.cuda.synchronize()

    def _issue(self, main: Any) -> list[Any]:
        torch = self._torch
        table: dict[int, Any] = {**self._fixed, **dict(zip(self._inputs, self.static, strict=True))}
        storages = _CapturedStorages(self._program, self._calls, table, self._outputs)
        begin = torch.cuda.Event()
        begin.record(main)
        self._started = [main]
        if self._watch is not None:
            watcher = torch.cuda.Stream()
            watcher.wait_event(begin)
            self._started.append(watcher)
            with torch.cuda.stream(watcher):
                _run((self._watch,), table)
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
            storages.let_go(index)
            with torch.cuda.stream(stream):
                _run(calls, table)
            storages.take(index)
            if index in awaited:
                ended[index] = torch.cuda.Event()
                ended[index].record(stream)
        self._values = table
        return [table[tensor] for tensor in self._outputs]

    def _join(self, main: Any) -> None:
        """Make `main` wait for all other streams: a capture must end on the stream on which it began."""
        for stream in self._started:
            if stream is not main:
                event = self._torch.cuda.Event()
                event.record(stream)
                main.wait_event(event)


class _CapturedStorages:
    """The tensors of a capture by the storage that they lie in. Each storage is freed as soon as that is safe.

    The allocator gives a freed block only to later work of the stream on which the block was allocated. So a storage is
    freed before the first step of its lane that runs, in every run, after all steps that make or read a tensor in it. A
    view shares the storage of its source. It is added before that storage is freed, because the step that makes the
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
        """Add the tensors that a step has just made."""
        for tensor in (tensor for call in self._calls[step] for tensor in call.outputs):
            storage = _storage(self._table[tensor])
            if storage not in self._not_ours:
                self._lanes.setdefault(storage, self._program.steps[step].lane)
                self._tensors.setdefault(storage, []).append(tensor)

    def let_go(self, step: int) -> None:
        """Free the storages of a step's lane whose tensors no step from this one on reads."""
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


def _names(binder: Binder, program: LaneProgram, members: Sequence[int]) -> str:
    ops = [binder.graph.ops[op] for unit in members for op in program.units[unit]]
    return "operator " + ", ".join(f"{op.name!r} ({op.kind})" for op in ops)


@contextmanager
def _plainly(torch: Any) -> Iterator[None]:
    """A context without gradients and autocast, whose tensors may be written to in any mode, also where the caller is
    in inference mode."""
    with torch.inference_mode(False), torch.no_grad(), without_autocast():
        yield


@contextmanager
def _choosing(torch: Any, choose: bool) -> Iterator[None]:
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit
    cudnn.benchmark, cudnn.benchmark_limit = choose, _ALGORITHMS
    try:
        yield
    finally:
        cudnn.benchmark, cudnn.benchmark_limit = before


def _run(calls: Sequence[KernelCall], table: dict[int, Any]) -> None:
    for call in calls:
        table.update(zip(call.outputs, call.run([table[tensor] for tensor in call.inputs]), strict=False))
