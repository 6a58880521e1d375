"""The snapshots of a store: one loads after any crash, and a failed attempt changes nothing."""

from __future__ import annotations

import errno
import logging
import random
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from topics import paths
from topics.codec import snapshot as codec
from topics.codec.snapshot import Header, Snapshot, TopicItem, WalRow
from topics.errors import DiskError, MetadataLost, UnsupportedFormat
from topics.fs import Fs, OsFs
from topics.storage.snapshot import SnapshotStore
from topics.testing import Fault, FaultFs, MonitorFs, PowerLoss, SimFs
from topics.testing.faultfs import FAULTS, TIMES
from topics.testing.simfs import STYLES, SYNC_MODES, Call, CrashMode, Style

META = "/data/meta"
STORE = "00112233445566778899aabbccddeeff"
MODES: tuple[CrashMode, ...] = ("before", "middle", "after")
FURTHER: tuple[Style, ...] = ("prefix", "random") * 4


@cache
def encoded(number: int, store: str = STORE) -> bytes:
    """A snapshot of several sectors; its size differs from that of its neighbours."""
    header = Header(
        id=number,
        ts=number,
        store=store,
        run=number,
        boot="b",
        clean=False,
        next_topic_id=99,
        next_epoch=1,
        next_router_op=1,
        ckpt=number,
        cold=None,
        wal=(WalRow("", number, 100 * number),),
    )
    topics = (
        TopicItem(
            id=i,
            name=f"topic {i} of {number}",
            epoch=1,
            cfg={"type": "log", "note": "x" * 40},
            config_version=1,
            base=1,
            head_seq=i,
            ckpt_seq=i,
            reserved=0,
            cap_floor=1,
            ttl_floor=1,
            delete_below=1,
            delete_number=0,
            deletes_recorded=0,
            last_write_ms=number,
            segments=(),
        )
        for i in range(10 + number % 5)
    )
    return codec.encode(header, topics, ())


def path(number: int) -> str:
    return f"{META}/{paths.snapshot(number)}"


def disk(*numbers: int, seed: int = 0) -> SimFs:
    """A disk with these snapshots on it, durable."""
    fs = SimFs(seed)
    fs.load({f"{META}/STORE": b"x\n", **{path(number): encoded(number) for number in numbers}})
    return fs


def opened(fs: Fs) -> SnapshotStore:
    """A store as start-up leaves it: tidied and loaded."""
    store = SnapshotStore(fs, META)
    store.tidy()
    store.load(STORE)
    return store


def id_of(loaded: Snapshot | None) -> int:
    """Number of a loaded snapshot, 0 for none; all of it must be what was encoded under that number."""
    if loaded is None:
        return 0
    assert loaded == codec.decode(encoded(loaded.header.id))
    return loaded.header.id


def names(fs: SimFs) -> set[str]:
    return {name.rpartition("/")[2] for name in fs.files()} - {"STORE"}


def snapshots(*numbers: int) -> set[str]:
    return {paths.snapshot(number) for number in numbers}


def test_a_written_snapshot_loads(tmp_path: Path) -> None:
    """S-213, on a real disk."""
    store = SnapshotStore(OsFs(), str(tmp_path))
    assert store.load(STORE) is None
    assert store.next_number() == 1
    for number in (1, 2, 3, 4):
        assert store.next_number() == number
        store.write(number, encoded(number))
        assert id_of(SnapshotStore(OsFs(), str(tmp_path)).load(STORE)) == number
    assert {entry.name for entry in tmp_path.iterdir()} == snapshots(3, 4)
    assert oct((tmp_path / paths.snapshot(4)).stat().st_mode & 0o777) == "0o600"


def test_the_order_of_a_write_is_that_of_the_rule() -> None:
    """S-213: tmp, fsync, rename, directory, read back, prune; the page cache is told to forget before reading."""
    fs = disk(1, 2)
    store = opened(fs)
    reads_at: dict[str, tuple[int, int]] = {}

    def note(call: Call) -> None:
        reads_at.setdefault(call[1], (fs.reads["fadvise"], fs.reads["pread"]))

    fs.before = note
    before = fs.disk_calls
    store.write(3, encoded(3))
    tmp = paths.tmp(path(3))
    assert [call[:2] for call in fs.calls[before:]] == [
        ("create", tmp),
        ("pwrite", tmp),
        ("fsync", tmp),
        ("point", "snap.after_tmp"),
        ("rename", tmp),
        ("point", "snap.after_rename"),
        ("sync_dir", META),
        ("point", "snap.before_prune"),
        ("remove", path(1)),
        ("sync_dir", META),
    ]
    fadvised, read = reads_at["snap.after_rename"]
    assert reads_at["snap.before_prune"] == (fadvised + 1, read + 1)


