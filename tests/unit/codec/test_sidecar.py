"""Tag sidecars: lookups agree with a plain dict, and no changed byte verifies."""

from __future__ import annotations

import re
import struct
from array import array
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

import topics.codec
from topics.codec import sidecar
from topics.codec.place import segment_mask
from topics.codec.sidecar import NotASidecar
from topics.errors import UnsupportedFormat

DOC = Path(next(iter(topics.codec.__path__))) / "FORMAT.md"
GOLDEN = Path(__file__).parents[2] / "golden" / "codec" / "segment.tag"
MASK = segment_mask(10, 1)

tags_and_seqs = st.dictionaries(
    st.binary(max_size=4) | st.sampled_from([b"job:", b"job:1", b"job:12", b"job\xff", b"\xff\xff"]),
    st.sets(st.integers(0, 2**32 - 1), min_size=1, max_size=5).map(sorted),
    max_size=8,
)


def golden() -> bytes:
    """The tags of the golden segment: of its first, third and fifth record."""
    return sidecar.encode({b"job:7": [0], b"": [2], "lot:✓".encode(): [4]}, MASK)


def example() -> bytes:
    """The example of FORMAT.md."""
    return sidecar.encode({b"job:7": [0, 2], b"job:12": [1]}, MASK)


def signed(
    table: list[tuple[int, int, int, int, int]], strings: bytes, postings: list[int], version: int = 1, **counts: int
) -> bytes:
    """A file whose content may break any rule but the checksum."""
    n_tags, n_postings = counts.get("n_tags", len(table)), counts.get("n_postings", len(postings))
    head = struct.pack("<4sIII", b"TTG1", version, n_tags, n_postings)
    body = (
        b"".join(struct.pack("<IHHII", *row) for row in table) + strings + struct.pack(f"<{len(postings)}I", *postings)
    )
    return head + struct.pack("<Q", xxh3_64_intdigest(head + body) ^ MASK) + body


def changed(raw: bytes) -> Iterator[bytes]:
    for at, old in enumerate(raw):
        for new in {*(old ^ 1 << bit for bit in range(8)), 0x00, 0xFF} - {old}:
            yield raw[:at] + bytes([new]) + raw[at + 1 :]


@given(tags_and_seqs, st.integers(0, 2**64 - 1))
def test_every_tag_finds_its_seqs(tags: dict[bytes, list[int]], mask: int) -> None:
    """S-186, S-188: `eq` for tags that are there and tags that are not."""
    found = sidecar.read(sidecar.encode(tags, mask), mask)
    assert sidecar.tags(found) == sorted(tags)
    for tag, seqs in tags.items():
        assert sidecar.eq(found, tag).tolist() == seqs
        for other in (tag + b"\0", tag[:-1], b"job:1\xff", b""):
            assert sidecar.eq(found, other).tolist() == tags.get(other, [])


@given(tags_and_seqs, st.binary(max_size=3) | st.sampled_from([b"job:", b"\xff", b"\xff\xff", b"job\xff"]))
def test_every_prefix_finds_the_seqs_of_its_tags(tags: dict[bytes, list[int]], literal: bytes) -> None:
    """S-188: one run of the table, its seqs in ascending order."""
    found = sidecar.read(sidecar.encode(tags, MASK), MASK)
    expected = sorted(seq for tag, seqs in tags.items() if tag.startswith(literal) for seq in seqs)
    assert sidecar.prefix(found, literal).tolist() == expected


@given(st.binary(max_size=4), st.binary(max_size=4))
def test_the_successor_ends_the_range_of_a_prefix(literal: bytes, text: bytes) -> None:
    """S-188: increments the last byte that is not 0xFF and cuts the rest."""
    behind = sidecar.successor(literal)
    assert text.startswith(literal) == (literal <= text and (behind is None or text < behind))


def test_the_successor_of_nothing_or_of_ff_alone_is_an_open_end() -> None:
    """S-188."""
    assert [sidecar.successor(text) for text in (b"", b"\xff", b"\xff\xff")] == [None, None, None]
    assert [sidecar.successor(text) for text in (b"job:", b"a\xff\xff", b"\x00")] == [b"job;", b"b", b"\x01"]


