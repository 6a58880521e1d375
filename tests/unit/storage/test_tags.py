"""Tags of the tail and of sealed segments: the same answers as a plain list of records."""

from __future__ import annotations

import random
from array import array
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codec import frame, segment, sidecar
from topics.codec.envelope import build
from topics.codec.place import topic_mask
from topics.codec.sidecar import NotASidecar
from topics.storage import tags
from topics.storage.tags import TagIndex, TagSidecar

GOLDEN = Path(__file__).parents[2] / "golden" / "codec"
TOPIC = 10
MASK = topic_mask(TOPIC)

names = st.none() | st.sampled_from(["", "a", "job:", "job:1", "job:12", "job;", "lot:✓", "lot:\U0010ffff"])
literals = st.sampled_from(["", "a", "job", "job:", "job:1", "lot:✓", "lot:\U0010ffff", "z"])


def data_of(records: list[str | None], first_seq: int) -> tuple[bytes, bytes]:
    """`.data` frames and `.idx` entries of records with these tags."""
    raw = frame.encode_appends([(f"n{i % 3}", tag, build(b"1")) for i, tag in enumerate(records)], TOPIC, first_seq, 5)
    return segment.reframe(raw, frame.scan_frames(raw).rows["offset"].tolist(), MASK)


def model_eq(records: dict[int, str | None], tag: str) -> list[int]:
    return [seq for seq, found in records.items() if found == tag]


def model_prefix(records: dict[int, str | None], literal: str) -> list[int]:
    return [seq for seq, found in records.items() if found is not None and found.startswith(literal)]


@given(st.lists(st.lists(names, max_size=6), max_size=6), st.integers(1, 2**63), literals)
def test_the_index_agrees_with_the_list_of_records(batches: list[list[str | None]], first: int, literal: str) -> None:
    """S-185, S-188: asked after every batch, so that new tags get into the order."""
    index, seq = TagIndex(), first
    records: dict[int, str | None] = {}
    for i, batch in enumerate(batches):
        index.add(seq, batch if i % 2 else [None if tag is None else tag.encode() for tag in batch])
        records |= dict(zip(range(seq, seq + len(batch)), batch, strict=True))
        seq += len(batch)
        assert index.prefix(literal).tolist() == model_prefix(records, literal)
        assert index.eq(literal).tolist() == model_eq(records, literal)
        assert index.eq(literal.encode()).tolist() == index.eq(literal).tolist()
    assert len(index) == len(set(records.values()) - {None})


@pytest.mark.parametrize("seed", range(5))
def test_the_index_forgets_what_is_sealed_or_cut_and_nothing_else(seed: int) -> None:
    """S-185, 06 §14 step 9: any sequence of adding, sealing, cutting and asking."""
    rng = random.Random(seed)
    index, seq = TagIndex(), 1
    records: dict[int, str | None] = {}
    choices = [None, "", "a", "ab", "b", *(f"job:{n}" for n in range(20))]
    for _ in range(300):
        step = rng.random()
        if step < 0.6:
            batch = rng.choices(choices, k=rng.randrange(5))
            index.add(seq, batch)
            records |= dict(zip(range(seq, seq + len(batch)), batch, strict=True))
            seq += len(batch)
        elif step < 0.7:
            sealed = rng.randrange(seq)
            index.drop_through(sealed)
            records = {one: tag for one, tag in records.items() if one > sealed}
        elif step < 0.75:
            kept = rng.randrange(max(1, seq - 10), seq + 1)
            index.drop_above(kept)
            records = {one: tag for one, tag in records.items() if one <= kept}
            seq = min(seq, kept + 1)
        literal = rng.choice(["", "a", "job:1", "zz"])
        assert index.prefix(literal).tolist() == model_prefix(records, literal), f"seed {seed}"
        assert index.eq(literal).tolist() == model_eq(records, literal), f"seed {seed}"
        assert len(index) == len(set(records.values()) - {None})
    index.drop_through(seq)
    assert len(index) == 0
    assert index.prefix("").tolist() == []


