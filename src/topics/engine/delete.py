"""Deleting records (06 §15.2, 01 §14): logged first, then marked in the index, at its turn in the topic's line.

The bound is fixed when the delete is staged: records appended later are never affected, not even in replay [DEL-5].
Owner only, but for `Removal.parse`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from topics.codec import control
from topics.engine import copies, lifecycle, retention
from topics.engine.core import Core, Outcome, control_frame, follows, guarded, once
from topics.engine.retention import has_caps
from topics.engine.topic import Change, Lsn, Topic
from topics.errors import BatchTooLarge, CallerError, TopicsError
from topics.model import DeleteResult, Limits, Selector, check_not_system, check_u64


class Removal(NamedTuple):
    """Which records a delete asks for."""

    before_seq: int | None
    match: Selector | None
    seqs: tuple[int, ...] | None

    @classmethod
    def parse(cls, before_seq: object, match: object, seqs: object, limits: Limits) -> Removal:
        """Check a delete's selectors [DEL-1, DEL-2]."""
        if before_seq is None and match is None and seqs is None:
            raise CallerError("a delete needs before_seq, match or seqs")
        before = None if before_seq is None else check_u64(before_seq, "before_seq")
        selector = None if match is None else Selector.parse(match)
        if seqs is None:
            return cls(before, selector, None)
        if before is not None:
            raise CallerError("seqs does not go together with before_seq")
        if isinstance(seqs, (str, bytes)) or not isinstance(seqs, Iterable):
            raise CallerError("seqs must be a list of seqs")
        listed = tuple(check_u64(seq, "seqs") for seq in seqs)
        if len(listed) > limits.max_claim:
            raise BatchTooLarge(len(listed), limits.max_claim)
        return cls(None, selector, listed)


def check_flag(value: object, what: str) -> bool:
    """A flag is true or false, nothing that merely counts as such."""
    if not isinstance(value, bool):
        raise CallerError(f"{what} must be true or false")
    return value


def delete(core: Core, name: str, removal: Removal, dry_run: bool, done: Outcome) -> None:
    """Delete what exists now; answers a `DeleteResult` once it is gone for every reader [DEL-7]."""
    check_not_system(name)
    core.with_topic(name, lambda topic: _retained(core, topic, removal, dry_run, done), done)


def _retained(core: Core, topic: Topic, removal: Removal, dry_run: bool, done: Outcome) -> None:
    def go_on() -> None:
        if core.names.get(topic.name) is not topic:
            delete(core, topic.name, removal, dry_run, done)
        elif dry_run:
            done(_result(topic, _would_delete(topic, _body(topic, removal, None))))
        else:
            _keeping_copies(core, topic, lambda over: _in_line(core, topic, removal, over), done)

    retention.catch_up(core, topic)
    retention.expire(core, topic, go_on, done)


def _in_line(core: Core, topic: Topic, removal: Removal, done: Outcome) -> None:
    core.in_line(topic, lambda: _stage(core, topic, removal, done), done, quiet=_needs_quiet(topic))


def _keeping_copies(core: Core, topic: Topic, remove: Callable[[Outcome], None], done: Outcome) -> None:
    """Copies that routers made of the topic are in segments before it loses records: a restart cannot make them again.

    Without that the destination would go back, and its readers would miss what is written there next [RRC-8]. Where
    they cannot be kept the delete goes on all the same: whoever asked for it comes first.
    """
    edges = [edge for edge in core.routers.fed.get(topic.id, ()) if edge.has_pending]
    if not edges or core.bring_in is None:
        remove(done)
        return
    for edge in edges:
        edge.pause()

    @once
    def over(outcome: object) -> None:
        try:
            for edge in edges:
                edge.resume()
        finally:
            done(outcome)

    guarded(lambda: lifecycle.keep_copies(core, edges, follows(lambda error: remove(over), over)), over)


def _needs_quiet(topic: Topic) -> bool:
    return has_caps(topic.config) or bool(topic.classes or topic.line)


def _body(topic: Topic, removal: Removal, number: int | None) -> control.Delete:
    return control.Delete(
        before_seq=removal.before_seq,
        match=removal.match and (removal.match.kind, removal.match.value),
        seqs=removal.seqs,
        bound=topic.head + 1,
        cap_floor=topic.cap_floor,
        ttl_floor=topic.ttl_floor,
        delete_number=number,
    )


def _would_delete(topic: Topic, body: control.Delete) -> int:
    if body.seqs is None and body.match is None:
        assert body.before_seq is not None
        assert body.bound is not None
        return topic.index.live(topic.floor, min(body.before_seq, body.bound) - 1).records
    return topic.index.live_among(topic.targets(body)).records


def _stage(core: Core, topic: Topic, removal: Removal, done: Outcome) -> None:
    refusal = core.deletes.refusal()
    if refusal is not None:
        done(refusal)
        return
    number = topic.delete_number_staged = topic.next_delete_number

    def fail(error: TopicsError) -> None:
        # Whatever was staged behind it fails, too: the number is free again.
        topic.delete_number_staged = min(topic.delete_number_staged, number - 1)
        done(error)

    _log(core, topic, _body(topic, removal, number), lambda records: done(_result(topic, records)), fail)


def logs_deletes(core: Core, topic: Topic) -> bool:
    """Records of an earlier class keep its promise, so their deletion is logged too [CFG-10, INV-8]."""
    return core.is_logged(topic) or (core.wal is not None and topic.index.is_logged)


def _log(core: Core, topic: Topic, body: control.Delete, then: Callable[[int], None], done: Outcome) -> None:
    """Log a delete and apply it at its turn; `then` gets how many records it removed, `done` what went wrong."""
    now, logged = core.clock.now_ms(), logs_deletes(core, topic)

    def publish(lsn: Lsn | None) -> None:
        core.fs.point("delete.committed")
        removed = topic.apply(body, lsn)
        assert removed is not None
        if topic.index.overlays:
            topic.index.trim_overlays(topic.earliest_seq, topic.evict_floor)
        if body.delete_number is not None and (lsn is not None or core.wal is None):
            core.deletes.note(topic, body, removed.records, lsn, now)
        then(removed.records)

    ticket = Change(publish, done, topic.next_seq)
    durable = topic.durability in ("fsync", "ephemeral")
    frames = control_frame(body, topic, now, durable=durable) if logged else None
    try:
        copies.keep(core, topic)
        core.stage(topic, frames, 1, ticket, durable=durable, control=True)
    except TopicsError as error:
        done(error)


def remove_jobs(
    core: Core, topic: Topic, seqs: Sequence[int], kind: int, then: Callable[[], None], fail: Outcome
) -> None:
    """Delete jobs that were acked or moved: one frame, without a delete number [S-273, A-20]."""

    def stage() -> None:
        body = control.Delete(
            seqs=tuple(seqs), bound=topic.head + 1, cap_floor=topic.cap_floor, ttl_floor=topic.ttl_floor, kind=kind
        )
        _log(core, topic, body, lambda records: then(), fail)

    core.in_line(topic, stage, fail, quiet=_needs_quiet(topic))


def _result(topic: Topic, deleted: int) -> DeleteResult:
    return DeleteResult(deleted, topic.earliest_seq, topic.head, topic.count, topic.bytes)
