"""C13, C14, C18, C22, C36, C39, C40: deletes, checkpoints, rewrites and damage where records lie in segments."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest

from tests.crash.kit_engine import (
    CRASHES,
    DIR,
    TINY,
    PointedFs,
    Seen,
    SegmentFiles,
    Store,
    at_every_disk_call,
    is_right,
    is_sound,
    is_told,
    is_whole,
    look,
    same_after_restarts,
)
from topics.codec import segment
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import TopicsError
from topics.testing import ManualClock, SimFs
from topics.testing.simfs import SyncMode

WAIT_S = 60
HOLD_S = 0.3
REWRITE: dict[str, Any] = {
    "reclaim_rewrite": True,
    "rewrite_min_bytes": 1,
    "rewrite_every_ms": 0,
    "segment_max_events": 12,
}


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("end", ["kill", "stop", "crash"])
@pytest.mark.parametrize("how", ["tag", "seqs", "before"])
def test_c13_the_oldest_records_deleted_in_the_tail_leave_no_tombstone(how: str, end: str, durability: str) -> None:
    """C13, TMB-3, S-133, S-277: entries that never reach a segment are explained by the floors, silently."""
    store = Store().start()
    store.put("t", durability)
    store.write("t", 10, tag="a")
    store.write("t", 10, tag="b")
    if how == "tag":
        store.delete_tag("t", "a")
    elif how == "seqs":
        store.delete("t", range(1, 11))
    else:
        assert store.engine.delete("t", before_seq=11).deleted == 10
        store.deleted["t"] = set(range(1, 11))
    store.trim()
    store.rest()
    before = is_whole(store, "t")
    assert before.seqs == list(range(11, 21))
    store.end(end).start()
    assert is_whole(store, "t") == before
    assert store.engine.read("t", 3).tombstone is None
    same_after_restarts(store, "t")


@pytest.mark.parametrize("how", ["tag", "seqs"])
def test_c13_segments_dropped_for_deletes_leave_no_tombstone_at_any_disk_call(how: str) -> None:
    """C13, S-274, S-277: a drop waits for the mark whose floors explain it; the deletes themselves are no range."""
    store = Store(segment_max_events=5, wal_retain_files=100).start()
    store.put("t")
    store.write("t", 12, tag="a")
    store.write("t", 8, tag="b")
    store.engine.checkpoint(full=True)

    def judge(fork: Store) -> None:
        fork.start()
        is_whole(fork, "t")
        is_sound(fork)

    if how == "tag":
        store.delete_tag("t", "a")
    else:
        store.delete("t", range(1, 13))
    with at_every_disk_call(store, judge):
        store.tick(12_000, 3000)
        store.write("t")
        store.engine.checkpoint(full=True)
        store.write("t", 5)
        store.tick(6000, 3000)
    assert min(one.first for one in store.segments("t")) > 1, "nothing was dropped"
    store.trim()
    same_after_restarts(store, "t")


def test_c14_a_delete_in_an_active_segment_with_fillers_loses_nothing_at_any_disk_call() -> None:
    """C14, S-44, S-194, S-195: flags that reach the active `.idx` before the mark do not make its claim doubtful."""
    store = Store().start()
    store.put("t")
    store.write("t", 12, tag="a", size=90)
    store.delete("t", [3, 7])
    store.engine.checkpoint(full=True)
    (active,) = store.segments("t")
    assert active.footer is None, "the history needs an active segment"

    def judge(fork: Store) -> None:
        fork.start()
        is_whole(fork, "t")
        is_sound(fork)
        fork.engine.checkpoint(full=True)
        fork.kill().start()
        is_whole(fork, "t")
        is_sound(fork)

    for gone, more in (([5], 4), ([8, 14], 0), ([1], 1)):
        store.delete("t", gone)
        store.write("t", more, size=90)
        with at_every_disk_call(store, judge, crashes=3):
            store.engine.checkpoint(full=True)
    store.trim()
    for fork in store.ends():
        is_whole(fork.start(), "t")


class Hold:
    """Holds whoever comes to a point first, until it may go on."""

    def __init__(self) -> None:
        self.reached, self.go = threading.Event(), threading.Event()

    def __call__(self) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self.go.wait(WAIT_S), "held for too long"


class Held:
    """An engine with its own threads on a disk whose crash points can be held, by `points` from its start on."""

    def __init__(
        self, sim: SimFs | None = None, points: Mapping[str, Callable[[], None]] | None = None, **config: Any
    ) -> None:
        self.sim = PointedFs(7)
        self.sim.at.update(points or {})
        if sim is not None:
            self.sim.load(sim.files())
        self.config = EngineConfig(**{**TINY, "checkpoint_ms": 10**9, **config})
        self.engine = Engine.open(DIR, self.config, fs=self.sim)

    def images(self) -> list[tuple[str, SimFs, str]]:
        """The disk of a kill and of some machine crashes, now, with the boot id of the next start."""
        crashes = [(f"crash {style} {seed}", self.sim.crash_image(seed, style), "boot-1") for style, seed in CRASHES]
        return [("kill", self.sim.kill_image(), "boot-0"), *crashes]

    def at(self, point: str, act: Callable[[], None], then: Callable[[], None], hold: Hold | None = None) -> None:
        """Run `then`; where it comes to `point` for the first time it is held, and `act` begins.

        Held until `act` is done, or for `HOLD_S` if the engine makes `act` wait for what is held.
        """
        if hold is None:
            hold = self.sim.at[point] = Hold()
        with ThreadPoolExecutor(2) as pool:
            running = pool.submit(then)
            try:
                assert hold.reached.wait(WAIT_S), f"{point} was never reached"
                acting = pool.submit(act)
                wait([acting], HOLD_S)
            finally:
                hold.go.set()
            acting.result(WAIT_S)
            running.result(WAIT_S)


CHECKPOINT_POINTS = ["ckpt.after_data", "ckpt.after_data_sync", "ckpt.after_idx", "ckpt.before_mark", "ckpt.after_mark"]
SNAPSHOT_POINTS = ["snap.after_tmp", "snap.after_rename", "snap.before_prune"]


def check_deleted(engine: Engine, data: dict[int, str], gone: set[int], label: str) -> None:
    seen: Seen = look(engine, "t")
    assert seen.gaps == [], label
    assert {seq: record.data for seq, record in seen.records.items()} == {
        seq: text for seq, text in data.items() if seq not in gone
    }, label


@pytest.mark.parametrize("point", [*CHECKPOINT_POINTS, *SNAPSHOT_POINTS])
@pytest.mark.parametrize("selector", ["seqs", "tag", "before"])
def test_c18_a_delete_while_a_checkpoint_runs_stays_deleted_when_the_log_is_trimmed(selector: str, point: str) -> None:
    """C18, S-158, S-192, S-270: what arrives after step 1 is pending; its Delete frame is kept until it is on disk."""
    held = Held(segment_max_events=10)
    engine = held.engine
    engine.put_topic("t", {"durability": "fsync"})
    data: dict[int, str] = {}

    def write(count: int) -> None:
        for _ in range(count):
            seq = len(data) + 1
            data[seq] = f"record {seq}".ljust(40 + seq % 7, ".")
            assert engine.append("t", [{"data": data[seq], "tag": f"g{seq % 5}"}]).first_seq == seq

    write(25)
    engine.checkpoint(full=True)
    write(18)  # the active segment, a new sealed one and the tail all get a delete below
    gone: set[int] = set()

    def delete() -> None:
        if selector == "seqs":
            targets = {2, 13, 21, 24, 28, 33, 43}
            result = engine.delete("t", seqs=sorted(targets))
        elif selector == "tag":
            targets = {seq for seq in data if seq % 5 == 3}
            result = engine.delete("t", match="g3")
        else:
            targets = set(range(1, 29))
            result = engine.delete("t", before_seq=29)
        assert result.deleted == len(targets)
        gone.update(targets)
        check_deleted(engine, data, gone, "while the checkpoint runs")

    held.at(point, delete, lambda: engine.checkpoint(full=True))
    check_deleted(engine, data, gone, "after the checkpoint")
    images = held.images()
    for _ in range(3):
        write(1)
        engine.checkpoint(full=True)
        check_deleted(engine, data, gone, "in the run itself")
    later = held.images()
    engine.close()
    for n, (label, image, boot) in enumerate(images + later):
        expected = data if n >= len(images) else {seq: text for seq, text in data.items() if seq <= 43}
        found = Engine.open(DIR, held.config, clock=ManualClock(), fs=image, boot_id=boot)
        check_deleted(found, expected, gone, label)


def rewritten(store: Store) -> list[SegmentFiles]:
    return [one for one in store.segments("t") if one.footer is not None and one.footer.generation]


def with_dead_segments(**config: Any) -> Store:
    """A store whose topic has sealed segments that are mostly dead, all of it on disk; nothing is rewritten yet."""
    store = Store(**{**REWRITE, "reclaim_rewrite": False, **config}).start()
    store.put("t")
    for n in range(40):
        store.write("t", size=30 + 17 * n % 90, tag=f"g{n % 3}")
    store.engine.checkpoint(full=True)
    store.delete("t", [seq for seq in range(1, 37) if seq % 4])
    store.trim()
    assert is_whole(store, "t").records
    return store.stop()


def test_c40_a_crash_anywhere_in_a_rewrite_leaves_one_whole_generation() -> None:
    """C40, S-281, S-283: any subset of the directory changes; offsets and data belong together."""
    store = with_dead_segments()

    def judge(fork: Store) -> None:
        fork.start()
        is_whole(fork, "t")
        assert fork.engine.delete("t", match="nothing*").deleted == 0
        fork.crash("random", fork.sim.disk_calls).start()
        is_whole(fork, "t")

    store.config.update(REWRITE)
    store.start()
    with at_every_disk_call(store, judge, crashes=4):
        store.tick(60_000, 5000)
    assert rewritten(store), "nothing was rewritten"
    is_whole(store, "t")
    store.delete_tag("t", "g1")
    for fork in store.ends():
        is_whole(fork.start(), "t")
    same_after_restarts(store, "t")


@pytest.mark.parametrize(
    "point", [".g0001.data", "seg-0000000000000013.idx.tmp", "rewrite.before_rename", "rewrite.after_rename"]
)
def test_c18_a_delete_while_a_rewrite_runs_stays_deleted(point: str) -> None:
    """C18, S-158, S-281 (2), (4): deletions made since the copy are handed over or stay pending."""
    store = with_dead_segments()
    data = {seq: one.data for seq, one in store.written["t"].items()}
    gone = set(store.deleted["t"])
    hold, renamed = Hold(), threading.Event()
    points = {"rewrite.after_rename": renamed.set, point: hold}
    held = Held(store.sim, points, **{**REWRITE, "checkpoint_ms": 20, "snapshot_check_ms": 20})
    engine = held.engine

    def delete() -> None:
        targets = {4, 16, 28, 38}
        assert engine.delete("t", seqs=sorted(targets)).deleted == len(targets)
        gone.update(targets)
        check_deleted(engine, data, gone, "while the rewrite runs")

    def rewrite() -> None:
        if point != "rewrite.after_rename":
            assert renamed.wait(WAIT_S)

    held.at(point, delete, rewrite, hold)
    check_deleted(engine, data, gone, "after the rewrite")
    images = held.images()
    for _ in range(3):
        seq = len(data) + 1
        data[seq] = f"record {seq}"
        assert engine.append("t", [{"data": data[seq]}]).first_seq == seq
        engine.checkpoint(full=True)
    check_deleted(engine, data, gone, "after trimming")
    later = held.images()
    engine.close()
    assert any(".g0001.data" in path for path in held.sim.files()), "nothing was rewritten"
    for n, (label, image, boot) in enumerate(images + later):
        expected = data if n >= len(images) else {seq: text for seq, text in data.items() if seq <= 40}
        found = Engine.open(DIR, held.config, clock=ManualClock(), fs=image, boot_id=boot)
        check_deleted(found, expected, gone, label)


COLD: dict[str, Any] = {"cold_dir": "cold", "hot_retain_segments": 0, "segment_max_events": 10}
MOVING = ["cold/topics", "cold.after_copy", "seg-0000000000000001.idx.tmp", "cold.before_unlink"]


@pytest.mark.parametrize("point", MOVING)
@pytest.mark.parametrize("selector", ["seqs", "tag"])
@pytest.mark.parametrize("flushed", [True, False])
def test_c18_a_delete_while_a_relocation_runs_stays_deleted(flushed: bool, selector: str, point: str) -> None:
    """C18, S-158, S-311: before, during and behind the copy; marks written meanwhile, or only later."""
    held = Held(**COLD)
    engine = held.engine
    engine.put_topic("t", {"durability": "fsync"})
    data = {seq: f"record {seq}".ljust(40 + seq % 7, ".") for seq in range(1, 26)}
    engine.append("t", [{"data": text, "tag": f"g{seq % 5}"} for seq, text in data.items()])
    engine.checkpoint(full=True)
    gone: set[int] = set()

    def delete() -> None:
        targets = {2, 7, 13} if selector == "seqs" else {seq for seq in data if seq % 5 == 3}
        how: dict[str, Any] = {"seqs": sorted(targets)} if selector == "seqs" else {"match": "g3"}
        assert engine.delete("t", **how).deleted == len(targets)
        gone.update(targets)
        if flushed:
            engine.checkpoint(full=True)

    def move() -> None:
        with engine.core.owner:  # type: ignore[attr-defined]
            engine._relocator.tick()
        engine.core.owner.wait_idle(WAIT_S)  # type: ignore[attr-defined]

    held.at(point, delete, move)
    move()
    check_deleted(engine, data, gone, "after the move")
    images = held.images()
    for _ in range(3):
        seq = len(data) + 1
        data[seq] = f"record {seq}"
        assert engine.append("t", [{"data": data[seq]}]).first_seq == seq
        engine.checkpoint(full=True)
    later = held.images()
    segments = engine.core.names["t"].index.segments
    assert segments is not None
    assert [one.cold for one in segments.segments][:2] == [True, True]
    engine.close()
    for n, (label, image, boot) in enumerate(images + later):
        expected = data if n >= len(images) else {seq: text for seq, text in data.items() if seq <= 25}
        found = Engine.open(DIR, held.config, clock=ManualClock(), fs=image, boot_id=boot)
        check_deleted(found, expected, gone, label)


Damage = Callable[[Store, SegmentFiles, SegmentFiles], None]


def swap(*kinds: Any) -> Damage:
    def damage(store: Store, mine: SegmentFiles, other: SegmentFiles) -> None:
        for kind in kinds:
            store.sim.swap_files(mine.path(kind), other.path(kind))

    return damage


def lose(*kinds: Any) -> Damage:
    def damage(store: Store, mine: SegmentFiles, other: SegmentFiles) -> None:
        for kind in kinds:
            store.sim.lose_file(mine.path(kind))

    return damage


def move(kind: Any) -> Damage:
    """The file of another segment of the same topic in the place of this one's."""

    def damage(store: Store, mine: SegmentFiles, other: SegmentFiles) -> None:
        sibling = next(one for one in store.segments("t") if one.n == mine.n and one.first != mine.first)
        files = store.sim.files()
        store.sim.load({mine.path(kind): files[sibling.path(kind)]})

    return damage


