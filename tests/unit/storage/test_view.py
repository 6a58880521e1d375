"""The view of external readers (06 §17): exactly the live records up to `ckpt_seq`, gaps told, nothing changed."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import numpy as np
import pytest

from tests.unit.storage import storekit
from tests.unit.storage.segkit import payload
from tests.unit.storage.storekit import STORE_ID, Topic
from topics.codec import segment
from topics.codec.place import topic_mask
from topics.errors import MetadataLost
from topics.fs import File
from topics.storage import view as views
from topics.storage.tags import tags_of
from topics.storage.tiers.reading import ColdUnavailable
from topics.storage.view import Batch, Deleted, Gap, StoreView, Tags, TopicView, Wanted
from topics.testing import SimFs

ROOT = "store"


def viewed(files: storekit.Files, name: str = "orders", **options: str) -> TopicView:
    topic = StoreView(storekit.on_sim(files), ROOT, **options).topic(name)
    assert topic is not None
    return topic


def told(topic: TopicView, *where: int, **options: int) -> tuple[list[int], list[tuple[int, int, int]]]:
    """The seqs and the gaps of a scan, which must be dense, ascending, and hold the records' own bytes."""
    seqs: list[int] = []
    gaps = []
    end = None
    for item in topic.scan(*where, **options):
        assert end is None or item.first == end + 1, f"{item} does not follow {end}"
        assert item.first <= item.last
        end = item.last
        if isinstance(item, Gap):
            gaps.append((item.first, item.last, item.reason))
            continue
        frames = list(item.frames())
        assert [frame.seq for frame in frames] == item.seqs.tolist()
        assert [frame.data for frame in frames] == [payload(seq) for seq in item.seqs.tolist()]
        assert [frame.ts for frame in frames] == item.entries["ts"].tolist()
        assert all(item.first <= seq <= item.last for seq in item.seqs.tolist())
        seqs += item.seqs.tolist()
    return seqs, gaps


def mixed() -> Topic:
    """Two sealed segments with a gap segment between them, and an active one."""
    return Topic().segment(6, deleted=[2]).gap(30, 3).segment(5, lost={38: 1, 39: 1}).segment(4, sealed=False, extra=2)


MIXED_SEQS = [1, 3, 4, 5, 6, 37, 40, 41, 42, 43, 44, 45]
MIXED_GAPS = [(7, 36, 3), (38, 39, 1)]


def test_a_scan_gives_every_live_record_and_tells_every_hole() -> None:
    """S-341, S-342, S-345: sealed, gap and active segments; what lies behind `ckpt_seq` is not given."""
    topic = viewed(storekit.store(mixed()))
    assert told(topic) == (MIXED_SEQS, MIXED_GAPS)
    assert topic.ckpt_seq == topic.head_seq == 45


def test_looking_changes_nothing_and_takes_no_lock() -> None:
    """S-340."""
    disk = storekit.on_sim(storekit.store(mixed()))
    held = disk.lock(f"{ROOT}/.topics.lock")
    before, calls = disk.files(), disk.disk_calls
    topic = StoreView(disk, ROOT).topic("orders")
    assert topic is not None
    told(topic)
    topic.segments()
    assert (disk.files(), disk.disk_calls) == (before, calls)
    held.close()


@pytest.mark.parametrize("verify", [True, False])
@pytest.mark.parametrize("low", [1, 2, 5, 7, 20, 36, 37, 38, 41, 45, 46])
@pytest.mark.parametrize("high", [1, 6, 7, 36, 39, 42, 45, 99])
def test_a_part_of_a_scan_is_that_part_of_the_whole(low: int, high: int, verify: bool) -> None:
    """S-341: a range is cut out of segments, gap segments and hole runs alike; S-348: also without checksums."""
    seqs, gaps = told(viewed(storekit.store(mixed())), low, high, verify=verify)
    assert seqs == [seq for seq in MIXED_SEQS if low <= seq <= high]
    expected = [(max(f, low), min(t, high), r) for f, t, r in MIXED_GAPS if max(f, low) <= min(t, high)]
    assert gaps == expected


