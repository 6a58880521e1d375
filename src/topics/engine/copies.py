"""Copies that are in memory only are logged before anything that a start would derive others after (05 §8, S-212).

Routers derive copies again from where they were last known to be: from the source, by their definition, into what the
destination takes. So the copies, and how far their routers are, go into the log of the destination in front of

    what names seqs there          deletes, acks, leases, floors [RRC-7, DEL-6]
    what decides what it takes     its configuration [RRC-3]
    what the source loses          acks, dead letters, age [RRC-8]
    what the cold tier takes       it may be away at the next start [S-318]; the hot segment waits for the sync
    another definition             what it passed over is not looked at again [RTR-8]; it waits for the sync, since it
                                   is logged elsewhere, in the group of shard 0

A client's delete at the source waits until its copies are in segments (`lifecycle.keep_copies`). Owner only.
"""

from __future__ import annotations

import logging

from topics.engine.core import Core, Outcome, follows, guarded
from topics.engine.router import Edge
from topics.engine.topic import Lsn, Topic
from topics.errors import TopicsError

log = logging.getLogger("topics.engine")


def keep(core: Core, topic: Topic) -> None:
    """Log the copies into a topic, which is about to change, and those of it; raises what the former meet.

    Those of it are another topic's: where they cannot be logged, what was asked for is done all the same. A start that
    is deriving copies decides by itself what of them is logged.
    """
    keep_into(core, topic)
    for edge in core.routers.fed.get(topic.id, ()):
        _keep_of(core, edge)


def keep_moved(core: Core, topic: Topic, first: int, last: int, then: Outcome) -> None:
    """Log for good the copies of records that move to the cold tier, which may be away when a start would derive them.

    `then` gets None or the error, and nothing is forwarded from the topic before it returns: once the records are cold
    every copy of them is logged when it is made.
    """
    edges = list(core.routers.fed.get(topic.id, ()))
    made = [edge for edge in edges if core.is_logged(edge.dest) and _is_derived_from(edge, first, last)]
    if not made:
        then(None)
        return
    for edge in edges:
        edge.pause()
    left, failed = len(made), list[object]()

    def logged(error: object) -> None:
        nonlocal left
        left -= 1
        if error is not None:
            failed.append(error)
        if not left:
            try:
                then(failed[0] if failed else None)
            finally:
                for edge in edges:
                    edge.resume()

    for edge in made:
        log_durably(core, edge, logged)


def _is_derived_from(edge: Edge, first: int, last: int) -> bool:
    """Whether a start may have to make copies of these records again; those in the log may not be synced."""
    return any(one.saved.cursor < last and one.cursor >= first for one in edge.routers)


def _keep_of(core: Core, edge: Edge) -> None:
    if edge.has_pending and not core.routers.held:
        try:
            log_copies(core, edge)
        except TopicsError as error:
            log.warning("copies of %r in %r are in memory only: %s", edge.source.name, edge.dest.name, error)


def keep_into(core: Core, topic: Topic) -> None:
    """Log the copies into a topic, where its seqs are about to be named and nothing is lost for those who copy it."""
    edge = core.routers.feeding.get(topic.id)
    if edge is not None and edge.has_pending and not core.routers.held:
        log_copies(core, edge)


def log_durably(core: Core, edge: Edge, done: Outcome) -> None:
    """The same for good; answers None or the error.

    Of a destination that is not logged the positions are: a start derives none of its copies again then.
    """
    if core.wal is None:
        done(None)
        return
    logged = follows(lambda outcome: done(outcome if isinstance(outcome, TopicsError) else None), done)
    guarded(lambda: log_copies(core, edge, logged), done)


def log_copies(core: Core, edge: Edge, done: Outcome | None = None) -> None:
    """Log what of a destination is in memory only, and the positions behind it; raises, with nothing done, if refused.

    What is submitted to its shard behind that is never in the log without it. Who wants to be told waits for the sync.
    """
    dest = edge.dest
    if core.wal is None or (done is None and not core.is_logged(dest)):
        return
    durable, before = done is not None or dest.durability == "fsync", edge.logged_seq
    carried = edge.carry(durable=durable)
    frames, count = (b"", 0) if carried is None else (carried.frames, carried.frame_count)

    def logged(outcome: Lsn | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            edge.logged_seq = min(edge.logged_seq, before)
        elif carried is not None:
            assert core.wal is not None
            dest.index.tail.relocate(carried.located(core.wal.location(*outcome)))
            dest.index.forget_derived(carried.last)
        if done is not None:
            done(outcome)

    frames += edge.mark(dest.head, core.clock.now_ms(), durable=durable)
    edge.logged_seq = max(before, dest.head)
    try:
        core.submit(dest.id, frames, count + 1, logged, durable=durable)
    except TopicsError:
        edge.logged_seq = before
        raise
