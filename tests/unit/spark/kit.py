"""Stores with a history, and the rows that a reader of their files gets."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import count
from typing import Any

import msgspec

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import Fs
from topics.spark.options import parse_read
from topics.spark.plan import Partition
from topics.spark.reader import plan_read, read_partition
from topics.testing import ManualClock, SimFs

PATH = "store"
NODES = [None, None, "dock-7", "knöpfe", ""]
TAGS = [None, "a", "a:1", "a:2", "b", "ü:ß", "", "日本"]
VALUES: list[object] = [
    None, 0, 1.5, True, "text", "ünïcode 🚀", {"k": [1, 2, {"d": 1}]}, [], '{"d":1,"m":{}}', {"m": {"x": 1}},
    "x" * 3000,
]  # fmt: skip
METAS: list[object] = [
    None, None, None, {}, {"k": "v"}, {"n": 1.0, "t": True, "z": None, "o": {"a": [1]}, "ü": "ä\n"}, {"e": ""},
]  # fmt: skip
RAW = [b"1e3", b"1.0", b'"\\u00e9"', b"12345678901234567890123", b'{"a":1,"a":2}']


_NUMBERS = count()
"""Tiers in memory outlive the store that they belong to."""


class History:
    """An engine on a simulated disk that is written to, deleted from, capped, aged, moved and rewritten at random.

    Old segments stay, move to a folder, or become objects, one third of the seeds each.
    """

    def __init__(self, seed: int, fs: Fs | None = None, home: str = "") -> None:
        self.random = random.Random(seed)
        self.sim = SimFs(seed) if fs is None else fs
        self.clock = ManualClock()
        config = EngineConfig(
            wal_file_bytes=65536, wal_init_zero=False, segment_max_events=self.random.choice([3, 8, 50]),
            reclaim_rewrite=True, rewrite_min_bytes=1, rewrite_every_ms=0, hot_retain_segments=1,
            cold_dir=(None, f"{home}cold", f"memory://history-{next(_NUMBERS)}")[seed % 3],
        )  # fmt: skip
        self.engine = Engine.open(PATH, config, clock=self.clock, fs=self.sim)
        self.names = ["alpha", "beta.2", "gamma"]
        for name in self.names:
            self.engine.put_topic(name, {"durability": self.random.choice(["fsync", "disk"])})

    def run(self, steps: int) -> None:
        steps_of: list[Callable[[str], object]] = [
            self.append, self.append, self.append, self.delete_seqs, self.delete_tags, self.delete_below, self.cap,
            self.age, self.checkpoint, self.tick,
        ]  # fmt: skip
        for _ in range(steps):
            self.random.choice(steps_of)(self.random.choice(self.names))

    def append(self, name: str) -> None:
        self.engine.append(name, [self.record() for _ in range(self.random.randint(1, 40))])

    def record(self) -> dict[str, Any]:
        pick = self.random.choice
        raw = self.random.random() < 0.2
        one: dict[str, Any] = {"data": msgspec.Raw(pick(RAW)) if raw else pick(VALUES)}
        named = {"tag": pick(TAGS), "node": pick(NODES), "meta": pick(METAS)}
        return one | {member: value for member, value in named.items() if value is not None}

    def delete_seqs(self, name: str) -> None:
        head = self.engine.state(name).head_seq
        if head:
            count = self.random.randint(1, min(head, 10))
            self.engine.delete(name, seqs=self.random.sample(range(1, head + 1), count))

    def delete_tags(self, name: str) -> None:
        self.engine.delete(name, match=["tag", "Glob", self.random.choice(["a*", "b*", "ü*"])])

    def delete_below(self, name: str) -> None:
        state = self.engine.state(name)
        if self.random.random() < 0.3 and state.head_seq:
            self.engine.delete(name, before_seq=self.random.randint(1, state.head_seq))

    def cap(self, name: str) -> None:
        if self.random.random() < 0.3:
            config = self.random.choice([{"cap_records": 60}, {"ttl_ms": 20_000}, {"cap_bytes": 8000}, {}])
            self.engine.put_topic(name, {"durability": "fsync", **config})

    def age(self, name: str) -> None:
        self.clock.advance(self.random.choice([1, 700, 12_000]))

    def checkpoint(self, name: str) -> None:
        self.engine.checkpoint(full=self.random.random() < 0.7)

    def tick(self, name: str) -> None:
        self.engine.tick()

    def settle(self) -> None:
        """Bring everything to files, as a directory is read by others."""
        self.engine.checkpoint(full=True)
        self.engine.snapshot()

    def live(self, name: str) -> list[dict[str, Any]]:
        """The rows that the engine's own reads give."""
        found, at = [], 0
        while True:
            page = self.engine.read(name, at, limit=1000, max_bytes=8 << 20)
            found += [row_of(name, record) for record in page.records]
            at = page.next_from_seq
            if page.caught_up:
                return found


def row_of(topic: str, record: Any) -> dict[str, Any]:
    meta = None if record.raw_meta is None else bytes(record.raw_meta).decode()
    return {
        "topic": topic, "seq": record.seq, "ts": record.ts, "node": record.node, "tag": record.tag,
        "data": bytes(record.raw_data).decode(), "meta": meta,
    }  # fmt: skip


def planned(fs: Fs, now_ms: int, **options: str) -> list[Partition]:
    return plan_read(fs, parse_read({"path": PATH, "meta": "json", **options}), now_ms)


def rows(fs: Fs, parts: list[Partition]) -> list[dict[str, Any]]:
    """Every row, times as milliseconds."""
    found = []
    for part in parts:
        for batch in read_partition(fs, part):
            assert batch.num_rows
            batch.validate(full=True)
            for row in batch.to_pylist():
                if row.get("ts") is not None:
                    row["ts"] = round(row["ts"].timestamp() * 1000)
                found.append(row)
    return found


def records(fs: Fs, now_ms: int, **options: str) -> list[dict[str, Any]]:
    """The rows of kind `record`, which must be all of them, without what only gaps need."""
    found = rows(fs, planned(fs, now_ms, **options))
    assert {row.pop("kind") for row in found} <= {"record"}
    assert {(row.pop("gap_to"), row.pop("reason")) for row in found} <= {(None, None)}
    return found
