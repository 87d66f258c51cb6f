"""A stand-in for torch.cuda on the CPU: it keeps streams, events and calls, and replays what it captured in any order
that streams and events allow, for nothing else survives in a CUDA graph. What the engine lets go in a capture is spoilt
in the replay by the next item of the stream it was allocated on, which may get that memory. Calls must fit torch's own
signatures."""

import inspect
import random
import time
from contextlib import contextmanager

import torch
from torch.overrides import TorchFunctionMode

from downset.executor import cuda

REAL = {name: getattr(torch.cuda, name) for name in ("Stream", "Event", "graph", "stream")}


def fits(signature, *args, **kwargs):
    inspect.signature(signature).bind(*args, **kwargs)


class StandIn:
    def __init__(self, seed=0):
        self.random = random.Random(seed)
        self.default = self.current = self.capturing = None
        self.after = {}  # item -> items it comes after
        self.calls = {}  # item -> (calls, their table as it was)
        self.tail = {}  # stream -> its last item
        self.made_on = {}  # storage -> the stream it was allocated on
        self.spoils = {}  # stream -> tensors whose memory its next item may get
        self.spoilt = {}  # item -> tensors whose memory it may get
        self.allocated = self.most_allocated = 0
        self.garbage = 0  # bytes that nobody reaches, freed where a capture begins
        self.replays = self.waits = self.pinned = 0
        outer = self

        class Stream:
            def __init__(self, *args, **kwargs):
                fits(REAL["Stream"].__new__, None, *args, **kwargs)
                self.priority = kwargs.get("priority", 0)

            def wait_event(self, event):
                assert event.item is not None, "waits for an event that was never recorded"
                outer.add(self, extra={event.item})

        class Event:
            item = None

            def __init__(self, *args, **kwargs):
                fits(REAL["Event"].__new__, None, *args, **kwargs)
                self.timed = kwargs.get("enable_timing", False)

            def record(self, stream=None):
                assert not (self.timed and outer.capturing), "a timed event in a capture"
                self.item, self.at = outer.add(stream or outer.current), time.perf_counter()

            def query(self):
                return False

            def elapsed_time(self, end):
                assert self.timed and end.timed, "these events take no times"
                return 1e3 * max(end.at - self.at, 1e-9)

        class CUDAGraph:
            def replay(self):
                outer.replay(self)

        self.Stream, self.Event, self.CUDAGraph = Stream, Event, CUDAGraph
        self.default = self.current = Stream()

    def add(self, stream, extra=frozenset()):
        item = len(self.after)
        before = {self.tail[stream]} if stream in self.tail else set()
        self.after[item] = before | set(extra)
        self.tail[stream] = item
        self.spoilt[item] = self.spoils.pop(stream, [])
        return item

    def allocate(self, value):
        """Counts a storage when it is first seen."""
        storage = value.untyped_storage()
        if storage.data_ptr() not in self.made_on:
            self.made_on[storage.data_ptr()] = self.current
            self.allocated += storage.nbytes()
            self.most_allocated = max(self.most_allocated, self.allocated)

    def free(self, values):
        """All tensors of one storage, which this keeps from being used again: tensors stay told apart by address."""
        storage = values[0].untyped_storage()
        assert all(value.untyped_storage().data_ptr() == storage.data_ptr() for value in values)
        self.allocated -= storage.nbytes()
        self.spoils.setdefault(self.made_on[storage.data_ptr()], []).extend(values)

    def behind(self, item):
        seen, stack = set(), list(self.after[item])
        while stack:
            at = stack.pop()
            if at not in seen:
                seen.add(at)
                stack += self.after[at]
        return seen

    @contextmanager
    def graph(self, *args, **kwargs):
        fits(REAL["graph"].__init__, None, *args, **kwargs)
        assert self.capturing is None, "one capture inside another"
        assert not torch.is_autocast_enabled("cpu"), "a capture in other element types than the graph's"
        self.synchronize()
        self.after, self.calls, self.tail, self.spoils, self.spoilt, self.made_on = {}, {}, {}, {}, {}, {}
        self.allocated = self.most_allocated = self.garbage = 0
        self.capturing = self.current = kwargs["stream"]
        before = self.default
        try:
            yield
        except BaseException:
            self.capturing = None  # as torch has it: the end fails too, and the stream stays the current one
            raise RuntimeError("CUDA error: operation failed due to a previous error during capture") from None
        end = self.tail[self.capturing]
        assert all(item == end or item in self.behind(end) for item in self.after), "unjoined work at the end"
        self.capturing, self.current = None, before
        args[0].captured = self.after, self.calls, self.spoilt

    def replay(self, graph):
        """Every call again, behind what the edges say and otherwise as chance has it."""
        self.replays += 1
        after, calls, spoilt = graph.captured
        left, done = set(after), set()
        while left:
            ready = sorted(item for item in left if after[item] <= done)
            item = self.random.choice(ready)
            left.remove(item)
            done.add(item)
            for value in spoilt.get(item, ()):
                value.fill_(float("nan") if value.is_floating_point() else 1)
            for call, table in calls.get(item, ()):
                with torch.autocast("cpu", enabled=False):  # what was captured knows no modes
                    results = call.run([table[tensor] for tensor in call.inputs])
                for tensor, result in zip(call.outputs, results, strict=False):
                    target, result = table[tensor], result.clone()
                    for axis in (axis for axis, stride in enumerate(target.stride()) if not stride):
                        target, result = target.narrow(axis, 0, 1), result.narrow(axis, 0, 1)
                    target.copy_(result)

    @contextmanager
    def stream(self, stream):
        fits(REAL["stream"], stream)
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def current_stream(self):
        return self.current

    def sleep(self, cycles):
        assert cycles > 0

    def synchronize(self):
        self.waits += 1
        assert self.capturing is None, "a capture must not synchronise"


