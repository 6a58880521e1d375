"""The key-value record: its bytes, and the codec that walks a segment of them (07 §3, §6).

    klen     varint      key length
    vlen     varint      stored value length (after compression)
    flags    u8          bit0 tombstone  bit1 ttl_present  bits 2-3 compression  bits 4-7 zero
    ttl_ms   varint      only if ttl_present
    key      klen bytes  never compressed
    value    vlen bytes
    crc32c   u32 LE      of all preceding bytes of the record

Zero bytes never form a record [W-33], so prepared space and data cannot be confused. Pure functions;
any thread.
"""

from __future__ import annotations

from struct import Struct
from typing import Any, Literal

import msgspec
from crc32c import crc32c

from topics.codec import kernel
from topics.codec.scan import FileInfo, Place, Scan, zero_tail
from topics.errors import (
    CompressionFailed,
    CrcMismatch,
    DecompressionFailed,
    Incomplete,
    InvalidCompression,
    InvalidFlags,
    RecordError,
    VarintOverflow,
)

Compression = Literal["none", "lz4", "zstd"]

TOMBSTONE, TTL, COMPRESSION, RESERVED = 0x01, 0x02, 0x0C, 0xF0
_METHODS: tuple[Compression, ...] = ("none", "lz4", "zstd")
_U64_MAX = (1 << 64) - 1
HEAD_MAX = 31
"""Three varints and the flags byte."""
SIZE_MIN = 7

_pack_crc = Struct("<I").pack
_unpack_crc = Struct("<I").unpack_from
Buffer = bytes | bytearray | memoryview


def encode_varint(n: int) -> bytes:
    """Unsigned LEB128, minimal [W-30]."""
    if not 0 <= n <= _U64_MAX:
        raise ValueError(f"{n} is no u64")
    out = bytearray()
    while n > 0x7F:
        out.append(n & 0x7F | 0x80)
        n >>= 7
    out.append(n)
    return bytes(out)


def decode_varint(buffer: Buffer, offset: int, end: int) -> tuple[int, int]:
    """The number at `offset` and the offset behind it; non-minimal input is fine [W-30]."""
    value = shift = 0
    for at in range(offset, min(offset + 10, end)):
        byte = buffer[at]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if shift == 63 and byte > 1:
                raise VarintOverflow("the tenth byte of a varint is above 1")
            return value, at + 1
        shift += 7
    if end - offset >= 10:
        raise VarintOverflow("a varint is longer than ten bytes")
    raise Incomplete("the buffer ends inside a varint")


_SMALL = tuple(encode_varint(n) for n in range(2048))
_FLAGS = tuple(bytes((n,)) for n in range(256))


def _varint(n: int) -> bytes:
    return _SMALL[n] if 0 <= n < 2048 else encode_varint(n)


class Record(msgspec.Struct, frozen=True):
    """One entry of the log. The log keeps the TTL and never acts on it [W-34]."""

    key: bytes
    value: bytes = b""
    tombstone: bool = False
    ttl_ms: int | None = None
    compression: Compression = "none"

    @classmethod
    def put(cls, key: Buffer, value: Buffer) -> Record:
        """A value under a key; both may be empty."""
        return cls(bytes(_octets(key)), bytes(_octets(value)))

    @classmethod
    def put_with_ttl(cls, key: Buffer, value: Buffer, ttl_ms: int) -> Record:
        """A value that its reader may drop after `ttl_ms`."""
        if not 0 <= ttl_ms <= _U64_MAX:
            raise ValueError(f"ttl_ms {ttl_ms!r} is no u64")
        return cls(bytes(_octets(key)), bytes(_octets(value)), ttl_ms=ttl_ms)

    @classmethod
    def delete(cls, key: Buffer) -> Record:
        """A tombstone for a key."""
        return cls(bytes(_octets(key)), tombstone=True)

    def with_compression(self, compression: Compression) -> Record:
        """The same record, its value to be stored compressed."""
        if compression not in _METHODS:
            raise ValueError(f"{compression!r} is none of none, lz4, zstd")
        return msgspec.structs.replace(self, compression=compression)

    def encode(self) -> bytes:
        """The record's bytes; `CompressionFailed` when its compression cannot be applied."""
        return encode(self)

    @classmethod
    def decode(cls, buffer: Buffer, offset: int = 0) -> tuple[Record, int]:
        """The record at `offset` and its size in bytes; the checks run in the order of [W-32]."""
        return decode(buffer, offset, len(buffer))


def _octets(value: Buffer) -> Buffer:
    # bytes(5) is five zeros and bytes("x") needs an encoding: neither is what a caller means.
    given: object = value
    if not isinstance(given, (bytes, bytearray, memoryview)):
        raise TypeError(f"bytes are needed, not {type(given).__name__}")
    return given


def _check_bytes(key: object, value: object) -> None:
    # len() of another buffer may count items, and the lengths written must be those of the bytes.
    if not (isinstance(key, bytes) and isinstance(value, bytes)):
        raise TypeError(f"a record holds bytes, not {type(key).__name__} and {type(value).__name__}")


