"""Where commands write: stdout, pipes, odd names, and what they refuse before any work is done."""

import json
import os
import shutil

import pytest

from downset.errors import UsageError
from downset.formats.records_csv import read_records
from downset.process.whole_files import check_output, copy_whole, write_whole
from tests.models import branchy_model

RECORDS = "id,lower,upper,size\na,0,2,4\nb,1,3,6\nc,2,4,4\n"


@pytest.fixture
def records(tmp_path):
    path = tmp_path / "records.csv"
    path.write_text(RECORDS)
    return path


def test_a_dash_is_stdout_for_records_and_the_table_goes_to_stderr(run, records, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, out, err = run("arena", records, "-o", "-")
    assert status == 0
    assert "proven least" in err
    placed = tmp_path / "placed.csv"
    placed.write_text(out)
    assert [record.offset is not None for record in read_records(placed)] == [True] * 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["placed.csv", "records.csv"]
    status, out, _ = run("arena", records, "-o", "-", "--json")
    assert (status, json.loads(out)["error"]["code"]) == (2, "usage")


def test_a_dash_is_refused_where_a_file_is_meant(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = branchy_model(tmp_path / "m.onnx")
    for option in ("-o", "--map"):
        status, out, err = run("fit", model, option, "-")
        assert (status, out) == (2, "")
        assert "'-' names no file" in err
    with pytest.raises(UsageError, match="'-' names no file"):
        write_whole("-", b"")
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    write_whole("./-", b"said so")
    assert (tmp_path / "-").read_bytes() == b"said so"


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    """Renaming onto it, as files are written, would put a file in its place: /dev/null, for one."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_whole(pipe, b"bytes")
    assert os.read(reader, 100) == b"bytes"
    os.close(reader)
    assert pipe.is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]


def test_two_outputs_are_two_files(run, tmp_path):
    model = branchy_model(tmp_path / "m.onnx")
    status, _, err = run("fit", model, "-o", tmp_path / "out.onnx", "--map", tmp_path / "." / "out.onnx")
    assert status == 2
    assert "both name" in err
    assert run("fit", model, "--map", model)[0] == 2
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]


def test_what_cannot_be_written_is_said_before_the_work(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    existing = tmp_path / "there"
    existing.write_text("x")
    for path, says in [(folder, "is a directory"), (tmp_path / "no" / "x", "does not exist"), (existing, "being read")]:
        with pytest.raises(UsageError, match=says):
            check_output(path, source=existing)
    with pytest.raises(UsageError, match="cannot write"):
        check_output(tmp_path / ("n" * 300))
    check_output(existing)
    check_output(tmp_path / "new", source=existing)


def test_names_of_any_letters_and_length(tmp_path):
    """255 bytes are what file systems take; the file beside the destination has a longer name."""
    for name in ("ñandú — 模型.bin", "n" * 255, "模" * 85):
        write_whole(tmp_path / name, b"1")
        copy_whole(tmp_path / name, tmp_path / "copy")
        assert (tmp_path / name).read_bytes() == (tmp_path / "copy").read_bytes() == b"1"
    assert len(list(tmp_path.iterdir())) == 4


def test_a_model_with_a_suffix_in_capitals_is_fitted(run, tmp_path):
    model = tmp_path / "M.ONNX"
    shutil.copy(branchy_model(tmp_path / "m.onnx"), model)
    status, _, err = run("fit", model, "-o", tmp_path / "OUT.onnx", "--time-limit", "2s")
    assert status == 0, err
    assert (tmp_path / "OUT.onnx").exists()
    assert run("verify", model, tmp_path / "OUT.onnx", "--accept-runs")[0] == 0


def test_a_method_of_the_other_form_is_named_as_such(run, records):
    _, _, err = run("arena", records, "--form", "objects", "--method", "strip_packing")
    assert "there is no 'strip_packing' for shared objects; choose one of naive" in err
    _, _, err = run("arena", records, "--method", "magic")
    assert "unknown method 'magic' for offsets" in err
