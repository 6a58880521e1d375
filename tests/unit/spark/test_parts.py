"""Parts on their way to a server or a directory [K-30 … K-34], without Spark."""

from __future__ import annotations

import os
import resource
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.kit import Running, running
from tests.spark.between import Reply, between
from topics.codec import envelope
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import OsFs
from topics.spark.failure import SourceError
from topics.spark.parts import Chunker, Staged, Target, TooLarge, Version, stage
from topics.spark.rows import Row
from topics.spark.sink import LEFT_MS, FolderTarget
from topics.spark.upload import ServerTarget
from topics.spark.writeoptions import WriteOptions, parse_write
from topics.storage.view import StoreView

ONE = Version("job", 1)
BUSY = Reply(503, b'{"error":{"code":"not_ready","message":"busy"}}')


def row(number: int, topic: str = "t", **more: Any) -> Row:
    meta = b'{"n":%d}' % number if more.pop("meta", False) else None
    return Row(number, topic, more.get("node"), more.get("tag"), envelope.build(b"%d" % number, meta))


def rows(first: int, last: int, topic: str = "t", **more: Any) -> list[Row]:
    return [row(number, topic, **more) for number in range(first, last + 1)]


def staged(target: Target, options: WriteOptions, given: list[Row], part: str = "p0", version: Version = ONE) -> Staged:
    """Rows as a complete part."""
    return stage(target, options, version, part, given)


def found(client: httpx.Client, topic: str = "t") -> list[Any]:
    answer = client.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0, "limit": 1000})
    return [one["data"] for one in answer.json()["records"]] if answer.status_code == 200 else []


def to(server: Running | str, **more: object) -> tuple[ServerTarget, WriteOptions]:
    url = server if isinstance(server, str) else server.url
    options = parse_write({"url": url, "retryMs": "5000"} | {name: str(value) for name, value in more.items()})
    return ServerTarget(options), options


class Kept:
    """Chunks as they are sent; more than `most` rows are too many."""

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self.chunks: list[tuple[int, str, list[int]]] = []

    def __call__(self, chunk: int, topic: str, rows: Sequence[Row]) -> None:
        if len(rows) > self.most:
            raise TooLarge
        self.chunks.append((chunk, topic, [one.number for one in rows]))


def test_rows_are_cut_by_number_and_by_bytes() -> None:
    """K-30: `batchRecords`, `batchBytes`; a row that is larger than a chunk is one by itself."""
    kept = Kept()
    chunks = Chunker(WriteOptions(batch_records=3, batch_bytes=1000), kept)
    chunks.add(rows(1, 7))
    chunks.finish()
    assert kept.chunks == [(0, "t", [1, 2, 3]), (1, "t", [4, 5, 6]), (2, "t", [7])]
    assert (chunks.chunks, chunks.records) == (3, 7)
    large = Kept()
    chunks = Chunker(WriteOptions(batch_records=100, batch_bytes=200), large)
    chunks.add([row(1), Row(2, "t", None, None, b'{"d":"%b"}' % (b"x" * 500)), row(3)])
    chunks.finish()
    assert [one[2] for one in large.chunks] == [[1], [2], [3]]


def test_rows_of_a_topic_keep_their_order_and_topics_do_not_wait() -> None:
    """K-31: what waits for all topics together is bounded."""
    kept = Kept()
    chunks = Chunker(WriteOptions(batch_records=4, batch_bytes=500), kept)
    chunks.add(row(number, f"t{number % 7}") for number in range(1, 101))
    assert kept.chunks, "rows are sent before the last one is there"
    chunks.finish()
    assert [one[0] for one in kept.chunks] == list(range(len(kept.chunks)))
    for topic in range(7):
        sent = [number for _, name, numbers in kept.chunks if name == f"t{topic}" for number in numbers]
        assert sent == [number for number in range(1, 101) if number % 7 == topic]


def test_a_chunk_that_is_too_large_is_cut_and_the_next_are_smaller() -> None:
    """K-33: chunk numbers stay without gaps."""
    kept = Kept(most=3)
    chunks = Chunker(WriteOptions(batch_records=10), kept)
    chunks.add(rows(1, 25))
    chunks.finish()
    assert [one[0] for one in kept.chunks] == list(range(len(kept.chunks)))
    assert [number for one in kept.chunks for number in one[2]] == list(range(1, 26))


