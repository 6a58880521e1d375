"""Salvage from end to end [S-66]: pad, recover, tell the gaps, checkpoint, close; and what outside readers then see."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from topics import paths
from topics.codec import control, frame
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine, ToldGap
from topics.engine.salvage import Outcome, salvage
from topics.errors import DataDirInUse, MetadataLost, WalCorrupt
from topics.fs import Fs
from topics.storage.inspect import inspect
from topics.storage.salvage import plan_salvage
from topics.storage.view import Batch, StoreView
from topics.testing import ManualClock, PowerLoss, SimFs
from topics.testing.simfs import STYLES

PATH = "store"
DELETE = 6
OPTIONS: dict[str, Any] = {
    "wal_file_bytes": 4096, "wal_init_zero": False, "segment_max_events": 7, "checkpoint_ms": 10**9,
    "wal_retain_files": 1000, "min_free_bytes": 0,
}  # fmt: skip


def opened(fs: Fs, path: str = PATH, *, mending: bool = False, clock: ManualClock | None = None, **more: Any) -> Any:
    config = EngineConfig(**(OPTIONS | more))
    return Engine.open(path, config, clock=clock or ManualClock(), fs=fs, boot_id="boot", salvage=mending)


def salvaged(disk: SimFs, **more: Any) -> Outcome:
    return salvage(disk, PATH, open_engine=lambda fs, path: opened(fs, path, mending=True, **more))


def write(engine: Any, n: int, name: str = "orders") -> None:
    for _ in range(n):
        engine.append(name, [{"data": {"n": 1}, "tag": "job:7"}])


def killed_store(n: int = 200, **more: Any) -> SimFs:
    """A store whose engine was killed with all its records in the log."""
    disk = SimFs(5)
    engine = opened(disk, **more)
    for name in ("orders", "bills"):
        engine.put_topic(name, {"durability": "fsync"})
    for _ in range(n // 10):
        write(engine, 9)
        write(engine, 1, "bills")
    return disk.kill_image()


def frames(disk: SimFs, topic: int, *, type: int = frame.APPEND) -> list[tuple[str, int, int, int]]:
    """File, offset, length and seq of a topic's frames."""
    found = []
    for path, data in sorted(disk.files().items()):
        if paths.parse_wal_file(path.rpartition("/")[2]) is None:
            continue
        rows = frame.scan_frames(data).rows
        chosen = rows[(rows["type"] == type) & (rows["topic_id"] == topic)]
        found += [(path, int(row["offset"]), int(row["len"]), int(row["seq"])) for row in chosen]
    return found


def seen(engine: Any, name: str = "orders") -> tuple[list[int], list[tuple[int, int, str]]]:
    """Every record and every gap, as a reader meets them."""
    seqs, gaps, at = [], [], 0
    while True:
        page = engine.read(name, at, limit=50)
        if page.tombstone is not None:
            gaps.append((page.tombstone.gap_from, page.tombstone.gap_to, page.tombstone.reason))
        seqs += [record.seq for record in page.records]
        if page.caught_up or page.next_from_seq == at:
            return seqs, gaps
        at = page.next_from_seq


def outside(disk: SimFs, name: str = "orders") -> list[int]:
    """What a reader of the files gets."""
    topic = StoreView(disk, PATH).topic(name)
    assert topic is not None
    return [seq for item in topic.scan() if isinstance(item, Batch) for seq in item.seqs.tolist()]


def test_a_damaged_record_is_told_and_everything_else_is_read() -> None:
    """S-65, S-66, R-3: the start refuses; salvage costs the damaged record, exactly, and keeps a copy of the file."""
    disk = killed_store()
    path, offset, _, seq = frames(disk, 1)[60]
    disk.flip_bit(path, offset + 45, 2)
    broken = disk.files()[path]
    assert not inspect(disk, PATH).ok
    with pytest.raises(WalCorrupt):
        opened(disk)
    outcome = salvaged(disk)
    assert [patch.path for patch in outcome.plan.patches] == [path]
    assert outcome.lost.gaps == (ToldGap("orders", seq, seq, 2),)
    engine = opened(disk)
    assert seen(engine) == ([one for one in range(1, 181) if one != seq], [(seq, seq, "corrupt")])
    assert seen(engine, "bills") == (list(range(1, 21)), [])
    assert disk.files()[paths.salvaged(path)] == broken
    write(engine, 1)
    engine.close()
    assert seen(opened(disk))[0][-1] == 181


