"""What belongs to one backup (06 S-319), as a file: `backup-%016d.json`.

    one line of JSON        {"v":1,"number":…,"store":…,"ts":…,"snapshot":[number,bytes,xxh3],"topics":…,"segments":[…]}
    sixteen hex digits      XXH3-64 of that line without its end

A segment is a row `[topic id, first seq, key, generation, data, idx, tag]`; a part is `[bytes, xxh3]`, null where the
segment has none. `key` is the hash of the `.idx` it was made from: as long as a sealed segment has that one, its parts
need not be copied again. Whatever the bytes are, reading them gives a manifest, `NotAManifest`, or `UnsupportedFormat`
for an intact one of a later version. Pure; any thread.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from topics.codec.control import U64
from topics.errors import UnsupportedFormat

VERSION: Final = 1
_SUM_BYTES: Final = 18
"""Line end, digits, line end."""


class NotAManifest(ValueError):
    """Bytes that are not a manifest this version wrote."""


class Part(Struct, frozen=True, array_like=True, gc=False):
    """One part of a segment: how long it is, and the hash of its bytes."""

    bytes: U64
    xxh3: U64


class SegmentParts(Struct, frozen=True, array_like=True, gc=False):
    """A segment of the backup."""

    topic_id: U64
    first: U64
    key: U64
    generation: U64
    data: Part | None
    idx: Part
    tag: Part | None


class SnapshotPart(Struct, frozen=True, array_like=True, gc=False):
    """The snapshot of the backup."""

    number: U64
    bytes: U64
    xxh3: U64


class Manifest(Struct, frozen=True, kw_only=True):
    """A backup."""

    v: U64 = VERSION
    number: U64
    """As in its name."""
    store: str
    """Id of the store it was taken of."""
    ts: U64
    """When its snapshot was taken."""
    snapshot: SnapshotPart
    topics: U64
    segments: tuple[SegmentParts, ...]

    @property
    def bytes(self) -> int:
        """Of all its parts."""
        parts = (part for one in self.segments for part in (one.data, one.idx, one.tag) if part is not None)
        return self.snapshot.bytes + sum(part.bytes for part in parts)


class _Version(Struct):
    v: U64


_VERSION = msgspec.json.Decoder(_Version)
_MANIFEST = msgspec.json.Decoder(Manifest)


def encode(manifest: Manifest) -> bytes:
    """The whole file."""
    line = msgspec.json.encode(manifest)
    return b"%b\n%b\n" % (line, xxh3_64_hexdigest(line).encode("ascii"))


def decode(raw: bytes) -> Manifest:
    """A whole file; `NotAManifest`, or `UnsupportedFormat` for a later version's."""
    line, end = raw[:-_SUM_BYTES], raw[-_SUM_BYTES:]
    if len(end) != _SUM_BYTES or end != b"\n%b\n" % xxh3_64_hexdigest(line).encode("ascii"):
        raise NotAManifest("its checksum does not fit")
    try:
        v = _VERSION.decode(line).v
        if v > VERSION:
            raise UnsupportedFormat(f"a backup of version {v}, this is version {VERSION}")
        return _MANIFEST.decode(line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise NotAManifest(str(error)) from error