@pytest.mark.parametrize("mode", ["append", "segments"])
def test_parts_are_committed_in_order_once(mode: str) -> None:
    """K-31, K-34: the same again appends nothing."""
    with running() as server, server.client() as client:
        target, options = to(server, mode=mode, batchRecords=3)
        first = staged(target, options, rows(1, 7, tag="x", node="n", meta=True), "p0")
        second = staged(target, options, [*rows(8, 9), row(10, "u")], "p1")
        assert (first, second) == (Staged("p0", 3, 7), Staged("p1", 2, 3))
        assert found(client) == []
        for _ in range(2):
            target.commit(ONE, [second, first])
            assert (found(client), found(client, "u")) == ([8, 9, *range(1, 8)], [10])
        assert staged(target, options, rows(1, 50), "p2") == Staged("p2", 0, 0), "nothing is sent any more"
        (one,) = client.post("/v0/topics/t/diff", json={"from_seq": 2, "limit": 1, "include_tags": True}).json()[
            "records"
        ]
        assert (one["$tag"], one["$node"], one["meta"]) == ("x", "n", {"n": 1})
        told = client.get("/v0/txn/job").json()
        assert {one["attached"] for one in told["topics"]} == {mode == "segments"}


def test_limits_of_the_server_cut_chunks() -> None:
    """K-33: records of a batch, bytes of a body."""
    with running(env={"TOPICS_MAX_BATCH_RECORDS": "10", "TOPICS_MAX_BODY_BYTES": "1000"}) as server:
        target, options = to(server)
        part = staged(target, options, [*rows(1, 100), *rows(101, 130, node="x" * 100)])
        assert part.records == 130
        target.commit(ONE, [part])
        with server.client() as client:
            assert found(client) == list(range(1, 131))


def test_a_server_that_is_busy_or_cut_off_is_asked_again() -> None:
    """K-33: 429, 500, 503 with `Retry-After`, lost requests and lost answers, of chunks and of the commit."""
    with running() as server, server.client() as client, between(server.url) as proxy:
        failing = {"/v0/topics/t/stage": 0, "/v0/txn/commit": 0}

        def step(path: str, body: bytes, forward: Any) -> Reply | None:
            number = failing[path]
            failing[path] += 1
            if number == 0:
                return None
            if number == 1:
                forward()
                return None
            return BUSY._replace(status=(429, 500, 503)[number - 2]) if number < 5 else forward()

        proxy.step = step
        target, options = to(proxy.url, batchRecords=50)
        part = staged(target, options, rows(1, 50))
        target.commit(ONE, [part])
        assert found(client) == list(range(1, 51))
        assert failing == {"/v0/topics/t/stage": 6, "/v0/txn/commit": 6}


def test_whoever_never_answers_is_given_up_and_what_is_not_known_is_said() -> None:
    """K-15, K-33, TXN-10"""
    with running() as server, between(server.url) as proxy:
        target, options = to(proxy.url, retryMs=100)
        part = staged(target, options, rows(1, 5))
        proxy.step = lambda path, body, forward: None
        with pytest.raises(SourceError, match=r"^topics: commit_unknown: whether version 1 of job was written is not"):
            target.commit(ONE, [part])
        with pytest.raises(SourceError, match=r"^topics: unreachable: .* — start the server, or correct `url`$"):
            target.check()
        target.abort(ONE)  # only logged
        proxy.step = lambda path, body, forward: BUSY
        with pytest.raises(SourceError, match=r"^topics: commit_unknown: .*: busy — with txnAppId and txnVersion"):
            target.commit(ONE, [part])
        with pytest.raises(SourceError, match=r"^topics: not_ready: .*rows 1 to 2 of the partition: busy — nothing"):
            staged(target, options, rows(1, 2), "p1")


def test_a_server_that_has_forgotten_fails_the_task_and_the_commit() -> None:
    """K-31, TXN-2: rows that are staged without those before them are never committed."""
    with running() as server, server.client() as client:
        target, _ = to(server, batchRecords=2)
        outgoing = target.begin(ONE, "p0")
        outgoing.send(0, "t", rows(1, 2))
        target.abort(ONE)
        with pytest.raises(SourceError, match=r"^topics: txn_conflict: .* has forgotten what was staged before"):
            outgoing.send(1, "t", rows(3, 4))
        outgoing.close(complete=False)
        with pytest.raises(SourceError, match=r"^topics: txn_incomplete: .* has forgotten what was staged for version"):
            target.commit(ONE, [Staged("p0", 1, 2)])
        assert found(client) == []


