"""The whole process in ONNX Runtime: what is measured of it, the forms that it maps, and what ships by it."""

import json
import mmap
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise, product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import downset as ds
from downset.errors import LimitReached, UnsupportedError
from downset.fitting import mapped_forms, summary
from downset.fitting.attempts import LEAST_GAIN, Attempt, fastest_within, smallest
from downset.fitting.candidates import Candidate
from downset.fitting.job import FitOptions, Notes
from downset.fitting.mapped_forms import MadeForm, SameOutputs
from downset.fitting.trials import shipped_bytes
from downset.fitting.verdict import check_process
from downset.formats.onnx.mapped import data_name, has_packed, leave_packed, mapped_bytes, write_mapped
from downset.formats.onnx.metadata import add_metadata, fitted_metadata
from downset.reports.fit_document import fit_document
from downset.results.processes import ProcessGrowth
from downset.results.sessions import BY_HAND, DEFAULT, MAPPED, TRIMMED, WITH_PATTERN
from downset.runtimes import ort_settings
from downset.runtimes.growth import figures_of, growths_of, in_turns
from downset.runtimes.ort_forms import form_outputs, make_form, reorder
from downset.runtimes.ort_native_script import native_program
from downset.runtimes.ort_process import process_growths
from downset.runtimes.processors import processor
from downset.runtimes.targets import TARGETS
from tests.models import branchy_model, constant

pytestmark = pytest.mark.own_processes("runtimes")
LINUX = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only Linux reports resident memory so")
WIDTH = 2048
WEIGHTS = 4 * WIDTH * WIDTH


