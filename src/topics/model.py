"""Values that cross a boundary: names, a topic's configuration, what is written, what is answered.

    names       valid_topic_name, valid_router_name, is_system_name, check_*       [NAME-1, NAME-2, A-14]
    config      TopicConfig: always complete, checked, clamped and consistent      (01 §3)
    writing     NewRecord, Producer, Limits                                        (01 §1, 00 A-4, 02 §1.9)
    selecting   Selector, successor                                                (01 §14, S-188)
    answers     AppendResult, ReadResult, Record, Gap, DeleteResult, TopicState    [S-354]
    queues      Job, ClaimResult, AckResult, NackResult, ExtendResult, LeasePage   (04)
    watching    TopicRecord, TopicGap, CaughtUp, TopicDeleted: what a watch yields (03 §5) [U-21]

Whatever breaks a rule here is a `CallerError`. Values only, no behaviour that waits: any thread.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, cast

import msgspec
from msgspec.structs import force_setattr

from topics.errors import CallerError, Forbidden, UnsupportedFormat
from topics.paths import U64_MAX

I32_MIN: Final = -(2**31)
I32_MAX: Final = 2**31 - 1

_TOPIC_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,254}")
_ROUTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:>-]{0,254}")

DELETES: Final = "$deletes"
"""Every delete that was acknowledged [A-20]."""
LOSS: Final = "$loss"
"""What topics lost without anybody having asked for it [A-22]."""
PIPELINES: Final = "$pipelines"
"""Runs of jobs; the one that clients write to."""
SYSTEM_TOPICS: Final = frozenset({PIPELINES, LOSS, DELETES})
"""The topics the server keeps for itself [A-14]."""
SERVER_WRITES: Final = (DELETES, LOSS)
"""Those of them that nobody else writes to, so that they take nothing of the quota of bytes [RES-5]."""


def valid_topic_name(name: object) -> bool:
    """Whether a client may create a topic of this name [NAME-1]; the server's own names are not."""
    return isinstance(name, str) and _TOPIC_NAME.fullmatch(name) is not None


def valid_router_name(name: object) -> bool:
    """The same for routers, where `>` may follow the first byte [NAME-2]."""
    return isinstance(name, str) and _ROUTER_NAME.fullmatch(name) is not None


_RULE: Final = "1 to 255 of A-Z a-z 0-9 . _ : -{}, the first a letter or a digit"


def not_a_topic(name: object) -> CallerError:
    """What to say of a name that no topic can have."""
    return CallerError(f"{name!r} is not the name of a topic: {_RULE.format('')}")


def not_a_router(name: object) -> CallerError:
    """The same of routers."""
    return CallerError(f"{name!r} is not the name of a router: {_RULE.format(' >')}")


def is_system_name(name: object) -> bool:
    """Whether a name belongs to the server, whether or not it uses it (`SYSTEM_TOPICS`) [A-14]."""
    return isinstance(name, str) and name.startswith("$")


def check_not_system(name: str) -> None:
    """Refuse what only the server may do to topics of its own [A-14]."""
    if is_system_name(name):
        raise Forbidden(name, "names beginning with $ belong to the server")


def check_writable(name: str) -> None:
    """Refuse a client's write to the server's topics but `$pipelines` [A-14]."""
    if not is_system_name(name) or name == PIPELINES:
        return
    if name in SYSTEM_TOPICS:
        raise Forbidden(name, "only the server writes to this topic")
    raise CallerError("names beginning with $ belong to the server")


def utf8_bytes(text: str, what: str) -> int:
    """Length of a text in UTF-8; a lone surrogate has none."""
    if text.isascii():
        return len(text)
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise CallerError(f"{what} is not valid Unicode") from None


TopicType = Literal["log", "queue"]
Discard = Literal["old", "reject"]
Durability = Literal["ephemeral", "memory", "disk", "fsync"]

_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    "type": ("log", "queue"),
    "discard": ("old", "reject"),
    "durability": ("ephemeral", "memory", "disk", "fsync"),
}
_COUNTS: Final = (
    "ttl_ms",
    "cap_records",
    "cap_bytes",
    "idempotency_window_ms",
    "lease_ms",
    "claim_jitter_ms",
    "max_deliveries",
)
_FLAGS: Final = ("durable", "auto_priority", "auto_create", "dedupe_node", "leases_durable")
LEASE_MS_MIN: Final = 100
LEASE_MS_MAX: Final = 86_400_000
_CLAMPS: Final = {"lease_ms": (LEASE_MS_MIN, LEASE_MS_MAX), "claim_jitter_ms": (0, 5000)}


class TopicConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A topic's configuration (01 §3), in the order of S-42.

    Invariant: every instance is complete and valid, clamped [CFG-6] and consistent in its durability class [CFG-5].
    `priority` alone is kept as given and clamped on use.
    """

    type: TopicType = "log"
    ttl_ms: int = 0
    cap_records: int = 0
    cap_bytes: int = 0
    discard: Discard = "old"
    durable: bool = False
    # `None` says "derive it" to the constructor; an instance never holds it.
    durability: Durability = cast("Durability", None)
    priority: int | None = None
    auto_priority: bool = True
    auto_create: bool = True
    idempotency_window_ms: int = 120_000
    dedupe_node: bool = True
    lease_ms: int = 30_000
    claim_jitter_ms: int = 0
    max_deliveries: int = 0
    dead_letter: str | None = None
    leases_durable: bool = False

    def __post_init__(self) -> None:
        if self.durability is None:
            force_setattr(self, "durability", "fsync" if self.durable is True else "disk")  # type: ignore[unreachable]
        for name, choices in _CHOICES.items():
            _check_choice(name, getattr(self, name), choices)
        for name in _COUNTS:
            check_u64(getattr(self, name), name)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise CallerError(f"{name} must be true or false")
        if self.priority is not None and not _is_integer(self.priority, I32_MIN, I32_MAX):
            raise CallerError("priority must be null or a whole number of 32 bits")
        if self.dead_letter is not None and not valid_topic_name(self.dead_letter):
            raise CallerError("dead_letter must be null or the name of a topic")
        for name, (low, high) in _CLAMPS.items():
            force_setattr(self, name, min(max(getattr(self, name), low), high))
        force_setattr(self, "durable", self.durability == "fsync")

    @classmethod
    def parse(cls, value: TopicConfig | Mapping[str, object] | None, topic: str | None = None) -> TopicConfig:
        """A complete configuration from what a caller gave; every omitted field takes its default [CFG-1].

        Unknown members are ignored; `null` means "absent" for `durability`, `priority` and `dead_letter` and is
        refused elsewhere [CFG-8]. `topic` is the name it is for: a queue is not its own dead-letter topic.
        """
        if isinstance(value, TopicConfig):
            config = value
        elif value is None:
            config = cls()
        elif isinstance(value, Mapping):
            config = cls(**{name: value[name] for name in cls.__struct_fields__ if name in value})  # type: ignore[arg-type]
        else:
            raise CallerError("config must be an object")
        if topic is not None and config.type == "queue" and config.dead_letter == topic:
            raise CallerError(f"queue {topic!r} cannot be its own dead-letter topic")
        return config

    def as_dict(self) -> dict[str, Any]:
        """All 17 public members, in order."""
        return msgspec.structs.asdict(self)

    def stored(self, extra: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The `cfg` map of frames and snapshots [S-42]; `extra` holds the names that `from_stored` did not know."""
        return {**self.as_dict(), **(extra or {})}

    @classmethod
    def from_stored(cls, cfg: Mapping[str, Any]) -> tuple[TopicConfig, dict[str, Any]]:
        """The configuration in a `cfg` map, and the members that only another version knows, to be written back."""
        try:
            config = cls.parse(cfg)
        except CallerError as error:
            raise UnsupportedFormat(f"stored configuration: {error}") from error
        return config, {name: value for name, value in cfg.items() if name not in cls.__struct_fields__}


def _is_integer(value: object, low: int, high: int) -> bool:
    # A bool is an int to Python, not to JSON [API-12].
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise CallerError(f"{name} must be one of {', '.join(choices)}")


def check_u64(value: object, what: str) -> int:
    """The value, if it is an integer from 0 to 2^64-1 [API-12]."""
    if value.__class__ is int and 0 <= value <= U64_MAX:
        return value
    if not _is_integer(value, 0, U64_MAX):
        raise CallerError(f"{what} must be a whole number from 0 to 2^64-1")
    return cast(int, value)


