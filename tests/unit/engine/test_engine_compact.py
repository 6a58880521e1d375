"""Segments rewritten on request: what each of them answers, what a run is, what it costs (02 §10, 06 §15.5)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store
from topics.codec import segment as codec
from topics.codec.place import segment_mask, topic_mask
from topics.engine.compact import UNTOLD_MS, Asked, CompactResult
from topics.engine.engine import Engine
from topics.engine.pins import Everything, Files
from topics.errors import TopicNotFound
from topics.fs import Mode
from topics.storage import maps
from topics.storage.reindex import find_frames
from topics.testing import ManualClock, SimFs
from topics.testing.simfs import SimFile

PER_SEGMENT = 8
SECRET = b"the payload of seq"


def filled(records: int = 20, **options: Any) -> Store:
    """Sealed segments of eight records, at 1 and 9, and an active one behind them."""
    store = Store(segment_max_events=PER_SEGMENT, **options)
    engine = store.put()
    for n in range(1, records + 1):
        kit.write(engine, f"{SECRET.decode()} {n:04d}", tag=f"t{n % 4}")
    engine.checkpoint(full=True)
    return store


def told(result: CompactResult) -> dict[int, str]:
    return {one.first_seq: one.result for one in result.segments}


def ask(store: Store, wait_ms: int | None = 0, **given: Any) -> list[Any]:
    """Start a call the way an event loop does; what it has answered by the time everything is carried out."""
    engine = store.engine
    answers: list[Any] = []
    asked = Asked.parse(
        given.get("segments"), given.get("min_dead_ratio"), given.get("bytes_per_sec"), wait_ms, engine.core.limits
    )
    engine._owner.do(lambda: engine.compactor.ask(TOPIC, asked, answers.append))
    return answers


def test_a_named_segment_is_rewritten_and_shows_the_same_records() -> None:
    """CPT-1, S-280, S-281: whatever `TOPICS_RECLAIM_REWRITE` says; a few dead bytes are enough."""
    store = filled()
    engine = store.engine
    engine.delete(TOPIC, seqs=[2, 3])
    before = kit.snapshot_of(engine)
    result = engine.compact(TOPIC, [1])
    (one,) = result.segments
    assert (result.topic, result.state, one.first_seq, one.result) == (TOPIC, "done", 1, "rewritten")
    assert one.bytes_after == one.bytes_before * 6 // 8
    path = f"{kit.PATH}/{engine.plan(TOPIC).segments[0].path}"
    assert path.endswith(".g0001.data")
    assert store.sim.size(path) == one.bytes_after
    assert kit.snapshot_of(engine) == before
    for stop in kit.STOPS:
        assert kit.snapshot_of(store.stop(stop)) == before


def test_a_rewritten_segment_keeps_first_seq_count_holes_and_times_and_the_payload_is_gone() -> None:
    """S-280: removed seqs are deleted fillers with their `ts`; `(seq - N) * 20` stays valid."""
    store = filled(8)
    store.engine.delete(TOPIC, seqs=[1, 5])
    id = store.engine.plan(TOPIC).id
    old = store.sim.files()[next(path for path in store.sim.files() if path.endswith("1.idx"))]
    assert store.engine.compact(TOPIC, [1]).segments[0].result == "rewritten"
    files = store.sim.files()
    raw = files[next(path for path in files if path.endswith("1.idx"))]
    data = files[next(path for path in files if path.endswith(".g0001.data"))]
    footer = codec.read_footer(raw, segment_mask(id, 1))
    assert footer is not None
    assert (footer.n, footer.generation) == (8, 1)
    then, now = np.frombuffer(old, codec.IDX, 8), np.frombuffer(raw, codec.IDX, 8)
    assert now["ts"].tolist() == then["ts"].tolist()
    assert (now["len"] == 0).tolist() == [seq in (1, 5) for seq in range(1, 9)]
    assert [int(flags) & 0x0F for flags in now["flags"][now["len"] == 0]] == [codec.DELETED] * 2
    assert find_frames(data, topic_mask(id), 1, 8).rows["seq"].tolist() == [2, 3, 4, 6, 7, 8]
    assert not any(b"%b %04d" % (SECRET, seq) in data for seq in (1, 5))


def test_only_one_generation_is_left_and_its_tags_are_those_of_survivors() -> None:
    """S-281 (5): the old `.data` goes, a new `.tag` without the erased tags follows."""
    store = filled()
    engine = store.engine
    engine.delete(TOPIC, match="t1")
    engine.compact(TOPIC, [1, 9])
    assert [path.rsplit("/", 1)[-1] for path in store.files(".data")] == [
        "seg-0000000000000001.g0001.data", "seg-0000000000000009.g0001.data", "seg-0000000000000017.data",
    ]  # fmt: skip
    sidecar = store.sim.files()[next(path for path in store.sim.files() if path.endswith("0000000000000001.tag"))]
    assert b"t1" not in sidecar
    assert b"t2" in sidecar
    assert engine.delete(TOPIC, match="t2").deleted == 5


def test_what_cannot_be_rewritten_says_why() -> None:
    """CPT-1: `active`, `gone`, `nothing_to_do`; in the order named, each once."""
    store = filled()
    engine = store.engine
    result = engine.compact(TOPIC, [17, 9, 1, 5, 99, 9])
    assert [one.first_seq for one in result.segments] == [17, 9, 1, 5, 99]
    assert told(result) == {17: "active", 9: "nothing_to_do", 1: "nothing_to_do", 5: "gone", 99: "gone"}
    assert [one.bytes_before - one.bytes_after for one in result.segments] == [0] * 5
    assert engine.compact(TOPIC, []) == CompactResult(TOPIC, "done", [])


def test_a_second_request_finds_nothing_to_do() -> None:
    """CPT-1: idempotent."""
    store = filled()
    engine = store.engine
    engine.delete(TOPIC, seqs=[1])
    assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
    files = store.sim.files()
    (again,) = engine.compact(TOPIC, [1]).segments
    assert (again.result, again.bytes_before) == ("nothing_to_do", again.bytes_after)
    assert engine.compact(TOPIC).segments == []
    assert store.sim.files() == files
    engine.delete(TOPIC, seqs=[2])
    assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
    assert [path for path in store.files("0002.data") if "0000000000000001" in path]


@pytest.mark.parametrize(
    ("ratio", "chosen"), [(None, [9]), (0.5, [9]), (0.51, []), (0.25, [1, 9]), (0.0, [1, 9, 17]), (1.0, [])]
)
def test_segments_are_chosen_by_their_share_of_dead_bytes(ratio: float | None, chosen: list[int]) -> None:
    """CPT-1: `min_dead_ratio`, 0.5 by default; whatever has no dead bytes is left alone, and not listed."""
    store = filled(34)
    store.engine.delete(TOPIC, seqs=[1, 2, 9, 10, 11, 12, 17])
    assert told(store.engine.compact(TOPIC, min_dead_ratio=ratio)) == dict.fromkeys(chosen, "rewritten")


def test_a_segment_in_which_nothing_lives_gives_all_its_bytes_back() -> None:
    """S-274: its index stays, because the log needs it; its data goes."""
    store = filled(30)
    engine = store.engine
    engine.delete(TOPIC, seqs=list(range(9, 17)))
    before = kit.snapshot_of(engine)
    (one,) = engine.compact(TOPIC, [9]).segments
    assert (one.first_seq, one.result, one.bytes_after) == (9, "rewritten", 0)
    assert one.bytes_before > 0
    assert not [path for path in store.files(".data") if "0000000000000009" in path]
    assert told(engine.compact(TOPIC, [9])) == {9: "nothing_to_do"}
    for stop in kit.STOPS:
        assert kit.snapshot_of(store.stop(stop)) == before


def test_gap_segments_and_topics_without_segments_have_nothing_to_rewrite() -> None:
    """S-129: never rewritten."""
    store = Store(segment_max_events=PER_SEGMENT)
    engine = store.put()
    engine.append(TOPIC, [kit.new(n) for n in range(2000)])
    for low, high in ((5, 900), (900, 1800)):
        engine.delete(TOPIC, seqs=list(range(low, high)))
    engine.checkpoint(full=True)
    gaps = [one.first_seq for one in engine.plan(TOPIC).segments if one.gap is not None]
    assert gaps
    assert told(engine.compact(TOPIC, gaps)) == dict.fromkeys(gaps, "nothing_to_do")
    ram = Store("ram")
    kit.each(ram.put(), 3)
    assert ram.engine.compact(TOPIC).segments == []
    assert told(ram.engine.compact(TOPIC, [1])) == {1: "gone"}
    with pytest.raises(TopicNotFound):
        engine.compact("nowhere")


@pytest.mark.parametrize(
    "given",
    [
        {"segments": [1], "min_dead_ratio": 0.5},
        {"segments": list(range(1001))},
        {"segments": "1"},
        {"segments": [-1]},
        {"segments": [True]},
        {"segments": [2**64]},
        {"min_dead_ratio": 1.1},
        {"min_dead_ratio": -0.1},
        {"min_dead_ratio": float("nan")},
        {"min_dead_ratio": True},
        {"bytes_per_sec": -1},
        {"wait_ms": -1},
        {"wait_ms": 0.5},
    ],
)
def test_a_request_that_makes_no_sense_is_refused(given: dict[str, Any]) -> None:
    """CPT-1: types and ranges."""
    store = filled(3)
    with kit.invalid_request():
        store.engine.compact(TOPIC, **given)


def test_a_run_keeps_to_its_rate_and_tells_how_far_it_is() -> None:
    """CPT-1: `bytes_per_sec` counts what is read and written; asked again with the same body it reports progress."""
    store = filled(30)
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 9, 17])
    size = engine.plan(TOPIC).segments[0].bytes
    rate = size * 15 // 8
    (first,) = ask(store, segments=[1, 9, 17], bytes_per_sec=rate)
    assert first.state == "running"
    assert told(first) == {1: "busy", 9: "busy", 17: "busy"}

    def progress() -> tuple[str, list[str]]:
        (found,) = ask(store, segments=[1, 9, 17])
        return found.state, [one.result for one in found.segments]

    assert progress() == ("running", ["rewritten", "busy", "busy"])
    store.pass_time(900, 100)
    assert progress() == ("running", ["rewritten", "busy", "busy"])
    store.pass_time(200, 100)
    assert progress() == ("running", ["rewritten", "rewritten", "busy"])
    store.pass_time(1000, 100)
    assert progress() == ("done", ["rewritten", "rewritten", "rewritten"])
    assert progress() == ("done", ["nothing_to_do"] * 3)


def test_the_outcome_of_a_run_is_kept_for_whoever_was_told_only_progress() -> None:
    """CPT-1: for a while, once, and not if there is something to do by then."""
    store = filled(30)
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 9])
    assert ask(store, min_dead_ratio=0)[0].state == "running"
    store.pass_time(1000)
    engine.delete(TOPIC, seqs=[10])
    assert told(engine.compact(TOPIC, min_dead_ratio=0)) == {1: "rewritten", 9: "rewritten"}
    assert store.files("0002.data")
    assert engine.compact(TOPIC, min_dead_ratio=0).segments == []
    engine.delete(TOPIC, seqs=[2])
    assert ask(store, min_dead_ratio=0)[0].state == "running"
    store.pass_time(UNTOLD_MS + 1000, 60_000)
    assert engine.compact(TOPIC, min_dead_ratio=0).segments == []


def test_a_second_call_joins_the_run_and_adds_what_it_names() -> None:
    """CPT-1: one run per topic; each segment is rewritten once."""
    store = filled(30)
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 9, 17])
    size = engine.plan(TOPIC).segments[0].bytes
    slow = ask(store, 30_000, segments=[1, 9], bytes_per_sec=size * 15 // 8)
    joined = ask(store, 30_000, segments=[9, 17])
    assert not slow
    assert not joined
    store.pass_time(1100, 100)
    assert told(slow[0]) == {1: "rewritten", 9: "rewritten"}
    assert not joined
    store.pass_time(1100, 100)
    assert told(joined[0]) == {9: "rewritten", 17: "rewritten"}
    assert not store.files("g0002.data")


def test_a_call_waits_no_longer_than_it_asked_for() -> None:
    """CPT-1: `wait_ms`, 30 s at most."""
    store = filled(30)
    store.engine.delete(TOPIC, seqs=[1, 9])
    answers = ask(store, 500, segments=[1, 9], bytes_per_sec=1)
    store.pass_time(400, 100)
    assert not answers
    store.pass_time(200, 100)
    assert (answers[0].state, told(answers[0])) == ("running", {1: "rewritten", 9: "busy"})
    longest = ask(store, 1_000_000, segments=[9])
    store.pass_time(30_100, 100)
    assert longest[0].state == "running"


def test_who_waits_when_the_engine_closes_is_told_how_far_it_is() -> None:
    """API-5: nobody waits for ever."""
    store = filled(30)
    store.engine.delete(TOPIC, seqs=[1, 9])
    answers = ask(store, 30_000, segments=[1, 9], bytes_per_sec=1)
    before = kit.snapshot_of(store.engine)
    store.engine.close()
    assert answers[0].state == "running"
    assert kit.snapshot_of(store.open()) == before


def test_a_topic_that_is_deleted_takes_its_run_along() -> None:
    """CPT-1: `gone`; a topic of the same name is another one."""
    store = filled(30)
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 9])
    answers = ask(store, 30_000, segments=[1, 9], bytes_per_sec=1000)
    engine.delete_topic(TOPIC)
    store.put()
    store.pass_time(10_000)
    assert told(answers[0]) == {1: "rewritten", 9: "gone"}
    assert told(engine.compact(TOPIC, [1, 9])) == {1: "gone", 9: "gone"}


def test_the_background_leaves_a_topic_alone_that_was_just_rewritten() -> None:
    """S-282: at most once per 10 s."""
    store = filled(30, reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=10_000)
    engine = store.engine
    engine.delete(TOPIC, seqs=[1])
    engine.compact(TOPIC, [1])
    engine.delete(TOPIC, seqs=list(range(9, 16)))
    store.pass_time(9000)
    assert not [path for path in store.files(".data") if "0000000000000009.g" in path]
    store.pass_time(3000)
    assert [path for path in store.files(".data") if "0000000000000009.g" in path]


def generations(store: Store) -> list[int]:
    return [one.generation for one in store.engine.plan(TOPIC).segments]


def test_the_background_is_not_stopped_by_a_clock_that_is_set_back() -> None:
    """S-282"""
    store = filled(30, reclaim_rewrite=True, rewrite_min_bytes=1)
    engine = store.engine
    engine.delete(TOPIC, seqs=list(range(1, 8)))
    store.pass_time(3000)
    assert generations(store) == [1, 0, 0, 0]
    store.clock.jump(-86_400_000)
    engine.delete(TOPIC, seqs=list(range(9, 16)))
    store.pass_time(3000)
    assert generations(store) == [1, 1, 0, 0]
    engine.delete(TOPIC, seqs=list(range(17, 24)))
    store.pass_time(5000)
    assert generations(store) == [1, 1, 0, 0], "at most once per 10 s, also by the new clock"
    store.pass_time(8000)
    assert generations(store) == [1, 1, 1, 0]


def test_the_background_goes_on_after_an_error_at_the_beginning_of_a_rewrite(monkeypatch: pytest.MonkeyPatch) -> None:
    """S-282: here memory has no room for an index, and it cannot be read a second time."""
    monkeypatch.setattr(maps, "COPIES_BYTES_MAX", 0)
    store = filled(30, reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=0)
    engine = store.engine
    engine.delete(TOPIC, seqs=list(range(1, 8)))
    engine.checkpoint(full=True)
    store.fail("open", path="0000000000000001.idx", index=2)
    store.pass_time(1000)
    assert (len(store.faults.hits), generations(store)) == (1, [0, 0, 0, 0])
    store.pass_time(2000)
    assert generations(store) == [1, 0, 0, 0]
    assert kit.everything(engine).seqs == list(range(8, 31))


def test_what_a_pin_holds_stays_as_long_as_it_does() -> None:
    """A-8: the old generation of a planned segment is kept; A-15: what a pinned snapshot names is not rewritten."""
    store = filled()
    engine = store.engine
    engine.delete(TOPIC, seqs=[1])
    pins, id = engine.core.pins, engine.plan(TOPIC).id
    pin = pins.make(Everything())
    assert told(engine.compact(TOPIC, [1])) == {1: "busy"}
    pins.give_up(pin)
    pin = pins.make(Files(id, frozenset({(1, 0)})))
    assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
    assert len([path for path in store.files(".data") if "0000000000000001" in path]) == 2
    with engine._owner:
        pins.give_up(pin)
    assert [path[-10:] for path in store.files(".data") if "0000000000000001" in path] == ["g0001.data"]


@pytest.mark.parametrize("op", ["pwrite", "fsync", "rename"])
def test_a_failed_rewrite_says_so_and_leaves_the_segment_as_it_was(op: str) -> None:
    """CPT-1: `failed`; no copy is left behind, and the next request does it."""
    store = filled()
    engine = store.engine
    engine.delete(TOPIC, seqs=[1])
    engine.checkpoint(full=True)
    before, files = kit.snapshot_of(engine), store.files()
    store.fail(op, path=".idx.tmp" if op == "rename" else "g0001.data")
    (one,) = engine.compact(TOPIC, [1]).segments
    assert (one.result, one.bytes_after) == ("failed", one.bytes_before)
    assert kit.snapshot_of(engine) == before
    if op != "rename":  # an .idx may name the copy then
        assert store.files() == files
    store.mend()
    assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
    assert kit.snapshot_of(engine) == before
    assert kit.snapshot_of(store.kill()) == before


def test_a_damaged_frame_ends_the_rewrite_of_its_segment_only() -> None:
    """S-281: only what is provably deleted is left out."""
    store = filled(30)
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 9])
    engine.checkpoint(full=True)
    path = next(path for path in store.sim.files() if path.endswith("0000000000000001.data"))
    at = store.sim.files()[path].index(b"%b 0003" % SECRET)
    file = store.sim.open(path, "rw")
    file.pwrite(b"X", at)
    file.close()
    assert told(engine.compact(TOPIC, [1, 9])) == {1: "failed", 9: "rewritten"}
    assert kit.everything(engine).ranges == [(3, 3, "corrupt")]


def test_no_power_loss_takes_back_a_delete_whose_record_a_rewrite_left_out() -> None:
    """S-281: the delete of a `disk` topic is synced before the copy without its record is put in force."""
    store = Store(segment_max_events=PER_SEGMENT)
    engine = store.put(durability="disk")
    kit.each(engine, 20)
    engine.checkpoint(full=True)
    deletes = store.engine.core.topics[1].needed
    engine.delete(TOPIC, seqs=[2, 12])
    assert deletes
    assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
    store.crash()
    # Seq 12 tells whether the delete as a whole survived.
    assert kit.everything(store.engine).seqs == [seq for seq in range(1, 21) if seq not in (2, 12)]


def test_replayed_deletes_reach_the_same_live_set_before_and_after_a_rewrite() -> None:
    """S-284: from any point of the log, with any snapshot."""
    store = filled(30)
    engine = store.engine
    engine.snapshot()
    engine.delete(TOPIC, match="t1")
    engine.delete(TOPIC, seqs=[4, 20])
    engine.compact(TOPIC, min_dead_ratio=0)
    engine.delete(TOPIC, match="t2")
    engine.delete(TOPIC, before_seq=3)
    before = kit.snapshot_of(engine)
    for stop in ("killed", "crashed", "killed", "reopened", "crashed"):
        assert kit.snapshot_of(store.stop(stop)) == before
        assert told(store.engine.compact(TOPIC, [9])) in ({9: "rewritten"}, {9: "nothing_to_do"})
        assert kit.snapshot_of(store.engine) == before
        assert store.engine.delete(TOPIC, match="t1").deleted == 0


def cold_store() -> Store:
    """Twenty records in segments of three, of which all sealed ones are in the cold tier."""
    store = Store("cold")
    store.put()
    kit.each(store.engine, 20)
    store.settle()
    return store


def tiers(store: Store) -> dict[int, str]:
    return {one.first_seq: one.tier for one in store.engine.plan(TOPIC).segments}


def test_a_cold_segment_comes_back_smaller_and_moves_again() -> None:
    """CPT-1, S-285: fetched, rewritten here, moved by the next round; the old object goes behind the new one."""
    store = cold_store()
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 4, 5, 6])
    before = kit.snapshot_of(engine)
    result = engine.compact(TOPIC, [1, 4, 7])
    assert told(result) == {1: "rewritten", 4: "rewritten", 7: "nothing_to_do"}
    assert result.segments[0].bytes_after * 3 == result.segments[0].bytes_before * 2
    assert result.segments[1].bytes_after == 0
    assert tiers(store)[1] == "hot"
    assert kit.snapshot_of(engine) == before
    store.relocate()
    assert tiers(store)[1] == "cold"
    assert kit.snapshot_of(store.engine) == before
    names = [path.rsplit("/", 1)[-1] for path in store.sim.files() if path.startswith("cold/") and ".data" in path]
    assert "seg-0000000000000001.g0001.data" in names
    assert told(store.engine.compact(TOPIC, [1])) == {1: "nothing_to_do"}
    for stop in kit.STOPS:
        assert kit.snapshot_of(store.stop(stop)) == before


def test_a_cold_segment_that_cannot_be_fetched_is_told_and_stays() -> None:
    """CPT-1, S-285: `failed`, and nothing changed; not while the store is failing."""
    store = cold_store()
    engine = store.engine
    engine.delete(TOPIC, seqs=[1, 7])
    engine.checkpoint(full=True)
    files = {path: raw for path, raw in store.sim.files().items() if path.startswith("cold/")}
    for path in files:
        store.sim.lose_file(path)
    results = {told(engine.compact(TOPIC, [1]))[1] for _ in range(2)}
    assert results <= {"failed", "busy"}
    store.sim.load(files)
    store.pass_time(30_000)
    assert told(engine.compact(TOPIC, [1, 7])) == {1: "rewritten", 7: "rewritten"}
    assert kit.everything(engine).seqs == [seq for seq in range(1, 21) if seq not in (1, 7)]


class Watched(SimFs):
    """Calls what is wanted at a named point, or when a file is opened for writing."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.at: dict[str, Callable[[], object]] = {}

    def point(self, name: str) -> None:
        super().point(name)
        self._call(name)

    def open(self, path: str, mode: Mode) -> SimFile:
        if mode != "r":
            self._call(path.rsplit("/", 1)[-1])
        return super().open(path, mode)

    def _call(self, name: str) -> None:
        call = self.at.pop(name, None)
        if call is not None:
            call()


