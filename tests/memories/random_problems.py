"""Random problems of two memories, small enough for the machine."""

from downset.memories.problem import Access, MemoriesProblem, MemoryStorage, Whereabouts


def random_problem(random, operators=5, uniform=False):
    """Operators that read one to three earlier storages and write one; some write a part of an earlier one as well,
    some may access an operand in slow memory at its size or more, and some must not."""
    storages, accesses, before, writers, readers = [], [], [], [], []

    def storage(begins, ends):
        nbytes = random.randint(1, 9)
        price = (1, 1) if uniform else (random.randint(1, 3), random.randint(1, 3))
        storages.append(MemoryStorage(nbytes, nbytes, nbytes * price[0], nbytes * price[1], begins, ends))
        writers.append([])
        readers.append([])
        return len(storages) - 1

    def direct(index):
        nbytes = storages[index].nbytes
        if uniform:
            return nbytes, nbytes
        return random.choice(((None, 0), (nbytes, nbytes), (nbytes, nbytes), (3 * nbytes, 3 * nbytes)))

    for _ in range(random.randint(1, 2)):
        storage(random.choice(list(Whereabouts)[1:]), Whereabouts.NOWHERE)
    for v in range(operators):
        recent = range(max(0, len(storages) - 4), len(storages))
        reads = random.sample(recent, random.randint(1, min(3, len(recent))))
        parts = [s for s in reads if writers[s] and not uniform and random.random() < 0.15]
        waits = {u for s in reads for u in writers[s]} | {u for s in parts for u in readers[s]}
        before.append(tuple(sorted(waits)))
        made = storage(Whereabouts.NOWHERE, Whereabouts.NOWHERE)
        listed = []
        for s in (*reads, made):
            cost, nbytes = direct(s)
            listed.append(Access(s, s == made or s in parts, cost, nbytes))
            (writers if s == made or s in parts else readers)[s].append(v)
        accesses.append(tuple(listed))
    for index, one in enumerate(storages):
        if (writers[index] and not readers[index]) or (random.random() < 0.1 and writers[index]):
            ends = random.choice(list(Whereabouts))
            storages[index] = MemoryStorage(one.nbytes, one.room_bytes, one.load_cost, one.store_cost, one.begins, ends)
    workspace = tuple(random.choice((0, 0, 0, 1, 4)) for _ in range(operators))
    problem = MemoriesProblem(tuple(before), tuple(storages), tuple(accesses), workspace, 0)
    least = max(problem.need_bytes(v) for v in range(operators))
    return problem.within(max(1, least + random.choice((0, 0, 1, 2, 4, 8, 12))))
