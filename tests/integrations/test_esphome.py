"""A manifest of ESPHome's micro_wake_word: the fitted model beside it, and an arena in which TFLite Micro runs it."""

import json
import shutil

import pytest

import downset as ds
from downset.formats.firmware import arena_bytes
from downset.integrations.esphome import fit_manifest, main
from downset.runtimes import tflm
from tests.models import installed_model

PACKAGE = "pymicro-wakeword"


@pytest.fixture
def wake_word(tmp_path):
    for name in ("okay_nabu.json", "okay_nabu.tflite"):
        shutil.copy(installed_model(PACKAGE, name), tmp_path / name)
    (tmp_path / "fitted").mkdir()
    return tmp_path / "okay_nabu.json"


def changed(path, **micro):
    document = json.loads(path.read_text())
    document["micro"] |= micro
    return document


def test_the_manifest_is_the_same_but_for_the_size_of_the_arena(wake_word, capsys):
    output = wake_word.parent / "fitted" / "any_name.json"
    arguments = [str(wake_word), "-o", str(output), "--kernels", "esp-nn-s3@1.2.1", "--time-limit", "2s"]
    assert main(arguments) == 0
    written = json.loads(output.read_text())
    size = written["micro"]["tensor_arena_size"]
    assert written == changed(wake_word, tensor_arena_size=size)
    assert f"tensor_arena_size: {size} with esp-nn-s3@1.2.1 (it was 37000; " in capsys.readouterr().out
    fitted = output.parent / "okay_nabu.tflite"
    taken, before = tflm.measure(fitted), tflm.measure(wake_word.with_suffix(".tflite"))
    assert taken.total_bytes < size, "ESP-NN's scratch is larger than that of the reference kernels"
    assert [one.tobytes() for one in taken.outputs] == [one.tobytes() for one in before.outputs]


def test_versions_that_ask_for_more_need_a_larger_arena(wake_word):
    """ESPHome pinned 1.1.2 again after 1.2.1, in which the arena of 37,000 bytes was too small (esphome #15628)."""
    output = wake_word.parent / "fitted" / "m.json"
    each = {
        version: fit_manifest(wake_word, output, kernels=f"esp-nn-s3@{version}", time_limit_s=2.0)
        for version in ("1.1.2", "1.2.1")
    }
    assert each["1.1.2"].needed_before_bytes < 41_000 < 50_000 < each["1.2.1"].needed_before_bytes
    for found in each.values():
        assert found.arena_bytes == arena_bytes(found.fit) <= found.needed_before_bytes
        assert "kArenaBytes = " in ds.firmware(found.fit).header


@pytest.mark.parametrize(
    ("text", "says", "status"),
    [
        ("{", "is not JSON", 5),
        ("[1]", "holds no manifest of micro_wake_word", 5),
        ('{"type": "micro", "version": 1, "micro": {}}', "holds no manifest of micro_wake_word, version 2", 5),
        ({"model": "../okay_nabu.tflite"}, "model must name a .tflite file beside it", 5),
        ({"model": "https://a/okay.tflite"}, "model must name a .tflite file beside it", 5),
        ({"model": "other.tflite"}, "its model other.tflite does not exist beside it", 5),
        ({"micro": {"tensor_arena_size": "37000"}}, "tensor_arena_size must be a number of bytes", 5),
    ],
)
def test_what_is_no_manifest_is_one_line(text, says, status, wake_word, capsys):
    if isinstance(text, dict):
        text = json.dumps(json.loads(wake_word.read_text()) | text)
    wake_word.write_text(text)
    output = wake_word.parent / "fitted" / "m.json"
    assert main([str(wake_word), "-o", str(output)]) == status
    error = capsys.readouterr().err
    assert says in error and error.count("\n") == 1
    assert not list(output.parent.iterdir())


def test_no_file_is_left_where_it_does_not_fit_or_the_kernels_are_not_known(wake_word, capsys):
    output = wake_word.parent / "fitted" / "m.json"
    for options, status in ((["--ram", "20KB"], 3), (["--kernels", "esp-nn-s3@0.9"], 2)):
        assert main([str(wake_word), "-o", str(output), "--kernels", "esp-nn-s3@1.1.2", *options]) == status
    assert main([str(wake_word), "-o", str(wake_word)]) == 2, "the given manifest is not replaced"
    assert not list(output.parent.iterdir())
    assert capsys.readouterr().err.count("downset: error: ") == 3
