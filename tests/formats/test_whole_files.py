"""Files are whole, always: whatever fails or is killed in between, old or new is there and nothing else."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from downset.errors import UsageError
from downset.formats.reading import load
from downset.formats.shards.write import ShardBlock, write_shards
from downset.process import whole_files
from downset.process.whole_files import copy_whole, part_beside, write_whole
from tests.models import branchy_model

ROOT = Path(__file__).resolve().parents[2]


def test_permissions_of_a_replaced_file_are_kept(tmp_path):
    path = tmp_path / "a"
    write_whole(path, b"one")
    umask = os.umask(0)
    os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~umask
    path.chmod(0o600)
    write_whole(path, b"two")
    assert (path.read_bytes(), path.stat().st_mode & 0o777) == (b"two", 0o600)
    copy_whole(Path(__file__), path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_pipe_is_written_into(tmp_path):
    path, read = tmp_path / "pipe", []
    os.mkfifo(path)
    reader = threading.Thread(target=lambda: read.append(path.read_bytes()), daemon=True)
    reader.start()
    write_whole(path, b"one" * 100_000)  # more than a pipe holds
    reader.join(60)
    assert read == [b"one" * 100_000]
    assert path.is_fifo()


def test_a_pipe_that_nobody_reads_is_given_up(tmp_path, monkeypatch):
    monkeypatch.setattr(whole_files, "_UNREAD_S", 0.0)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match="nobody has opened this pipe for reading"):
        write_whole(tmp_path / "pipe", b"one")


def test_a_link_is_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    link = tmp_path / "link"
    link.symlink_to("real/a")
    for text in (b"made", b"replaced"):
        write_whole(link, text)
        assert link.is_symlink()
        assert (tmp_path / "real" / "a").read_bytes() == text
    assert [entry.name for entry in (tmp_path / "real").iterdir()] == ["a"]
    link.unlink()
    link.symlink_to("missing/a")
    with pytest.raises(UsageError, match="a link into"):
        write_whole(link, b"")
    link.unlink()
    link.symlink_to("link")
    with pytest.raises(UsageError):
        write_whole(link, b"")


def test_what_dead_processes_left_is_removed_and_nothing_else(tmp_path):
    program = "import sys; from pathlib import Path; from downset.process.whole_files import part_beside; "
    program += "part_beside(Path(sys.argv[1])).write_bytes(b'')"
    subprocess.run([sys.executable, "-c", program, tmp_path / "a"], check=True)
    (dead,) = tmp_path.iterdir()
    ours = part_beside(tmp_path / "a")
    assert not dead.exists()
    dead.mkdir()
    for path in (ours, tmp_path / "some.part"):
        path.write_bytes(b"")
    write_whole(tmp_path / "a", b"")
    assert {entry.name for entry in tmp_path.iterdir()} == {ours.name, "some.part", "a"}


KILLED = """
import os, sys
from pathlib import Path
from downset.process import whole_files
from tests.formats.test_whole_files import export

left = int(sys.argv[2])
replace = Path.replace

def counted(self, target):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    return replace(self, target)

Path.replace = counted
export(Path(sys.argv[1]), 4)
"""


def export(folder, rows):
    graph = load(folder / "whole.onnx")
    strips = (("a", 0, rows), ("b", rows, 8))
    return write_shards(folder / "shards", graph, [ShardBlock(0, 0, (0, 1), 8, strips)])


def index_of(folder):
    """The files that the index names, all of which must be there."""
    shards = json.loads((folder / "shards.json").read_text())["shards"]
    names = [shard["file"] for shard in shards]
    assert all((folder / name).is_file() for name in names)
    return names


def test_an_export_that_is_killed_leaves_a_whole_index(tmp_path):
    branchy_model(tmp_path / "whole.onnx")
    export(tmp_path, 3)
    earlier = index_of(tmp_path / "shards")
    died, renames = True, 0
    while died:
        command = [sys.executable, "-c", KILLED, str(tmp_path), str(renames)]
        done = subprocess.run(command, cwd=ROOT, check=False)
        died, renames = done.returncode == -9, renames + 1
        assert died or done.returncode == 0
        found = index_of(tmp_path / "shards")
        assert found == earlier or not died or len(found) == 2
    assert renames > 6
    assert found != earlier
    export(tmp_path, 4)
    assert not [entry for entry in (tmp_path / "shards").iterdir() if entry.name.endswith(".part")]


@pytest.mark.parametrize("step", ["replace", "chmod"])
def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch, step):
    path = tmp_path / "a"
    write_whole(path, b"one")

    def fails(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, step, fails)
    with pytest.raises(UsageError, match="No space left"):
        write_whole(path, b"two")
    monkeypatch.undo()
    monkeypatch.setattr(whole_files, "settle_on_disk", fails)
    with pytest.raises(UsageError, match="No space left"):
        write_whole(path, b"two")
    assert path.read_bytes() == b"one"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]
