"""The tail of a topic: the same answers as a plain list with one item per seq, in a few bytes per record."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from topics.codec import frame, segment
from topics.codec.control import Gap
from topics.codec.envelope import accounted_bytes, build
from topics.codec.place import topic_mask
from topics.codec.segment import DELETED, IDX, LOST
from topics.storage import tail
from topics.storage.tail import (
    BLOCK_RECORDS,
    DeadRun,
    EntryRun,
    Eviction,
    GapRun,
    Live,
    Tail,
    WalFiles,
    entries_from_frames,
    pack,
)

TOPIC = 10


def frames_of(sizes: list[int], first_seq: int, ts: int, *, hops: int = 0) -> bytes:
    """WAL frames of records with these accounted sizes."""
    records = [(None, f"tag{n}" if n % 2 else None, build(b"1" * n)) for n in sizes]
    return frame.encode_appends(records, TOPIC, first_seq, ts, hops=hops)


def batch(sizes: list[int], first_seq: int, ts: int = 5, reference: int = 1, at: int = 0) -> tuple[bytes, np.ndarray]:
    """Entries and locations of such records, written at `at` of a WAL file."""
    raw = frames_of(sizes, first_seq, ts)
    rows = frame.scan_frames(raw).rows
    return entries_from_frames(raw, rows)[0], rows["offset"] + np.uint64(pack(reference, at))


def filled(*sizes: int, first_seq: int = 1, ts: int = 5) -> Tail:
    held = Tail(first_seq)
    held.extend(*batch(list(sizes), first_seq, ts))
    return held


def seqs(*numbers: int) -> np.ndarray:
    return np.array(numbers, np.uint64)


def entry_runs(held: Tail, lo: int, hi: int) -> list[EntryRun]:
    return [run for run in held.runs(lo, hi) if isinstance(run, EntryRun)]


def entries_of(held: Tail, lo: int, hi: int) -> np.ndarray:
    # np.concatenate would give them another layout: it does not keep fields that overlap.
    return np.frombuffer(b"".join(run.entries.tobytes() for run in entry_runs(held, lo, hi)), IDX)


# A reference to a WAL file.


@given(st.integers(0, 2**24 - 1), st.integers(0, 2**40 - 1))
def test_a_location_holds_any_reference_and_any_offset(reference: int, offset: int) -> None:
    """S-152: 24 bits of file, 40 bits of offset."""
    location = pack(reference, offset)
    assert 0 <= location < 2**64
    assert tail.unpack(location) == (reference, offset)


def test_a_file_keeps_its_reference_until_it_is_released() -> None:
    """S-152: by group key and number; 0 is no file."""
    files = WalFiles()
    one, two, three = files.reference("", 1), files.reference("shard-00", 1), files.reference("", 2)
    assert len({tail.NOWHERE, one, two, three}) == 4
    assert files.reference("shard-00", 1) == two
    assert files.file(two) == ("shard-00", 1)
    files.release(two)
    assert len(files) == 2
    with pytest.raises(KeyError):
        files.file(two)
    assert files.reference("shard-00", 1) not in (one, two, three)
    assert files.file(one) == ("", 1)


def test_references_are_reused_only_when_released_and_no_new_one_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-152, S-172: who still holds a location of a file that is gone must not find another one in its place."""
    monkeypatch.setattr(tail, "REFERENCE_MAX", 4)
    files = WalFiles()
    held = [files.reference("", n) for n in range(1, 4)]
    files.release(held[1])
    files.release(held[0])
    assert files.reference("", 4) == 4
    assert [files.reference("", 5), files.reference("", 6)] == [held[1], held[0]]
    assert files.file(held[2]) == ("", 3)
    with pytest.raises(IndexError):
        files.reference("", 7)


# Entries from frames.

texts = st.none() | st.sampled_from(["", "a", "lot:✓"])
values = st.sampled_from([b"1", b'"x"', b"{}", b'{"a":{}}', b'{"a":1,"m":{}}', b'[",\\"m\\":{}"]', b"1" * 300])
metas = st.none() | st.sampled_from([b"{}", b'{"fw":"2.8"}', b'{"m":{}}'])


def test_frames_that_reach_the_log_later_get_their_places_there() -> None:
    """[S-212 c, S-192] Records, short gaps and long ones; what is not held any more is passed over."""
    held = filled(10, 10, 10)
    held.append_gap(2000, 5, 1, 0, tail.IN_MEMORY)
    held.append_gap(2, 5, 1, 0, tail.IN_MEMORY)
    held.relocate([(2, 2, pack(7, 100)), (3, 3, pack(7, 200)), (4, 2003, pack(7, 300)), (2004, 2005, pack(8, 0))])
    found = [
        one for run in held.runs(1, 2005) for one in (run.locations if isinstance(run, EntryRun) else [run.location])
    ]
    assert found[1:] == [pack(7, 100), pack(7, 200), pack(7, 300), pack(8, 0), pack(8, 0)]
    assert list(held.oldest_locations()) == [1, 7, 8]
    held.drop_through(2)
    held.relocate([(1, 3, pack(9, 5))])
    assert entry_runs(held, 3, 3)[0].locations.tolist() == [pack(9, 5)]


