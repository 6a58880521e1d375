"""Reading: cursors, filters, budgets, and what is told about what is gone (01 §6, §7, §10, §12, §13; 02 §5)."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, gap, numbers, seqs, write
from topics.model import new

MIB = 2**20


def page(engine: Any, from_seq: int = 0, **options: Any) -> Any:
    """A page that keeps the promises of every page."""
    result = engine.read(TOPIC, from_seq, **options)
    kit.check_page(result, from_seq)
    return result


def position(result: Any) -> tuple[int, bool, int]:
    return result.next_from_seq, result.caught_up, result.lag


# Cursors


@kit.at_every_place
def test_a_cursor_is_an_exclusive_lower_bound(place: str) -> None:
    """[CUR-1, CUR-2, CUR-4]"""
    store = Store(place)
    kit.each(store.put(), 7)
    engine = store.settle()
    for cursor in range(8):
        result = page(engine, cursor)
        assert seqs(result) == list(range(cursor + 1, 8))
        assert (result.head_seq, result.earliest_seq, result.tombstone) == (7, 1, None)
        assert position(result) == (7, True, 0)


def test_reading_an_empty_topic_is_being_caught_up() -> None:
    """[CUR-2, CUR-5, STA-2]"""
    engine = Store().put()
    result = page(engine)
    assert (seqs(result), result.head_seq, result.earliest_seq, result.tombstone) == ([], 0, 1, None)
    assert position(result) == (0, True, 0)


def test_a_reader_leaves_no_trace_but_its_time() -> None:
    """[CUR-3]"""
    engine = Store().put()
    kit.each(engine, 3)
    assert page(engine) == page(engine)
    assert numbers(engine) == (3, 1, 3, 3)


@kit.at_every_place
@pytest.mark.parametrize("limit", [1, 2, 3, 5])
def test_pages_follow_each_other_without_overlap_or_omission(place: str, limit: int) -> None:
    """[PAG-1, SEQ-3, RD-4]: each page ends with the last record it delivered."""
    store = Store(place)
    kit.each(store.put(), 11)
    engine = store.settle()
    cursor, got = 0, []
    while True:
        result = page(engine, cursor, limit=limit)
        assert len(result.records) == min(limit, 11 - cursor)
        assert result.next_from_seq == cursor + len(result.records)
        assert result.lag == 11 - result.next_from_seq
        got += kit.values(result)
        cursor = result.next_from_seq
        if result.caught_up:
            break
    assert got == list(range(1, 12))


@pytest.mark.parametrize(
    ("limit", "delivered"), [(0, 256), (1, 1), (256, 256), (1000, 1000), (1001, 1000), (2**32 - 1, 1000)]
)
def test_the_limit_is_clamped_and_never_refused(limit: int, delivered: int) -> None:
    """[RD-6]"""
    engine = Store().put()
    engine.append(TOPIC, [new(0)] * 1100)
    result = page(engine, limit=limit)
    assert len(result.records) == delivered
    assert position(result) == (delivered, False, 1100 - delivered)


def test_without_a_limit_a_read_delivers_256_records() -> None:
    """[RD-6]"""
    engine = Store().put()
    engine.append(TOPIC, [new(0)] * 300)
    assert len(page(engine).records) == 256


def test_the_limit_of_reads_can_be_set_and_lowers_the_default() -> None:
    """[LIM-1]"""
    engine = Store(max_limit=10).put()
    engine.append(TOPIC, [new(0)] * 30)
    assert len(page(engine).records) == 10
    assert len(page(engine, limit=11).records) == 10
    assert len(page(engine, limit=9).records) == 9


@pytest.mark.parametrize("bad", [-1, 2**64, True, 1.0, "5", None, [1]])
def test_a_bad_cursor_is_refused(bad: Any) -> None:
    """[DIF-1, API-12]"""
    engine = Store().put()
    with kit.invalid_request():
        engine.read(TOPIC, bad)


@pytest.mark.parametrize(
    "bad",
    [
        {"limit": -1},
        {"limit": True},
        {"limit": 2.0},
        {"limit": "3"},
        {"max_bytes": -1},
        {"max_bytes": 2**64},
        {"max_bytes": 1.5},
        {"wait_ms": -1},
        {"wait_ms": True},
        {"from_ts": -1},
        {"from_ts": "now"},
        {"from_ts": 1.5},
        {"node": 5},
        {"node": [5]},
        {"node": [None]},
        {"node": {"a": 5}.values()},
        {"node": "\ud800"},
        {"node": [f"n{n}" for n in range(65)]},
        {"node": "n" * 129},
        {"node": ["n" * 129]},
    ],
    ids=lambda bad: ascii(bad)[:40],
)
def test_bad_options_of_a_read_are_refused(bad: dict[str, Any]) -> None:
    """[DIF-1, API-12], 02 §1.9"""
    engine = Store().put()
    write(engine, 1)
    with kit.invalid_request():
        engine.read(TOPIC, **bad)


def test_the_largest_cursor_is_legal_and_lies_behind_every_head() -> None:
    """[GEN-2, EPO-3]"""
    engine = Store().put()
    kit.each(engine, 3)
    result = page(engine, kit.U64_MAX)
    assert gap(result) == (1, 3, "recreated")
    assert result.tombstone.missed_estimate == 3
    assert seqs(result) == [1, 2, 3]
    assert position(result) == (3, True, 0)


# Start by time


@kit.at_every_place
def test_a_read_may_start_at_a_time(place: str) -> None:
    """02 §5: just before the first record with a timestamp at or after it."""
    store = Store(place)
    engine = store.put()
    start = store.clock.now_ms()
    for _ in range(4):
        write(engine, "a", "b")
        store.clock.advance(10)
    engine = store.settle()
    for after, first in [(-start, 1), (-1, 1), (0, 1), (1, 3), (9, 3), (10, 3), (11, 5), (30, 7)]:
        result = engine.read(TOPIC, from_ts=start + after)
        assert seqs(result) == list(range(first, 9)), after
        assert result.tombstone is None
    late = engine.read(TOPIC, from_ts=start + 31)
    assert (seqs(late), late.tombstone, late.caught_up) == ([], None, True)
    assert engine.read(TOPIC, from_ts=2**53).caught_up


def test_a_read_starts_at_a_seq_or_at_a_time_and_not_at_both() -> None:
    """02 §5"""
    engine = Store().put()
    write(engine, 1)
    with kit.invalid_request():
        engine.read(TOPIC, 1, from_ts=5)


# The byte budget


@kit.at_every_place
def test_a_page_ends_before_the_record_that_would_exceed_its_budget(place: str) -> None:
    """[RD-5]: at the budget, and one byte below it; the first record is always delivered."""
    store = Store(place)
    engine = store.put()
    for n in (1, 10, 100, 1000):
        write(engine, n)
    engine = store.settle()
    for budget, delivered in [(1, 1), (2, 1), (3, 2), (5, 2), (6, 3), (9, 3), (10, 4), (11, 4)]:
        result = page(engine, max_bytes=budget)
        assert seqs(result) == list(range(1, delivered + 1)), budget
        assert position(result) == (delivered, delivered == 4, 4 - delivered)
    assert seqs(page(engine, 3, max_bytes=1)) == [4]


@kit.at_every_place
def test_the_budget_leaves_the_cursor_directly_before_the_record_it_stopped_at(place: str) -> None:
    """[RD-3, RD-5, CUR-4]: what was skipped on the way there is behind it."""
    store = Store(place)
    engine = store.put()
    engine.append(TOPIC, [new("aaaa"), new(0, node="own"), new(0, tag="x"), new("bbbb")])
    engine.delete(TOPIC, match="x")
    engine = store.settle()
    result = page(engine, max_bytes=6, node="own")
    assert seqs(result) == [1]
    assert position(result) == (3, False, 1)


def test_skipped_records_cost_nothing_of_the_budget() -> None:
    """[RD-5, NOD-1]"""
    engine = Store().put()
    engine.append(TOPIC, [new("x" * 50, node="own"), new(1), new("x" * 50, node="own"), new(2)])
    assert seqs(page(engine, max_bytes=2, node="own")) == [2, 4]


def test_the_budget_is_one_mebibyte_unless_told_and_eight_at_most() -> None:
    """[RD-6]"""
    engine = Store().put()
    for _ in range(9):
        write(engine, "x" * (MIB - 2))
    assert seqs(page(engine)) == [1]
    assert seqs(page(engine, max_bytes=0)) == [1]
    assert seqs(page(engine, max_bytes=2 * MIB - 1)) == [1]
    assert seqs(page(engine, max_bytes=2 * MIB)) == [1, 2]
    assert seqs(page(engine, max_bytes=kit.U64_MAX)) == list(range(1, 9))


# Node filters


@kit.at_every_place
def test_records_of_the_readers_own_nodes_are_skipped_silently(place: str) -> None:
    """[NOD-1, NOD-2, RD-3, TMB-3]: one id or several; records without a node are never skipped."""
    store = Store(place)
    engine = store.put()
    for n, node in enumerate(["a", "b", None, "", "A", "a", "aa", "b"], 1):
        write(engine, n, node=node)
    engine = store.settle()
    expected = {
        "a": [2, 3, 4, 5, 7, 8],
        "b": [1, 3, 4, 5, 6, 7],
        "": [1, 2, 3, 5, 6, 7, 8],
        "none": list(range(1, 9)),
    }
    for node, left in expected.items():
        result = page(engine, node=node)
        assert seqs(result) == left
        assert result.tombstone is None
        # Skipped seqs at the end advance the cursor too.
        assert position(result) == (8, True, 0)
    for several in (["a", "b"], {"a", "b"}, ("b", "a", "a"), iter(["a", "b"])):
        result = page(engine, node=several)
        assert seqs(result) == [3, 4, 5, 7]
        assert position(result) == (8, True, 0)
    assert seqs(page(engine, node=[])) == list(range(1, 9))
    assert seqs(page(engine, node=None)) == list(range(1, 9))


def test_a_page_of_own_records_only_is_empty_and_moves_on() -> None:
    """[CUR-4, CUR-5, RD-3]"""
    engine = Store().put()
    kit.each(engine, 5, node="own")
    result = page(engine, 2, node="own")
    assert seqs(result) == []
    assert position(result) == (5, True, 0)


@kit.at_every_place
def test_a_page_ends_with_the_last_record_its_limit_allows(place: str) -> None:
    """[RD-4, CUR-4]: own records behind it are not examined any more."""
    store = Store(place)
    engine = store.put()
    for n in range(1, 9):
        write(engine, n, node="own" if n % 2 else None)
    engine = store.settle()
    result = page(engine, limit=2, node="own")
    assert seqs(result) == [2, 4]
    assert position(result) == (4, False, 4)
    result = page(engine, 4, limit=2, node="own")
    assert seqs(result) == [6, 8]
    assert position(result) == (8, True, 0)


def test_a_topic_can_switch_node_filtering_off() -> None:
    """[NOD-4]"""
    store = Store()
    engine = store.put(dedupe_node=False)
    kit.each(engine, 3, node="own")
    assert seqs(page(engine, node="own")) == [1, 2, 3]
    store.put()
    assert seqs(page(engine, node="own")) == []


def test_a_filter_has_at_most_64_ids_of_at_most_128_bytes() -> None:
    """02 §1.9"""
    engine = Store().put()
    write(engine, 1, node="n63")
    assert seqs(page(engine, node=[f"n{n}" for n in range(64)])) == []
    assert seqs(page(engine, node="n" * 128)) == [1]


@pytest.mark.parametrize("place", ["tail", "active", "sealed"])
def test_a_reader_gets_through_any_number_of_records_it_skips(place: str) -> None:
    """[RD-4, INV-10]: a page may end after 10 000 examined seqs, not before; then it is not caught up."""
    store = Store(place, segment_max_events=4000 if place == "sealed" else 100_000)
    engine = store.put()
    for _ in range(5):
        engine.append(TOPIC, [new(0, node="own")] * 5000)
    write(engine, "other")
    engine = store.settle()
    cursor, pages = 0, 0
    while True:
        result = page(engine, cursor, node="own")
        pages += 1
        assert result.next_from_seq - cursor >= min(10_000, 25_001 - cursor)
        cursor = result.next_from_seq
        if result.records:
            break
        assert not result.caught_up
    assert kit.values(result) == ["other"]
    assert position(result) == (25_001, True, 0)
    assert pages <= 3


@pytest.mark.parametrize("mmap", [True, False])
def test_few_maps_and_descriptors_serve_many_segments(mmap: bool, tmp_path: Path) -> None:
    """[S-155, S-170]: on the real disk; records, deletes by tag and a restart."""
    options: dict[str, Any] = {
        "segment_max_events": 2,
        "segment_mmap": mmap,
        "max_maps": 2,
        "max_fds": 4,
        "recent_cache_bytes": 0,
    }
    with kit.open_real(tmp_path / "store", **options) as engine:
        engine.put_topic(TOPIC, {"durability": "fsync"})
        for n in range(1, 81):
            write(engine, n, tag=f"t{n % 5}")
        engine.checkpoint(full=True)
        assert kit.everything(engine).values == list(range(1, 81))
        assert engine.delete(TOPIC, match="t3").deleted == 16
        left = [n for n in range(1, 81) if n % 5 != 3]
        assert kit.everything(engine, limit=7).values == left
        readers = [kit.spawn(lambda: kit.everything(engine, limit=5).values) for _ in range(4)]
        assert kit.finish(readers) == [left] * 4
    with kit.open_real(tmp_path / "store", **options) as engine:
        assert kit.everything(engine).values == left
        assert engine.delete(TOPIC, match="t*").deleted == 64


@pytest.mark.parametrize(("max_fds", "kept"), [(0, 0), (4, 4), (300, 300), (None, 301)])
def test_as_many_log_files_stay_open_for_reading_as_the_setting_says(
    max_fds: int | None, kept: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-155] Also more than a few hundred; without a setting up to 4096."""
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (20_000, 20_000))
    options: dict[str, Any] = {"wal_file_bytes": 65_536, "recent_cache_bytes": 0, "max_fds": max_fds}
    engine = Store(**options, checkpoint_ms=3_600_000, wal_retain_files=1000).put(durability="memory")
    for _ in range(301):
        write(engine, "x" * 40_000)
    assert len(kit.everything(engine).values) == 301
    assert engine.core.wal is not None
    assert len(engine.core.wal.reader._descriptors) == kept