def test_the_order_monitor_finds_nothing() -> None:
    """S-12, S-213: nothing is renamed unsynced, no name is left waiting."""
    monitor = MonitorFs(SimFs())
    monitor.makedirs(META)
    monitor.sync_dir("/data")
    monitor.sync_dir("/")
    store = SnapshotStore(monitor, META)
    for number in range(1, 6):
        store.write(number, encoded(number))
        monitor.acked(path(number), len(encoded(number)))
        monitor.settled()
    assert monitor.violations == []


@pytest.mark.parametrize("present", [(), (1,), (1, 2), (4, 5, 6)])
def test_one_consistent_snapshot_loads_after_a_crash_at_every_disk_call(present: tuple[int, ...]) -> None:
    """S-362 7, S-213, R-4: the previous one or the new one, never a part, never none."""
    fs = disk(*present)
    store = opened(fs)
    last = max(present, default=0)
    rng = random.Random(f"snapshot crash {present}")
    acceptable = {last}
    images: list[tuple[set[int], SimFs]] = []

    def fork(_: object = None) -> None:
        images.extend((set(acceptable), fs.crash_image(rng, style)) for style in (*STYLES, *FURTHER))

    fs.before = fork
    for number in (last + 1, last + 2):
        acceptable.add(number)
        store.write(number, encoded(number))
        acceptable = {number}
        fork()
    assert len(images) > 200
    for allowed, image in images:
        assert id_of(opened_and_loaded(image)) in allowed
        if allowed == {last + 2}:
            assert names(image) == snapshots(last + 1, last + 2)


def opened_and_loaded(fs: Fs) -> Snapshot | None:
    store = SnapshotStore(fs, META)
    store.tidy()
    return store.load(STORE)


@pytest.mark.parametrize("mode", MODES)
def test_a_store_goes_on_after_a_crash_at_every_disk_call(mode: CrashMode) -> None:
    """S-213, S-217: whatever a cut-short attempt left, the next one works and two snapshots remain."""
    calls = disk_calls_of_a_write()
    for n in range(1, calls + 1):
        fs = disk(1, 2, seed=n)
        store = opened(fs)
        fs.crash_at(fs.disk_calls + n, mode)
        with pytest.raises(PowerLoss):
            store.write(3, encoded(3))
        for style in STYLES:
            image = fs.crash_image(n, style)
            after = opened(image)
            assert not any(name.endswith(".tmp") for name in names(image))
            number = after.next_number()
            assert number in (3, 4)
            after.write(number, encoded(number))
            assert names(image) == snapshots(number - 1, number)
            assert id_of(after.load(STORE)) == number


def disk_calls_of_a_write() -> int:
    fs = disk(1, 2)
    store = opened(fs)
    before = fs.disk_calls
    store.write(3, encoded(3))
    return fs.disk_calls - before


@pytest.mark.parametrize("point", ["snap.after_tmp", "snap.after_rename", "snap.before_prune"])
def test_every_named_crash_point_is_passed(point: str) -> None:
    """S-361."""
    fs = disk(1, 2)
    store = opened(fs)
    fs.crash_at_point(point)
    with pytest.raises(PowerLoss):
        store.write(3, encoded(3))
    assert id_of(opened_and_loaded(fs.crash_image(0, "everything"))) == (2 if point == "snap.after_tmp" else 3)
    assert id_of(opened_and_loaded(fs.crash_image(0, "nothing"))) == (3 if point == "snap.before_prune" else 2)


def faults_of_a_write() -> Iterator[Fault]:
    dry = FaultFs(disk(1, 2))
    store = opened(dry)
    before = dict(dry.counts)
    store.write(3, encoded(3))
    for op, errors in FAULTS.items():
        for index in range(1, dry.counts[op] - before.get(op, 0) + 1):
            for error in errors:
                for times in TIMES:
                    modes = SYNC_MODES[:3] if "sync" in op and error == "EIO" else SYNC_MODES[:1]
                    for mode in modes:
                        yield Fault(op, index, error, times, sync_mode=mode)