def test_the_golden_sidecar_is_written_and_read() -> None:
    """S-7: a format changes only with its version."""
    assert golden() == GOLDEN.read_bytes()
    found = sidecar.read(GOLDEN.read_bytes(), MASK, 8)
    assert sidecar.tags(found) == [b"", b"job:7", "lot:✓".encode()]


def test_the_documented_example_is_what_the_code_writes_and_reads() -> None:
    """S-7: document, writer and test map one to one."""
    found = re.findall(r"^```hexdump tag sidecar\n([0-9a-f\n]+)```$", DOC.read_text(), re.MULTILINE)
    assert [bytes.fromhex(text).hex() for text in found] == [example().hex()]
    read = sidecar.read(bytes.fromhex(found[0]), MASK, 3)
    assert (sidecar.eq(read, b"job:7").tolist(), sidecar.eq(read, b"job:12").tolist()) == ([0, 2], [1])
    assert sidecar.prefix(read, b"job:").tolist() == [0, 1, 2]


def test_the_layout_is_that_of_the_table() -> None:
    """S-186: sorted by bytes, strings and postings without a byte between them."""
    assert example() == signed([(0, 6, 0, 0, 1), (6, 5, 0, 1, 2)], b"job:12job:7", [1, 0, 2])


def test_seqs_may_be_lists_arrays_or_numpy_arrays() -> None:
    """S-185: what the index in memory holds goes into the file as it is."""
    for seqs in ([0, 2], array("Q", [0, 2]), np.array([0, 2], np.uint64), np.array([0, 2], np.uint32)):
        assert sidecar.encode({b"job:7": seqs, b"job:12": [1]}, MASK) == example()
        assert (
            sidecar.encode({b"job:7": [s + 2**60 for s in map(int, seqs)], b"job:12": [2**60 + 1]}, MASK, 2**60)
            == example()
        )


def test_lookups_read_the_buffer_in_place() -> None:
    """S-186: a mapped sidecar is not copied."""
    raw = bytearray(example())
    found = sidecar.read(memoryview(raw).toreadonly(), MASK)
    assert np.shares_memory(sidecar.eq(found, b"job:7"), np.frombuffer(raw, np.uint8))
    assert not found.table.flags.owndata


def test_a_sidecar_verifies_only_in_its_place() -> None:
    """S-135: swapped with another topic's, or renamed."""
    for mask in (segment_mask(11, 1), segment_mask(10, 2), 0):
        with pytest.raises(NotASidecar):
            sidecar.read(example(), mask)


@pytest.mark.parametrize("raw", [example(), golden(), sidecar.encode({}, MASK)], ids=["example", "golden", "empty"])
def test_every_truncation_and_every_changed_byte_is_refused(raw: bytes) -> None:
    """S-187: damage is seen before anything is looked up."""
    sidecar.read(raw, MASK)
    for mutant in [*(raw[:cut] for cut in range(len(raw))), raw + b"\0", raw + bytes(16), *changed(raw)]:
        with pytest.raises(NotASidecar):
            sidecar.read(mutant, MASK)