def encode(record: Record) -> bytes:
    """The bytes of a record. The one encoder: whatever is appended comes through here."""
    key = record.key
    value = record.value
    flags = 1 if record.tombstone else 0
    if type(key) is not bytes or type(value) is not bytes:
        _check_bytes(key, value)
    elif record.ttl_ms is None and record.compression == "none" and kernel.native is not None:
        return kernel.native.encode_record(key, value, flags != 0)
    if record.compression != "none":
        value = _compress(value, record.compression)
        flags |= _METHODS.index(record.compression) << 2
    klen = len(key)
    vlen = len(value)
    head = (_SMALL[klen] if klen < 2048 else _varint(klen)) + (_SMALL[vlen] if vlen < 2048 else _varint(vlen))
    if record.ttl_ms is None:
        body = b"".join((head, _FLAGS[flags], key, value))
    else:
        body = b"".join((head, _FLAGS[flags | TTL], _varint(record.ttl_ms), key, value))
    return body + _pack_crc(crc32c(body))


def parse_head(buffer: Buffer, offset: int, end: int) -> tuple[int, int, int, int, int | None]:
    """`(key offset, klen, vlen, flags, ttl_ms)` of the record at `offset`; the body is not looked at."""
    klen, at = decode_varint(buffer, offset, end)
    vlen, at = decode_varint(buffer, at, end)
    if at >= end:
        raise Incomplete("the buffer ends before the flags")
    flags = buffer[at]
    at += 1
    ttl = None
    if flags & RESERVED:
        raise InvalidFlags(f"flags {flags:#04x} have reserved bits")
    if flags & COMPRESSION == COMPRESSION:
        raise InvalidCompression("compression 3 is not known")
    if flags & TTL:
        ttl, at = decode_varint(buffer, at, end)
    return at, klen, vlen, flags, ttl


def decode(buffer: Buffer, offset: int, end: int) -> tuple[Record, int]:
    """The record at `offset` and its size, reading nothing at or behind `end`."""
    at, klen, vlen, flags, ttl = parse_head(buffer, offset, end)
    middle = at + klen
    stop = middle + vlen
    if stop + 4 > end:
        raise Incomplete(f"the record needs {stop + 4 - offset} bytes, {end - offset} are there")
    expected = _unpack_crc(buffer, stop)[0]
    actual = crc32c(memoryview(buffer)[offset:stop])
    if actual != expected:
        raise CrcMismatch(expected, actual)
    value = bytes(buffer[middle:stop])
    method = _METHODS[flags >> 2]
    if method != "none":
        value = _decompress(value, method)
    return Record(bytes(buffer[at:middle]), value, bool(flags & TOMBSTONE), ttl, method), stop + 4 - offset


def decode_plain(buffer: bytes, offset: int, end: int) -> tuple[Record, int] | None:
    """`decode` for the usual record, without a TTL or compression and wholly in the buffer; `None` for any other.

    A bad record is none of the usual ones: what is wrong with it is for `decode` to say.
    """
    if end - offset < SIZE_MIN:
        return None
    klen = buffer[offset]
    vlen = buffer[offset + 1]
    at = offset + 2
    if vlen > 0x7F:
        high = buffer[at]
        vlen = vlen & 0x7F | high << 7
        at += 1
        if high > 0x7F:
            return None
    flags = buffer[at]
    middle = at + 1 + klen
    stop = middle + vlen
    if klen > 0x7F or flags & ~TOMBSTONE or stop + 4 > end:
        return None
    if crc32c(memoryview(buffer)[offset:stop]) != _unpack_crc(buffer, stop)[0]:
        return None
    return Record(buffer[at + 1 : middle], buffer[middle:stop], flags == TOMBSTONE), stop + 4 - offset


def _size_at(view: memoryview, offset: int, end: int) -> int:
    """Size of the record at `offset` by its lengths alone, 0 when they do not fit the buffer."""
    try:
        klen, at = decode_varint(view, offset, end)
        vlen, at = decode_varint(view, at, end)
        if at >= end:
            return 0
        flags = view[at]
        at += 1
        if flags & TTL:
            _, at = decode_varint(view, at, end)
    except RecordError:
        return 0
    size = at + klen + vlen + 4 - offset
    return size if offset + size <= end else 0


def _verifies(view: memoryview, offset: int, size: int) -> bool:
    stop = offset + size - 4
    return size >= SIZE_MIN and crc32c(view[offset:stop]) == _unpack_crc(view, stop)[0]


def walk(view: memoryview, start: int, end: int) -> tuple[int, int]:
    """`(records, offset behind the last good one)`: the hot loop of recovery and verification."""
    if kernel.native is not None and 0 <= start <= end <= len(view):
        return kernel.native.walk_records(view, start, end)
    count = 0
    offset = start
    crc, unpack = crc32c, _unpack_crc
    while end - offset >= SIZE_MIN:
        klen = view[offset]
        at = offset + 1
        if klen > 0x7F:
            break
        vlen = view[at]
        if vlen > 0x7F:
            high = view[at + 1]
            if high > 0x7F:
                break
            vlen = vlen & 0x7F | high << 7
            at += 1
        flags = view[at + 1]
        if flags & ~TOMBSTONE:
            break
        stop = at + 2 + klen + vlen
        if stop + 4 > end or crc(view[offset:stop]) != unpack(view, stop)[0]:
            break
        count += 1
        offset = stop + 4
    return count, offset


