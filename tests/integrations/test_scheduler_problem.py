"""Inductor's scheduler as an ordering problem, held to Inductor's own estimator and to every order there is."""

import itertools
from dataclasses import replace

import pytest
from torch._inductor import memory

from downset.errors import UnsupportedError
from downset.integrations.scheduler_order import least_peak_order, live_at, rise_by_device
from downset.integrations.scheduler_problem import names_of_storages, problem_of
from downset.memory.liveness import peak_bytes
from tests.command import said_by_every_process
from tests.inductor_nodes import random_scheduled

pytestmark = pytest.mark.native


def estimate(scheduled, order):
    return memory.estimate_peak_memory(order, scheduled.inputs, scheduled.outputs)[0]


def problem(scheduled, in_sequence=lambda node: False):
    return problem_of(scheduled.nodes, scheduled.inputs, scheduled.outputs, in_sequence=in_sequence)


def their_orders(scheduled):
    return [
        scheduled.nodes,
        memory.topological_sort_lpmf(scheduled.nodes, scheduled.inputs, scheduled.buffers, scheduled.outputs),
        memory.topological_sort_bfs(scheduled.nodes),
        memory.topological_sort_dfs(scheduled.nodes),
    ]


@pytest.mark.parametrize("count", [2, 6, 25, 120])
def test_bytes_are_inductors_to_the_byte_and_the_order_is_one_it_could_take(count):
    for seed in range(40 if count < 100 else 10):
        scheduled = random_scheduled(f"{count}/{seed}", count)
        nodes, counted = scheduled.nodes, problem(scheduled)
        for theirs in their_orders(scheduled):
            steps = [nodes.index(node) for node in theirs]
            assert peak_bytes(counted, steps) == estimate(scheduled, theirs)
        order = least_peak_order(counted, work_limit=20_000)
        ours = [nodes[step] for step in order.steps]
        assert sorted(order.steps) == list(range(len(nodes)))
        at = {node: step for step, node in enumerate(ours)}
        assert all(at[earlier] < at[node] for node in nodes for earlier in node.mpi_node.pred_nodes)
        assert order.peak_bytes == estimate(scheduled, ours)
        best = min(estimate(scheduled, theirs) for theirs in their_orders(scheduled))
        assert order.evidence.bound <= order.peak_bytes <= best


def test_it_is_the_least_of_all_orders_by_inductors_own_estimate():
    gained = 0
    for seed in range(30):
        scheduled = random_scheduled(f"all/{seed}", 6)
        nodes = scheduled.nodes
        if len(nodes) > 8:
            continue

        def allowed(order):
            at = {node: step for step, node in enumerate(order)}
            return all(at[earlier] < at[node] for node in order for earlier in node.mpi_node.pred_nodes)

        least = min(estimate(scheduled, order) for order in itertools.permutations(nodes) if allowed(order))
        order = least_peak_order(problem(scheduled), work_limit=20_000)
        assert order.evidence.proven
        assert order.peak_bytes == least
        gained += least < estimate(scheduled, nodes)
    assert gained > 5


def test_nodes_in_sequence_keep_their_order():
    moved = 0
    for seed in range(30):
        scheduled = random_scheduled(f"sequence/{seed}", 30)
        every_third = set(scheduled.nodes[::3])
        free = least_peak_order(problem(scheduled), work_limit=20_000)
        held = least_peak_order(problem(scheduled, every_third.__contains__), work_limit=20_000)
        thirds = [step for step in held.steps if step % 3 == 0]
        assert thirds == sorted(thirds)
        moved += [step for step in free.steps if step % 3 == 0] != thirds
        assert held.peak_bytes >= free.evidence.bound
    assert moved > 5


def test_what_is_live_at_the_peak_adds_up_to_it():
    written = 0
    for seed in range(20):
        scheduled = random_scheduled(f"live/{seed}", 30)
        plain = problem(scheduled)
        alone = {(storage.producers, storage.nbytes) for storage in plain.storages}
        over = tuple(
            tuple(
                index
                for index, one in enumerate(plain.storages)
                if v in one.consumers and v not in one.producers and not one.kept and ((v,), one.nbytes) in alone
            )
            for v in range(len(plain.predecessors))
        )
        written += any(over)
        for counted in (plain, replace(plain, in_place=over)):
            steps = least_peak_order(counted, work_limit=20_000).steps
            _, live = live_at(counted, steps)
            assert sum(counted.storages[index].nbytes for index in live) == peak_bytes(counted, steps)
        assert len(names_of_storages(scheduled.nodes, scheduled.inputs, scheduled.outputs)) == len(plain.storages)
    assert written


def test_on_several_devices_each_peak_counts_by_itself():
    """Held to spans that are counted here."""
    risen = fallen = 0
    for seed in range(30):
        scheduled = random_scheduled(f"devices/{seed}", 20)
        counted = problem(scheduled)
        names = names_of_storages(scheduled.nodes, scheduled.inputs, scheduled.outputs)
        devices = [f"cuda:{len(name) % 2}" if seed % 2 else "cpu" for name in names]
        theirs = [scheduled.nodes.index(node) for node in their_orders(scheduled)[seed % 4]]
        ours = least_peak_order(counted, work_limit=20_000).steps
        told = rise_by_device(counted, devices, theirs, ours)
        for device in set(devices):
            peaks = []
            for steps in (theirs, ours):
                at = {operator: when for when, operator in enumerate(steps)}
                spans = [
                    (
                        s.nbytes,
                        min((at[v] for v in s.producers), default=0),
                        len(steps) if s.kept else max(at[v] for v in s.consumers),
                    )
                    for s, held in zip(counted.storages, devices, strict=True)
                    if held == device
                ]
                peaks.append(max(sum(n for n, a, b in spans if a <= when <= b) for when in range(len(steps))))
            assert told.get(device, 0) == max(peaks[1] - peaks[0], 0)
        risen, fallen = risen + bool(told), fallen + (not told)
    assert risen and fallen


def test_information_that_contradicts_itself_is_refused():
    scheduled = random_scheduled("x", 12)
    scheduled.nodes.reverse()
    with pytest.raises(UnsupportedError, match="stands before a node that it waits for"):
        problem(scheduled)
    scheduled = random_scheduled("parts", 40)
    part = next(name for name, b in scheduled.buffers.items() if b.mpi_buffer.size_alloc < b.mpi_buffer.size_free)
    scheduled.buffers[part].mpi_buffer.size_free += 10**6
    with pytest.raises(UnsupportedError, match="bytes more than it"):
        problem(scheduled)


def test_every_process_decides_alike():
    """Where the search does not end within its states too: effort is counted in states, not in seconds."""
    program = (
        "from experiments.speed.order import random_problem\n"
        "from downset.integrations.scheduler_order import least_peak_order\n"
        "order = least_peak_order(random_problem(400, 40, 1), work_limit=20_000)\n"
        "print(order.evidence.proven, order.peak_bytes, order.steps)"
    )
    assert said_by_every_process(program).startswith("False ")
