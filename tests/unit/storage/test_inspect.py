"""The examination of a data directory: everything damaged is found, nothing healthy is blamed, nothing is changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.unit.storage import kit, segkit, storekit
from tests.unit.storage.storekit import Files, Topic
from topics.codec import control, frame, segment
from topics.codec.control import MarkRow
from topics.codec.place import segment_mask, topic_mask
from topics.codec.snapshot import SegmentRow, WalRow
from topics.fs import OsFs
from topics.storage import tags
from topics.storage.findings import CODES, FLUX, Area
from topics.storage.inspect import NotAStore, Report, inspect
from topics.storage.inspect_topic import Expected, check_topic, spans
from topics.testing import SimFs

ROOT = "store"


def looked_at(files: Files, *, in_use: bool = False) -> Report:
    """Examine a store made of these files, which must stay as they are."""
    disk = storekit.on_sim(files)
    before, calls = disk.files(), disk.disk_calls
    report = inspect(disk, ROOT, in_use=in_use)
    assert (disk.files(), disk.disk_calls) == (before, calls)
    return report


def found(files: Files, *, in_use: bool = False) -> set[tuple[str, str]]:
    """Severity and code of everything but what any store of these tests has."""
    return {(one.severity, one.code) for one in looked_at(files, in_use=in_use).findings}


def mixed() -> Topic:
    """Sealed segments, one with holes and fillers, a gap segment, and an active one with more behind its claim."""
    made = Topic().segment(6, deleted=[2]).gap(3000, 3).segment(5, lost={3008: 1}, fillers=[3009])
    return made.segment(4, sealed=False)


@pytest.fixture
def clean() -> Files:
    return storekit.store(mixed(), Topic(11, "bills").segment(3))


def test_a_healthy_store_has_no_findings(clean: Files) -> None:
    """R-5: nothing is blamed that is as it should be."""
    report = looked_at(clean)
    assert report.findings == ()
    assert report.ok
    assert (report.store, report.snapshot, report.clean, report.topics) == (storekit.STORE_ID, 2, True, 2)
    sizes = {area.name: (area.files, area.bytes, area.records) for area in report.areas}
    assert sizes["topics/0000000A"][2] == 5 + 3 + 4
    assert sizes["topics/0000000B"][2] == 3
    assert sum(one[0] for one in sizes.values()) == len(clean)
    assert sum(one[1] for one in sizes.values()) == sum(map(len, clean.values()))


def test_every_file_is_told_to_the_progress(clean: Files) -> None:
    """U-12: sizes of what takes time."""
    sizes: list[int] = []
    inspect(storekit.on_sim(clean), ROOT, looked=sizes.append)
    small = {".topics.lock", "meta/STORE", "wal/CURRENT"}
    assert sum(sizes) == sum(len(data) for path, data in clean.items() if path not in small)


def damaged(clean: Files, path: str) -> list[tuple[int, int, set[tuple[str, str]]]]:
    """What each changed byte of a file comes to; seldom-changed long files are sampled."""
    rng = random.Random(path)
    result = []
    for at in range(len(clean[path])):
        mask = rng.choice((1, 0x80, 0xFF, clean[path][at] or 1))
        result.append((at, mask, found(storekit.flipped(clean, path, at, mask))))
    return result


def worst(findings: set[tuple[str, str]]) -> str | None:
    return next((one for one in ("error", "warning", "note") if one in {severity for severity, _ in findings}), None)


@pytest.mark.parametrize("kind", ["snapshot", "idx", "active idx", "data", "active data", "tag", "gap", "wal", "STORE"])
def test_every_damaged_byte_of_every_kind_of_file_is_found(clean: Files, kind: str) -> None:
    """R-5, T6: each byte is covered by a checksum or a redundant copy, and the doctor looks at all of them."""
    topic = mixed()
    path = {
        "snapshot": "meta/snapshot-0000000000000001.bin", "idx": topic.path(3007, "idx"),
        "active idx": topic.path(3012, "idx"), "data": topic.path(1, "data"), "active data": topic.path(3012, "data"),
        "tag": topic.path(1, "tag"), "gap": topic.path(7, "idx"), "wal": "wal/wal-0000000000000001.log",
        "STORE": "meta/STORE",
    }[kind]  # fmt: skip
    if kind == "wal":
        # Below the position nobody reads; let the log be needed as a whole.
        row = WalRow("", 1, 0)
        clean |= storekit.snapshot_file(1, [], [row]) | storekit.snapshot_file(2, [topic.item()], [row])
        clean = {path: data for path, data in clean.items() if "0000000B" not in path and "bin" not in path} | {
            path: data for path, data in clean.items() if "snapshot-0000000000000002" in path
        }
        last = len(kit.mark(control.CloseMark(run=1)))
    for at, mask, seen in damaged(clean, path):
        if kind == "wal" and at >= len(clean[path]) - last:
            assert ("note", "torn_tail") in seen  # T6: behind the last flagged frame it may read as a torn tail
        else:
            assert worst(seen) in ("warning", "error"), f"byte {at} of {path} ^ {mask:#x}: {seen}"


def in_spans(disk: SimFs, topics: list[Expected]) -> list[Area]:
    """Each segment by itself."""
    parts = [(one, span) for one in topics for span in spans(one, 1)]
    assert len(parts) > len(topics)
    return [
        check_topic(disk, ROOT, one, in_use=False, looked=lambda size: None, span=span) for one, span in parts
    ]  # fmt: skip


def test_a_topic_looked_at_in_spans_has_the_findings_of_the_whole(clean: Files) -> None:
    """10 §5: each file missing, and a byte of each changed; files, bytes and records are counted once."""
    rng = random.Random(5)
    cases = [clean, *({other: raw for other, raw in clean.items() if other != path} for path in clean)]
    cases += [storekit.flipped(clean, path, rng.randrange(len(clean[path])), 0x41) for path in clean if clean[path]]
    for files in cases:
        disk = storekit.on_sim(files)
        whole = inspect(disk, ROOT)
        parted = inspect(disk, ROOT, check=lambda topics, disk=disk: in_spans(disk, topics))
        assert sorted(parted.findings) == sorted(whole.findings)
        for name in {area.name for area in whole.areas}:
            sizes = [
                [sum(column) for column in zip(*(area[2:5] for area in report.areas if area.name == name), strict=True)]
                for report in (whole, parted)
            ]
            assert sizes[0] == sizes[1], name


def test_a_damaged_live_record_is_an_error_and_says_which(clean: Files) -> None:
    """R-3: the exact seq; a deleted one is only a warning."""
    topic = mixed()
    rows = segment.scan_data(clean[topic.path(1, "data")], topic_mask(10)).rows
    offsets = dict(zip(rows["seq"].tolist(), rows["offset"].tolist(), strict=True))
    report = looked_at(storekit.flipped(clean, topic.path(1, "data"), offsets[4] + 31))
    assert [(one.severity, one.code, one.where, one.what) for one in report.findings] == [
        ("error", "frame_damaged", topic.path(1, "data"), "1 seq: 4")
    ]
    assert not report.ok
    assert found(storekit.flipped(clean, topic.path(1, "data"), offsets[2] + 31)) == {("warning", "dead_frame_damaged")}


def test_damage_in_a_memory_topic_breaks_no_promise() -> None:
    """S-246: its class promises nothing."""
    topic = Topic(durability="memory").segment(4)
    assert found(storekit.flipped(storekit.store(topic), topic.path(1, "data"), 35)) == {("warning", "frame_damaged")}


def test_delete_bytes_are_held_against_delete_bits() -> None:
    """S-120, 06 §14 step 5: either alone, and a byte that is neither."""
    plain, marked = Topic().segment(4), Topic().segment(4, deleted=[2])
    data = plain.path(1, "data")
    third = int(segment.scan_data(plain.files[data], topic_mask(10)).rows["offset"][2])
    byte_only = storekit.store(plain) | {data: marked.files[data]}
    assert found(byte_only) == {("warning", "delete_mismatch")}
    bit_only = storekit.store(marked) | {data: plain.files[data]}
    assert found(bit_only) == {("warning", "delete_undone")}
    assert found(storekit.flipped(storekit.store(plain), data, third - 1, 0x40)) == {("warning", "delete_byte_odd")}


def test_an_index_that_verifies_and_lies_is_found() -> None:
    """R-5: a footer over entries that are not the frames' (our own bug, if ever)."""
    topic = Topic().segment(4)
    for field, by in (("ts", 1), ("flags_ovh", 256)):
        entries = segkit.np.frombuffer(bytearray(topic.files[topic.path(1, "idx")][:80]), segment.IDX)
        entries[field][-1] += by
        idx = entries.tobytes() + segment.encode_footer(entries.tobytes(), segment_mask(10, 1))
        assert ("error", "entry_wrong") in found(storekit.store(topic) | {topic.path(1, "idx"): idx})