@given(st.lists(st.tuples(texts, texts, values, metas), max_size=8), st.integers(0, 8), st.integers(1, 2**63))
def test_entries_are_those_the_index_file_will_have(
    records: list[tuple[str | None, str | None, bytes, bytes | None]], hops: int, first: int
) -> None:
    """S-121, S-152: only the offset is still open; `len` is 8 less than the WAL frame, sizes are REC-12."""
    raw = frame.encode_appends(
        [(n, t, build(d, m)) for n, t, d, m in records], TOPIC, first, 7, hops=hops, durable=True
    )
    rows = frame.scan_frames(raw).rows
    expected = np.frombuffer(segment.reframe(raw, rows["offset"].tolist(), topic_mask(TOPIC))[1], IDX).copy()
    expected["offset"] = 0
    entries, total = entries_from_frames(raw, rows)
    assert entries == expected.tobytes()
    assert total == sum(accounted_bytes(build(d, m)) for _, _, d, m in records)
    found = np.frombuffer(entries, IDX)
    assert tail.wal_lengths(found).tolist() == rows["len"].tolist()
    assert tail.wal_lengths(np.frombuffer(segment.fillers(2, 1), IDX)).tolist() == [0, 0]


def test_frames_of_one_topic_are_picked_out_of_a_file_with_others() -> None:
    """06 §14 step 8: replay hands over the rows of a topic, with offsets in the whole buffer."""
    other = frame.encode_appends([("n", "t", build(b"[]"))], TOPIC + 1, 1, 5)
    raw = other + frames_of([3], 8, 5) + other + frames_of([4], 9, 6)
    rows = frame.scan_frames(raw).rows
    entries, total = entries_from_frames(memoryview(raw), rows[rows["topic_id"] == TOPIC])
    assert total == 7
    assert np.frombuffer(entries, IDX)["ts"].tolist() == [5, 6]


def test_other_rows_than_consecutive_records_of_one_topic_are_a_bug() -> None:
    one = frames_of([1], 1, 5)
    for wrong in (
        frames_of([1], 3, 5),
        frame.encode_appends([(None, None, build(b"1"))], TOPIC + 1, 2, 5),
        frame.encode_control(Gap(first=2, last=3, reason=0), TOPIC, 5),
    ):
        with pytest.raises(AssertionError):
            entries_from_frames(one + wrong, frame.scan_frames(one + wrong).rows)


# The rules, one by one.


def test_an_empty_tail_ends_before_its_first_seq() -> None:
    held = Tail(7)
    assert (held.first, held.end, held.records, held.nbytes) == (7, 6, 0, 0)
    assert list(held.runs(0, 2**64 - 1)) == []
    assert held.live(0, 100) == Live(0, 0)
    assert held.lowest_live(0) is None
    assert held.expired_through(100) is None
    assert held.evict(3, 1, 1) == Eviction(3, 0, 0)
    assert held.holes(0, 100) == held.dead_runs(0, 100) == []
    assert held.mark_deleted(seqs(1, 7, 8)).records == 0
    assert held.mark_lost(1, 100, 2).records == 0
    assert held.oldest_location() is None
    held.extend(b"", [])
    assert held.end == 6


def test_a_gap_of_1024_seqs_is_entries_and_a_longer_one_is_one_item() -> None:
    """S-129."""
    held = filled(1)
    held.append_gap(1024, 5, 3, 2, pack(1, 100))
    held.append_gap(1025, 5, 0, 1, pack(1, 200))
    (short,) = entry_runs(held, 2, held.end)
    *_, long = held.runs(2, held.end)
    assert short.entries.tobytes() == segment.fillers(1024, 5, 3, 2)
    assert set(short.locations.tolist()) == {pack(1, 100)}
    assert long == GapRun(1026, 1025, 5, 0, 1, pack(1, 200))
    assert (held.end, held.records) == (2050, 1 + 1024 + 1)


def test_a_gap_of_any_length_costs_one_item() -> None:
    """S-129, S-245: a settled reservation, or a class change, may skip more seqs than memory holds."""
    held = filled(5)
    held.append_gap(2**40, 5, 3)
    held.extend(*batch([7], held.end + 1))
    assert held.records == 3
    assert held.live(1, held.end) == Live(2, 12)
    assert held.holes(0, held.end) == [DeadRun(2, 2**40 + 1, 3)]
    assert held.lowest_live(2) == held.end
    assert held.evict(1, 2, 0).floor == held.end + 1
    assert held.mark_deleted(seqs(1, 2, 2**39, 2**40 + 2)).seqs.tolist() == [1, 2**40 + 2]
    held.drop_through(2**39)
    assert held.holes(0, held.end) == [DeadRun(2**39 + 1, 2**40 + 1, 3)]
    held.cut_after(2**39 + 5)
    assert list(held.runs(0, 2**64)) == [GapRun(2**39 + 1, 5, 5, 3, 0)]


