"""The header of a fitted model: a compiler reads it, and its figures and bytes are those of the fit and the file."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from importlib import metadata

import numpy as np
import pytest

import downset as ds
from downset.formats.firmware import planning_bytes, resolver_method
from downset.memory.cmsis_nn import SOURCES
from tests.formats.test_int8_form import uint8_network
from tests.models import installed_model
from tests.needs import compiler

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
    flags = ["-std=c++11", "-Wall", "-Wextra", "-Werror", "-pedantic"]
    subprocess.run([compiler(), *flags, *map(str, sources), "-o", tmp_path / "main"], check=True)
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
    """In TFLite Micro itself. Its interpreter needs some bytes outside the arena that it reports."""
    from tflite_micro import runtime

    total = int(re.search(r"kTailBytes = (\d+)", ds.firmware(fitted).header)[1]) + fitted.arena.after
    assert runtime.Interpreter.from_file(fitted.output_path, arena_size=2 * total) is not None
    with pytest.raises(RuntimeError):
        runtime.Interpreter.from_file(fitted.output_path, arena_size=total // 2)


def test_names_of_the_resolver():
    """As tensorflow/lite/micro/micro_mutable_op_resolver.h spells them."""
    spelled = {
        "CONV_2D": "AddConv2D",
        "DEPTHWISE_CONV_2D": "AddDepthwiseConv2D",
        "ADD": "AddAdd",
        "ADD_N": "AddAddN",
        "AVERAGE_POOL_2D": "AddAveragePool2D",
        "L2_POOL_2D": "AddL2Pool2D",
        "SPACE_TO_BATCH_ND": "AddSpaceToBatchNd",
        "PADV2": "AddPadV2",
        "CUMSUM": "AddCumSum",
        "RELU6": "AddRelu6",
        "SPLIT_V": "AddSplitV",
        "SVDF": "AddSvdf",
        "RESIZE_NEAREST_NEIGHBOR": "AddResizeNearestNeighbor",
        "STRIDED_SLICE": "AddStridedSlice",
        "FULLY_CONNECTED": "AddFullyConnected",
        "L2_NORMALIZATION": "AddL2Normalization",
        "ARG_MAX": "AddArgMax",
    }
    assert {name: resolver_method(name) for name in spelled} == spelled
    assert resolver_method("custom.Mine") is None


def test_a_header_that_cannot_be_made_is_told_before_anything_is_computed(run, tmp_path):
    """TFLite Micro does not run uint8: nothing is written, and the error says what helps."""
    model, fitted, page, header = (tmp_path / name for name in ("m.tflite", "o.tflite", "r.html", "m.h"))
    uint8_network(model)
    asked = ("fit", model, "-o", fitted, "--report", page, "--header", header, "--time-limit", "1s")
    status, out, err = run(*asked)
    assert (status, out) == (5, "") and list(tmp_path.iterdir()) == [model]
    (line,) = err.splitlines()
    assert line.startswith("downset: error: TFLite Micro cannot run m.tflite")
    assert line.endswith("the file has an exact int8 form, which --int8 fits")
    status, out, _ = run(*asked, "--json")
    assert status == json.loads(out)["error"]["exit_code"] == 5
    assert run(*asked, "--int8", "-q")[0] == 0 and header.exists()


def constant(header, name):
    """The value of a constant of a header, as its compiler has it."""
    known = {}
    for found, text in re.findall(r"constexpr size_t (\w+) =\s*([^;]+);", header):
        larger = re.sub(r"\((\w+) > (\w+) \? \1 : \2\)", r"max(\1, \2)", text)
        known[found] = eval(f"({larger})", {"max": max}, known)
    return known[name]


def test_what_the_kernels_that_are_named_take_counts(run, fitted, tmp_path):
    """With CMSIS-NN's kernels their scratch is part of what is needed, and of the header's arena."""
    header, document, arena = tmp_path / "m.h", {}, {}
    for kernels in ("reference", "cmsis-nn-dsp", "cmsis-nn-mve"):
        _, out, _ = run(
            "fit",
            fitted.model,
            "--kernels",
            kernels,
            "--ram",
            "1MB",
            "--time-limit",
            "2s",
            "--json",
            "-o",
            tmp_path / "o.tflite",
            "--header",
            header,
        )
        document[kernels], text = json.loads(out), header.read_text()
        needed, measured = document[kernels]["ram"]["needed_bytes"], document[kernels]["measured"]["after"]
        added = document[kernels]["ram"]["scratch_bytes"]
        assert needed == measured + added
        arena[kernels] = constant(text, "kArenaBytes")
        assert arena[kernels] >= needed
        scratch, own = constant(text, "kCmsisNnScratchBytes"), constant(text, "kScratchBytes")
        if kernels == "reference":
            assert added == 0
            assert "Add both where you link them." in text
        else:
            assert added == max(scratch - own, 0) + constant(text, "kCmsisNnKeptBytes")
            assert "the plan's arena with that scratch" in text
            parts = ("kTensorBytes", "kTailBytes", "kCmsisNnKeptBytes", "kMarginBytes")
            assert arena[kernels] == sum(constant(text, part) for part in parts) + max(scratch, own)
            assert f"The kernels of {kernels} take" in text
        assert SOURCES in text
        assert "not known" not in text
    assert len({document[kernels]["ram"]["needed_bytes"] for kernels in document}) == 3
    for kernels in ("cmsis-nn-dsp", "cmsis-nn-mve"):
        tight = ("fit", fitted.model, "--kernels", kernels, "--time-limit", "300ms", "--states", "in-place", "--ram")
        needed = document[kernels]["ram"]["needed_bytes"]
        assert run(*tight, needed)[0] == 0
        status, out, err = run(*tight, needed - 1)
        assert status != 0 or int(re.search(r": ([\d,]+) B needed", out)[1].replace(",", "")) < needed, err


def test_the_header_names_the_runtime_that_was_measured(fitted):
    assert f"TFLite Micro {metadata.version('tflite-micro')} on a 64-bit" in ds.firmware(fitted).header


def test_the_header_names_operators_whose_scratch_is_not_known(fitted):
    """An operator without options in the file: CMSIS-NN's formulas do not apply."""
    ops = [replace(op, kind="tflite::CONV_2D") if op.kind == "Conv" else op for op in fitted.graph.ops]
    windows = [op.name for op in fitted.graph.ops if op.kind == "Conv"]
    header = ds.firmware(replace(fitted, graph=replace(fitted.graph, ops=tuple(ops)))).header
    listed = header[header.index("formulas are not known:") : header.index("kCmsisNnScratchBytes")].splitlines()[1:-1]
    assert len(listed) == min(len(windows), 20) + (len(windows) > 20)
    assert all(line.startswith("//   CONV_2D '") for line in listed[:20])


def test_what_has_no_header(fitted, run, fails, tmp_path):
    with pytest.raises(ds.UsageError, match="is written"):
        ds.firmware(replace(fitted, output_path=None))
    with pytest.raises(ds.UsageError, match="target tflm"):
        ds.firmware(replace(fitted, target="litert"))
    with pytest.raises(ds.UnsupportedError, match="not known"):
        ds.firmware(replace(fitted, measured=None))
    fails(2, "fit", fitted.model, "--header", tmp_path / "m.h", says="give -o")
    fails(2, "fit", fitted.model, "-o", tmp_path / "o.tflite", "--header", tmp_path / "m.txt", says="must end in .h")
    assert list(tmp_path.iterdir()) == []
    status, _, _ = run(
        "fit", fitted.model, "-o", tmp_path / "o.tflite", "--header", tmp_path / "m.cc", "-q", "--time-limit", "2s"
    )
    assert status == 0 and {path.name for path in tmp_path.iterdir()} == {"o.tflite", "m.cc", "m.h"}