def check_u32(value: object, what: str) -> int:
    """The value, if it is an integer from 0 to 2^32-1."""
    if value.__class__ is int and 0 <= value < 2**32:
        return value
    if not _is_integer(value, 0, 2**32 - 1):
        raise CallerError(f"{what} must be a whole number from 0 to 2^32-1")
    return cast(int, value)


class Limits(NamedTuple):
    """Request limits (01 §1.1, 02 §1.9); a limit is exceeded only above it [REC-13].

    Fields that share a name with a setting take its value; the others are fixed.
    """

    max_batch_records: int = 10_000
    max_record_bytes: int = 2**20
    max_meta_bytes: int = 16_384
    max_meta_members: int = 64
    max_tag_bytes: int = 256
    max_node_bytes: int = 128
    max_key_bytes: int = 256
    max_producer_bytes: int = 128
    max_filter_nodes: int = 64
    max_limit: int = 1000
    max_read_bytes: int = 8 * 2**20
    max_wait_ms: int = 30_000
    max_claim: int = 1000
    max_watch_topics: int = 256

    def read_limit(self, asked: int = 0) -> int:
        """Records that one read may deliver; 0 asks for the default of 256 [RD-6, LIM-1]."""
        return min(asked or 256, self.max_limit)

    def read_bytes(self, asked: int = 0) -> int:
        """Byte budget of one read; 0 asks for the default of 1 MiB [RD-6]."""
        return min(asked or 2**20, self.max_read_bytes)


class NewRecord(msgspec.Struct, frozen=True):
    """What a client writes (01 §1).

    `data` and `meta` are Python values, or JSON text as `bytes`; `None` as `meta`, `tag` or `node` means none.
    """

    data: Any
    tag: str | None = None
    node: str | None = None
    meta: Any = None


def new(data: object, tag: str | None = None, node: str | None = None, meta: object = None) -> NewRecord:
    """A record to write: `topics.new({"kg": 412.5}, tag="pallet:A19")`."""
    return NewRecord(data, tag, node, meta)


def as_record(row: object, tag: str | None = None, node: str | None = None, meta: object = None) -> NewRecord:
    """A value, or what `new` made, as a record to write."""
    return row if isinstance(row, NewRecord) else NewRecord(row, tag, node, meta)


class Producer(msgspec.Struct, frozen=True):
    """The name a write has among the writes of one producer [A-4]."""

    id: str
    epoch: int
    index: int

    @classmethod
    def parse(cls, value: Producer | Mapping[str, object], limits: Limits | None = None) -> Producer:
        """A checked producer from what a caller gave: an id of 1 to 128 bytes and two u64."""
        if isinstance(value, Producer):
            id, epoch, index = cast(object, value.id), value.epoch, value.index
        elif isinstance(value, Mapping):
            id, epoch, index = (value.get(name) for name in cls.__struct_fields__)  # type: ignore[assignment]
        else:
            raise CallerError("producer must be an object")
        most = (limits or Limits()).max_producer_bytes
        if not isinstance(id, str) or not 1 <= utf8_bytes(id, "producer.id") <= most:
            raise CallerError(f"producer.id must be a string of 1 to {most} bytes")
        return cls(id, check_u64(epoch, "producer.epoch"), check_u64(index, "producer.index"))


SELECTOR_BYTES_MAX: Final = 65_536
"""The longest tag that there can be, and a `*` behind it [S-40]."""


class Selector(NamedTuple):
    """Which tags a delete or a router picks. As a tuple it is the stored form: no `*` in a `Glob` [S-42]."""

    kind: Literal["Eq", "Glob"]
    value: str

    @classmethod
    def parse(cls, match: object) -> Selector:
        """`"x"`, `"x*"`, `["tag", "Eq", "x"]` or `["tag", "Glob", "x*"]` [DEL-2]."""
        if isinstance(match, Selector):
            return match
        if isinstance(match, str):
            match = ("tag", "Glob" if match.endswith("*") else "Eq", match)
        if not isinstance(match, (list, tuple)) or len(match) != 3 or not all(isinstance(part, str) for part in match):
            raise CallerError('match must be a string or ["tag", "Eq" or "Glob", value]')
        subject, operator, value = match
        if subject != "tag":
            raise CallerError('match selects by "tag" only')
        if utf8_bytes(value, "match") > SELECTOR_BYTES_MAX:
            raise CallerError(f"match must have at most {SELECTOR_BYTES_MAX} bytes: no tag is longer")
        if operator == "Eq":
            return cls("Eq", value)
        if operator != "Glob":
            raise CallerError('match knows "Eq" and "Glob"')
        if not value.endswith("*"):
            raise CallerError('a "Glob" value must end in *')
        return cls("Glob", value[:-1])

    def matches(self, tag: str | None) -> bool:
        """Whether a record with this tag is picked; one without never is [DEL-3]."""
        if tag is None:
            return False
        return tag == self.value if self.kind == "Eq" else tag.startswith(self.value)

    @property
    def text(self) -> str:
        """The value as a caller writes it: a `Glob` with its `*`."""
        return self.value if self.kind == "Eq" else self.value + "*"


