"""Every exception of the product, with a stable `code`; nothing here knows HTTP.

    TopicsError
    ├── CallerError          the caller's fault: correct the call
    ├── TimingError          right call, wrong moment: closed, in use, full
    ├── DiskError            the disk's fault: I/O failed or bytes are damaged
    ├── SettingsError        (CallerError) a TOPICS_* value that cannot be used
    ├── BatchTooLarge        (CallerError) more records or seqs than one call may carry
    ├── ProducerGap          (CallerError) a producer skipped an index; `epoch`, `index` are the kept ones
    ├── TxnCommitted         (CallerError) the version is committed; `version` is the highest that is
    ├── TxnIncomplete        (CallerError) a commit names parts that are not completely staged; `missing`
    ├── TxnConflict          (CallerError) a chunk was staged with other content, or one is skipped
    ├── TopicNotFound        (CallerError) no topic of that name
    ├── Forbidden            (CallerError) only the server may do this to a topic of its own
    ├── NotAQueue            (CallerError) a call for queues met a topic of another type
    ├── TopicExistsIncompatible (CallerError) the topic exists with another type
    ├── TopicNotEmpty        (CallerError) the topic was to be deleted only if empty
    ├── RouterNotFound       (CallerError) no router of that name
    ├── PinNotFound          (CallerError) no pin of that id: it has ended, or never was
    ├── RouterCycle          (CallerError) the router would close a cycle; `cycle` names the topics
    ├── RouterFanIn          (CallerError) the destination is fed by another source already
    ├── RouterRepoint        (CallerError) the router exists with another source or destination
    ├── TopicFull            (TimingError) a `discard: "reject"` topic has no room for this write
    ├── EngineClosed         (TimingError) the engine was closed, or belongs to another process
    ├── DataDirInUse         (TimingError) another engine has this data directory
    ├── LimitReached         (TimingError) a resource of the server is used up; `limit`, `max`
    ├── Unauthorized         (CallerError) the server wants a key that it knows
    ├── PayloadTooLarge      (CallerError) the request is larger than the server accepts
    ├── Unreachable          (TimingError) no server answers, or none of ours
    ├── ServerError          the server answered with an error that has no class here: `status`, `code`, `detail`
    ├── UnsupportedPlatform  (also ImportError) no flock, pread or directory sync here
    ├── WalFull              (TimingError) too many submissions wait for the log
    ├── StorageFull          (DiskError) no space; deletes still work, writes return when space is back
    ├── ShardReadOnly        (DiskError) an earlier failure latched this part of the log until restart
    ├── CommitFailed         (DiskError) this write's own commit failed: it may appear once, or never
    ├── StoreUnavailable     (DiskError) the cold tier cannot be reached, or cannot tell
    ├── ColdStoreMismatch    (DiskError) the cold tier belongs to another store
    ├── MetadataLost         (DiskError) topics exist that no snapshot and no complete log describes
    └── WalError             everything the log library raises [W-70]
        ├── WalIo                (DiskError) an operation of the system failed; `error` is the OSError
        ├── RecordError          (DiskError) bytes that are no record
        │   ├── Incomplete  CrcMismatch  InvalidFlags  InvalidCompression
        │   └── CompressionFailed  DecompressionFailed  VarintOverflow
        ├── SegmentNotFound      (CallerError)      ├── RecordTooLarge  (CallerError)
        ├── InvalidConfig        (CallerError)      ├── WriteFailed     (DiskError)
        ├── WalReadOnly          (DiskError)        ├── WalClosed       (TimingError)
        ├── WalInUse             (TimingError)      ├── WalCorrupt      (DiskError)
        ├── UnsupportedFormat    (DiskError)        └── IllegalTransition   a bug of ours

The three branches say who must act; the subsystem bases say where it happened.
"""

from __future__ import annotations

from typing import ClassVar, Final

UNEXPECTED: Final = "an unexpected error"
"""What a bug is called in the log, where it has its traceback, and to whoever asked [ERR-6]."""
UNEXPECTED_TOLD: Final = f"{UNEXPECTED}; the log of the process has it"


