"""C23 and the salvage half of C11: what the explicit way on keeps of a damaged log."""

from __future__ import annotations

import pytest

from tests.crash.kit_engine import (
    DIR,
    GapRange,
    Seen,
    Store,
    is_right,
    is_told,
    is_whole,
    same_after_restarts,
    start_again,
)
from topics import paths
from topics.codec import frame
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.engine.salvage import salvage
from topics.errors import TopicsError, WalCorrupt
from topics.fs import Fs
from topics.testing.simfs import SYNC_MODES, SyncMode


def frame_of(store: Store, seq: int) -> tuple[str, int, int]:
    """File, offset and length of the Append frame of a seq in the one group of a store with one topic."""
    for path in sorted(store.wal_files()):
        rows = frame.scan_frames(store.sim.files()[path]).rows
        for row in rows[(rows["type"] == frame.APPEND) & (rows["seq"] == seq)]:
            return path, int(row["offset"]), int(row["len"])
    raise AssertionError(f"seq {seq} is not in the log")


def salvaged(store: Store) -> Store:
    """Salvage offline, then start."""

    def open_engine(fs: Fs, path: str) -> Engine:
        config = EngineConfig(**store.config)
        return Engine.open(path, config, clock=store.clock, fs=fs, boot_id=f"boot-{store.boot}", salvage=True)

    salvage(store.fs, DIR, open_engine=open_engine)
    return store.start()


def damaged_log(durability: str, batch: int) -> Store:
    """A killed store with 3000 records in its log and none in segments."""
    store = Store(wal_file_bytes=1 << 20, checkpoint_ms=10**9, wal_retain_files=1000).start()
    store.put("t", durability)
    store.write("t", 3000, batch=batch)
    store.sync()
    assert not any("/seg-" in path for path in store.sim.files())
    return store.kill()


@pytest.mark.parametrize(("batch", "durability"), [(1, "fsync"), (10, "disk")])
@pytest.mark.parametrize("at", [0, 6, 33, 44])
def test_c23_one_flipped_bit_costs_the_damaged_range_and_nothing_behind_it(
    at: int, batch: int, durability: str
) -> None:
    """C23, S-65, S-66, R-3: the start refuses and changes nothing; salvage copies, tells the range, keeps the rest."""
    store = damaged_log(durability, batch)
    path, offset, _ = frame_of(store, 500)
    store.sim.flip_bit(path, offset + at, 3)
    broken = {name: data for name, data in store.sim.files().items() if paths.LOCK_FILE not in name}
    with pytest.raises(WalCorrupt):
        store.start()
    assert {name: data for name, data in store.sim.files().items() if paths.LOCK_FILE not in name} == broken
    salvaged(store)
    seen: Seen = is_told(store, "t", "corrupt")
    only: GapRange = (500, 500, "corrupt")
    assert seen.gaps == [only]
    assert seen.seqs == [seq for seq in range(1, 3001) if seq != 500]
    assert store.sim.files()[paths.salvaged(path)] == broken[path], "the copy made before the change"
    assert store.write("t") == [3001]
    same_after_restarts(store, "t")


def test_c23_several_damaged_places_are_told_one_by_one() -> None:
    """C23, S-66: each range up to the next valid frame."""
    store = damaged_log("fsync", 10)
    for path, offset, size in [frame_of(store, seq) for seq in (7, 8, 900, 2500)]:
        store.sim.set_byte(path, offset + size - 3, store.sim.files()[path][offset + size - 3] ^ 0x55)
    with pytest.raises(WalCorrupt):
        store.start()
    salvaged(store)
    seen = is_told(store, "t", "corrupt")
    assert seen.gaps == [(7, 8, "corrupt"), (900, 900, "corrupt"), (2500, 2500, "corrupt")]


def test_c23_damage_in_the_log_of_records_that_segments_hold_costs_nothing() -> None:
    """C23, S-66, replay table (a held Append is skipped): only what is nowhere else is told."""
    store = Store(checkpoint_ms=10**9, wal_retain_files=1000).start()
    store.put("t")
    store.write("t", 300, batch=10)
    path, offset, _ = frame_of(store, 50)
    store.engine.checkpoint()
    store.kill()
    store.sim.flip_bit(path, offset + 33, 3)
    with pytest.raises(WalCorrupt):
        store.start()
    salvaged(store)
    assert is_whole(store, "t").head == 300
    same_after_restarts(store, "t")


def test_c23_salvage_of_an_undamaged_store_changes_no_answer() -> None:
    """S-66: and it ends with a clean close."""
    store = damaged_log("fsync", 10)
    salvaged(store)
    assert is_whole(store, "t").head == 3000
    same_after_restarts(store, "t")


@pytest.mark.parametrize("mode", SYNC_MODES)
def test_c11_salvage_after_a_failed_sync_and_power_loss_keeps_acknowledged_fsync_writes(mode: SyncMode) -> None:
    """C11, S-66, S-78, S-88: whether the start refuses or not, the explicit way on loses nothing acknowledged."""
    store = Store().start()
    store.put("f")
    store.put("d", "disk")
    store.write("f", 5)
    store.write("d", 20)
    store.latch(mode=mode)
    with pytest.raises(TopicsError):
        for _ in range(3):
            store.write("f")
    start_again(store.kill())
    store.write("f", 10)
    for fork in store.crashes():
        salvaged(fork)
        seen = fork.look("f")
        is_right(fork, "f", seen)
        assert set(fork.live("f")) <= set(seen.records), fork.label
