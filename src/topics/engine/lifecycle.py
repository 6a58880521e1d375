"""Topics come, change and go: create, configure, delete; and the reservations of `disk` topics (01 §2, §3, 06 §15.4).

Creation, configuration and deletion are synced before they are acknowledged, in every class [DUR-9]. Creating and
deleting close the *gate* of the name: operations on it wait for the outcome [A-1]. Owner only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import NamedTuple

from topics import paths
from topics.codec import control
from topics.engine import copies, retention
from topics.engine.core import Core, Outcome, control_frame, follows, guarded, once
from topics.engine.index import Index
from topics.engine.router import Edge
from topics.engine.topic import Change, Lsn, Topic
from topics.errors import (
    CommitFailed,
    EngineClosed,
    LimitReached,
    TopicExistsIncompatible,
    TopicNotEmpty,
    TopicNotFound,
    TopicsError,
)
from topics.fs import close_quietly, pwrite_all
from topics.model import SYSTEM_TOPICS, TopicConfig, check_not_system, not_a_topic, valid_topic_name
from topics.storage.segments import TopicSegments


def put(core: Core, name: str, config: TopicConfig | Mapping[str, object] | None, done: Outcome) -> None:
    """Create a topic, or replace its configuration whole [CFG-1]; answers `(created, config)`."""
    check_not_system(name)
    if core.closing:
        done(EngineClosed("the engine is closing"))
        return
    gate = core.gates.get(name)
    if gate is not None:
        gate.append(lambda: put(core, name, config, done))
        return
    guarded(lambda: _put(core, name, config, done), done)


def _put(core: Core, name: str, config: TopicConfig | Mapping[str, object] | None, done: Outcome) -> None:
    topic = core.names.get(name)
    if topic is None:
        create(core, name, config, lambda made: done(made if isinstance(made, Exception) else (True, made.config)))
        return
    parsed = TopicConfig.parse(config, name)
    quiet = retention.has_caps(topic.config) or retention.has_caps(parsed) or bool(topic.classes or topic.line)

    def lost(error: object) -> None:
        # It was deleted while this waited: whether there is one is decided like at the beginning.
        put(core, name, config, done) if isinstance(error, TopicNotFound) else done(error)

    core.in_line(topic, lambda: _configure(core, topic, parsed, done), lost, quiet=quiet)


def create(core: Core, name: str, config: TopicConfig | Mapping[str, object] | None, done: Outcome) -> None:
    """Create an absent topic durably; answers the `Topic` [NAME-8].

    Topics of the server come into being by being written to; whoever may do that was looked at before [A-14].
    """
    own = name in SYSTEM_TOPICS
    if not own and not valid_topic_name(name):
        raise not_a_topic(name)
    parsed = TopicConfig.parse(config, name)
    most = core.config.max_topics
    if most and not own and core.topic_count >= most:
        raise LimitReached("max_topics", most)
    id, epoch = core.next_topic_id, core.next_epoch
    topic = Topic(
        id, name, epoch, parsed, new_index(core, id, told=parsed.durability in ("disk", "fsync")), core.totals
    )

    def made() -> None:
        core.creating.discard(id)
        core.topics[id] = core.names[name] = topic
        core.open_gate(name)
        note_ttl(core, topic)
        describe(core, topic)
        done(topic)

    core.next_topic_id, core.next_epoch = id + 1, epoch + 1
    core.creating.add(id)
    core.gates[name] = []
    if core.wal is None:
        made()
        return

    def logged(outcome: Lsn | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            core.creating.discard(id)
            core.open_gate(name)
            done(outcome)
        else:
            made()

    body = control.TopicCreate(name=name, epoch=epoch, cfg=parsed.stored())
    try:
        raw = control_frame(body, topic, core.clock.now_ms(), durable=True)
        core.submit(id, raw, 1, follows(logged, done), durable=True)
    except Exception:
        core.creating.discard(id)
        core.open_gate(name)
        raise


def new_index(core: Core, topic_id: int, *, told: bool) -> Index:
    """The index of a topic that has nothing yet."""
    if core.wal is None:
        return Index(topic_id, 1, None, None)
    dir = core.topic_dir(topic_id)
    segments = TopicSegments(core.fs, dir, topic_id, core.maps, core.config.segment_limits, told=told)
    return Index(topic_id, 1, segments, core.wal.reader, core.recent)


def describe(core: Core, topic: Topic) -> None:
    """Write `topic.json`, which helps people and is never trusted [S-13]; off the owner, errors cost nothing."""
    if core.wal is None:
        return
    told = {"v": 1, "id": topic.id, "name": topic.name, "epoch": topic.epoch, "config": topic.config.as_dict()}
    raw = json.dumps(told, separators=(",", ":")).encode()
    path = f"{core.topic_dir(topic.id)}/{paths.TOPIC_FILE}"

    def write() -> None:
        if topic.removed:
            return
        core.fs.makedirs(path.rpartition("/")[0])
        file = core.fs.open(paths.tmp(path), "create")
        try:
            pwrite_all(file, raw, 0)
            file.truncate(len(raw))
        finally:
            close_quietly(file)
        core.fs.rename(paths.tmp(path), path)

    core.owner.aside("files", write, core.note_failure(f"topic.json of {topic.name!r}"))


def note_ttl(core: Core, topic: Topic) -> None:
    """Keep track of which topics the sweep has to look at."""
    (core.expiring.add if topic.config.ttl_ms else core.expiring.discard)(topic.id)


def _configure(core: Core, topic: Topic, config: TopicConfig, done: Outcome) -> None:
    """Replace the configuration, all or nothing, in the topic's staging order [CFG-9]."""
    if config.type != topic.config.type:
        raise TopicExistsIncompatible(topic.name, topic.config.type, config.type)
    if config == topic.config and not topic.classes:
        done((False, config))
        return
    ts = max(core.clock.now_ms(), topic.last_ts)
    at = topic.next_seq - 1
    version = max(topic.config_version, topic.version_staged) + 1
    body = control.ConfigUpdate(
        name=topic.name, cfg=config.stored(topic.extra), config_version=version, cap_floor=topic.cap_floor,
        ttl_floor=topic.ttl_floor, head_seq=at,
    )  # fmt: skip
    leaving = topic.durability == "ephemeral" and config.durability != "ephemeral" and core.wal is not None
    gap = _unlogged(topic, at) if leaving else None
    edge = core.routers.feeding.get(topic.id) if gap is not None else None
    carried = None if edge is None else edge.carry(durable=True)
    logged_seq = 0 if edge is None else edge.logged_seq
    frames = count = None
    head = b""
    if core.wal is not None:
        head = control_frame(body, topic, ts, durable=True, more=gap is not None)
        frames = head
        count = 1
        if carried is not None:
            frames += carried.frames
            count += carried.frame_count
        if gap is not None:
            frames += control_frame(gap, topic, ts, durable=True, more=edge is not None)
            count += 1
        if edge is not None:
            frames += edge.mark(at, ts, durable=True)
            count += 1

    staged = True

    def unstage() -> None:
        nonlocal staged
        if staged:
            staged = False
            topic.classes.remove(config.durability)

    def publish(lsn: Lsn | None) -> None:
        unstage()
        topic.apply(body, lsn)
        if gap is not None and lsn is not None:
            assert core.wal is not None
            topic.apply_gap(gap, core.wal.location(*lsn))
            if carried is not None:
                topic.index.tail.relocate(carried.located(core.wal.location(*lsn) + len(head)))
                topic.index.forget_derived(carried.last)
        note_ttl(core, topic)
        retention.try_caps(core, topic)
        if topic.reservation.ceiling and topic.config.durability != "disk":
            give_back(core, topic)
        describe(core, topic)
        answer = (False, topic.config)

        def told(outcome: object = None) -> None:
            done(answer)  # it is in force, whatever becomes of what it lets expire [CFG-9]

        guarded(lambda: retention.expire(core, topic, told, told), told)

    def fail(error: TopicsError) -> None:
        unstage()
        if edge is not None:
            edge.logged_seq = min(edge.logged_seq, logged_seq)
        done(error)

    ticket = Change(publish, fail, topic.next_seq)
    topic.classes.append(config.durability)
    if edge is not None:
        edge.logged_seq = at
    topic.version_staged = version
    try:
        copies.keep(core, topic)
        core.stage(topic, frames, count or 0, ticket, durable=True, control=True)
    except TopicsError as error:
        fail(error)


