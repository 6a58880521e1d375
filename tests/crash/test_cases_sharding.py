"""C8, C21, C24: several shards, other numbers of them, one that is latched, groups that nobody uses any more."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.crash.kit_engine import DIR, Store, at_every_disk_call, is_whole
from topics import paths
from topics.errors import TopicsError
from topics.testing.simfs import Call

WAL = f"{DIR}/{paths.WAL_DIR}"


def groups(store: Store) -> Counter[str]:
    """How many WAL files each group has, by the group's directory."""
    return Counter(path.rpartition("/")[0].removeprefix(WAL).strip("/") for path in store.wal_files())


@pytest.mark.parametrize("full", [False, True], ids=["snapshot", "full-checkpoint"])
@pytest.mark.parametrize("layouts", [(8, 3, 8), (1, 4, 1), (3, 1, 2)], ids=str)
def test_c08_changing_the_shards_between_kills_keeps_every_acknowledged_record(
    layouts: tuple[int, ...], full: bool
) -> None:
    """C8, S-46, S-70, S-211: a topic's order holds across layouts, with snapshots taken in each."""
    names = [f"t{n}" for n in range(16)]
    store = Store(wal_shards=layouts[0]).start()
    for name in names:
        store.put(name)
    for shards in layouts:
        if not store.running:
            store.start(wal_shards=shards)
        for _ in range(2):
            for name in names:
                store.write(name, 3)
            if full:
                store.engine.checkpoint(full=True)
            else:
                store.engine.snapshot()
            for name in names:
                store.write(name, 2, batch=2)
            store.kill().start()
            for name in names:
                is_whole(store, name)
        for fork in store.ends():
            fork.start()
            for name in names:
                is_whole(fork, name)
        for name in names:
            store.write(name)
        store.kill()
    store.start(wal_shards=layouts[0])
    for name in names:
        is_whole(store, name)
        store.write(name)


def test_c21_one_latched_shard_of_four_does_not_hold_the_others_back() -> None:
    """C21, S-82, S-89, checkpoint steps 1 and 5: tails and WAL of the healthy shards stay bounded."""
    store = Store(wal_shards=4, snapshot_ms=5000, snapshot_check_ms=1000, snapshot_bytes=32768).start()
    names = [f"t{n}" for n in range(12)]
    for name in names:
        store.put(name)
        store.write(name, 3)
    store.latch("shard-02")
    healthy = []
    for name in names:
        try:
            store.write(name)
            healthy.append(name)
        except TopicsError:
            pass
    assert 0 < len(healthy) < len(names), "the history needs topics on both sides"
    assert sorted(store.engine.health().shards.values()) == ["ok", "ok", "ok", "read_only"]
    per_round = 20 * len(healthy)
    tails, files = [], []
    for _ in range(30):
        for name in healthy:
            store.write(name, 20, batch=5, size=120)
        store.tick(6000)
        tails.append(store.engine.metrics()["topics_tail_records"])
        files.append(max(count for group, count in groups(store).items() if group != "shard-02"))
    latched = 4 * len(names)
    assert max(tails) <= 3 * per_round + latched, f"tails grow: {tails}"
    assert max(files) <= 6, f"the WAL grows: {files}"
    written = store.engine.metrics()["topics_wal_rotations_total"]
    assert written > 3 * 6, "not enough was written to show anything"
    for fork in store.ends():
        fork.start()
        for name in names:
            is_whole(fork, name)


@pytest.mark.parametrize(("old", "new", "end"), [(3, 1, "kill"), (1, 3, "stop"), (4, 2, "kill")])
def test_c24_a_crash_while_an_orphan_group_is_removed_leaves_a_store_that_starts(old: int, new: int, end: str) -> None:
    """C24, S-89, S-211: `CURRENT` first, then the files, then the directory; any stop in between is fine."""
    names = [f"t{n}" for n in range(6)]
    store = Store(wal_shards=old, snapshot_ms=5000, snapshot_check_ms=1000).start()
    for name in names:
        store.put(name)
        store.write(name, 4)
    store.end(end)
    store.config["wal_shards"] = new
    before = set(groups(store))
    images = 0

    def judge(fork: Store) -> None:
        nonlocal images
        images += 1
        fork.start(wal_shards=(new, old)[images % 4 == 0])
        for name in names:
            is_whole(fork, name)
        if images % 5 == 0:
            fork.kill().start()
            for name in names:
                is_whole(fork, name)

    unused = before - {paths.shard_dir(n) for n in range(new)} if new > 1 else before - {""}
    assert unused

    def near(number: int, call: Call) -> bool:
        """What concerns the groups of the earlier layout or a snapshot, and some of the rest."""
        folder = call[1].removeprefix(WAL).strip("/").partition("/")[0]
        return folder in unused or (folder in ("", "CURRENT") and "" in unused) or "meta/" in call[1] or number % 9 == 0

    with at_every_disk_call(store, judge, chosen=near):
        store.start()
        for name in names:
            store.write(name)
        store.tick(6000, 3000)
        store.trim(*names)
    assert not unused & set(groups(store)), "the groups of the earlier layout are still there"
    left = {name for name in store.sim.listdir(WAL) if paths.parse_shard_dir(name) is not None}
    assert left <= ({paths.shard_dir(n) for n in range(new)} if new > 1 else set())
    for name in names:
        is_whole(store, name)
