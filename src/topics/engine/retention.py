"""What a topic gives up by itself: caps and age (06 §15.1).

    caps   right after each publication, the lowest live records, until both caps hold; not logged where the same
           pass over the same records gives the same floor [S-260, S-261]
    TTL    one EvictWatermark, synced before anything shows that records have gone [S-263, DUR-12]

Records in memory only count towards the caps of a topic that has become a logged one, and no restart finds them again:
as long as there are any, caps go the way of the TTL. On a shard that cannot log, that is suspended: reads go on and may
show records past their age. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from typing import Final

from topics.codec import control
from topics.engine import copies
from topics.engine.core import Core, Outcome, control_frame, follows, guarded
from topics.engine.topic import Lsn, Topic
from topics.errors import CommitFailed, ShardReadOnly, StorageFull, TopicsError
from topics.model import SERVER_WRITES, TopicConfig

log = logging.getLogger("topics.engine")

LOOKED_AT_MAX: Final = 64
"""Topics with a TTL that are looked at before a write is refused."""
MANY: Final = 256
MANY_BYTES: Final = 1 << 20
"""Above that, what goes is looked up all at once rather than one by one."""


def unexpired(core: Core, topic: Topic) -> tuple[int, int]:
    """Live records and bytes, those past their age not among them [CAP-1]."""
    limit = _limit(topic, core.clock.now_ms())
    first = topic.lowest() if limit else None
    if first is None or first.ts >= limit:
        return topic.count, topic.bytes
    last = topic.index.expired_through(limit, topic.floor, topic.head)
    if last is None:
        return topic.count, topic.bytes
    gone = topic.index.live(topic.floor, last)
    return topic.count - gone.records, topic.bytes - gone.bytes


def expired_elsewhere(core: Core, topics: Collection[Topic], wanted: int) -> int:
    """Bytes that have expired in other topics and still count towards the quota, up to what is wanted [RES-5].

    If many topics have a TTL, looking takes longer than it may [P-10]: then only the sweep frees them.
    """
    found = 0
    if len(core.expiring) > LOOKED_AT_MAX:
        return found
    for id in core.expiring:
        topic = core.topics[id]
        if topic in topics or topic.name in SERVER_WRITES:
            continue
        try:
            found += topic.bytes - unexpired(core, topic)[1]
        except (OSError, TopicsError) as error:  # the sweep says so aloud
            log.debug("topic %r: what has expired is not known now: %s", topic.name, error)
        if found >= wanted:
            break
    return found


def earliest_unexpired(core: Core, topic: Topic) -> int:
    """The first live seq that has not expired, `head + 1` when there is none."""
    limit = _limit(topic, core.clock.now_ms())
    last = topic.index.expired_through(limit, topic.floor, topic.head) if limit else None
    if last is None:
        return topic.earliest_seq
    found = topic.index.ahead(last + 1, topic.head, 1)
    return found[0].seq if found else topic.head + 1


def _limit(topic: Topic, now_ms: int) -> int:
    """Records with a `ts` below it have expired; 0 without a TTL [TTL-1]."""
    ttl = topic.config.ttl_ms
    return max(max(now_ms, topic.ttl_now) - ttl, 0) if ttl else 0


def is_due(core: Core, topic: Topic) -> bool:
    """Whether records have expired that still count."""
    limit = _limit(topic, core.clock.now_ms())
    first = topic.lowest() if limit else None
    return first is not None and first.ts < limit


def enforce_caps(core: Core, topic: Topic) -> None:
    """Evict the lowest live records until both caps hold [CAP-2]."""
    floor, taken, freed = _excess(core, topic)
    if taken:
        before = topic.floor
        topic.evict(floor, taken, freed)
        core.losses.note_evicted(topic, before, floor - 1, taken)
        if topic.index.overlays:
            topic.index.trim_overlays(topic.earliest_seq, topic.evict_floor)


def _is_over(topic: Topic) -> bool:
    """Whether caps may take something, expired records not looked at."""
    config = topic.config
    over = _exceeds(config.cap_records, topic.count) or _exceeds(config.cap_bytes, topic.bytes)
    return over and has_caps(config)


def _excess(core: Core, topic: Topic) -> tuple[int, int, int]:
    """The floor that makes both caps hold, the records below it and their bytes; they are taken out of `lowest`.

    Looking for them may find an index damaged: what it leaves may be within the caps [S-157].
    """
    while _is_over(topic):
        found = _lowest(core, topic)
        if not topic.index.is_miscounted:
            return found
        _count_again(topic)
    return 0, 0, 0


def _count_again(topic: Topic) -> None:
    """What lives is not what it was: jobs that are lost are nobody's any more."""
    topic.recount()
    topic.check_leases()


def _lowest(core: Core, topic: Topic) -> tuple[int, int, int]:
    """The same as far as the counts are right."""
    config, records, nbytes = topic.config, topic.count, topic.bytes
    if config.ttl_ms:
        records, nbytes = unexpired(core, topic)
    expired = topic.count - records
    too_many = records - config.cap_records if config.cap_records else 0
    too_large = nbytes - config.cap_bytes if config.cap_bytes else 0
    if too_many > MANY or too_large > MANY_BYTES:
        topic.forget_ahead()
        goes = (max(too_many, 0) + expired, max(too_large, 0) + topic.bytes - nbytes)
        found = topic.index.lowest(topic.floor, topic.head, *goes)
        return found if found.records else (0, 0, 0)
    floor = taken = freed = 0
    while _exceeds(config.cap_records, records) or _exceeds(config.cap_bytes, nbytes):
        first = topic.take_lowest()
        if first is None:
            break
        floor, taken, freed = first.seq + 1, taken + 1, freed + first.size
        if expired:
            expired -= 1
            continue
        records -= 1
        nbytes -= first.size
    return floor, taken, freed