def test_a_tag_file_is_held_against_the_records() -> None:
    """S-187: missing or damaged it is made anew; one that verifies and lacks a record would be believed."""
    topic = Topic().segment(6)
    clean, path = storekit.store(topic), topic.path(1, "tag")
    assert found(storekit.without(clean, path)) == {("warning", "tag_damaged")}
    assert found(storekit.flipped(clean, path, 30)) == {("warning", "tag_damaged")}
    data = clean[topic.path(1, "data")]
    rows = segment.scan_data(data, topic_mask(10)).rows
    fewer = tags.build_sidecar(data, rows[rows["seq"] != 5], 10, 1)
    assert fewer is not None
    assert found(clean | {path: fewer}) == {("error", "tag_wrong")}
    more = tags.tags_of(data, rows)
    more[b"erased"] = more.pop(b"job:1")[:1]
    more[b"job:1"] = tags.tags_of(data, rows)[b"job:1"]
    richer = tags.encode_sidecar(more, 10, 1)
    assert richer is not None
    assert found(clean | {path: richer}) == set()


def test_counts_are_held_against_the_snapshot() -> None:
    """06 §13: as long as the row's hash is the file's; after a delete it is not, and nothing is said."""
    topic = Topic().segment(6)
    row = topic.rows[0]
    wrong = SegmentRow(row.first, row.count, row.data_len, row.flags, row.live - 1, row.live_bytes, row.idx_xxh3)
    clean = storekit.store(topic)
    item = topic.item(segments=(wrong,))
    assert found(clean | storekit.snapshot_file(2, [item], [WalRow("", 1, 0)])) == {("warning", "count_wrong")}
    later = Topic().segment(6, deleted=[3])
    assert found(clean | later.files) == set()