def test_keys_need_the_scopes_of_what_they_do() -> None:
    """K-15: a key that may write is enough, but for frames."""
    keys = "writer-key-123456:write,admin-key-1234567:write+admin,reader-key-123456:read"
    with running(env={"TOPICS_API_KEYS": keys}) as server:
        target, options = to(server, apiKey="writer-key-123456")
        target.check()
        target.commit(ONE, [staged(target, options, rows(1, 3))])
        bulk, options = to(server, apiKey="writer-key-123456", mode="segments")
        with pytest.raises(SourceError, match=r"^topics: forbidden: .* — use a key with the scope admin, or leave out"):
            staged(bulk, options, rows(1, 3), version=Version("job", 2))
        for key, code in (("reader-key-123456", "forbidden"), ("nobody", "unauthorized")):
            with pytest.raises(SourceError, match=rf"^topics: {code}: .* — set `apiKey` or `apiKeyFile`"):
                to(server, apiKey=key)[0].check()


def test_created_topics_have_the_class_that_was_asked_for() -> None:
    """K-30: `durability`"""
    with running() as server, server.client() as client:
        target, options = to(server, durability="fsync")
        target.commit(ONE, [staged(target, options, rows(1, 3))])
        assert client.get("/v0/topics/t").json()["config"]["durability"] == "fsync"


def test_a_part_that_begins_behind_a_final_abort_is_refused() -> None:
    """K-32: tasks may go on for a while when their job has failed; nothing of them stays."""
    with running() as server, server.client() as client:
        target, options = to(server)
        staged(target, options, rows(1, 5))
        target.abort(ONE, final=True)
        assert staged(target, options, rows(1, 5), "late") == Staged("late", 0, 0)
        assert client.get("/v0/txn/job").json()["staged"] == []
        assert found(client) == []


def folder(path: Path, **more: str) -> tuple[FolderTarget, WriteOptions]:
    options = parse_write({"path": str(path / "store"), "retryMs": "0"} | more)
    return FolderTarget(options), options


def in_store(path: Path, topic: str = "t") -> list[Any]:
    with Engine.open(str(path / "store")) as engine:
        return [one.data for one in engine.read(topic, 0, limit=1000).records]


@pytest.mark.parametrize("mode", ["append", "segments"])
def test_a_directory_is_written_to_by_the_commit_alone(mode: str, tmp_path: Path) -> None:
    """K-30: parts lie beside the store; once, in order, and nothing is left of them."""
    target, options = folder(tmp_path, mode=mode, batchRecords="3", durability="fsync")
    target.check()
    for _ in range(2):
        first = staged(target, options, rows(1, 7, tag="x", node="n", meta=True), "p0")
        second = staged(target, options, [*rows(8, 9), row(10, "u")], "p1")
        staged(target, options, rows(90, 95), "zombie")
        assert (tmp_path / "store.staging").is_dir()
        target.commit(ONE, [second, first])
        assert sorted(os.listdir(tmp_path)) == ["store"]
        assert in_store(tmp_path) == [8, 9, *range(1, 8)]
        assert in_store(tmp_path, "u") == [10]
    with Engine.open(str(tmp_path / "store")) as engine:
        assert engine.state("t").config.durability == "fsync"
        (one,) = engine.read("t", 2, limit=1).records
        assert (one.tag, one.node, one.meta) == ("x", "n", {"n": 1})


def test_a_store_that_is_open_elsewhere_says_so(tmp_path: Path) -> None:
    """K-15, K-30: with a server running, `url` is the way."""
    target, options = folder(tmp_path)
    part = staged(target, options, rows(1, 3))
    with (
        Engine.open(str(tmp_path / "store")),
        pytest.raises(SourceError, match=r"^topics: data_dir_in_use: .* — write with `url` while a server runs$"),
    ):
        target.commit(ONE, [part])
    target.commit(ONE, [part])
    assert in_store(tmp_path) == [1, 2, 3]


def test_a_store_keeps_its_cold_tier(tmp_path: Path) -> None:
    """K-30, 06 §16: the commit opens it with the tier that it has."""
    cold = str(tmp_path / "cold")
    config = EngineConfig(cold_dir=cold, hot_retain_segments=0, segment_max_events=2)
    with Engine.open(str(tmp_path / "store"), config) as engine:
        engine.append("t", [{"data": n} for n in range(10)])
        engine.checkpoint(full=True)
    target, options = folder(tmp_path)
    target.commit(ONE, [staged(target, options, rows(10, 12))])
    header = StoreView(OsFs(), str(tmp_path / "store")).header
    assert header is not None
    assert header.cold == cold
    with Engine.open(str(tmp_path / "store"), config) as engine:
        assert [one.data for one in engine.read("t", 0).records] == list(range(13))