def try_caps(core: Core, topic: Topic) -> None:
    """The same behind something that is committed: what fails now is done by the next operation [DUR-12]."""
    try:
        if topic.index.overlays and _must_log_caps(core, topic):
            topic.caps_due = _is_over(topic)
            if topic.caps_due and topic.ttl_waiting is None:
                expire(core, topic, lambda: None, lambda error: None)
        else:
            enforce_caps(core, topic)
    except (OSError, TopicsError) as error:
        topic.caps_due = True
        topic.forget_ahead()
        log.error("topic %r: nothing is evicted now: %s", topic.name, error)


def _must_log_caps(core: Core, topic: Topic) -> bool:
    """Whether records count that recovery will not find, so that it would derive another floor."""
    return core.is_logged(topic) and topic.index.is_partly_in_memory


def catch_up(core: Core, topic: Topic) -> None:
    """Do what an I/O error kept from being done, count what damage changed; the first thing of every operation."""
    if topic.retry:
        topic.mark_again()
    if topic.index.is_miscounted:
        _count_again(topic)
    if topic.caps_due:
        topic.caps_due = False
        try_caps(core, topic)


def _exceeds(cap: int, value: int) -> bool:
    return bool(cap) and value > cap


def has_caps(config: TopicConfig) -> bool:
    """Whether records are evicted behind publications: then a floor must not be pinned while any is on its way."""
    return config.discard == "old" and bool(config.cap_records or config.cap_bytes)


def expire(core: Core, topic: Topic, then: Callable[[], None], done: Outcome) -> None:
    """Bring the logged floors up to date, then go on; on failure nothing moved and the operation fails."""
    if topic.removed or not (topic.config.ttl_ms or topic.caps_due):
        then()
        return
    if topic.ttl_waiting is not None:
        topic.ttl_waiting.append(
            lambda error: done(error) if error else guarded(lambda: expire(core, topic, then, done), done)
        )
        return
    body = _due(core, topic)
    if body is None:
        then()
        return
    if not core.is_logged(topic):
        _raise(core, topic, body)
        then()
        return
    topic.ttl_waiting = []

    def logged(outcome: Lsn | TopicsError) -> None:
        waiting, topic.ttl_waiting = topic.ttl_waiting or [], None
        error = outcome if isinstance(outcome, TopicsError) else None
        if error is None:
            failed = list[TopicsError]()
            guarded(lambda: _raise(core, topic, body), failed.append)
            error = failed[0] if failed else None
        elif core.shard(topic.id).state != "ok" and not isinstance(error, CommitFailed):
            error = None  # suspended: it could not be logged before the shard was latched either
        for one in (lambda error: done(error) if error else guarded(then, done), *waiting):
            try:
                one(error)
            except Exception:  # it is nobody else's
                log.exception("topic %r: telling that its floors are up to date", topic.name)
        if error is None and topic.caps_due:
            try_caps(core, topic)  # of what was published meanwhile

    try:
        copies.keep(core, topic)
        frame = control_frame(body, topic, max(core.clock.now_ms(), topic.ttl_now), durable=True)
        core.submit(topic.id, frame, 1, follows(logged, done), durable=True)
    except (ShardReadOnly, StorageFull):
        topic.ttl_waiting = None
        then()
    except Exception:
        topic.ttl_waiting = None
        raise


def _due(core: Core, topic: Topic) -> control.EvictWatermark | None:
    """The floors that age, and caps where they are logged, demand now; None: they are as they should be."""
    cap_floor, ttl_floor = topic.cap_floor, topic.ttl_floor
    if topic.config.ttl_ms:
        now = topic.ttl_now = max(core.clock.now_ms(), topic.ttl_now)
        limit, first = _limit(topic, now), topic.lowest()
        if first is not None and first.ts < limit:
            last = topic.index.expired_through(limit, topic.floor, topic.head)
            ttl_floor = ttl_floor if last is None else last + 1
    if topic.caps_due and _is_over(topic) and _must_log_caps(core, topic):
        try:
            cap_floor = max(cap_floor, _excess(core, topic)[0])
        finally:
            topic.forget_ahead()
    if (cap_floor, ttl_floor) == (topic.cap_floor, topic.ttl_floor):
        return None
    return control.EvictWatermark(cap_floor=cap_floor, ttl_floor=ttl_floor, earliest_seq=max(cap_floor, ttl_floor))


def _raise(core: Core, topic: Topic, body: control.EvictWatermark) -> None:
    by_age = body.ttl_floor > topic.ttl_floor and body.ttl_floor >= body.cap_floor
    before, count = topic.floor, topic.count
    topic.apply(body)
    if topic.count < count:
        core.losses.note(topic, "ttl" if by_age else "cap", before, topic.floor - 1, count - topic.count)
    topic.index.trim_overlays(topic.earliest_seq, topic.evict_floor)
    core.touch(topic)