DAMAGES: dict[str, tuple[Damage, bool]] = {
    "swap-data": (swap("data"), False),
    "swap-idx": (swap("idx"), True),
    "swap-tag": (swap("tag"), True),
    "swap-pair": (swap("data", "idx"), False),
    "swap-all": (swap("data", "idx", "tag"), False),
    "lose-data": (lose("data"), False),
    "lose-idx": (lose("idx"), True),
    "lose-tag": (lose("tag"), True),
    "lose-pair": (lose("data", "idx"), False),
    "lose-all": (lose("data", "idx", "tag"), False),
    "sibling-data": (move("data"), False),
    "sibling-idx": (move("idx"), True),
    "sibling-tag": (move("tag"), True),
}
"""What is done to the files of a segment, and whether everything is rebuilt from what is left."""


@pytest.mark.parametrize("logged", [False, True], ids=["trimmed", "logged"])
@pytest.mark.parametrize("which", [0, 1, 2], ids=["first", "middle", "last"])
@pytest.mark.parametrize("name", DAMAGES)
def test_c22_swapped_and_missing_segment_files_are_told_exactly_or_refilled(
    name: str, which: int, logged: bool
) -> None:
    """C22, S-135, S-176, S-250, R-5: never another topic's records, never silence, never an error for ever."""
    store = Store(segment_max_events=10, wal_retain_files=100).start()
    for topic in ("t", "u"):
        store.put(topic)
    for n in range(32):
        for topic in ("t", "u"):
            store.write(topic, size=60, tag=f"{topic}{n % 3}")
    store.engine.checkpoint(full=True)
    if not logged:
        store.trim()
    sealed = {topic: [one for one in store.segments(topic) if one.footer is not None] for topic in ("t", "u")}
    mine, other = sealed["t"][which], sealed["u"][which]
    assert mine.n == other.n == 10
    store.kill()
    damage, whole = DAMAGES[name]
    damage(store, mine, other)
    store.start()
    hurt = {"t": mine, "u": other} if "swap" in name else {"t": mine}
    for topic in ("t", "u"):
        seen = is_told(store, topic, "corrupt")
        if whole or topic not in hurt:
            assert seen.gaps == [], f"{topic}: {seen.gaps}"
        elif not logged:
            assert seen.gaps == [(hurt[topic].first, hurt[topic].last, "corrupt")]
        assert seen.told() <= set(range(hurt.get(topic, mine).first, hurt.get(topic, mine).last + 1))
        assert store.look(topic) == seen, "another read, another answer"
    for topic in ("t", "u"):
        tagged = {seq for seq, one in store.written[topic].items() if one.tag == f"{topic}1"}
        readable = tagged & set(store.look(topic).records)
        assert len(readable) <= store.engine.delete(topic, match=f"{topic}1").deleted <= len(tagged)
        assert store.engine.delete(topic, match={"t": "u1", "u": "t1"}[topic]).deleted == 0
        store.deleted[topic] |= tagged
        store.write(topic, 3)
        is_told(store, topic, "corrupt")
    store.engine.checkpoint(full=True)
    same_after_restarts(store, "t", "u")
    for topic in ("t", "u"):
        is_told(store, topic, "corrupt")