def test_deleted_copies_stay_deleted_where_the_log_lost_them_and_kept_the_delete() -> None:
    """[RRC-7, S-66] They are derived again from the source, at the seqs that the delete names."""
    disk = SimFs(5)
    engine = opened(disk)
    for name in ("orders", "copies"):
        engine.put_topic(name, {"durability": "fsync"})
    engine.put_router("r", {"source": "orders", "dest": "copies"})
    write(engine, 4)
    assert seen(engine, "copies") == ([1, 2, 3, 4], [])
    engine.delete("copies", seqs=[2, 3])
    write(engine, 1)
    engine.append("orders", [{"data": 6}])
    disk = disk.kill_image()
    path, start, _, _ = frames(disk, 2)[0]
    _, end, _, _ = frames(disk, 2, type=DELETE)[0]
    for at in range(start, end):
        disk.set_byte(path, at, 0xA5)
    assert salvaged(disk).lost.gaps == ()
    assert seen(opened(disk), "copies") == ([1, 4, 5, 6], [])


def test_a_salvaged_store_is_healthy_and_needs_no_second_salvage() -> None:
    """S-66: full checkpoint, snapshot, clean close; the padded files are not needed any more."""
    disk = killed_store()
    records = frames(disk, 1)
    for at in (10, 60, 61, 150):
        path, offset, _, _ = records[at]
        disk.set_byte(path, offset + 44, 0xFF)
    lost = salvaged(disk)
    assert sum(len(patch.spans) for patch in lost.plan.patches) == 3
    report = inspect(disk, PATH)
    assert report.ok
    assert {one.severity for one in report.findings} <= {"note"}
    assert plan_salvage(disk, PATH).is_empty
    assert outside(disk) == seen(opened(disk))[0]


def test_a_missing_log_file_costs_what_was_in_it() -> None:
    """S-64, S-66: the records of later files are kept."""
    disk = killed_store()
    files = sorted({path for path, *_ in frames(disk, 1)})
    assert len(files) >= 3
    inside = [seq for path, _, _, seq in frames(disk, 1) if path == files[1]]
    disk.remove(files[1])
    salvaged(disk)
    seqs, gaps = seen(opened(disk))
    assert seqs == [seq for seq in range(1, 181) if seq not in inside]
    assert gaps == [(inside[0], inside[-1], "corrupt")]


@pytest.mark.parametrize("shards", [1, 2])
def test_a_lost_wal_directory_is_refused_and_salvaged(shards: int) -> None:
    """S-211, S-66, R-1: what followed the snapshot in it is gone; a start must not pass over that in silence."""
    disk = SimFs(5)
    engine = opened(disk, wal_shards=shards)
    names = [f"t{n}" for n in range(6)]
    for name in names:
        engine.put_topic(name, {"durability": "fsync"})
        write(engine, 10, name)
    engine.checkpoint(full=True)
    for name in names:
        write(engine, 10, name)
    killed = disk.kill_image()
    group = f"{PATH}/wal/shard-01/" if shards > 1 else f"{PATH}/wal/"
    for path in [path for path in killed.files() if path.startswith(group)]:
        killed.remove(path)
    killed.rmdir(group.rstrip("/"))
    assert "wal_missing" in {one.code for one in inspect(killed, PATH).findings if one.severity == "error"}
    before = {path: data for path, data in killed.files().items() if not path.endswith(".topics.lock")}
    with pytest.raises(WalCorrupt, match="is missing"):
        opened(killed, wal_shards=shards)
    assert {path: data for path, data in killed.files().items() if not path.endswith(".topics.lock")} == before
    salvaged(killed, wal_shards=shards)
    engine = opened(killed, wal_shards=shards)
    heads = {engine.state(name).head_seq for name in names}
    assert heads == ({10} if shards == 1 else {10, 20})


def test_frames_of_a_topic_whose_creation_was_lost_are_skipped() -> None:
    """S-66: the others are whole; the lost topic's name is free again."""
    disk = killed_store()
    path, offset, _, _ = frames(disk, 2, type=control.TYPES[control.TopicCreate])[0]
    disk.set_byte(path, offset + 60, 0)
    with pytest.raises(WalCorrupt):
        opened(disk)
    assert salvaged(disk).lost.skipped == {2: 20}
    engine = opened(disk)
    assert seen(engine) == (list(range(1, 181)), [])
    assert list(engine.topics()) == ["orders"]
    engine.put_topic("bills", {"durability": "fsync"})
    engine.checkpoint(full=True)
    assert [topic.id for topic in StoreView(disk, PATH).topics()] == [1, 3], "ids are never reused [S-276]"


def test_a_salvage_that_ends_after_the_padding_is_finished_by_the_next() -> None:
    """S-66: without it the start refuses, because nothing explains the gap; doctor says that a salvage is due."""
    disk = killed_store()
    path, offset, _, seq = frames(disk, 1)[60]
    disk.flip_bit(path, offset + 45, 2)

    def fails(fs: Fs, path: str) -> Any:
        raise OSError("no engine today")

    with pytest.raises(OSError, match="today"):
        salvage(disk, PATH, open_engine=fails)
    assert "padded" in {one.code for one in inspect(disk, PATH).findings}
    with pytest.raises(WalCorrupt):
        opened(disk)
    assert salvaged(disk).plan.is_empty
    assert seen(opened(disk))[1] == [(seq, seq, "corrupt")]