def test_a_gap_takes_the_time_of_the_entry_before_it() -> None:
    """S-123: a Gap frame's own time may be above that of the next record, and the search for a time would fail."""
    held = filled(1, ts=50)
    held.append_gap(3, 90, 3)
    held.append_gap(2000, 90, 2)
    held.extend(*batch([1], held.end + 1, 50))
    assert {run.ts for run in held.runs(1, held.end) if isinstance(run, GapRun)} == {50}
    assert set(entries_of(held, 1, held.end)["ts"].tolist()) == {50}
    held.drop_through(held.end)
    held.append_gap(1, 90, 3)
    assert entries_of(held, 1, held.end)["ts"].tolist() == [50]
    held = filled(1, ts=10)
    held.extend(*batch([1], 2, 20))
    held.extend(*batch([1], 3, 30))
    held.drop_through(2)
    held.cut_after(2)
    held.append_gap(1, 90, 3)
    assert entries_of(held, 1, held.end)["ts"].tolist() == [20]
    fresh = Tail(10)
    fresh.append_gap(1, 90, 3)
    assert entries_of(fresh, 1, 10)["ts"].tolist() == [90]


@pytest.mark.parametrize("mark", [Tail.mark_few, lambda held, few: held.mark_deleted(seqs(*few))])
def test_what_is_frozen_stays_though_a_few_are_deleted(mark: Callable[[Tail, list[int]], object]) -> None:
    """[S-158] The checkpoint under way has the marks of its beginning, and learns of those set since."""
    held = filled(*[1] * (tail.BLOCK_RECORDS + 10))
    mark(held, [3])
    frozen = held.frozen()
    few = [3, 4, tail.BLOCK_RECORDS + 2]
    mark(held, few)
    assert frozen.live(1, frozen.end).records == held.live(1, held.end).records + 2
    assert held.deleted_since(frozen).tolist() == few[1:]


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=40),
    st.sets(st.integers(1, 60)),
    st.sets(st.integers(1, 60)),
    st.integers(0, 40),
)
def test_a_few_are_marked_as_many_are(sizes: list[int], before: set[int], few: set[int], gap: int) -> None:
    """[S-124] What was dead before, lies outside or in a gap stays as it is."""
    one, other = filled(*sizes, first_seq=3), filled(*sizes, first_seq=3)
    for held in (one, other):
        held.append_gap(gap + 1, 9, 1)
        held.extend(*batch([1, 2, 3], held.end + 1, 9))
        held.mark_deleted(seqs(*sorted(before)))
    marked = one.mark_deleted(seqs(*sorted(few)))
    assert other.mark_few(sorted(few)) == (marked.records, marked.bytes)
    assert entries_of(one, 1, one.end).tobytes() == entries_of(other, 1, other.end).tobytes()
    assert one.live(1, one.end) == other.live(1, other.end)


def test_a_deleted_record_keeps_its_frame_and_its_bytes_until_it_is_written() -> None:
    """S-124, S-158, S-153: a checkpoint under way has its frame in `.data` already; its WAL bytes are still there."""
    held = filled(10, 20, 30)
    before = held.nbytes
    marked = held.mark_deleted(seqs(2))
    assert (marked.records, marked.bytes, marked.seqs.tolist()) == (1, 20, [2])
    entry = entries_of(held, 2, 2)[0]
    assert entry["flags"] == DELETED
    assert entry["len"] - (entry["flags_ovh"] >> 8) == 20
    assert held.nbytes == before
    assert held.live(1, 3) == Live(2, 40)


def test_deleting_twice_counts_once() -> None:
    """DEL-10, S-157."""
    held = filled(1, 2, 3)
    assert held.mark_deleted(seqs(1, 3))[:2] == (2, 4)
    assert held.mark_deleted(seqs(1, 2, 3))[:2] == (1, 2)
    assert held.mark_deleted(seqs(1, 2, 3))[:2] == (0, 0)


def test_deleting_does_not_unmark_a_hole() -> None:
    """S-124, FLR-5."""
    held = filled(1, 2)
    held.append_gap(2, 5, 3)
    held.append_gap(2000, 5, 1)
    holes = held.holes(1, held.end)
    assert held.mark_deleted(np.arange(1, held.end + 1, dtype=np.uint64)).seqs.tolist() == [1, 2]
    assert held.holes(1, held.end) == holes == [DeadRun(3, 4, 3), DeadRun(5, 2004, 1)]


def test_only_live_records_become_holes_and_they_look_as_the_index_file_wants_them() -> None:
    """S-123, S-124: no frame, the reason in `ovh`, time and hops kept; what a client removed is not a loss."""
    raw = frames_of([1, 2, 3], 1, 5, hops=4)
    rows = frame.scan_frames(raw).rows
    held = Tail(1)
    held.extend(entries_from_frames(raw, rows)[0], rows["offset"])
    held.mark_deleted(seqs(2))
    marked = held.mark_lost(2, 9, 2)
    assert (marked.records, marked.bytes, marked.seqs.tolist()) == (1, 3, [3])
    assert entries_of(held, 3, 3).tobytes() == segment.fillers(1, 5, 2, 4)
    assert held.nbytes == int(rows["len"][:2].sum())
    assert held.holes(1, 3) == [DeadRun(3, 3, 2)]