def wide_model(path):
    """Two products with 16 MB of weights in all that kernels pack, and an open first axis."""
    random = np.random.default_rng(3)
    shapes = (WIDTH, WIDTH - 256), (WIDTH - 256, 256)
    weights = [
        constant(f"w{place}", (random.standard_normal(shape) / 50).astype(np.float32))
        for place, shape in enumerate(shapes)
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"], name="first"),
        helper.make_node("Relu", ["a"], ["r"], name="relu"),
        helper.make_node("MatMul", ["r", "w1"], ["y"], name="second"),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", WIDTH])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", 256])]
    graph = helper.make_graph(nodes, "wide", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


def odd_model(path):
    """Sums with constants whose sizes are not multiples of 64 bytes."""
    counts = range(300, 340, 7)
    nodes = [helper.make_node("Add", ["x", f"w{count}"], [f"y{count}"], name=f"add{count}") for count in counts]
    weights = [constant(f"w{count}", np.arange(count, dtype=np.float32)[:, None]) for count in counts]
    outputs = [helper.make_tensor_value_info(f"y{count}", TensorProto.FLOAT, [count, 2]) for count in counts]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2])]
    graph = helper.make_graph(nodes, "odd", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


SHAPES = {"x": (4, WIDTH)}
ALONE = """
import sys
import numpy, onnxruntime as ort
def now():
    parts = (line.split() for line in open("/proc/self/status") if line[:3] in ("VmR", "Rss"))
    return {part[0]: 1024 * int(part[1]) for part in parts}
x = numpy.random.default_rng(0).standard_normal((4, 2048)).astype("float32")
before, options = now(), ort.SessionOptions()
options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, sys.argv[2])
session = ort.InferenceSession(sys.argv[1], options)
for _ in range(4):
    session.run(None, {"x": x})
after = now()
print(after["VmRSS:"] - before["VmRSS:"], after["RssAnon:"] - before["RssAnon:"])
"""


def alone(path, level):
    """(growth at rest, its anonymous part) of a process that shares no code with the product."""
    command = [sys.executable, "-c", ALONE, str(path), level]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    return [int(figure) for figure in done.stdout.split()]


@LINUX
@pytest.mark.own_processes("measures")
def test_growth_is_that_of_a_process_that_shares_no_code(tmp_path):
    path = wide_model(tmp_path / "m.onnx")
    make_form(path, tmp_path / "f.onnx", "all")
    ((default,), (mapped,)) = process_growths([(path, DEFAULT), (tmp_path / "f.onnx", MAPPED[0])], shapes=SHAPES)
    rest, anonymous = alone(path, "ORT_ENABLE_ALL")
    assert (default.rest_bytes, default.rest_anonymous_bytes) == pytest.approx((rest, anonymous), rel=0.15)
    assert default.peak_bytes >= default.rest_bytes
    assert default.peak_anonymous_bytes >= default.rest_anonymous_bytes > WEIGHTS
    rest, anonymous = alone(tmp_path / "f.onnx", "ORT_DISABLE_ALL")
    assert mapped.rest_bytes == pytest.approx(rest, rel=0.15)
    largest = 4 * WIDTH * (WIDTH - 256)  # ONNX Runtime copies each weight while it loads it
    assert largest < mapped.peak_anonymous_bytes < largest + (8 << 20)
    assert mapped.rest_anonymous_bytes == pytest.approx(anonymous, abs=4 << 20)
    assert mapped.rest_anonymous_bytes < WEIGHTS / 2 < WEIGHTS < mapped.rest_bytes, "weights are mapped, not anonymous"


@LINUX
def test_results_that_a_program_keeps_count_while_the_next_run_makes_others():
    """A run makes 16 MB. While the second one makes its own, those of the first are still there. What the process held
    before the program was opened, for long enough that its parent looks, does not count."""
    nbytes = 16 << 20

    def filled(times):
        memory = mmap.mmap(-1, times * nbytes)  # not of the heap, which has settings of all that this process has run
        for place in range(0, len(memory), mmap.PAGESIZE):
            memory[place] = 1
        return memory

    def ask(mark):
        before = filled(6)
        time.sleep(0.02)
        before.close()
        return figures_of(lambda: lambda: filled(1), timed=False, mark=mark)

    ((growth,),) = growths_of(in_turns([ask], rounds=1, limit_s=60))
    assert growth.peak_bytes == pytest.approx(2 * nbytes, rel=0.1)
    assert growth.peak_anonymous_bytes == pytest.approx(2 * nbytes, rel=0.1)


@LINUX
@pytest.mark.own_processes("measures")
def test_what_a_fork_shares_with_its_parent_does_not_count(tmp_path):
    """A network so small that the library is all that grows: code that was imported before does not count."""
    path = odd_model(tmp_path / "m.onnx")
    (readings,) = process_growths([(path, DEFAULT)], rounds=3)
    code = ALONE.replace("standard_normal((4, 2048))", "standard_normal((1, 2))")
    command = [sys.executable, "-c", code, str(path), "ORT_ENABLE_ALL"]
    done = [subprocess.run(command, capture_output=True, text=True, check=True, timeout=120) for _ in range(3)]
    rest = min(int(one.stdout.split()[0]) for one in done)
    assert abs(min(one.rest_bytes for one in readings) - rest) < 125_000


def places(path):
    """(tensor, start, bytes, whether packed) of everything that lies beside a model."""
    for tensor in onnx.load(str(path), load_external_data=False).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if entries:
            yield tensor, int(entries["offset"]), int(entries["length"]), False
        for value in (value for key, value in entries.items() if key.startswith("prepacked_")):
            for one in value.split("|")[1:]:
                yield tensor, int(one.split(";")[0]), int(one.split(";")[1]), True


def dark_model(path, sign, bias):
    """A convolution of an image whose results show where the image is bright alone, or by a negative `sign` where it is
    dark all over, and a product of a few numbers."""
    random = np.random.default_rng(5)
    weights = [constant("w", sign * random.uniform(0.5, 1.0, (8, 3, 3, 3)).astype(np.float32))]
    weights += [constant("b", np.full(8, bias, np.float32)), constant("v", np.ones((4, 64), np.float32))]
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["y"], name="relu"),
        helper.make_node("MatMul", ["s", "v"], ["z"], name="product"),
    ]
    shapes = {"x": [1, 3, 12, 12], "s": [1, 4], "y": [1, 8, 10, 10], "z": [1, 64]}
    values = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()}
    graph = helper.make_graph(nodes, "dark", [values["x"], values["s"]], [values["y"], values["z"]], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))
    return path


