"""What is missing is told: gap rows, errors that name seqs and files, or nothing, as asked."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.spark.kit import PATH, planned, rows
from tests.unit.storage import storekit
from tests.unit.storage.storekit import Topic
from tests.unit.storage.test_inspect import marked
from topics.codec import segment
from topics.codec.place import topic_mask
from topics.fs import Fs
from topics.spark.failure import SourceError
from topics.spark.options import parse_read
from topics.spark.reader import plan_read

NOW = 2000


def holed() -> Topic:
    """Two holes in a row over the border of segments, a gap segment, and a hole of another reason behind it."""
    return Topic().segment(6, lost={5: 1, 6: 1}).segment(4, lost={7: 1}).gap(3000, 3).segment(5, lost={3011: 2})


def told(files: storekit.Files, **options: str) -> list[tuple[int, Any, Any]]:
    """Seqs of records, and seq, end and reason of gaps."""
    fs = storekit.on_sim(files)
    found = rows(fs, planned(fs, NOW, topics="orders", **options))
    for row in found:
        if row["kind"] == "gap":
            assert {row[name] for name in ("ts", "node", "tag", "data", "meta")} == {None}
    return [(row["seq"], row["gap_to"], row["reason"]) for row in found]


def plain(*seqs: int) -> list[tuple[int, Any, Any]]:
    return [(seq, None, None) for seq in seqs]


GAPS = [(5, 7, "source_trim"), (11, 3010, "crash"), (3011, 3011, "corrupt")]


@pytest.mark.parametrize("size", ["1000000", "1"])
def test_holes_become_gap_rows_between_the_records(size: str) -> None:
    """K-10, FLR-5: one row per run within a partition; the same seqs however the plan is cut."""
    found = told(storekit.store(holed()), onDataLoss="emit", partitionBytes=size)
    assert [row for row in found if row[1] is None] == plain(1, 2, 3, 4, 8, 9, 10, 3012, 3013, 3014, 3015)
    gaps = [row for row in found if row[1] is not None]
    if size != "1":
        assert gaps == GAPS
    assert [(seq, row[2]) for row in gaps for seq in range(row[0], row[1] + 1)] == [
        (seq, row[2]) for row in GAPS for seq in range(row[0], row[1] + 1)
    ]


def test_holes_can_be_skipped() -> None:
    """K-10"""
    skipped = told(storekit.store(holed()), onDataLoss="skip")
    assert skipped == plain(1, 2, 3, 4, 8, 9, 10, 3012, 3013, 3014, 3015)


def test_a_hole_stops_a_read_that_may_not_lose_anything() -> None:
    """K-10, K-15: `fail` is the default; the line names the seqs, the reason and what to do."""
    with pytest.raises(SourceError) as caught:
        told(storekit.store(holed()))
    assert str(caught.value) == (
        "topics: data_loss: orders: seqs 5 to 6 are missing (source_trim)"
        " — start behind them, or read with onDataLoss=emit (gap rows) or skip"
    )
    assert told(storekit.store(holed()), startingSeq="3012") == plain(3012, 3013, 3014, 3015)
    assert told(storekit.store(holed()), endingSeq="4") == plain(1, 2, 3, 4)


def test_earliest_meets_no_floor_and_no_hole_before_the_first_live_record() -> None:
    """K-10: only an explicit start below the evict floor has missed something."""
    topic = Topic().segment(6, lost={3: 3, 4: 3}).segment(6)
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(cap_floor=3)])
    assert told(files) == plain(*range(5, 13))
    assert told(files, startingSeq="1", onDataLoss="emit") == [
        (1, 2, "cap"), (3, 4, "crash"), *plain(*range(5, 13)),
    ]  # fmt: skip
    with pytest.raises(SourceError, match=r"orders: seq 2 is missing \(cap\): retention had passed"):
        told(files, startingSeq="2")
    both = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(cap_floor=6, ttl_floor=8)])
    assert told(both, startingSeq="2", onDataLoss="emit")[0] == (2, 7, "mixed")
    assert told(both, startingSeq="6", onDataLoss="emit")[0] == (6, 7, "ttl")
    assert told(both, startingSeq="8", onDataLoss="emit")[0] == (8, None, None)
    assert told(both, startingSeq='{"orders": 9, "other": 1}') == plain(9, 10, 11, 12)


def test_a_start_behind_everything_gives_nothing_and_misses_nothing() -> None:
    """K-13: no partition at all."""
    fs = storekit.on_sim(storekit.store(holed()))
    assert planned(fs, NOW, topics="orders", startingSeq="4000") == []
    assert planned(fs, NOW, topics="orders", endingSeq="0") == []


def test_an_expired_record_is_not_given_and_an_explicit_start_has_missed_it() -> None:
    """S-345: less records older than `ttl_ms` at planning time; the ts of a record here is 1000 + its seq."""
    topic = Topic().segment(9)
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(cfg={"ttl_ms": NOW - 1005})])
    assert told(files) == plain(5, 6, 7, 8, 9)
    assert told(files, startingSeq="1", onDataLoss="emit") == [(1, 4, "ttl"), *plain(5, 6, 7, 8, 9)]


@pytest.mark.parametrize("verify", ["true", "false"])
def test_damage_names_file_offset_seqs_and_the_command_to_run(verify: str) -> None:
    """K-14"""
    topic = Topic().segment(9)
    files = storekit.store(topic)
    found = segment.scan_data(files[topic.path(1, "data")], topic_mask(topic.id)).rows
    at = int(found["offset"][3])
    files = storekit.flipped(files, topic.path(1, "data"), at + 5, 0xFF)  # its seq
    with pytest.raises(SourceError) as caught:
        told(files, verify=verify)
    assert str(caught.value) == (
        f"topics: corrupt: orders: seq 4 cannot be read: {PATH}/{topic.path(1, 'data')} at {at}:"
        f" the frame does not verify — run `topics doctor {PATH}`; onDataLoss=emit reads on and tells the gap"
    )
    emitted = told(files, verify=verify, onDataLoss="emit")
    assert emitted == [*plain(1, 2, 3), (4, 4, "corrupt"), *plain(5, 6, 7, 8, 9)]
    assert told(files, verify=verify, onDataLoss="skip") == plain(1, 2, 3, 5, 6, 7, 8, 9)


def test_a_changed_payload_is_found_only_by_its_checksum() -> None:
    """S-348: `verify=false` trusts sealed files, but never gives text that is none."""
    topic = Topic().segment(9)
    files = storekit.store(topic)
    found = segment.scan_data(files[topic.path(1, "data")], topic_mask(topic.id)).rows
    inside = int(found["offset"][3] + found["len"][3]) - 12
    assert len(told(storekit.flipped(files, topic.path(1, "data"), inside), verify="false")) == 9
    with pytest.raises(SourceError, match="seq 4 cannot be read"):
        told(storekit.flipped(files, topic.path(1, "data"), inside))
    no_text = storekit.flipped(files, topic.path(1, "data"), inside, 0x80)
    with pytest.raises(SourceError, match=r"seq 4 cannot be read: its text is not UTF-8"):
        told(no_text, verify="false")
    emitted = told(no_text, verify="false", onDataLoss="emit")
    assert sorted(emitted) == [*plain(1, 2, 3), (4, 4, "corrupt"), *plain(5, 6, 7, 8, 9)]


@pytest.mark.parametrize("gone", ["data", "idx", "both"])
def test_files_that_are_gone_are_damage(gone: str) -> None:
    """K-14: a segment between others does not vanish in order."""
    topic = Topic().segment(4).segment(4).segment(4)
    names = [topic.path(5, kind) for kind in ("data", "idx") if gone in (kind, "both")]
    files = storekit.without(storekit.store(topic), *names)
    emitted = told(files, onDataLoss="emit")
    if gone == "idx":  # made anew from the data
        assert emitted == plain(*range(1, 13))
    else:
        assert emitted == [*plain(1, 2, 3, 4), (5, 8, "corrupt"), *plain(9, 10, 11, 12)]


def test_an_unsealed_segment_that_ends_before_its_claim_is_not_passed_over() -> None:
    """K-11: what the snapshot claims of it was synced, so a reader misses it."""
    topic = Topic().segment(4).segment(5, sealed=False)
    files = storekit.store(topic)
    found = segment.scan_data(files[topic.path(5, "data")], topic_mask(topic.id)).rows
    files = storekit.flipped(files, topic.path(5, "data"), int(found["offset"][2]) + 31)
    assert told(files, onDataLoss="emit") == [*plain(1, 2, 3, 4, 5, 6), (7, 9, "corrupt")]


def test_what_was_deleted_or_given_up_since_the_plan() -> None:
    """K-11: deleted is absent, given up is lost, by what the newest snapshot knows."""
    topic = Topic().segment(4).segment(4).segment(4)
    fs = storekit.on_sim(storekit.store(topic))
    parts = planned(fs, NOW, topics="orders", onDataLoss="emit")

    def after(**floors: Any) -> list[tuple[int, Any, Any]]:
        files = storekit.store(topic) | storekit.snapshot_file(9, [topic.item(**floors)])
        gone = [topic.path(first, kind) for first in (1, 5) for kind in ("data", "idx", "tag")]
        later = storekit.on_sim(storekit.without(files, *gone))
        return [(row["seq"], row["gap_to"], row["reason"]) for row in rows(later, parts)]

    assert after(cap_floor=9) == [(1, 8, "cap"), *plain(9, 10, 11, 12)]
    assert after(delete_below=9) == plain(9, 10, 11, 12)
    assert after(ttl_floor=9, delete_below=5) == [(5, 8, "ttl"), *plain(9, 10, 11, 12)]
    assert after() == [(1, 8, "corrupt"), *plain(9, 10, 11, 12)]  # no floor covers them: nobody dropped them


FLOORS: list[tuple[dict[str, int], list[tuple[int, Any, Any]]]] = [
    ({}, [(1, 8, "corrupt")]),
    ({"delete_below": 9}, []),
    ({"cap_floor": 9}, [(1, 8, "cap")]),
    ({"delete_below": 5}, [(5, 8, "corrupt")]),
]


@pytest.mark.parametrize("planned_before", [True, False])
@pytest.mark.parametrize(("floors", "lost"), FLOORS)
def test_segments_that_went_behind_the_snapshot_are_explained_by_the_log(
    floors: dict[str, int], lost: list[tuple[int, Any, Any]], planned_before: bool
) -> None:
    """S-277, K-14: a mark in the log covers a drop before the files go; what none covers is damage, not silence."""
    topic = Topic().segment(4).segment(4).segment(4)
    whole = storekit.store(topic)
    log = storekit.closed_wal()
    files = whole | storekit.wal_files({1: log + marked(topic, **floors)}, current=1)
    gone = [topic.path(first, kind) for first in (1, 5) for kind in ("data", "idx", "tag")]
    later = storekit.on_sim(storekit.without(files, *gone))
    parts = planned(storekit.on_sim(whole) if planned_before else later, NOW, topics="orders", onDataLoss="emit",
                    startingSeq="1")  # fmt: skip
    found = [(row["seq"], row["gap_to"], row["reason"]) for row in rows(later, parts)]
    assert found == [*lost, *plain(9, 10, 11, 12)]


def test_earliest_does_not_pass_over_a_first_segment_that_is_lost() -> None:
    """K-10, K-14: it begins at the first live record, and the snapshot knows one there."""
    topic = Topic().segment(4).segment(4).segment(4)
    gone = [topic.path(1, kind) for kind in ("data", "idx", "tag")]
    files = storekit.without(storekit.store(topic), *gone)
    assert told(files, onDataLoss="emit") == [(1, 4, "corrupt"), *plain(*range(5, 13))]
    with pytest.raises(SourceError, match=r"corrupt: orders: seqs 1 to 4 cannot be read: no segment holds these seqs"):
        told(files)
    everything = storekit.without(files, *(topic.path(first, kind) for first in (5, 9) for kind in ("data", "idx")))
    assert told(everything, onDataLoss="emit", minPartitions="1") == [(1, 12, "corrupt")]
    dropped = files | storekit.wal_files({1: storekit.closed_wal() + marked(topic, cap_floor=5)}, current=1)
    assert told(dropped) == plain(*range(5, 13))  # retention took it since the snapshot: no floor is met
    assert told(dropped, startingSeq="3", onDataLoss="emit") == [(3, 4, "cap"), *plain(*range(5, 13))]


def test_what_was_deleted_below_a_seq_since_the_plan_is_absent_whatever_the_files_hold() -> None:
    """K-11: live at the plan and still live when its partition is read."""
    topic = Topic().segment(4).segment(4).segment(4)
    files = storekit.store(topic)
    parts = planned(storekit.on_sim(files), NOW, topics="orders", includeDeleted="true")
    later = storekit.on_sim(files | storekit.snapshot_file(9, [topic.item(delete_below=7)]))
    found = [(row["seq"], row["kind"]) for row in rows(later, parts)]
    assert sorted(found) == [(seq, "deleted" if seq < 7 else "record") for seq in range(1, 13)]


def test_another_store_at_the_same_place_is_refused() -> None:
    """A-8: the id of the store is checked where files are opened."""
    fs = storekit.on_sim(storekit.store(Topic().segment(4)))
    parts = planned(fs, NOW, topics="orders")
    other: Fs = storekit.on_sim(storekit.store(Topic().segment(4)) | {"meta/STORE": b"f" * 32 + b"\n"})
    with pytest.raises(SourceError, match="not the store that was planned"):
        rows(other, parts)


def test_bad_places_and_names_are_told_in_one_line() -> None:
    """K-15"""
    fs = storekit.on_sim(storekit.store(Topic().segment(4)))
    with pytest.raises(SourceError, match=r"^topics: no_store: elsewhere is not a data directory — "):
        plan_read(fs, parse_read({"path": "elsewhere", "topics": "orders"}), NOW)
    with pytest.raises(SourceError, match=r"^topics: topic_not_found: store has no topic `nope` — .*checkpoint"):
        planned(fs, NOW, topics="orders,nope")
    assert planned(fs, NOW, subscribePattern="nope") == []