def test_segments_must_reach_from_the_floor_to_the_checkpoint(clean: Files) -> None:
    """S-129, S-250: a missing one is an error, unless the log still has its records or the floor is above it."""
    topic = Topic().segment(3).segment(3).segment(3)
    clean = storekit.store(topic)
    gone = storekit.without(clean, *(topic.path(4, kind) for kind in ("data", "idx", "tag")))
    report = looked_at(gone)
    assert [(one.code, one.what) for one in report.findings] == [("segment_missing", "3 seqs: 4-6")]
    appends = frame.encode_appends([(None, None, b'{"d":1}')] * 3, 10, 4, storekit.TS)
    logged = gone | storekit.wal_files({1: storekit.closed_wal(), 2: kit.log_file(2, appends)}, current=2)
    assert ("warning", "segment_refillable") in found(logged)
    assert not {one for one in found(logged) if one[0] == "error"}
    for unreadable in (storekit.without(clean, topic.path(4, "data")), clean | {topic.path(4, "data"): b"?"}):
        assert not looked_at(unreadable).ok
        refilled = unreadable | {path: data for path, data in logged.items() if path.startswith("wal/")}
        assert ("warning", "segment_refillable") in found(refilled)
        assert looked_at(refilled).ok
    first = storekit.without(clean, *(topic.path(1, kind) for kind in ("data", "idx", "tag")))
    assert found(first) == {("error", "segment_missing")}
    dropped = storekit.snapshot_file(2, [topic.item(cap_floor=4)], [WalRow("", 1, 0)])
    assert found(first | dropped) == set()


def marked(topic: Topic, n: int = 9, **changed: int) -> bytes:
    """A checkpoint mark over the topic as it is."""
    row = topic.rows[-1]
    is_active = not row.flags & 1
    fields = {
        "topic_id": topic.id, "ckpt_seq": topic.end, "head_seq": topic.end, "cap_floor": 1, "ttl_floor": 1,
        "delete_below": 1, "active_first": row.first if is_active else topic.end + 1,
        "active_data_len": row.data_len if is_active else 0, "active_entries": row.count if is_active else 0,
        "active_idx_xxh3": row.idx_xxh3 if is_active else 0,
    }  # fmt: skip
    return kit.mark(control.TopicsMark(n=n, part=1, parts=1, topics=(MarkRow(**(fields | changed)),)))


