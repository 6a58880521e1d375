"""Dead letters: jobs that were delivered too often move to another topic (04 §10).

    copy     appended to the dead-letter topic, which is created if it is not there, under its own class [DLQ-5]
    delete   one frame, logged only once the copy is committed: a crash between the two leaves both [DLQ-6]

A move that fails leaves the job where it is, with its counter, for a later pass [DLQ-7]. Owner only.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import msgspec

from topics.codec import envelope
from topics.engine import append as appending
from topics.engine.core import Core, guarded
from topics.engine.delete import logs_deletes, remove_jobs
from topics.engine.index import Stored
from topics.engine.lease import Due
from topics.engine.records import Prepared
from topics.engine.topic import DEAD_LETTER, Topic
from topics.errors import LimitReached, RecordTooLarge, TopicFull
from topics.storage.segread import Absent
from topics.storage.tiers.blocks import ColdRead, NeedsBlocks

log = logging.getLogger("topics.engine")

BATCH: Final = 64
"""Jobs of one write."""
_ADDED: Final = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
_MEMBERS = msgspec.json.Decoder(dict[str, msgspec.Raw])


class _Letter(NamedTuple):
    due: Due
    stored: Stored


def move(core: Core, topic: Topic, due: Sequence[Due], then: Callable[[], None]) -> None:
    """Move jobs, and go on when every move is committed or has failed [DLQ-2]."""
    if not due:
        then()
        return
    left = 1

    def one_done() -> None:
        nonlocal left
        left -= 1
        if not left:
            then()

    def read(at: int, cold: ColdRead) -> list[_Letter] | None:
        """Those of one write; None: it is begun again when they are fetched."""
        some = due[at : at + BATCH]
        try:
            try:
                return [] if topic.removed else _read(topic, some, cold)
            except NeedsBlocks as needed:
                core.cold.fetch(cold, needed.wanted, lambda: begin(at, cold))
                return None
        except Exception:  # whoever claims has leases by now, and waits for this [ERR-6]
            log.exception("topic %r: reading dead letters", topic.name)
            _stay(topic, [one.seq for one in some])
            return []

    def begin(at: int, cold: ColdRead) -> None:
        """One write after another is begun, each in a stretch of its own; none waits for the one before [P-10]."""
        nonlocal left
        letters = read(at, cold)
        if letters is None:
            return
        if at + BATCH < len(due):
            left += 1
            core.owner.soon(lambda: begin(at + BATCH, core.cold.read()))
        if letters:
            left += 1
            _move(core, topic, letters, one_done)
        one_done()

    begin(0, core.cold.read())


def _read(topic: Topic, due: Sequence[Due], cold: ColdRead) -> list[_Letter]:
    """The jobs themselves; what cannot be read now is tried again later."""
    if not due:
        return []
    try:
        frames = topic.index.frames([one.seq for one in due], cold)
    except NeedsBlocks:
        if cold.failed is None:
            raise
        frames = [Absent.UNREADABLE] * len(due)
    except OSError as error:
        log.warning("topic %r: dead letters cannot be read: %s", topic.name, error)
        frames = [Absent.UNREADABLE] * len(due)
    _stay(topic, [one.seq for one, stored in zip(due, frames, strict=True) if isinstance(stored, Absent)])
    return [_Letter(one, stored) for one, stored in zip(due, frames, strict=True) if not isinstance(stored, Absent)]


def _stay(topic: Topic, seqs: Sequence[int]) -> None:
    if topic.leases is not None:
        topic.leases.not_moved(seqs)


def _move(core: Core, topic: Topic, letters: Sequence[_Letter], then: Callable[[], None]) -> None:
    seqs = [one.due.seq for one in letters]
    name = topic.config.dead_letter

    def stay(error: object) -> None:
        log.warning("topic %r: %d dead letters stay where they are: %s", topic.name, len(seqs), error)
        _stay(topic, seqs)
        then()

    def copied(outcome: object) -> None:
        if isinstance(outcome, (TopicFull, RecordTooLarge, LimitReached)) and len(letters) > 1:
            # There may be room for some of them.
            half = len(letters) // 2
            _move(core, topic, letters[:half], lambda: _move(core, topic, letters[half:], then))
        elif isinstance(outcome, Exception):
            stay(outcome)
        elif topic.removed:
            then()
        else:
            remove_jobs(core, topic, seqs, DEAD_LETTER, then, stay)

    if name is None:
        stay("nobody wants them any more")
        return

    def copy() -> None:
        write = appending.Write(name, _copies(topic.name, letters), None, None, True, None)
        if logs_deletes(core, topic):
            core.shard(topic.id).check(0)  # who cannot delete them here must not copy them there, again and again
        appending.append(core, write, copied)

    guarded(copy, copied)


def _copies(name: str, letters: Sequence[_Letter]) -> Prepared:
    """The records as they are in the dead-letter topic [DLQ-3]; what is added counts against no limit [DLQ-4]."""
    nodes: list[str | None] = []
    tags: list[str | None] = []
    envelopes: list[bytes] = []
    accounted: list[int] = []
    for due, stored in letters:
        data, meta = envelope.parts(stored.data)
        added = _with_origin(meta, name, due)
        nodes.append(None if stored.node is None else stored.node.decode())
        tags.append(None if stored.tag is None else stored.tag.decode())
        envelopes.append(envelope.build(data, added))
        accounted.append(len(data) + len(added))
    return Prepared(nodes, tags, envelopes, accounted, sum(accounted))


def _with_origin(meta: bytes | None, name: str, due: Due) -> bytes:
    """The job's meta with where it comes from; what it says of an earlier move is replaced [REC-11]."""
    values = (name, str(due.deliveries), str(due.seq))
    added = json.dumps(dict(zip(_ADDED, values, strict=True)), separators=(",", ":")).encode()
    if meta is None or meta == b"{}":
        return added
    if b"dead_letter_" in meta:
        members = {key: raw for key, raw in _MEMBERS.decode(meta).items() if key not in _ADDED}
        meta = msgspec.json.encode(members)
        if not members:
            return added
    return meta[:-1] + b"," + added[1:]