Guarantee = Literal["at_least_once", "exactly_once"]


class RouterConfig(msgspec.Struct, frozen=True):
    """A router's definition (05 §1)."""

    source: str
    dest: str
    preserve_node: bool = True
    preserve_tag: bool = True
    create_dest: bool = True
    filter: Selector | None = None
    allow_cycle: bool = False
    guarantee: Guarantee = "at_least_once"

    @classmethod
    def parse(cls, config: RouterConfig | Mapping[str, object]) -> RouterConfig:
        """Check what a caller gave; members that are not known are passed over, absent ones take their defaults."""
        if isinstance(config, RouterConfig):
            return config
        if not isinstance(config, Mapping):
            raise CallerError("a router is defined by an object")
        given = {name: config[name] for name in cls.__struct_fields__ if name in config}
        for name in ("source", "dest"):
            if not isinstance(given.get(name), str):
                raise CallerError(f"{name} must be the name of a topic")
        for name in ("preserve_node", "preserve_tag", "create_dest", "allow_cycle"):
            if not isinstance(given.get(name, True), bool):
                raise CallerError(f"{name} must be true or false")
        if given.get("guarantee", "at_least_once") not in ("at_least_once", "exactly_once"):
            raise CallerError('guarantee must be "at_least_once" or "exactly_once"')
        if given.get("filter") is not None:
            given["filter"] = Selector.parse(given["filter"])
        return cls(**given)  # type: ignore[arg-type]


class RouterState(NamedTuple):
    """A router at one instant."""

    router: str
    config: RouterConfig
    forwarded_total: int
    """Copies made or found present, and holes for what the source lost [FWD-7]."""
    cursor: int
    """Highest seq of the source that is handled."""
    lag: int


def successor(prefix: bytes) -> bytes | None:
    """The least bytes above everything that starts with `prefix`; `None` where nothing is above [S-188]."""
    stem = prefix.rstrip(b"\xff")
    return stem[:-1] + bytes((stem[-1] + 1,)) if stem else None


class AppendResult(msgspec.Struct, frozen=True):
    """The answer to a write [WR-3]; an older write of a producer has no seqs and a count of 0 [A-4]."""

    first_seq: int | None
    last_seq: int | None
    head_seq: int
    count: int
    created: bool = False
    deduped: bool = False
    throttle_wait_ms: float | None = None
    """How long it waited for room in the log, if it did [D-52]."""

    @property
    def seqs(self) -> list[int] | None:
        """The seqs of the records in array order, consecutive [SEQ-2]."""
        if self.first_seq is None or self.last_seq is None:
            return None
        return list(range(self.first_seq, self.last_seq + 1))


class StageResult(msgspec.Struct, frozen=True):
    """The answer to a staged chunk [TXN-1]: how many records it has, and whether it was there already [TXN-2]."""

    staged: int
    deduped: bool = False


class CommittedTopic(msgspec.Struct, frozen=True):
    """What a commit brought to one topic [TXN-9]."""

    topic: str
    first_seq: int
    last_seq: int
    count: int
    created: bool = False
    attached: bool = False
    """As sealed segments, rather than through the log [TXN-8]."""


class CommitResult(msgspec.Struct, frozen=True):
    """The answer to a commit [TXN-7, TXN-9]."""

    version: int
    deduped: bool
    topics: tuple[CommittedTopic, ...]


class StagedVersion(msgspec.Struct, frozen=True):
    """What is staged for one version of a writer."""

    version: int
    parts: int
    bytes: int


class WriterState(msgspec.Struct, frozen=True):
    """A writer of staged commits [TXN-12]; `version` is the highest committed one, None before the first."""

    version: int | None
    topics: tuple[CommittedTopic, ...]
    committed_ts: int | None
    staged: tuple[StagedVersion, ...]