def test_an_aborted_part_and_one_that_was_given_up_leave_nothing(tmp_path: Path) -> None:
    """K-32"""
    target, options = folder(tmp_path)
    staged(target, options, rows(1, 3))
    outgoing = target.begin(ONE, "p1")
    outgoing.send(0, "t", rows(4, 5))
    outgoing.close(complete=False)
    (dir,) = (tmp_path / "store.staging").iterdir()
    assert [one.name for one in dir.iterdir()] == ["p0"]
    target.abort(ONE)
    assert list(tmp_path.iterdir()) == []
    target.abort(ONE)
    with pytest.raises(SourceError, match=r"^topics: txn_aborted: .* is gone — the write was given up$"):
        target.begin(ONE, "late", opened=True)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_whose_checkpoint_went_back_is_told(tmp_path: Path) -> None:
    """K-31: a repeat is of the newest batch; an older number has other rows now, and they would be passed over."""
    with running() as server:
        for target, options in (to(server), folder(tmp_path)):
            for number, newest in ((1, True), (2, True), (2, True), (1, False)):
                version = Version("q", number)
                target.commit(version, [staged(target, options, rows(1, 3), version=version)], newest=newest)
            old = Version("q", 1)
            with pytest.raises(SourceError, match=r"^topics: checkpoint_behind: batch 1 of q comes after batch 2 was"):
                target.commit(old, [staged(target, options, rows(4, 6), version=old)], newest=True)
        with server.client() as client:
            assert found(client) == [1, 2, 3, 1, 2, 3]
    assert in_store(tmp_path) == [1, 2, 3, 1, 2, 3]


def test_a_disk_that_fills_while_a_part_is_written_leaves_nothing_of_it(tmp_path: Path) -> None:
    """K-32: also where only closing the file tells."""
    target, options = folder(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    for data in ("x" * 2000, "x" * 200_000):  # in the file's buffer until it is closed, and not
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                stage(target, options, ONE, "p0", [Row(1, "t", None, None, b'{"d":"%b"}' % data.encode())])
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [*(tmp_path / "store.staging").rglob("p0*")] == []


def test_what_a_killed_driver_left_is_swept_by_a_later_commit(tmp_path: Path) -> None:
    """K-32: what may still be written to is left alone."""
    target, options = folder(tmp_path)
    for version in (7, 8):
        staged(target, options, rows(1, 3), version=Version("lost", version))
    old, new = sorted((tmp_path / "store.staging").iterdir(), key=lambda one: one.name)
    for path in (old / "p0", old):
        os.utime(path, (path.stat().st_mtime - LEFT_MS / 1000 - 5,) * 2)
    target.commit(ONE, [staged(target, options, rows(1, 3))])
    assert list((tmp_path / "store.staging").iterdir()) == [new]


@pytest.mark.parametrize("damage", ["gone", "cut", "flipped", "no line"])
def test_a_part_file_that_is_not_what_was_written_is_refused(damage: str, tmp_path: Path) -> None:
    """K-31: nothing of the version is written."""
    target, options = folder(tmp_path, batchRecords="2")
    part = staged(target, options, rows(1, 5))
    (file,) = (tmp_path / "store.staging").glob("*/p0")
    raw = bytearray(file.read_bytes())
    if damage == "gone":
        file.unlink()
    elif damage == "cut":
        file.write_bytes(raw[:-5])
    elif damage == "flipped":
        raw[-12] ^= 1
        file.write_bytes(raw)
    else:
        file.write_bytes(b"{}\n" + raw)
    with pytest.raises(SourceError, match=r"^topics: txn_incomplete: "):
        target.commit(ONE, [part])
    with Engine.open(str(tmp_path / "store")) as engine:
        assert engine.writer("job").version is None
        assert list(engine.topics()) == []


def test_a_path_in_nowhere_is_told_before_anything_is_written(tmp_path: Path) -> None:
    """K-15"""
    target, _ = folder(tmp_path / "nowhere")
    with pytest.raises(SourceError, match=r"^topics: no_store: .*/nowhere is not a directory — create it, or correct"):
        target.check()
