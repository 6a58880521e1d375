"""`topics wal dump`: the records of a log, or the frames of a server's WAL, one line each.

    0:17  put     "hello" = "world"                          library: SEG:OFFSET, what, key, value
    shard-01/3:46  Append  topic 10  seq 1  ts 17…  {"d":1}   server: GROUP/FILE:OFFSET, type, fields, data

For people, bytes that are printable UTF-8 stand in quotes, other bytes as `0x…`, and long ones are shortened. Under
`--json` nothing is shortened: a member such as `key` holds text, or `key_base64` stands in its place when the bytes
are not UTF-8; an Append's `data` is its envelope as it is stored, a control frame's `body` a map of named fields.

A segment is printed up to its first bad record; stderr says so and the next segment follows. Reading on behind
damage is `--from` with the offset of a later record. One segment is in memory at a time. Runs on the main thread.
"""

from __future__ import annotations

import base64
import itertools
import json
import math
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from topics.cli.wal_survey import (
    Fault,
    Group,
    counted,
    find_groups,
    hole_fault,
    holes,
    judge,
    list_ids,
    places,
    read_whole,
    reason_of,
    type_name,
)
from topics.codec.scan import Place, zero_tail
from topics.errors import CallerError, DecompressionFailed, SegmentNotFound
from topics.fs import Fs
from topics.wal.record import COMPRESSION, Record, decode, parse_head

if TYPE_CHECKING:
    from topics.codec.frame import Frame

Start = tuple[str, int, int]
"""Group, segment and offset."""

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_SHOWN_MAX = 100
"""Characters of a value, for people."""

Line = str
Lines = Callable[[memoryview, int, int, str, bool], Iterator[Line]]


class NotAPosition(CallerError):
    """Nothing begins where the dump was to start."""

    code = "not_a_position"


def dump(fs: Fs, root: str, start: Start | None, limit: int | None, *, as_json: bool, quiet: bool) -> int:
    """Print up to `limit` lines from `start` on; the exit status."""
    groups = find_groups(fs, root)
    if start is not None:
        groups = _from_group(groups, start)
    teller = _Teller(as_json, quiet)
    starts = itertools.chain((start,), itertools.repeat(None))
    lines = (_group_lines(fs, group, at, as_json, teller) for group, at in zip(groups, starts, strict=False))
    for line in itertools.islice(itertools.chain.from_iterable(lines), limit):
        print(line)
    return teller.status


class _Teller:
    """Says on stderr where lines are missing, and remembers whether damage is the reason."""

    def __init__(self, as_json: bool, quiet: bool) -> None:
        self.as_json = as_json
        self.quiet = quiet
        self.status = 0

    def tell(self, fault: Fault) -> None:
        if fault.kind != "torn":
            self.status = 1
        if self.as_json:
            print(json.dumps({"stopped": fault._asdict()}), file=sys.stderr)
        elif not self.quiet or fault.kind != "torn":
            place = "" if fault.offset is None else f" at {fault.offset}"
            print(f"topics: {fault.kind}: {fault.file}{place}: {fault.reason}", file=sys.stderr)


def _from_group(groups: list[Group], start: Start) -> list[Group]:
    """The groups from the one that `start` names."""
    key = start[0]
    for number, group in enumerate(groups):
        if group.key == key:
            return groups[number:]
    known = ", ".join(f"{group.key}/SEG:OFFSET" if group.key else "SEG:OFFSET" for group in groups)
    raise NotAPosition(f"{key or 'a position without a group'} names none of: {known}")