def test_neighbouring_holes_are_one_run_only_for_one_reason() -> None:
    """S-125: across entries, gap items and hops alike."""
    held = filled(1, 1, 1)
    held.mark_lost(2, 3, 3)
    held.append_gap(5, 5, 3, 1)
    held.append_gap(2000, 5, 3, 2)
    held.append_gap(1, 5, 3)
    held.append_gap(1, 5, 2)
    held.append_gap(1, 5, 0)
    held.append_gap(1, 5, 2)
    assert held.holes(1, held.end) == [DeadRun(2, 2009, 3), DeadRun(2010, 2010, 2), DeadRun(2012, 2012, 2)]
    assert held.holes(4, 2008) == [DeadRun(4, 2008, 3)]
    assert held.dead_runs(1, held.end) == [*held.holes(1, 2010), DeadRun(2011, 2011, 0), DeadRun(2012, 2012, 2)]
    assert held.dead_runs(1, held.end, 2) == [DeadRun(2, 2009, 3)]


def test_deleted_records_in_a_row_are_found_as_the_long_run_they_have_become() -> None:
    """S-129: a long silent run ends its segment, however it came about."""
    held = Tail(1)
    held.extend(*batch([1] * 6000, 1))
    held.mark_deleted(np.delete(np.arange(10, 5001, dtype=np.uint64), [90]))
    assert held.dead_runs(1, held.end, 1025) == [DeadRun(101, 5000, 0)]
    assert held.holes(1, held.end) == []


def test_eviction_passes_over_deleted_records_without_moving_the_floor() -> None:
    """S-260, FLR-4."""
    held = filled(10, 20, 30, 40)
    held.mark_deleted(seqs(2, 4))
    assert held.evict(1, 1, 0) == Eviction(2, 1, 10)
    assert held.evict(1, 0, 11) == Eviction(4, 2, 40)
    assert held.evict(1, 2, 5) == Eviction(4, 2, 40)
    assert held.evict(1, 9, 0) == Eviction(4, 2, 40)
    assert held.evict(1, 0, 0) == held.evict(1, -3, -7) == Eviction(1, 0, 0)
    assert held.evict(4, 1, 1) == Eviction(4, 0, 0)


def test_a_record_expires_below_the_limit_and_only_live_ones_count() -> None:
    """S-263: expired = now − ts > ttl, that is ts < now − ttl."""
    held = filled(1, 1, ts=10)
    held.extend(*batch([1, 1], 3, 20))
    held.append_gap(2000, 20, 3)
    held.extend(*batch([1], held.end + 1, 30))
    assert held.expired_through(10) is None
    assert held.expired_through(-5) is None
    assert held.expired_through(11) == held.expired_through(20) == 2
    assert held.expired_through(21) == held.expired_through(30) == 4
    assert held.expired_through(31) == held.expired_through(2**70) == held.end
    held.mark_deleted(seqs(4))
    assert held.expired_through(30) == 3
    assert held.expired_through(30, 3) == 3
    assert held.expired_through(30, 4) is None


def test_the_oldest_location_is_that_of_the_first_frame_or_gap_in_a_wal_file() -> None:
    """S-192: deleted ones are needed too; derived records lie in no file."""
    held = Tail(1)
    held.extend(batch([1, 1], 1)[0], [pack(tail.NOWHERE, 1), pack(tail.NOWHERE, 2)])
    assert held.oldest_location() is None
    held.append_gap(5000, 5, 3, location=pack(9, 700))
    held.extend(*batch([1, 1], held.end + 1, reference=9, at=800))
    held.extend(*batch([1, 1], held.end + 1, reference=12))
    held.mark_deleted(seqs(held.end - 1))
    assert held.oldest_location() == pack(9, 700)
    assert held.oldest_locations() == {9: pack(9, 700), 12: pack(12, 0)}
    held.drop_through(5003)
    assert held.oldest_location() == pack(9, 800 + len(frames_of([1], 1, 5)))
    held.drop_through(5004)
    assert held.oldest_locations() == {12: pack(12, 0)}
    held.drop_through(held.end)
    assert held.oldest_location() is None


def test_a_part_of_a_dropped_gap_is_still_located() -> None:
    """S-192: recovery adds only what of a Gap lies above the present end."""
    held = Tail(1)
    held.append_gap(5000, 5, 3, location=pack(2, 64))
    held.drop_through(4990)
    assert list(held.runs(1, 9999)) == [GapRun(4991, 10, 5, 3, 0, pack(2, 64))]
    assert held.oldest_location() == pack(2, 64)


def test_a_tail_starts_anew_behind_segments_or_a_cut_that_reach_further() -> None:
    """06 §14: an attach ends above the tail, a destination's cut below it."""
    held = filled(1, 2, ts=50)
    held.drop_through(10)
    assert (held.first, held.end, held.records, held.nbytes) == (11, 10, 0, 0)
    held.extend(*batch([3], 11, ts=5))
    assert held.cut_after(4) == Live(1, 3)
    assert (held.first, held.end) == (5, 4)
    held.extend(*batch([1], 5, ts=2))
    assert held.live(0, 9) == Live(1, 1)


