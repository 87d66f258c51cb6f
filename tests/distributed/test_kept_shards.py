"""Shards on a device's disk: within the limit, the longest unused ones go, and what is needed stays."""

from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from downset.distributed.serving.kept_shards import KeptShards
from downset.errors import UnsupportedError


def shard(number, nbytes=10):
    data = f"{number:0{nbytes}d}".encode()
    return hashlib.sha256(data).hexdigest(), data


def aged(folder, names):
    """The files of these as if used one after another, a second between two."""
    for age, name in enumerate(names):
        os.utime(folder / f"{name}.onnx", (1e9 + age, 1e9 + age))


def test_the_longest_unused_goes_first(tmp_path):
    kept = KeptShards(tmp_path, 30)
    names = [shard(number)[0] for number in range(4)]
    for number in range(3):
        assert kept.keep(*shard(number)) == []
    kept.use([])
    aged(tmp_path, [names[1], names[2], names[0]])
    assert kept.keep(*shard(3)) == [names[1]]
    assert kept.names() == sorted([names[0], names[2], names[3]])


def test_what_a_program_needs_stays_whatever_the_limit(tmp_path):
    kept = KeptShards(tmp_path, 25)
    names = [shard(number)[0] for number in range(4)]
    for number in range(4):  # brought for the next program
        assert kept.keep(*shard(number)) == []
    kept.use(names[:3])
    assert kept.keep(*shard(4)) == [names[3]]
    assert set(names[:3]) <= set(kept.names())


def test_what_is_kept_ahead_takes_no_room_from_what_is_needed_nor_from_each_other(tmp_path):
    kept = KeptShards(tmp_path, 25)
    first, second, third = (shard(number)[0] for number in range(3))
    kept.keep(*shard(0))
    kept.use([first])
    assert kept.keep(*shard(1), ahead=True) == []
    with pytest.raises(UnsupportedError, match="no room for another shard within 25"):
        kept.keep(*shard(2), ahead=True)
    assert kept.names() == sorted([first, second])
    assert kept.keep(*shard(2)) == [second]  # the next program needs it
    assert kept.names() == sorted([first, third])


def test_what_an_earlier_process_left_is_cut_to_the_limit(tmp_path):
    names = [shard(number)[0] for number in range(4)]
    before = KeptShards(tmp_path)
    for number in range(4):
        before.keep(*shard(number))
    aged(tmp_path, names)
    assert KeptShards(tmp_path, 20).names() == sorted(names[2:])
    assert KeptShards(tmp_path, 20).names() == sorted(names[2:])


@given(st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=25), st.integers(0, 60), st.data())
def test_the_folder_holds_the_needed_and_no_more_than_the_limit(tmp_path_factory, steps, limit, data):
    folder = tmp_path_factory.mktemp("kept")
    kept, needed, all_names = KeptShards(folder, limit), set(), [shard(number)[0] for number in range(8)]
    for number, ahead in steps:
        if data.draw(st.booleans()):
            needed = set(data.draw(st.sets(st.sampled_from(kept.names())))) if kept.names() else set()
            kept.use(needed)
        before = set(kept.names())
        try:
            removed = kept.keep(*shard(number), ahead=ahead)
        except UnsupportedError:
            assert ahead
            continue
        if not ahead:
            needed.add(all_names[number])
        now = set(kept.names())
        assert now == (before - set(removed)) | {all_names[number]}
        assert not needed & set(removed)
        assert 10 * len(now) <= max(limit, 10 * len(needed), 10 * len(before))


@given(st.lists(st.integers(0, 80), min_size=2, max_size=5))
def test_a_larger_limit_keeps_no_fewer(tmp_path_factory, limits):
    counts = []
    for limit in sorted(limits):
        kept = KeptShards(tmp_path_factory.mktemp("kept"), limit)
        for number in range(6):
            kept.keep(*shard(number))
            kept.use([])
        counts.append(len(kept.names()))
    assert all(one <= other for one, other in pairwise(counts))


def damaged(path, how, random):
    """Change a kept file, or what stands in its place."""
    data = path.read_bytes()
    if how == "bit":
        at = random.randrange(8 * len(data))
        path.write_bytes(data[: at // 8] + bytes([data[at // 8] ^ 1 << at % 8]) + data[at // 8 + 1 :])
    elif how == "short":
        os.truncate(path, random.randrange(len(data)))
    elif how == "long":
        path.write_bytes(data + b"0")
    else:
        path.unlink()
    if how == "folder":
        path.mkdir()
    elif how == "pipe":
        os.mkfifo(path)
    elif how == "link":
        path.with_name("elsewhere").write_bytes(data)
        path.symlink_to("elsewhere")


@pytest.mark.parametrize("how", ["bit", "short", "long", "gone", "pipe", "link"])
def test_what_is_read_is_what_came_or_nothing(how, tmp_path):
    """What is damaged is removed, and kept again when it comes again, also by a process that found it there."""
    random, kept = Random(0), KeptShards(tmp_path)
    for number in range(20):
        name, data = shard(number, nbytes=30)
        kept.keep(name, data)
        assert kept.content(name) == data
        damaged(tmp_path / f"{name}.onnx", how, random)
        if number % 2:
            kept = KeptShards(tmp_path)
            kept.keep(name, data)  # as if nobody had looked
        else:
            assert kept.content(name) is None
            assert name not in kept.names()
            kept.keep(name, data)
        assert kept.content(name) == data


def test_a_name_that_cannot_be_a_file_is_not_read(tmp_path):
    kept, (name, data) = KeptShards(tmp_path), shard(0)
    kept.keep(name, data)
    damaged(tmp_path / f"{name}.onnx", "folder", Random(0))
    assert kept.content(name) is None
    with pytest.raises(UnsupportedError, match="cannot keep a shard: Is a directory"):
        kept.keep(name, data)


def test_other_users_read_nothing_and_a_crash_leaves_whole_files(tmp_path, monkeypatch):
    """Whatever the umask; the data are on the disk before the name is."""
    steps = []
    monkeypatch.setattr(os, "fsync", lambda number: steps.append(Path(f"/proc/self/fd/{number}").readlink().suffix))
    rename = Path.replace
    monkeypatch.setattr(Path, "replace", lambda self, to: (steps.append("renamed"), rename(self, to)))
    before = os.umask(0)
    try:
        KeptShards(tmp_path / "deep" / "er").keep(*shard(0))
    finally:
        os.umask(before)
    assert steps == [".part", "renamed", ""]
    (file,) = (tmp_path / "deep" / "er").iterdir()
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (file, *file.parents[:2])}
    assert modes == {file.name: 0o600, "er": 0o700, "deep": 0o700}


def test_what_a_killed_process_had_begun_to_write_is_removed(tmp_path):
    program = "import sys; from pathlib import Path; from downset.process.whole_files import part_beside; "
    program += "part_beside(Path(sys.argv[1])).write_bytes(b'half')"
    subprocess.run([sys.executable, "-c", program, tmp_path / "a"], check=True)
    assert [path.suffix for path in tmp_path.iterdir()] == [".part"]
    KeptShards(tmp_path)
    assert list(tmp_path.iterdir()) == []