class AbortResult(msgspec.Struct, frozen=True):
    """The answer to an abort [TXN-11]."""

    state: Literal["aborted", "committed"]


class Checkpointed(msgspec.Struct, frozen=True):
    """What a full checkpoint came to [A-15]: topics whose records all lie in segments, segments that it sealed."""

    topics: int
    sealed: int


GapReason = Literal["cap", "ttl", "mixed", "source_trim", "corrupt", "crash", "recreated", "from_seq_too_old"]


class Gap(msgspec.Struct, frozen=True):
    """A tombstone: one contiguous range that was lost without being asked for (01 §10)."""

    gap_from: int
    gap_to: int
    reason: GapReason
    missed_estimate: int
    earliest_seq: int
    head_seq: int

    @classmethod
    def lost(cls, gap_from: int, gap_to: int, reason: GapReason, head_seq: int) -> Gap:
        """Everything from `gap_from` to `gap_to` is gone; what is left starts behind it."""
        return cls(gap_from, gap_to, reason, max(gap_to - gap_from + 1, 0), gap_to + 1, head_seq)

    @classmethod
    def recreated(cls, head_seq: int, earliest_seq: int) -> Gap:
        """The cursor is from another instance of the topic [EPO-3]."""
        return cls(1, head_seq, "recreated", head_seq, earliest_seq, head_seq)


class Record:
    """One record as read [S-354]; `data` and `meta` are decoded when first asked for. Do not change it [REC-1]."""

    __slots__ = ("_data", "_meta", "node", "raw_data", "raw_meta", "seq", "tag", "ts")

    def __init__(
        self,
        seq: int,
        ts: int,
        node: str | None,
        tag: str | None,
        raw_data: bytes,
        raw_meta: bytes | None = None,
    ) -> None:
        self.seq = seq
        self.ts = ts
        self.node = node
        self.tag = tag
        self.raw_data = raw_data
        self.raw_meta = raw_meta

    @property
    def data(self) -> Any:
        """The payload as a Python value."""
        try:
            return self._data
        except AttributeError:
            self._data: Any = _decode(self.raw_data)
            return self._data

    @property
    def meta(self) -> dict[str, Any] | None:
        """The metadata as a Python value, `None` without any."""
        try:
            return self._meta
        except AttributeError:
            self._meta: dict[str, Any] | None = None if self.raw_meta is None else _decode(self.raw_meta)
            return self._meta

    def _key(self) -> tuple[object, ...]:
        return self.seq, self.ts, self.node, self.tag, self.raw_data, self.raw_meta

    def __eq__(self, other: object) -> bool:
        return self._key() == other._key() if isinstance(other, Record) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key())

    def __repr__(self) -> str:
        parts = [f"seq={self.seq}", f"ts={self.ts}"]
        parts += [f"{name}={value!r}" for name in ("node", "tag") if (value := getattr(self, name)) is not None]
        parts.append(f"raw_data={self.raw_data!r}")
        if self.raw_meta is not None:
            parts.append(f"raw_meta={self.raw_meta!r}")
        return f"Record({', '.join(parts)})"


class TopicRecord(Record):
    """A record, and the topic that it is from: what a watch over several topics yields."""

    __slots__ = ("topic",)

    def __init__(
        self,
        topic: str,
        seq: int,
        ts: int,
        node: str | None,
        tag: str | None,
        raw_data: bytes,
        raw_meta: bytes | None = None,
    ) -> None:
        super().__init__(seq, ts, node, tag, raw_data, raw_meta)
        self.topic = topic

    def _key(self) -> tuple[object, ...]:
        return self.topic, *super()._key()

    def __repr__(self) -> str:
        return f"TopicRecord(topic={self.topic!r}, {super().__repr__().partition('(')[2]}"


class TopicGap(Gap, frozen=True, kw_only=True):
    """A gap, and the topic that it is in; at the first read its reason is `from_seq_too_old` [FRM-2]."""

    topic: str


class CaughtUp(msgspec.Struct, frozen=True):
    """A watch is at the head of a topic: once in the beginning, and again behind further records [FRM-4]."""

    topic: str
    head_seq: int


class TopicDeleted(msgspec.Struct, frozen=True):
    """A topic that was watched is gone; the others go on, and without any the watch ends [FRM-5]."""

    topic: str


