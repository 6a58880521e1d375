"""The compiled kernel beside its specification: the same bytes, verdicts and errors for whatever is fed to both.

    write body      a body of a write: what the kernel scans is what decoding and preparing it makes, frame by frame
    frames          WAL frames: encoding, scanning, judging, as JSON, as `.data` frames and entries
    data            `.data` frames: scanning, as JSON
    staged          frames of a part: stamping, as WAL frames
    uploaded        frames that a client sent: taking them in
    log             records of the log library: walking a segment

The kernel may decline whatever it likes; what it accepts, it may not get wrong. Bodies are made, not only broken: of
odd numbers, escapes and spaces, members that come twice, and sizes around every limit. Targets of `fuzz`.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import numpy as np

from topics.codec import envelope, frame, kernel, offsets, part, project, segment
from topics.codec.frame import NotAFrame
from topics.codec.place import topic_mask
from topics.codec.project import Projection
from topics.codec.scan import Place as End
from topics.codec.stamp import stamp
from topics.engine.records import prepare
from topics.engine.txn import Place, Stage
from topics.errors import TopicsError
from topics.model import Limits
from topics.server import records, txn
from topics.server.failure import Refused
from topics.storage.tail import entries_of_rows
from topics.testing.subject import Violation
from topics.wal.record import Record, RecordCodec, walk

LIMITS: Final = Limits(
    max_batch_records=5, max_record_bytes=120, max_meta_bytes=40, max_meta_members=3, max_tag_bytes=8, max_node_bytes=6
)
"""Near enough for made bodies to reach them."""
TOPIC: Final = 10
MASK: Final = topic_mask(TOPIC)
STAGED: Final = Place("t", "w", 1, "p", 0)
WANTED: Final = [Projection(True), Projection(metas=False), Projection(True, True, False)]


@contextmanager
def using(chosen: kernel.Native | None) -> Iterator[None]:
    """Run with this kernel, or with none."""
    before, kernel.native = kernel.native, chosen
    try:
        yield
    finally:
        kernel.native = before


def outcome(call: Callable[[], object]) -> object:
    """What a call returns or raises, in a form that can be compared."""
    try:
        return _plain(call())
    except (ValueError, TopicsError, Refused) as error:
        return type(error), str(error), getattr(error, "offset", None)


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, (tuple, list)):
        return [_plain(one) for one in value]
    return value


def same(call: Callable[[], object]) -> None:
    """Both kernels come to the same."""
    with using(None):
        pure = outcome(call)
    with using(kernel.installed()):
        native = outcome(call)
    if pure != native:
        raise Violation(f"pure {pure!r:.2000}, native {native!r:.2000}")


# -- bodies of writes ------------------------------------------------------------------------------------------------


def check_body(raw: bytes, limits: Limits = LIMITS) -> bool:
    """What the kernel makes of a body is what Python makes of it; whether it made anything."""
    native = kernel.installed()
    with using(native):
        found = records.scanned(raw, limits)
    if native is not None:
        _check_chunks(native, raw, limits)
    if found is None:
        return False
    body, ready = found
    with using(None):
        try:
            raw.decode()
            given = records.decoded(raw)
            expected = prepare(given.records, limits, given.node)
        except (ValueError, TopicsError, Refused) as error:
            raise Violation(f"the kernel accepts what is refused with {error!r}") from error
        frames = expected.framed(TOPIC, 7, 9, frame.DURABLE, True)
    told = (ready.framed(TOPIC, 7, 9, frame.DURABLE, True), ready.tags, ready.envelopes, ready.accounted, ready.total)
    wanted = (frames, expected.tags, expected.envelopes, expected.accounted, expected.total)
    around = (body.idempotency_key, body.producer, body.create, body.config, body.disable_backpressure, ready.node)
    others = (
        given.idempotency_key, given.producer, given.create, given.config, given.disable_backpressure, given.node,
    )  # fmt: skip
    if told != wanted or around != others or ready.rows() != expected.rows() or ready.records != expected.records:
        raise Violation(f"pure {wanted!r:.2000}, native {told!r:.2000}")
    middle = expected.records // 2
    if ready.framed(TOPIC, 7, 9, 0, False, middle) != expected.framed(TOPIC, 7, 9, 0, False, middle):
        raise Violation("parts of a write differ")
    return True


def _check_chunks(native: kernel.Native, raw: bytes, limits: Limits) -> None:
    """A body in pieces is the body."""
    half = len(raw) // 2
    whole, pieces = native.scan_write(raw, limits), native.scan_chunks([raw[:half], b"", raw[half:]], limits)
    if whole is None or pieces is None:
        told = whole is None and pieces is None
    else:
        told = whole.framed(TOPIC, 1, 2, 0, False) == pieces.framed(TOPIC, 1, 2, 0, False)
        told = told and (whole.node, whole.producer, whole.rows()) == (pieces.node, pieces.producer, pieces.rows())
    if not told:
        raise Violation("a body differs from its pieces")


_TEXTS: Final = (
    "", "a", "12345678", "é", "日本", "\U0001f600", "\\n", "\\u00e9", "\\ud83d\\ude00", "\\/", '\\"', "\\\\", "\\u0000",
    "\x7f", "}}",
)  # fmt: skip
_ODD_TEXTS: Final = (
    "pallet:A19", "123456789", "\\ud800", "\\udc00", "\x01", "\\x", "\\u12", ',\\"m\\":{', "\\ud83dx", "\\ud83d\\u0041",
)  # fmt: skip
_NUMBERS: Final = ("0", "-0", "1", "1.0", "1e3", "1E+400", "12345678901234567890123456789", "-0.0e-0")
_ODD_NUMBERS: Final = ("01", "1.", ".5", "-", "1e", "NaN", "+1", "0x1", "1_0", "nul", "True", "'a'")
_ODDLY: Final = 0.02
"""How often something is made that is not as it should be."""
_OTHERS: Final = ("idempotency_key", "producer", "create", "config", "disable_backpressure", "unknown", "rec\\u006frds")


def make_body(rng: random.Random, corpus: tuple[bytes, ...]) -> bytes:
    """A body that is right, nearly right, or broken."""
    kind = rng.randrange(8)
    if kind == 0:
        raw = rng.choice(corpus)
    else:
        raw = _write(rng).encode("utf-8", "surrogatepass")
    if kind < 3 and raw:
        at = rng.randrange(len(raw))
        piece = rng.choice(
            (b"", b'"', b"\\", b",", b"{", b"}", b"[", b"]", b" ", b"\xff", b"\xc3", b"0", b":", b"null")
        )
        raw = raw[:at] + piece + raw[at + rng.randrange(3) :]
    return raw


def _write(rng: random.Random) -> str:
    count = rng.choice((0, 6, 7)) if _is_odd(rng) else rng.choice((1, 1, 2, 3, 5))
    members = [("records", _array(rng, [_record(rng) for _ in range(count)]))]
    if rng.random() < 0.3:
        members.append(("node", _text_or(rng)))
    members += [(rng.choice(_OTHERS), _other(rng)) for _ in range(rng.choice((0, 0, 0, 1, 2)))]
    if _is_odd(rng):
        members.append(rng.choice(members))
    rng.shuffle(members)
    return _space(rng) + _object(rng, members) + _space(rng)


def _record(rng: random.Random) -> str:
    members = [("data", _value(rng, 3))]
    members += [(name, _text_or(rng)) for name in ("tag", "node") if rng.random() < 0.4]
    if rng.random() < 0.3:
        count = 4 if _is_odd(rng) else rng.choice((0, 1, 2, 3))
        meta = _object(rng, [(rng.choice(_TEXTS[:6]), _value(rng, 0)) for _ in range(count)])
        members.append(("meta", rng.choice(("[]", "1")) if _is_odd(rng) else rng.choice((meta, meta, "null"))))
    if rng.random() < 0.05:
        members.append(("data" if _is_odd(rng) else "x", _value(rng, 1)))
    if _is_odd(rng):
        del members[0]
    rng.shuffle(members)
    return _object(rng, members)


def _other(rng: random.Random) -> str:
    return rng.choice(
        ('"k"', "null", "true", "false", "{}", '{"id":"p","epoch":1,"index":2}', '{"type":"queue"}', _value(rng, 2))
    )


def _text_or(rng: random.Random) -> str:
    if _is_odd(rng):
        return rng.choice(("1", "[]", f'"{rng.choice(_ODD_TEXTS)}"'))
    return rng.choice(("null", f'"{rng.choice(_TEXTS[:9])}"', f'"{rng.choice(_TEXTS)}"'))


def _value(rng: random.Random, depth: int) -> str:
    kind = rng.randrange(7 if depth else 4)
    if kind == 0:
        return rng.choice(_ODD_NUMBERS if _is_odd(rng) else _NUMBERS)
    if kind == 1:
        return rng.choice(("null", "true", "false"))
    if kind in (2, 3):
        longs = (60, 110, 120) if rng.random() < 0.1 else (0, 1, 7, 8, 9)
        return f'"{rng.choice(_ODD_TEXTS if _is_odd(rng) else _TEXTS)}{"x" * rng.choice(longs)}"'
    if kind == 4:
        nesting = rng.choice((1, 2, 50, 255, 256, 257)) if rng.random() < 0.1 else 1
        return "[" * nesting + _array(rng, [_value(rng, depth - 1) for _ in range(rng.randrange(3))]) + "]" * nesting
    return _object(
        rng, [(rng.choice((*_TEXTS[:6], "m", "d")), _value(rng, depth - 1)) for _ in range(rng.randrange(4))]
    )


def _array(rng: random.Random, items: list[str]) -> str:
    return "[" + ",".join(_space(rng) + item + _space(rng) for item in items) + _space(rng) + "]"


def _object(rng: random.Random, members: list[tuple[str, str]]) -> str:
    told = (f'{_space(rng)}"{name}"{_space(rng)}:{_space(rng)}{value}{_space(rng)}' for name, value in members)
    return "{" + ",".join(told) + "}"


def _space(rng: random.Random) -> str:
    if rng.random() > 0.1:
        return ""
    return "\x0c" if _is_odd(rng) else rng.choice((" ", "\n", "\t\r", "  "))


def _is_odd(rng: random.Random) -> bool:
    return rng.random() < _ODDLY


# -- frames ----------------------------------------------------------------------------------------------------------

ROWS: Final = [
    ("n", "t", envelope.build(b'{"a":[1,2]}', b'{"k":"v"}')),
    (None, None, envelope.build(b"null")),
    ("", "é", envelope.build(b'{"x":1,"m":{}}')),
    (None, 'q"\\\n\x01', envelope.build(b'"}}"', b"{}")),
    ("node", None, b'{"d": 1,"m":{}}'),
    (None, None, b""),
]
"""Records of which the last two are none that an engine writes."""


def check_frames(raw: bytes) -> None:
    """Everything that is made of WAL frames."""
    same(lambda: frame.scan_frames(raw))
    with using(None):
        rows = frame.scan_frames(raw).rows
    begins = rows["offset"].tolist()
    same(lambda: entries_of_rows(raw, rows[rows["type"] == frame.APPEND]))
    places = sorted({*begins, *range(0, len(raw), 61)})[:12]
    same(lambda: segment.reframe(raw, begins, MASK))
    same(lambda: segment.reframe(raw, places, MASK, 77, np.full(len(places), 8, np.uint8)))
    for wanted in WANTED:
        _same_text(partial(project.run_of_wal, raw, offsets.pack(begins), wanted))
    jobs = offsets.pack(at for at in begins if frame.fields(raw, at).data.startswith(b'{"d":'))
    _same_text(lambda: [project.jobs_of_wal(raw, jobs, 1 << 40, 99)])
    same(lambda: offsets.shifted([(place, offsets.pack(begins)) for place in places]))


def _same_text(call: Callable[[], list[bytes] | None]) -> None:
    """As `same`, of pieces. Python has a way for few records, one for many, and None leads to a third: no verdict."""

    def text() -> bytes | None:
        made = call()
        return None if made is None else b",".join(made)

    with using(None):
        pure = outcome(text)
    with using(kernel.installed()):
        native = outcome(text)
    if native != pure and pure is not None and native is not None:
        raise Violation(f"pure {pure!r:.2000}, native {native!r:.2000}")


def check_data(raw: bytes) -> None:
    """Everything that is made of `.data` frames."""
    same(lambda: segment.scan_data(raw, MASK))
    with using(None):
        rows = segment.scan_data(raw, MASK).rows
        entries = segment.entries_of(raw, rows) if len(rows) else np.empty(0, segment.IDX)
    if len(rows):
        first = int(rows["seq"][0])
        for wanted in WANTED:
            _same_text(partial(project.run_of_segment, raw, entries, first, MASK, wanted))
            _same_page(raw, entries, first, wanted)


def _same_page(raw: bytes, entries: Any, first: int, wanted: Projection) -> None:
    """A page of the kernel holds the live records in a row from its first on, and nothing else."""
    for dead in {len(entries), len(entries) // 2, len(entries) - 1}:
        marked = entries.copy()
        marked["flags"][dead:] |= np.uint8(segment.DELETED)
        with using(kernel.installed()):
            made = project.page_of_segment(raw, marked.tobytes(), 0, (len(marked), len(raw), 2), first, MASK, wanted)
        if made is None:
            continue
        with using(None):
            pieces = project.run_of_segment(raw, entries[:dead], first, MASK, wanted)
        sizes = entries["len"][:dead].astype(np.int64) - segment.ovh(entries[:dead])
        text = b",".join(pieces or ())
        if made != (text, dead, int(sizes.sum())) and pieces is not None:
            raise Violation(f"page {made!r:.2000}, pure {text!r:.2000}")


def check_staged(raw: bytes) -> None:
    """Stamping a chunk, wherever its frames are found."""

    def stamped() -> object:
        chunk = bytearray(raw)
        try:
            begins = part.places(raw)
        except NotAFrame:
            return None
        try:
            return stamp(chunk, begins, 5, 9, MASK), bytes(chunk)
        except NotAFrame:
            return bytes(chunk)

    same(stamped)
    check_appends(raw)


def check_appends(raw: bytes) -> None:
    """WAL frames of a chunk. A digest vouches for what is staged, so Python does not look whether it is frames."""
    try:
        begins = part.places(raw)
    except NotAFrame:
        return

    def framed(durable: bool, more: bool) -> object:
        try:
            return part.appends(raw, begins[: 3 if more else None], TOPIC, 5, 9, durable=durable, more=more)
        except (AssertionError, IndexError):
            return None

    for durable, more in ((True, True), (False, False)):
        same(partial(framed, durable, more))


def check_uploaded(raw: bytes) -> None:
    """Frames that a client sent, as they are staged. What the kernel does not take, Python refuses or takes."""
    native = kernel.installed()
    third = len(raw) // 3
    found = None if native is None else native.uploaded([raw[:third], raw[third:]], LIMITS, 64)
    if found is None:
        return
    pieces, count, accounted, digest = found
    with using(None):
        try:
            steps = txn.framed(STAGED, raw, LIMITS)
            while True:
                next(steps)
        except StopIteration as end:
            made: Stage = end.value
        except (ValueError, TopicsError, Refused) as error:
            raise Violation(f"the kernel accepts what is refused with {error!r}") from error
    wanted = (b"".join(made.pieces), made.records, made.accounted, made.digest)
    if (b"".join(pieces), count, accounted, digest) != wanted:
        raise Violation(f"pure {wanted!r:.2000}, native {found!r:.2000}")


_ENDS: Final[tuple[End, ...]] = ("last", "inner")


def check_log(raw: bytes) -> None:
    """Records of the log library."""
    view = memoryview(raw)
    for codec in (RecordCodec(), RecordCodec(strict=True)):
        for end in _ENDS:
            same(partial(codec.scan, view, 0, end))
    same(lambda: walk(view, min(3, len(raw)), len(raw)))


def corpora() -> dict[str, tuple[Callable[[bytes], object], tuple[bytes, ...]]]:
    """What to check, and what to begin with."""
    with using(None):
        appended = frame.encode_appends(ROWS[:4], TOPIC, 1, 5)
        odd = frame.encode_appends(ROWS, TOPIC, 1, 5, durable=True, hops=8, more=True)
        begins = frame.scan_frames(appended).rows["offset"].tolist()
        data, _ = segment.reframe(appended, begins, MASK)
        chunk = part.encode(ROWS[:4])
    values = [b"", b"v" * 9, b"w" * 127, b"x" * 128, b"y" * 300]
    log = b"".join(Record.put(b"key", value).encode() for value in values) + Record.delete(b"gone").encode()
    plain = json.dumps({"node": "n", "records": [{"data": {"a": 1}, "tag": "t"}, {"data": [1.5], "meta": {"k": 1}}]})
    bodies = (plain.encode(), b'{"records":[{"data":1}]}', b'{"records":[{"data":1}],"idempotency_key":"k"}')
    return {
        "write body": (check_body, bodies),
        "frames": (check_frames, (appended, odd, appended + bytes(50))),
        "data": (check_data, (data, data + bytes(50))),
        "staged": (check_staged, (chunk,)),
        "uploaded": (check_uploaded, (part.upload(ROWS[:4]), part.upload(ROWS[1:3]), part.upload(ROWS))),
        "log": (check_log, (log, log + bytes(50))),
    }