class TopicsError(Exception):
    """Base of everything this package raises on purpose."""

    code: ClassVar[str] = "internal"


class CallerError(TopicsError):
    """The call was wrong; repeating it unchanged fails again."""

    code = "invalid_request"


class TimingError(TopicsError):
    """The call was right, the moment was not; it may work later."""

    code = "not_ready"


class DiskError(TopicsError):
    """The disk refused or returned damaged bytes."""

    code = "storage_error"


class SettingsError(CallerError):
    """A setting that cannot be parsed or lies outside its range (09 §6)."""

    code = "invalid_setting"

    def __init__(self, name: str, message: str) -> None:
        super().__init__(f"{name}: {message}")
        self.name = name


class UnsupportedPlatform(TopicsError, ImportError):
    """This platform lacks flock, pread/pwrite or directory syncs [W-12]."""

    code = "unsupported_platform"


class WalError(TopicsError):
    """Base of everything `topics.wal` raises."""

    code = "wal_error"


class WalIo(WalError, DiskError):
    """A system call failed in a place without a more telling error."""

    code = "wal_io"

    def __init__(self, error: OSError, doing: str = "") -> None:
        super().__init__(f"{doing}: {error}" if doing else str(error))
        self.error = error


class RecordError(WalError, DiskError):
    """Bytes that do not decode to a record [W-32]."""

    code = "bad_record"


class Incomplete(RecordError):
    """The buffer ends before the record does."""

    code = "incomplete"


class CrcMismatch(RecordError):
    """The stored checksum is not that of the bytes."""

    code = "crc_mismatch"

    def __init__(self, expected: int, actual: int) -> None:
        super().__init__(f"checksum mismatch: stored {expected:08x}, computed {actual:08x}")
        self.expected = expected
        self.actual = actual


class InvalidFlags(RecordError):
    """Reserved flag bits are set."""

    code = "invalid_flags"


class InvalidCompression(RecordError):
    """The compression field names no known method."""

    code = "invalid_compression"


class CompressionFailed(RecordError):
    """The value could not be compressed; nothing was written [W-31]."""

    code = "compression_failed"


class DecompressionFailed(RecordError):
    """The stored value does not decompress."""

    code = "decompression_failed"


class VarintOverflow(RecordError):
    """A varint longer than ten bytes, or whose tenth is above 1 [W-30]."""

    code = "varint_overflow"


class SegmentNotFound(WalError, CallerError):
    """The segment does not exist or was deleted."""

    code = "segment_not_found"

    def __init__(self, segment_id: int) -> None:
        super().__init__(f"segment {segment_id} does not exist or was deleted")
        self.segment_id = segment_id


class RecordTooLarge(WalError, CallerError):
    """A record or batch that no segment can hold [W-13]."""

    code = "record_too_large"

    def __init__(self, size: int, max: int) -> None:
        super().__init__(f"{size} bytes do not fit a segment of {max}")
        self.size = size
        self.max = max


class InvalidConfig(WalError, CallerError):
    """A configuration field breaks its rule; nothing on disk was touched [W-40]."""

    code = "invalid_config"

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class WriteFailed(WalError, DiskError):
    """A write was refused and taken back; `full` says that space was the cause (07 §1.4)."""

    code = "write_failed"

    def __init__(self, message: str, *, full: bool) -> None:
        super().__init__(message)
        self.full = full


class WalReadOnly(WalError, DiskError):
    """An earlier failure latched the log: it reads, it does not write [W-17]."""

    code = "wal_read_only"


class WalClosed(WalError, TimingError):
    """The log was closed."""

    code = "wal_closed"


class WalInUse(WalError, TimingError):
    """Another process or object holds the log's lock [W-50]."""

    code = "wal_in_use"


class WalCorrupt(WalError, DiskError):
    """Bytes known to have been durable are damaged, and the caller asked not to go on."""

    code = "wal_corrupt"