def test_batches_are_small_and_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-5: memory is bounded by a batch; the records are the same."""
    monkeypatch.setattr(views, "BATCH_BYTES", 130)
    topic = viewed(storekit.store(mixed()))
    assert told(topic) == (MIXED_SEQS, MIXED_GAPS)
    batches = [item for item in topic.scan() if isinstance(item, Batch)]
    assert len(batches) > 6
    assert all(len(batch.data) <= 130 for batch in batches)


def test_long_dead_stretches_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch ends where the next live record is far."""
    monkeypatch.setattr(views, "SPACE_BYTES", 100)
    topic = viewed(storekit.store(Topic().segment(12, deleted=range(3, 11))))
    batches = [item for item in topic.scan() if isinstance(item, Batch)]
    assert [(batch.first, batch.last, batch.seqs.tolist()) for batch in batches] == [(1, 2, [1, 2]), (3, 12, [11, 12])]


def test_records_below_any_floor_are_not_given_but_holes_above_the_evict_floor_are() -> None:
    """S-342, S-125: `delete_below` hides records, not holes."""
    topic = Topic().segment(4, lost={2: 3}).segment(8, lost={6: 1})
    files = storekit.store(topic)
    files |= storekit.snapshot_file(3, [topic.item(delete_below=9, cap_floor=4)])
    assert told(viewed(files)) == ([9, 10, 11, 12], [(6, 6, 1)])
    files |= storekit.snapshot_file(4, [topic.item(ttl_floor=11, delete_below=2)])
    assert told(viewed(files)) == ([11, 12], [])


def test_nothing_above_the_checkpoint_is_given_whatever_the_files_hold() -> None:
    """S-345: what is behind `ck` may be cut away by a recovery."""
    topic = mixed()
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(ckpt_seq=42)])
    seqs, _ = told(viewed(files))
    assert seqs[-1] == 42


def test_expired_records_are_left_out_when_the_caller_says_what_is_expired() -> None:
    """S-345: less records older than `ttl_ms` at planning time; the ts of a record here is 1000 + its seq."""
    topic = Topic().segment(9)
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(cfg={"ttl_ms": 50})])
    found = viewed(files)
    assert found.expiry_ts(1055) == 1005
    assert told(found, min_ts=found.expiry_ts(1055)) == ([5, 6, 7, 8, 9], [])
    assert viewed(storekit.store(topic)).expiry_ts(10**12) == 0


def test_a_delete_byte_counts_without_its_mark_and_the_mark_without_the_byte() -> None:
    """S-342: either witness."""
    topic = Topic().segment(5)
    path = topic.path(1, "data")
    third = int(segment.scan_data(topic.files[path], topic_mask(topic.id)).rows["offset"][2])
    files = storekit.flipped(storekit.store(topic), path, third - 1, segment.DELETE_BYTE)
    assert told(viewed(files)) == ([1, 3, 4, 5], [])
    marked = Topic().segment(5, deleted=[4])
    files = storekit.store(marked) | {path: topic.files[path]}
    assert told(viewed(files)) == ([1, 2, 3, 5], [])


@pytest.mark.parametrize("where", ["first", "inner", "last", "two"])
def test_damage_in_a_sealed_segment_is_told_over_the_exact_records(where: str) -> None:
    """S-341, R-3: one flipped bit costs one record, and it is said."""
    topic = Topic().segment(8, fillers=[5]).segment(2, sealed=False)
    at = {"first": [1], "inner": [4], "last": [8], "two": [3, 4]}[where]
    files = storekit.store(topic)
    rows = segment.scan_data(files[topic.path(1, "data")], topic_mask(topic.id)).rows
    offsets = dict(zip(rows["seq"].tolist(), rows["offset"].tolist(), strict=True))
    for seq in at:
        files = storekit.flipped(files, topic.path(1, "data"), offsets[seq] + 31)
    seqs, gaps = told(viewed(files))
    assert seqs == [seq for seq in (1, 2, 3, 4, 6, 7, 8, 9, 10) if seq not in at]
    assert gaps == [(at[0], at[-1], 2)]
    details = [item.detail for item in viewed(files).scan() if isinstance(item, Gap)]
    assert len(details) == 1
    assert re.fullmatch(r"store/topics/0000000A/seg-0+1\.data at [0-9]+: the frame does not verify", details[0])


