"""Another number of WAL shards at every start: nothing is lost, whatever ended the run before."""

from __future__ import annotations

import itertools

import pytest

from tests.crash.kit_engine import Store, at_every_disk_call, is_prefix, is_whole

LAYOUTS = (1, 8, 3)
ENDS = ("stop", "kill", "crash")
NAMES = [f"{durability}-{n}" for durability in ("fsync", "disk", "memory") for n in range(6)]


def check(store: Store) -> None:
    for name in NAMES:
        if name.startswith("fsync"):
            is_whole(store, name)
        else:  # synced before every end, so all of it is there; a crash may have skipped seqs of `disk`
            is_prefix(store, name, durable=max(store.written[name], default=0))


@pytest.mark.parametrize("ends", list(itertools.product(ENDS, repeat=2)), ids="-".join)
def test_shards_1_8_3_lose_nothing(ends: tuple[str, str]) -> None:
    """S-46, S-70, S-89, S-211, step 8 of recovery: run order, not layout, decides a topic's order."""
    store = Store()
    for life, shards in enumerate(LAYOUTS):
        store.start(wal_shards=shards)
        if life == 0:
            for name in NAMES:
                store.put(name, name.partition("-")[0])
        check(store)
        for n, name in enumerate(NAMES):
            store.write(name, 4 + n, batch=3)
            if n % 3 == 0:
                store.delete(name, [max(store.written[name]) - 1])
        if life == 1:
            store.engine.snapshot()
            for name in NAMES:
                store.write(name, 2)
        store.sync()
        store.end(ends[life % 2])
    store.start()
    check(store)
    for name in NAMES:
        store.write(name)
    store.trim(*NAMES)
    for fork in store.ends():
        check(fork.start(wal_shards=1))


@pytest.mark.parametrize("again", [1, 8, 3])
def test_a_start_with_another_layout_can_be_interrupted_anywhere(again: int) -> None:
    """S-230, S-245: the start itself writes; killed or crashed anywhere in it, the next one finds everything."""
    store = Store(wal_shards=8).start()
    names = ["fsync-0", "fsync-1", "disk-0", "fsync-2"]
    for name in names:
        store.put(name, name.partition("-")[0])
        store.write(name, 5)
    store.sync()
    store.kill()
    store.config["wal_shards"] = 3

    def judge(fork: Store) -> None:
        fork.start(wal_shards=again)
        for name in names:
            if name.startswith("fsync"):
                is_whole(fork, name)
            else:
                is_prefix(fork, name, durable=5)

    with at_every_disk_call(store, judge, chosen=lambda number, call: number % 2 == again % 2):
        store.start()
        store.tick(6000, 3000)
    for name in names:
        is_whole(store, name)


@pytest.mark.parametrize("shards", [1, 3, 8])
@pytest.mark.parametrize("full", [False, True])
def test_a_group_without_a_file_of_this_run_is_trimmed_and_starts_again(full: bool, shards: int) -> None:
    """S-20, S-64, S-89: the WAL of an idle group goes with the snapshots, and what `CURRENT` says then is no damage."""
    names = [f"t{n}" for n in range(10)]
    store = Store(wal_shards=shards, checkpoint_records=1).start()
    for name in names:
        store.put(name)
        store.write(name)
    store.engine.checkpoint()
    for _ in range(3):
        store.kill().start()
        for _ in range(3):
            store.write("t4")
            if full:
                store.engine.checkpoint(full=True)
            else:
                store.engine.snapshot()
        for fork in store.ends():
            fork.start()
            for name in names:
                is_whole(fork, name)
        store.kill().start()
        store.kill().start()
        for name in names:
            is_whole(store, name)
            store.write(name)


@pytest.mark.parametrize("end", ["stop", "kill", "crash"])
@pytest.mark.parametrize("shards", [1, 3])
def test_wal_files_of_earlier_runs_go_with_the_snapshots(shards: int, end: str) -> None:
    """S-89, S-194 (last row): what an earlier run left below the position is unlinked by a later one."""
    names = [f"t{n}" for n in range(8)]
    store = Store(wal_shards=shards).start()
    for name in names:
        store.put(name)
    for _ in range(4):
        for name in names:
            store.write(name, 3)
        store.end(end).start()
    store.trim(*names)
    for name in names:
        is_whole(store, name)