# Floors and tombstones


@kit.at_every_place
def test_the_worked_example_of_the_two_floors(place: str) -> None:
    """01 §7, literally."""
    store = Store(place)
    engine = store.put(cap_records=4, discard="old")
    kit.each(engine, 9)
    assert numbers(engine) == (9, 6, 4, 4)
    engine.delete(TOPIC, before_seq=8)
    engine = store.settle()
    assert numbers(engine) == (9, 8, 2, 2)
    told = page(engine, 2)
    assert gap(told) == (3, 5, "cap")
    assert told.tombstone.missed_estimate == 3
    assert (told.tombstone.earliest_seq, told.earliest_seq) == (6, 8)
    assert seqs(told) == [8, 9]
    silent = page(engine, 5)
    assert (gap(silent), seqs(silent)) == (None, [8, 9])


@kit.at_every_place
def test_a_loss_before_the_cursor_is_told_exactly_and_only_then(place: str) -> None:
    """[FLR-6, TMB-1, TMB-2, INV-5]: for every cursor."""
    store = Store(place)
    engine = store.put(cap_records=3)
    kit.each(engine, 8)
    engine = store.settle()
    for cursor in range(9):
        result = page(engine, cursor)
        assert gap(result) == ((cursor + 1, 5, "cap") if cursor < 5 else None)
        assert seqs(result) == list(range(max(cursor, 5) + 1, 9))
        assert result.earliest_seq == 6