def test_a_bad_frame_in_the_unsealed_segment_ends_the_scan_without_an_error() -> None:
    """S-341: it is the end for now; the records before it are given, and where the scan stands can be seen."""
    topic = Topic().segment(3).segment(5, sealed=False)
    files = storekit.flipped(storekit.store(topic), topic.path(4, "data"), 2 * 80)
    seqs, gaps = told(viewed(files))
    assert (seqs, gaps) == ([1, 2, 3, 4, 5], [])


def test_every_flipped_bit_of_an_idx_is_noticed_or_harmless() -> None:
    """R-5, T6: no byte of a sealed or active `.idx` makes the view serve something else."""
    topic = Topic().segment(4, lost={2: 3}).segment(3, sealed=False)
    clean = storekit.store(topic)
    expected = ([1, 3, 4, 5, 6, 7], [(2, 2, 3)])
    assert told(viewed(clean)) == expected
    for first in (1, 5):
        path = topic.path(first, "idx")
        for at in range(len(clean[path])):
            for mask in (1, 0x80, clean[path][at] or 0xFF):
                seqs, gaps = told(viewed(storekit.flipped(clean, path, at, mask)))
                if (seqs, gaps) == expected:
                    continue
                # A hole has no frame: where its entry cannot be believed it is told as damage.
                changed = (seqs, [(f, t, 3 if r == 2 else r) for f, t, r in gaps])
                hidden = at % 20 == 16 and first == 5 and len(seqs) == len(expected[0]) - 1
                assert changed == expected or hidden, f"byte {at} of {path}: {seqs} {gaps}"


def test_a_missing_idx_or_one_that_does_not_verify_is_read_through_the_data() -> None:
    """S-342: without any `.idx`, `.data` alone can be iterated; frames carry seq and delete byte."""
    topic = Topic().segment(6, deleted=[3]).segment(2)
    clean = storekit.store(topic)
    path = topic.path(1, "idx")
    for files in (storekit.without(clean, path), storekit.flipped(clean, path, 50), clean | {path: b""}):
        assert told(viewed(files)) == ([1, 2, 4, 5, 6, 7, 8], [])
        assert [one.tier for one in viewed(files).segments()] == ["damaged", "hot"]


def test_a_segment_that_is_not_there_is_told() -> None:
    """S-250: between two others it is damage; before all others it may have been dropped since the snapshot."""
    topic = Topic().segment(3).segment(3).segment(3)
    clean = storekit.store(topic)
    gone = {
        first: storekit.without(clean, *(topic.path(first, kind) for kind in ("data", "idx", "tag")))
        for first in (1, 4, 7)
    }
    assert told(viewed(gone[4])) == ([1, 2, 3, 7, 8, 9], [(4, 6, 2)])
    assert told(viewed(gone[7])) == ([1, 2, 3, 4, 5, 6], [(7, 9, 2)])
    assert told(viewed(gone[1])) == ([4, 5, 6, 7, 8, 9], [(1, 3, views.DROPPED)])
    files = gone[1] | storekit.snapshot_file(3, [topic.item(delete_below=4)])
    assert told(viewed(files)) == ([4, 5, 6, 7, 8, 9], [])


def test_an_idx_without_its_data_is_damage_only_where_something_is_live() -> None:
    """S-250, S-274: a dead stub is silent."""
    topic = Topic().segment(4, deleted=[1, 2, 3, 4]).segment(4, deleted=[6])
    files = storekit.without(storekit.store(topic), topic.path(1, "data"), topic.path(5, "data"))
    assert told(viewed(files)) == ([], [(5, 5, 2), (7, 8, 2)])


def test_a_rewritten_segment_is_read_from_the_generation_that_its_idx_names() -> None:
    """S-341, S-283: other generations are not looked at."""
    topic = Topic().segment(5, deleted=[2], generation=3)
    files = storekit.store(topic) | {topic.path(1, "data"): b"old", topic.path(1, "data", 2): b"older"}
    assert told(viewed(files)) == ([1, 3, 4, 5], [])
    assert viewed(files).segments()[0].generation == 3


def test_segments_are_described_by_their_files() -> None:
    """S-341: sealed iff there is a footer; live by marks and floors."""
    topic = mixed()
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(cap_floor=4)])
    found = viewed(files).segments()
    assert [(one.first, one.last, one.sealed, one.tier, one.live) for one in found] == [
        (1, 6, True, "hot", 3), (7, 36, True, "gap", 0), (37, 41, True, "hot", 3), (42, 45, False, "hot", 4),
    ]  # fmt: skip
    assert [(one.min_ts, one.max_ts) for one in found] == [(1001, 1006), (1007, 1007), (1037, 1041), (1042, 1045)]


