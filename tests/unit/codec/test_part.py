"""Chunks of staged parts: what goes in comes out, in the log and in the index too [S-286]."""

from __future__ import annotations

from array import array

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics.codec import envelope, frame, part
from topics.codec.frame import NotAFrame, Record
from topics.codec.place import topic_mask
from topics.codec.segment import IDX, reframe
from topics.storage.tail import entries_of_rows

texts = st.one_of(st.none(), st.text(st.characters(exclude_categories=("Cs",)), max_size=6))
datas = st.sampled_from([b"null", b'{"a":1}', b'"\\u00e9"', b"[1,2,3]", b'{"m":{"x":1}}', b'",\\"m\\":{"'])
metas = st.sampled_from([None, b'{"k":"v"}', b"{}"])
records = st.lists(
    st.builds(lambda node, tag, data, meta: (node, tag, envelope.build(data, meta)), texts, texts, datas, metas),
    max_size=40,
)


@given(records)
def test_a_chunk_becomes_the_very_frames_that_a_write_of_its_records_would_be(rows: list[Record]) -> None:
    """S-287: seqs, ts and checksums are completed at the commit; nothing else differs from a write."""
    chunk = part.encode(rows)
    found = part.appends(chunk, part.places(chunk), 10, 7, 1700, durable=True, more=False)
    assert found.frames == frame.encode_appends(rows, 10, 7, 1700, durable=True)
    assert [frame.fields(found.frames, at).seq for at in array("Q", found.offsets)] == list(range(7, 7 + len(rows)))
    tags = [None if tag is None else tag.encode() for _, tag, _ in rows]
    assert found.tags == (tags if any(tag is not None for tag in tags) else [])
    assert found.accounted == sum(envelope.accounted_bytes(data) for *_, data in rows)


@given(records.filter(bool))
def test_index_entries_of_a_chunk_are_those_that_replay_makes_of_its_frames(rows: list[Record]) -> None:
    """S-287, S-152: live and recovered, the index says the same."""
    chunk = part.encode(rows)
    found = part.appends(chunk, part.places(chunk), 10, 7, 1700, durable=True, more=True)
    view, begins = memoryview(found.frames), list(array("Q", found.offsets))
    entries, accounted = entries_of_rows(view, frame.rows_at(view, begins))
    assert found.entries == entries.tobytes()
    assert found.accounted == int(accounted.sum())
    made = np.frombuffer(found.entries, IDX)
    stored = np.frombuffer(reframe(found.frames, begins, topic_mask(10))[1], IDX)
    for name in ("len", "ts", "flags_ovh"):
        assert (made[name] == stored[name]).all()


@given(records, st.integers(1, 5))
def test_a_chunk_may_be_framed_a_few_records_at_a_time(rows: list[Record], few: int) -> None:
    """P-10: a large commit is framed in slices, and the submission is the same."""
    chunk = part.encode(rows)
    begins = part.places(chunk)
    runs = [begins[at : at + few] for at in range(0, len(begins), few)]
    frames = b"".join(
        part.appends(chunk, run, 10, 1 + at * few, 5, durable=True, more=(at + 1) * few < len(begins)).frames
        for at, run in enumerate(runs)
    )
    assert frames == frame.encode_appends(rows, 10, 1, 5, durable=True)


@given(records)
def test_frames_that_a_client_sends_are_the_records_it_meant(rows: list[Record]) -> None:
    """TXN-1, 06 §8.1: seq 0, ts 0, unmasked checksum, delete flag 0."""
    sent = part.upload(rows)
    assert list(part.uploaded(sent)) == rows
    assert part.encode(part.uploaded(sent)) == part.encode(rows)
    assert list(part.envelopes(part.encode(rows))) == [data for *_, data in rows]


SENT = part.upload([("n", "t", b'{"d":1}'), (None, None, b'{"d":2}')])


@pytest.mark.parametrize("at", range(len(SENT)))
def test_no_byte_that_was_changed_on_the_way_is_taken(at: int) -> None:
    """R-5: every byte of the frames that a client sends is covered."""
    for changed in (SENT[at] ^ 1, SENT[at] ^ 0x80):
        raw = SENT[:at] + bytes((changed,)) + SENT[at + 1 :]
        with pytest.raises(NotAFrame):
            list(part.uploaded(raw))


@pytest.mark.parametrize("size", range(1, len(SENT)))
def test_a_body_that_was_cut_is_not_taken(size: int) -> None:
    whole = len(part.upload([("n", "t", b'{"d":1}')]))
    if size != whole:
        with pytest.raises(NotAFrame):
            list(part.uploaded(SENT[:size]))


def test_a_value_that_fits_no_frame_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit"):
        part.encode([("n" * 70_000, None, b'{"d":1}')])
    with pytest.raises(ValueError, match="exceeds"):
        part.encode([(None, None, bytes(33_554_432))])
