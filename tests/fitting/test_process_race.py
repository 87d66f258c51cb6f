"""The race of processes against a brute force over what every attempt takes, and how many processes it opens."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from downset import budget
from downset.errors import LoadError
from downset.fitting import process_race, processes, race_strips
from downset.fitting.attempts import LEAST_GAIN, Attempt, fastest_within, least_of, smallest
from downset.fitting.candidates import Candidate
from downset.fitting.job import FitOptions, Notes
from downset.fitting.process_pattern import quicker
from downset.fitting.process_race import Race
from downset.results.comparisons import Comparison
from downset.results.policy import LARGER_MAPPED, SLOWER
from downset.results.processes import ProcessGrowth
from downset.results.sessions import BY_HAND, DEFAULT, MAPPED, ONE_REGION, TRIMMED, WITH_PATTERN

ORIGINAL_BYTES = 100


class Bench:
    """Attempts with figures drawn from a seed, that are measured without any noise."""

    def __init__(self, seed, folder, monkeypatch):
        self.random, self.folder, self.opened = np.random.default_rng(seed), folder, 0
        self.true = {}
        monkeypatch.setattr(process_race, "measured_once", self.measured)
        path = self.file("original", ORIGINAL_BYTES)
        self.job = SimpleNamespace(options=FitOptions("m"), path=path, notes=Notes(), target=None, listener=None)
        self.default = self.attempt("original", path, DEFAULT, by_hand=True)
        self.others = [self.attempt("original", path, one, by_hand=True) for one in BY_HAND]
        self.others.append(self.attempt("original", path, TRIMMED[1]))
        for place, settings in enumerate(MAPPED):
            nbytes = int(self.random.integers(50, 300))
            self.others.append(self.attempt(f"file {place}", self.file(f"f{place}", nbytes), settings))

    def file(self, name, nbytes):
        path = self.folder / f"{name}.bin"
        path.write_bytes(b"a" * nbytes)
        return path

    def attempt(self, name, path, settings, *, by_hand=False):
        one = Attempt(Candidate(name, path, 0, settings=settings), by_hand=by_hand)
        peak, cpu_s = int(self.random.integers(1000, 2000)), float(self.random.uniform(0.8, 1.5))
        cpu_s = 1.0 if settings == DEFAULT else cpu_s
        self.true[path, settings.name] = ProcessGrowth(peak, peak // 2, peak, peak // 2, cpu_s, most_bytes=peak)
        return one

    def of(self, one):
        usual = {region.name: name for name, region in ONE_REGION.items()}  # takes what it takes by doubling
        name = one.file.settings.name
        return self.true.get((one.file.path, name)) or self.true[one.file.path, usual[name]]

    def measured(self, job, tried, rounds=1):
        del job
        self.opened += rounds * len(tried)
        return [replace(one, readings=(*one.readings, *[self.of(one)] * rounds)) for one in tried]

    def race(self):
        (default,) = self.measured(None, [self.default])
        race = Race(self.job, default, 0.01)
        race.enter(self.others)
        return race

    def keeps(self, one):
        return self.of(one).cpu_s <= SLOWER and one.file.path.stat().st_size <= LARGER_MAPPED * ORIGINAL_BYTES


@pytest.fixture(autouse=True)
def sizes(monkeypatch):
    monkeypatch.setattr(process_race, "stored_bytes", lambda path: path.stat().st_size)


@pytest.mark.parametrize("seed", range(40))
def test_what_ships_is_the_least_of_all_that_keeps_to_the_limits(seed, tmp_path, monkeypatch):
    bench = Bench(seed, tmp_path, monkeypatch)
    timed = bench.race().timed()
    kept = [one for one in (bench.default, *bench.others) if bench.keeps(one)]
    by_hand = min(bench.of(one).peak_bytes for one in kept if one.by_hand)
    assert min(one.peak_bytes for one in timed if one.by_hand) == by_hand
    files = [bench.of(one).peak_bytes for one in kept if not one.is_original]
    originals = min(bench.of(one).peak_bytes for one in kept if one.is_original)
    gained = files and originals - min(files) >= LEAST_GAIN * originals
    assert smallest(timed).peak_bytes <= 1.01 * (min(files) if gained else originals)
    assert smallest(timed).peak_bytes <= 1.02 * by_hand


@pytest.mark.parametrize("seed", range(30))
def test_under_a_memory_limit_the_fastest_ships_that_keeps_to_it(seed, tmp_path, monkeypatch):
    bench = Bench(seed, tmp_path, monkeypatch)
    limit = int(bench.random.integers(1000, 2100))
    bench.job.options = replace(bench.job.options, ram_bytes=limit)
    shipped = fastest_within(bench.race().timed(), limit)
    most = LARGER_MAPPED * ORIGINAL_BYTES
    every = [one for one in (bench.default, *bench.others) if one.file.path.stat().st_size <= most]
    fits = [one for one in every if bench.of(one).peak_bytes <= limit]
    files = [bench.of(one).cpu_s for one in fits if not one.by_hand]
    if fits:
        assert bench.of(shipped).peak_bytes <= limit
        assert bench.of(shipped).cpu_s <= min(files, default=np.inf), "whatever takes less"
    else:
        assert bench.of(shipped).peak_bytes == min(bench.of(one).peak_bytes for one in every)


def test_an_attempt_that_one_reading_rules_out_has_no_other(tmp_path, monkeypatch):
    """Each is opened once; two further rounds are run of the default and of what may ship or is the best by hand."""
    bench = Bench(0, tmp_path, monkeypatch)
    for key, growth in bench.true.items():
        bench.true[key] = replace(growth, cpu_s=1.0)
    race = bench.race()
    once = 1 + sum(one.file.path.stat().st_size <= LARGER_MAPPED * ORIGINAL_BYTES for one in bench.others)
    assert bench.opened == once
    timed = race.timed()
    assert {len(one.readings) for one in timed} == {3}
    assert bench.opened == once + 2 * len(timed) <= once + 10
    assert str(bench.opened) in race.note


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("each_s", [0.01, 0.6, 3.0, 30.0])
def test_no_more_processes_are_measured_than_the_first_one_allows(seed, each_s, tmp_path, monkeypatch):
    """However slow those are that follow, and however many could be tried. Those that decide run also where the first
    one took longer than they all may."""
    bench = Bench(seed, tmp_path, monkeypatch)
    for key, growth in bench.true.items():  # near the limit, so that further rounds are asked for
        cpu_s = 1.0 if key[1] == DEFAULT.name else SLOWER * float(bench.random.uniform(0.97, 1.03))
        bench.true[key] = replace(growth, cpu_s=cpu_s)
    many = [replace(one, file=replace(one.file, name=f"{one.file.name} again")) for one in 4 * bench.others]
    race = Race(bench.job, bench.measured(None, [bench.default])[0], each_s)
    limit_s = 2 * max(20.0, 2.0 * bench.job.options.time_limit_s)
    assert race.most == race_most(each_s, limit_s)
    race.enter(many)
    assert 9 <= bench.opened <= race.most - 12
    timed = race.timed()
    assert bench.opened <= race.most
    assert len(timed) == 1 or min(len(one.readings) for one in timed) >= 3
    best = smallest(timed)
    assert best.is_original or bench.keeps(best)
    taken = SimpleNamespace(nbytes={"held_bytes": 1})
    narrow = SimpleNamespace(narrow=lambda path, settings, **_: (settings.with_region(256), taken))
    bench.job.target = SimpleNamespace(sessions=narrow)
    race.narrowed(best if best.is_original else replace(best, readings=best.readings[:1]))
    assert bench.opened <= race.most


def test_a_file_that_may_be_too_slow_costs_no_other_its_rounds(tmp_path, monkeypatch):
    """Where processes are slow, the rounds that decide about the smallest file would use up all that there are."""
    bench = Bench(1, tmp_path, monkeypatch)
    bench.others = bench.others[:2] + bench.others[-2:]
    figures = (2000, 1.0), (1900, 1.0), (1950, 1.0), (1000, 1.13), (1300, 0.98)
    for one, (peak, cpu_s) in zip((bench.default, *bench.others), figures, strict=True):
        growth = ProcessGrowth(peak, peak // 2, peak, peak // 2, cpu_s, most_bytes=peak)
        bench.true[one.file.path, one.file.settings.name] = growth
        one.file.path.write_bytes(b"a" * ORIGINAL_BYTES)
    race = Race(bench.job, bench.measured(None, [bench.default])[0], 30.0)
    race.enter(bench.others)
    assert smallest(race.timed()).peak_bytes == 1300


@pytest.mark.parametrize("ratios", [[1.0, 1.05], [1.3, 1.2, 1.05], [1.5, 1.4, 1.3, 1.2], [1.3, 0.9], [1.0, None]])
def test_fewer_operators_are_tried_once_and_again_while_all_are_too_slow(ratios, tmp_path, monkeypatch):
    """By what processes take. None: no such plan gains enough."""
    job = SimpleNamespace(options=FitOptions("m"), search_time=SimpleNamespace(over=False), notes=Notes())
    tried, read = [1000], [ratios[0]]
    race = SimpleNamespace(slower=SLOWER, default_bytes=1000, ratio=lambda one: one.origin)
    race.measured = [SimpleNamespace(origin=ratios[0])]
    planned = SimpleNamespace(best=SimpleNamespace(together=SimpleNamespace(arena=SimpleNamespace(arena_bytes=900))))

    def least(_, searches, *, most_operators):
        assert len(searches) == 1 and 10 < most_operators < tried[-1]
        tried.append(most_operators)
        nbytes = 880 if ratios[len(read)] is None else 500
        graph = SimpleNamespace(ops=range(most_operators))
        return [Candidate("strips", tmp_path, nbytes, SimpleNamespace(graph=graph), measured={})]

    monkeypatch.setattr(race_strips, "least_in_strips", least)
    monkeypatch.setattr(race_strips, "measure", lambda job, files, original: files)
    monkeypatch.setattr(race_strips, "not_run_at", lambda job, graph, path: "")
    monkeypatch.setattr(race_strips, "in_strips", lambda origin: True)
    strips = race_strips.RaceStrips(job, planned, SimpleNamespace(original=None, searches=()), race)
    strips._search, strips._operators = SimpleNamespace(graph=SimpleNamespace(ops=range(10))), 1000
    while files := strips.further():
        read.append(ratios[len(read)])
        race.measured.append(SimpleNamespace(origin=read[-1]))
        assert files[0].arena_bytes == 500 and files[0].name == f"strips {len(tried)}"
    assert read == [one for one in ratios if one is not None]
    assert len(tried) == len(ratios)


@pytest.mark.parametrize("given", [{"rewrite": "off"}, {"strips": 4}, {"max_recompute": 0.1}, {"front": True}, {}])
def test_strips_are_looked_for_where_no_option_asks_for_some_or_none(given, monkeypatch):
    heard = []
    options, search = FitOptions("m", **given), SimpleNamespace(front=SimpleNamespace(bound_bytes=100))
    job = SimpleNamespace(options=options, search_time=SimpleNamespace(over=False), notes=Notes())
    job.listener = SimpleNamespace(progress=heard.append)
    planned = SimpleNamespace(best=SimpleNamespace(together=SimpleNamespace(arena=SimpleNamespace(arena_bytes=900))))
    monkeypatch.setattr(race_strips, "folded_plan", lambda best: best)
    monkeypatch.setattr(race_strips, "strip_forms", lambda job, plan: SimpleNamespace(pricings=(1, 2)))
    monkeypatch.setattr(race_strips, "search_forms", lambda job, forms, limits: limits.work_limit)
    monkeypatch.setattr(race_strips, "least_in_strips", lambda job, searches: [])
    monkeypatch.setattr(race_strips, "measure", lambda job, files, original: files)
    monkeypatch.setattr(race_strips, "not_run_at", lambda job, graph, path: "")
    candidates = SimpleNamespace(original=None, searches=[search])
    for default_bytes in (1000, 30_000):  # 3 % of the latter are more than strips may gain
        race = SimpleNamespace(default_bytes=default_bytes)
        assert race_strips.RaceStrips(job, planned, candidates, race).least() == []
    assert heard == ([] if given else ["looking for segments in strips"])


def race_most(each_s, limit_s):
    """21 processes decide: 9 that are measured once, and two rounds of six."""
    return max(21, min(60, int(limit_s / each_s)))


@pytest.mark.parametrize("seed", range(5))
def test_the_load_of_the_machine_does_not_change_what_is_opened(seed, tmp_path, monkeypatch):
    """Processes that take six times as long because others have the processors: the same ones are opened and timed."""

    def raced(slower):
        bench, clock = Bench(seed, tmp_path, monkeypatch), SimpleNamespace(processor_s=0.0, real_s=0.0)

        def measured(job, tried, rounds=1):
            clock.processor_s += 2.5 * rounds * len(tried)
            clock.real_s += slower * 2.5 * rounds * len(tried)
            return bench.measured(job, tried, rounds)

        monkeypatch.setattr(process_race, "measured_once", measured)
        monkeypatch.setattr(process_race, "_children_s", lambda: clock.processor_s)
        monkeypatch.setattr(budget, "_real_s", lambda: clock.real_s)
        race = Race(bench.job, bench.measured(None, [bench.default])[0], 2.5)
        race.enter(bench.others)
        timed = race.timed()
        return bench.opened, [one.file.label for one in timed], race.note, bench.job.notes

    assert raced(1.0) == raced(2.0) == raced(6.0)


def test_real_time_counts_where_a_machine_gives_processes_almost_nothing(monkeypatch):
    monkeypatch.setattr(process_race, "_children_s", lambda: 3.0)
    monkeypatch.setattr(budget, "_real_s", lambda: 660.0)
    assert process_race.processes_s((2.0, 10.0)) == 100.0


@pytest.mark.parametrize("seed", range(60))
def test_what_another_run_may_choose_is_named(seed, tmp_path, monkeypatch):
    """Two runs whose readings differ by chance, by up to half a percent: where they choose differently, each names what
    the other one chose."""
    bench = Bench(seed, tmp_path, monkeypatch)
    low = min(growth.peak_bytes for growth in bench.true.values())
    for key, growth in bench.true.items():  # many of about the same memory and time
        peak = int(100 * low * bench.random.uniform(1.0, 1.04)) if bench.random.random() < 0.6 else 200 * low
        cpu_s = 1.0 if key[1] == DEFAULT.name else float(bench.random.choice([0.99, 1.0, 1.06]))
        bench.true[key] = replace(growth, peak_bytes=peak, peak_anonymous_bytes=peak // 2, cpu_s=cpu_s)
    exact = bench.of

    def noisy(one):
        true, noise = exact(one), bench.random.uniform(0.995, 1.005, 3)
        peak, anonymous = int(true.peak_bytes * noise[0]), int(true.peak_anonymous_bytes * noise[1])
        return replace(true, peak_bytes=peak, peak_anonymous_bytes=anonymous, cpu_s=true.cpu_s * float(noise[2]))

    bench.of = noisy
    chosen = []
    for _ in range(4):
        race = bench.race()
        best = smallest(race.timed())
        chosen.append((best.file.label, race.near(best)))
    for name, near in chosen:
        others = {other for other, _ in chosen} - {name}
        assert others <= set(near.split("; "))


def test_nothing_is_named_where_one_is_clearly_the_least(tmp_path, monkeypatch):
    bench = Bench(0, tmp_path, monkeypatch)
    for place, (key, growth) in enumerate(bench.true.items()):
        bench.true[key] = replace(growth, cpu_s=1.0, peak_bytes=9000 if key[0] == bench.job.path else 500 * place)
    race = bench.race()
    assert race.near(smallest(race.timed())) == ""


@pytest.mark.parametrize("each_s", [0.01, 30.0])
def test_a_file_that_cannot_be_compared_is_refused_and_the_next_ships(each_s, tmp_path, monkeypatch):
    """Also where the rounds that decided about the first one have taken all the time that there was."""
    bench = Bench(1, tmp_path, monkeypatch)
    for (path, name), growth in bench.true.items():
        peak = growth.peak_bytes // (1 if path == bench.job.path else 4)
        cpu_s = 1.0 if path == bench.job.path else 1.08  # near the limit, so that further rounds are asked for
        bench.true[path, name] = replace(growth, cpu_s=cpu_s, peak_bytes=peak)
    asked = []

    def compared(job, original, file):
        asked.append(file.name)
        if file.name != "original" and len(asked) == 1:
            raise LoadError("its sizes stay open")
        return Comparison(True, 0.0, "ort")

    monkeypatch.setattr(processes, "compare", compared)
    monkeypatch.setattr(processes, "_with_arena", lambda job, file: file)
    monkeypatch.setattr(processes, "_taken", lambda file, tried: tried)
    monkeypatch.setattr(Race, "narrowed", lambda race, best: best)
    monkeypatch.setattr(processes, "quicker", lambda job, race, best: (best, None))
    monkeypatch.setattr(Attempt, "row", lambda one: SimpleNamespace(of=one))
    candidates = SimpleNamespace(original=bench.default.file)
    race = Race(bench.job, bench.measured(None, [bench.default])[0], each_s)
    race.enter(bench.others[::-1])
    choice = processes._chosen(bench.job, None, candidates, race)
    assert len(asked) == 2 and choice.file.name == asked[1] != asked[0]
    assert any("its sizes stay open" in str(note) for note in bench.job.notes)


@pytest.mark.parametrize("seed", range(20))
def test_an_arena_that_holds_less_ships_unless_its_process_takes_more(seed, tmp_path, monkeypatch):
    bench = Bench(seed, tmp_path, monkeypatch)
    best = replace(bench.attempt("file", bench.file("f", 100), MAPPED[0]), readings=(ProcessGrowth(1, 1, 1, 1, 1.0),))
    best = replace(best, file=replace(best.file, measured={"held_bytes": 1 << 20}))
    name = ONE_REGION[MAPPED[0].name].name
    usual = ProcessGrowth(1_000_000, 500_000, 1, 1, 1.0)
    peak, anonymous, cpu_s = (float(bench.random.choice([0.9, 0.995, 1.0, 1.005, 1.02, 1.1])) for _ in range(3))
    own = ProcessGrowth(int(1_000_000 * peak), int(500_000 * anonymous), 1, 1, cpu_s)
    bench.true |= {(best.file.path, MAPPED[0].name): usual, (best.file.path, name): own}
    taken = SimpleNamespace(nbytes={"held_bytes": 5_000})
    sessions = SimpleNamespace(narrow=lambda path, settings, **_: (settings.with_region(4_864), taken))
    bench.job.target = SimpleNamespace(sessions=sessions)
    race = Race(bench.job, bench.default, 0.01)
    shipped = race.narrowed(best)
    peaks, parts = (usual.peak_bytes, own.peak_bytes), (usual.peak_anonymous_bytes, own.peak_anonymous_bytes)
    low = min(peaks)
    first = peaks[1] <= 1.01 * low and (peaks[0] > 1.01 * low or parts[1] <= min(parts) + 0.01 * low)
    rival = peaks[0] <= 1.01 * low and (peaks[1] > 1.01 * low or parts[0] <= min(parts) + 0.01 * low)
    expected = first and (not rival or cpu_s <= 1.05 * min(1.0, cpu_s))
    assert (shipped.file.settings.region_bytes == 4_864) == expected
    assert shipped.file.measured["held_bytes"] == (5_000 if expected else 1 << 20)
    assert (shipped in race.measured) == expected


@pytest.mark.parametrize("seed", range(30))
def test_the_memory_pattern_ships_where_runs_are_faster_and_the_process_no_larger(seed, tmp_path, monkeypatch):
    """By the settings that double and by those of one region, whose first region is found again with the pattern."""
    bench = Bench(seed, tmp_path, monkeypatch)
    draw = bench.random.choice
    one_region, ranges, limit = bool(draw([True, False])), draw([None, None, object()]), draw([None, 1_008_000])
    cpu_s, high = float(draw([0.001, 0.001, 0.03])), float(draw([0.9, 0.99, 1.0, 1.1]))
    peak, anonymous = (float(draw([0.9, 1.0, 1.009, 1.02])) for _ in range(2))
    settings = ONE_REGION[MAPPED[0].name].with_region(512) if one_region else MAPPED[0]
    usual = ProcessGrowth(1_000_000, 500_000, 1, 1, cpu_s, most_bytes=1_000_000)
    most = int(1_000_000 * peak)
    own = ProcessGrowth(most, int(500_000 * anonymous), 1, 1, cpu_s, most_bytes=most)
    best = bench.attempt("file", bench.file("f", 100), settings)
    best = replace(best, file=replace(best.file, measured={"held_bytes": 7}), readings=(usual,))
    bench.true |= {(best.file.path, settings.name): usual, (best.file.path, WITH_PATTERN[settings.name].name): own}
    timed = []

    def time(pairs, **_):
        timed.append([one.name for _, one in pairs])
        return [SimpleNamespace(ratio_high=1.0), SimpleNamespace(ratio_high=high)]

    taken = SimpleNamespace(nbytes={"held_bytes": 5})
    sessions = SimpleNamespace(narrow=lambda path, one, **_: (one.with_region(4_864), taken), time=time)
    bench.job.target, bench.job.ranges = SimpleNamespace(sessions=sessions), ranges
    bench.job.options = replace(bench.job.options, ram_bytes=None if limit is None else int(limit))
    race = Race(bench.job, bench.default, 0.01)
    shipped, default = quicker(bench.job, race, best)
    tried = ranges is None and cpu_s < 0.02
    assert timed == ([[settings.name, f"{settings.name}, memory pattern"]] if tried else [])
    small = peak <= 1.01 and anonymous * 500_000 <= 510_000 and (limit is None or peak * 1_000_000 <= limit)
    expected = tried and high < 1.0 and small
    assert shipped.file.settings.name == (f"{settings.name}, memory pattern" if expected else settings.name)
    assert (default is not None) == (shipped in race.measured) == expected
    if expected:
        assert default.file.settings == DEFAULT
        assert len(default.readings) == len(shipped.readings) == 3
        region, measured = (4_864, {"held_bytes": 5}) if one_region else (MAPPED[0].region_bytes, None)
        assert (shipped.file.settings.region_bytes, shipped.file.measured) == (region, measured)
    else:
        assert shipped == best


def kind_of(file):
    return bool(file.rewrites), any(rewrite.kind == "row-wise" for rewrite in file.rewrites)


@pytest.mark.parametrize("seed", range(30))
def test_forms_are_made_of_the_least_of_every_kind(seed, tmp_path):
    """The least in use first, then the least of each other kind that keeps to the policy and to its order."""
    random = np.random.default_rng(seed)
    rewrites = {"plain": (), "apart": ("concat",), "strips": ("row-wise",)}
    files = [Candidate("original", tmp_path / "o", 0, settings=DEFAULT, measured={"in_use_bytes": 1000})]
    for number in range(int(random.integers(0, 9))):
        kinds = rewrites[str(random.choice([*rewrites]))]
        plan = SimpleNamespace(rewrites=tuple(SimpleNamespace(kind=kind) for kind in kinds))
        measured = {"in_use_bytes": int(random.integers(1, 40)) * 10 + number}
        settings = MAPPED[0] if random.random() < 0.8 else TRIMMED[1]
        files.append(Candidate(f"f{number}", tmp_path / str(number), 0, plan, measured, settings))
    refused = {file.name for file in files[1:] if random.random() < 0.2}
    trials = SimpleNamespace(keeps=lambda file: file.name not in refused)
    first, *others = processes.least_in_use(SimpleNamespace(files=files, trials=trials, original=files[0]))
    kept = [file for file in files[1:] if file.name not in refused and file.settings.follows_file]
    if not kept:
        assert first is files[0] and not others
        return
    assert first.measured["in_use_bytes"] == min(file.measured["in_use_bytes"] for file in kept)
    assert {kind_of(file) for file in (first, *others)} == {kind_of(file) for file in kept}
    for file in (first, *others):
        same = [other.measured["in_use_bytes"] for other in kept if kind_of(other) == kind_of(file)]
        assert file.measured["in_use_bytes"] == min(same)


def test_other_files_are_tried_with_the_packing_of_the_best_and_no_regions_twice(tmp_path, monkeypatch):
    bench, regions = Bench(3, tmp_path, monkeypatch), []

    def form(name, settings, peak):
        one = bench.attempt(name, bench.file(name, 100), settings)
        bench.true[one.file.path, settings.name] = ProcessGrowth(peak, 1, peak, 1, 1.0)
        return replace(one, form=SimpleNamespace(settings=(settings,)))

    monkeypatch.setattr(Race, "_regions", lambda race, one: regions.append(one.file.name) or [])
    (default,) = bench.measured(None, [bench.default])
    race = Race(bench.job, default, 0.01)
    race.enter([form("packed", MAPPED[0], 500), form("plain", MAPPED[2], 600)])
    opened = bench.opened
    race.enter_others([form("strips, packed", MAPPED[0], 550), form("strips, plain", MAPPED[2], 400)])
    assert bench.opened == opened + 1 and regions == ["packed"], "the form without packed weights is left out"
    race.enter_others([form("rewritten, packed", MAPPED[0], 300)])
    assert regions == ["packed", "rewritten, packed"]
    assert min(race.timed(), key=lambda one: one.peak_bytes).file.name == "rewritten, packed"


def test_equal_processes_ship_the_least_arena_whatever_the_names_in_the_files_take(tmp_path):
    """A file names that of its weights for each of them, so that a few bytes depend on the names of models."""

    def read(name, nbytes, held):
        path = tmp_path / name
        path.write_bytes(b"a" * nbytes)
        file = Candidate(name, path, 0, settings=MAPPED[0], measured={"held_bytes": held})
        return Attempt(file, readings=(ProcessGrowth(1000, 500, 1000, 500, 1.0, most_bytes=1000),))

    order, plain = read("order", 10_050, 64), read("plain", 10_000, 128)
    assert least_of([order, plain]) is least_of([plain, order]) is order
    assert least_of([read("order", 10_200, 64), plain]) is plain, "more than by names"
    equal = read("another", 10_000, 128)
    assert least_of([plain, equal]) is least_of([equal, plain]) is equal


def test_a_page_more_or_less_does_not_decide_which_of_equal_forms_ships(tmp_path, monkeypatch):
    """One reading of a process differs by pages, also by the length of a path."""
    shipped = set()
    for seed in range(20):
        folder = tmp_path / str(seed)
        folder.mkdir()
        bench = Bench(0, folder, monkeypatch)
        noise = np.random.default_rng(seed)
        for path, name in bench.true:
            peak = (1 << 28) + 4096 * int(noise.integers(3)) + (0 if path.stem.startswith("f") else 1 << 27)
            bench.true[path, name] = ProcessGrowth(peak, 1 << 20, peak, 1 << 20, 1.0, most_bytes=peak)
        shipped.add(smallest(bench.race().timed()).file.label)
    assert len(shipped) == 1