def _unlogged(topic: Topic, at: int) -> control.Gap | None:
    """The seqs that were in memory only and that the log must explain [S-102]."""
    logged = topic.index.tail.end
    return control.Gap(first=logged + 1, last=at, reason=0) if logged < at else None


class TopicDeleted(NamedTuple):
    """What a deletion removed."""

    deleted: bool
    routers: list[str]
    """That touched the topic, ascending [TOP-13]."""


def delete(core: Core, name: str, done: Outcome, *, if_empty: bool = False) -> None:
    """Delete a topic with everything that belongs to it [NAME-9]; answers a `TopicDeleted`."""
    check_not_system(name)
    if core.closing:
        done(EngineClosed("the engine is closing"))
        return
    gate = core.gates.get(name)
    if gate is not None:
        gate.append(lambda: delete(core, name, done, if_empty=if_empty))
        return
    topic = core.names.get(name)
    if topic is None:
        done(TopicDeleted(False, []))
    elif not if_empty:
        _delete(core, topic, done)
    else:

        def refused(outcome: object) -> None:
            if isinstance(outcome, TopicNotFound) and topic.removed:
                delete(core, name, done, if_empty=True)
            else:
                done(outcome)

        guarded(lambda: core.in_line(topic, lambda: _delete_empty(core, topic, done), refused, quiet=True), done)


