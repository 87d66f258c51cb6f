"""What killed processes left is removed by the next run, and nothing of a process that lives or of others."""

import os
import subprocess
import sys

import pytest

from downset.process import leftovers
from downset.process.leftovers import owned_prefix, remove_leftovers

PREFIX = [
    sys.executable,
    "-c",
    "from downset.process.leftovers import owned_prefix; print(owned_prefix(), flush=True); input()",
]


@pytest.fixture(scope="module")
def dead():
    """The prefix of a process that has ended."""
    return subprocess.run(PREFIX, input="\n", capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def living():
    """The prefix of a process that runs."""
    with subprocess.Popen(PREFIX, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process.stdout.readline().strip()
        process.communicate("\n")


def swept(folder, made):
    """Whether what `made(path)` makes at each path of that name is removed."""
    for name, make in made.items():
        make(folder / name)
    remove_leftovers(folder)
    return {name: not os.path.lexists(folder / name) for name in made}


def file(path):
    path.write_bytes(b"content")


def full(path):
    (path / "in").mkdir(parents=True)
    file(path / "in" / "a")
    (path / "in").chmod(0o500)


def test_what_a_dead_process_left_is_removed(tmp_path, dead):
    made = {f"{dead}abcdefgh": full, f".{dead}00000000.part": file, f".{dead}00000001.part": full}
    assert set(swept(tmp_path, made).values()) == {True}


def test_what_a_living_process_has_stays(tmp_path, living):
    names = [beginning + end for beginning in (living, owned_prefix()) for end in ("abcdefgh", "abcdefgi")]
    assert set(swept(tmp_path, {name: full if at % 2 else file for at, name in enumerate(names)}).values()) == {False}


def parts(prefix):
    """(machine, process, start) of a prefix."""
    return prefix.removeprefix("downset-").split("-")[:3]


def test_a_number_that_another_process_has_now_is_no_owner(tmp_path, living):
    """And where no start is known, the number alone decides."""
    machine, process, start = parts(living)
    again, unknown = f"{int(start, 16) ^ 1:08x}", "00000000"
    made = {f"downset-{machine}-{process}-{started}-abcdefgh": full for started in (start, again, unknown)}
    assert list(swept(tmp_path, made).values()) == [False, True, False]


def test_names_of_others_and_of_elsewhere_stay(tmp_path, dead):
    machine, process, start = parts(dead)
    names = [
        f"downset-{int(machine, 16) ^ 1:08x}-{process}-{start}-abcdefgh",
        f"x{dead}abcdefgh",
        f"{dead}abcdefgh.txt",
        f"{dead}abcdefghi",
        f"downset-{machine}--{process}-{start}-abcdefgh",
        "downset-report-abcdefgh.txt",
        "some.part",
        f"downset-{machine}-{'9' * 11}-{start}-abcdefgh",
    ]
    assert set(swept(tmp_path, dict.fromkeys(names, full)).values()) == {False}


def test_links_stay_and_what_they_name(tmp_path, dead):
    target, folder = tmp_path / "target", tmp_path / "folder"
    full(target)
    folder.mkdir()
    holds = f"{dead}abcdefgi"
    (folder / holds).mkdir()
    (folder / holds / "link").symlink_to(target)
    made = {
        f"{dead}abcdefgh": lambda path: path.symlink_to(target),
        f".{dead}00000000.part": lambda path: path.symlink_to(target / "in" / "a"),
        f".{dead}00000001.part": os.mkfifo,
    }
    assert set(swept(folder, made).values()) == {False}
    assert not (folder / holds).exists(), "a folder goes with the links inside it"
    assert (target / "in" / "a").read_bytes() == b"content"


def test_what_belongs_to_another_user_stays(tmp_path, dead, monkeypatch):
    monkeypatch.setattr(leftovers.os, "geteuid", lambda: os.getuid() + 1)
    assert not any(swept(tmp_path, {f"{dead}abcdefgh": full, f".{dead}00000000.part": file}).values())


def test_a_folder_that_cannot_be_read_is_no_error(tmp_path):
    remove_leftovers(tmp_path / "missing")