def test_entries_that_break_the_order_of_time_or_have_no_frame_are_a_bug() -> None:
    """S-104, S-123."""
    held = filled(1, ts=50)
    live = segment.IDX.itemsize
    for wrong in (
        batch([1], 2, ts=49)[0],
        batch([1], 2, ts=60)[0] + batch([1], 3, ts=59)[0],
        bytes(8) + (50).to_bytes(8, "little") + bytes(4),
        batch([1], 2, ts=50)[0] + bytes(8) + (50).to_bytes(8, "little") + bytes(4),
        b"\x01" + batch([1], 2, ts=50)[0][1:],
    ):
        with pytest.raises(AssertionError):
            held.extend(wrong, [1] * (len(wrong) // live))
    assert (held.end, held.records) == (1, 1)
    with pytest.raises(AssertionError):
        held.extend(batch([1], 2, ts=50)[0], [1, 2])
    with pytest.raises(AssertionError):
        held.mark_deleted(seqs(1, 1))


@pytest.mark.parametrize("seed", range(4))
def test_searches_in_a_long_tail_with_few_live_records_agree_with_a_scan(seed: int) -> None:
    """S-260, S-263: blocks of full size, in which the next live record is near, far, or in another block."""
    rng = np.random.default_rng(seed)
    count = 20_000
    held = Tail(1)
    sizes = rng.integers(1, 30, count)
    for first in range(1, count + 1, 1000):
        held.extend(*batch(sizes[first - 1 : first + 999].tolist(), first, ts=first))
    live = rng.random(count) < rng.choice([0.0005, 0.01, 0.9], 20).repeat(1000)
    numbers = np.arange(1, count + 1, dtype=np.uint64)
    assert held.mark_deleted(numbers[~live]).bytes == sizes[~live].sum(), f"seed {seed}"
    for _ in range(200):
        from_seq, need_records, need_bytes, limit = rng.integers(0, [count, 9000, 90_000, count + 10]).tolist()
        rest = numbers[live & (numbers >= from_seq)]
        freed = sizes[rest.astype(np.int64) - 1].cumsum()
        taken = min(max(need_records, int(np.searchsorted(freed, need_bytes)) + 1 if need_bytes else 0), len(rest))
        expected = (int(rest[taken - 1]) + 1, taken, int(freed[taken - 1])) if taken else (from_seq, 0, 0)
        assert held.evict(from_seq, need_records, need_bytes) == expected, f"seed {seed}"
        assert held.lowest_live(from_seq) == (int(rest[0]) if len(rest) else None), f"seed {seed}"
        expired = rest[(rest - np.uint64(1)) // np.uint64(1000) * np.uint64(1000) + np.uint64(1) < limit]
        assert held.expired_through(limit, from_seq) == (int(expired[-1]) if len(expired) else None), f"seed {seed}"


# Answers, memory, cost.


def test_answers_are_copies_that_neither_change_nor_keep_the_tail_from_growing() -> None:
    """06 §10: a read takes its view in one stretch and uses it while writes, deletes, cuts and checkpoints go on."""
    held = filled(*[3] * 10)
    marked = held.mark_deleted(seqs(1))
    kept = entry_runs(held, 1, 10)
    expected = [(run.entries.tobytes(), run.locations.tobytes()) for run in kept]
    walk = held.runs(1, 10)
    next(walk)
    held.extend(*batch([5] * 9000, 11, ts=6))
    held.mark_deleted(np.arange(1, 9000, dtype=np.uint64))
    held.cut_after(5)
    held.extend(*batch([9] * 5000, 6, ts=8))
    held.drop_through(3)
    assert [(run.entries.tobytes(), run.locations.tobytes()) for run in kept] == expected
    assert marked.seqs.tolist() == [1]


def test_a_walk_goes_on_over_growth_and_fails_when_its_range_is_gone() -> None:
    """A range that left the tail while it was read would otherwise be skipped without a word."""
    held = filled(*[1] * 5000)
    walk, other = held.runs(1, 5000), held.runs(1, 5000)
    assert [len(run.entries) for run in (next(walk), next(other)) if isinstance(run, EntryRun)] == [4096, 4096]
    held.extend(*batch([1] * 5000, 5001))
    held.mark_deleted(seqs(5000))
    rest = next(walk)
    assert isinstance(rest, EntryRun)
    assert (rest.first, rest.first + len(rest.entries)) == (4097, 5001)
    assert rest.entries["flags"][-1] & DELETED
    assert list(walk) == []
    held.drop_through(4097)
    with pytest.raises(AssertionError):
        next(other)


@pytest.mark.parametrize("per_batch", [1, 7, 1000])
def test_a_record_takes_at_most_40_bytes_and_dropping_gives_them_back(per_batch: int) -> None:
    """S-5, S-152."""
    count = 50_000
    batches = [batch([1] * per_batch, 1)] * (count // per_batch)
    tracemalloc.start()
    try:
        base = tracemalloc.get_traced_memory()[0]
        held = Tail(1)
        for entries, locations in batches:
            held.extend(entries, locations)
        full = tracemalloc.get_traced_memory()[0] - base
        held.mark_deleted(np.arange(1, held.end, 2, dtype=np.uint64))
        held.live(1, held.end)
        marked = tracemalloc.get_traced_memory()[0] - base
        held.drop_through(held.end - 100)
        rest = tracemalloc.get_traced_memory()[0] - base
    finally:
        tracemalloc.stop()
    assert full <= 40 * held.end
    assert marked <= 40 * held.end
    assert rest <= 20_000
    assert held.records == 100


def test_a_topic_with_a_few_records_in_its_tail_stays_small() -> None:
    """S-156: 4 KiB for all of a topic without traffic."""
    entry, _ = batch([5], 1)
    found = []
    tracemalloc.start()
    try:
        for _ in range(3):  # what other threads take meanwhile is counted as well
            base = tracemalloc.get_traced_memory()[0]
            held = Tail(1)
            for _ in range(3):
                held.extend(entry, [1])
            found.append(tracemalloc.get_traced_memory()[0] - base)
            del held
    finally:
        tracemalloc.stop()
    assert 0 < min(found) <= 1500


def test_a_batch_costs_the_same_however_long_the_tail_is() -> None:
    """S-108: growth is by batch, without a step per record and without copying what is there."""
    entries, locations = batch([1] * 1000, 1)
    held = Tail(1)
    costs = []
    for _ in range(10):
        began = time.process_time()
        for _ in range(100):
            held.extend(entries, locations)
        costs.append(time.process_time() - began)
    assert sum(costs) < 5, "5 µs per record are more than a step of Python per record"
    assert sorted(costs[5:])[2] < 10 * sorted(costs[:5])[2] + 0.05


# Everything together, against a list.


@dataclass
class Seq:
    """One seq of the model; `reason` is None while live, 0 deleted, else a hole."""

    ts: int
    size: int
    frame_bytes: int
    flags: int
    location: int
    reason: int | None = None
    gap: int = 0

    @property
    def word(self) -> int:
        """Flags and ovh as the entry has them."""
        if self.reason:
            return self.flags | LOST | self.reason << 8
        ovh = self.frame_bytes - tail.WAL_FRAME_EXTRA - self.size if self.frame_bytes else 0
        return self.flags | (DELETED if self.reason == 0 else 0) | ovh << 8


class TailMachine(RuleBasedStateMachine):
    """A tail with tiny blocks, next to a dict of seqs."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(tail, "BLOCK_RECORDS", 7)
        self.patch.setattr(tail, "GAP_ENTRIES_MAX", 5)
        self.seqs: dict[int, Seq] = {}
        self.ts_before = 0
        self.at = 0

    def teardown(self) -> None:
        self.patch.undo()

    @initialize(first=st.sampled_from([1, 2, 1000, 2**53 + 1, 2**63]))
    def start(self, first: int) -> None:
        self.tail = Tail(first)
        self.first = first
        self.next = first

    def live(self, lo: int, hi: int) -> Iterator[tuple[int, Seq]]:
        return ((n, one) for n, one in self.seqs.items() if lo <= n <= hi and one.reason is None)

    @property
    def ts(self) -> int:
        """Of the last seq, also if that was dropped."""
        return max((one.ts for one in self.seqs.values()), default=self.ts_before)

    def place(self, low: int, high: int) -> tuple[int, int]:
        """Seqs at these distances from the ends, also outside."""
        return self.first + low, self.next - 1 - high

    @rule(
        sizes=st.lists(st.integers(1, 60), max_size=20),
        step=st.integers(0, 3),
        hops=st.sampled_from([0, 5]),
        reference=st.integers(0, 3),
        as_list=st.booleans(),
    )
    def extend(self, sizes: list[int], step: int, hops: int, reference: int, as_list: bool) -> None:
        ts = self.ts + step
        raw = frames_of(sizes, self.next, ts, hops=hops)
        rows = frame.scan_frames(raw).rows
        locations = rows["offset"] + np.uint64(pack(reference, self.at))
        self.tail.extend(entries_from_frames(raw, rows)[0], locations.tolist() if as_list else locations)
        self.at += len(raw)
        for row, size, location in zip(rows, sizes, locations.tolist(), strict=True):
            self.seqs[self.next] = Seq(ts, size, int(row["len"]), size % 2 | hops << 4, location)
            self.next += 1

    @rule(count=st.integers(1, 30), reason=st.integers(0, 3), hops=st.sampled_from([0, 8]), step=st.integers(0, 2))
    def gap(self, count: int, reason: int, hops: int, step: int) -> None:
        location, ts = pack(4, self.at), self.ts or step
        self.at += 60
        self.tail.append_gap(count, self.ts + step, reason, hops, location)
        for _ in range(count):
            self.seqs[self.next] = Seq(ts, 0, 0, hops << 4, location, reason, count if count > 5 else 0)
            self.next += 1

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        around = range(max(self.first - 2, 0), self.next + 2)
        chosen = sorted(data.draw(st.sets(st.sampled_from(around), max_size=30)))
        marked = self.tail.mark_deleted(np.array(chosen, np.uint64))
        self.changed(marked, [n for n in chosen if n in self.seqs and self.seqs[n].reason is None], 0)

    @rule(low=st.integers(-3, 20), high=st.integers(-3, 20), reason=st.integers(1, 3))
    def lose(self, low: int, high: int, reason: int) -> None:
        lo, hi = self.place(low, high)
        expected = [n for n, _ in self.live(lo, hi)]
        self.changed(self.tail.mark_lost(lo, hi, reason), expected, reason)

    def changed(self, marked: tail.Marked, expected: list[int], reason: int) -> None:
        assert marked.seqs.tolist() == expected
        assert marked.seqs.dtype == np.uint64
        assert marked[:2] == (len(expected), sum(self.seqs[n].size for n in expected))
        for n in expected:
            self.seqs[n].reason = reason
            if reason:
                self.seqs[n].frame_bytes = 0
                self.seqs[n].flags &= 0xF0

    @rule(low=st.integers(-3, 40))
    def drop(self, low: int) -> None:
        through = min(self.first + low, self.next - 1)
        if through >= self.first:
            self.ts_before = self.seqs[through].ts
            self.first = through + 1
        self.tail.drop_through(through)
        self.seqs = {n: one for n, one in self.seqs.items() if n > through}

    @precondition(lambda self: self.seqs)
    @rule(high=st.integers(-2, 25))
    def cut(self, high: int) -> None:
        seq = max(self.next - 1 - high, self.first - 1)
        cut = [one.size for _, one in self.live(seq + 1, self.next)]
        assert self.tail.cut_after(seq) == (len(cut), sum(cut))
        self.seqs = {n: one for n, one in self.seqs.items() if n <= seq}
        self.next = min(self.next, seq + 1)

    @rule(low=st.integers(-3, 40), high=st.integers(-3, 40))
    def ask_ranges(self, low: int, high: int) -> None:
        lo, hi = self.place(low, high)
        sizes = [one.size for _, one in self.live(lo, hi)]
        assert self.tail.live(lo, hi) == (len(sizes), sum(sizes))
        self.check_runs(lo, hi)
        dead = self.dead_runs(lo, hi)
        assert self.tail.dead_runs(lo, hi) == dead
        assert self.tail.dead_runs(lo, hi, 4) == [run for run in dead if run.last - run.first >= 3]
        assert self.tail.holes(lo, hi) == [run for run in dead if run.reason]

    def dead_runs(self, lo: int, hi: int) -> list[DeadRun]:
        runs: list[DeadRun] = []
        for n, one in self.seqs.items():
            if not lo <= n <= hi or one.reason is None:
                continue
            if runs and runs[-1].last == n - 1 and runs[-1].reason == one.reason:
                runs[-1] = runs[-1]._replace(last=n)
            else:
                runs.append(DeadRun(n, n, one.reason))
        return runs

    def check_runs(self, lo: int, hi: int) -> None:
        expected = {n: one for n, one in self.seqs.items() if lo <= n <= hi}
        at = max(lo, self.first)
        for run in self.tail.runs(lo, hi):
            assert run.first == at
            if isinstance(run, GapRun):
                for n in range(at, at + run.seqs):
                    one = expected.pop(n)
                    assert one.gap
                    assert run[2:] == (one.ts, one.reason, one.flags >> 4, one.location)
                at += run.seqs
                continue
            assert 0 < len(run.entries) == len(run.locations) <= 7
            for n, entry, location in zip(range(at, 2**64), run.entries.tolist(), run.locations.tolist(), strict=False):
                one = expected.pop(n)
                size = one.frame_bytes - tail.WAL_FRAME_EXTRA if one.frame_bytes else 0
                assert not one.gap
                assert entry == (0, size, one.ts, one.word & 0xFF, one.word)
                assert location == one.location
            at += len(run.entries)
        assert not expected

    @rule(low=st.integers(-3, 40), need_records=st.integers(-1, 40), need_bytes=st.integers(-1, 900))
    def ask_for_an_eviction(self, low: int, need_records: int, need_bytes: int) -> None:
        from_seq = self.first + low
        expected = Eviction(from_seq, 0, 0)
        for n, one in self.live(from_seq, self.next):
            if expected.records >= need_records and expected.bytes >= need_bytes:
                break
            expected = Eviction(n + 1, expected.records + 1, expected.bytes + one.size)
        assert self.tail.evict(from_seq, need_records, need_bytes) == expected

    @rule(low=st.integers(-3, 40), back=st.integers(-2, 8))
    def ask_for_live_ones(self, low: int, back: int) -> None:
        from_seq, limit = self.first + low, self.ts - back
        live = list(self.live(from_seq, self.next))
        assert self.tail.lowest_live(from_seq) == min((n for n, _ in live), default=None)
        expired = [n for n, one in live if one.ts < limit]
        assert self.tail.expired_through(limit, from_seq) == max(expired, default=None)

    @invariant()
    def sums_agree(self) -> None:
        if not hasattr(self, "tail"):
            return
        held = self.tail
        assert (held.first, held.end) == (self.first, self.next - 1)
        sizes = [one.size for _, one in self.live(self.first, self.next)]
        assert held.live(0, 2**64) == (len(sizes), sum(sizes))
        assert held.nbytes == sum(one.frame_bytes for one in self.seqs.values())
        gaps = {one.location for one in self.seqs.values() if one.gap}
        assert held.records == sum(not one.gap for one in self.seqs.values()) + len(gaps)
        assert all(a.ts <= b.ts for a, b in pairwise(self.seqs.values()))
        oldest: dict[int, int] = {}
        for one in self.seqs.values():
            if one.location >> 40:
                oldest.setdefault(one.location >> 40, one.location)
        assert held.oldest_locations() == oldest
        assert list(held.oldest_locations()) == list(oldest)
        assert held.oldest_location() == next(iter(oldest.values()), None)


TestTailAgainstAList = TailMachine.TestCase
TestTailAgainstAList.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)


@given(
    st.lists(st.integers(1, 40), max_size=9), st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(0, 500)
)
def test_a_tail_that_was_made_ahead_is_taken_in_as_if_it_had_been_written_entry_by_entry(
    before: list[int], ahead: list[int], at: int
) -> None:
    """S-287: locations count from where the frames come to lie."""
    plain, taken, first = Tail(7), Tail(7), 7 + len(before)
    for one in (plain, taken):
        if before:
            one.extend(*batch(before, 7))
    entries, offsets = batch(ahead, first, reference=0)
    ready = Tail(first)
    ready.extend(entries, offsets)
    taken.take(ready, pack(3, at))
    plain.extend(entries, offsets + np.uint64(pack(3, at)))
    behind = batch([5, 6], first + len(ahead), ts=9)
    for one in (plain, taken):
        one.extend(*behind)
    assert (taken.end, taken.records, taken.nbytes) == (plain.end, plain.records, plain.nbytes)
    assert taken.live(7, taken.end) == plain.live(7, plain.end)
    for name in ("entries", "locations"):
        parts = [b"".join(getattr(run, name).tobytes() for run in one.runs(7, one.end)) for one in (plain, taken)]
        assert parts[0] == parts[1]


def shown(held: Tail, last: int) -> list[tuple[int, bytes, bytes]]:
    return [(run.first, run.entries.tobytes(), run.locations.tobytes()) for run in entry_runs(held, 1, last)]


def test_a_frozen_tail_stays_what_it_was_while_the_tail_changes() -> None:
    """06 §12 step 1: a checkpoint writes what was there when it began, on another thread [S-158]."""
    count = 2 * BLOCK_RECORDS + 10
    held = filled(*[1] * count)
    frozen = held.frozen()
    before = shown(frozen, count)
    held.mark_deleted(seqs(5, BLOCK_RECORDS + 7, count))
    held.relocate([(6, 6, 7)])
    held.mark_lost(9, 9, 1)
    held.extend(*batch([1] * 20, count + 1))
    assert (frozen.end, shown(frozen, count)) == (count, before)
    assert held.deleted_since(frozen).tolist() == [5, BLOCK_RECORDS + 7, count]
    held.drop_through(count)
    held.cut_after(count + 3)
    assert (frozen.end, shown(frozen, count)) == (count, before)
    assert (held.first, held.end, held.records) == (count + 1, count + 3, 3)


def test_what_a_tail_needs_of_the_log_is_known_also_when_a_full_block_changes() -> None:
    """S-192: the first location in each file, though it is not looked for again in blocks that stay the same."""
    held = filled(*[1] * BLOCK_RECORDS)
    assert held.oldest_locations() == {1: pack(1, 0)}
    assert held.oldest_locations() == {1: pack(1, 0)}
    held.relocate([(1, BLOCK_RECORDS - 1, pack(2, 5))])
    last = (BLOCK_RECORDS - 1) * len(frames_of([1], 1, 5))
    assert set(held.oldest_locations()) == {1, 2}
    assert held.oldest_locations()[2] == pack(2, 5)
    assert held.oldest_locations()[1] >= pack(1, last)


@pytest.mark.parametrize("through", [1, BLOCK_RECORDS, BLOCK_RECORDS + 1, 3 * BLOCK_RECORDS - 1, 3 * BLOCK_RECORDS + 2])
def test_sums_are_right_whichever_part_of_a_tail_goes(through: int) -> None:
    """S-153."""
    held = filled(*[1, 2] * (3 * BLOCK_RECORDS // 2))
    held.append_gap(5000, 9, 1)
    held.extend(*batch([1, 2, 3], held.end + 1))
    held.drop_through(through)
    rest = Tail(held.first)
    for run in held.runs(1, held.end):
        if isinstance(run, GapRun):
            rest.append_gap(run.seqs, run.ts, run.reason)
        else:
            rest.extend(run.entries.tobytes(), run.locations)
    assert (held.records, held.nbytes) == (rest.records, rest.nbytes)