def test_a_tombstone_consumes_nothing_of_the_limit() -> None:
    """[TMB-4]"""
    engine = Store().put(cap_records=3)
    kit.each(engine, 8)
    result = page(engine, limit=1)
    assert gap(result) == (1, 5, "cap")
    assert seqs(result) == [6]
    assert position(result) == (6, False, 2)
    assert gap(page(engine, 6, limit=1)) is None


def test_when_everything_is_lost_the_cursor_moves_behind_the_loss() -> None:
    """[CUR-4, RD-1]: nothing is examined, so the cursor is the effective start."""
    store = Store()
    engine = store.put(ttl_ms=10)
    kit.each(engine, 5)
    store.clock.advance(11)
    result = page(engine, 2)
    assert gap(result) == (3, 5, "ttl")
    assert (seqs(result), result.earliest_seq) == ([], 6)
    assert position(result) == (5, True, 0)
    assert gap(page(engine, 5)) is None


@kit.at_every_place
def test_the_reason_names_the_causes_that_reach_the_gap(place: str) -> None:
    """01 §10: `cap`, `ttl`, or `mixed` when both do. After a restart it is best effort, the range is exact [TMB-5]."""
    store = Store(place)
    engine = store.put(cap_records=3, ttl_ms=1000)
    kit.each(engine, 4)
    store.clock.advance(500)
    kit.each(engine, 2, start=5)
    assert numbers(engine) == (6, 4, 3, 3)
    store.clock.advance(501)
    assert numbers(engine) == (6, 5, 2, 2)
    exact = place in ("tail", "active", "sealed", "ram")
    engine = store.settle()
    if place == "trimmed":
        # Meanwhile the rest has expired too.
        assert (gap(page(engine, 1)) or ())[:2] == (2, 6)
        return
    for cursor, told in [(0, (1, 4, "mixed")), (2, (3, 4, "mixed")), (3, (4, 4, "ttl"))]:
        result = page(engine, cursor)
        assert (gap(result) or ())[:2] == told[:2]
        assert not exact or gap(result) == told
        assert seqs(result) == [5, 6]
    assert gap(page(engine, 4)) is None