@pytest.mark.parametrize(
    ("suffix", "more"), [(".data", 20), (".data", 5), (".idx", 5), (".idx.tmp", 20), ("topics/", 20)]
)
@pytest.mark.parametrize("mode", ["clean", "partial", "reverted"])
@pytest.mark.parametrize("kills", [True, False], ids=["killed", "going-on"])
def test_c36_a_failed_sync_of_a_segment_file_costs_no_record(
    kills: bool, mode: SyncMode, suffix: str, more: int
) -> None:
    """C36, S-195, S-194: its pages are not trusted again, by this run or the next; the WAL is kept until then.

    With 5 more records the active segment grows in place, with 20 it is sealed and others follow.
    """
    for nth in range(1, 6):
        store = Store(segment_max_events=12, wal_retain_files=100).start()
        store.put("t")
        store.write("t", 28, tag="a", size=80)
        store.delete("t", [2, 9])
        store.engine.checkpoint(full=True)
        store.delete("t", [4, 14, 27])
        store.write("t", more, tag="b", size=80)
        left = [nth]

        def fail(op: str, path: str, left: list[int] = left) -> SyncMode | None:
            hit = path.endswith(suffix) if suffix[0] == "." else op == "sync_dir" and suffix in path
            left[0] -= hit
            return mode if hit and left[0] == 0 else None

        store.sim.sync_mode = fail
        try:
            store.engine.checkpoint(full=True)
        except (TopicsError, OSError):
            assert left[0] <= 0, "failed without a fault"
        store.sim.sync_mode = None
        if left[0] > 0:
            break  # so many syncs of such a file are not made
        is_whole(store, "t")
        if kills:
            store.kill().start()
            is_whole(store, "t")
        for fork in (store.killed(), store.crashed("nothing"), store.crashed("random", nth)):
            is_whole(fork.start(), "t")
        store.write("t", 3)
        store.delete("t", [5, 30])
        store.trim()
        store.sim.drop_caches()
        is_whole(store, "t")
        for fork in (store.killed(), store.crashed("nothing"), store.crashed("random", nth)):
            is_whole(fork.start(), "t")
    assert nth > 1, "the fault never struck"


