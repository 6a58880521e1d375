"""A real process under load, killed with SIGKILL again and again: what it acknowledged is there.

The child opens the engine in a directory, tells what it finds above the heads that are verified already, then writes
to one topic per thread and tells every acknowledged write on its standard output. The parent kills it at a moment of
its own choosing and compares what the next child (or the parent itself) finds with everything told before.

`TOPICS_TEST_KILL9_CYCLES` sets the number of kills.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from topics.engine.config import EngineConfig
from topics.engine.engine import Engine

CYCLES = int(os.environ.get("TOPICS_TEST_KILL9_CYCLES", "8"))
TOPICS = {"fsync": "fsync", "disk": "disk", "disk-2": "disk", "memory": "memory"}
BATCH_MAX = 5

SETTINGS = {
    "wal_file_bytes": 65536,
    "segment_max_events": 50,
    "checkpoint_ms": 40,
    "snapshot_ms": 150,
    "snapshot_check_ms": 50,
    "snapshot_gap_ms": 50,
    "min_free_bytes": 0,
    "reserve_min": 64,
}

CHILD = """
import json, os, random, sys, threading
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine

path, cycle, settings, topics, verified = sys.argv[1], int(sys.argv[2]), *map(json.loads, sys.argv[3:6])
engine = Engine.open(path, EngineConfig(**settings))

def tell(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())

for topic, durability in topics.items():
    engine.put_topic(topic, {"durability": durability})
    cursor = verified.get(topic, 0)
    while True:
        result = engine.read(topic, cursor, limit=1000)
        if result.tombstone is not None:
            gap = result.tombstone
            tell("gap", topic, gap.gap_from, gap.gap_to, gap.reason)
        for record in result.records:
            tell("found", topic, record.seq, record.data)
        cursor = result.next_from_seq
        if result.caught_up:
            tell("head", topic, result.head_seq)
            break
tell("ready")

def write(topic):
    rng = random.Random(f"{cycle} {topic}")
    n = 0
    while True:
        count = rng.randrange(1, MAX + 1)
        texts = [f"{topic}/{cycle}/{n + k}".ljust(rng.choice((1, 40, 300)), ".") for k in range(count)]
        n += count
        result = engine.append(topic, [{"data": text} for text in texts])
        for seq, text in zip(result.seqs, texts):
            tell("acked", topic, seq, text)

for topic in topics:
    threading.Thread(target=write, args=(topic,), daemon=True).start()
threading.Event().wait()
""".replace("MAX", str(BATCH_MAX))


class Told(NamedTuple):
    """A line of the child."""

    kind: str
    topic: str = ""
    seq: int = 0
    text: str = ""


def parse(line: bytes) -> Told:
    kind, *rest = line.decode().split()
    if not rest:
        return Told(kind)
    return Told(kind, rest[0], int(rest[1]), " ".join(rest[2:]))


class History:
    """What is known of every topic, over all cycles."""

    def __init__(self) -> None:
        self.acked: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self.seen: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
        self.verified: dict[str, int] = {}
        self.heads: dict[str, int] = dict.fromkeys(TOPICS, 0)

    def ack(self, told: Told) -> None:
        if TOPICS[told.topic] != "memory":
            old = self.acked[told.topic].get(told.seq) or self.seen[told.topic].get(told.seq)
            assert old is None, f"seq {told.seq} of {told.topic} was {old} and is {told.text}"
        self.acked[told.topic][told.seq] = told.text

    def judge(self, topic: str, found: dict[int, str], gaps: list[str], head: int) -> None:
        """Compare what is there above the verified head with what was acknowledged."""
        assert gaps == [], f"{topic}: a kill was told as a loss: {gaps}"
        for text in found.values():
            assert text.startswith(f"{topic}/"), f"{topic} shows {text}"
        if TOPICS[topic] == "memory":
            assert len(set(found.values())) == len(found), "a record came twice"
            return
        start = self.verified.get(topic, 0)
        acked = {seq: text for seq, text in self.acked[topic].items() if seq > start}
        assert {seq: found.get(seq) for seq in acked} == acked, f"{topic} lost or changed acknowledged records"
        assert sorted(found) == list(range(start + 1, head + 1)), f"{topic} is not dense up to its head {head}"
        last = max([*acked, self.heads[topic]])
        assert last <= head <= last + BATCH_MAX, f"the head of {topic} jumped from {last} to {head}"
        for seq, text in found.items():
            assert self.seen[topic].setdefault(seq, text) == text, f"seq {seq} of {topic} was used again"
        self.verified[topic] = self.heads[topic] = head


def lines(child: subprocess.Popen[bytes]) -> Iterator[Told]:
    assert child.stdout is not None
    for line in child.stdout:
        if line.endswith(b"\n"):  # a killed child may leave half a line
            yield parse(line)


def run_child(path: Path, cycle: int, history: History, rng: random.Random) -> int:
    """One life of the child; how many writes it acknowledged."""
    words = [json.dumps(one) for one in (SETTINGS, TOPICS, history.verified)]
    command = [sys.executable, "-c", CHILD, str(path), str(cycle), *words]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    acks, deadly = 0, rng.choice((1, 5, 50, 100)) * rng.randrange(1, 6)
    found: dict[str, dict[int, str]] = {topic: {} for topic in TOPICS}
    gaps: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    ready = False
    try:
        for told in lines(child):
            if told.kind == "found":
                assert told.seq not in found[told.topic]
                found[told.topic][told.seq] = told.text
            elif told.kind == "gap":
                gaps[told.topic].append(f"{told.seq} {told.text}")
            elif told.kind == "head":
                history.judge(told.topic, found[told.topic], gaps[told.topic], told.seq)
            elif told.kind == "ready":
                ready = True
            else:
                history.ack(told)
                acks += 1
                if acks == deadly:
                    os.kill(child.pid, signal.SIGKILL)
    finally:
        child.kill()
        _, complaint = child.communicate()
    assert ready, f"cycle {cycle}: the child never got ready: {complaint.decode()}"
    assert child.returncode == -signal.SIGKILL, complaint.decode()
    return acks


def look(path: Path, history: History, *, whole: bool) -> None:
    """Open the engine here, read, and close it cleanly."""
    if whole:
        history.verified.clear()
    with Engine.open(str(path), EngineConfig(**SETTINGS)) as engine:
        for topic in TOPICS:
            found: dict[int, str] = {}
            gaps: list[str] = []
            cursor = history.verified.get(topic, 0)
            while True:
                result = engine.read(topic, cursor, limit=1000)
                gaps += [str(result.tombstone)] if result.tombstone is not None else []
                found.update({record.seq: record.data for record in result.records})
                cursor = result.next_from_seq
                if result.caught_up:
                    break
            history.judge(topic, found, gaps, result.head_seq)


@pytest.mark.timeout(300 + 10 * CYCLES)
def test_a_process_killed_again_and_again_loses_no_acknowledged_record(tmp_path: Path) -> None:
    """R-1, DUR-4, DUR-6, INV-1, A-16: acked `fsync` and `disk` records are back, no seq is reused, no head jumps."""
    seed = random.SystemRandom().randrange(2**32)
    rng = random.Random(seed)
    print(f"seed {seed}")  # noqa: T201 - replays the moments of the kills, as far as a real machine can
    history = History()
    acks = 0
    for cycle in range(CYCLES):
        acks += run_child(tmp_path / "store", cycle, history, rng)
        if cycle % 4 == 3:
            look(tmp_path / "store", history, whole=False)
    look(tmp_path / "store", history, whole=True)
    assert acks >= CYCLES
