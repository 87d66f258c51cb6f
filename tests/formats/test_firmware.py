"""The header of a fitted model: a compiler reads it, and its figures and bytes are those of the fit and the file."""

import json
import re
import shutil
import subprocess

import numpy as np
import pytest

import downset as ds
from downset.formats.firmware import cmsis_nn_scratch_bytes, planning_bytes, resolver_method
from downset.graph.core import Graph, Op, Tensor
from tests.formats.test_int8_form import uint8_network
from tests.models import installed_model

PROGRAM = """
#include <cstdio>
#include <cstdint>
#include "{header}"
using namespace downset_{prefix};
struct Resolver {{
  unsigned count = 0;
  {methods}
}};
alignas(16) static unsigned char arena[kArenaBytes];
int main() {{
  Resolver resolver;
  bool ok = RegisterOperators(resolver);
  unsigned long long sum = 0;
  for (size_t at = 0; at < kModelBytes; ++at) sum = (sum * 31 + model[at]) % 1000000007ULL;
  std::printf("%d %u %u %zu %zu %llu %d\\n", ok, resolver.count, kOperatorKinds, sizeof(arena), kModelBytes, sum,
              (int)(reinterpret_cast<uintptr_t>(model) % 16));
}}
"""


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fitted")
    shutil.copy(installed_model("pymicro-wakeword", "okay_nabu.tflite"), folder / "okay nabu.tflite")
    return ds.fit(folder / "okay nabu.tflite", output=folder / "1 wake-word.tflite", time_limit_s=2)


@pytest.mark.parametrize("name", ["model.h", "model.cc"])
def test_it_compiles_and_holds_the_model_and_its_arena(fitted, tmp_path, name):
    apart = name.endswith(".cc")
    found = ds.firmware(fitted, include="model.h" if apart else "")
    (tmp_path / "model.h").write_text(found.header)
    sources = [tmp_path / "main.cc"]
    if apart:
        (tmp_path / "model.cc").write_text(found.source)
        sources.append(tmp_path / "model.cc")
    called = sorted(set(re.findall(r"resolver\.(Add\w+)\(\)", found.header)))
    methods = "".join(f"int {method}() {{ ++count; return 0; }}\n" for method in called)
    prefix = re.search(r"namespace downset_(\w+) \{", found.header)[1]
    (tmp_path / "main.cc").write_text(PROGRAM.format(header="model.h", prefix=prefix, methods=methods))
    compiler = shutil.which("g++") or shutil.which("c++")
    assert compiler, "no C++ compiler, which the native module needs too"
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([compiler, *flags, *map(str, sources), "-o", tmp_path / "main"], check=True)
    ok, count, kinds, arena, size, checksum, misaligned = subprocess.run(
        [tmp_path / "main"], capture_output=True, text=True, check=True
    ).stdout.split()
    data = np.fromfile(fitted.output_path, np.uint8)
    expected = 0
    for byte in data.tolist():
        expected = (expected * 31 + byte) % 1000000007
    assert (ok, count, int(size), int(checksum), misaligned) == ("1", kinds, len(data), expected, "0")
    planning = planning_bytes(fitted.graph, scratch=False)
    tail = fitted.measured.details[fitted.shipped]["tail_bytes"]
    assert 0 <= int(arena) - max(fitted.measured.after, tail + planning) < 16
    assert "kResourceVariables = 6;" in found.header and "Create(allocator, kResourceVariables)" in found.header