class Meanwhile:
    """A disk on which something happens at the first opening of a path."""

    def __init__(self, disk: SimFs, path: str, then: Callable[[], object]) -> None:
        self._disk = disk
        self._path = path
        self._then: Callable[[], object] | None = then

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def open(self, path: str, mode: str) -> File:
        if path == self._path and self._then is not None:
            then, self._then = self._then, None
            then()
        return self._disk.open(path, mode)


def raced(files: storekit.Files, at: str, then: Callable[[SimFs], object]) -> TopicView:
    disk = storekit.on_sim(files)
    topic = StoreView(Meanwhile(disk, f"{ROOT}/{at}", lambda: then(disk)), ROOT).topic("orders")
    assert topic is not None
    return topic


def test_a_rewrite_between_idx_and_data_is_followed() -> None:
    """S-343: a data file that is gone means: read the `.idx` again."""
    before, after = Topic().segment(6, deleted=[2]), Topic().segment(6, deleted=[2, 3], generation=1)
    path = before.path(1, "data")

    def rewrite(disk: SimFs) -> None:
        disk.load({f"{ROOT}/{name}": data for name, data in after.files.items()})
        disk.remove(f"{ROOT}/{path}")

    assert told(raced(storekit.store(before), path, rewrite)) == ([1, 4, 5, 6], [])


def test_a_segment_dropped_while_it_is_read_is_no_damage() -> None:
    """S-340: files may vanish at any time; the ones that are left are read."""
    topic = Topic().segment(3).segment(3)

    def drop(disk: SimFs) -> None:
        for kind in ("data", "tag", "idx"):
            disk.remove(f"{ROOT}/{topic.path(1, kind)}")

    found = told(raced(storekit.store(topic), topic.path(1, "data"), drop))
    assert found == ([4, 5, 6], [(1, 3, views.DROPPED)])
    assert [one.first for one in raced(storekit.store(topic), topic.path(1, "idx"), drop).segments()] == [4]


def test_an_active_segment_that_is_sealed_meanwhile_is_read_on() -> None:
    """S-340: the next segment shows when the directory is listed again."""
    before, after = Topic().segment(3).segment(4, sealed=False), Topic().segment(3).segment(4)

    def seal(disk: SimFs) -> None:
        disk.load({f"{ROOT}/{name}": data for name, data in after.files.items()})

    assert told(raced(storekit.store(before), before.path(4, "idx"), seal)) == ([1, 2, 3, 4, 5, 6, 7], [])


def cold_store(topic: Topic, *, id: str = STORE_ID) -> storekit.Files:
    """The data files of a topic moved to the cold folder."""
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item()], cold="vault")
    data = topic.path(1, "data")
    return storekit.without(files, data) | {"../vault/" + data: files[data], "../vault/.topics-store": id.encode()}


def on_sim(files: storekit.Files) -> SimFs:
    disk = storekit.on_sim({path: data for path, data in files.items() if not path.startswith("../")})
    disk.load({path[3:]: data for path, data in files.items() if path.startswith("../")})
    return disk


def test_a_cold_segment_is_read_in_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """K-13: there a read may be a request."""
    monkeypatch.setattr(views, "BATCH_BYTES", 130)
    topic = Topic().segment(9, magic=segment.COLD).segment(9)
    found = StoreView(on_sim(cold_store(topic)), ROOT).topics()[0]
    batches = [item.seqs.tolist() for item in found.scan() if isinstance(item, Batch)]
    assert batches[0] == list(range(1, 10))
    assert len(batches) > 5


def test_a_cold_segment_is_read_from_the_folder_of_the_snapshot() -> None:
    """S-346, S-342: the local `.idx` decides, the bytes come from the cold tier; another store's folder is refused."""
    topic = Topic().segment(5, magic=segment.COLD, deleted=[2]).segment(2)
    found = StoreView(on_sim(cold_store(topic)), ROOT).topics()[0]
    assert told(found) == ([1, 3, 4, 5, 6, 7], [])
    assert [one.tier for one in found.segments()] == ["cold", "hot"]
    other = StoreView(on_sim(cold_store(topic, id="another")), ROOT).topics()[0]
    with pytest.raises(ColdUnavailable, match="another store"):
        told(other)
    assert told(other, 6) == ([6, 7], [])
    with pytest.raises(ColdUnavailable, match="not mounted"):
        told(StoreView(on_sim(cold_store(topic)), ROOT, cold="elsewhere").topics()[0])