Event = TopicRecord | TopicGap | CaughtUp | TopicDeleted
"""What a watch yields."""


def _decode(raw: bytes) -> Any:
    try:
        return msgspec.json.decode(raw)
    except msgspec.ValidationError:
        # Text is stored as written, also numbers beyond what Python's types take: those come back as ±inf.
        return json.loads(raw, parse_int=_integer)


def _integer(digits: str) -> int | float:
    try:
        return int(digits)
    except ValueError:
        return float(digits)


class ReadResult(msgspec.Struct, frozen=True):
    """The answer to a read [DIF-2]."""

    records: Sequence[Record]
    next_from_seq: int
    head_seq: int
    earliest_seq: int
    tombstone: Gap | None = None
    scanned: int = 0
    """Seqs that were looked at, delivered or not."""
    cold_segments_read: int = 0
    """Records whose bytes had to be fetched from the cold tier for this read [S-322]."""

    @property
    def caught_up(self) -> bool:
        """Whether nothing more was there at the time of the read [CUR-5]."""
        return self.next_from_seq == self.head_seq

    @property
    def lag(self) -> int:
        """Seqs between the cursor and the head [CUR-6]."""
        return self.head_seq - self.next_from_seq


class DeleteResult(msgspec.Struct, frozen=True):
    """The answer to a delete of records; all but `deleted` as it is afterwards [DLR-2]."""

    deleted: int
    earliest_seq: int
    head_seq: int
    count: int
    bytes: int


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job in the hands of whoever claimed it [CLM-6]; `data` and `meta` are decoded when asked for."""

    seq: int
    lease_id: str
    deadline: int
    """When the lease ends, in ms since the epoch."""
    ts: int
    deliveries: int
    """How often it was delivered, this time included [CLM-7]."""
    tag: str | None
    raw_data: bytes
    raw_meta: bytes | None

    @property
    def data(self) -> Any:
        """The payload as a Python value."""
        return _decode(self.raw_data)

    @property
    def meta(self) -> dict[str, Any] | None:
        """The metadata as a Python value, `None` without any."""
        return None if self.raw_meta is None else _decode(self.raw_meta)


class ClaimResult(msgspec.Struct, frozen=True):
    """The answer to a claim [CLM-5]; fewer jobs than asked for, also none, is normal [CLM-4]."""

    jobs: Sequence[Job]
    """By seq."""
    ready: int
    """Jobs that can be claimed now."""


class AckResult(msgspec.Struct, frozen=True):
    """The answer to an ack [ACK-6]."""

    acked: int
    skipped: Sequence[int]
    ready: int
    in_flight: int


class NackResult(msgspec.Struct, frozen=True):
    """The answer to a nack [NAK-3]."""

    nacked: int
    skipped: Sequence[int]
    ready: int
    in_flight: int


class ExtendResult(msgspec.Struct, frozen=True):
    """The answer to an extension [EXT-2]."""

    extended: int
    skipped: Sequence[int]
    deadlines: Mapping[int, int]


class HeldLease(msgspec.Struct, frozen=True):
    """An active lease [QOB-4]."""

    seq: int
    node: str
    lease_id: str
    deadline: int
    deliveries: int


class DelayedJob(msgspec.Struct, frozen=True):
    """A job that was nacked with a delay [QOB-4]."""

    seq: int
    ready_at: int


class LeasePage(msgspec.Struct, frozen=True):
    """Leases and delayed jobs of a queue, by seq [QOB-4]."""

    leases: Sequence[HeldLease]
    delayed: Sequence[DelayedJob]
    next_cursor: int | None
    """The seq behind which the next page begins; `None`: that was all."""


class TopicState(msgspec.Struct, frozen=True, kw_only=True):
    """A topic at one instant (01 §5) [TOP-6]; `queue` only on queues."""

    topic: str
    head_seq: int
    earliest_seq: int
    count: int
    bytes: int
    config: TopicConfig
    effective_priority: int = 0
    last_write_ts: int | None = None
    last_read_ts: int | None = None
    earliest_ts: int | None = None
    queue: Mapping[str, Any] | None = None

    @property
    def type(self) -> TopicType:
        """`log` or `queue`."""
        return self.config.type

    @property
    def next_seq(self) -> int:
        """The seq that the next record gets."""
        return self.head_seq + 1