@contextmanager
def on_threads(sim: SimFs, durability: str) -> Iterator[Engine]:
    """Three sealed segments and an active one, in an engine with threads of its own."""
    with Engine.open(kit.PATH, kit.EngineConfig(segment_max_events=PER_SEGMENT), fs=sim) as engine:
        engine.put_topic(TOPIC, {"durability": durability})
        kit.each(engine, 30)
        engine.checkpoint(full=True)
        yield engine


@pytest.mark.parametrize("moment", ["seg-0000000000000001.g0001.data.tmp", "rewrite.before_rename"])
def test_deletes_during_a_rewrite_stay_deleted_and_are_there_for_the_next_one(moment: str) -> None:
    """S-158, S-281 (2): what comes while files are written is handed over or stays pending."""
    sim = Watched(3)
    with on_threads(sim, "fsync") as engine:
        engine.delete(TOPIC, seqs=[1])
        deleted: list[int] = []
        sim.at[moment] = lambda: deleted.append(engine.delete(TOPIC, seqs=[2]).deleted)
        assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
        assert deleted == [1]
        assert kit.everything(engine).seqs == list(range(3, 31))
        assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
        assert kit.everything(engine).seqs == list(range(3, 31))


def test_a_delete_that_is_handed_over_is_synced_before_the_copy_is_put_in_force() -> None:
    """S-281: a power loss finds the record deleted as a whole delete, in this segment and elsewhere."""
    sim = Watched(3)
    with on_threads(sim, "disk") as engine:
        engine.delete(TOPIC, seqs=[1])
        moment = "seg-0000000000000001.g0001.data.tmp"
        sim.at[moment] = lambda: engine.delete(TOPIC, seqs=[2, 12])
        images: list[SimFs] = []
        sim.at["rewrite.before_rename"] = lambda: images.append(sim.crash_image(1, "nothing"))
        assert told(engine.compact(TOPIC, [1])) == {1: "rewritten"}
    with Engine.open(kit.PATH, clock=ManualClock(), fs=images[0], boot_id="later") as engine:
        assert kit.everything(engine).seqs == [seq for seq in range(3, 31) if seq != 12]