class UnsupportedFormat(WalError, DiskError):
    """Intact bytes that this version cannot interpret; nothing was changed [S-7]."""

    code = "unsupported_format"


class IllegalTransition(WalError):
    """A segment was asked to change state in a way that cannot happen [W-10]."""

    code = "illegal_transition"


class MetadataLost(DiskError):
    """What the store knows about its topics cannot be read any more; nothing was changed [S-216]."""

    code = "metadata_lost"


class BatchTooLarge(CallerError):
    """More records in a write, or seqs in a call, than one may carry (01 §1.1, 02 §1.9)."""

    code = "batch_too_large"

    def __init__(self, count: int, max: int) -> None:
        super().__init__(f"{count} in one call; at most {max} are accepted")
        self.count = count
        self.max = max


class ProducerGap(CallerError):
    """A producer's index skips one; `epoch` and `index` are the pair kept for it [A-4]."""

    code = "producer_gap"

    def __init__(self, epoch: int, index: int) -> None:
        super().__init__(f"the newest write of this producer is index {index} of epoch {epoch}")
        self.epoch = epoch
        self.index = index


class TxnCommitted(CallerError):
    """The version, or a higher one, is committed: nothing more can be staged for it [TXN-3]."""

    code = "txn_committed"

    def __init__(self, version: int) -> None:
        super().__init__(f"version {version} of this writer is committed")
        self.version = version


class TxnIncomplete(CallerError):
    """A commit names parts that are not, or not completely, staged; `missing` are some of them [TXN-5]."""

    code = "txn_incomplete"

    def __init__(self, missing: list[str]) -> None:
        super().__init__("not completely staged: " + ", ".join(missing))
        self.missing = missing


class TxnConflict(CallerError):
    """A chunk was staged before with other content, or its number skips one; `expected` is the next [TXN-2]."""

    code = "txn_conflict"

    def __init__(self, part: str, expected: int, message: str) -> None:
        super().__init__(f"part {part!r}: {message}")
        self.part = part
        self.expected = expected


class TopicNotFound(CallerError):
    """No topic has this name."""

    code = "topic_not_found"

    def __init__(self, topic: str) -> None:
        super().__init__(f"there is no topic {topic!r}")
        self.topic = topic


class Forbidden(CallerError):
    """The topic is the server's own: only it may do this [A-14]."""

    code = "forbidden"

    def __init__(self, topic: str, message: str) -> None:
        super().__init__(message)
        self.topic = topic


class NotAQueue(CallerError):
    """The topic is a log: it has no jobs [QUE-3]."""

    code = "not_a_queue"

    def __init__(self, topic: str) -> None:
        super().__init__(f"topic {topic!r} is not a queue")
        self.topic = topic


class TopicExistsIncompatible(CallerError):
    """The topic exists with another type; nothing was changed [CFG-2]."""

    code = "topic_exists_incompatible"

    def __init__(self, topic: str, existing_type: str, requested_type: str) -> None:
        super().__init__(f"topic {topic!r} is a {existing_type}, not a {requested_type}")
        self.topic = topic
        self.existing_type = existing_type
        self.requested_type = requested_type


class TopicNotEmpty(CallerError):
    """The topic was to be deleted only if it holds nothing; nothing was removed [TOP-12]."""

    code = "topic_not_empty"

    def __init__(self, topic: str, count: int) -> None:
        super().__init__(f"topic {topic!r} holds {count} records")
        self.topic = topic
        self.count = count


class RouterNotFound(CallerError):
    """No router has this name."""

    code = "router_not_found"

    def __init__(self, router: str) -> None:
        super().__init__(f"there is no router {router!r}")
        self.router = router


class PinNotFound(CallerError):
    """No pin has this id: it has ended, or never was [A-8]."""

    code = "not_found"

    def __init__(self, pin: str) -> None:
        super().__init__(f"there is no pin {pin!r}")
        self.pin = pin