@kit.at_every_place
def test_deletes_are_silent_wherever_the_cursor_is(place: str) -> None:
    """[TMB-3, FLR-3, INV-6]"""
    store = Store(place)
    engine = store.put()
    kit.tagged(engine, "x", None, "x", "x", None, "x", "x")
    engine.delete(TOPIC, match="x")
    engine.delete(TOPIC, before_seq=3)
    engine = store.settle()
    for cursor in range(8):
        result = page(engine, cursor)
        assert gap(result) is None
        assert seqs(result) == ([5] if cursor < 5 else [])
        assert position(result) == (7, True, 0)
        assert result.earliest_seq == 5


@kit.at_every_place
def test_eviction_passes_over_deleted_records_without_telling_them(place: str) -> None:
    """[FLR-1, FLR-4]: only a record that was live when it went moves a loss mark."""
    store = Store(place)
    engine = store.put(cap_records=2)
    kit.each(engine, 2)
    engine.delete(TOPIC, seqs=[1, 2])
    kit.each(engine, 2, start=3)
    assert gap(page(engine)) is None
    write(engine, 5)
    engine = store.settle()
    assert gap(page(engine)) == (1, 3, "cap")
    assert gap(page(engine, 2)) == (3, 3, "cap")
    assert gap(page(engine, 3)) is None


