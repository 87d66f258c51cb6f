"""Serves a model on the devices of a cluster: takes frames and returns outputs in the order of the frames."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from downset.distributed.serving.deployment import Shards, spare_frames_of
from downset.distributed.serving.driver import Driver
from downset.distributed.serving.fleet import Fleet
from downset.distributed.serving.planning import Planning
from downset.distributed.serving.ray_fleet import cluster
from downset.distributed.serving.run import ServingSettings
from downset.errors import UsageError
from downset.formats.reading import load
from downset.graph.core import Graph
from downset.joint.check import verify
from downset.results.pipelines import Pipeline
from downset.results.serving import RanTask, Served

__all__ = ["RunningPipeline", "ServingSettings", "run_on", "serve"]

Array = npt.NDArray[Any]
Frame = Array | Sequence[Array] | Mapping[str, Array]
_WAITING_FRAMES = 8


class _Inbox:
    """The results in the order of the frames, shared by the driver's thread and the user's."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.results: deque[list[Array]] = deque()
        self.is_ready = False
        self.error: BaseException | None = None

    def deliver(self, outputs: list[Array]) -> None:
        with self.changed:
            self.results.append(outputs)
            self.changed.notify_all()

    def ready(self) -> None:
        with self.changed:
            self.is_ready = True
            self.changed.notify_all()

    def fail(self, error: BaseException) -> None:
        with self.changed:
            self.error = error
            self.changed.notify_all()


class RunningPipeline:
    """A pipeline that runs until it is closed. For live frames, as from a camera, one thread calls `submit` for each
    frame as it comes while another takes results from `results(wait=True)`; `finish` ends that iterator."""

    def __init__(
        self, graph: Graph, plan: Pipeline, driver: Driver, inbox: _Inbox, *, spare_frames: int | None = None
    ) -> None:
        self._graph, self._driver, self._inbox, self._closes = graph, driver, inbox, ExitStack()
        window = 1 if plan.schedule is None else plan.schedule.window
        self.capacity = 2 * window + spare_frames_of(plan, spare_frames) + _WAITING_FRAMES
        """How many frames may be submitted whose results have not been taken. It bounds memory."""
        self._submitted = self._taken = 0
        self._reader: threading.Thread | None = None
        self._closed = self._finished = False

    def __repr__(self) -> str:
        state = "closed" if self._closed else "open"
        return f"<RunningPipeline, {state}: {self._submitted} frames submitted, {self._taken} results taken>"

    def __enter__(self) -> RunningPipeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __iter__(self) -> Iterator[dict[str, Array]]:
        return self.results()

    def submit(self, frame: Frame) -> int:
        """Hand over a frame: an array, or one for each input by name or in order. Returns the frame's number, from 0.

        Waits while `capacity` frames are on their way. Raises UsageError for arrays of another shape or type than the
        network's inputs, or if it would wait for results that nobody takes; and the error that ended the pipeline."""
        inputs = self.inputs_of(frame)
        inbox = self._inbox
        with inbox.changed:
            while self._submitted - self._taken >= self.capacity:
                self._check()
                if not self._is_read_elsewhere() and len(inbox.results) == self._submitted - self._taken:
                    raise UsageError(
                        f"{self.capacity} results wait to be taken: take them from the iterator between two calls of "
                        "submit, or hand an iterable of frames to `run`"
                    )
                inbox.changed.wait(0.5)
            self._check()
            if self._finished:
                raise UsageError("no frame can be submitted after `finish`")
            self._submitted += 1
            number = self._submitted - 1
        self._driver.submit(inputs)
        return number

    def _is_read_elsewhere(self) -> bool:
        """Whether another thread takes results, or may go on to do so."""
        reader = self._reader
        return reader not in (None, threading.current_thread()) and reader.is_alive()

    def results(self, *, wait: bool = False) -> Iterator[dict[str, Array]]:
        """The outputs of the frames by name, in the order of the frames. The iterator ends when the results of all
        submitted frames were taken; with `wait` it waits for frames that are still to be submitted, until `finish`.

        Raises the error that ended the pipeline, after all results that were finished before it."""
        self._reader = threading.current_thread()
        while True:
            with self._inbox.changed:
                while not self._inbox.results:
                    if self._taken == self._submitted and (self._finished or not wait):
                        return
                    self._check()
                    self._inbox.changed.wait(0.5)
                result = self._take()
            try:
                yield result
            except GeneratorExit:  # nobody takes the next one
                self._reader = None
                raise

    def finish(self) -> None:
        """State that no frame will be submitted any more: `results(wait=True)` ends after the last result."""
        with self._inbox.changed:
            self._finished = True
            self._inbox.changed.notify_all()

    def inputs_of(self, frame: Frame) -> tuple[Array, ...]:
        """The arrays of a frame in the order of the network's inputs. Raises UsageError for arrays of another shape or
        type; any values are right, NaN too."""
        return _inputs(self._graph, frame)

    def run(self, frames: Iterable[Frame]) -> Iterator[dict[str, Array]]:
        """The outputs of these frames, in their order. Frames are taken from the iterable as they are needed."""
        self._reader = threading.current_thread()
        for frame in frames:
            with self._inbox.changed:
                while self._submitted - self._taken >= self.capacity and not self._inbox.results:
                    self._check()
                    self._inbox.changed.wait(0.5)
                results = [self._take() for _ in range(len(self._inbox.results))]
            yield from results
            self.submit(frame)
        yield from self.results()

    def _take(self) -> dict[str, Array]:
        self._taken += 1
        outputs = self._inbox.results.popleft()
        self._inbox.changed.notify_all()
        return {self._graph.tensors[t].name: value for t, value in zip(self._graph.outputs, outputs, strict=True)}

    def _check(self) -> None:
        if self._inbox.error is not None:
            raise self._inbox.error
        if self._closed:
            raise UsageError("the pipeline is closed")

    def closes(self, stack: ExitStack) -> None:
        """Close what is on this stack when the pipeline is closed."""
        self._closes.enter_context(stack)

    def wait_ready(self) -> None:
        """Wait until the devices have joined and have their shards. Raises the error that prevents this."""
        with self._inbox.changed:
            while not self._inbox.is_ready:
                self._check()
                self._inbox.changed.wait(0.5)

    def report(self) -> Served:
        """The figures of the run so far."""
        self._driver.settle()
        return self.figures()

    def figures(self) -> Served:
        """The figures so far, without those of tasks that devices have yet to report."""
        return self._driver.record.served(self._submitted, time.monotonic())

    def ran(self) -> tuple[Pipeline, tuple[RanTask, ...]]:
        """The plan in use, and the latest of its tasks that devices ran: (frame, task, begin, end) in seconds."""
        self._driver.settle()
        return self._driver.record.ran()

    def close(self) -> None:
        """Stop, and end every process that was started for the pipeline."""
        if not self._closed:
            self._closed = True
            with self._inbox.changed:
                self._inbox.changed.notify_all()
            self._driver.stop()
            self._closes.close()