def _delete_empty(core: Core, topic: Topic, done: Outcome) -> None:
    """At a point where nothing is undecided: the count is what every reader sees [TOP-12]."""

    def go_on() -> None:
        if core.names.get(topic.name) is not topic:
            done(TopicDeleted(False, []))
        elif topic.count or topic.tickets:
            done(TopicNotEmpty(topic.name, topic.count + topic.staged_records))
        else:
            _delete(core, topic, done)

    retention.expire(core, topic, go_on, done)


def _delete(core: Core, topic: Topic, done: Outcome) -> None:
    """Copies that the topic's routers made elsewhere stay: they are in segments before it goes [S-212 f]."""
    if topic.stuck is not None:
        done(topic.stuck)
        return
    refusal = core.deletes.refusal()
    if refusal is not None:
        done(refusal)
        return
    core.gates[topic.name] = []
    edges = core.routers.edges_of(topic)
    for edge in edges:
        edge.pause()

    @once
    def over(outcome: object) -> None:
        try:
            core.open_gate(topic.name)
            for edge in edges:
                edge.resume()
        finally:
            done(outcome)

    def kept(error: TopicsError | None) -> None:
        if error is None:
            _log_deletion(core, topic, over)
        else:
            over(error)

    fed = [edge for edge in edges if edge.source is topic]
    guarded(lambda: keep_copies(core, fed, follows(kept, over)), over)


def keep_copies(core: Core, edges: list[Edge], then: Callable[[TopicsError | None], None]) -> None:
    """Bring what edges have made into segments; they are paused meanwhile."""
    left = [edge for edge in edges if edge.has_pending]
    if not left or core.bring_in is None:
        then(None)
        return

    def brought(outcome: object) -> None:
        if isinstance(outcome, TopicsError):
            then(outcome)
        elif any(edge.has_pending and not edge.dest.removed for edge in left):
            then(CommitFailed("copies could not be brought into segments"))
        else:
            then(None)

    for edge in left[:-1]:
        core.bring_in(edge.dest.id, lambda outcome: None)
    core.bring_in(left[-1].dest.id, brought)


