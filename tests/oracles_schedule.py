"""Independent of the event graph: a run of the orders turn by turn, and every order there is of small instances."""

import itertools
from fractions import Fraction


def run(tasks, orders, window, frames, *, empty=0):
    """(finishing time of every frame, or None where the orders are stuck): each resource takes its turns one by one,
    skipping frames that do not exist; a task starts when all its resources have come to it. The first `empty` frames
    take no time, and are not in the list."""
    frames += empty
    turns = []
    for order in orders:
        own = []
        last_round = frames + max([turn.behind for turn in order], default=0)
        first_round = min([turn.behind for turn in order], default=0)
        for round_ in range(first_round, last_round):
            own += [(round_ - turn.behind, turn.task) for turn in order if 0 <= round_ - turn.behind < frames]
        turns.append(own)
    at = [0] * len(orders)
    free = [0] * len(orders)
    done = {}
    left = [len(tasks)] * frames
    ended = [None] * frames
    loose = [index for index, task in enumerate(tasks) if not task.resources]
    moved = True
    while moved:
        moved = False
        fronts = {turns[r][at[r]] for r in range(len(orders)) if at[r] < len(turns[r])}
        fronts |= {(k, i) for i in loose for k in range(frames) if (k, i) not in done}
        for frame, index in sorted(fronts):
            task = tasks[index]
            if (frame, index) in done:
                continue
            if any(at[r] >= len(turns[r]) or turns[r][at[r]] != (frame, index) for r in task.resources):
                continue
            if any((frame, other) not in done for other in task.after):
                continue
            if frame >= window and ended[frame - window] is None:
                continue
            start = max(
                [0, *(free[r] for r in task.resources), *(done[frame, o] for o in task.after)],
            )
            if frame >= window:
                start = max(start, ended[frame - window])
            done[frame, index] = start + (task.seconds + task.delay_s if frame >= empty else 0)
            for r in task.resources:
                free[r] = start + (task.seconds if frame >= empty else 0)
                at[r] += 1
            left[frame] -= 1
            if not left[frame]:
                ended[frame] = max(done[frame, i] for i in range(len(tasks)))
            moved = True
    if any(end is None for end in ended):
        return None
    return ended[empty:]


def settled_period(tasks, orders, window, frames=60):
    """Exact: the run is looked at over many lags, of which one repeats."""
    ended = run(tasks, orders, window, frames)
    if ended is None:
        return None
    half = frames // 2
    for lag in range(1, 13):
        gaps = {ended[k + lag] - ended[k] for k in range(half, frames - lag - 8)}
        if len(gaps) == 1:
            return Fraction(gaps.pop(), lag)
    raise AssertionError("did not settle")


def every_schedule(tasks, resources, turn_of, *, most=2):
    """Every order of every resource with every vector of rounds behind, up to `most`."""
    own = [[i for i, task in enumerate(tasks) if r in task.resources] for r in range(resources)]
    for behind in itertools.product(range(most + 1), repeat=len(tasks)):
        if min(behind) or any(behind[i] < behind[o] for i, t in enumerate(tasks) for o in t.after):
            continue
        for chosen in itertools.product(*(itertools.permutations(part) for part in own)):
            yield tuple(tuple(turn_of(i, behind[i]) for i in order) for order in chosen)
