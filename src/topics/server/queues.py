"""Handlers of queues: claim, ack, nack, extend, and who holds what (04 §3 to §6, §9). Event loop only.

Bodies are decoded and checked here in the order of [CLM-1] and [ACK-1]; everything else is the engine's. A claim that
waits for its window ends with its client [COH-5, API-23]. The stream of jobs is in `work`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final

import msgspec

from topics.codec import project
from topics.codec.offsets import SIZE
from topics.engine import queue
from topics.engine.claiming import Fresh, Hand
from topics.engine.queue import Ask, Claim
from topics.errors import BatchTooLarge
from topics.model import (
    AckResult,
    DelayedJob,
    ExtendResult,
    HeldLease,
    Job,
    LeasePage,
    NackResult,
    check_not_system,
    check_u64,
)
from topics.server import wire
from topics.server.describe import U32, U64, about
from topics.server.exchange import Exchange
from topics.server.failure import Failure, Refused, bad_request
from topics.server.topics import name_of

Seq = Annotated[int, about(bounds=U64)]
Token = Annotated[str, about(bounds={"pattern": "^(lease_[0-9a-fA-F]+)?$"})]
_DOLLARS: Final = {"seq": "$seq", "ts": "$ts", "tag": "$tag"}


class ClaimBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/claim`."""

    node: Annotated[str, about("who claims; 1 to `TOPICS_MAX_NODE_BYTES` bytes", {"minLength": 1})]
    max: Annotated[int, about("jobs at most, 0 means 1; lowered to `TOPICS_MAX_CLAIM`", U32)] = 1
    lease_ms: Annotated[int | None, about("how long they are leased, 100 to 86400000; the topic's by default", U64)] = (
        None
    )


class AckBody(msgspec.Struct):
    """`POST /v0/topics/{topic}/ack`."""

    node: Annotated[str, about("who holds the leases", {"minLength": 1})]
    seqs: Annotated[list[Seq], about("jobs; `TOPICS_MAX_CLAIM` at most")]
    lease_ids: Annotated[
        list[Token], about("one per seq, empty for none: it counts only for the very delivery with this id")
    ] = []


class NackBody(AckBody):
    """`POST /v0/topics/{topic}/nack`."""

    delay_ms: Annotated[int, about("until they may be claimed again; 86400000 at most", U64)] = 0


class ExtendBody(AckBody, kw_only=True):
    """`POST /v0/topics/{topic}/extend`."""

    lease_ms: Annotated[int, about("from now on; 100 to 86400000", U64)]


class JobAnswer(msgspec.Struct, rename=_DOLLARS):
    """A job in the hands of whoever claimed it."""

    seq: Seq
    lease_id: Annotated[str, about("of this delivery; never seen again")]
    deadline: Annotated[int, about("when the lease ends, in ms", U64)]
    ts: Annotated[int, about("when it was written, in ms", U64)]
    deliveries: Annotated[int, about("how often it was delivered, this time included", U64)]
    data: Any
    tag: str | msgspec.UnsetType = msgspec.UNSET
    meta: dict[str, Any] | msgspec.UnsetType = msgspec.UNSET


class ClaimAnswer(msgspec.Struct):
    """What was claimed; none is an answer, too."""

    topic: str
    claimed: Annotated[list[JobAnswer], about("by seq")]
    count: Annotated[int, about("of `claimed`", U64)]
    ready: Annotated[int, about("jobs that can be claimed now", U64)]
    performance: wire.Performance


class AckPerformance(wire.Performance):
    """How long an ack took."""

    fsync_ms: Annotated[float | msgspec.UnsetType, about("time spent waiting for the sync, if any")] = msgspec.UNSET


class AckAnswer(msgspec.Struct):
    """What was completed."""

    topic: str
    acked: Annotated[int, about("jobs that are gone now", U64)]
    skipped: Annotated[list[Seq], about("seqs that the node does not hold, as they were given")]
    ready: Annotated[int, about("jobs that can be claimed now", U64)]
    in_flight: Annotated[int, about("jobs that are leased now", U64)]
    performance: AckPerformance


