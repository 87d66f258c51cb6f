"""Plans that the check passes, run byte by byte: no task finds other bytes than its own, whatever the delays."""

import random
from collections import Counter
from dataclasses import replace
from itertools import combinations, pairwise

from downset.distributed.plan_run import run_plan
from downset.distributed.simulated_run import Conditions
from downset.errors import InvalidPlan
from downset.pipelines.check import verify_pipeline
from downset.pipelines.drafts import FoundPipeline, Split, StageDraft, Tile
from downset.pipelines.plan import plan_pipeline
from tests import oracles_bytes
from tests.effort import cases


def drawn(draw, topology):
    """A method that draws stages, blocks, rules and strips; the last strips are often of one row."""

    def splits(problem, start, stop, own):
        cuts = [start, *sorted(draw.sample(range(start + 1, stop), draw.randint(0, stop - start - 1))), stop]
        for one, two in pairwise(cuts):
            rows = problem.segment(one, two).rows
            members = draw.sample(own, min(rows, draw.randint(1, len(own)))) if draw.random() < 0.5 else own[:1]
            short = range(rows - len(members) + 1, rows)
            edges = short if draw.random() < 0.5 else sorted(draw.sample(range(1, rows), len(members) - 1))
            spans = pairwise([0, *edges, rows])
            tiles = tuple(Tile(device, *span) for device, span in zip(members, spans, strict=True))
            yield Split(one, two, tiles, halo=topology == "direct" or draw.random() < 0.2)

    def method(problem, cluster):
        devices = draw.sample(range(len(cluster.devices)), len(cluster.devices))
        count = draw.choice([1, 1, draw.randint(1, min(len(devices), problem.cuts))])
        cuts = [0, *sorted(draw.sample(range(1, problem.cuts), count - 1)), problem.cuts]
        members = [devices[place::count] for place in range(count)]
        return FoundPipeline(
            tuple(
                StageDraft(own[0] if topology == "leader" else -1, tuple(splits(problem, *span, own)))
                for span, own in zip(pairwise(cuts), members, strict=True)
            ),
            0.0,
        )

    return method


def plans(count):
    for seed in (1262, *range(1, count)):  # in 1262 a task writes rows that nothing reads when others are done with it
        draw = random.Random(f"bytes/{seed}")
        graph, cluster, ends = oracles_bytes.network(draw), oracles_bytes.cluster(draw), {}
        if draw.random() < 0.4:
            ends = {"source": draw.choice(cluster.devices).name, "sink": draw.choice(cluster.devices).name}
        topology = draw.choice(["leader", "leader", "leader", "direct"])
        plan = plan_pipeline(
            graph,
            cluster,
            method=drawn(draw, topology),
            topology=topology,
            window=draw.choice([None, None, 1, 2]),
            units=[[op] for op in range(len(graph.ops))],
            **ends,
        )
        yield draw, graph, plan


def at_places(plan, buffers):
    """The plan with these buffers, and arenas that are as large."""
    ends = Counter()
    for buffer in buffers:
        ends[buffer.device] = max(ends[buffer.device], buffer.offset + buffer.nbytes * buffer.slots)
    memory = tuple(replace(held, arena_bytes=ends[held.device]) for held in plan.memory)
    return replace(plan, schedule=replace(plan.schedule, buffers=tuple(buffers)), memory=memory)


def pairs_at_one_place(draw, plan, most):
    """Plans whose buffers all lie apart, but for two of a device that begin at the same byte: those written by tasks
    whose rows nothing reads first."""
    ends, apart = Counter(), []
    for buffer in plan.schedule.buffers:
        apart.append(replace(buffer, offset=ends[buffer.device]))
        ends[buffer.device] += buffer.nbytes * buffer.slots
    unread = {
        place
        for place, buffer in enumerate(apart)
        if any(
            not any(writer in plan.tasks[r].after for r in buffer.readers)
            for writer in set(buffer.writers) - set(buffer.readers)
        )
    }
    pairs = [pair for pair in combinations(range(len(apart)), 2) if len({apart[one].device for one in pair}) == 1]
    pairs.sort(key=lambda pair: (not unread.intersection(pair), draw.random()))
    for one, two in pairs[:most]:
        yield at_places(plan, [*apart[:two], replace(apart[two], offset=apart[one].offset), *apart[two + 1 :]])


def simulated(plan, frames):
    """{(frame, task): (begin, end)} of a run of the simulator."""
    times = {}
    conditions = Conditions(len(plan.cluster.devices), jitter=2.0, seed=0, disturbances=())
    run_plan(plan, conditions, frames=frames, observe=lambda *ran: times.__setitem__(ran[:2], ran[2:]))
    return times


def test_no_run_of_a_plan_that_passes_loses_bytes():
    passed = Counter()
    for draw, graph, plan in plans(cases(500)):
        runs = [oracles_bytes.delayed_run(draw, plan, 8) for _ in range(4)]
        for kind, tried in [("own", plan), *(("pair", pair) for pair in pairs_at_one_place(draw, plan, 12))]:
            try:
                verify_pipeline(graph, tried)
            except InvalidPlan as refused:
                assert kind == "pair" and "share bytes" in str(refused), refused
                continue
            passed[kind] += 1
            for times in (*runs, simulated(tried, 8)):
                oracles_bytes.replay(graph, tried, times)
    assert passed["own"] == cases(500)
    assert passed["pair"] > cases(500) // 20