def killed(topic: Topic, *frames: bytes, snapshot: Topic | None = None) -> Files:
    """A store whose engine was killed after these frames; the snapshot is older."""
    log = kit.log_file(1, storekit.topic_create(topic), *frames)
    older = [] if snapshot is None else [snapshot.item()]
    next_id = 1 if snapshot is None else 100
    files = storekit.base_files() | storekit.wal_files({1: log}, current=1) | topic.files
    return files | storekit.snapshot_file(1, older, [WalRow("", 1, 0)], next_topic_id=next_id)


def test_a_mark_newer_than_the_snapshot_counts() -> None:
    """S-44: what segments must be is what the newest mark says, also of a topic the snapshot does not know."""
    topic = Topic().segment(4).segment(5, sealed=False, extra=2)
    assert found(killed(topic, marked(topic))) == {
        ("note", "one_snapshot"), ("note", "not_closed"), ("note", "unclaimed")
    }  # fmt: skip
    before = Topic().segment(4)
    assert not {one for one in found(killed(topic, marked(topic), snapshot=before)) if one[0] != "note"}
    broken = storekit.flipped(killed(topic, marked(topic)), topic.path(5, "data"), 35)
    assert ("error", "frame_damaged") in found(broken)
    assert ("error", "segment_missing") in found(killed(topic, marked(topic, ckpt_seq=30)))


def test_an_active_segment_whose_entries_are_not_the_claimed_ones_is_a_warning_while_its_frames_are_whole() -> None:
    """06 §14 step 5: all entries are made from `.data`."""
    topic = mixed()
    clean, path = storekit.store(topic), topic.path(3012, "idx")
    assert found(storekit.flipped(clean, path, 9)) == {("warning", "claim_mismatch")}
    assert found(storekit.without(clean, path)) == {("warning", "claim_mismatch")}
    both = storekit.flipped(storekit.flipped(clean, path, 9), topic.path(3012, "data"), 35)
    assert found(both) == {("warning", "claim_mismatch"), ("error", "idx_lost"), ("error", "frame_damaged")}


def test_a_lost_idx_costs_only_what_the_data_cannot_tell() -> None:
    """S-130."""
    whole, holed = Topic().segment(5), Topic().segment(5, lost={3: 1})
    path = whole.path(1, "idx")
    assert found(storekit.without(storekit.store(whole), path)) == {("warning", "idx_damaged")}
    assert found(storekit.without(storekit.store(holed), path)) == {("warning", "idx_damaged"), ("error", "idx_lost")}
    assert ("error", "data_missing") in found(storekit.without(storekit.store(whole), whole.path(1, "data")))


def test_a_segment_sealed_since_the_snapshot_whose_idx_is_cut_is_made_anew() -> None:
    """S-134: its n is where the next segment begins."""
    before = Topic().segment(3, sealed=False)
    after = Topic().segment(5).segment(2)
    files = killed(after, marked(after), snapshot=before)
    assert not {one for one in found(files) if one[0] != "note"}
    path = after.path(1, "idx")
    for length in (20, 50, 100):
        seen = {one for one in found(files | {path: files[path][:length]}) if one[0] != "note"}
        assert seen <= {("warning", "idx_damaged")}
        assert seen or length == 100


def test_a_dead_segment_needs_no_data() -> None:
    """S-274: a dead stub."""
    topic = Topic().segment(3, deleted=[1, 2, 3]).segment(2)
    assert found(storekit.without(storekit.store(topic), topic.path(1, "data"), topic.path(1, "tag"))) == set()


def test_files_that_do_not_count_are_notes() -> None:
    """S-10: strays, leftovers, copies of a salvage, superseded generations, bytes behind the end."""
    topic = Topic().segment(3, generation=2)
    files = storekit.store(topic) | {
        "notes.txt": b"x", "meta/snapshot-0000000000000003.bin.tmp": b"x", "wal/old": b"x",
        "wal/wal-0000000000000001.log.salvaged": b"x", topic.path(1, "data", 1): b"x",
        "topics/0000000A/seg-0000000000000001.idx.tmp": b"x", "topics/0000000F.deleted/x": b"x", "topics/odd": b"x",
        "staging/0000000000000001-1/part": b"x", "topics/0000000A/topic.json": b"{}",
        topic.path(1, "data", 2): topic.files[topic.path(1, "data", 2)] + b"x",
        topic.path(90, "idx"): b"", topic.path(90, "data"): b"x",
    }  # fmt: skip
    assert {severity for severity, _ in found(files)} == {"note"}
    assert {code for _, code in found(files)} == {
        "stray", "leftover", "salvaged_copy", "old_generation", "deleted_dir", "staging", "topic_json", "extra_bytes",
        "unclaimed",
    }  # fmt: skip


