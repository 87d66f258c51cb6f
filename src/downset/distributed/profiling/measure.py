"""Measures a running cluster with one actor on each device: timed runs of probes, and messages between pairs.

All devices compute at the same time, as in a pipeline. Messages are measured as the runtime sends them: over the same
connections, from one device to another, until the sender knows that the message has arrived. Pairs without a common
device are measured side by side, unless they share the medium. Every answer has a deadline: a device that stops ends
the measurement with an error that names it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from downset.clusters.model import Duplex, MessageCosts, check_device_name
from downset.distributed.profiling.costs import (
    ComputeSample,
    CostWindow,
    DeviceRates,
    LinkRates,
    LoadedDevices,
    device_rates,
    link_rates,
    message_costs,
    takes_turns,
    with_occupancy,
)
from downset.distributed.profiling.measured import MeasuredCluster, MeasuredDevice
from downset.distributed.profiling.message_rounds import Group, rounds_of_pairs, seconds_a_message
from downset.distributed.profiling.messenger import Messenger
from downset.distributed.profiling.probes import Probe, ProbedDevice
from downset.distributed.serving.nodes import device_resource
from downset.distributed.serving.ray_fleet import RayFleet
from downset.errors import LimitReached, UnsupportedError, UsageError
from downset.extras import optional_library
from downset.text import brief

__all__ = ["Effort", "Measuring", "check_devices", "measure_cluster"]

_FREES_S = 10.0
_STREAMED = 2
"""Messages of a pair that are under way at once while successive messages are timed: as many as serving has under way.
"""
_CALLS = 4
"""The most calls of a device at once: more than ever wait for messages."""
_WINDOW_BATCHES = 8
"""The least seconds of a window in which devices compute during one kind of messages, in least seconds of a batch of
probes."""
_WINDOW_MESSAGES = 10
"""The least messages of a window; fewer where they take longer than the longest window."""
_BATCH_BYTES, _MOST_IN_A_BATCH = 1 << 20, 32
"""The most bytes and messages that are sent for one call of a device, which costs more than a message."""
_LONGEST_WINDOW = 4
"""The longest window over the shortest one."""
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to measure. `least_s`: the least seconds of a batch of runs of a probe; `batches`: how many. `sizes`:
    bytes of messages, each sent `messages` times. `answer_s`: the most seconds that a device may take for one answer.
    """

    least_s: float = 0.3
    batches: int = 3
    sizes: tuple[int, ...] = (16 << 10, 128 << 10, 512 << 10, 2 << 20)
    messages: int = 4
    answer_s: float = 120.0


def check_devices(names: Sequence[str]) -> None:
    """Raise UsageError for no names, a name that a cluster file would refuse, or a name that stands twice."""
    if len(set(names)) < len(names) or not names:
        raise UsageError("name the devices to measure, each once")
    for name in names:
        check_device_name(name)