def test_an_arena_of_that_size_runs_the_model_and_a_much_smaller_one_does_not(fitted):
    """In TFLite Micro itself. Its interpreter needs some bytes beside the arena that it reports."""
    from tflite_micro import runtime

    total = int(re.search(r"kTailBytes = (\d+)", ds.firmware(fitted).header)[1]) + fitted.arena.after
    assert runtime.Interpreter.from_file(fitted.output_path, arena_size=2 * total) is not None
    with pytest.raises(RuntimeError):
        runtime.Interpreter.from_file(fitted.output_path, arena_size=total // 2)


def test_names_of_the_resolver():
    """As tensorflow/lite/micro/micro_mutable_op_resolver.h spells them."""
    spelled = {
        "CONV_2D": "AddConv2D", "DEPTHWISE_CONV_2D": "AddDepthwiseConv2D", "ADD": "AddAdd", "ADD_N": "AddAddN",
        "AVERAGE_POOL_2D": "AddAveragePool2D", "L2_POOL_2D": "AddL2Pool2D", "SPACE_TO_BATCH_ND": "AddSpaceToBatchNd",
        "PADV2": "AddPadV2", "CUMSUM": "AddCumSum", "RELU6": "AddRelu6", "SPLIT_V": "AddSplitV", "SVDF": "AddSvdf",
        "RESIZE_NEAREST_NEIGHBOR": "AddResizeNearestNeighbor", "STRIDED_SLICE": "AddStridedSlice",
        "FULLY_CONNECTED": "AddFullyConnected", "L2_NORMALIZATION": "AddL2Normalization", "ARG_MAX": "AddArgMax",
    }  # fmt: skip
    assert {name: resolver_method(name) for name in spelled} == spelled
    assert resolver_method("custom.Mine") is None


@pytest.mark.parametrize(
    ("channels", "made", "kernel", "group", "expected"),
    [
        (3, 8, (3, 3), 1, 2 * 28 * 2),  # 27 columns, filled up to 28, two of them, int16
        (16, 8, (1, 1), 1, 4 * 16),
        (16, 16, (5, 5), 16, 16 * 25 * 2),
        (16, 32, (5, 5), 16, 0),
    ],
)
def test_scratch_of_cmsis_nn(channels, made, kernel, group, expected):
    """By hand, from arm_convolve_s8_get_buffer_size and arm_depthwise_conv_s8_opt_get_buffer_size_dsp."""
    tensors = (Tensor("x", (1, 8, 8, channels), "int8", 64 * channels), Tensor("y", (1, 8, 8, made), "int8", 64 * made))
    attrs = {"kernel_shape": kernel, "group": group, "layout": "NHWC"}
    graph = Graph("g", tensors, (Op("c", "Conv", (0,), (1,), attrs),), (0,), (1,))
    assert cmsis_nn_scratch_bytes(graph) == expected


def test_a_header_that_cannot_be_made_is_told_after_the_result(run, tmp_path):
    """TFLite Micro does not run uint8: the file and the page are written and named, and the error says what helps."""
    model, fitted, page, header = (tmp_path / name for name in ("m.tflite", "o.tflite", "r.html", "m.h"))
    uint8_network(model)
    asked = ("fit", model, "-o", fitted, "--report", page, "--header", header, "--time-limit", "1s")
    status, out, err = run(*asked)
    assert status == 5 and not header.exists()
    assert f"written: {fitted} (" in out and f"written: {page} (an HTML page)" in out and f"{header} (" not in out
    last = err.splitlines()[-1]
    assert last.startswith("downset: error: no header: the size of the arena is not known, TFLite Micro cannot run")
    assert last.endswith("--int8 fits the file's exact int8 form, which TFLite Micro runs")
    status, out, _ = run(*asked, "--json")
    document = json.loads(out)
    assert status == document["error"]["exit_code"] == 5
    assert document["shipped"] == "original" and document["arena_bytes"]["after"] > 0
    assert page.read_text().count("TFLite Micro cannot run") == 2  # the verdict, and a line of what was done
    assert run(*asked, "--int8", "-q")[0] == 0 and header.exists()


def test_scratch_of_the_kernels_that_are_named_counts(run, fitted, tmp_path):
    """With CMSIS-NN's kernels their scratch is part of what is needed, and of the header's arena."""
    header, document = tmp_path / "m.h", {}
    for kernels in ("reference", "cmsis-nn-dsp"):
        _, out, _ = run("fit", fitted.model, "--kernels", kernels, "--ram", "1MB", "--time-limit", "2s", "--json",
                        "-o", tmp_path / "o.tflite", "--header", header)  # fmt: skip
        document[kernels] = json.loads(out)
        assert ("+ kCmsisNnScratchBytes;" in header.read_text()) == (kernels == "cmsis-nn-dsp")
    scratch = document["cmsis-nn-dsp"]["ram"]["scratch_bytes"]
    assert scratch == int(re.search(r"kCmsisNnScratchBytes = (\d+);", header.read_text())[1]) > 0
    assert document["reference"]["ram"]["scratch_bytes"] == 0
    measured = document["cmsis-nn-dsp"]["measured"]["after"]
    assert document["cmsis-nn-dsp"]["ram"]["needed_bytes"] == measured + scratch
    tight = ("fit", fitted.model, "--kernels", "cmsis-nn-dsp", "--time-limit", "2s", "--ram")
    assert run(*tight, measured + scratch)[0] == 0
    assert run(*tight, fitted.measured.after)[0] in (0, 3, 6)
    for limit in (measured, measured + scratch - 1):
        status, out, err = run(*tight, limit)
        assert status != 0 or int(re.search(r": ([\d,]+) B needed", out)[1].replace(",", "")) <= limit, err


def test_what_has_no_header(fitted, run, fails, tmp_path):
    from dataclasses import replace

    with pytest.raises(ds.UsageError, match="is written"):
        ds.firmware(replace(fitted, output_path=None))
    with pytest.raises(ds.UsageError, match="target tflm"):
        ds.firmware(replace(fitted, target="litert"))
    with pytest.raises(ds.UnsupportedError, match="not known"):
        ds.firmware(replace(fitted, measured=None))
    fails(2, "fit", fitted.model, "--header", tmp_path / "m.h", says="give -o")
    fails(2, "fit", fitted.model, "-o", tmp_path / "o.tflite", "--header", tmp_path / "m.txt", says="must end in .h")
    assert list(tmp_path.iterdir()) == []
    status, _, _ = run("fit", fitted.model, "-o", tmp_path / "o.tflite", "--header", tmp_path / "m.cc", "-q",
                       "--time-limit", "2s")  # fmt: skip
    assert status == 0 and {path.name for path in tmp_path.iterdir()} == {"o.tflite", "m.cc", "m.h"}
