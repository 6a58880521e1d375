"""What comes back: answers of a server as the values that a store in this process returns [U-20].

Members that are not known are passed over [API-1]. Pure; any thread.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec
from msgspec.json import Decoder

from topics.codec.rendered import Rendered, records
from topics.errors import Unreachable
from topics.model import (
    AbortResult,
    AckResult,
    AppendResult,
    Checkpointed,
    ClaimResult,
    CommitResult,
    DelayedJob,
    DeleteResult,
    ExtendResult,
    Gap,
    Guarantee,
    HeldLease,
    Job,
    LeasePage,
    NackResult,
    ReadResult,
    RouterConfig,
    RouterState,
    Selector,
    StageResult,
    TopicConfig,
    TopicState,
    WriterState,
)

T = TypeVar("T")
_DOLLARS: Final = {"seq": "$seq", "ts": "$ts", "node": "$node", "tag": "$tag"}


def decoded(body: bytes, decoder: Decoder[T]) -> T:
    """A body of a known shape. Decoders are made on import: the first use of a shape is not safe on two threads."""
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise Unreachable(f"what answers there is no topics server: {error}") from None


class _WriteTiming(msgspec.Struct, frozen=True):
    throttle_wait_ms: float | None = None


class _Written(msgspec.Struct):
    first_seq: int | None
    last_seq: int | None
    head_seq: int
    count: int
    created: bool
    deduped: bool
    performance: _WriteTiming = _WriteTiming()


_WRITTEN: Final = Decoder(_Written)


def written(body: bytes) -> AppendResult:
    """The answer to a write [WR-3]."""
    told = decoded(body, _WRITTEN)
    return AppendResult(
        told.first_seq, told.last_seq, told.head_seq, told.count, told.created, told.deduped,
        told.performance.throttle_wait_ms,
    )  # fmt: skip


class _ReadTiming(msgspec.Struct, frozen=True):
    records_scanned: int = 0
    cold_segments_read: int = 0


class _Page(msgspec.Struct):
    records: list[Rendered]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Gap | None = None
    performance: _ReadTiming = _ReadTiming()


_PAGE: Final = Decoder(_Page)


def page(body: bytes) -> ReadResult:
    """The answer to a read [DIF-2]."""
    told = decoded(body, _PAGE)
    return ReadResult(
        records(told.records), told.next_from_seq, told.head_seq, told.earliest_seq, told.tombstone,
        told.performance.records_scanned, told.performance.cold_segments_read,
    )  # fmt: skip


class _Config(msgspec.Struct):
    config: dict[str, Any]


_CONFIG: Final = Decoder(_Config)


def config(body: bytes) -> TopicConfig:
    """The configuration in an answer."""
    return TopicConfig.parse(decoded(body, _CONFIG).config)


class _State(msgspec.Struct):
    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    config: dict[str, Any]
    effective_priority: int = 0
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    earliest_ts: int | None = None
    queue: dict[str, Any] | None = None


_STATE: Final = Decoder(_State)


def state(body: bytes) -> TopicState:
    """A topic at one instant [TOP-6]."""
    told = msgspec.structs.asdict(decoded(body, _STATE))
    return TopicState(**{**told, "config": TopicConfig.parse(told["config"])})


class _Entry(msgspec.Struct):
    topic: str


class Names(msgspec.Struct):
    """A page of names [TOP-7]."""

    topics: list[_Entry]
    next_cursor: str | None = None


class _Job(msgspec.Struct, rename=_DOLLARS):
    seq: int
    lease_id: str
    deadline: int
    ts: int
    deliveries: int
    data: msgspec.Raw
    tag: str | None = None
    meta: msgspec.Raw = msgspec.Raw()


class _Claimed(msgspec.Struct):
    claimed: list[_Job]
    ready: int


_CLAIMED: Final = Decoder(_Claimed)


def claimed(body: bytes) -> ClaimResult:
    """The answer to a claim [CLM-5]."""
    told = decoded(body, _CLAIMED)
    return ClaimResult([_job(one) for one in told.claimed], told.ready)


def _job(one: _Job) -> Job:
    return Job(
        seq=one.seq, lease_id=one.lease_id, deadline=one.deadline, ts=one.ts, deliveries=one.deliveries, tag=one.tag,
        raw_data=bytes(one.data), raw_meta=bytes(one.meta) or None,
    )  # fmt: skip


class _Lease(msgspec.Struct, rename={"seq": "$seq"}):
    seq: int
    node: str
    lease_id: str
    deadline: int
    deliveries: int


class _Delayed(msgspec.Struct, rename={"seq": "$seq"}):
    seq: int
    ready_at: int


class Leases(msgspec.Struct):
    """A page of leases and delayed jobs [QOB-4]."""

    leases: list[_Lease]
    delayed: list[_Delayed]
    next_cursor: str | None = None

    def held(self) -> LeasePage:
        """The same as the surface has it."""
        leases = [HeldLease(one.seq, one.node, one.lease_id, one.deadline, one.deliveries) for one in self.leases]
        return LeasePage(leases, [DelayedJob(one.seq, one.ready_at) for one in self.delayed], None)


class RouterEntry(msgspec.Struct):
    """A router in a list [RTR-11]."""

    router: str
    forwarded_total: int
    cursor: int
    lag: int


class RouterPage(msgspec.Struct):
    """A page of routers."""

    routers: list[RouterEntry]
    next_cursor: str | None = None


class RouterTold(msgspec.Struct):
    """A router's definition as PUT and GET answer it [RTR-9]."""

    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    allow_cycle: bool
    guarantee: Guarantee
    filter: tuple[str, str, str] | None = None
    forwarded_total: int = 0

    def state(self, entry: RouterEntry) -> RouterState:
        """The router, with what a list says about how far it is."""
        picks = None if self.filter is None else Selector.parse(self.filter)
        config = RouterConfig(
            self.source, self.dest, self.preserve_node, self.preserve_tag, filter=picks, allow_cycle=self.allow_cycle,
            guarantee=self.guarantee,
        )  # fmt: skip
        return RouterState(
            entry.router, config, max(self.forwarded_total, entry.forwarded_total), entry.cursor, entry.lag
        )


class Flag(msgspec.Struct):
    """Whether there was something to delete."""

    deleted: bool


MEMBERS: Final = Decoder(dict[str, Any])
NAMES: Final = Decoder(Names)
LEASES: Final = Decoder(Leases)
ROUTER: Final = Decoder(RouterTold)
ROUTERS: Final = Decoder(RouterPage)
FLAG: Final = Decoder(Flag)
CHECKPOINTED: Final = Decoder(Checkpointed)
DELETED: Final = Decoder(DeleteResult)
ACKED: Final = Decoder(AckResult)
NACKED: Final = Decoder(NackResult)
EXTENDED: Final = Decoder(ExtendResult)
STAGED: Final = Decoder(StageResult)
COMMITTED: Final = Decoder(CommitResult)
ABORTED: Final = Decoder(AbortResult)
WRITER: Final = Decoder(WriterState)