_READS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist", "numpy", "cpu", "nonzero", "equal")


class _OnCpu(TorchFunctionMode):
    """Tensors for cuda come to be on the CPU, and those for pinned memory, which are counted, in any. What reads a
    tensor that is not in pinned memory waits for the device, and so does a copy between two of these from the CPU."""

    def __init__(self, made):
        super().__init__()
        self.made, self.pinned = made, {}

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = self._called(function, args, kwargs or {})
        if (kwargs or {}).get("pin_memory"):
            self.made.pinned += 1
            self.pinned[result.untyped_storage().data_ptr()] = result
        return result

    def _called(self, function, args, kwargs):
        tensors = [value for value in args if isinstance(value, torch.Tensor)]
        reads = getattr(function, "__name__", "") in _READS
        moves = function is torch.Tensor.copy_ and kwargs.get("non_blocking")
        if (reads or moves) and not any(value.untyped_storage().data_ptr() in self.pinned for value in tensors):
            self.made.waits += 1
        args = tuple("cpu" if isinstance(value, str) and value == "cuda" else value for value in args)
        kwargs = {key: value for key, value in kwargs.items() if key != "pin_memory"}
        kwargs = {key: "cpu" if key == "device" and value == "cuda" else value for key, value in kwargs.items()}
        return function(*args, **kwargs)


def fused(image, weights, bias, stride, padding, dilation, groups):
    """torch.cudnn_convolution_relu, by what its schema and cuDNN ask for."""
    schema = torch.ops.aten.cudnn_convolution_relu.default._schema
    names = [argument.name for argument in schema.arguments]
    assert names == ["self", "weight", "bias", "stride", "padding", "dilation", "groups"]
    assert image.dtype == weights.dtype == bias.dtype
    for tensor in (image, weights):
        assert tensor.is_contiguous(memory_format=torch.channels_last)
    return torch.nn.functional.conv2d(image, weights, bias, stride, padding, dilation, groups).relu_()


@contextmanager
def standing_in(monkeypatch):
    """In the place of torch.cuda, for a test's time."""
    made = StandIn()
    for name in ("Stream", "Event", "CUDAGraph", "graph", "stream", "synchronize", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, getattr(made, name))
    monkeypatch.setattr(torch.cuda, "_sleep", made.sleep, raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "stand-in")
    monkeypatch.setattr(torch, "cudnn_convolution_relu", fused)
    execute = made.execute = cuda._run

    def run(calls, table):
        execute(calls, table)
        if made.capturing is not None:
            for call in calls:
                for tensor in call.outputs:
                    made.allocate(table[tensor])
            made.calls[made.add(made.current)] = [(call, dict(table)) for call in calls]

    let_go = cuda._drop

    def drop(table, tensors):
        made.free([table[tensor] for tensor in tensors])
        let_go(table, tensors)

    monkeypatch.setattr(cuda, "_run", run)
    monkeypatch.setattr(cuda, "_drop", drop)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: made.allocated + made.garbage)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: made.most_allocated)
    with _OnCpu(made):
        yield made
