"""From what a caller writes to what is stored: envelopes, and every limit of 01 §1.1.

A write is prepared whole or refused whole [REC-15]. `_one` is the rule for one record; `_all_at_once` does the same
for a batch with a handful of calls into msgspec, `_parsed` for what a request body was decoded into. Both leave the
batch to `_one` whenever anything is out of the ordinary, so that the first fault in array order is the one reported
[WR-1].

    order    empty, too many, key, batch node, then per record: members, JSON, record, meta, members of meta, tag, node
    code     `invalid_request` (CallerError), `batch_too_large`, `record_too_large`

Pure functions, before anything is staged; any thread.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from topics.codec import envelope, frame, kernel, offsets, segment
from topics.errors import BatchTooLarge, CallerError, RecordTooLarge
from topics.model import Limits, NewRecord, utf8_bytes

Given = NewRecord | Mapping[str, object]
"""One record of a write: `topics.new(…)`, or a mapping with the members of 02 §4."""

_SPLICED = (bytes, msgspec.Raw)
_NESTED_BYTES: Final = 2 * envelope.NESTING_MAX
"""Shorter texts cannot be nested too deeply: each level has two brackets."""
_BATCH_MIN: Final = 4
"""Records from which on the batch is quicker."""
_RUN_RECORDS: Final = 128
STEP_RECORDS: Final = 32
STEP_BYTES: Final = 32 << 10
"""What is gone through in about 50 µs."""
_TEXTS = msgspec.json.Decoder(list[msgspec.Raw])
_ENTRY = struct.Struct("<IIQI")


class IllTyped(CallerError):
    """What was given is no record: a payload that is not JSON, or a member of a wrong type [API-11]."""


class ParsedRecord(NewRecord, frozen=True):
    """A record of a JSON text that was decoded whole and is valid UTF-8: its payloads need no second look."""

    data: msgspec.Raw
    tag: str | None = None
    node: str | None = None
    meta: msgspec.Raw = msgspec.Raw()


class Prepared(NamedTuple):
    """A write that may be staged: one item per record in each list."""

    nodes: list[str | None]
    tags: list[str | None]
    envelopes: list[bytes]
    accounted: list[int]
    """Canonical bytes of data and meta [REC-12]."""
    total: int

    @property
    def records(self) -> int:
        """How many there are."""
        return len(self.tags)

    @property
    def writes(self) -> int:
        """It is one."""
        return 1

    @property
    def has_tags(self) -> bool:
        """Whether any record has a tag."""
        return any(tag is not None for tag in self.tags)

    def rows(self) -> list[tuple[str | None, str | None, bytes]]:
        """The records as `codec.frame.encode_appends` takes them."""
        return list(zip(self.nodes, self.tags, self.envelopes, strict=True))

    def framed(
        self, topic_id: int, first_seq: int, ts: int, flags: int, more: bool, begin: int = 0, end: int | None = None
    ) -> tuple[bytes, bytes, bytes]:
        """WAL frames of some records, all by default, where each begins (codec.offsets), and their index entries.

        `flags` may be `DURABLE`; `more` says that the submission goes on. `ValueError` for a value that fits no frame.
        """
        chosen = self if not begin and end is None else self._part(begin, end)
        durable = bool(flags & frame.DURABLE)
        frames = frame.encode_appends(chosen.rows(), topic_id, first_seq, ts, durable=durable, more=more)
        entries: list[bytes] = []
        begins: list[int] = []
        behind = chosen._add_entries(ts, entries, begins)
        assert len(frames) == behind, "readers go by these places"
        return frames, offsets.pack(begins), b"".join(entries)

    def _add_entries(self, ts: int, entries: list[bytes], begins: list[int]) -> int:
        """Index entries of the records, and where their frames begin behind each other; where they end."""
        pack, at = _ENTRY.pack, 0
        for node, tag, stored, accounted in zip(*self[:4], strict=True):
            flags = 0
            size = segment.FRAME_BYTES_MIN + len(stored)
            if tag is not None:
                flags = segment.HAS_TAG
                size += len(tag) if tag.isascii() else len(tag.encode())
            if node is not None:
                flags |= segment.HAS_NODE
                size += len(node) if node.isascii() else len(node.encode())
            entries.append(pack(0, size, ts, flags | size - accounted << 8))
            begins.append(at)
            at += size + (frame.FRAME_BYTES_MIN - segment.FRAME_BYTES_MIN)
        return at

    def _part(self, begin: int, end: int | None) -> Prepared:
        nodes, tags, envelopes, accounted, _ = self
        sizes = accounted[begin:end]
        return Prepared(nodes[begin:end], tags[begin:end], envelopes[begin:end], sizes, sum(sizes))

    def runs(self) -> Iterator[Prepared]:
        """The same write, a few records at a time."""
        for begin, end in steps(self.accounted):
            yield self._part(begin, end)


Sole = Prepared | kernel.Written
"""The records of a write, in Python or as the kernel keeps them."""


class Joined:
    """Writes to one topic that are staged as one: each is whole in the log or not there at all.

    Each is a chain of its own there, unless something follows that belongs to all of them.
    """

    __slots__ = ("_parts", "has_tags", "records", "total")

    def __init__(self, parts: Sequence[Sole]) -> None:
        self._parts = parts
        self.records = sum([part.records for part in parts])
        self.total = sum([part.total for part in parts])
        self.has_tags = any(part.has_tags for part in parts)

    @property
    def writes(self) -> int:
        """How many there are."""
        return len(self._parts)

    @property
    def tags(self) -> list[str | None]:
        """Of all records."""
        return [tag for part in self._parts for tag in part.tags]

    @property
    def envelopes(self) -> list[bytes]:
        """Of all records."""
        return [stored for part in self._parts for stored in part.envelopes]

    @property
    def accounted(self) -> list[int]:
        """Of all records."""
        return [size for part in self._parts for size in part.accounted]

    def framed(
        self, topic_id: int, first_seq: int, ts: int, flags: int, more: bool, begin: int = 0, end: int | None = None
    ) -> tuple[bytes, bytes, bytes]:
        """As of one write, always of all of them.

        With `more` they are one chain with what follows: a router's mark speaks of all of them, and of the copies in
        front [S-212 c].
        """
        assert not begin
        assert end is None
        frames: list[bytes] = []
        begins: list[tuple[int, bytes]] = []
        entries: list[bytes] = []
        at = 0
        for part in self._parts:
            made, places, rows = part.framed(topic_id, first_seq, ts, flags, more)
            frames.append(made)
            begins.append((at, places))
            entries.append(rows)
            at += len(made)
            first_seq += part.records
        return b"".join(frames), offsets.shifted(begins), b"".join(entries)


Ready = Sole | Joined | kernel.Run
"""What is staged at once: one write, or several."""


def steps(
    accounted: list[int], step_records: int = STEP_RECORDS, step_bytes: int = STEP_BYTES
) -> Iterator[tuple[int, int]]:
    """From where to where records are gone through at a time."""
    at, most = 0, len(accounted)
    while at < most:
        end, total = at, 0
        while end < most and end - at < step_records and (end == at or total + accounted[end] <= step_bytes):
            total += accounted[end]
            end += 1
        yield at, end
        at = end


NOTHING: Final = Prepared([], [], [], [], 0)


def prepare(
    records: Iterable[Given], limits: Limits, batch_node: str | None = None, idempotency_key: str | None = None
) -> Prepared:
    """Check and encode the records of one write; nothing of it was done if this raises."""
    items = _listed(records)
    _check(len(items), limits, batch_node, idempotency_key)
    prepared = None
    if type(items[0]) is ParsedRecord:
        prepared = _parsed(cast("list[ParsedRecord]", items), limits, batch_node)
    elif len(items) >= _BATCH_MIN:
        prepared = _in_runs(items, limits, batch_node)
    return prepared or _one_by_one(items, limits, batch_node)


def prepare_in_steps(
    runs: list[list[ParsedRecord]], limits: Limits, batch_node: str | None = None, idempotency_key: str | None = None
) -> Generator[None, None, Prepared]:
    """The same for one body's records, which come in several lists and are taken out of them."""
    try:
        _check(sum(map(len, runs)), limits, batch_node, idempotency_key)
        made = Prepared([], [], [], [], 0)
        runs.reverse()
        while runs:
            for run in _few(runs.pop()):
                at = len(made.tags)
                part = _parsed(run, limits, batch_node) or _one_by_one(run, limits, batch_node, at)
                for all_of_it, more in zip(made[:4], part[:4], strict=True):
                    all_of_it += more  # type: ignore[operator]
                yield
        return made._replace(total=sum(made.accounted))
    finally:
        runs.clear()