def test_expiry_passes_over_deleted_records_without_telling_them() -> None:
    """[FLR-4], 01 §18.5"""
    store = Store()
    engine = store.put(ttl_ms=10)
    kit.each(engine, 4)
    engine.delete(TOPIC, seqs=[3, 4])
    store.clock.advance(11)
    assert gap(page(engine)) == (1, 2, "ttl")
    assert gap(page(engine, 2)) is None
    store.put("only-deleted", ttl_ms=10)
    write(engine, 1, name="only-deleted")
    engine.delete("only-deleted", seqs=[1])
    store.clock.advance(11)
    assert engine.read("only-deleted").tombstone is None


# A cursor of another instance


@pytest.mark.parametrize("cursor", [1, 5, kit.U64_MAX])
def test_a_cursor_behind_the_head_of_an_empty_topic_is_told_with_an_empty_range(cursor: int) -> None:
    """[EPO-3], 01 §18.7"""
    engine = Store().put()
    result = page(engine, cursor)
    told = result.tombstone
    assert (told.gap_from, told.gap_to, told.reason, told.missed_estimate) == (1, 0, "recreated", 0)
    assert (told.earliest_seq, told.head_seq, seqs(result)) == (1, 0, [])
    assert position(result) == (0, True, 0)


@kit.at_every_place
def test_a_cursor_behind_the_head_starts_over_with_the_first_live_record(place: str) -> None:
    """[EPO-3, TMB-2]: `recreated` before any other reason; equality is being caught up."""
    store = Store(place)
    engine = store.put(cap_records=3)
    kit.each(engine, 5)
    engine.delete(TOPIC, seqs=[3])
    engine = store.settle()
    result = page(engine, 6)
    told = result.tombstone
    assert (told.gap_from, told.gap_to, told.reason, told.missed_estimate) == (1, 5, "recreated", 5)
    assert (told.earliest_seq, told.head_seq) == (4, 5)
    assert seqs(result) == [4, 5]
    assert gap(page(engine, 5)) is None
    # With a limit the reader goes on from where the page ended.
    assert position(page(engine, 6, limit=1)) == (4, False, 1)