class RouterCycle(CallerError):
    """The router would close a cycle and `allow_cycle` is off; nothing was changed [CYC-1]."""

    code = "router_cycle"

    def __init__(self, cycle: list[str]) -> None:
        super().__init__("the router would close a cycle: " + " -> ".join(cycle))
        self.cycle = cycle


class RouterFanIn(CallerError):
    """The destination has another source already; nothing was changed [RTR-16]."""

    code = "topic_exists_incompatible"

    def __init__(self, topic: str, source: str) -> None:
        super().__init__(f"topic {topic!r} is fed from {source!r} already; a topic has one source at most")
        self.topic = topic
        self.source = source
        self.reason = "router_dest_fan_in"


class RouterRepoint(CallerError):
    """The router exists with another source or destination; delete and create it instead [RTR-7]."""

    code = "topic_exists_incompatible"

    def __init__(self, router: str, existing_source: str, existing_dest: str) -> None:
        super().__init__(f"router {router!r} goes from {existing_source!r} to {existing_dest!r}, which cannot change")
        self.router = router
        self.existing_source = existing_source
        self.existing_dest = existing_dest
        self.reason = "router_repoint_forbidden"


class TopicFull(TimingError):
    """A topic that rejects when it is full has no room for this write; nothing was appended [CAP-3]."""

    code = "topic_full"

    def __init__(self, topic: str, cap_records: int, cap_bytes: int, head_seq: int, earliest_seq: int) -> None:
        super().__init__(f"topic {topic!r} is full")
        self.topic = topic
        self.cap_records = cap_records
        self.cap_bytes = cap_bytes
        self.head_seq = head_seq
        self.earliest_seq = earliest_seq


class EngineClosed(TimingError):
    """The engine was closed, or was opened by another process [S-11]."""

    code = "shutting_down"


class DataDirInUse(TimingError):
    """Another engine holds the lock of this data directory [S-11]."""

    code = "data_dir_in_use"


class LimitReached(TimingError):
    """A resource of the server is used up: `limit` names it, `max` is its bound (09 §5)."""

    code = "throttled"

    def __init__(self, limit: str, max: int) -> None:
        super().__init__(f"{limit}: {max} are in use already")
        self.limit = limit
        self.max = max


class WalFull(TimingError):
    """The log's bounded queue is full [S-71]; `retry_after_ms` says when it is worth trying again [D-51]."""

    code = "throttled"

    def __init__(self, message: str, retry_after_ms: int = 100) -> None:
        super().__init__(message)
        self.retry_after_ms = retry_after_ms


class StorageFull(DiskError):
    """The volume has no space for more records [S-80]."""

    code = "not_ready"


class ShardReadOnly(DiskError):
    """A failed sync or write latched the shard for the rest of the run [S-78]."""

    code = "not_ready"


class CommitFailed(DiskError):
    """The commit of this very write failed; nothing of it is visible, and it is indeterminate [R-6]."""

    code = "internal"


class StoreUnavailable(DiskError):
    """The cold tier cannot be reached or cannot tell; nothing is known to be lost [S-318, S-323]."""

    code = "not_ready"


class StoreDenied(StoreUnavailable):
    """The cold tier answers, and does not permit this."""

    code = "not_ready"


class ColdStoreMismatch(DiskError):
    """The cold tier holds the segments of another store; nothing was changed [S-14]."""

    code = "cold_store_mismatch"


class Unauthorized(CallerError):
    """The server has keys, and the one that was presented is none of them [API-7]."""

    code = "unauthorized"


class PayloadTooLarge(CallerError):
    """The request is larger than the server accepts [API-15]; send fewer records at once."""

    code = "payload_too_large"


class Unreachable(TimingError):
    """No server answers there, or what answers is none. A write that was on its way may have been done [U-21]."""

    code = "unreachable"


class ServerError(TopicsError):
    """The server answered with an error that has no class of its own: `code` and `detail` are what it said."""

    code = "internal"

    def __init__(self, status: int, code: str, message: str, detail: object = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # type: ignore[misc]
        self.detail = detail
