"""Cluster files: what they mean, and mistakes named by file, line and field."""

import pytest

from downset.clusters.model import Link, Network
from downset.clusters.toml_file import cluster_names, load_cluster, parse_cluster
from downset.errors import LoadError, UsageError

GOOD = """[network]
kind = "links"
rate_mbps = 50
latency_ms = 2

[[device]]
name = "a"
mac_per_s = 2.2e9
memory = "2GB"
alpha = 2

[[device]]
name = "b"
mac_per_s = 1e9

[[link]]
between = ["b", "a"]
rate_mbps = 8
"""


def test_a_file_is_read():
    cluster = parse_cluster(GOOD)
    assert [device.speed for device in cluster.devices] == [1.1e9, 1e9]
    assert cluster.devices[0].memory_bytes == 2 << 30
    assert cluster.link(0, 1) == cluster.link(1, 0) == (1e6, 0.002)  # the network's latency
    given = parse_cluster(f"{GOOD}latency_ms = 0\n")
    assert given.link(0, 1) == (1e6, 0.0)
    assert cluster.network.latency_s == 0.002
    assert not cluster.network.overlap
    assert parse_cluster(GOOD.split("[[link]]")[0]).link(0, 1) == (6.25e6, 0.002)
    shared = parse_cluster(GOOD.split("[[link]]")[0].replace("links", "shared"))
    assert shared.network.overlap


def test_what_a_message_occupies_is_read():
    text = GOOD.replace("latency_ms = 2", "latency_ms = 2\noverlap = true\noccupied_mbps = 80\noccupied_ms = 0.5")
    cluster = parse_cluster(text.replace("rate_mbps = 8\n", "rate_mbps = 8\nlatency_ms = 1\noccupied_mbps = 16\n"))
    assert cluster.link(0, 1) == (1e6, 0.001)
    assert cluster.occupied.link(0, 1) == (2e6, 0.001)  # what is not given is what it takes
    common = parse_cluster(text.split("[[link]]")[0])
    assert (common.link(0, 1), common.occupied.link(0, 1)) == ((6.25e6, 0.002), (1e7, 0.0005))
    assert common.occupied.occupied == common.occupied
    for line, wrong, says in (
        (6, "occupied_mbps = 49", "longer than it takes"),
        (7, "occupied_ms = 2.1", "longer than it takes"),
        (5, "overlap = false", "without overlap"),
    ):
        lines = text.split("[[link]]")[0].splitlines()
        lines[line - 1] = wrong
        with pytest.raises(LoadError, match=f"line {line if line > 5 else 7}: occupied_.*{says}"):
            parse_cluster("\n".join(lines))
    with pytest.raises(UsageError, match="longer than it takes"):
        Network("shared", 1e6, 0.1, True, occupied_bytes_per_s=9e5)
    with pytest.raises(UsageError, match="longer than it takes"):
        Link((0, 1), 1e6, 0.1, occupied_latency_s=0.2)


def test_the_papers_clusters_come_along():
    for name in cluster_names():
        cluster = load_cluster(name)
        assert len(cluster.devices) == 8
        assert cluster.network.bytes_per_s == 6.25e6
    speeds = [device.speed for device in load_cluster("pico_2mac").devices]
    assert speeds == [4.4e9] * 2 + [3e9] * 2 + [2.4e9] * 2 + [1.6e9] * 2
    assert load_cluster("pico_2mac_cell").network.kind == "shared"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("rate_mbps = 50", "rate_mbps = -1", "line 3: rate_mbps"),
        ("rate_mbps = 50", "rate_mbps = inf", "line 3: rate_mbps"),
        ("rate_mbps = 50", "", "line 1"),
        ("mac_per_s = 1e9", 'mac_per_s = "fast"', "line 14: mac_per_s"),
        ("mac_per_s = 1e9", "", "line 12"),
        ("mac_per_s = 1e9", "mac_per_s = 1e9\nspeed = 3", "line 15"),
        ('kind = "links"', 'kind = "cell"', "line 2: kind"),
        ('kind = "links"', 'kind = "shared"', "line 17: between"),
        ('name = "b"', 'name = ""', "line 13: name"),
        ('"2GB"', '"much"', "line 9: memory"),
        ('name = "b"', 'name = "a"', "line 13: name"),
        ('["b", "a"]', '["b", "c"]', "line 17: between"),
        ('["b", "a"]', '["b", "b"]', "line 17: between"),
        ("[network]", "[network", "not TOML"),
        ("[[device]]", "[[devices]]", "line 6: there is no key `devices`; did you mean 'device'?"),
        ("[[device]]", "[device]", "write [[device]] before each device"),
        ("rate_mbps = 50", "rate_mps = 50", "line 3: there is no key `rate_mps`; did you mean 'rate_mbps'?"),
        ("mac_per_s = 1e9", "mac_pers = 1e9", "there is no key `mac_pers`; did you mean 'mac_per_s'?"),
        ("mac_per_s = 1e9", "mac_per_s = 1e9\nmessages.send = 1", "there is no key `send`; did you mean 'send_ms'?"),
    ],
)
def test_a_mistake_is_named_with_its_line(old, new, says):
    with pytest.raises(LoadError) as error:
        parse_cluster(GOOD.replace(old, new), "home.toml")
    assert str(error.value).startswith("home.toml")
    assert says in str(error.value)


