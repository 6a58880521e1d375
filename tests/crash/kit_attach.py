"""Commits by attach in histories of an engine: what they bring, whole or not at all, and what a client does then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tests.crash.kit_engine import Seen, Store, Written, is_right, is_sound
from topics.engine import append
from topics.engine.append import Write
from topics.errors import TxnIncomplete
from topics.model import AppendResult, CommitResult
from topics.storage.stamper import Stamper

ID = "loader"
SEGMENT_BYTES = 260
"""Room for about four of these records."""


class Load:
    """One commit by attach: twelve records for each topic, in three segments."""

    def __init__(self, version: int, *topics: str, records: int = 12) -> None:
        self.version = version
        self.topics = topics
        self.records = records
        self.result: CommitResult | None = None

    def texts(self, topic: str) -> list[str]:
        """What it brings to a topic, in order."""
        return [f"load {self.version} {topic} {n}" for n in range(self.records)]

    def tag(self, n: int) -> str | None:
        return "odd" if n % 2 else None

    def stage(self, store: Store) -> None:
        """Two chunks for each topic, in one part."""
        half = self.records // 2
        chunk = 0
        for low, high in ((0, half), (half, self.records)):
            for topic in self.topics:
                rows = [{"data": text, "tag": self.tag(n)} for n, text in enumerate(self.texts(topic))][low:high]
                store.engine.stage(ID, self.version, "part", chunk, topic, rows)
                chunk += 1

    def commit(self, store: Store, **options: Any) -> CommitResult:
        """Commit it, and remember what was answered."""
        for topic in self.topics:
            if self.result is None:
                store.unsure.setdefault(topic, set()).update(self.texts(topic))
        parts = [{"part": "part", "chunks": 2 * len(self.topics), "records": self.records * len(self.topics)}]
        result = store.engine.commit_staged(ID, self.version, parts, **{"attach": "always", **options})
        for one in result.topics:
            assert one.count == self.records
            for n, text in enumerate(self.texts(one.topic)):
                store.unsure[one.topic].discard(text)
                store.written.setdefault(one.topic, {})[one.first_seq + n] = Written(text, self.tag(n))
        self.result = result
        return result

    def again(self, store: Store) -> CommitResult:
        """What a client does that got no answer [TXN-10]."""
        try:
            return self.commit(store)
        except TxnIncomplete:
            self.stage(store)
            return self.commit(store)

    def is_whole_or_nothing(self, store: Store, groups: Sequence[Sequence[str]] | None = None) -> None:
        """All of it in a row, or none of it, in all topics of a group alike; all of it once it was answered."""
        for group in groups or [self.topics]:
            found = [self._found(store, topic) for topic in group]
            assert found in ([True] * len(group), [False] * len(group)), f"{store.label}: half a commit: {found}"

    def _found(self, store: Store, topic: str) -> bool:
        if topic not in set(store.engine.topics()):
            return False
        seen = look_at(store, topic)
        wanted = self.texts(topic)
        seqs = [seq for seq, record in seen.records.items() if record.data in set(wanted)]
        assert [seen.records[seq].data for seq in seqs] in (wanted, []), f"{store.label}: {topic} has {seqs}"
        assert not seqs or seqs == list(range(seqs[0], seqs[0] + len(wanted))), f"{store.label}: {topic}: {seqs}"
        return bool(seqs)


def look_at(store: Store, topic: str) -> Seen:
    """Everything acknowledged is there, nothing is told, seqs are dense up to the head."""
    seen = store.look(topic)
    is_right(store, topic, seen)
    assert seen.gaps == [], f"{store.label}: {topic} tells {seen.gaps}"
    missing = sorted(set(store.live(topic)) - set(seen.records))
    assert not missing, f"{store.label}: {topic} lost {missing}"
    assert len(seen.records) + len(store.deleted[topic]) == seen.head, (
        f"{store.label}: {topic} is not dense: {seen.seqs}"
    )
    return seen


def write_while_stamping(store: Store, monkeypatch: Any, *topics: str, times: int = 1) -> None:
    """Have topics written to while segments are stamped: the next `times` runs are not alone."""
    run, left = Stamper.run, [times]

    def busy(self: Stamper, given: Any) -> Any:
        if left[0]:
            left[0] -= 1
            for topic in topics:
                write_soon(store, topic)
        return run(self, given)

    monkeypatch.setattr(Stamper, "run", busy)


def write_soon(store: Store, topic: str) -> None:
    """A write that is staged now and acknowledged later."""
    core, text = store.engine.core, store.text(topic)
    store.unsure.setdefault(topic, set()).add(text)

    def done(outcome: AppendResult | Exception) -> None:
        assert isinstance(outcome, AppendResult), outcome
        assert outcome.first_seq is not None
        store.unsure[topic].discard(text)
        store.written[topic][outcome.first_seq] = Written(text)

    append.append(core, Write.prepare(topic, [{"data": text}], core.limits), done)


def judge(load: Load, *, groups: Sequence[Sequence[str]] | None = None) -> Callable[[Store], None]:
    """Whole or nothing; a repeat completes it; what is written then follows it; so it is after any restart."""

    def judged(fork: Store) -> None:
        fork.start()
        is_sound(fork)
        load_here = Load(load.version, *load.topics, records=load.records)
        load_here.is_whole_or_nothing(fork, groups)
        if load.result is not None:
            assert all(load_here._found(fork, topic) for topic in load.topics), (
                f"{fork.label}: an answered commit is gone"
            )
        assert fork.sim.exists("store/staging") is False or fork.sim.listdir("store/staging") == [], fork.label
        load_here.again(fork)
        for how in ("repeated", "kill", "crash"):
            if how != "repeated":
                fork.end(how).start()
            for topic in load.topics:
                assert load_here._found(fork, topic), f"{fork.label}: {how}"
                if fork.engine.state(topic).config.durability != "fsync":
                    continue  # the machine may take such a write
                last = fork.look(topic).head
                assert fork.write(topic) == [last + 1], f"{fork.label}: {how}"
            assert load_here.commit(fork).deduped, f"{fork.label}: {how}"
        is_sound(fork)

    return judged