def _group_lines(fs: Fs, group: Group, start: Start | None, as_json: bool, teller: _Teller) -> Iterator[Line]:
    first, offset = (0, 0) if start is None else start[1:]
    ids = list_ids(fs, group)
    if start is not None and first not in ids:
        raise SegmentNotFound(first)
    before: int | None = None
    for id, place in places(fs, group, ids).items():
        if id < first or place == "beyond":
            continue
        for hole in [] if before is None else holes(fs, group, (before, id)):
            teller.tell(hole_fault(group, *hole))
        before = id
        try:
            yield from _segment_lines(fs, group, id, place, offset if id == first else 0, as_json, teller)
        except FileNotFoundError:
            continue  # deleted meanwhile
        except OSError as error:
            teller.tell(Fault(group.shown(id), None, "unreadable", str(error)))


def _segment_lines(
    fs: Fs, group: Group, id: int, place: Place, at: int, as_json: bool, teller: _Teller
) -> Iterator[Line]:
    data, scan = judge(partial(read_whole, fs, group.path(id)), group.codec(), place, at)
    view = memoryview(data)
    reason = reason_of(group.kind, place, scan)
    if at > len(data):
        raise NotAPosition(f"{group.shown(id)} ends at {len(data)}, before {at}")
    if at and at == scan.end and scan.verdict != "clean":
        raise NotAPosition(f"nothing begins at {at} in {group.shown(id)}: {reason}")
    lines: Lines = record_lines if group.kind == "library" else frame_lines
    yield from lines(view, at, scan.end, f"{group.key}/{id}" if group.key else str(id), as_json)
    if scan.verdict != "clean":
        hidden = counted(zero_tail(view, scan.end) - scan.end, "byte")
        teller.tell(Fault(group.shown(id), scan.end, scan.verdict, f"{reason}; {hidden} not shown"))


def record_lines(view: memoryview, at: int, end: int, where: str, as_json: bool) -> Iterator[Line]:
    """The records of the valid part of a library segment."""
    while at < end:
        key_at, klen, vlen, flags, ttl_ms = parse_head(view, at, end)
        stop = key_at + klen + vlen + 4
        problem = ""
        try:
            record, _ = decode(view, at, end)
        except DecompressionFailed as error:
            problem = str(error)
            key, stored = bytes(view[key_at : key_at + klen]), bytes(view[key_at + klen : stop - 4])
            record = Record(key, stored, bool(flags & 1), ttl_ms, "lz4" if flags & COMPRESSION == 4 else "zstd")
        if as_json:
            yield _record_json(record, int(where), at, stop - at, problem)
        else:
            yield _record_text(record, f"{where}:{at}", problem)
        at = stop


def _record_json(record: Record, segment: int, offset: int, size: int, problem: str) -> Line:
    row: dict[str, object] = {"segment": segment, "offset": offset, "size": size}
    row |= _member("key", record.key)
    if problem:
        row |= {"value_stored_base64": _base64(record.value), "value_error": problem}
    else:
        row |= _member("value", record.value)
    row |= {"tombstone": record.tombstone, "ttl_ms": record.ttl_ms, "compression": record.compression}
    return json.dumps(row)


def _record_text(record: Record, position: str, problem: str) -> Line:
    line = f"{position}  {'delete' if record.tombstone else 'put   '}  {shown(record.key)}"
    if problem:
        line += f"  ({len(record.value)} stored bytes: {problem})"
    elif record.value or not record.tombstone:
        line += f" = {shown(record.value)}"
    if record.ttl_ms is not None:
        line += f"  ttl {record.ttl_ms} ms"
    return line if record.compression == "none" else f"{line}  {record.compression}"


def frame_lines(view: memoryview, at: int, end: int, where: str, as_json: bool) -> Iterator[Line]:
    """The frames of the valid part of a server file."""
    from topics.codec import frame as frames
    from topics.codec.control import decode_body

    inside = view[:end]
    while at < end:
        frame = frames.decode(inside, at)
        control = None if frame.type in (frames.APPEND, frames.PAD) else decode_body(frame.type, frame.data)
        body = None if control is None else _plain(control)
        if as_json:
            yield _frame_json(frame, body, where, at)
        else:
            yield _frame_text(frame, body, f"{where}:{at}")
        at = frame.end