def _few(run: list[ParsedRecord]) -> Iterator[list[ParsedRecord]]:
    """As many as one step takes: a piece of a body is no longer than that, but it may be of many small records."""
    for at in range(0, len(run), STEP_RECORDS):
        yield run[at : at + STEP_RECORDS]


def _check(count: int, limits: Limits, batch_node: str | None, idempotency_key: str | None) -> None:
    if not count:
        raise CallerError("a write needs at least one record")
    if count > limits.max_batch_records:
        raise BatchTooLarge(count, limits.max_batch_records)
    if idempotency_key is not None:
        check_key(idempotency_key, limits)
    _check_text(batch_node, "node", limits.max_node_bytes)


def check_key(key: object, limits: Limits) -> None:
    """An idempotency key is a string of 1 to 256 bytes (01 §1.1) [API-27]."""
    _check_text(key, "idempotency_key", limits.max_key_bytes)
    if not key:
        raise CallerError("idempotency_key must not be empty")


def _listed(records: Iterable[Given]) -> Sequence[Given]:
    if isinstance(records, (list, tuple)):
        return records
    if isinstance(records, (str, Mapping, NewRecord, *envelope.RAW)) or not isinstance(records, Iterable):
        raise CallerError("records must be a list of records")
    return list(records)


def _in_runs(items: Sequence[Given], limits: Limits, batch_node: str | None) -> Prepared | None:
    """`_all_at_once`, run by run: a call that goes through megabytes keeps the interpreter from everybody else."""
    if len(items) <= _RUN_RECORDS:
        return _all_at_once(items, limits, batch_node)
    nodes, tags, envelopes, accounted = [], [], [], []
    for at in range(0, len(items), _RUN_RECORDS):
        run = _all_at_once(items[at : at + _RUN_RECORDS], limits, batch_node)
        if run is None:
            return None
        nodes += run.nodes
        tags += run.tags
        envelopes += run.envelopes
        accounted += run.accounted
    return Prepared(nodes, tags, envelopes, accounted, sum(accounted))


