"""Kept measurements: by key, shared by processes, and never fatal."""

import os
import stat
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import downset
from downset.errors import UnsupportedError, UsageError
from downset.tuning.profiles import Key, Profiles, default_path
from tests.effort import cases

KEY = Key("device", "torch 1", "float32", 1, "abc")


def test_what_is_put_is_got(tmp_path):
    path = tmp_path / "deep" / "profiles.sqlite"
    kept = Profiles(path)
    assert kept.get(KEY) is None
    kept.put([(KEY, 0.5), (KEY._replace(batch=2), 0.75)])
    kept.put([(KEY, 0.25)])
    again = Profiles(path)
    assert again.get(KEY) == 0.25
    assert again.matching(*KEY[:4]) == {"abc": 0.25}
    for other in ({"device": "x"}, {"versions": "torch 2"}, {"dtype": "float16"}, {"batch": 3}, {"signature": "x"}):
        assert again.get(KEY._replace(**other)) is None
    assert [row[:5] for row in again.summary()] == [("device", "torch 1", "float32", b, 1) for b in (1, 2)]
    assert again.clear() == 2
    assert again.summary() == []
    assert not again.notes


def test_a_damaged_file_is_moved_aside(tmp_path):
    path = tmp_path / "profiles.sqlite"
    path.write_bytes(b"this is no database at all, and it is long enough to be looked at" * 20)
    kept = Profiles(path)
    (note,) = kept.notes
    assert "damaged" in note
    kept.put([(KEY, 1.0)])
    assert Profiles(path).get(KEY) == 1.0
    assert len(list(tmp_path.glob("profiles.damaged-*.sqlite"))) == 1


def test_a_file_of_another_shape_is_moved_aside(tmp_path):
    import sqlite3

    path = tmp_path / "profiles.sqlite"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE timings (something TEXT)")
    connection.close()
    assert Profiles(path).notes


def test_a_view_without_end_in_place_of_the_table_is_moved_aside(tmp_path):
    import sqlite3

    path = tmp_path / "profiles.sqlite"
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n)"
    columns = "'a' device, 'b' versions, 'c' dtype, x batch, 'd' signature, 1.0 seconds, 1.0 taken_at"
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE VIEW timings AS {endless} SELECT {columns} FROM n")
    connection.close()
    kept = Profiles(path)
    assert "moved to" in kept.notes[0]
    assert kept.summary() == []


def test_a_locked_file_is_left_where_it_is(tmp_path, monkeypatch):
    import sqlite3

    from downset.tuning import profiles

    path = tmp_path / "profiles.sqlite"
    Profiles(path).put([(KEY, 1.0)])
    monkeypatch.setattr(profiles, "_WAIT_S", 0.1)
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN EXCLUSIVE")
    with pytest.raises(UnsupportedError, match="locked"):
        Profiles(path)
    holder.execute("ROLLBACK")
    holder.close()
    assert Profiles(path).get(KEY) == 1.0
    assert list(tmp_path.glob("*damaged*")) == []


def test_damage_inside_is_found(tmp_path):
    path = tmp_path / "profiles.sqlite"
    Profiles(path).put([(KEY._replace(signature=f"s{number}"), 1.0) for number in range(2000)])
    content = bytearray(path.read_bytes())
    content[4096 : len(content) - 4096] = b"\xff" * (len(content) - 8192)
    path.write_bytes(content)
    kept = Profiles(path)
    assert kept.notes
    kept.put([(KEY, 2.0)])
    assert kept.get(KEY) == 2.0


def ask_everything(kept):
    """(name, what is asked, the answer of a file that knows nothing)."""
    yield "get", lambda: kept.get(KEY), None
    yield "matching", lambda: kept.matching(*KEY[:4]), {}
    yield "put", lambda: kept.put([(KEY, 3.0)]), None
    yield "summary", kept.summary, []
    yield "clear", kept.clear, 0


