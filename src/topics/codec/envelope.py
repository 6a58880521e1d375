"""The JSON envelope a record is stored in [S-40], and the canonical text of a JSON value [REC-6, REC-12].

    {"d":<data>}                 a record without meta:  6 bytes around the data
    {"d":<data>,"m":<meta>}      a record with meta:    11 bytes around data and meta

Those bytes exactly: no spaces, `d` first, `m` absent without meta, meta always an object [REC-8]. `<data>` and
`<meta>` are canonical: strict RFC 8259 in valid UTF-8, insignificant whitespace removed, every spelling kept
(`1.0`, `1e3`, `\\u00e9`, 25-digit integers, duplicate members). Accounted size = len(data) + len(meta).

Nesting stops at 256 levels, a fixed number between the 128 that must and the 1000 that must not be accepted
[API-11]: what was accepted once must be readable from any depth of the Python stack.

Everything here raises `ValueError` for a bad value. Pure functions; any thread. numpy is loaded by whoever needs whole
batches: clients and commands use this module for single values, and would wait for it longer than for the server.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

NESTING_MAX = 256

RAW = (bytes, bytearray, memoryview, msgspec.Raw)
"""What a value may be given as where it is JSON text already."""

PLAIN_BYTES = 6
"""Bytes of an envelope around its data, without meta."""
META_BYTES = 11
"""Bytes of an envelope around its data and meta."""

_META = re.compile(rb',"m":\{')
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class _Envelope(msgspec.Struct):
    # `Raw | None` would refuse objects, so an absent meta is an empty Raw.
    d: msgspec.Raw
    m: msgspec.Raw = msgspec.Raw()


_DECODER = msgspec.json.Decoder(_Envelope)
_LIST_DECODER = msgspec.json.Decoder(list[_Envelope])


def build(data: bytes, meta: bytes | None = None) -> bytes:
    """Envelope of canonical `data` and `meta`; the bytes are taken as they are [S-40]."""
    if meta is None:
        return b'{"d":%b}' % data
    return b'{"d":%b,"m":%b}' % (data, meta)


def split(envelope: bytes) -> tuple[bytes, bytes | None]:
    """The data and meta an envelope was built from, byte for byte."""
    try:
        parts = _DECODER.decode(envelope)
    except RecursionError:
        raise ValueError("envelope is nested too deeply") from None
    data, meta = bytes(parts.d), bytes(parts.m)
    # Lengths that add up leave no room for spaces, another order, further or repeated members.
    around = META_BYTES if meta else PLAIN_BYTES
    if not envelope.startswith(b'{"d":') or len(data) + len(meta) + around != len(envelope):
        raise ValueError("not an envelope")
    if not meta:
        return data, None
    if not meta.startswith(b"{"):
        raise ValueError("meta is not an object")
    return data, meta


def parts(envelope: bytes) -> tuple[bytes, bytes | None]:
    """`split` of an envelope that was built here and whose bytes are verified: parses only where there may be meta."""
    if envelope.endswith(b"}}") and b',"m":{' in envelope:
        return split(envelope)
    assert envelope.startswith(b'{"d":')
    return envelope[PLAIN_BYTES - 1 : -1], None


def has_meta(envelope: bytes) -> bool:
    """Whether an envelope carries meta; parses only where the bytes leave it open (replay must not parse, S-247)."""
    if not envelope.endswith(b"}}") or b',"m":{' not in envelope:
        return False
    try:
        return split(envelope)[1] is not None
    except ValueError:
        return False


def accounted_bytes(envelope: bytes) -> int:
    """Canonical bytes of data and meta: the size a record counts with everywhere [REC-12].

    Defined for any bytes, so that a checkpoint or a rebuild never stops at one record.
    """
    return max(0, len(envelope) - (META_BYTES if has_meta(envelope) else PLAIN_BYTES))


def accounted_sizes(
    buffer: bytes | bytearray | memoryview, starts: npt.NDArray[np.int64], sizes: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """`accounted_bytes` of the envelopes at ascending places of a buffer, in one pass over it."""
    import numpy as np

    around = np.full(len(starts), PLAIN_BYTES, np.int64)
    if len(starts):
        first, last = int(starts[0]), int(starts[-1] + sizes[-1])
        seen = np.array([found.start() for found in _META.finditer(buffer, first, last)], np.int64)
        # The envelope that an occurrence lies in, if it lies in one.
        at = np.unique(np.searchsorted(starts, seen, side="right") - 1)
        for one in at[at >= 0].tolist():
            start = int(starts[one])
            if has_meta(bytes(buffer[start : start + int(sizes[one])])):
                around[one] = META_BYTES
    accounted: npt.NDArray[np.int64] = np.maximum(sizes - around, 0)
    return accounted


def canonical(raw: bytes) -> bytes:
    """A JSON value without insignificant whitespace, all spellings kept; `ValueError` unless strict RFC 8259."""
    # msgspec checks the syntax of what it passes over, but not its UTF-8.
    if not raw.isascii():
        raw.decode()
    if raw.count(b"[") + raw.count(b"{") > NESTING_MAX and _nesting(raw) > NESTING_MAX:
        raise ValueError(f"JSON is nested deeper than {NESTING_MAX} levels")
    try:
        return msgspec.json.format(raw, indent=-1)
    except RecursionError:
        raise ValueError("JSON is nested too deeply") from None


def text_of(value: object) -> bytes:
    """Canonical text of a Python value, or of JSON text given as bytes."""
    return canonical(bytes(value)) if isinstance(value, RAW) else encode_value(value)


def encode_value(value: object) -> bytes:
    """Canonical text of a Python value; `TypeError` where JSON has no form, `ValueError` for NaN and infinities."""
    try:
        text = msgspec.json.encode(value)
        # msgspec writes NaN and infinities as null: only a text with a null can hide one.
        if b"null" in text:
            _refuse_non_finite(msgspec.to_builtins(value))
    except RecursionError:
        raise ValueError("value is nested too deeply") from None
    return canonical(text)


def _nesting(raw: bytes) -> int:
    """Depth of brackets outside strings; any number for malformed text, which the parser refuses anyway."""
    import numpy as np

    text = np.frombuffer(_STRING.sub(b"", raw), np.uint8)
    opens = (text == ord("[")) | (text == ord("{"))
    closes = (text == ord("]")) | (text == ord("}"))
    depth = np.cumsum(opens.astype(np.int64) - closes.astype(np.int64))
    return int(depth.max(initial=0))


def _refuse_non_finite(value: object) -> None:
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"JSON has no {value}")
    elif isinstance(value, dict):
        for member in value.values():
            _refuse_non_finite(member)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in value:
            _refuse_non_finite(item)


def data_lens(envelopes: list[bytes]) -> npt.NDArray[np.int64]:
    """How long the data of each envelope is, parsed in one call; `ValueError` if one is no envelope."""
    import numpy as np

    try:
        parts = _LIST_DECODER.decode(b"[%b]" % b",".join(envelopes))
    except RecursionError:
        raise ValueError("an envelope is nested too deeply") from None
    if len(parts) != len(envelopes):
        raise ValueError("not envelopes")
    datas = np.fromiter((len(bytes(one.d)) for one in parts), np.int64, len(parts))
    metas = np.fromiter((len(bytes(one.m)) for one in parts), np.int64, len(parts))
    sizes = np.fromiter(map(len, envelopes), np.int64, len(parts))
    if (datas + metas + np.where(metas != 0, META_BYTES, PLAIN_BYTES) != sizes).any():
        raise ValueError("not an envelope")
    return datas