@pytest.mark.parametrize("end", ["stop", "kill"])
@pytest.mark.parametrize("generation", [0, 1])
def test_c39_a_flipped_bit_in_the_footer_of_a_sealed_idx_costs_nothing(generation: int, end: str) -> None:
    """C39, S-130, S-283: a footer that does not verify says nothing, so no data file is unlinked on its word."""
    store = with_dead_segments()
    if generation:
        store.start(**REWRITE)
        store.tick(60_000, 5000)
        assert rewritten(store), "nothing was rewritten"
        store.trim()
        store.stop()
    store.config["reclaim_rewrite"] = False
    store.start().end(end)
    sealed = [one for one in store.segments("t") if one.footer is not None and one.footer.magic == segment.HOT]
    assert any(one.footer is not None and one.footer.generation == generation for one in sealed)
    for one in sealed:
        footer_at = one.n * segment.ENTRY_BYTES
        bits = [(4, bit) for bit in range(8)] + [
            (5, 0),
            (5, 7),
            (0, 1),
            (3, 2),
            (6, 4),
            (8, 0),
            (9, 3),
            (12, 5),
            (19, 7),
        ]
        for byte, bit in bits:
            fork = store.fork(store.sim.kill_image(), f"segment {one.first}: bit {bit} of footer byte {byte}")
            fork.sim.flip_bit(one.path("idx"), footer_at + byte, bit)
            fork.start()
            is_whole(fork, "t")
            fork.engine.checkpoint(full=True)
            fork.kill().start()
            is_whole(fork, "t")
            is_right(fork, "t", fork.look("t"))
