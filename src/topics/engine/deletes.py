"""The journal of deletes: every delete of a client becomes a record of `$deletes`, at least once [A-20].

    noted      it was acknowledged; its frame may not be synced yet
    due        its frame is synced: what `$deletes` says has happened, whatever happens next
    recorded   its record is durable; the topic's `dr` says so

What is noted goes with the next record of many, a moment later: a delete itself costs one entry of a dictionary. What
is due and not recorded is in every snapshot (`dp`), so no log is kept for it; what is not synced lies behind every
replay position, and recovery finds it there. Of what it finds it leaves out what `$deletes` has already, as far as that
was written behind the snapshot.

A delete that is not logged has no record: it is of records that a restart forgets, and their seqs may be given to
others then. A store in memory forgets nothing while it lives; there everything is due at once.

Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from topics.codec import control
from topics.codec.snapshot import PendingDelete
from topics.engine.alarms import Alarm
from topics.engine.topic import Lsn, Topic
from topics.errors import ShardReadOnly, StorageFull, TopicsError
from topics.model import DELETES, Selector

if TYPE_CHECKING:
    from topics.engine.core import Core

log = logging.getLogger("topics.engine")

NS_PER_MS: Final = 1_000_000
BATCH, BATCH_BYTES = 256, 256 << 10
"""Deletes of one append, and what they take in memory; about a millisecond."""
ROW_BYTES, SEQ_BYTES, CHARACTER_BYTES = 256, 40, 6
"""About what one of them, one seq and one character of what it matches, takes in memory or as JSON."""
PENDING_BYTES_MAX: Final = 128 << 20
RETRY_MS: Final = 1000
CROWD: Final = 4096
"""So many do not wait for more."""

Key = tuple[int, int]
"""Topic id and delete number."""


class DeleteJournal:
    """Deletes that are acknowledged and not recorded. Invariant: those of a topic are recorded in their order."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.known_through = 0
        """Where `$deletes` ended for the snapshot that recovery began with."""
        self._noted: dict[Key, tuple[PendingDelete, Lsn | None]] = {}
        self._due: dict[Key, PendingDelete] = {}
        self._bytes = 0
        self._writing = False
        self._most = BATCH
        self._alarm: Alarm | None = None
        self._refused = ""

    def __len__(self) -> int:
        return len(self._noted) + len(self._due)

    def refusal(self) -> TopicsError | None:
        """Why no delete is accepted now: too many wait for their records."""
        if len(self) < self._core.config.deletes_pending_max and self._bytes < PENDING_BYTES_MAX:
            return None
        core, topic = self._core, self._core.names.get(DELETES)
        why = f"{len(self)} deletes wait to be recorded in {DELETES}"
        if core.wal is None:
            return StorageFull(why)
        shard = core.shard(core.next_topic_id if topic is None else topic.id)
        return (ShardReadOnly if shard.state == "read_only" else StorageFull)(f"{why} {shard.reason}".rstrip())

    # -- noting ------------------------------------------------------------------------------------------------------

    def note(self, topic: Topic, body: control.Delete, removed: int, at: Lsn | None, ts: int) -> None:
        """A delete is acknowledged; `at` is its place in the log, if it has one."""
        self._note(_row(topic, body, removed, ts), at)

    def note_drop(self, topic: Topic, number: int, at: Lsn | None, ts: int) -> None:
        """The deletion of a topic is."""
        self._note(_drop(topic, number, ts), at)

    def _note(self, row: PendingDelete, at: Lsn | None) -> None:
        self._noted[row.topic_id, row.delete_number] = (row, at)
        self._bytes += _bytes(row)
        if self._alarm is None:
            self._arm(self._core.config.deletes_gather_ms)
        elif not len(self) % CROWD:
            self._core.owner.soon(self.flush)

    def pending(self) -> tuple[PendingDelete, ...]:
        """What a snapshot has to know; of what is not synced, the log behind its position does."""
        self._settle()
        return tuple(self._due.values())

    # -- recovery ----------------------------------------------------------------------------------------------------

    def restore(self, rows: tuple[PendingDelete, ...]) -> None:
        """Those of a snapshot, but for what its topics know to be recorded."""
        for row in rows:
            topic = self._core.topics.get(row.topic_id)
            if row.drop or topic is None or row.delete_number > topic.deletes_recorded:
                self._recover(row)

    def replay(self, topic: Topic, body: control.Delete, ts: int) -> None:
        """A delete of the log, which recovery has made durable; how much it removed is not known any more."""
        if body.delete_number is not None and body.delete_number > topic.deletes_recorded:
            self._recover(_row(topic, body, None, ts))

    def replay_drop(self, topic: Topic, body: control.TopicDelete, ts: int) -> None:
        """The same of a topic that was deleted."""
        if body.delete_number is not None:
            self._recover(_drop(topic, body.delete_number, ts))

    def _recover(self, row: PendingDelete) -> None:
        key = (row.topic_id, row.delete_number)
        if key not in self._due:
            self._due[key] = row
            self._bytes += _bytes(row)

    def begin(self, recorded: Iterable[Key]) -> None:
        """Recovery is over: what is not recorded is so soon, and nobody waits for it."""
        for key in recorded:
            row = self._due.pop(key, None)
            self._bytes -= 0 if row is None else _bytes(row)
            self._recorded(*key)
        self._due = dict(sorted(self._due.items()))
        if self._due:
            self._arm(0)

    # -- recording ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Record what is due now; what is not synced has to wait."""
        self._settle()
        if self._due and not self._writing:
            self._write()

    def _arm(self, ms: int) -> None:
        if self._alarm is None and not self._core.closing:
            self._alarm = self._core.alarms.at(self._core.clock.monotonic_ns() + ms * NS_PER_MS, self._ring)

    def _ring(self) -> None:
        self._alarm = None
        before = len(self._noted)
        self.flush()
        if self._noted:
            self._arm(self._core.config.deletes_gather_ms if len(self._noted) < before else RETRY_MS)

    def _settle(self) -> None:
        """What is synced by now is due."""
        if not self._noted:
            return
        wal = self._core.wal
        synced = {} if wal is None else {shard.key: shard.log.synced() for shard in wal.shards}
        ready = [key for key, (_, at) in self._noted.items() if at is None or at[1:] < synced[at.group]]
        for key in ready:
            self._due[key] = self._noted.pop(key)[0]

    def _write(self) -> None:
        rows = self._first()
        self._writing = True
        self._core.tell(DELETES, [(row.name, _said(row)) for row in rows], lambda out: self._over(rows, out))

    def _first(self) -> list[PendingDelete]:
        """As many as one append takes."""
        rows: list[PendingDelete] = []
        room = BATCH_BYTES
        for row in islice(self._due.values(), self._most):
            room -= _bytes(row)
            if rows and room < 0:
                break
            rows.append(row)
        return rows

    def _over(self, rows: list[PendingDelete], outcome: object) -> None:
        self._writing = False
        if isinstance(outcome, Exception):
            self._again(outcome)
            return
        self._most, self._refused = BATCH, ""
        for row in rows:
            del self._due[row.topic_id, row.delete_number]
            self._bytes -= _bytes(row)
            self._recorded(row.topic_id, row.delete_number)
        if self._due:
            self._core.owner.soon(self.flush)

    def _recorded(self, topic_id: int, number: int) -> None:
        topic = self._core.topics.get(topic_id)
        if topic is not None:
            topic.deletes_recorded = max(topic.deletes_recorded, number)

    def _again(self, error: Exception) -> None:
        """They wait, fewer at a time: on a full disk a short frame may still find room."""
        self._most = max(self._most // 2, 1) if isinstance(error, StorageFull) else self._most
        if str(error) != self._refused and not self._core.closing:
            self._refused = str(error)
            log.warning("%d deletes wait to be recorded in %s: %s", len(self), DELETES, error)
        self._arm(RETRY_MS)


def _row(topic: Topic, body: control.Delete, removed: int | None, ts: int) -> PendingDelete:
    assert body.delete_number is not None
    return PendingDelete(
        topic.id, topic.name, topic.epoch, body.delete_number, ts, body.before_seq, body.match, body.seqs, body.bound,
        removed, False,
    )  # fmt: skip


def _drop(topic: Topic, number: int, ts: int) -> PendingDelete:
    return PendingDelete(topic.id, topic.name, topic.epoch, number, ts, None, None, None, None, None, True)


def _bytes(row: PendingDelete) -> int:
    match = 0 if row.match is None else len(row.match[1])
    return ROW_BYTES + SEQ_BYTES * len(row.seqs or ()) + CHARACTER_BYTES * match


def _said(row: PendingDelete) -> dict[str, Any]:
    """A delete as its record tells it."""
    said: dict[str, Any] = {"topic": row.name, "id": row.topic_id, "epoch": row.epoch, "dn": row.delete_number}
    if row.drop:
        return {**said, "drop": True}
    match = None if row.match is None else Selector(*row.match)
    return {
        **said,
        "before_seq": row.before_seq,
        "match": None if match is None else ("tag", match.kind, match.text),
        "seqs": row.seqs,
        "bound": row.bound,
        "removed": row.removed,
    }
