"""C9, C37, C38: routers and snapshots, deletes of copies that are in memory only, crash runs among copies."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.kit_engine import Seen, Store, at_every_disk_call
from topics.codec import frame
from topics.engine import append as appending
from topics.engine import route
from topics.engine import snapshot as snapshots
from topics.engine.append import Write
from topics.engine.records import Joined, prepare
from topics.model import AppendResult, Limits, RouterConfig

AB = RouterConfig("a", "b")


def values(seen: Seen) -> dict[int, Any]:
    return {seq: record.data for seq, record in seen.records.items()}


@pytest.mark.parametrize("passes", range(24))
def test_c9_a_router_and_its_topics_made_while_a_snapshot_is_captured_are_there(
    passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C9, S-218: the creation falls behind any number of passes of the owner, so into every part of the capture."""
    monkeypatch.setattr(snapshots, "SLICE", 1)
    store = Store().start()
    for n in range(4):
        store.put(f"old{n}")
        store.write(f"old{n}", 3)
    engine = store.engine
    core, owner, answers = engine.core, engine._owner, list[Any]()

    def wait(left: int) -> None:
        if left:
            owner.soon(lambda: wait(left - 1))
        else:
            route.put(core, "r", AB, answers.append)

    with owner:
        engine._checkpoint(True, True, answers.append)
        wait(passes)
    assert not any(isinstance(one, Exception) for one in answers)
    assert len(answers) == 2
    store.write("a", 5)
    store.written.setdefault("b", {})
    for fork in store.ends():
        fork.start()
        assert [one.router for one in fork.engine.routers()] == ["r"], fork.label
        if fork.label == "kill":
            assert len(fork.look("b").records) == 5
    store.engine.checkpoint(full=True)
    store.kill().start()
    assert list(values(store.look("b")).values()) == list(values(store.look("a")).values())


@pytest.mark.parametrize("checkpoint", [False, True])
def test_c37_changes_to_copies_in_memory_hold_at_every_disk_call(checkpoint: bool) -> None:
    """C37, S-242, RRC-3, RRC-7: no loss is told, copies are at their seqs, what was deleted does not return."""
    store = Store().start()
    for topic in ("a", "b"):
        store.put(topic)
    store.engine.put_router("r", AB)
    written: dict[int, str] = {}
    gone: set[int] = set()
    maybe: set[int] = set()

    def write(count: int) -> None:
        for _ in range(count):
            (seq,) = store.write("a", tag=f"t{len(written) % 3}")
            written[seq] = store.written["a"][seq].data

    def judge(fork: Store) -> None:
        fork.start()
        seen = fork.engine.read("b", limit=1000)
        assert seen.tombstone is None, fork.label
        shown = {record.seq: record.data for record in seen.records}
        for seq, data in shown.items():
            assert data == fork.engine.read("a", seq - 1, limit=1).records[0].data, fork.label
        assert not gone & shown.keys(), fork.label
        assert not written.keys() - gone - maybe - shown.keys(), fork.label

    with at_every_disk_call(store, judge):
        write(6)
        store.engine.put_topic("b", {"durability": "fsync", "lease_ms": 60_000})
        maybe |= {seq for seq in written if seq % 3 == 1}
        store.engine.delete("b", match="t0")
        gone |= maybe
        if checkpoint:
            store.engine.checkpoint()
        write(4)
        maybe |= {2, 8}
        store.engine.delete("b", seqs=[2, 8])
        gone |= maybe
        store.engine.put_topic("b", {"durability": "fsync"})
        write(1)
    for _ in range(2):
        judge(store.kill())


@pytest.mark.parametrize("lost", [1, 3])
def test_c38_a_crash_run_among_copies_is_told_again_and_no_seq_is_reused(lost: int) -> None:
    """C38, S-245, A-16: the run's Gap carries the positions, so copies go on behind it, whatever comes next."""
    store = Store(wal_shards=4).start()
    store.put("a")
    store.put("b", "disk")
    store.engine.put_router("r", AB)
    store.write("a", 2)
    store.write("b", 2)
    store.sync()
    store.write("a", 2)
    acknowledged = store.write("b", lost)
    assert store.engine.state("b").head_seq == 6 + lost
    store.crash().start()
    seen = store.look("b")
    (run,) = seen.gaps
    assert run[2] == "crash"
    assert run[0] <= acknowledged[0]
    assert run[1] >= acknowledged[-1]
    copies = [data for data in values(seen).values() if data.startswith("a/")]
    assert copies == [one.data for one in store.written["a"].values()]
    for n in range(4):
        store.kill().start()
        again = store.look("b")
        assert again.gaps == [run]
        assert values(again) == values(seen)
        if n % 2:
            store.write("a", 1)
            store.write("b", 1)
        seen = store.look("b")
        assert max(seen.records) == seen.head
    store.engine.checkpoint(full=True)
    store.kill().start()
    assert (store.look("b").gaps, values(store.look("b"))) == ([run], values(seen))


@pytest.mark.parametrize("durability", ["fsync", "disk"])
def test_writes_staged_as_one_to_a_destination_are_there_with_its_copies_and_their_position_or_not_at_all(
    durability: str,
) -> None:
    """S-212 c, RRC-1: torn behind any of its frames, a submission leaves every copy once, where readers saw it."""
    store = Store().start()
    store.put("a")
    store.put("b", durability)
    store.engine.put_router("r", AB)
    store.write("a", 3)
    copies = values(store.look("b"))
    (path,) = store.wal_files()
    before = frame.scan_frames(store.sim.files()[path]).stop
    parts = [prepare([{"data": f"direct {n}"}], Limits()) for n in range(3)]
    answers: list[Any] = []
    with store.engine._owner:
        appending.append(store.engine.core, Write("b", Joined(parts), None, None, None, None), answers.append)
    assert isinstance(answers[0], AppendResult)
    places = frame.scan_frames(store.sim.files()[path])
    cuts = [at for at in places.rows["offset"].tolist() if at >= before]
    assert len(cuts) >= 3 + 3 + 1, "copies, writes and a mark"
    for cut in cuts:
        torn = store.fork(store.sim.kill_image(), f"torn at {cut}")
        file = torn.sim.open(path, "rw")
        file.pwrite(bytes(places.stop - cut), cut)
        file.close()
        for _ in range(2):
            torn.start()
            seen = values(torn.look("b"))
            assert {seq: data for seq, data in seen.items() if data.startswith("a/")} == copies, torn.label
            torn.kill()