@pytest.mark.parametrize(("sign", "bias"), [(1, -200), (-1, -22)])
def test_a_weight_that_some_images_show_alone_is_compared_too(sign, bias, tmp_path, monkeypatch):
    path, form = dark_model(tmp_path / "m.onnx", sign, bias), tmp_path / "f.onnx"
    make_form(path, form, "none")
    source = Candidate("original", path, 0, settings=DEFAULT)
    made = MadeForm(form, source, "none", MAPPED[2:], None, None)
    job = SimpleNamespace(options=FitOptions(path), notes=Notes())
    asked = []

    def outputs(path, settings, feeds):
        asked.append([float(np.abs(array).max()) for run in feeds for array in run.values()])
        return form_outputs(path, settings, feeds)

    monkeypatch.setattr(mapped_forms, "form_outputs", outputs)
    assert SameOutputs(job, ds.load(path)).of(made).runs == 5
    assert max(asked[0][0::2]) == 255 and max(asked[0][1::2]) < 10, "the product's numbers are no image"
    model = onnx.load(str(form), load_external_data=False)
    (weights,) = (one for one in model.graph.initializer if one.name == "w")
    changed = onnx.numpy_helper.to_array(onnx.load(str(path)).graph.initializer[0]).copy()
    changed[3, 1, 1, 1] *= 1 + 1e-3
    weights.CopyFrom(constant("w", changed))
    onnx.save(model, str(form))
    assert SameOutputs(job, ds.load(path)).of(made) is None
    assert "not equal bit for bit" in str(job.notes)


@pytest.mark.parametrize("model", [wide_model, odd_model], ids=["packed", "odd"])
def test_blobs_are_aligned_apart_and_hold_the_weights(model, tmp_path):
    path = model(tmp_path / "m.onnx")
    make_form(path, tmp_path / "f.onnx", "none")
    original = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(str(path)).graph.initializer}
    blobs = list(places(tmp_path / "f.onnx"))
    assert any(packed for *_, packed in blobs) == (model is wide_model)
    assert len(blobs) > 2
    ends = sorted((start, start + nbytes) for _, start, nbytes, _ in blobs)
    assert all(one[1] <= other[0] for one, other in pairwise(ends))
    for tensor, start, nbytes, packed in blobs:
        assert start % (4096 if nbytes >= 1 << 14 else 64) == 0
        if not packed:
            with (tmp_path / "f.onnx.data").open("rb") as file:
                file.seek(start)
                assert file.read(nbytes) == original[tensor.name].tobytes()


def test_a_form_keeps_open_axes_and_is_put_into_any_order_of_its_nodes(tmp_path):
    path = branchy_model(tmp_path / "m.onnx", open_batch=True)
    make_form(path, tmp_path / "f.onnx", "all")
    made = onnx.load(str(tmp_path / "f.onnx"), load_external_data=False)
    declared = onnx.load(str(path)).graph
    assert list(made.graph.input) == list(declared.input) and list(made.graph.output) == list(declared.output)
    assert declared.input[0].type.tensor_type.shape.dim[0].dim_param == "n" and not made.graph.value_info
    outputs = [node.output[0] for node in made.graph.node]
    with pytest.raises(UnsupportedError, match="other nodes"):
        reorder(tmp_path / "f.onnx", outputs[1:])
    reorder(tmp_path / "f.onnx", outputs)
    default = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    ours = ort_settings.open_session(onnxruntime, tmp_path / "f.onnx", MAPPED[0])
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
        for one, other in zip(default.run(None, {"x": x}), ours.run(None, {"x": x}), strict=True):
            assert one.tobytes() == other.tobytes()