def test_a_topic_directory_that_nobody_knows_is_told() -> None:
    """S-275: it is left alone by the engine."""
    files = storekit.store(Topic().segment(3)) | {"topics/00000044/seg-0000000000000001.idx": b""}
    assert found(files) == {("warning", "orphan_dir")}


def test_a_lost_topic_directory_is_an_error() -> None:
    topic = Topic().segment(3)
    files = {path: data for path, data in storekit.store(topic).items() if not path.startswith("topics/")}
    assert found(files) == {("error", "topic_dir_missing")}


def test_cold_segments_are_looked_at_where_they_can_be() -> None:
    """S-316, S-317: a stub is no loss; a copy known to be absent is."""
    topic = Topic().segment(4, magic=segment.COLD)
    base = storekit.store(topic)
    files = storekit.without(base, topic.path(1, "data"))
    assert found(files) == {("note", "cold_unchecked")}
    disk = storekit.on_sim(files)
    disk.load({"vault/.topics-store": storekit.STORE_ID.encode()})
    assert {(one.severity, one.code) for one in inspect(disk, ROOT, cold="vault").findings} == {
        ("error", "cold_missing")
    }
    disk.load({"vault/" + topic.path(1, "data"): base[topic.path(1, "data")]})
    assert inspect(disk, ROOT, cold="vault").findings == ()


def test_a_cold_copy_may_lag_behind_the_deletes_of_its_stub() -> None:
    """S-315: the local `.idx` is the witness; an object store never changes the data at all."""
    plain, marked = Topic().segment(4, magic=segment.COLD), Topic().segment(4, magic=segment.COLD, deleted=[2])
    data = plain.path(1, "data")
    disk = storekit.on_sim(storekit.without(storekit.store(marked), data))
    disk.load({"vault/.topics-store": storekit.STORE_ID.encode(), f"vault/{data}": plain.files[data]})
    assert inspect(disk, ROOT, cold="vault").findings == ()


def test_snapshots_are_all_read(clean: Files) -> None:
    """S-215, S-216, R-4: one damaged is a warning, all of them lose the store; a newer version's is refused."""
    one, two = "meta/snapshot-0000000000000001.bin", "meta/snapshot-0000000000000002.bin"
    assert found(storekit.flipped(clean, one, 50)) == {("warning", "snapshot_damaged")}
    assert found(storekit.flipped(clean, two, 50)) == {("warning", "snapshot_damaged")}
    both = storekit.flipped(storekit.flipped(clean, one, 50), two, 50)
    assert {("error", "snapshot_damaged"), ("error", "metadata_lost")} <= found(both)
    assert found(clean | {two: clean[one]}) == {("warning", "snapshot_damaged")}  # by its id [S-135]
    other = storekit.snapshot_file(2, [mixed().item()], store="f" * 32)
    assert ("warning", "snapshot_damaged") in found(clean | other)
    assert ("note", "one_snapshot") in found(storekit.without(clean, one))
    assert ("warning", "store_id_missing") in found(storekit.without(clean, "meta/STORE"))


def test_metadata_that_nothing_describes_is_lost() -> None:
    """S-216."""
    topic = Topic().segment(3)
    assert ("error", "metadata_lost") in found(storekit.base_files() | topic.files)
    late = storekit.wal_files({2: kit.log_file(2, kit.append(1))})
    assert ("error", "metadata_lost") in found(storekit.base_files() | late)
    early = storekit.wal_files({1: kit.log_file(1, kit.append(1))})
    assert not {one for one in found(storekit.base_files() | early) if one[0] == "error"}


def test_a_snapshot_that_contradicts_itself_is_told() -> None:
    topic = Topic().segment(3)
    files = storekit.store(topic) | storekit.snapshot_file(2, [topic.item(head_seq=1)], [WalRow("", 1, 0)])
    assert ("warning", "snapshot_inconsistent") in found(files)


ONE = kit.log_file(1, kit.append(1), kit.append(2), kit.append(3))
MARK = len(kit.open_mark(1))