@pytest.mark.parametrize("fault", list(faults_of_a_write()), ids=str)
def test_the_previous_snapshot_stays_in_force_whatever_fails(fault: Fault) -> None:
    """S-217: an `OSError` means nothing has changed; success means that the new one is durable."""
    fs = FaultFs(disk(1, 2, seed=7))
    store = opened(fs)
    fs.inject(fault)
    try:
        store.write(3, encoded(3))
        expected = {3}
    except OSError:
        # Where even taking the new one away failed it may be there, complete; the previous one is there as well.
        expected = {2} if fault.times == "once" else {2, 3}
    assert fs.hits
    sim = fs.inner
    assert isinstance(sim, SimFs)
    if fault.times == "once":
        assert not any(name.endswith(".tmp") for name in names(sim))
    assert path(2)[1:] in sim.files()
    fs.clear()
    assert id_of(SnapshotStore(fs, META).load(STORE)) in expected
    for style in STYLES:
        survivors = expected if expected == {3} else {2, 3}
        image = sim.crash_image(1, style)
        assert id_of(opened_and_loaded(image)) in survivors
    number = store.next_number()
    store.write(number, encoded(number))
    assert id_of(store.load(STORE)) == number
    kept = names(sim)
    assert paths.snapshot(number) in kept
    assert len(kept) == 2
    for name in kept:
        assert sim.files()[f"{META}/{name}"[1:]] == encoded(paths.parse_snapshot(name) or 0)


def test_space_that_runs_out_leaves_the_previous_and_nothing_else() -> None:
    """S-217."""
    fs = disk(1, 2)
    store = opened(fs)
    fs.capacity = sum(len(data) + 511 for data in fs.files().values()) + 512
    with pytest.raises(OSError, match="No space left"):
        store.write(3, encoded(3))
    assert names(fs) == snapshots(1, 2)
    fs.capacity = None
    store.write(3, encoded(3))
    assert names(fs) == snapshots(2, 3)


@pytest.mark.parametrize("damage", ["flip", "cut", "grow"])
def test_a_snapshot_that_does_not_read_back_is_taken_away(damage: str) -> None:
    """S-213, R-4: read back before anything older is given up."""
    fs = disk(1, 2)
    store = opened(fs)

    def strike(call: Call) -> None:
        if call[:2] == ("point", "snap.after_rename"):
            if damage == "flip":
                fs.flip_bit(path(3), len(encoded(3)) - 1, 3)
            else:
                fs.truncate_at_rest(path(3), len(encoded(3)) + (1 if damage == "grow" else -1))

    fs.before = strike
    with pytest.raises(OSError, match="read back") as caught:
        store.write(3, encoded(3))
    assert caught.value.errno == errno.EIO
    assert names(fs) == snapshots(1, 2)
    fs.before = None
    store.write(3, encoded(3))
    assert names(fs) == snapshots(2, 3)


def test_a_large_snapshot_is_read_back_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-213: damage in any piece is found."""
    monkeypatch.setattr("topics.storage.snapshot.READ_BACK_BYTES", 100)
    size = len(encoded(1))
    for at in (0, 99, 100, size // 2, size - 1):
        fs = disk()
        store = SnapshotStore(fs, META)
        fs.before = lambda call, fs=fs, at=at: call[1] == "snap.after_rename" and fs.flip_bit(path(1), at, 0)
        with pytest.raises(OSError, match="read back"):
            store.write(1, encoded(1))
        fs.before = None
        store.write(1, encoded(1))


def test_a_damaged_newest_snapshot_is_logged_and_the_previous_one_loads(caplog: pytest.LogCaptureFixture) -> None:
    """S-215."""
    rng = random.Random(1)
    for _ in range(40):
        fs = disk(4, 5)
        fs.flip_bit(path(5), rng.randrange(len(encoded(5))), rng.randrange(8))
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            assert id_of(SnapshotStore(fs, META).load(STORE)) == 4
        assert paths.snapshot(5) in caplog.text


def test_a_damaged_snapshot_does_not_count_as_one_of_the_two() -> None:
    """R-4: pruning spares the newest one that was verified, not N-1."""
    fs = disk(3, 4, 5)
    fs.truncate_at_rest(path(5), 30)
    store = opened(fs)
    assert store.next_number() == 6
    store.write(6, encoded(6))
    assert names(fs) == snapshots(4, 6)


def test_nothing_is_pruned_before_anything_was_verified() -> None:
    """R-4: a store that was never loaded does not know which of its snapshots are good."""
    fs = disk(1, 2, 3)
    store = SnapshotStore(fs, META)
    store.write(4, encoded(4))
    assert names(fs) == snapshots(1, 2, 3, 4)
    store.write(5, encoded(5))
    assert names(fs) == snapshots(4, 5)


def test_a_snapshot_under_another_number_or_of_another_store_is_passed_over() -> None:
    """S-135, S-215."""
    fs = disk(4)
    fs.load({path(5): encoded(6), path(7): encoded(7, "f" * 32)})
    assert id_of(SnapshotStore(fs, META).load(STORE)) == 4
    assert SnapshotStore(fs, META).load(None) == codec.decode(encoded(7, "f" * 32))


def test_when_no_snapshot_will_do_metadata_is_lost_and_nothing_is_touched() -> None:
    """S-216."""
    fs = disk(1, 2)
    for number in (1, 2):
        fs.zero_sector(path(number), 1)
    before = fs.files()
    with pytest.raises(MetadataLost, match=paths.snapshot(1)) as caught:
        SnapshotStore(fs, META).load(STORE)
    assert isinstance(caught.value, DiskError)
    assert (fs.files(), fs.disk_calls) == (before, 0)


def test_a_later_version_ends_the_search() -> None:
    """S-7, S-215: an older one must not be taken for the newest."""
    later = bytearray(encoded(3))
    later[4] = 4
    later[16:24] = codec.xxh3_64(bytes(later[:16] + later[24:])).intdigest().to_bytes(8, "little")
    fs = disk(1, 2)
    fs.load({path(3): bytes(later)})
    with pytest.raises(UnsupportedFormat, match=paths.snapshot(3)):
        SnapshotStore(fs, META).load(STORE)
    assert fs.disk_calls == 0


@pytest.mark.parametrize("fault", [Fault("listdir", 1), Fault("open", 1), Fault("size", 1), Fault("pread", 1, "zero")])
def test_an_unreadable_snapshot_is_an_error_and_not_an_older_state(fault: Fault) -> None:
    """S-248: the previous snapshot is for damage, not for a disk that does not answer."""
    fs = FaultFs(disk(1, 2), [fault])
    with pytest.raises(OSError, match=r"\[Errno 5\]"):
        SnapshotStore(fs, META).load(STORE)
    assert id_of(SnapshotStore(fs, META).load(STORE)) == 2


def test_a_file_too_long_for_any_snapshot_is_not_read() -> None:
    """S-215: nothing is allocated from a length before it was checked."""
    fs = disk(1, 2)
    fs.truncate_at_rest(path(2), 2**40)
    reads = fs.reads["pread"]
    assert id_of(SnapshotStore(fs, META).load(STORE)) == 1
    assert fs.reads["pread"] == reads + 1


def test_a_reader_lists_again_when_an_engine_prunes_under_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-340: files may vanish at any time."""
    fs = disk(1, 2)
    writer, reader = opened(fs), SnapshotStore(fs, META)
    stale = reader.numbers()
    for number in (3, 4):
        writer.write(number, encoded(number))
    listings = iter([stale])
    honest = SnapshotStore.numbers
    monkeypatch.setattr(SnapshotStore, "numbers", lambda self: next(listings, None) or honest(self))
    assert id_of(reader.load(STORE)) == 4
    monkeypatch.setattr(SnapshotStore, "numbers", lambda self: stale)
    with pytest.raises(FileNotFoundError):
        reader.load(STORE)