class NackAnswer(msgspec.Struct):
    """What was given back."""

    topic: str
    nacked: Annotated[int, about("jobs that are given back", U64)]
    skipped: Annotated[list[Seq], about("seqs that the node does not hold, as they were given")]
    ready: Annotated[int, about("jobs that can be claimed now", U64)]
    in_flight: Annotated[int, about("jobs that are leased now", U64)]
    performance: wire.Performance


class ExtendAnswer(msgspec.Struct):
    """What is kept longer."""

    topic: str
    extended: Annotated[int, about("leases with a new deadline", U64)]
    skipped: Annotated[list[Seq], about("seqs that the node does not hold, as they were given")]
    deadlines: Annotated[dict[str, int], about("new deadline in ms, by seq")]
    performance: wire.Performance


class LeaseAnswer(msgspec.Struct, rename=_DOLLARS):
    """An active lease."""

    seq: Seq
    node: Annotated[str, about("who holds it")]
    lease_id: str
    deadline: Annotated[int, about("when it ends, in ms", U64)]
    deliveries: Annotated[int, about("of the job", U64)]


class DelayedAnswer(msgspec.Struct, rename=_DOLLARS):
    """A job that was given back with a delay."""

    seq: Seq
    ready_at: Annotated[int, about("when it may be claimed again, in ms", U64)]


class LeasesAnswer(msgspec.Struct):
    """Who holds what, by seq."""

    topic: str
    leases: list[LeaseAnswer]
    delayed: list[DelayedAnswer]
    performance: wire.Performance
    next_cursor: Annotated[str | msgspec.UnsetType, about("`cursor` of the next page, if there is one")] = msgspec.UNSET


_CLAIM: Final = msgspec.json.Decoder(ClaimBody)
_ACK: Final = msgspec.json.Decoder(AckBody)
_NACK: Final = msgspec.json.Decoder(NackBody)
_EXTEND: Final = msgspec.json.Decoder(ExtendBody)


# -- claim -----------------------------------------------------------------------------------------------------------


