"""`fit --stream --session` for ONNX Runtime: the program keeps the states, and its outputs are the windows'."""

import runpy

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from downset import fit
from downset.formats.stream_records import record_of
from downset.results.processes import ProcessorBound
from downset.results.sessions import DEFAULT, SessionTaken
from downset.runtimes.ort_script import Inputs, OtherProcessor, session_program

ROWS, COLUMNS = 40, 24


def window_file(path):
    """Three convolutions along 40 rows, a pool of stride 2, and a second input that does not move."""
    random = np.random.default_rng(0)
    nodes, weights, x, channels = [], [], "x", 2
    for layer in range(3):
        kernel = random.standard_normal((16, channels, 3, 1)).astype(np.float32) / 4
        weights.append(numpy_helper.from_array(kernel, f"w{layer}"))
        nodes += [
            helper.make_node("Conv", [x, f"w{layer}"], [f"c{layer}"], name=f"conv{layer}"),
            helper.make_node("Relu", [f"c{layer}"], [f"r{layer}"], name=f"relu{layer}"),
        ]
        x, channels = f"r{layer}", 16
    nodes.append(helper.make_node("MaxPool", [x], ["p"], name="pool", kernel_shape=[2, 1], strides=[2, 1]))
    nodes.append(helper.make_node("Mul", ["p", "gain"], ["y"], name="scaled"))
    ends = [("x", (1, 2, ROWS, COLUMNS)), ("gain", (1, 16, 1, 1)), ("y", (1, 16, (ROWS - 6) // 2, COLUMNS))]
    x, gain, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in ends)
    model = helper.make_model(
        helper.make_graph(nodes, "window", [x, gain], [y], weights), opset_imports=[helper.make_opsetid("", 17)]
    )
    model.ir_version = 10
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def streamed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("streamed")
    window, stream, program = window_file(folder / "window.onnx"), folder / "stream.onnx", folder / "open_stream.py"
    result = fit(window, output=stream, session=program, stream=(4, 2), time_limit_s=1)
    return window, stream, runpy.run_path(str(program)), result


def windows_of(window, rows, ends, gain):
    import onnxruntime as ort

    session = ort.InferenceSession(window, providers=["CPUExecutionProvider"])
    return [session.run(None, {"x": rows[:, :, end - ROWS : end], "gain": gain})[0] for end in ends]


def test_the_program_of_a_stream_gives_the_outputs_of_its_windows(streamed):
    """Outputs count from the call that fills a window, also after a reset; two sources share a session."""
    window, stream, program, _ = streamed
    record, random = record_of(stream), np.random.default_rng(1)
    gain = random.standard_normal((1, 16, 1, 1)).astype(np.float32)
    sources = random.standard_normal((2, 1, 2, ROWS + 8 * record.hop, COLUMNS)).astype(np.float32)
    first = program["Stream"]()
    streams = [first, program["Stream"](first.session)]
    for begin in range(2):
        calls = sources.shape[3] // record.hop
        outputs = [[], []]
        for call in range(calls):
            for source, one in enumerate(streams):
                rows = sources[source, :, :, record.hop * call : record.hop * (call + 1)]
                outputs[source].append(one(rows, {"gain": gain}))
        for source in range(2):
            warm = [output for output in outputs[source] if output is None]
            assert len(warm) == record.first_exact == outputs[source].count(None)
            ends = [record.hop * (call + 1) for call in range(record.first_exact, calls)]
            expected = windows_of(window, sources[source], ends, gain)
            for one, other in zip(outputs[source][record.first_exact :], expected, strict=True):
                assert np.allclose(one["y"], other, rtol=0, atol=1e-5), begin
        for one in streams:
            one.reset()


def test_figures_before_are_those_of_the_window_and_its_own_fit_is_the_measure(streamed):
    window, _, _, result = streamed
    plain = fit(window, time_limit_s=1, arena_bytes=1 << 40)
    made = result.stream
    assert result.peak.before == plain.peak.before
    assert result.arena.before == plain.arena.before
    assert result.measured.before == plain.measured.before == made.window_bytes
    assert made.stream_bytes < made.fitted_bytes < made.window_bytes
    assert made.fitted_bytes == pytest.approx(plain.measured.after, rel=0.1)
    assert made.growths is not None and made.latency is not None
    assert result.disk_bytes == (window.stat().st_size, result.disk_bytes[1])


def test_an_arena_holds_little_more_than_a_run_uses(streamed):
    """A process does not show what its arena holds and no run touches: the settings that ship hold no such bytes."""
    row = streamed[3].taken
    assert row.held_bytes < 1.5 * row.in_use_bytes


@pytest.mark.parametrize("original", [True, False])
def test_a_program_on_another_processor_opens_the_original_or_nothing(original, streamed, tmp_path):
    """The window cannot stand in for a stream: its inputs are others."""
    window, stream, _, _ = streamed
    bound = ProcessorBound("0", "0.0.1", layouts=True)
    other = OtherProcessor(bound, window if original else None)
    path = tmp_path / "opened.py"
    taken = SessionTaken("mapped", DEFAULT, 1, 1)
    path.write_text(session_program(stream, taken, Inputs({}), program=path, version="1", other=other))
    opened = runpy.run_path(str(path))["open_session"]
    if original:
        assert [one.name for one in opened().get_inputs()] == ["x", "gain"]
        return
    with pytest.raises(RuntimeError, match=r"is for ONNX Runtime 0\.0\.1, this is .*: fit the model here"):
        opened()
