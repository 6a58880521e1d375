"""Opening and closing: the lock, a second opener, a forked child, use after close, coroutines (06 §2, §18, §21)."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import stat
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import topics
from tests.unit.engine import kit
from tests.unit.engine.kit import PATH, TOPIC, Store, write
from topics import errors, paths
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import CallerError, DataDirInUse, EngineClosed, TopicsError
from topics.model import TopicConfig, new
from topics.storage.snapshot import SnapshotStore
from topics.wal import EventStream, PrometheusMeter

CALLS: dict[str, Callable[[Any], Any]] = {
    "put_topic": lambda engine: engine.put_topic("x"),
    "delete_topic": lambda engine: engine.delete_topic(TOPIC),
    "append": lambda engine: engine.append(TOPIC, [new(1)]),
    "read": lambda engine: engine.read(TOPIC),
    "delete": lambda engine: engine.delete(TOPIC, before_seq=2),
    "state": lambda engine: engine.state(TOPIC),
    "topics": lambda engine: list(engine.topics()),
    "checkpoint": lambda engine: engine.checkpoint(),
    "snapshot": lambda engine: engine.snapshot(),
}


# Closing


@pytest.mark.parametrize("call", sorted(CALLS))
@pytest.mark.parametrize("real", [False, True])
def test_a_closed_engine_refuses_every_operation(call: str, real: bool, tmp_path: Path) -> None:
    """[S-352], 06 §21"""
    engine = kit.open_real(tmp_path / "store") if real else Store().engine
    engine.put_topic(TOPIC)
    engine.close()
    with pytest.raises(EngineClosed) as caught:
        CALLS[call](engine)
    assert caught.value.code == "shutting_down"


def test_closing_again_is_fine() -> None:
    """[S-352]"""
    store = Store()
    store.put()
    store.engine.close()
    calls = store.sim.disk_calls
    store.engine.close()
    assert store.sim.disk_calls == calls


@pytest.mark.parametrize("ask", [lambda engine: engine.checkpoint(full=True), lambda engine: engine.snapshot()])
def test_a_run_that_only_took_a_snapshot_ends_with_a_clean_one(ask: Callable[[Engine], object]) -> None:
    """[S-352]: it has replaced what an earlier clean stop said."""
    store = Store()
    kit.each(store.put(), 3)
    engine = store.reopen()
    ask(engine)
    engine.close()
    newest = SnapshotStore(store.fs, f"{PATH}/{paths.META_DIR}").load(None)
    assert newest is not None
    assert newest.header.clean
    assert kit.everything(store.open()).values == [1, 2, 3]


def test_an_engine_closes_at_the_end_of_its_block(tmp_path: Path) -> None:
    """[S-352]"""
    with kit.open_real(tmp_path / "store") as engine:
        write(engine, 1)
    with pytest.raises(EngineClosed):
        engine.read(TOPIC)
    with kit.open_real(tmp_path / "store") as engine:
        assert kit.everything(engine).values == [1]


def test_an_engine_closes_when_its_block_raises(tmp_path: Path) -> None:
    """[S-352]"""
    with pytest.raises(KeyError), kit.open_real(tmp_path / "store") as engine:
        write(engine, 1)
        raise KeyError
    with kit.open_real(tmp_path / "store") as engine:
        assert kit.everything(engine).values == [1]


def test_a_closed_engine_wrote_everything_into_segments_and_a_snapshot() -> None:
    """[S-352, S-210]: the next start has nothing to replay."""
    store = Store()
    kit.each(store.put(durability="disk"), 10)
    store.engine.close()
    engine = store.open()
    assert kit.metric(engine, "topics_tail_records") == 0
    assert kit.everything(engine).values == list(range(1, 11))
    assert engine.health().progress == 1.0


def test_an_engine_that_wrote_nothing_makes_no_log_file() -> None:
    """[S-20]"""
    store = Store()
    store.engine.close()
    assert store.files(".log") == []
    store.open()
    store.reopen()
    assert store.files(".log") == []


# The lock


def test_a_second_opener_is_told_which_directory_is_in_use_and_by_whom(tmp_path: Path) -> None:
    """[S-11, BOOT-3]: in the same process, and again after the first has closed."""
    path = tmp_path / "store"
    with kit.open_real(path) as engine:
        write(engine, 1)
        with pytest.raises(DataDirInUse) as caught:
            kit.open_real(path)
        assert str(path) in str(caught.value)
        assert str(os.getpid()) in str(caught.value)
        assert caught.value.code == "data_dir_in_use"
        assert write(engine, 2).seqs == [2]
    kit.open_real(path).close()


def test_another_process_finds_the_directory_in_use(tmp_path: Path) -> None:
    """[S-11]: and leaves it alone."""
    path = tmp_path / "store"
    script = (
        "import sys; from topics.engine.engine import Engine; from topics.errors import DataDirInUse\n"
        "try:\n    Engine.open(sys.argv[1])\nexcept DataDirInUse as error:\n    print(error); sys.exit(7)\n"
    )
    with kit.open_real(path) as engine:
        write(engine, 1)
        result = subprocess.run(
            [sys.executable, "-c", script, str(path)], capture_output=True, text=True, timeout=60, check=False
        )
        assert result.returncode == 7, result.stderr
        assert str(path) in result.stdout
        assert str(os.getpid()) in result.stdout
        assert write(engine, 2).seqs == [2]


def test_the_lock_on_a_simulated_disk_is_told_alike() -> None:
    """[S-11]"""
    store = Store()
    with pytest.raises(DataDirInUse, match=PATH):
        store.open()
    assert write(store.put(), 1).seqs == [1]


def test_a_second_opener_syncs_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-11, S-78] An error that a disk tells once is told to whoever holds the directory."""
    store = Store()

    def strike(path: str) -> None:
        raise OSError(errno.EIO, path)

    with monkeypatch.context() as patched:
        patched.setattr(store.sim, "sync_dir", strike)
        with pytest.raises(DataDirInUse, match=PATH):
            store.open()
    assert write(store.put(), 1).seqs == [1]