def wrecked(content, how):
    if how == "garbage":
        return b"garbage" * 500
    if how == "inside":  # header and schema are sound
        return content[:4096] + b"\xff" * (len(content) - 4096)
    return content[: len(content) // 2]


@pytest.mark.parametrize("how", ["garbage", "inside", "short"])
@pytest.mark.parametrize("asked", ["get", "matching", "put", "summary", "clear"])
def test_damage_after_it_was_opened_is_survived(tmp_path, asked, how):
    """By whatever is asked first: the file is moved aside, and a new one answers."""
    path = tmp_path / "profiles.sqlite"
    kept = Profiles(path)
    kept.put([(KEY._replace(signature=f"s{number}"), 1.0) for number in range(200)])
    before = wrecked(path.read_bytes(), how)
    path.write_bytes(before)
    question, answer = next((ask, answer) for name, ask, answer in ask_everything(kept) if name == asked)
    assert question() == answer
    (note,) = kept.notes
    assert "was damaged" in note
    (aside,) = tmp_path.glob("profiles.damaged-*.sqlite")
    assert aside.name in note
    assert aside.read_bytes() == before
    kept.put([(KEY, 2.0)])
    assert Profiles(path).get(KEY) == kept.get(KEY) == 2.0
    assert len(kept.notes) == 1


@pytest.mark.parametrize("opened", ["before", "after"])
def test_no_flipped_bit_changes_a_timing(tmp_path, opened):
    """Every answer of a file with one bit flipped is what was put, or is left out; it may be refused, too."""
    path, random = tmp_path / "profiles.sqlite", Random(0)
    kept = Profiles(path)
    put = {f"stage {number}": 0.001 * (number + 1) for number in range(40)}
    kept.put([(KEY._replace(signature=name), seconds) for name, seconds in put.items()])
    sound, whole = path.read_bytes(), 0
    rows = sound.index(b"stage")  # most of the bits are free space
    for _ in range(cases(200)):
        bit = random.randrange(8 * rows if random.random() < 0.3 else 0, 8 * len(sound))
        path.write_bytes(sound)
        kept = Profiles(path) if opened == "before" else None
        path.write_bytes(sound[: bit // 8] + bytes([sound[bit // 8] ^ 1 << bit % 8]) + sound[bit // 8 + 1 :])
        try:
            found = (kept or Profiles(path)).matching(*KEY[:4])
        except UnsupportedError:
            continue
        assert found.items() <= put.items(), bit
        whole += found == put
        assert (kept or Profiles(path)).get(KEY._replace(signature="stage 7")) in (put["stage 7"], None)
    assert whole > 10


def test_a_file_of_other_users_is_refused_and_ours_is_for_us_alone(tmp_path):
    before = os.umask(0)
    try:
        path = tmp_path / "deep" / "profiles.sqlite"
        Profiles(path).put([(KEY, 1.0)])
        path.write_bytes(b"garbage" * 500)
        assert Profiles(path).notes  # one that is begun again, too
    finally:
        os.umask(before)
    assert [stat.S_IMODE(place.stat().st_mode) for place in (path, path.parent)] == [0o600, 0o700]
    path.chmod(0o620)
    with pytest.raises(UnsupportedError, match="other users can write it"):
        Profiles(path)
    path.chmod(0o600)
    if os.geteuid() == 0:  # the only user who can give a file away
        os.chown(path, 65534, 65534)
        with pytest.raises(UnsupportedError, match="it belongs to another user"):
            Profiles(path)


def test_a_file_that_cannot_be_mended_is_named(tmp_path, monkeypatch):
    """A new file that is damaged at once as well is not begun for ever."""
    path = tmp_path / "profiles.sqlite"
    kept = Profiles(path)
    monkeypatch.setattr(Profiles, "_move_aside", lambda self, why: self.notes.append(why))
    path.write_bytes(b"garbage" * 500)
    with pytest.raises(UnsupportedError, match="profiles=None"):
        kept.get(KEY)
    assert len(kept.notes) == 1


def test_of_two_that_see_the_damage_one_moves_it_aside(tmp_path, monkeypatch):
    path = tmp_path / "profiles.sqlite"
    kept = Profiles(path)
    path.write_bytes(b"garbage" * 500)
    replace = Path.replace

    def late(self, target):
        replace(self, path.with_name("profiles.damaged-1.sqlite"))  # by the other
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", late)
    kept.put([(KEY, 3.0)])
    assert not kept.notes
    assert len(list(tmp_path.glob("profiles.damaged-*.sqlite"))) == 1
    assert Profiles(path).get(KEY) == 3.0


def test_a_long_search_survives_damage(tmp_path):
    from downset.executor.device import open_device
    from downset.formats.reading import load
    from downset.stages.prepared import prepare
    from downset.tuning.search import StageLimits
    from downset.tuning.tune import tune_stages
    from tests.networks import branchy

    graph = prepare(load(branchy(tmp_path / "m.onnx")))
    kept = Profiles(tmp_path / "profiles.sqlite")
    steps = []

    def progress(what, done, total):
        steps.append(what)
        if len(steps) == 4:
            kept.path.write_bytes(b"garbage" * 500)

    result = tune_stages(
        graph, open_device("cpu", threads=1), limits=StageLimits(timings=1), runs=1, profiles=kept, progress=progress
    )
    assert any("was damaged" in note for note in result.notes)
    versions = f"{result.plan.versions}, downset {downset.__version__}"
    loud = any("these times were not kept" in note for note in result.notes)
    assert loud or kept.matching(result.plan.device_name, versions, "float32", 1)


def test_what_a_loaded_machine_took_is_neither_kept_nor_used_again(tmp_path):
    from downset.executor.binder import Binder
    from downset.executor.device import open_device
    from downset.formats.reading import load
    from downset.results.plans import Stage
    from downset.stages.prepared import prepare
    from downset.stages.unit_graph import group_units
    from downset.tuning.timer import StageTimer
    from tests.networks import branchy

    graph, device = prepare(load(branchy(tmp_path / "m.onnx"))), open_device("cpu", threads=1)
    units, profiles = group_units(graph), Profiles(tmp_path / "profiles.sqlite")

    def timed():
        timer = StageTimer(graph, units, device, Binder(graph), profiles)
        before = timer.used
        alone = [timer(Stage(((unit,),))) for unit in range(len(units.units))]
        return timer, alone, timer.used - before

    def count():
        return sum(row[4] for row in profiles.summary())

    timer, alone, used = timed()
    assert used > 0
    timer.settle(alone, sum(alone), quiet=False)
    assert (count(), timer.notes) == (0, ["timings of this run were not kept: the machine was not quiet"])
    timer.settle([1.0 for _ in alone], 0.4 * len(alone), quiet=True)
    assert count() == 0
    assert "were timed under load" in timer.notes[-1]
    timer.settle(alone, sum(alone), quiet=True)
    assert count() == used
    later, alone, fresh = timed()
    assert fresh == 0, "kept timings are used"
    later.settle([1.0 for _ in alone], 0.4 * len(alone), quiet=True)
    assert count() == 0, "what turns out to be wrong is forgotten"
    assert f"{used} older ones were removed" in later.notes[-1]
    assert timed()[2] == used
    assert later._key("x").versions.endswith(f", downset {downset.__version__}"), "another version measures again"


def test_a_folder_that_cannot_be_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnsupportedError, match="DOWNSET_CACHE"):
        Profiles(tmp_path / "file" / "profiles.sqlite")


def test_processes_write_side_by_side(tmp_path):
    path = tmp_path / "profiles.sqlite"
    code = (
        "import sys; from downset.tuning.profiles import Key, Profiles\n"
        "kept = Profiles(sys.argv[1])\n"
        "for i in range(40): kept.put([(Key('d', 'v', 'float32', 1, f'{sys.argv[2]}-{i}'), i / 8)])"
    )
    running = [subprocess.Popen([sys.executable, "-c", code, str(path), str(number)]) for number in range(3)]
    assert [process.wait(timeout=120) for process in running] == [0, 0, 0]
    assert len(Profiles(path).matching("d", "v", "float32", 1)) == 120


def test_where_it_lies(monkeypatch, tmp_path):
    monkeypatch.setenv("DOWNSET_CACHE", str(tmp_path))
    assert default_path() == tmp_path / "profiles.sqlite"
    monkeypatch.delenv("DOWNSET_CACHE")
    assert default_path().name == "profiles.sqlite"
    assert "downset" in str(default_path())


def test_who_has_no_home_is_told_to_name_a_folder(monkeypatch):
    """Python leaves the ~ of a user without a home as it is, a folder of that name would be made in the current one."""
    for name in ("DOWNSET_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 987_654)
    with pytest.raises(UsageError, match="set DOWNSET_CACHE"):
        default_path()