def test_headers_tell_of_every_snapshot_that_verifies() -> None:
    """S-21: the row of a group in any snapshot present."""
    fs = disk(3, 4, 5, 6)
    fs.truncate_at_rest(path(5), 30)
    assert [header.id for header in SnapshotStore(fs, META).headers(STORE)] == [6, 4, 3]
    assert SnapshotStore(fs, META).headers(None)[0].wal == (WalRow("", 6, 600),)
    assert SnapshotStore(fs, META).headers("f" * 32) == []


def test_a_number_is_not_used_twice_and_a_foreign_id_not_at_all() -> None:
    """S-135, S-213: a verified snapshot is never replaced."""
    fs = disk(1, 2)
    with pytest.raises(FileExistsError):
        opened(fs).write(2, encoded(2))
    with pytest.raises(AssertionError):
        opened(fs).write(3, encoded(4))
    with pytest.raises(codec.NotASnapshot):
        opened(fs).write(3, encoded(3)[:-1])
    assert fs.disk_calls == 0


def test_tidy_takes_away_only_what_an_attempt_left() -> None:
    """S-10, 06 §14 step 2: names that are not ours stay."""
    fs = disk(1)
    left = [paths.tmp(paths.snapshot(2)), paths.tmp("STORE")]
    foreign = ["notes.tmp", "snapshot-1.bin.tmp", "snapshot-0000000000000001.bin.bak", ".tmp"]
    fs.load({f"{META}/{name}": b"x" for name in left + foreign})
    store = SnapshotStore(fs, META)
    assert store.tidy() == 2
    assert names(fs) == {*foreign, paths.snapshot(1)}
    assert fs.calls[-1][0] == "sync_dir"
    assert store.tidy() == 0
    assert fs.disk_calls == 3


def test_a_longer_file_left_by_an_attempt_does_not_get_into_the_next() -> None:
    """S-217: where even the removal of the temporary file failed."""
    fs = disk(1, 2)
    fs.load({paths.tmp(path(3)): b"y" * 100_000})
    opened_store = SnapshotStore(fs, META)
    opened_store.load(STORE)
    opened_store.write(3, encoded(3))
    assert fs.files()[path(3)[1:]] == encoded(3)
    assert names(fs) == snapshots(2, 3)