@pytest.mark.parametrize("op", ["listdir", "pread", "open", "fsync", "sync_dir"])
def test_an_open_that_failed_leaves_the_lock_free(op: str) -> None:
    """13 §6: whatever failed; the next open finds everything."""
    store = Store()
    kit.each(store.put(), 5)
    store._use(store.sim.kill_image(), trust=False)
    store.fail(op, times="always")
    try:
        store.open()
    except (OSError, TopicsError):
        pass
    else:
        # It opened without needing that operation: then it holds the lock.
        store.mend()
        store.engine.close()
    store.mend()
    engine = store.open()
    assert kit.everything(engine).values == [1, 2, 3, 4, 5]


def test_the_lock_file_names_its_holder(tmp_path: Path) -> None:
    """[S-11]"""
    with kit.open_real(tmp_path / "store"):
        lines = (tmp_path / "store" / ".topics.lock").read_text().splitlines()
    entries = dict(line.split("=", 1) for line in lines)
    assert entries["pid"] == str(os.getpid())
    assert {"boot", "started", "run"} <= set(entries)


def test_directories_and_files_are_private(tmp_path: Path) -> None:
    """[S-12]"""
    path = tmp_path / "store"
    with kit.open_real(path, segment_max_events=2) as engine:
        kit.each(engine, 5, tag="x")
        engine.checkpoint(full=True)
        engine.snapshot()
    found = [path, *path.rglob("*")]
    assert len(found) > 8
    for one in found:
        assert stat.S_IMODE(one.stat().st_mode) == (0o700 if one.is_dir() else 0o600), one