def claim(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/claim` (04 §3)."""
    name, core = name_of(exchange), exchange.core
    check_not_system(name)
    if not exchange.body:
        raise bad_request("a claim needs a body that names its node")
    body = wire.decode(_CLAIM, exchange.body)
    exchange.body_done()
    asked = Claim.parse(body.node, body.max, body.lease_ms, core.limits)

    def told(hand: Hand, ready: int) -> bytes:
        return b'{"topic":"%b","claimed":[%b],"count":%d,"ready":%d}' % (
            name.encode(), rendered(hand), hand.size, ready,
        )  # fmt: skip

    @exchange.answers
    def done(outcome: bytes | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        else:
            exchange.reply(200, wire.timed(outcome, exchange.elapsed_ms()))

    def window_over() -> None:
        exchange.cancel = None

    claimer = queue.claim(core, name, asked, done, told)
    if claimer.is_waiting:
        exchange.cancel = claimer.cancel
        claimer.window_over = window_over


def rendered(hand: Hand) -> bytes:
    """Claimed jobs, one behind the other [CLM-6]."""
    if hand.fresh:
        return b",".join([piece for run in hand.fresh for piece in _fresh(run, hand.deadline)])
    return b",".join([b"{%b}" % members(hand.job(one)) for one in hand.dealt])


def _fresh(run: Fresh, deadline: int) -> Iterator[bytes]:
    """Jobs straight from their frames."""
    id = run.id
    for frames, offsets in run.pieces:
        yield project.jobs_of_wal(frames, offsets, id, deadline)
        id += len(offsets) // SIZE


def members(job: Job) -> bytes:
    """The members of a claimed job, without braces [CLM-6, WRK-4]."""
    tag = None if job.tag is None else job.tag.encode()
    return project.job(
        job.seq, job.lease_id.encode(), job.deadline, job.ts, tag, job.deliveries, job.raw_data, job.raw_meta
    )


# -- ack, nack, extend -----------------------------------------------------------------------------------------------


def _asked(exchange: Exchange, body: AckBody) -> Ask:
    """Which leases a call is about, checked in the order of [ACK-1]."""
    exchange.body_done()
    try:
        return Ask.parse(body.node, body.seqs, body.lease_ids, exchange.core.limits)
    except BatchTooLarge as error:
        detail = {"seqs": error.count, "max": error.max}
        raise Refused(Failure(400, error.code, str(error), detail)) from None


def _answering(exchange: Exchange, told: Callable[[Any], dict[str, Any]]) -> Callable[[Any], None]:
    """Answer with what a result comes to."""

    @exchange.answers
    def done(outcome: Any) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
        else:
            body = wire.encode({"topic": name_of(exchange), **told(outcome)})
            exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    return done


def ack(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/ack` (04 §4)."""
    name, core, clock = name_of(exchange), exchange.core, exchange.app.clock
    check_not_system(name)
    asked = _asked(exchange, wire.decode(_ACK, exchange.body))
    staged_ns = 0

    @exchange.answers
    def done(outcome: AckResult | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        topic = core.names.get(name)
        waits = staged_ns and outcome.acked and topic is not None and topic.config.durability == "fsync"
        fsync_ms = (clock.monotonic_ns() - staged_ns) / 1e6 if waits else 0.0
        told = b'{"topic":"%b","acked":%d,"skipped":[%b],"ready":%d,"in_flight":%d}' % (
            name.encode(), outcome.acked, b",".join([b"%d" % seq for seq in outcome.skipped]),
            outcome.ready, outcome.in_flight,
        )  # fmt: skip
        timing = b',"fsync_ms":%.3f' % fsync_ms if fsync_ms >= 0.001 else b""
        exchange.reply(200, wire.timed(told, exchange.elapsed_ms(), timing))

    queue.ack(core, name, asked, done)
    staged_ns = clock.monotonic_ns()


def nack(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/nack` (04 §5)."""
    name = name_of(exchange)
    check_not_system(name)
    body = wire.decode(_NACK, exchange.body)
    delay_ms = check_u64(body.delay_ms, "delay_ms")

    def told(result: NackResult) -> dict[str, Any]:
        return {
            "nacked": result.nacked,
            "skipped": result.skipped,
            "ready": result.ready,
            "in_flight": result.in_flight,
        }

    queue.nack(exchange.core, name, _asked(exchange, body), delay_ms, _answering(exchange, told))


def extend(exchange: Exchange) -> None:
    """`POST /v0/topics/{topic}/extend` (04 §6)."""
    name = name_of(exchange)
    check_not_system(name)
    body = wire.decode(_EXTEND, exchange.body)
    lease_ms = check_u64(body.lease_ms, "lease_ms")

    def told(result: ExtendResult) -> dict[str, Any]:
        deadlines = {str(seq): deadline for seq, deadline in result.deadlines.items()}
        return {"extended": result.extended, "skipped": result.skipped, "deadlines": deadlines}

    queue.extend(exchange.core, name, _asked(exchange, body), lease_ms, _answering(exchange, told))


# -- leases ----------------------------------------------------------------------------------------------------------


def leases(exchange: Exchange) -> None:
    """`GET /v0/topics/{topic}/leases` [QOB-4]."""
    query = exchange.params()
    size = wire.page_size(query)
    after = _cursor_seq(query.get("cursor", ""))

    def told(page: LeasePage) -> dict[str, Any]:
        found: dict[str, Any] = {"leases": list(map(_lease, page.leases)), "delayed": list(map(_delayed, page.delayed))}
        if page.next_cursor is not None:
            found["next_cursor"] = wire.cursor_after(str(page.next_cursor))
        return found

    queue.leases(exchange.core, name_of(exchange), after, size, _answering(exchange, told))


def _cursor_seq(token: str) -> int:
    """The seq that a page ends with; 0 for the first."""
    text = wire.cursor_name(token)
    if not text:
        return 0
    if not (text.isascii() and text.isdigit() and len(text) <= 20):
        raise bad_request("cursor is not one that a list returned")
    return int(text)


def _lease(one: HeldLease) -> dict[str, Any]:
    return {
        "$seq": one.seq,
        "node": one.node,
        "lease_id": one.lease_id,
        "deadline": one.deadline,
        "deliveries": one.deliveries,
    }


def _delayed(one: DelayedJob) -> dict[str, Any]:
    return {"$seq": one.seq, "ready_at": one.ready_at}