def test_tags_of_sealed_records_go_a_few_at_a_time_and_are_not_found_meanwhile() -> None:
    """S-185, P-10: a million different tags take longer than the owner has time at once."""
    index = TagIndex()
    index.add(1, ["a", "b", "c", "a", "d"])
    index.drop_through(3)
    assert index.eq("a").tolist() == [4]
    assert index.eq("b").tolist() == []
    index.add(6, ["b", "a", "e"])
    assert index.eq("a").tolist() == [4, 7]
    assert index.catch_up(1)
    assert [index.eq(tag).tolist() for tag in "abcde"] == [[4, 7], [6], [], [5], [8]]
    assert not index.catch_up(9)
    assert [index.eq(tag).tolist() for tag in "abcde"] == [[4, 7], [6], [], [5], [8]]
    assert len(index) == 4
    assert index.prefix("").tolist() == [4, 5, 6, 7, 8]


def test_answers_are_copies_and_do_not_keep_the_index_from_growing() -> None:
    """S-185: an array whose memory is lent out cannot be appended to."""
    index = TagIndex()
    index.add(1, ["a", "b"])
    answers = [index.eq("a"), index.prefix(""), index.eq("b")]
    index.add(3, ["a", "b"])
    index.drop_through(3)
    assert [answer.tolist() for answer in answers] == [[1], [1, 2], [2]]
    assert {answer.dtype for answer in answers} == {np.dtype(np.uint64)}
    assert index.eq("nothing").dtype == np.uint64


def test_seqs_in_the_wrong_order_are_a_bug() -> None:
    """S-185: ascending seqs are what makes answers and sidecars right."""
    index = TagIndex()
    index.add(5, ["a"])
    with pytest.raises(AssertionError):
        index.add(5, ["a"])
    with pytest.raises(AssertionError):
        index.update({b"a": array("Q", [4])})


@given(st.lists(names, max_size=12), st.integers(1, 2**63), literals)
def test_a_sidecar_gives_the_same_answers_as_the_index(batch: list[str | None], first: int, literal: str) -> None:
    """S-186, S-187: built from `.data` rows, from `.idx` entries, or from the index in memory: the same bytes."""
    data, idx = data_of(batch, first)
    rows = segment.scan_data(data, MASK).rows
    index = TagIndex()
    index.add(first, batch)
    raw = tags.build_sidecar(data, rows, TOPIC, first)
    entries = np.frombuffer(idx, segment.IDX)
    assert raw == tags.encode_sidecar(tags.tags_of_entries(data, entries, first), TOPIC, first)
    assert raw == tags.encode_sidecar(index.between(first, first + len(batch)), TOPIC, first)
    again = TagIndex()
    again.update(tags.tags_of(data, rows))
    assert again.prefix("").tolist() == index.prefix("").tolist()
    if raw is None:
        assert set(batch) <= {None}
        return
    found = TagSidecar(raw, TOPIC, first, len(batch))
    assert len(found) == len(index)
    assert found.eq(literal).tolist() == index.eq(literal).tolist()
    assert found.prefix(literal).tolist() == index.prefix(literal).tolist()
    assert found.prefix(literal.encode()).dtype == found.eq(literal).dtype == np.uint64


def test_an_index_filled_from_a_segment_goes_on_with_the_tail() -> None:
    """06 §14 step 6: the dict of an active segment is built on first use."""
    data, _ = data_of(["a", None, "b"], 1)
    index = TagIndex()
    index.update(tags.tags_of(data, segment.scan_data(data, MASK).rows))
    index.add(4, ["a", "c"])
    assert index.eq("a").tolist() == [1, 4]
    assert index.prefix("").tolist() == [1, 3, 4, 5]


def test_a_range_of_the_index_makes_the_sidecar_of_a_segment_that_seals() -> None:
    """S-128, S-185: what lies behind the segment stays in memory."""
    index = TagIndex()
    index.add(1, ["a", "b", "a", None, "a", "c"])
    assert index.between(2, 4) == {b"b": array("Q", [2]), b"a": array("Q", [3])}
    raw = tags.encode_sidecar(index.between(1, 4), TOPIC, 1)
    index.drop_through(4)
    assert raw is not None
    assert TagSidecar(raw, TOPIC, 1, 4).prefix("").tolist() == [1, 2, 3]
    assert index.prefix("").tolist() == [5, 6]
    assert tags.encode_sidecar({}, TOPIC, 1) is None