def test_a_damaged_newest_snapshot_shows_the_state_of_the_one_before() -> None:
    """S-340, S-215: the newest valid one counts; if none is left that is an error, never an empty store."""
    topic = mixed()
    files = storekit.store(topic)
    newer = files | storekit.snapshot_file(3, [topic.item(ckpt_seq=40)])
    path = "meta/snapshot-0000000000000003.bin"
    assert viewed(newer).ckpt_seq == 40
    assert viewed(storekit.flipped(newer, path, 60)).ckpt_seq == 45
    for name in [name for name in newer if name.startswith("meta/snapshot")]:
        newer = storekit.flipped(newer, name, 60)
    with pytest.raises(MetadataLost):
        StoreView(storekit.on_sim(newer), ROOT)


def test_a_store_without_a_snapshot_has_nothing_to_show_yet() -> None:
    """S-345."""
    found = StoreView(storekit.on_sim(storekit.base_files()), ROOT)
    assert (found.header, found.topics(), found.topic("orders")) == (None, [], None)


def test_refresh_takes_the_newest_snapshot() -> None:
    topic = mixed()
    files = storekit.store(topic)
    disk = storekit.on_sim(files | storekit.snapshot_file(3, [topic.item(ckpt_seq=40)]))
    store = StoreView(disk, ROOT)
    disk.load({f"{ROOT}/{name}": data for name, data in storekit.snapshot_file(4, [topic.item()]).items()})
    assert store.topics()[0].ckpt_seq == 40
    store.refresh()
    assert store.topics()[0].ckpt_seq == 45


@pytest.mark.parametrize("seed", range(6))
def test_damage_anywhere_in_data_is_never_served(seed: int) -> None:
    """T6, R-5: whatever one byte becomes, every record is either given as it was or told as damage, and no other."""
    rng = random.Random(f"view {seed}")
    topic = Topic().segment(5, deleted=[2]).segment(5)
    clean = storekit.store(topic)
    expected = [1, 3, 4, 5, 6, 7, 8, 9, 10]
    for _ in range(120):
        path = topic.path(rng.choice((1, 6)), "data")
        at, mask = rng.randrange(len(clean[path])), rng.choice((1 << rng.randrange(8), 0xFF))
        seqs, gaps = told(viewed(storekit.flipped(clean, path, at, mask)))
        lost = [seq for first, last, reason in gaps for seq in range(first, last + 1) if reason == 2]
        assert sorted(seqs + lost) == expected or (not lost and len(seqs) == len(expected) - 1), (path, at, mask)


@pytest.mark.parametrize("length", range(0, 400, 13))
def test_a_data_file_of_any_length_gives_what_is_left_and_tells_the_rest(length: int) -> None:
    """T7: a clean prefix and a gap over the exact rest."""
    topic = Topic().segment(5)
    clean = storekit.store(topic)
    path = topic.path(1, "data")
    seqs, gaps = told(viewed(clean | {path: clean[path][:length]}))
    size = len(clean[path])
    rows = segment.scan_data(clean[path], topic_mask(topic.id)).rows
    whole = int((rows["offset"] + rows["len"] <= min(length, size)).sum())
    assert seqs == list(range(1, whole + 1))
    assert gaps == ([(whole + 1, 5, 2)] if whole < 5 else [])


def test_swapped_files_do_not_verify() -> None:
    """S-135, T7: data of another topic, an `.idx` of another segment."""
    one, two = Topic().segment(4).segment(4), Topic(11, "bills").segment(4)
    clean = storekit.store(one, two)
    files = clean | {one.path(1, "data"): clean[two.path(1, "data")], two.path(1, "data"): clean[one.path(1, "data")]}
    assert told(viewed(files)) == ([5, 6, 7, 8], [(1, 4, 2)])
    files = clean | {one.path(1, "data"): clean[one.path(5, "data")]}
    assert len(clean[one.path(1, "data")]) == len(clean[one.path(5, "data")])
    assert told(viewed(files)) == ([5, 6, 7, 8], [(1, 4, 2)])
    files = clean | {one.path(1, "idx"): clean[one.path(5, "idx")]}
    assert told(viewed(files)) == ([1, 2, 3, 4, 5, 6, 7, 8], [])