def logs(parts: dict[int, bytes], *, current: int | None = None, position: tuple[int, int] = (1, 0)) -> Files:
    files = storekit.base_files() | storekit.wal_files(parts, current=current)
    return files | storekit.snapshot_file(1, [], [WalRow("", *position)])


def two(*parts: bytes, prev: int = len(ONE)) -> bytes:
    return kit.log_file(2, *parts, prev=(1, prev))


WAL_FAULTS: dict[str, tuple[Files, str]] = {
    "inner damage": (logs({1: kit.flip(ONE, MARK + 20), 2: two(kit.append(4))}), "wal_damaged"),
    "tail damage before a sync": (
        logs({1: kit.flip(ONE, MARK + 20) + kit.flagged(kit.append(4))}), "wal_damaged"
    ),
    "short": (logs({1: ONE[: MARK + 64], 2: two(kit.append(4))}), "wal_short"),
    "missing": (logs({1: ONE, 3: kit.log_file(3, kit.append(4))}), "wal_missing"),
    "position lost": (logs({}, position=(3, 100)), "wal_missing"),
    "position not reached": (logs({1: ONE}, position=(1, 5000)), "wal_short"),
    "misplaced": (logs({1: kit.log_file(7, kit.append(1))}), "wal_misplaced"),
    "current": (logs({1: ONE}, current=2), "current_beyond"),
    "newer": (logs({1: ONE + frame._encode(99, 0, 7, 0, kit.TS, b"?")}), "wal_newer"),
    "newer open mark behind the position": (
        logs({1: kit.newer_open_mark(1, "format") + kit.append(1)}, position=(1, MARK)), "wal_newer"
    ),
}  # fmt: skip


@pytest.mark.parametrize(("files", "code"), WAL_FAULTS.values(), ids=WAL_FAULTS)
def test_what_a_start_refuses_is_an_error(files: Files, code: str) -> None:
    """06 §5, S-64, S-68, S-135, S-211: each by its own name."""
    assert ("error", code) in found(files)


def test_a_group_that_wrote_nothing_since_its_files_were_trimmed_is_in_order() -> None:
    """S-64, S-89: `CURRENT` names the newest file there was, below the position that replay begins at."""
    assert ("error", "current_beyond") not in found(logs({}, current=5, position=(6, 0)))
    assert ("error", "current_beyond") in found(logs({}, current=6, position=(6, 0)))


def test_a_torn_tail_and_an_unclosed_log_are_notes() -> None:
    """06 §5 row 3."""
    assert found(logs({1: ONE + kit.append(4)[:30]}, current=1)) == {
        ("note", "torn_tail"), ("note", "not_closed"), ("note", "one_snapshot")
    }  # fmt: skip


def test_damage_below_the_replay_position_is_at_most_a_warning() -> None:
    """S-63, S-89: the previous snapshot may still need it."""
    files = storekit.base_files() | storekit.wal_files({1: kit.flip(ONE, MARK + 20), 2: two(kit.append(4))})
    newest = storekit.snapshot_file(2, [], [WalRow("", 2, 0)])
    both = files | newest | storekit.snapshot_file(1, [], [WalRow("", 1, 0)])
    assert ("warning", "wal_damaged_old") in found(both)
    assert not {one for one in found(both) if one[0] == "error"}
    assert ("warning", "wal_damaged_old") not in found(files | newest)


def test_an_unfinished_salvage_and_a_failed_sync_are_told() -> None:
    """S-66, S-78."""
    files = logs({1: kit.log_file(1, kit.append(1), frame.encode_pads(64))})
    files[".topics.lock"] = b"pid=1\nsync_failed=7:shard-01\n"
    assert {("warning", "padded"), ("warning", "sync_failed")} <= found(files)


def test_shards_are_areas_of_their_own() -> None:
    files = storekit.base_files() | storekit.snapshot_file(1, [], [])
    for shard in (0, 1):
        data = kit.log_file(1, kit.append(1), shard=shard, shards=2)
        files |= storekit.wal_files({1: data}, shard=f"shard-0{shard}", current=1)
    report = looked_at(files)
    assert [area.name for area in report.areas if area.name.startswith("wal")] == ["wal/shard-00", "wal/shard-01"]
    assert report.ok