def measure_cluster(
    fleet: RayFleet,
    names: Sequence[str],
    probes: Sequence[Probe],
    *,
    effort: Effort | None = None,
    progress: Progress = lambda _: None,
    ready: Callable[[], None] = lambda: None,
) -> MeasuredCluster:
    """Measure these devices of the cluster that this process has joined. `progress` is called with what is being done,
    and `ready` when all devices have answered and before anything is measured.

    Raises UsageError for devices that are not in the cluster or are busy, LimitReached for one that does not answer."""
    check_devices(names)
    with Measuring(fleet, names, effort or Effort()) as measuring:
        ready()
        progress(f"{len(names)} devices are there; memory of their runtimes")
        runtimes = measuring.all("runtime_bytes")
        progress(f"computing: {len(probes)} probes on all devices at once")
        rates = measuring.computing(probes)
        by_macs = sorted(probes, key=lambda probe: sum(probe.macs_of.values()))
        measuring.all("open", by_macs[len(by_macs) // 2].model)
        progress("what messages cost devices that compute")
        costs = measuring.costs()
        progress("messages between devices")
        kind, duplex, common, links = measuring.network(costs, progress)
        described = measuring.all("ready")
        devices = tuple(
            MeasuredDevice(name, one, int(about["memory_bytes"]), int(runtime), int(about["threads"]), cost)
            for name, one, runtime, about, cost in zip(names, rates, runtimes, described, costs, strict=True)
        )
    return MeasuredCluster(devices, kind, duplex, common, links, time.time(), "standard probes")


class Measuring:
    """Runs measuring actors, one on each device, while the context lasts. Devices are numbered as in `names`."""

    def __init__(self, fleet: RayFleet, names: Sequence[str], effort: Effort) -> None:
        self._ray = optional_library("ray", what="measuring a cluster", extra="cluster")
        self._fleet, self.names, self.effort, self._actors = fleet, tuple(names), effort, list[Any]()
        self._messenger: Messenger | None = None
        self._frames = ThreadPoolExecutor(1)

    def __enter__(self) -> Measuring:
        ray = self._ray
        there = self._fleet.present()
        lacks = [name for name in self.names if name not in there]
        if lacks:
            devices = ", ".join(sorted(there)) or "no device"
            raise UsageError(f"the cluster has no device {', '.join(lacks)}; it has {devices}")
        until = time.monotonic() + _FREES_S  # ended actors are still counted for a while
        while busy := self._busy():
            if time.monotonic() > until:
                raise UsageError(f"{', '.join(busy)} works for another driver; measure when it is done")
            time.sleep(0.2)
        remote = ray.remote(ProbedDevice)
        for name in self.names:
            self._actors.append(
                remote.options(
                    resources={device_resource(name): 1},
                    num_cpus=0,
                    max_restarts=0,
                    max_concurrency=_CALLS,
                ).remote(name)
            )
        self.all("ready")
        self._messenger = Messenger("", self._fleet.keys, self._fleet.address)
        peers = dict(zip(self.names, self.all("here"), strict=True)) | {"": self._messenger.here}
        self._messenger.meet(peers)
        self.all("meet", peers)
        return self

    def _busy(self) -> list[str]:
        free = self._ray.available_resources()
        return [name for name in self.names if free.get(device_resource(name), 0) < 1]

    def __exit__(self, *_: object) -> None:
        if self._messenger is not None:
            self._messenger.close()
        self._frames.shutdown(wait=False, cancel_futures=True)
        for actor in self._actors:
            self._ray.kill(actor)

    def all(self, method: str, *arguments: Any, **options: Any) -> list[Any]:
        """Call this method on every device at once, and return the results in the order of devices."""
        calls = [getattr(actor, method).remote(*arguments, **options) for actor in self._actors]
        return [self._answer(reference, name) for reference, name in zip(calls, self.names, strict=True)]

    def _answer(self, reference: Any, name: str) -> Any:
        try:
            return self._ray.get(reference, timeout=self.effort.answer_s)
        except self._ray.exceptions.GetTimeoutError:
            raise LimitReached(f"device {name} did not answer within {self.effort.answer_s:g} s") from None
        except self._ray.exceptions.RayError as error:
            raise UnsupportedError(f"device {name}: {brief(str(error).splitlines()[-1])}") from None

    def computing(self, probes: Sequence[Probe]) -> list[DeviceRates]:
        samples: list[list[ComputeSample]] = [[] for _ in self.names]
        for probe in probes:
            timed = self.all("seconds", probe.model, least_s=self.effort.least_s, batches=self.effort.batches)
            for own, seconds in zip(samples, timed, strict=True):
                own += [ComputeSample(probe.macs_of, probe.moved_bytes, one, probe.weight_bytes) for one in seconds]
        return [device_rates(own) for own in samples]

    def messages(self, pairs: Sequence[tuple[int, int]], nbytes: int) -> list[float]:
        """Seconds of one message from the first to the second device of each pair, all sent at once, until the sender
        knows that it has arrived."""
        calls = [self._ask_message(source, target, nbytes, 1) for source, target in pairs]
        answers = [self._answer(call, self.names[source]) for call, (source, _) in zip(calls, pairs, strict=True)]
        return [float(seconds) for (seconds,) in answers]

    def take_turns(self, pairs: Sequence[tuple[int, int]], *, least_s: float = 0.0) -> bool:
        """Whether large messages of these pairs take turns if all are sent at once. `least_s`: the processor seconds
        that devices in several pairs need for all of them. Other load only makes messages longer, so the least of
        several times counts."""
        nbytes = max(self.effort.sizes)
        for pair in pairs:
            self.messages([pair], min(self.effort.sizes))  # the first message between two devices opens a connection
        alone, both = [], []
        for _ in range(3):
            alone.append([self.messages([pair], nbytes)[0] for pair in pairs])
            both.append(max(self.messages(pairs, nbytes)))
        return takes_turns([min(one) for one in zip(*alone, strict=True)], min(both), least_s=least_s)

    def full_duplex(self, costs: Sequence[MessageCosts]) -> bool:
        """Whether a device can receive from one device and send to another side by side; with two devices, whether each
        can send to the other.

        The device is the one whose processor large messages cost least. Both messages need this processor, and on a
        slow one they would take turns at it, which plans charge by `costs`. Two devices that send to each other often
        take turns on any link, because the request for one's rows waits behind the rows that go the same way."""
        nbytes = max(self.effort.sizes)
        spent = [own.send.of(nbytes) + own.receive.of(nbytes) for own in costs]
        middle, *others = sorted(range(len(spent)), key=spent.__getitem__)
        pairs = [(others[0], middle), (middle, others[min(1, len(others) - 1)])]
        return not self.take_turns(pairs, least_s=spent[middle])

    @contextmanager
    def all_computing(self) -> Iterator[None]:
        """Make all devices compute all the time, with the opened probe, while the context lasts."""
        self.all("wake")
        calls = [actor.keep_computing.remote() for actor in self._actors]
        try:
            yield
        finally:
            self.all("rest")
            for reference, name in zip(calls, self.names, strict=True):
                self._answer(reference, name)

    def costs(self) -> list[MessageCosts]:
        """The costs of messages for each device: processor seconds of a message that it sends or receives, of a frame
        from the driver, and of a result. The opened probe runs all the time, so that messages wait for the processor as
        in a pipeline; it runs on all other devices too, which may be on the same machine.

        One stream of messages is measured at a time: messages of other streams would add their costs on a common
        machine."""

        def progress(devices: Sequence[int]) -> list[tuple[int, float]]:
            calls = [self._actors[device].progress.remote() for device in devices]
            return [self._answer(one, self.names[device]) for one, device in zip(calls, devices, strict=True)]

        def message(source: int, target: int, nbytes: int) -> int:
            return len(self.sent(source, target, nbytes, _batch(nbytes)))

        def frame(device: int, nbytes: int) -> int:
            return len(self.frames(device, nbytes, _batch(nbytes)))

        def result(device: int, nbytes: int) -> int:
            return len(self.results(device, nbytes, _batch(nbytes)))

        least_s = _WINDOW_BATCHES * self.effort.least_s
        window = CostWindow(least_s, _WINDOW_MESSAGES, _LONGEST_WINDOW * least_s)
        loaded = LoadedDevices(len(self.names), progress, message, frame, result)
        with self.all_computing():
            return message_costs(loaded, self._cost_sizes(), window)

    def _cost_sizes(self) -> tuple[int, int]:
        """The least size of messages, and a large one of which many fit into a measurement."""
        return (self.effort.sizes[0], self.effort.sizes[-1] // 2)

    def _ask_message(self, source: int, target: int | None, nbytes: int, count: int) -> Any:
        """`target`: None for this process."""
        return self._actors[source].send.remote("" if target is None else self.names[target], nbytes, count)

    def sent(self, source: int, target: int, nbytes: int, count: int) -> list[float]:
        """Send so many messages from one device to another, one after another; the seconds until each had arrived."""
        seconds: list[float] = self._answer(self._ask_message(source, target, nbytes, count), self.names[source])
        return seconds

    def results(self, device: int, nbytes: int, count: int) -> list[float]:
        """Have a device send so many messages to this process; the seconds until each had arrived."""
        seconds: list[float] = self._answer(self._ask_message(device, None, nbytes, count), self.names[device])
        return seconds

    def frames(self, device: int, nbytes: int, count: int = 1) -> list[float]:
        """Send a device so many messages from this process; the seconds until each had arrived."""
        assert self._messenger is not None
        sent = self._frames.submit(self._messenger.send, self.names[device], nbytes, count)
        try:
            return sent.result(self.effort.answer_s)
        except (OSError, TimeoutError):
            raise LimitReached(
                f"device {self.names[device]} did not answer within {self.effort.answer_s:g} s"
            ) from None

    def network(
        self, costs: Sequence[MessageCosts], progress: Progress
    ) -> tuple[Any, Duplex, LinkRates, dict[tuple[int, int], LinkRates]]:
        """Kind of network, duplex, and the rates of all messages and of those of each pair. `costs`: as measured
        before.

        Messages are timed between devices at rest. Their waiting for busy processors is charged by `costs`, and
        meanwhile a link or a medium carries other messages. For how long a message occupies the network is timed with
        as many under way as in pipelines: two for each of the pairs, which share no device."""
        count = len(self.names)
        if count < 2:
            return "links", "full", LinkRates(1e12, 0.0), {}
        duplex: Duplex = "full" if self.full_duplex(costs) else "half"
        shared = count >= 4 and self.take_turns([(0, 1), (2, 3)])
        progress(f"messages: {'one shared medium' if shared else f'links, {duplex} duplex'}; {count} devices")
        samples: dict[tuple[int, int], list[tuple[int, float]]] = {}
        if shared:  # each device once; the medium is the same for all
            for pair in next(rounds_of_pairs(count)):
                samples[pair] = self._sizes([pair])[0]
        else:
            for pairs in rounds_of_pairs(count):
                samples.update(zip(pairs, self._sizes(pairs), strict=True))
        common = link_rates([sample for of_pair in samples.values() for sample in of_pair])
        links = {} if shared else {pair: link_rates(of_pair) for pair, of_pair in sorted(samples.items())}
        progress("messages that follow one another")
        if shared:
            common = with_occupancy(common, self._streams([_STREAMED * next(rounds_of_pairs(count))])[0])
        else:
            streams: dict[tuple[int, int], list[tuple[int, float]]] = {}
            for pairs in rounds_of_pairs(count):
                sent = [[pair] * _STREAMED for pair in pairs]
                streams.update(zip(pairs, self._streams(sent), strict=True))
            links = {pair: with_occupancy(links[pair], own) for pair, own in sorted(streams.items())}
            common = with_occupancy(common, [sample for own in streams.values() for sample in own])
        return "shared" if shared else "links", "half" if shared else duplex, common, links

    def _sizes(self, pairs: Sequence[tuple[int, int]]) -> list[list[tuple[int, float]]]:
        """(bytes, median seconds) of every size, for each pair, in both directions in turn."""
        samples: list[list[tuple[int, float]]] = [[] for _ in pairs]
        self.messages(pairs, min(self.effort.sizes))
        for nbytes in self.effort.sizes:
            taken = []
            for number in range(self.effort.messages):
                ways = [(one, other) if number % 2 else (other, one) for one, other in pairs]
                taken.append(self.messages(ways, nbytes))
            for own, seconds in zip(samples, zip(*taken, strict=True), strict=True):
                own.append((nbytes, statistics.median(seconds)))
        return samples

    def _streams(self, groups: Sequence[Group]) -> list[list[tuple[int, float]]]:
        """(bytes, seconds of a message) of a small and of a large size, for each group, all groups at once."""
        sizes = self._cost_sizes()
        return [
            list(zip(sizes, own, strict=True)) for own in zip(*(self._stream_s(groups, n) for n in sizes), strict=True)
        ]

    def _stream_s(self, groups: Sequence[Group], nbytes: int) -> list[float]:
        def first_of(references: Sequence[Any]) -> Sequence[Any]:
            ready, waits = self._ray.wait([*references], timeout=self.effort.answer_s)
            return list(ready or waits[:1])

        a_batch = seconds_a_message(
            groups,
            send=lambda pair: self._ask_message(pair[0], pair[1], nbytes, _batch(nbytes)),
            first_of=first_of,
            arrived=lambda reference, pair: self._answer(reference, self.names[pair[0]]),
        )
        return [seconds / _batch(nbytes) for seconds in a_batch]


def _batch(nbytes: int) -> int:
    """How many messages of this size are sent for one call."""
    return max(1, min(_MOST_IN_A_BATCH, _BATCH_BYTES // max(1, nbytes)))