def test_a_store_in_use_is_not_salvaged() -> None:
    """S-11, S-66: salvage takes the lock."""
    disk = SimFs(5)
    engine = opened(disk)
    with pytest.raises(DataDirInUse):
        salvaged(disk)
    engine.close()
    salvaged(disk)


def test_a_healthy_store_stays_what_it_was() -> None:
    disk = killed_store()
    before = seen(opened(disk.kill_image()))
    assert salvaged(disk).plan.is_empty
    assert seen(opened(disk)) == before


def test_power_lost_anywhere_in_a_salvage_costs_nothing_more() -> None:
    """S-66, S-230: repeated on whatever is left it ends in the same records and gaps."""
    broken = killed_store(60)
    path, offset, _, seq = frames(broken, 1)[30]
    broken.flip_bit(path, offset + 45, 2)
    dry = broken.kill_image()
    begin = dry.disk_calls
    salvaged(dry)
    expected = seen(opened(dry.kill_image()))
    assert expected[1] == [(seq, seq, "corrupt")]
    rng = random.Random("salvage crash")
    calls = range(begin + 1, dry.disk_calls + 1)
    for call in sorted(rng.sample(calls, min(len(calls), 40))):
        disk = broken.kill_image()
        disk.crash_at(call, rng.choice(("before", "middle", "after")))
        with pytest.raises(PowerLoss):
            salvaged(disk)
        image = disk.crash_image(rng, rng.choice(STYLES))
        salvaged(image)
        assert seen(opened(image)) == expected, f"call {call}"


@pytest.mark.parametrize("seed", range(8))
def test_what_an_engine_leaves_behind_is_healthy_and_reads_the_same_from_outside(seed: int) -> None:
    """S-345, R-5: after a full checkpoint the files show what the engine shows; after a kill nothing is blamed."""
    rng = random.Random(f"outside {seed}")
    disk, clock = SimFs(seed), ManualClock()
    engine = opened(disk, clock=clock, reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=0)
    engine.put_topic("orders", {"durability": "fsync", "cap_records": rng.choice((0, 40))})
    for _ in range(60):
        acts: list[Callable[[], object]] = [
            lambda: engine.append("orders", [{"data": 1, "tag": f"job:{rng.randrange(5)}"}] * rng.randrange(1, 5)),
            lambda: engine.append("orders", [{"data": "x" * rng.randrange(300)}]),
            lambda: engine.delete("orders", seqs=rng.sample(range(1, 100), 3)),
            lambda: engine.delete("orders", match=f"job:{rng.randrange(5)}"),
            lambda: engine.delete("orders", before_seq=rng.randrange(1, 60)),
            lambda: engine.checkpoint(full=rng.random() < 0.3),
            lambda: (clock.advance(rng.randrange(20_000)), engine.tick()),
        ]
        rng.choice(acts)()
        image = disk.kill_image()
        blamed = [one for one in inspect(image, PATH).findings if one.severity != "note"]
        assert not blamed, blamed
    engine.checkpoint(full=True)
    assert outside(disk) == seen(engine)[0]
    engine.close()
    report = inspect(disk, PATH)
    assert report.ok
    assert report.clean
    assert not [one for one in report.findings if one.severity != "note"]
    assert outside(disk) == seen(opened(disk))[0]


@pytest.mark.parametrize("seed", range(4))
def test_the_doctor_foretells_what_a_start_makes_of_damage(seed: int) -> None:
    """R-3, R-5: a refusal is an error; so is every record that is not served; a warning costs no record."""
    rng = random.Random(f"foretold {seed}")
    disk = SimFs(seed)
    engine = opened(disk)
    engine.put_topic("orders", {"durability": "fsync"})
    write(engine, 30)
    engine.checkpoint(full=True)
    engine.delete("orders", seqs=[3, 4])
    write(engine, 40)
    engine.checkpoint()
    write(engine, 10)
    whole = disk.kill_image()
    expected = seen(opened(whole.kill_image()))
    files = [path for path in whole.files() if not path.endswith((".topics.lock", "topic.json"))]
    last = max(path for path, data in whole.files().items() if path.endswith(".log") and data.strip(b"\0"))
    for _ in range(60):
        image, path = whole.kill_image(), rng.choice(files)
        size = len(image.files()[path])
        how = rng.choice(("flip", "flip", "cut", "remove")) if size else "remove"
        if how == "flip":
            image.flip_bit(path, rng.randrange(size), rng.randrange(8))
        elif how == "cut":
            image.load({path: image.files()[path][: rng.randrange(size)]})
        else:
            image.remove(path)
        report = inspect(image, PATH)
        try:
            got = seen(opened(image))
        except (WalCorrupt, MetadataLost):
            assert not report.ok, (path, how)
            continue
        # Behind the last frame that tells of a sync, damage reads as a torn tail.
        assert got == expected or path == last or not report.ok, (path, how, report.findings)