# Holes: a `disk` tail that went with the machine


def test_a_lost_disk_tail_is_told_as_one_run_and_nothing_else_is_missing() -> None:
    """[DUR-4, FLR-5, A-16]"""
    store = Store()
    first, last = kit.lose_tail(store, kept=2, lost=3)
    engine = store.engine
    assert first == 3
    assert last >= 5
    assert numbers(engine) == (last, 1, 2, 2)
    before = page(engine)
    assert (seqs(before), gap(before)) == ([1, 2], None)
    assert position(before) == (2, False, last - 2)
    at = page(engine, 2)
    assert (seqs(at), gap(at)) == ([], (3, last, "crash"))
    assert position(at) == (last, True, 0)


def lossy(place: str = "tail", **options: Any) -> tuple[Any, int, int]:
    """A topic with two records, a run of lost ones, and two records behind it, at its place; the run."""
    store = Store(place, **options)
    first, last = kit.lose_tail(store, kept=2, lost=2)
    kit.each(store.engine, 2, start=last + 1)
    if place == "crashed":
        # Only what a class promises: the records behind the run must be synced.
        store.pass_time(2000)
        store.pass_time(11_000)
    return store, first, last


HOLE_PLACES = [place for place in kit.PLACES if place != "ram"]


@pytest.mark.parametrize("place", HOLE_PLACES)
def test_a_page_ends_before_a_run_unless_it_has_nothing_yet(place: str) -> None:
    """[RD-8, FLR-6]: at most one tombstone per read, and never behind a record."""
    store, first, last = lossy(place)
    engine = store.settle()
    one = page(engine, 0)
    assert (seqs(one), gap(one)) == ([1, 2], None)
    assert position(one) == (first - 1, False, one.head_seq - first + 1)
    two = page(engine, first - 1)
    assert (seqs(two), gap(two)) == ([last + 1, last + 2], (first, last, "crash"))
    assert two.tombstone.missed_estimate == last - first + 1
    assert position(two) == (last + 2, True, 0)


@pytest.mark.parametrize("place", HOLE_PLACES)
def test_a_cursor_inside_a_run_is_told_the_rest_of_it(place: str) -> None:
    """01 §10: `gap_from` is the first hole behind the cursor."""
    store, first, last = lossy(place)
    engine = store.settle()
    for cursor in (first, first + 1, last - 1):
        result = page(engine, cursor)
        assert gap(result) == (cursor + 1, last, "crash")
        assert seqs(result) == [last + 1, last + 2]
    assert gap(page(engine, last)) is None


def test_skipped_records_before_a_run_do_not_keep_it_from_being_told() -> None:
    """[RD-8]: deleted and own records produce nothing."""
    store, first, last = lossy()
    engine = store.engine
    engine.delete(TOPIC, before_seq=2)
    kit.each(engine, 1, node="own", start=9)
    engine.delete(TOPIC, seqs=[2])
    result = page(engine, 0, node="own")
    assert gap(result) == (first, last, "crash")
    assert seqs(result) == [last + 1, last + 2]
    assert position(result) == (last + 3, True, 0)


@pytest.mark.parametrize("place", ["tail", "sealed", "killed", "trimmed"])
def test_deletes_neither_unmark_a_hole_nor_count_it(place: str) -> None:
    """[FLR-5, S-125]: also below a pure `before_seq`."""
    store, first, last = lossy(place)
    engine = store.engine
    assert engine.delete(TOPIC, seqs=[first, last]).deleted == 0
    result = engine.delete(TOPIC, before_seq=last + 2)
    assert (result.deleted, result.count, result.earliest_seq) == (3, 1, last + 2)
    engine = store.settle()
    told = page(engine, 0)
    assert gap(told) == (first, last, "crash")
    assert seqs(told) == [last + 2]
    assert numbers(engine) == (last + 2, last + 2, 1, len(str(last + 2)))


def test_a_run_is_told_until_the_loss_floor_passes_it() -> None:
    """[FLR-5, FLR-6]: then it is part of what the floor tells."""
    store, _, last = lossy()
    engine = store.engine
    engine.put_topic(TOPIC, {"durability": "disk", "cap_records": 1})
    result = page(engine)
    assert gap(result) == (1, last + 1, "cap")
    assert seqs(result) == [last + 2]
    assert numbers(engine).earliest_seq == last + 2