def serve(  # noqa: PLR0913 - users know its keywords
    model: str | os.PathLike[str] | Graph,
    plan: Pipeline,
    *,
    head: str | None = None,
    keys: str | os.PathLike[str] | None = None,
    threads: int = 0,
    gather_s: float = 60.0,
    ahead: bool = True,
    spare_frames: int | None = None,
    prepares: None = None,
) -> RunningPipeline:
    """Run a model on the devices of a plan. Use the result as a context, so that everything ends with it.

    `head`: HOST:PORT that Ray's head listens on, which is started here. `downset worker` must run on every device of
    the plan's cluster, and `keys` is this machine's folder of keys. None: each device is a node on this machine, on
    loopback. `threads`: of ONNX Runtime on each device (0: as many as it has cores, or one if all are on this machine).
    `ahead`: plan for the loss of each device in advance and place the shards of these plans. `spare_frames`: the most
    frames inside beyond the plan's frame window, if memory has room; None: as many as the frame window has, and at
    least 3. They keep the plan's period when times vary; each of them lengthens latencies. `prepares`: the old name of
    `ahead`, which is refused.

    Raises UsageError if a device of the plan does not join within `gather_s` seconds, a port is in use or there is no
    memory for the object store; InvalidPlan for a plan of another model; UnsupportedError for plans and models that
    shards cannot hold."""
    if prepares is not None:
        raise UsageError("serve: prepares= is called ahead= now")
    graph = model if isinstance(model, Graph) else _planned(model, plan)
    verify(graph, plan)
    with ExitStack() as stack:
        shards = Shards(graph, Path(stack.enter_context(TemporaryDirectory(prefix="downset-shards-"))))
        stack.callback(shards.close)
        shards.deployment(plan)  # what cannot be exported is reported before anything is started
        fleet = stack.enter_context(cluster(_names(plan), head=head, keys=keys, threads=threads))
        settings = ServingSettings(gather_s=gather_s, ahead=ahead, spare_frames=spare_frames)
        pipeline = run_on(fleet, graph, plan, shards, settings)
        pipeline.closes(stack.pop_all())
    return pipeline


def _planned(model: str | os.PathLike[str], plan: Pipeline) -> Graph:
    """The network in a file as it was planned: as `load` reads it, or, with fewer operators, with what follows from
    sizes as constants, as commands plan it."""
    graph = load(model)
    if len(graph.ops) == (operators := sum(len(stage.ops) for stage in plan.stages)):
        return graph
    folded = load(model, folded=True)
    return folded if len(folded.ops) == operators else graph


def run_on(
    fleet: Fleet, graph: Graph, plan: Pipeline, shards: Shards, settings: ServingSettings | None = None
) -> RunningPipeline:
    """Run a plan of a graph on devices of `fleet` that have joined or will join. Unlike `serve`, it starts no processes
    and ends none."""
    inbox, settings = _Inbox(), settings or ServingSettings()
    driver = Driver(fleet, shards, plan, Planning(graph, plan), inbox, settings)
    driver.start()
    pipeline = RunningPipeline(graph, plan, driver, inbox, spare_frames=settings.spare_frames)
    try:
        pipeline.wait_ready()
    except BaseException:
        pipeline.close()
        raise
    return pipeline


def _names(plan: Pipeline) -> list[str]:
    return [device.name for device in plan.cluster.devices]


def _inputs(graph: Graph, frame: Frame) -> tuple[Array, ...]:
    """The frame's arrays in the order of the network's inputs."""
    metas = [graph.tensors[tensor] for tensor in graph.inputs]
    if isinstance(frame, Mapping):
        missing = [meta.name for meta in metas if meta.name not in frame]
        if missing or len(frame) != len(metas):
            raise UsageError(f"a frame has {', '.join(map(repr, frame))}; the inputs are {[m.name for m in metas]}")
        arrays: list[Any] = [frame[meta.name] for meta in metas]
    else:
        arrays = list(frame) if isinstance(frame, list | tuple) else [frame]
    if len(arrays) != len(metas):
        raise UsageError(f"a frame has {len(arrays)} arrays, and the network {len(metas)} inputs")
    for meta, array in zip(metas, arrays, strict=True):
        if not isinstance(array, np.ndarray) or array.shape != meta.shape or str(array.dtype) != meta.dtype:
            form = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else type(array).__name__
            raise UsageError(f"input {meta.name!r} is {meta.dtype} {list(meta.shape)}; the frame has {form}")
    return tuple(np.ascontiguousarray(array) for array in arrays)