def test_an_engine_stays_where_it_was_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the directory it named at open, also for files made later."""
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    engine = kit.open_real("store", wal_file_bytes=65536)
    monkeypatch.chdir(tmp_path / "b")
    with engine:
        for _ in range(10):
            write(engine, "x" * 20_000)
        engine.checkpoint(full=True)
    assert os.listdir(tmp_path / "b") == []
    with kit.open_real(tmp_path / "a" / "store") as engine:
        assert kit.numbers(engine).count == 10


# Fork


def test_a_forked_child_can_neither_use_nor_harm_the_engine(tmp_path: Path) -> None:
    """[S-11], 13 §6: every method refuses there; the parent goes on."""
    engine = kit.open_real(tmp_path / "store")
    engine.put_topic(TOPIC, {"durability": "fsync"})
    write(engine, 0)
    with warnings.catch_warnings():
        # That there are threads is the point.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            for call in CALLS.values():
                with pytest.raises(EngineClosed):
                    call(engine)
            engine.close()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    for n in range(1, 20):
        write(engine, n)
    engine.close()
    with kit.open_real(tmp_path / "store") as engine:
        assert kit.everything(engine).values == list(range(20))


def test_a_killed_process_loses_nothing_it_acknowledged(tmp_path: Path) -> None:
    """[DUR-4, A-16]: a real one, with SIGKILL, three times over."""
    script = (
        "import os, signal, sys\n"
        "from topics.engine.config import EngineConfig\n"
        "from topics.engine.engine import Engine\n"
        "engine = Engine.open(sys.argv[1], EngineConfig(min_free_bytes=0, wal_file_bytes=1 << 20))\n"
        "for name in ('disk', 'fsync'):\n"
        "    engine.put_topic(name, {'durability': name})\n"
        "    for n in range(50):\n"
        "        print(name, *engine.append(name, [{'data': n}]).seqs, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    acked: dict[str, list[int]] = {"disk": [], "fsync": []}
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path / "store")],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert result.returncode == -9, result.stderr
        for line in result.stdout.splitlines():
            name, seq = line.split()
            acked[name].append(int(seq))
    with kit.open_real(tmp_path / "store") as engine:
        for name, told in acked.items():
            assert told == list(range(1, 151))
            seen = kit.everything(engine, name, limit=1000)
            assert (seen.seqs, seen.ranges) == (told, [])


# Coroutines


def test_every_operation_has_a_coroutine(tmp_path: Path) -> None:
    """06 §18: `engine.aio`, with the same answers."""

    async def run(engine: Engine) -> None:
        created, config = await engine.aio.put_topic(TOPIC, {"durability": "fsync"})
        assert (created, config) == (True, TopicConfig(durability="fsync"))
        answers = await asyncio.gather(*(engine.aio.append(TOPIC, [new(n, tag="x")]) for n in range(20)))
        assert sorted(seq for answer in answers for seq in answer.seqs or ()) == list(range(1, 21))
        page = await engine.aio.read(TOPIC, 5, limit=3)
        assert kit.seqs(page) == [6, 7, 8]
        result = await engine.aio.delete(TOPIC, before_seq=3)
        assert (result.deleted, result.count) == (2, 18)
        state = await engine.aio.state(TOPIC)
        assert (state.head_seq, state.earliest_seq) == (20, 3)
        await engine.aio.checkpoint(full=True)
        assert await engine.aio.snapshot() >= 1
        waiter = asyncio.ensure_future(engine.aio.read(TOPIC, 20, wait_ms=15_000))
        await asyncio.sleep(0)
        await engine.aio.append(TOPIC, [new("news")])
        assert kit.values(await asyncio.wait_for(waiter, kit.WAIT_S)) == ["news"]
        with pytest.raises(CallerError):
            await engine.aio.append(TOPIC, [])
        assert await engine.aio.delete_topic(TOPIC) is True

    with kit.open_real(tmp_path / "store") as engine:
        asyncio.run(asyncio.wait_for(run(engine), 60))


def test_coroutines_tell_metrics_and_do_what_is_due() -> None:
    """06 §18: `engine.aio` has the names of the engine; S-355."""
    store = Store()
    engine = store.put(durability="disk")
    kit.each(engine, 3)

    async def use() -> tuple[dict[str, float], dict[str, float]]:
        before = await engine.aio.metrics()
        store.clock.advance(60_000)
        await engine.aio.tick()
        return before, await engine.aio.metrics()

    before, after = asyncio.run(use())
    assert before["topics_records_live"] == 3
    assert after["topics_ckpt_total"] == before["topics_ckpt_total"] + 1
    assert after == engine.metrics()
    engine.close()
    with pytest.raises(EngineClosed):
        asyncio.run(engine.aio.metrics())
    with pytest.raises(EngineClosed):
        asyncio.run(engine.aio.tick())


def test_a_meter_gets_what_the_shards_do() -> None:
    """06 §18, 07 §2: events and metrics of each shard's files; `node` is the number of the shard."""
    meter = PrometheusMeter()
    stream = EventStream(meter=meter)
    store = Store(wal_shards=2, opened=False)
    engine = store.open(meter=stream)
    names = [f"topic-{n}" for n in range(8)]
    for name in names:
        engine.put_topic(name, {"durability": "fsync"})
        write(engine, 1, name=name)
    told = [line for line in meter.render().splitlines() if not line.startswith("#")]
    counted = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in told}
    total = engine.metrics()
    for series, metric in (
        ("wal_records_total", "topics_wal_frames_total"),
        ("wal_bytes_total", "topics_wal_bytes_written_total"),
        ("wal_fsync_ms_count", "topics_wal_fsyncs_total"),
    ):
        assert counted[f'{series}{{node="0"}}'] > 0
        assert counted[f'{series}{{node="0"}}'] + counted[f'{series}{{node="1"}}'] == total[metric]
    engine.close()
    assert {(event.node, event.kind) for event in stream} >= {
        (n, k) for n in (0, 1) for k in ("segment_created", "fsync")
    }