def test_the_golden_segment_has_the_golden_sidecar() -> None:
    """S-187: deleted records are listed too; liveness comes from the index."""
    data = (GOLDEN / "segment.data").read_bytes()
    golden = (GOLDEN / "segment.tag").read_bytes()
    assert tags.build_sidecar(data, segment.scan_data(data, MASK).rows, TOPIC, 1) == golden
    entries = np.frombuffer((GOLDEN / "segment.idx").read_bytes()[: -segment.ENTRY_BYTES], segment.IDX)
    assert tags.encode_sidecar(tags.tags_of_entries(data, entries, 1), TOPIC, 1) == golden
    found = TagSidecar(golden, TOPIC, 1, len(entries))
    assert [found.eq(tag).tolist() for tag in ("job:7", "", "lot:✓")] == [[1], [3], [5]]


def test_a_sidecar_out_of_its_place_or_beyond_its_segment_is_refused() -> None:
    """S-135, S-187."""
    raw = tags.encode_sidecar({b"a": array("Q", [7])}, TOPIC, 5)
    assert raw is not None
    TagSidecar(raw, TOPIC, 5, 3)
    for topic_id, first_seq, count in ((TOPIC, 4, 3), (TOPIC + 1, 5, 3), (TOPIC, 5, 2)):
        with pytest.raises(NotASidecar):
            TagSidecar(raw, topic_id, first_seq, count)


def test_an_entry_without_a_frame_has_no_tag_whatever_its_flags_say() -> None:
    """S-123: a filler's offset points to nothing."""
    data, idx = data_of(["a", "b"], 1)
    entries = np.frombuffer(idx, segment.IDX).copy()
    entries["offset"][1] = entries["len"][1] = 0
    assert tags.tags_of_entries(data, entries, 1) == {b"a": array("Q", [1])}


def test_entries_that_point_elsewhere_are_an_error() -> None:
    """S-130: an `.idx` that does not fit its `.data` must not become a sidecar."""
    data, idx = data_of(["a", "b"], 1)
    entries = np.frombuffer(idx, segment.IDX).copy()
    with pytest.raises(ValueError, match="another seq"):
        tags.tags_of_entries(data, entries, 2)
    with pytest.raises(ValueError, match="begins behind"):
        tags.tags_of_entries(data[:-60], entries, 1)
    entries["offset"][1] = 2**32 - 1
    with pytest.raises(ValueError, match="begins behind"):
        tags.tags_of_entries(data, entries, 1)
    long = bytearray(data)
    long[23:25] = b"\xff\xff"
    with pytest.raises(ValueError, match="ends behind"):
        tags.tags_of_entries(long, np.frombuffer(idx, segment.IDX), 1)


def test_a_sidecar_does_not_keep_its_answers_tied_to_the_buffer() -> None:
    """S-186: a mapping can be given back while answers live on."""
    raw = bytearray(tags.encode_sidecar({b"a": array("Q", [5, 6])}, TOPIC, 5) or b"")
    found = TagSidecar(raw, TOPIC, 5, 2)
    answers = [found.eq("a"), found.prefix(""), found.eq("b")]
    del found
    raw.clear()
    assert [answer.tolist() for answer in answers] == [[5, 6], [5, 6], []]


def test_a_tag_costs_little_memory() -> None:
    """S-5, S-185: no object per record where tags repeat."""
    index = TagIndex()
    for first in range(1, 100_001, 1000):
        index.add(first, ["a", "b"] * 500)
    assert sum(seqs.buffer_info()[1] * seqs.itemsize for seqs in index.between(1, 100_000).values()) == 800_000
    assert sidecar.successor(b"a") == b"b"


@given(
    st.lists(st.tuples(st.booleans(), st.lists(st.sampled_from(["a", "ab", "b", None]), max_size=5))), st.integers(1, 7)
)
def test_tags_that_are_added_later_are_found_by_whoever_asks(
    batches: list[tuple[bool, list[str | None]]], few: int
) -> None:
    """S-185, S-287: a few at a time, or all of them with the next question; the order of seqs is kept."""
    index, at_once = TagIndex(), TagIndex()
    seq = 1
    for later, texts in batches:
        (index.add_later if later else index.add)(seq, texts)
        at_once.add(seq, texts)
        seq += len(texts)
        index.catch_up(few)
    while index.catch_up(few):
        pass
    for tag in ("a", "ab", "b"):
        assert index.eq(tag).tolist() == at_once.eq(tag).tolist()
    later_still = TagIndex()
    later_still.add_later(1, ["a", None, "b"] * 3)
    assert later_still.prefix("a").tolist() == [1, 4, 7]