def _all_at_once(items: Sequence[Given], limits: Limits, batch_node: str | None) -> Prepared | None:
    """The whole batch, or `None` for `_one_by_one` to decide."""
    tag_max, node_max = limits.max_tag_bytes, limits.max_node_bytes
    values: list[Any] = []
    tags: list[str | None] = []
    nodes: list[str | None] = []
    metas: list[Any] = []
    with_meta: list[int] = []
    try:
        for record in items:
            if type(record) is dict:
                value = record["data"]
                get = record.get
                tag, node, meta = get("tag"), get("node"), get("meta")
            elif isinstance(record, NewRecord):
                value, tag, node, meta = record.data, record.tag, record.node, record.meta
            else:
                return None
            if tag is not None and (type(tag) is not str or not _fits(tag, tag_max)):
                return None
            if node is None:
                node = batch_node
            elif type(node) is not str or not _fits(node, node_max):
                return None
            if not _is_absent(meta):
                with_meta.append(len(values))
                metas.append(meta)
            values.append(value)
            tags.append(tag)
            nodes.append(node)
        datas, meta_texts = _texts(values), _texts(metas)
    except (KeyError, ValueError, TypeError, RecursionError):
        return None
    if datas is None or meta_texts is None:
        return None
    envelopes = [b'{"d":%b}' % data for data in datas]
    accounted = list(map(len, datas))
    for at, text in zip(with_meta, meta_texts, strict=True):
        if text[0] != ord("{") or len(text) > limits.max_meta_bytes or not _members_fit(text, limits):
            return None
        envelopes[at] = envelope.build(datas[at], text)
        accounted[at] += len(text)
    if max(accounted) > limits.max_record_bytes:
        return None
    return Prepared(nodes, tags, envelopes, accounted, sum(accounted))


def _parsed(items: list[ParsedRecord], limits: Limits, batch_node: str | None) -> Prepared | None:
    """Records of one body; None where `_one` has to say what is wrong, or decide about meta."""
    tag_max, node_max, most = limits.max_tag_bytes, limits.max_node_bytes, limits.max_record_bytes
    nodes: list[str | None] = []
    tags: list[str | None] = []
    envelopes: list[bytes] = []
    accounted: list[int] = []
    for record in items:
        data, tag, node = bytes(record.data), record.tag, record.node
        if len(record.meta):
            return None
        if b" " in data or b"\n" in data or b"\t" in data or b"\r" in data:
            data = msgspec.json.format(data, indent=-1)
        size = len(data)
        if size > most or (size > _NESTED_BYTES and data.count(b"[") + data.count(b"{") > envelope.NESTING_MAX):
            return None
        if tag is not None and not _fits(tag, tag_max):
            return None
        if node is None:
            node = batch_node
        elif not _fits(node, node_max):
            return None
        nodes.append(node)
        tags.append(tag)
        envelopes.append(b'{"d":%b}' % data)
        accounted.append(size)
    return Prepared(nodes, tags, envelopes, accounted, sum(accounted))


def _fits(text: str, most: int) -> bool:
    return len(text) <= most if text.isascii() else len(text.encode()) <= most


def _is_absent(meta: Any) -> bool:
    # A struct decoded from a request body has an empty Raw where there was no meta, and a Raw `null` for null.
    return meta is None or (type(meta) is msgspec.Raw and bytes(meta) in (b"", b"null"))