def test_coroutines_refuse_a_closed_engine(tmp_path: Path) -> None:
    """06 §21"""
    engine = kit.open_real(tmp_path / "store")
    engine.close()

    async def run() -> None:
        with pytest.raises(EngineClosed):
            await engine.aio.state(TOPIC)

    asyncio.run(run())


# Configuration and errors


@pytest.mark.parametrize(
    "options",
    [
        {"wal_shards": 65},
        {"wal_shards": -1},
        {"wal_file_bytes": 4095},
        {"segment_max_events": 0},
        {"checkpoint_ms": -1},
        {"max_batch_records": -1},
        {"max_record_bytes": 64 * 2**20},
        {"max_tag_bytes": 65536},
        {"min_free_bytes": "1"},
        {"wal_shards": True},
    ],
    ids=str,
)
def test_a_bad_setting_refuses_to_start(options: dict[str, Any]) -> None:
    """[S-380, A-17]: and makes nothing."""
    store = Store(opened=False)
    with pytest.raises(CallerError):
        store.open(**options)
    assert store.sim.files() == {}


def test_an_empty_path_is_refused() -> None:
    """[S-351]: a store in memory is `None`; with no directory in front of them files would lie in the root."""
    store = Store(opened=False)
    with pytest.raises(CallerError, match="path: a non-empty one is needed, or None for a store in memory"):
        Engine.open("", clock=store.clock, fs=store.sim)
    assert store.sim.files() == {}


@pytest.mark.parametrize("path", ["a-file", "a-file/below"])
def test_a_path_that_leads_to_a_file_is_refused_in_our_words(path: str, tmp_path: Path) -> None:
    """[S-351], 06 §21"""
    (tmp_path / "a-file").write_text("mine")
    with pytest.raises(CallerError) as caught:
        topics.open(str(tmp_path / path))
    assert str(caught.value) == f"path: {tmp_path / path} is not a directory, or is below a file"
    assert (tmp_path / "a-file").read_text() == "mine"


def test_a_setting_that_is_not_known_is_refused_by_name(tmp_path: Path) -> None:
    """[S-354]"""
    with pytest.raises(TypeError, match=r"^open\(\) got an unexpected keyword argument 'wal_shardz'$"):
        topics.open(str(tmp_path / "store"), wal_shardz=4)
    assert not (tmp_path / "store").exists()