def test_a_right_checksum_over_any_changed_byte_is_refused_or_keeps_every_rule() -> None:
    """S-186: nothing but text and seqs may differ from what was written."""
    raw = golden()
    for mutant in changed(raw):
        head, body = mutant[:16], mutant[24:]
        try:
            found = sidecar.read(head + struct.pack("<Q", xxh3_64_intdigest(head + body) ^ MASK) + body, MASK)
        except (NotASidecar, UnsupportedFormat):
            continue
        names = sidecar.tags(found)
        assert names == sorted(set(names))
        again = sidecar.encode({name: sidecar.eq(found, name) for name in names}, MASK)
        assert again[24:] == body


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(signed([(0, 1, 0, 0, 1)], b"a", [0], n_tags=2**32 - 1), id="more tags than bytes"),
        pytest.param(signed([(0, 1, 0, 0, 1)], b"a", [0], n_postings=2**32 - 1), id="more postings than bytes"),
        pytest.param(signed([(0, 1, 0, 0, 1)], b"a", [0], n_postings=0), id="fewer postings"),
        pytest.param(signed([(0, 1, 0, 0, 2**32 - 1)], b"a", [0]), id="count beyond the postings"),
        pytest.param(signed([(2**32 - 1, 1, 0, 0, 1)], b"a", [0]), id="string outside"),
        pytest.param(signed([(0, 2, 0, 0, 1)], b"a", [0]), id="string too long"),
        pytest.param(signed([(0, 1, 0, 1, 1)], b"a", [0]), id="postings outside"),
        pytest.param(signed([(0, 1, 1, 0, 1)], b"a", [0]), id="pad"),
        pytest.param(signed([(0, 1, 0, 0, 1), (1, 1, 0, 1, 0)], b"ab", [0]), id="no postings"),
        pytest.param(signed([(0, 1, 0, 0, 0), (1, 1, 0, 0, 1)], b"ab", [0]), id="no postings first"),
        pytest.param(signed([(0, 1, 0, 0, 2)], b"a", [1, 1]), id="seq twice"),
        pytest.param(signed([(0, 1, 0, 0, 2)], b"a", [1, 0]), id="seqs descend"),
        pytest.param(signed([(0, 1, 0, 0, 1), (1, 1, 0, 1, 1)], b"ba", [0, 1]), id="tags descend"),
        pytest.param(signed([(0, 1, 0, 0, 1), (1, 1, 0, 1, 1)], b"aa", [0, 1]), id="tag twice"),
        pytest.param(signed([(1, 1, 0, 0, 1), (0, 1, 0, 1, 1)], b"ba", [0, 1]), id="strings out of order"),
        pytest.param(signed([(0, 1, 0, 1, 1), (1, 1, 0, 0, 1)], b"ab", [0, 1]), id="postings out of order"),
        pytest.param(signed([(0, 1, 0, 0, 1)], b"a", [0], version=0), id="version 0"),
    ],
)
def test_a_right_checksum_over_broken_rules_is_refused(raw: bytes) -> None:
    """S-186, S-187."""
    with pytest.raises(NotASidecar):
        sidecar.read(raw, MASK)


def test_a_posting_outside_the_segment_is_refused_when_its_length_is_known() -> None:
    """S-122: a lookup must not lead behind the index."""
    sidecar.read(example(), MASK, 3)
    with pytest.raises(NotASidecar, match="outside"):
        sidecar.read(example(), MASK, 2)
    sidecar.read(sidecar.encode({}, MASK), MASK, 0)


def test_a_later_version_with_a_right_checksum_is_not_damage() -> None:
    """S-7."""
    with pytest.raises(UnsupportedFormat):
        sidecar.read(signed([], b"something else", [], version=2, n_tags=2**32 - 1), MASK)


@pytest.mark.parametrize(
    "tags",
    [
        {b"a": []},
        {b"a": [1, 1]},
        {b"a": [0], b"b": [2, 1]},
        {b"a": [2**32]},
        {b"a": [2**64]},
        {b"a": [-1]},
        {b"a" * 65536: [1]},
    ],
)
def test_what_no_sidecar_can_tell_is_not_encoded(tags: dict[bytes, list[int]]) -> None:
    """S-186: wrapped or unordered seqs would verify and lie."""
    with pytest.raises(ValueError, match="seq"):
        sidecar.encode(tags, MASK)
    with pytest.raises(ValueError, match="seq"):
        sidecar.encode({b"a": [4]}, MASK, 5)
    assert sidecar.read(sidecar.encode({b"a" * 65535: [2**32 - 1]}, MASK), MASK, 2**32)


@given(st.binary(max_size=120))
def test_any_bytes_are_refused(raw: bytes) -> None:
    """S-187."""
    for mutant in (raw, b"TTG1\1\0\0\0" + raw):
        with pytest.raises(NotASidecar):
            sidecar.read(mutant, MASK)
