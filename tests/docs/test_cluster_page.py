"""The page of cluster files has the keys that their reader accepts and no others, described, with their defaults."""

import re

import pytest

from docs_site.clusters import cluster_page
from downset.clusters.toml_file import parse_cluster
from downset.errors import LoadError
from tests.docs.test_site import tells

REQUIRED = {
    "`[network]`": {"kind": '"links"', "rate_mbps": "50"},
    "`[[device]]`": {"name": '"a"', "mac_per_s": "1e9"},
    "`messages` of a `[[device]]`": {},
    "`[[link]]`": {"between": '["a", "b"]', "rate_mbps": "10"},
}
"""The keys that a file must have, by the heading of their table on the page."""


def text(tables, *, top=""):
    """A cluster file with these keys of its tables, and a second device."""
    network, device, messages, link = ("\n".join(f"{key} = {value}" for key, value in keys.items()) for keys in tables)
    return (
        f"{top}\n[network]\n{network}\n[[device]]\n{device}\n[device.messages]\n{messages}\n"
        f'[[device]]\nname = "b"\nmac_per_s = 1e9\n[[link]]\n{link}\n'
    )


def changed(heading, without=None, **added):
    """The required keys of all tables, with one table changed."""
    tables = {**REQUIRED, heading: {key: value for key, value in REQUIRED[heading].items() if key != without} | added}
    return text(tables.values())


def accepted(file):
    """The keys that the reader names where it refuses the key `qqqq`."""
    with pytest.raises(LoadError, match="there is no key `qqqq`; keys are ") as refused:
        parse_cluster(file)
    return re.search(r"keys are ([\w, ]+)", str(refused.value))[1].split(", ")


@pytest.fixture(scope="module")
def rows():
    """By heading: (key, default, description) of every row of its table."""
    sections = dict(part.split("\n", 1) for part in cluster_page().split("\n## ")[1:])
    row = re.compile(r"^\| `(\w+)` \| .+? \| (.+?) \| (.+) \|$", re.MULTILINE)
    return {heading: row.findall(section) for heading, section in sections.items()}


def test_every_key_that_is_accepted_has_a_row_and_no_other(rows):
    assert [key for key, *_ in rows.pop("Tables of a file")] == accepted(text(REQUIRED.values(), top="qqqq = 1"))
    assert rows.keys() == REQUIRED.keys()
    for heading, table in rows.items():
        assert [key for key, *_ in table] == accepted(changed(heading, qqqq="1"))


def test_every_key_is_described(rows):
    assert all(said.endswith(".") and tells(said, key) for table in rows.values() for key, _, said in table)


@pytest.mark.parametrize("heading", REQUIRED)
def test_defaults_are_those_of_the_reader(rows, heading):
    usual = parse_cluster(changed(heading))
    assert [key for key, default, _ in rows[heading] if default == "required"] == [*REQUIRED[heading]]
    for key in REQUIRED[heading]:
        with pytest.raises(LoadError, match=f"missing required field `{key}`"):
            parse_cluster(changed(heading, without=key))
    values = re.compile(r'`([\d.]+|"\w+")`')
    stated = {key: match[1] for key, default, _ in rows[heading] if (match := values.fullmatch(default))}
    assert stated or heading == "`[[link]]`"
    for key, value in stated.items():
        assert parse_cluster(changed(heading, **{key: value})) == usual