@pytest.mark.parametrize("model", [wide_model, odd_model], ids=["packed", "odd"])
def test_one_file_of_weights_serves_with_and_without_the_packed_ones(model, tmp_path):
    """What ships of either has no more than it names, computes the same, and has the size that was told before."""
    path, shapes = model(tmp_path / "m.onnx"), {wide_model: (4, WIDTH), odd_model: (1, 2)}
    x = np.random.default_rng(3).standard_normal(shapes[model]).astype(np.float32)
    default = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    make_form(path, tmp_path / "f.onnx", "all")
    leave_packed(tmp_path / "f.onnx", tmp_path / "g.onnx")
    assert not has_packed(tmp_path / "g.onnx")
    (tmp_path / "out").mkdir()
    for name, settings in (("f", MAPPED[0]), ("g", MAPPED[2])):
        form, output = tmp_path / f"{name}.onnx", tmp_path / "out" / f"{name}.onnx"
        write_mapped(form, onnx.load(str(form), load_external_data=False), output)
        data = output.with_name(data_name(output))
        assert output.stat().st_size + data.stat().st_size == pytest.approx(mapped_bytes(form), abs=200)
        ends = sorted((start, start + nbytes) for _, start, nbytes, _ in places(output))
        assert ends[-1][1] == data.stat().st_size
        assert all(0 <= other[0] - one[1] < 4096 for one, other in pairwise([(0, 0), *ends]))
        assert data.stat().st_mode == output.stat().st_mode == path.stat().st_mode
        for opened in (form, output):
            found = ort_settings.open_session(onnxruntime, opened, settings).run(None, {"x": x})
            for one, other in zip(default, found, strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
    assert (tmp_path / "f.onnx.data").samefile(tmp_path / "out" / "f.onnx.data") == (model is wide_model)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fit of the wide network with its program, compared on two inputs of a user. What ships is chosen by memory,
    because processor times vary where other tests run meanwhile."""
    folder = tmp_path_factory.mktemp("processes")
    path = wide_model(folder / "m.onnx")
    program, inputs = folder / "open.py", [folder / "x0.npy", folder / "x1.npy"]
    for seed, name in enumerate(inputs):
        np.save(name, np.random.default_rng(seed).standard_normal(SHAPES["x"]).astype(np.float32))
    before = read_and_written()
    options = {"shapes": SHAPES, "time_limit_s": 1, "inputs": inputs, "slower": 3.0}
    result = ds.fit(path, output=folder / "f.onnx", session=program, **options)
    passes = [(now - then) / path.stat().st_size for then, now in zip(before, read_and_written(), strict=True)]
    (folder / "passes.json").write_text(json.dumps(passes))
    return folder, result


@pytest.mark.parametrize("packed", [True, False])
def test_a_file_is_said_to_be_as_large_as_what_is_written_of_it(packed, tmp_path):
    """A form in the scratch folder may lie next to weights that it does not read."""
    path, form, output = wide_model(tmp_path / "m.onnx"), tmp_path / "form.onnx", tmp_path / "out" / "f.onnx"
    output.parent.mkdir()
    make_form(path, form, "all")
    if not packed:
        leave_packed(form, tmp_path / "plain.onnx")
        form = tmp_path / "plain.onnx"
    write_mapped(form, onnx.load(str(form), load_external_data=False), output)
    before, after = path.stat().st_size, sum(file.stat().st_size for file in output.parent.iterdir())
    candidate = Candidate("mapped", form, 0, mapped=True)
    assert shipped_bytes(candidate) == pytest.approx(after, abs=200)
    told = summary._file_size(SimpleNamespace(path=path), candidate)
    if after < 1.05 * before:
        assert told == []
    else:
        assert f"is {after / before:.2f} times" in told[0]
    assert (after > 1.5 * before) == packed


def read_and_written():
    """Bytes that this process has read and written, by its system calls; its workers apart."""
    if not Path("/proc/self/io").exists():
        return 0, 0
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["rchar"]), int(counts["wchar"])


@LINUX
def test_weights_are_read_and_written_in_few_passes(fitted):
    """Forms with mapped weights, and what ships of them, are the files that ONNX Runtime wrote."""
    folder, result = fitted
    read, written = json.loads((folder / "passes.json").read_text())
    disk_bytes = sum((folder / name).stat().st_size for name in ("f.onnx", "f.onnx.data"))
    assert result.disk_bytes[1] == pytest.approx(disk_bytes, abs=2000), "but for what says how it was made"
    assert result.shipped.endswith("mapped")
    assert (folder / "f.onnx.data").stat().st_size >= 0.9 * (folder / "m.onnx").stat().st_size
    assert read < 4.5, "the proof reads two files; modules count, too"
    assert written < 1.6, "the optimised file, in which sizes stay open"


@LINUX
def test_what_ships_is_never_above_the_best_by_hand(fitted):
    _, result = fitted
    process = result.process
    assert process.rows[0].settings == DEFAULT
    assert all(row.settings in (DEFAULT, *BY_HAND) for row in process.rows if row.by_hand)
    shipped, by_hand, default = process.shipped.growth, process.by_hand.growth, process.default.growth
    assert shipped.peak_bytes <= 1.02 * by_hand.peak_bytes
    assert shipped.cpu_s <= process.slower * default.cpu_s * 1.2, "the median of ratios of rounds keeps to the limit"
    assert process.shipped.file_bytes <= process.larger * process.default.file_bytes
    assert result.shipped in ("mapped", "optimised, mapped"), "both hold the same operators here"
    assert shipped.rest_anonymous_bytes < default.rest_anonymous_bytes / 4
    document = fit_document(result)
    assert document.verdict.headline.startswith("Process at the peak")
    assert "cannot be taken back" in document.verdict.headline
    assert result.outputs.equal and result.outputs.runs == 2


@LINUX
def test_the_written_file_computes_what_the_original_does_at_other_sizes(fitted):
    folder, _ = fitted
    default = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    ours = ds.ort_session(folder / "f.onnx")
    for rows in (1, 4, 9):
        x = np.random.default_rng(rows).standard_normal((rows, WIDTH)).astype(np.float32)
        (one,), (other,) = default.run(None, {"x": x}), ours.run(None, {"x": x})
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)
        assert rows != 4 or one.tobytes() == other.tobytes()


@LINUX
def test_the_program_opens_it_here_and_says_so_on_another_processor(fitted, tmp_path):
    folder, _ = fitted
    done = subprocess.run([sys.executable, str(folder / "open.py")], capture_output=True, text=True, check=True)
    assert re.search(r"^process_bytes \d+$", done.stdout, re.MULTILINE)
    assert not done.stderr
    other = folder / "elsewhere.py"
    other.write_text((folder / "open.py").read_text().replace(f"'{processor()}'", "'another'"))
    names = {"__file__": str(other), "__name__": "opened"}
    exec(other.read_text(), names)
    assert "other instructions" in names["made_for_another"]()
    inputs = names["made_up_inputs"]()
    default = onnxruntime.InferenceSession(str(folder / "m.onnx"), providers=["CPUExecutionProvider"])
    expected = default.run(None, inputs)[0]
    np.testing.assert_allclose(names["open_session"]().run(None, inputs)[0], expected, rtol=1e-4, atol=1e-4)


@LINUX
def test_packed_weights_are_left_alone_on_another_processor(fitted, tmp_path, monkeypatch):
    """The packed weights are overwritten first: a session that reads them computes something else."""
    folder, _ = fitted
    for name in ("f.onnx", "f.onnx.data"):
        shutil.copy(folder / name, tmp_path / name)
    assert fitted_metadata(tmp_path / "f.onnx")["form"] == "packed weights"
    with (tmp_path / "f.onnx.data").open("r+b") as file:
        for _, start, nbytes, packed in places(tmp_path / "f.onnx"):
            if packed:
                file.seek(start)
                file.write(b"\x11" * nbytes)
    x = np.ones((4, WIDTH), np.float32)
    expected = ds.ort_session(folder / "f.onnx").run(None, {"x": x})[0]
    assert not np.allclose(ds.ort_session(tmp_path / "f.onnx").run(None, {"x": x})[0], expected)
    monkeypatch.setattr(ort_settings, "processor", lambda: "another")
    found = ds.ort_session(tmp_path / "f.onnx").run(None, {"x": x})[0]
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_layouts_of_another_processor_are_refused_in_one_line(tmp_path, monkeypatch):
    path = branchy_model(tmp_path / "m.onnx")
    model = onnx.load(str(path))
    entries = {"session": MAPPED[0].name, "processor": "another", "runtime": onnxruntime.__version__, "form": "layouts"}
    for key, value in entries.items():
        model.metadata_props.add(key=f"downset.{key}", value=value)
    onnx.save(model, str(path))
    with pytest.raises(UnsupportedError, match="another processor or version"):
        ds.ort_session(path)


@pytest.mark.own_processes("measures")
def test_a_small_network_ships_by_its_arena(tmp_path):
    """Nothing that is done with it changes the process by 3 %."""
    result = ds.fit(branchy_model(tmp_path / "m.onnx"), time_limit_s=1)
    assert result.process is None
    assert result.measured.rows[0].latency is not None


def tried(name, peak, anonymous, cpu, nbytes, folder):
    file = folder / f"{name}_{nbytes}.onnx"
    if not file.exists():
        helper_graph = helper.make_graph([], "g", [], [])
        onnx.save(helper.make_model(helper_graph), str(file))
        with file.open("ab") as out:
            out.write(b"\x32" + bytes([max(nbytes, 1)]) + b"a" * max(nbytes, 1))  # a description, for its bytes
    growth = ProcessGrowth(peak, anonymous, peak, anonymous, cpu)
    return Attempt(Candidate(name, file, 0, settings=DEFAULT), (growth,))


def test_the_smallest_gains_enough_or_the_original_ships(tmp_path):
    """Against a brute force over the rule as the guide states it."""
    peaks, parts = (100, 120, 98, 97, 60), (80, 10)
    for first, (peak, anonymous), cpu in product(peaks[:2], product(peaks, parts), (1.0, 0.9)):
        original = tried("original", first, 80, 1.0, 10, tmp_path)
        file = tried("mapped", peak, anonymous, cpu, 20, tmp_path)
        less = LEAST_GAIN * first
        enough = first - peak >= less or (peak <= first and 80 - anonymous >= less)
        assert smallest([original, file]) is (file if enough else original), (first, peak, anonymous)


@pytest.mark.parametrize(
    "settings", [*MAPPED, TRIMMED[1], *BY_HAND, WITH_PATTERN[MAPPED[0].name]], ids=lambda settings: settings.name
)
def test_cpp_and_csharp_have_every_setting_or_say_what_is_missing(settings, tmp_path):
    for suffix, known in ((".cc", cpp_names), (".cs", csharp_names)):
        code = native_program(tmp_path / "f.onnx", settings, program=tmp_path / f"open{suffix}", version="1")
        for name, value in known(settings):
            assert name in code and value in code, (name, value)
        for missing in ("execution_order", "enable_mem_reuse"):
            if missing in settings.options:
                assert "Missing here" in code
        off = ("DisableMemPattern();", "EnableMemoryPattern = false")
        assert any(name in code for name in off) == ("enable_mem_pattern" in settings.options)
        assert ("mallopt" in re.sub(r"(?m)^.*static extern.*$", "", code)) == bool(settings.malloc)


@pytest.mark.parametrize("usual", [MAPPED[0], TRIMMED[1]], ids=lambda settings: settings.name)
def test_the_memory_pattern_is_one_block_from_the_second_run_on(usual, tmp_path):
    """By the runtime's own profile: kernels of a later run ask the arena for nothing. A file whose metadata name these
    settings is opened by them."""
    nodes = [helper.make_node("MatMul", [f"t{place}", "w"], [f"t{place + 1}"], name=f"n{place}") for place in range(4)]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64]) for name in ("t0", "t4")]
    weights = [constant("w", np.eye(64, dtype=np.float32))]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights)
    model = helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)])
    asked = {}
    for settings in (usual, WITH_PATTERN[usual.name]):
        path = tmp_path / "m.onnx"
        add_metadata(model, {"session": settings.name})
        onnx.save(model, path)
        assert ort_settings.session_settings(path) == settings
        session = ort_settings.open_session(onnxruntime, path, settings, profile_prefix=str(tmp_path / "p"))
        for _ in range(2):
            session.run(None, {"t0": np.ones((64, 64), np.float32)})
        events = json.loads(Path(session.end_profiling()).read_text())
        inner = [one["args"] for one in events if one["name"] in ("n0_kernel_time", "n1_kernel_time")]
        asked[settings.name] = [int(one["mem_in_use_delta"]) > 0 for one in inner]
    assert asked == {usual.name: [True] * 4, f"{usual.name}, memory pattern": [True, True, False, False]}


@pytest.mark.parametrize("suffix", [".cc", ".cs"])
def test_numbers_of_an_arena_that_the_interfaces_cannot_hold_are_left_to_the_runtime(suffix, tmp_path):
    """C++ takes a region as an `int`, C# a limit as a `uint`: a larger number would not compile."""
    for region, cap, words in ((256, 1 << 20, "1048576, 0, 256, 1"), (1 << 31, 1 << 32, "0, 0, -1, 1")):
        settings = MAPPED[0].with_region(region).with_cap(cap)
        code = native_program(tmp_path / "f.onnx", settings, program=tmp_path / f"open{suffix}", version="1")
        assert f"({words});" in code


def cpp_names(settings):
    yield from (("AddConfigEntry", f'"{key}", "{value}"') for key, value in settings.config.items())
    yield from (("ArenaCfg", str(value)) for value in settings.arena.values())
    yield from ((name, str(value)) for name, value in settings.malloc.items())


def csharp_names(settings):
    yield from (("AddSessionConfigEntry", f'"{key}", "{value}"') for key, value in settings.config.items())
    yield from (("OrtArenaCfg", str(value)) for value in settings.arena.values())
    yield from (("mallopt", str(value)) for value in settings.malloc.values())


STUB = """
#include <cstddef>
#include <string>
enum OrtAllocatorType { OrtArenaAllocator }; enum OrtMemType { OrtMemTypeDefault };
enum GraphOptimizationLevel { ORT_DISABLE_ALL, ORT_ENABLE_ALL };
struct OrtArenaCfg {}; struct OrtMemoryInfo {};
namespace Ort {
struct ArenaCfg {
  ArenaCfg(size_t max_mem, int arena_extend_strategy, int initial_chunk_size_bytes, int max_dead_bytes_per_chunk);
  operator OrtArenaCfg*() const;
};
struct MemoryInfo { static MemoryInfo CreateCpu(OrtAllocatorType, OrtMemType); operator const OrtMemoryInfo*() const; };
struct Env { Env& CreateAndRegisterAllocator(const OrtMemoryInfo*, const OrtArenaCfg*); };
struct SessionOptions {
  SessionOptions& SetIntraOpNumThreads(int); SessionOptions& SetInterOpNumThreads(int);
  SessionOptions& SetGraphOptimizationLevel(GraphOptimizationLevel); SessionOptions& DisableMemPattern();
  SessionOptions& DisableCpuMemArena(); SessionOptions& AddConfigEntry(const char*, const char*);
};
struct Session { Session(const Env&, const char*, const SessionOptions&); };
}
"""


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_the_cpp_program_compiles_against_the_interface_that_it_names(tmp_path):
    """The wheel of ONNX Runtime brings no headers: a stub declares what its C++ interface has."""
    (tmp_path / "onnxruntime_cxx_api.h").write_text(STUB)
    for settings in (MAPPED[3], BY_HAND[-1]):
        code = native_program(tmp_path / "f.onnx", settings, program=tmp_path / "open.cc", version="1")
        (tmp_path / "open.cc").write_text(code)
        command = ["g++", "-std=c++20", "-Wall", "-Werror", "-fsyntax-only", f"-I{tmp_path}", str(tmp_path / "open.cc")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr


def test_the_json_of_a_fit_has_its_processes(fitted):
    from downset.reports.json_form import json_of

    _, result = fitted
    said = json.loads(json.dumps(json_of(fit_document(result))))
    if result.process is None:
        assert said["process"] is None
        return
    assert said["process"]["rows"][said["process"]["shipped"]]["file"] == result.shipped
    assert said["process"]["rows"][0]["settings"]["name"] == "default"


@LINUX
def test_a_memory_limit_is_judged_by_the_highest_peak(fitted):
    _, result = fitted
    needed = result.process.shipped.growth.most_bytes
    assert needed >= result.process.shipped.growth.peak_bytes

    def judged(limit):
        return check_process(SimpleNamespace(target=TARGETS["ort"], options=FitOptions("m", ram_bytes=limit)), result)

    fits = judged(needed)
    assert (fits.ram.state, fits.ram.of, fits.ram.needed_bytes) == ("fits", "process", needed)
    assert fit_document(fits).verdict.headline.startswith("Fits ")
    with pytest.raises(LimitReached, match="no file and settings were found") as refused:
        judged(needed - 1)
    assert refused.value.result.ram.state == "not known"
    assert any(f"ram_bytes={needed}" in str(step.text) for step in refused.value.result.ram.remedies)


def test_within_a_limit_the_fastest_ships(tmp_path):
    """Against a brute force: of those within, none is faster; where none is, none has a lower peak."""
    attempts = [
        tried(f"n{place}", peak, 1, cpu, 10, tmp_path)
        for place, (peak, cpu) in enumerate(product((90, 50, 70), (2, 1)))
    ]
    attempts = [
        replace(one, readings=(replace(one.readings[0], most_bytes=one.readings[0].peak_bytes),)) for one in attempts
    ]
    for limit in (40, 50, 69, 70, 100):
        best = fastest_within(attempts, limit).growth
        within = [one.growth for one in attempts if one.growth.most_bytes <= limit]
        if within:
            assert best.most_bytes <= limit and best.cpu_s == min(one.cpu_s for one in within)
        else:
            assert best.most_bytes == min(one.growth.most_bytes for one in attempts)


def test_a_cap_is_written_and_holds(tmp_path):
    """A session whose arena is allowed too little ends with an error of ONNX Runtime, and takes no more. The packed
    weights have to be within it: below these bytes (16.5 MB) ONNX Runtime 1.31 does not count right, and sets no
    limit."""
    path = wide_model(tmp_path / "m.onnx")
    x = np.ones((512, WIDTH), np.float32)
    for cap, runs in ((1 << 26, True), (18_000_000, False)):
        model = onnx.load(str(path))
        for key, value in {"session": TRIMMED[0].name, "arena_bytes": str(cap)}.items():
            model.metadata_props.add(key=f"downset.{key}", value=value)
        onnx.save(model, str(tmp_path / "capped.onnx"))
        assert ort_settings.session_settings(tmp_path / "capped.onnx").cap_bytes == cap
        if runs:
            ds.ort_session(tmp_path / "capped.onnx").run(None, {"x": x})
            continue
        with pytest.raises(Exception, match="Available memory"):
            ds.ort_session(tmp_path / "capped.onnx").run(None, {"x": x})