def test_a_table_that_is_missing_is_named():
    with pytest.raises(
        LoadError, match=r"missing required field `device`: write a table \[\[device\]\] for each device"
    ):
        parse_cluster(GOOD.split("[[device]]")[0], "home.toml")
    with pytest.raises(LoadError, match=r"missing required field `network`: write a table \[network\]"):
        parse_cluster("[[device]]" + GOOD.split("[[device]]")[1], "home.toml")


def test_a_missing_file_says_what_comes_along():
    with pytest.raises(LoadError, match="pico_1mac"):
        load_cluster("no/such.toml")


def test_what_a_device_says_of_itself_goes_before_the_network():
    text = GOOD.replace('kind = "links"', 'kind = "links"\nduplex = "full"\noverlap = true')
    text = text.replace("alpha = 2", 'alpha = 2\nduplex = "half"\nruntime_memory = "40MB"\nbytes_per_s = 5e8')
    cluster = parse_cluster(
        text.replace('[[device]]\nname = "b"', '[device.alpha_of]\nConv = 1.5\n\n[[device]]\nname = "b"')
    )
    first, second = cluster.devices
    assert [cluster.duplex(0), cluster.duplex(1)] == ["half", "full"]
    assert (first.runtime_bytes, second.runtime_bytes) == (40 << 20, 0)
    assert (first.moved_per_s, second.moved_per_s) == (5e8, second.speed)
    assert (first.alpha_of, second.alpha_of) == ({"Conv": 1.5}, {})
    assert parse_cluster(GOOD).duplex(0) == "half"


def test_what_messages_take_of_a_processor():
    given = "messages = { send_ms = 2, send_ms_per_mb = 30, frame_ms_per_mb = 5, others_ms = 0.5 }"
    first, second = parse_cluster(GOOD.replace("alpha = 2", f"alpha = 2\n{given}")).devices
    assert first.messages.send.of(2_000_000) == pytest.approx(0.002 + 0.060)
    assert first.messages.frame.of(2_000_000) == pytest.approx(0.010)
    assert first.messages.receive.of(10**9) == first.messages.result.of(10**9) == 0
    assert first.messages.others_s == pytest.approx(0.0005)
    assert second.messages is None


@pytest.mark.parametrize(
    ("new", "says"),
    [
        ('alpha = 2\nduplex = "both"', "line 11: duplex"),
        ("alpha = 2\nbytes_per_s = 0", "line 11: bytes_per_s"),
        ('alpha = 2\nruntime_memory = "some"', "line 11: runtime_memory"),
        ("alpha = 2\n[device.alpha_of]\nConv = -1", "alpha_of"),
        ("alpha = 2\nmessages = { send_ms = -1 }", "line 11: messages"),
        ("alpha = 2\nmessages = { sent_ms = 1 }", "sent_ms"),
        ("alpha = 2\n[device.alpha_of]\nKonv = 1.2", "'Konv': did you mean 'Conv'"),
    ],
)
def test_mistakes_in_what_a_device_says_of_itself(new, says):
    with pytest.raises(LoadError) as error:
        parse_cluster(GOOD.replace("alpha = 2", new), "home.toml")
    assert says in str(error.value)