class Flickering:
    """A data file whose first reading is wrong."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._reads = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._file, name)

    def pread(self, n: int, offset: int) -> bytes:
        self._reads += 1
        data = self._file.pread(n, offset)
        return data if self._reads > 1 else data[:40] + b"?" + data[41:]


class FlickeringDisk:
    def __init__(self, disk: SimFs) -> None:
        self._disk = disk

    def __getattr__(self, name: str) -> object:
        return getattr(self._disk, name)

    def open(self, path: str, mode: str) -> object:
        file = self._disk.open(path, mode)
        return Flickering(file) if path.endswith(".data") else file


def test_what_fails_once_is_read_again() -> None:
    """S-176: damage is what fails twice."""
    topic = StoreView(FlickeringDisk(storekit.on_sim(storekit.store(Topic().segment(4)))), ROOT).topics()[0]
    assert told(topic) == ([1, 2, 3, 4], [])


def test_deleted_seqs_are_told_to_those_who_ask() -> None:
    """K-10: marks, fillers, delete bytes without a mark, records below `delete_below`, silent gap segments."""
    topic = Topic().segment(6, deleted=[2], fillers=[3]).gap(3000, 0).segment(4, sealed=False)
    files = storekit.store(topic) | storekit.snapshot_file(3, [topic.item(delete_below=2)])
    path = topic.path(1, "data")
    rows = segment.scan_data(files[path], topic_mask(topic.id)).rows
    files = storekit.flipped(files, path, int(rows["offset"][3] + rows["len"][3]) - 1, segment.DELETE_BYTE)
    told = list(viewed(files).tell(1, None, Wanted(deleted=True)))
    deleted = np.concatenate([item.seqs for item in told if isinstance(item, Deleted)])
    kept = np.concatenate([item.seqs for item in told if isinstance(item, Batch)])
    assert sorted(kept.tolist()) == [4, 6, 3007, 3008, 3009, 3010]
    assert sorted(deleted.tolist()) == [1, 2, 3, 5, *range(7, 3007)]
    assert [item for item in viewed(files).tell(1, None, Wanted()) if isinstance(item, Deleted)] == []


def test_pending_deletes_count_like_marks() -> None:
    """A-8: what a server told to be deleted is not given, although no file says so."""
    topic = viewed(storekit.store(Topic().segment(6).segment(6)))
    told = list(topic.tell(2, 11, Wanted(pending=[(1, 2), (5, 8), (12, 12)], deleted=True)))
    kept = [seq for item in told if isinstance(item, Batch) for seq in item.seqs.tolist()]
    gone = [seq for item in told if isinstance(item, Deleted) for seq in item.seqs.tolist()]
    assert (kept, gone) == ([3, 4, 9, 10, 11], [2, 5, 6, 7, 8])


@pytest.mark.parametrize("broken", [False, True])
def test_a_tag_spares_reading_the_records_without_it(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """K-13, S-187: by the sidecar where it verifies, else by the entries alone; gaps and coverage stay the same."""
    monkeypatch.setattr(views, "PICKED_SPACE_BYTES", 0)
    topic = Topic().segment(9, lost={5: 1})
    files = storekit.store(topic)
    rows = segment.scan_data(files[topic.path(1, "data")], topic_mask(topic.id)).rows
    tags = tags_of(files[topic.path(1, "data")], rows)
    if broken:
        files = storekit.flipped(files, topic.path(1, "tag"), 30)
    one = sorted(tags)[0].decode()
    told = list(viewed(files).tell(1, None, Wanted(tags=Tags((one,)))))
    assert [item.first for item in told if not isinstance(item, Deleted)] == [1, 5, 6]
    found = [seq for item in told if isinstance(item, Batch) for seq in item.seqs.tolist()]
    assert set(tags[one.encode()]) <= set(found)
    assert broken or found == list(tags[one.encode()])
    everything = viewed(files).tell(1, None, Wanted(tags=Tags(prefixes=("",))))
    assert [seq for item in everything if isinstance(item, Batch) for seq in item.seqs.tolist()] == sorted(
        seq for seqs in tags.values() for seq in seqs
    )