def test_in_a_store_in_use_what_changes_is_a_note_and_what_is_damaged_is_not() -> None:
    """What an engine does all the time is no fault; a bad checksum is one in any store."""
    topic = Topic().segment(3).segment(3)
    clean = storekit.store(topic)
    gone = storekit.without(clean, *(topic.path(1, kind) for kind in ("data", "idx", "tag")))
    assert found(gone, in_use=True) == {("note", "segment_missing"), ("note", "in_use")}
    broken = storekit.flipped(clean, topic.path(1, "data"), 35)
    assert ("error", "frame_damaged") in found(broken, in_use=True)


class Healing:
    """A disk whose files are whole from the second look on."""

    def __init__(self, broken: SimFs, whole: SimFs, path: str) -> None:
        self._broken, self._whole, self._path = broken, whole, path
        self._looks = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._whole, name)

    def open(self, path: str, mode: str) -> object:
        if path == self._path:
            self._looks += 1
            return (self._broken if self._looks == 1 else self._whole).open(path, mode)
        return self._whole.open(path, mode)


def test_what_is_wrong_in_a_store_in_use_must_show_twice() -> None:
    """A read may overlap a write, and a file may go between listing and reading."""
    topic = Topic().segment(3)
    clean = storekit.store(topic)
    broken = storekit.on_sim(storekit.flipped(clean, topic.path(1, "data"), 35))
    whole = storekit.on_sim(clean)
    path = f"{ROOT}/{topic.path(1, 'data')}"
    assert not inspect(Healing(broken, whole, path), ROOT).ok
    assert inspect(Healing(broken, whole, path), ROOT, in_use=True).ok
    idx = f"{ROOT}/{topic.path(1, 'idx')}"
    vanished = storekit.on_sim(storekit.without(clean, topic.path(1, "idx")))
    assert [one.code for one in inspect(Healing(vanished, whole, idx), ROOT).findings] == ["idx_damaged"]
    assert [one.code for one in inspect(Healing(vanished, whole, idx), ROOT, in_use=True).findings] == ["in_use"]


@pytest.mark.parametrize("seed", range(4))
def test_missing_and_cut_files_never_stop_the_examination(clean: Files, seed: int) -> None:
    """T7: every file missing, every length tried somewhere; it always ends with a report."""
    rng = random.Random(f"inspect {seed}")
    for path in clean:
        if path in (".topics.lock", "wal/CURRENT"):
            continue
        assert worst(found(storekit.without(clean, path))) is not None, path
        cut = clean | {path: clean[path][: rng.randrange(len(clean[path]))]}
        assert worst(found(cut)) in ("warning", "error"), path


def test_swapped_files_are_found(clean: Files) -> None:
    """S-135, T7: every two files of one type."""
    for kind in (".data", ".idx", ".tag"):
        names = [path for path in clean if path.endswith(kind)]
        for one in names:
            for other in names:
                if clean[one] != clean[other]:
                    swapped = clean | {one: clean[other], other: clean[one]}
                    assert worst(found(swapped)) in ("warning", "error"), (one, other)


def test_a_directory_that_is_no_store_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(NotAStore):
            inspect(OsFs(), str(path))
    (tmp_path / "file").write_text("x")
    with pytest.raises(NotAStore):
        inspect(OsFs(), str(tmp_path / "file"))


def test_a_real_directory_reads_the_same(clean: Files, tmp_path: Path) -> None:
    report = inspect(OsFs(), str(storekit.on_disk(clean, tmp_path)))
    assert report.findings == ()


def test_every_code_says_what_it_means_and_what_to_do() -> None:
    """The table is what people read."""
    assert set(FLUX) <= set(CODES)
    for code, row in CODES.items():
        assert row.means, code
        assert row.do, code


def test_segments_made_by_the_engine_s_own_code_are_healthy() -> None:
    """What cycles, rewrites and drops leave behind is what the examination expects."""
    disk = segkit.new_disk()
    life = segkit.Life(disk, limits=segkit.LIMITS)
    life.write(20)
    life.checkpoint()
    life.delete(3, 4, 15)
    life.lose(12)
    life.write(3)
    life.checkpoint()
    life.rewrite(life.topic.segments[0])
    life.snapshot()
    life.drop_first()
    topic = Topic()
    topic.end = life.head
    item = topic.item(segments=life.topic.rows(), cap_floor=life.marked.floor)
    files = storekit.base_files() | storekit.snapshot_file(1, [item]) | storekit.snapshot_file(2, [item])
    files |= {path.removeprefix("store/"): data for path, data in disk.files().items()}
    assert found(files) == set()