def _frame_json(frame: Frame, body: object, where: str, at: int) -> Line:
    from topics.codec import frame as frames

    group, _, number = where.rpartition("/")
    flags = frame.flags
    row: dict[str, object] = {
        "group": group,
        "segment": int(number),
        "offset": at,
        "size": frame.end - at,
        "type": type_name(frame.type),
        "topic_id": frame.topic_id,
        "seq": frame.seq,
        "ts": frame.ts,
        "durable": bool(flags & frames.DURABLE),
        "more": bool(flags & frames.MORE),
        "synced_prefix": bool(flags & frames.SYNCED_PREFIX),
        "hops": flags >> frames.HOPS_SHIFT,
    }
    if frame.type == frames.APPEND:
        row["node"] = None if frame.node is None else frame.node.decode()
        row["tag"] = None if frame.tag is None else frame.tag.decode()
        if _is_one_json_line(frame.data):
            # As it is stored: parsing and printing would change how numbers are spelled.
            return f'{json.dumps(row)[:-1]}, "data": {frame.data.decode()}}}'
        row |= _member("data", frame.data)
    elif body is not None:
        row["body"] = body
    return json.dumps(row)


def _frame_text(frame: Frame, body: object, position: str) -> Line:
    from topics.codec import frame as frames

    words = [position, type_name(frame.type)]
    if frame.topic_id:
        words.append(f"topic {frame.topic_id}")
    if frame.seq:
        words.append(f"seq {frame.seq}")
    words.append(f"ts {frame.ts}")
    words += [f"{name} {shown(text)}" for name, text in (("node", frame.node), ("tag", frame.tag)) if text is not None]
    marks = (("durable", frames.DURABLE), ("more", frames.MORE), ("synced_prefix", frames.SYNCED_PREFIX))
    words += [name for name, bit in marks if frame.flags & bit]
    if frame.flags >> frames.HOPS_SHIFT:
        words.append(f"hops {frame.flags >> frames.HOPS_SHIFT}")
    if body is not None:
        words.append(_shortened(json.dumps(body, ensure_ascii=True)))
    elif frame.type == frames.APPEND:
        words.append(shown(frame.data, quoted=False))
    else:
        words.append(f"{len(frame.data)} bytes")
    return "  ".join(words)


def shown(data: bytes, *, quoted: bool = True) -> str:
    """Bytes for people: printable text, in quotes unless it quotes itself, or hex behind `0x`."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        text = "\0"
    if not text.isprintable():
        return _shortened("0x" + data[: _SHOWN_MAX + 1].hex(), len(data))
    return _shortened(json.dumps(text, ensure_ascii=False) if quoted else text, len(data))


def _shortened(text: str, size: int | None = None) -> str:
    if len(text) <= _SHOWN_MAX:
        return text
    return f"{text[:_SHOWN_MAX]}… ({len(text) if size is None else size} bytes)"


def _member(name: str, data: bytes) -> dict[str, object]:
    """Bytes for programs: text where they are UTF-8, else base64 under a name that says so."""
    try:
        return {name: data.decode()}
    except UnicodeDecodeError:
        return {f"{name}_base64": _base64(data)}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _is_one_json_line(data: bytes) -> bool:
    if min(data, default=0) < 0x20:
        return False
    try:
        _RAW.decode(data)
        data.decode()
    except (ValueError, RecursionError):
        return False
    return True


def _plain(value: object) -> object:
    """A control body as JSON has it; a config holds whatever MessagePack can."""
    if isinstance(value, msgspec.Struct):
        fields = msgspec.structs.asdict(value).items()
        return {name: _plain(item) for name, item in fields if item is not msgspec.UNSET and item is not None}
    if isinstance(value, dict):
        return {key if isinstance(key, str) else repr(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return _base64(value)
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    return value if isinstance(value, (str, int, float, type(None))) else repr(value)
