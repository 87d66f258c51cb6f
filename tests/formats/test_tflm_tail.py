"""The tail that TFLite Micro keeps: what a tensor adds to it here, which the estimate for a Cortex-M starts from."""

from downset.runtimes import tflm
from tests.tflite_net import TfliteNet


def tail_bytes(path, *, unread):
    net = TfliteNet(size=4)
    x = net.op("RELU", (net.input(2),), 2)
    for _ in range(unread):
        net.tensor((3,), value=[1, 2, 3])
    return tflm.measure(net.save(path, [x])).tail_bytes


def test_the_estimate_takes_half_of_every_tensor_and_node(tmp_path):
    few, more = (tail_bytes(tmp_path / "m.tflite", unread=count) for count in (2, 6))
    assert more - few == 4 * 24  # as the estimate has it for eight bytes a pointer
    saved = [tail - tflm.on_cortex_m(tail, 1, 3 + unread) for tail, unread in ((few, 2), (more, 6))]
    assert saved[1] - saved[0] == 4 * 12
    assert tflm.on_cortex_m(few, 2, 5) == tflm.on_cortex_m(few, 1, 5) - 32