def test_a_floor_that_ends_before_a_run_is_told_first_and_the_run_by_the_next_read() -> None:
    """[RD-8, TMB-1]: a read has at most one tombstone."""
    store, first, last = lossy()
    engine = store.engine
    engine.put_topic(TOPIC, {"durability": "disk", "cap_records": 2})
    one = page(engine)
    assert (gap(one), seqs(one)) == ((1, first - 1, "cap"), [])
    assert position(one) == (first - 1, False, last + 2 - first + 1)
    two = page(engine, one.next_from_seq)
    assert (gap(two), seqs(two)) == ((first, last, "crash"), [last + 1, last + 2])


def test_a_recreated_cursor_in_front_of_a_run_gets_the_run_with_the_next_read() -> None:
    """[EPO-3, RD-8]"""
    store, first, last = lossy()
    engine = store.engine
    one = page(engine, last + 100)
    assert gap(one) == (1, last + 2, "recreated")
    assert seqs(one) == [1, 2]
    two = page(engine, one.next_from_seq)
    assert (gap(two), seqs(two)) == ((first, last, "crash"), [last + 1, last + 2])


def test_a_limit_and_a_run_meet_at_the_same_seq() -> None:
    """[RD-4, RD-8]"""
    store, first, last = lossy()
    engine = store.engine
    full = page(engine, 0, limit=2)
    assert (seqs(full), full.next_from_seq) == ([1, 2], first - 1)
    told = page(engine, first - 1, limit=1)
    assert (gap(told), seqs(told)) == ((first, last, "crash"), [last + 1])


def test_two_machine_crashes_leave_two_runs_and_the_records_between_them() -> None:
    """C6 [S-245]: before any checkpoint."""
    store = Store()
    first = kit.lose_tail(store, kept=2, lost=2)
    second = kit.lose_tail(store, kept=3, lost=2)
    assert second[0] == first[1] + 4
    seen = kit.everything(store.engine)
    assert seen.ranges == [(*first, "crash"), (*second, "crash")]
    assert seen.seqs == [1, 2, *range(first[1] + 1, first[1] + 4)]


def test_adjacent_crash_losses_are_one_run() -> None:
    """[FLR-5]: a maximal range of consecutive holes of one reason."""
    store = Store()
    first = kit.lose_tail(store, kept=2, lost=2)
    # Nothing of the next run is synced but its reservation, if it made one at all.
    engine = store.crash()
    head = numbers(engine).head_seq
    assert head >= first[1]
    assert kit.everything(engine).ranges == [(first[0], head, "crash")]


# Damage


def test_a_damaged_record_of_a_sealed_segment_is_told_exactly_and_the_rest_is_read() -> None:
    """[S-176, A-5, R-3]: reason `corrupt`; payloads are never served wrong."""
    store = Store("sealed")
    engine = store.put()
    for n in range(1, 10):
        write(engine, f"payload-{n}")
    engine = store.settle()
    path = next(p for p in kit.segment_files(store) if b"payload-5" in store.sim.files()[f"{kit.PATH}/{p}"])
    kit.flip_in(store, path, b"payload-5")
    engine = store.reopen(recent_cache_bytes=0)
    seen = kit.everything(engine)
    assert seen.ranges == [(5, 5, "corrupt")]
    assert seen.seqs == [1, 2, 3, 4, 6, 7, 8, 9]
    assert kit.metric(engine, "topics_segment_corrupt_total") >= 1
    assert gap(page(engine, 4)) == (5, 5, "corrupt")
    assert gap(page(engine, 5)) is None


def test_a_lost_segment_is_told_exactly() -> None:
    """[S-250], C22: its `.data` is gone, and the log behind it too."""
    store = Store("trimmed")
    engine = store.put()
    kit.each(engine, 9)
    store.trim()
    engine.close()
    lost = [path for path in kit.segment_files(store) if path.endswith("seg-0000000000000004.data")]
    assert len(lost) == 1
    store.sim.lose_file(f"{kit.PATH}/{lost[0]}")
    engine = store.open()
    seen = kit.everything(engine)
    assert seen.ranges == [(4, 6, "corrupt")]
    assert seen.seqs == [1, 2, 3, 7, 8, 9]
    assert kit.everything(store.kill()).ranges == [(4, 6, "corrupt")]