def _texts(values: list[Any]) -> list[bytes] | None:
    """Canonical text of each value by encoding them as one array; `None` where that proves nothing.

    A text that was given raw must be found in the array where it was put, with the length it had: then it is one JSON
    value of its own, and what it becomes without whitespace is found in the same place of the compact array.
    """
    if not values:
        return []
    if any(kind not in _SPLICED and issubclass(kind, envelope.RAW) for kind in set(map(type, values))):
        return None
    array = msgspec.json.encode([msgspec.Raw(value) if type(value) is bytes else value for value in values])
    if not array.isascii():
        array.decode()
    given = _TEXTS.decode(array)
    if len(given) != len(values):
        return None
    compact = msgspec.json.format(array, indent=-1)
    texts = list(map(bytes, given if len(compact) == len(array) else _TEXTS.decode(compact)))
    for at, (value, text) in enumerate(zip(values, texts, strict=True)):
        if type(value) in _SPLICED:
            if len(value) != len(given[at]):
                return None
        # msgspec writes NaN and infinities as null, and they do not come back as what they were.
        elif b"null" in text and msgspec.json.decode(text) != value:
            texts[at] = envelope.encode_value(value)
        if len(text) > _NESTED_BYTES and text.count(b"[") + text.count(b"{") > envelope.NESTING_MAX:
            texts[at] = envelope.canonical(text)
    return texts


def _one_by_one(items: Sequence[Given], limits: Limits, batch_node: str | None, first: int = 0) -> Prepared:
    nodes, tags, envelopes, accounted = [], [], [], []
    for at, record in enumerate(items, first):
        node, tag, stored, size = _one(f"records[{at}]", record, limits, batch_node)
        nodes.append(node)
        tags.append(tag)
        envelopes.append(stored)
        accounted.append(size)
    return Prepared(nodes, tags, envelopes, accounted, sum(accounted))


def _one(
    where: str, record: Given, limits: Limits, batch_node: str | None
) -> tuple[str | None, str | None, bytes, int]:
    """Node, tag, envelope and accounted size of one record."""
    value, tag, node, meta = _members(where, record)
    data = _text(f"{where}.data", value)
    meta_text = None if _is_absent(meta) else _text(f"{where}.meta", meta)
    if meta_text == b"null":
        meta_text = None
    if meta_text is not None and not meta_text.startswith(b"{"):
        raise IllTyped(f"{where}.meta must be an object")
    size = len(data) + (0 if meta_text is None else len(meta_text))
    if size > limits.max_record_bytes:
        raise _too_large(where, size, limits.max_record_bytes)
    if meta_text is not None:
        if len(meta_text) > limits.max_meta_bytes:
            raise CallerError(f"{where}.meta has {len(meta_text)} bytes; at most {limits.max_meta_bytes} are accepted")
        if not _members_fit(meta_text, limits):
            raise CallerError(f"{where}.meta has more than {limits.max_meta_members} members")
    tag = _check_text(tag, f"{where}.tag", limits.max_tag_bytes)
    node = _check_text(node, f"{where}.node", limits.max_node_bytes)
    return batch_node if node is None else node, tag, envelope.build(data, meta_text), size


def _members(where: str, record: Given) -> tuple[Any, Any, Any, Any]:
    if isinstance(record, NewRecord):
        return record.data, record.tag, record.node, record.meta
    if not isinstance(record, Mapping):
        raise CallerError(f"{where} must be an object; topics.new(…) makes one of a value")
    if "data" not in record:
        raise CallerError(f"{where}.data is missing")
    return record["data"], record.get("tag"), record.get("node"), record.get("meta")


def _text(where: str, value: Any) -> bytes:
    try:
        return envelope.text_of(value)
    except (ValueError, TypeError) as error:
        raise IllTyped(f"{where} is not JSON: {error}") from error


def _members_fit(meta: bytes, limits: Limits) -> bool:
    """Whether an object has few enough top-level members, repeated ones counted as often as they are written."""
    if meta.count(b":") <= limits.max_meta_members:
        return True
    members: int = json.loads(meta, object_pairs_hook=len, parse_int=len, parse_float=len)
    return members <= limits.max_meta_members


def _check_text(text: Any, where: str, most: int) -> str | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise CallerError(f"{where} must be a string")
    if (size := utf8_bytes(text, where)) > most:
        raise CallerError(f"{where} has {size} bytes; at most {most} are accepted")
    return text


def _too_large(where: str, size: int, most: int) -> RecordTooLarge:
    error = RecordTooLarge(size, most)
    # The class words it for the log library, where the bound is a segment's.
    error.args = (f"{where} has {size} bytes; at most {most} are accepted",)
    return error