def test_the_configuration_is_frozen_and_takes_names_only() -> None:
    """[S-354]"""
    config = EngineConfig(wal_shards=2, segment_max_events=5)
    assert (config.wal_shards, config.segment_max_events) == (2, 5)
    with pytest.raises(AttributeError):
        config.wal_shards = 3  # type: ignore[misc]
    with pytest.raises(TypeError):
        EngineConfig(2)


def test_the_engine_is_a_public_name() -> None:
    """[S-354]"""
    assert topics.Engine is Engine
    assert topics.EngineConfig is EngineConfig
    assert topics.TopicConfig is TopicConfig


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("CallerError", "invalid_request"),
        ("BatchTooLarge", "batch_too_large"),
        ("RecordTooLarge", "record_too_large"),
        ("TopicNotFound", "topic_not_found"),
        ("TopicExistsIncompatible", "topic_exists_incompatible"),
        ("TopicFull", "topic_full"),
        ("ProducerGap", "producer_gap"),
        ("LimitReached", "throttled"),
        ("WalFull", "throttled"),
        ("StorageFull", "not_ready"),
        ("ShardReadOnly", "not_ready"),
        ("CommitFailed", "internal"),
        ("EngineClosed", "shutting_down"),
    ],
)
def test_every_error_has_the_code_of_its_answer(name: str, code: str) -> None:
    """[S-353], 02 §1.6, 06 §21"""
    error = getattr(errors, name)
    assert issubclass(error, TopicsError)
    assert error.code == code


def test_a_running_engine_is_ready() -> None:
    """06 §21"""
    store = Store(wal_shards=4)
    health = store.engine.health()
    assert (health.ready, health.state, health.progress) == (True, "ok", 1.0)
    assert len(health.shards) == 4
    assert set(health.shards.values()) == {"ok"}


def test_metrics_carry_the_names_of_the_specification() -> None:
    """06 §21"""
    store = Store()
    kit.each(store.put(), 4)
    store.engine.checkpoint(full=True)
    metrics = store.engine.metrics()
    for name in (
        "topics_wal_frames_total",
        "topics_wal_batches_total",
        "topics_wal_fsyncs_total",
        "topics_wal_bytes_written_total",
        "topics_wal_rotations_total",
        "topics_wal_queue_depth",
        "topics_wal_read_only",
        "topics_wal_full",
        "topics_ckpt_total",
        "topics_tail_records",
        "topics_tail_bytes",
        "topics_segments",
        "topics_segment_corrupt_total",
        "topics_segments_dropped_total",
        "topics_snapshot_total",
        "topics_snapshot_failed_total",
        "topics_orphan_dirs",
    ):
        assert name in metrics, name
    assert kit.metric(store.engine, "topics_wal_fsyncs_total") >= 5
    assert kit.metric(store.engine, "topics_wal_frames_total") >= 5
    assert kit.metric(store.engine, "topics_wal_read_only") == 0


def test_the_advisory_descriptor_says_what_the_topic_is() -> None:
    """[S-13]"""
    store = Store()
    store.put(ttl_ms=5)
    store.put(ttl_ms=6)
    (path,) = store.files("topic.json")
    told = json.loads(store.sim.files()[f"{PATH}/{path}"])
    assert (told["v"], told["name"], told["config"]["ttl_ms"]) == (1, TOPIC, 6)
    assert f"{told['id']:08X}" == path.split("/")[1]
    assert told["epoch"] >= 1


def test_files_of_somebody_else_are_left_alone() -> None:
    """[S-10]"""
    store = Store()
    kit.each(store.put(), 5)
    store.engine.close()
    foreign = {f"{PATH}/{path}": b"mine" for path in ("README", "meta/notes", "wal/x.txt", "topics/readme.md")}
    store.sim.load(foreign)
    engine = store.open()
    store.trim()
    engine.close()
    assert {path: store.sim.files().get(path) for path in foreign} == foreign