class RecordCodec:
    """Walks a segment of records and gives the verdicts of 07 §6.

    `strict` also calls a bad record in the last segment damage when, where its lengths say, one follows
    that verifies [W-61]: right when every record was synced on its own.
    """

    __slots__ = ("strict",)

    def __init__(self, *, strict: bool = False) -> None:
        self.strict = strict

    def preamble(self, info: FileInfo) -> bytes:
        return b""

    def scan(self, view: memoryview, start: int, place: Place) -> Scan:
        end = len(view)
        offset = start
        count = 0
        while True:
            n, offset = walk(view, offset, end)
            count += n
            # The hot loop stops at everything unusual, good or bad; decide what it is here.
            try:
                at, klen, vlen, _, _ = parse_head(view, offset, end)
            except RecordError as error:
                reason: RecordError = error
                break
            stop = at + klen + vlen
            if stop + 4 > end:
                reason = Incomplete(f"the record at {offset} needs {stop + 4 - offset} bytes, {end - offset} are there")
                break
            expected, actual = _unpack_crc(view, stop)[0], crc32c(view[offset:stop])
            if expected != actual:
                reason = CrcMismatch(expected, actual)
                break
            count += 1
            offset = stop + 4
        if zero_tail(view, offset) == offset:
            return Scan(offset, count, "clean")
        size = _size_at(view, offset, end)
        if isinstance(reason, (InvalidFlags, InvalidCompression)) and _verifies(view, offset, size):
            return Scan(offset, count, "format", f"at {offset}: {reason}")
        followed = size > 0 and _verifies(view, offset + size, _size_at(view, offset + size, end))
        damaged = place == "inner" or (self.strict and followed)
        return Scan(offset, count, "corrupt" if damaged else "torn", f"at {offset}: {reason}")


VALUE_MAX = 128 << 20
"""Largest value that may be stored compressed: what comes out of a hostile buffer stays bounded by it."""


def _compress(value: bytes, method: Compression) -> bytes:
    """The stored value [W-31]; always applied, also when it does not shrink."""
    if len(value) > VALUE_MAX:
        raise CompressionFailed(f"{method}: a value of {len(value)} bytes is above {VALUE_MAX}")
    try:
        if method == "lz4":
            block: bytes = lz4_block().compress(value, store_size=False)
            return encode_varint(len(value)) + block
        stored: bytes = zstandard().ZstdCompressor(level=3).compress(value)
        return stored
    except CompressionFailed:
        raise
    except Exception as error:  # each codec raises a family of its own; all of it means: not stored
        raise CompressionFailed(f"{method}: {error}") from error


def _decompress(stored: bytes, method: Compression) -> bytes:
    try:
        return _un_lz4(stored) if method == "lz4" else _un_zstd(stored)
    except DecompressionFailed:
        raise
    except Exception as error:
        raise DecompressionFailed(f"{method}: {error}") from error


def _un_lz4(stored: bytes) -> bytes:
    size, at = decode_varint(stored, 0, len(stored))
    # LZ4 expands at most 255-fold: a larger claim is damage, not a reason to allocate.
    if size > min(VALUE_MAX, 255 * (len(stored) - at)):
        raise DecompressionFailed(f"lz4: {len(stored) - at} bytes cannot hold {size}")
    value: bytes = lz4_block().decompress(stored[at:], uncompressed_size=size)
    if len(value) != size:
        raise DecompressionFailed(f"lz4: {len(value)} bytes came out, {size} were promised")
    return value


def _un_zstd(stored: bytes) -> bytes:
    """Fed in pieces, so that a small hostile frame cannot grow far beyond the bound before it is noticed."""
    stream = zstandard().ZstdDecompressor().decompressobj()
    parts: list[bytes] = []
    total = 0
    for at in range(0, len(stored), 1024):
        if stream.eof:
            break
        part = stream.decompress(stored[at : at + 1024])
        parts.append(part)
        total += len(part)
        if total > VALUE_MAX:
            raise DecompressionFailed(f"zstd: more than {VALUE_MAX} bytes come out")
    else:
        if stream.eof and not stream.unused_data:
            return b"".join(parts)
    raise DecompressionFailed("zstd: the value is not exactly one frame")


def lz4_block() -> Any:
    """The LZ4 binding, an optional dependency [W-3]."""
    try:
        import lz4.block
    except ImportError as error:
        raise CompressionFailed("lz4 is not installed: pip install 'topics[wal-compress]'") from error
    return lz4.block


def zstandard() -> Any:
    """The Zstandard binding, an optional dependency [W-3]."""
    try:
        import zstandard
    except ImportError as error:
        raise CompressionFailed("zstandard is not installed: pip install 'topics[wal-compress]'") from error
    return zstandard