def _log_deletion(core: Core, topic: Topic, done: Outcome) -> None:
    name, number, now = topic.name, topic.next_delete_number, core.clock.now_ms()

    def remove(lsn: Lsn | None) -> None:
        routers = core.routers.names_of(topic)
        topic.forget()
        for edge in core.routers.edges_of(topic):
            for router in list(edge.routers):
                core.routers.remove(router)
        del core.topics[topic.id], core.names[name]
        core.keys.remove(topic.id)
        core.producers.remove(topic.id)
        core.recent.forget(topic.id)
        for ids in (core.reserved, core.expiring, core.unsealed, core.changed):
            ids.discard(topic.id)
        if topic.index.segments is not None:
            for one in topic.index.segments.segments:
                topic.index.segments.reader.forget(one)
        if lsn is not None:
            core.removing[topic.id] = lsn
        core.deletes.note_drop(topic, number, lsn, now)
        core.wake(topic)
        remove_files(core, topic.id)
        done(TopicDeleted(True, routers))

    ticket = Change(remove, done, topic.next_seq)
    frames = None
    if core.wal is not None:
        body = control.TopicDelete(name=name, epoch=topic.epoch, delete_number=number)
        frames = control_frame(body, topic, now, durable=True)
    try:
        core.stage(topic, frames, 1, ticket, durable=True, control=True)
    except TopicsError as error:
        done(error)


def remove_files(core: Core, topic_id: int) -> None:
    """Rename the directory of a deleted topic, then unlink what is in it, off the owner [S-276]."""
    if core.wal is None:
        return
    root = f"{core.dir}/{paths.TOPICS_DIR}"
    alive, dead = core.topic_dir(topic_id), f"{root}/{paths.topic_dir(topic_id, deleted=True)}"

    def rename() -> None:
        if core.fs.exists(alive):
            core.fs.rename(alive, dead)
        core.fs.sync_dir(root)

    def renamed(error: BaseException | None) -> None:
        if error is not None:
            core.note_failure(f"removing topic {topic_id}")(error)
            core.unremoved.add(topic_id)
            return
        core.unremoved.discard(topic_id)
        core.removing.pop(topic_id, None)
        core.pins.when_free(topic_id, None, None, clear)

    def clear() -> None:
        core.owner.aside("files", lambda: clear_dir(core, dead), cleared)

    def cleared(error: BaseException | None) -> None:
        core.note_failure(f"clearing {dead}")(error)
        remember_cleared(core, topic_id, dead)

    core.owner.aside("files", rename, renamed)


def clear_dir(core: Core, dir: str) -> None:
    """Unlink what is in a directory that a deleted topic left, and itself; again is fine.

    With a cold tier the empty directory stays until the topic's objects are gone: it is what a start knows of them.
    """
    if not core.fs.exists(dir):
        return
    for name in core.fs.listdir(dir):
        core.fs.remove(f"{dir}/{name}")
    if core.cold.root is None:
        core.fs.rmdir(dir)


def remember_cleared(core: Core, topic_id: int, dir: str) -> None:
    """Have the objects of a deleted topic go, too [S-276]."""
    if core.cold.root is not None:
        core.cold.clears[topic_id] = dir


def reserve_ahead(core: Core, topic: Topic, last: int, now: int) -> None:
    """Ask for the next ceiling in the background when half of this one is used [A-2]."""
    reservation, config = topic.reservation, core.config
    if not reservation.wanted(last):
        return
    ceiling = reservation.next(last, now, config.reserve_min, config.reserve_max, config.reserve_span_ms)
    generation = reservation.generation

    def logged(outcome: Lsn | TopicsError) -> None:
        if isinstance(outcome, TopicsError):
            reservation.refused(generation)
        else:
            reservation.granted(ceiling, generation)
            core.reserved.add(topic.id)

    body = control.HeadWatermark(reserved=ceiling)
    try:
        core.submit(topic.id, control_frame(body, topic, now, durable=True), 1, logged, durable=True)
    except TopicsError:
        reservation.refused(generation)


def give_back(core: Core, topic: Topic) -> None:
    """An idle topic lets go of its reservation, so that a machine crash tells of nothing [A-2]."""
    body = control.HeadWatermark(reserved=0)
    raw = control_frame(body, topic, core.clock.now_ms(), durable=False)
    try:
        core.submit(topic.id, raw, 1, lambda outcome: None, durable=False)
    except TopicsError:
        return
    topic.reservation.give_back()
    core.reserved.discard(topic.id)
