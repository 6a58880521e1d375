"""Which records carry which tag (06 §11): in memory for the tail and the active segment, in a sidecar for sealed ones.

    TagIndex     tail and active segment [S-185]: dict of tag -> array of ascending seqs
    TagSidecar   one sealed segment [S-186], over a buffer the caller maps

Both answer the same two questions, `eq(tag)` and `prefix(literal)`, with absolute seqs in ascending order, as arrays of
their own: no answer keeps a mapping or an index alive. Neither knows what is deleted: liveness comes from the
index [S-187].

A tag is text; in memory and on disk it is its UTF-8, in whose byte order prefixes are ranges [S-188]. A `TagIndex` is
used by one thread, its topic's owner; everything else is pure.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from topics.codec import frame, segment, sidecar
from topics.codec.frame import Buffer
from topics.codec.place import segment_mask

SeqArray = npt.NDArray[np.uint64]


class TagIndex:
    """Tags of the records that are in no sealed segment. Invariant: every array ascends and none is empty."""

    __slots__ = ("_dropped", "_due", "_old", "_ordered", "_seqs")

    def __init__(self) -> None:
        self._seqs: dict[bytes, array[int]] = {}
        self._due: deque[tuple[int, Sequence[bytes | str | None]]] = deque()
        """Tags of many records that are added a few at a time, or when somebody asks."""
        self._old: dict[bytes, array[int]] = {}
        """Tags from before the last drop, which they still have to meet, in the same way; none is in `_seqs`."""
        self._dropped = 0
        """What that drop went up to."""
        # Sorted; as a set, the first keys of the dict, which keeps its order: new tags cost nothing until asked for.
        self._ordered: list[bytes] = []

    def __len__(self) -> int:
        """How many different tags there are."""
        self.catch_up()
        return len(self._seqs)

    def add_later(self, first_seq: int, tags: Sequence[bytes | str | None]) -> None:
        """Add the tags of many records, but not now: with `catch_up`, or with the next question."""
        self._due.append((first_seq, tags))

    def catch_up(self, most: int | None = None) -> bool:
        """Add tags that are due, and drop those that are, as many as told; whether there are more."""
        while self._old and (most is None or most > 0):
            tag, seqs = self._old.popitem()
            if seqs[-1] > self._dropped:
                self._seqs[tag] = self._kept(seqs)
            if most is not None:
                most -= 1
        while self._due and (most is None or most > 0):
            first, tags = self._due.popleft()
            if most is not None and len(tags) > most:
                self._due.appendleft((first + most, tags[most:]))
                tags = tags[:most]
            self._add(first, tags)
            if most is not None:
                most -= len(tags)
        return bool(self._due or self._old)

    def _kept(self, seqs: array[int]) -> array[int]:
        return seqs[bisect_right(seqs, self._dropped) :]

    def add(self, first_seq: int, tags: Sequence[bytes | str | None]) -> None:
        """Add the tags of consecutive records, None for a record without one; seqs are above all added before."""
        if self._due:
            self._due.append((first_seq, tags))
        else:
            self._add(first_seq, tags)

    def _add(self, first_seq: int, tags: Iterable[bytes | str | None]) -> None:
        seqs = self._seqs
        seq = first_seq
        for tag in tags:
            if tag is not None:
                key = tag.encode() if isinstance(tag, str) else tag
                found = seqs.get(key)
                if found is None:
                    seqs[key] = found = self._kept(self._old.pop(key)) if key in self._old else array("Q")
                    found.append(seq)
                else:
                    assert found[-1] < seq
                    found.append(seq)
            seq += 1

    def update(self, tags: Mapping[bytes, array[int]]) -> None:
        """Add seqs by tag, such as `tags_of` gives, all above those added before."""
        self.catch_up()
        for tag, more in tags.items():
            found = self._seqs.setdefault(tag, array("Q"))
            assert not found or found[-1] < more[0]
            found.extend(more)

    def drop_through(self, seq: int) -> None:
        """Forget every seq up to and including `seq`: its segment was sealed. It is done with `catch_up`."""
        self.catch_up()
        self._dropped = seq
        self._old, self._seqs, self._ordered = self._seqs, {}, []

    def drop_above(self, seq: int) -> None:
        """Forget every seq above `seq`: the topic was cut back to it (06 §14 step 9)."""
        self.catch_up()
        for tag, seqs in list(self._seqs.items()):
            del seqs[bisect_right(seqs, seq) :]
            if not seqs:
                self._forget(tag)

    def eq(self, tag: bytes | str) -> SeqArray:
        """Seqs of the records with this tag."""
        if self._due:
            self.catch_up()
        key = _key(tag)
        found = self._kept(self._old[key]) if key in self._old else self._seqs.get(key, ())
        return np.array(found, np.uint64)

    def prefix(self, literal: bytes | str) -> SeqArray:
        """Seqs of the records whose tag begins with `literal`."""
        self.catch_up()
        low, behind = _key(literal), sidecar.successor(_key(literal))
        ordered = self._keys()
        end = len(ordered) if behind is None else bisect_left(ordered, behind)
        found = [np.frombuffer(self._seqs[tag], np.uint64) for tag in ordered[bisect_left(ordered, low) : end]]
        return np.sort(np.concatenate(found)) if found else np.empty(0, np.uint64)

    def between(self, first_seq: int, last_seq: int) -> dict[bytes, array[int]]:
        """The tags and seqs of a range, for the sidecar of a segment that is being sealed."""
        self.catch_up()
        found = {}
        for tag, seqs in self._seqs.items():
            part = seqs[bisect_left(seqs, first_seq) : bisect_right(seqs, last_seq)]
            if part:
                found[tag] = part
        return found

    def _keys(self) -> list[bytes]:
        if len(self._ordered) < len(self._seqs):
            self._ordered.extend(islice(self._seqs, len(self._ordered), None))
            self._ordered.sort()
        return self._ordered

    def _forget(self, tag: bytes) -> None:
        del self._seqs[tag]
        self._ordered = []


class TagSidecar:
    """The tags of one sealed segment, over its mapped or read `.tag` file.

    `NotASidecar` (build it anew) or `UnsupportedFormat` from the constructor, which verifies all of it. The buffer is
    referred to until the object is gone.
    """

    __slots__ = ("_first_seq", "_sidecar")

    def __init__(self, buffer: Buffer, topic_id: int, first_seq: int, count: int) -> None:
        self._sidecar = sidecar.read(buffer, segment_mask(topic_id, first_seq), count)
        self._first_seq = first_seq

    def __len__(self) -> int:
        """How many different tags there are."""
        return len(self._sidecar.table)

    def eq(self, tag: bytes | str) -> SeqArray:
        """Seqs of the records with this tag."""
        return self._absolute(sidecar.eq(self._sidecar, _key(tag)))

    def prefix(self, literal: bytes | str) -> SeqArray:
        """Seqs of the records whose tag begins with `literal`."""
        return self._absolute(sidecar.prefix(self._sidecar, _key(literal)))

    def _absolute(self, relative: npt.NDArray[np.uint32]) -> SeqArray:
        return relative + np.uint64(self._first_seq)


def tags_of(data: Buffer, rows: npt.NDArray[np.void]) -> dict[bytes, array[int]]:
    """Tags and seqs of the `.data` frames that `segment.scan_data` found, deleted ones included."""
    tagged = rows[rows["flags"] & segment.HAS_TAG != 0]
    return tags_at(data, tagged["offset"], tagged["seq"])


def tags_of_entries(data: Buffer, entries: npt.NDArray[np.void], first_seq: int) -> dict[bytes, array[int]]:
    """Tags and seqs of the frames that the `.idx` entries of a segment point to, deleted ones included."""
    tagged = np.flatnonzero((entries["flags"] & segment.HAS_TAG != 0) & (entries["len"] != 0))
    return tags_at(data, entries["offset"][tagged], tagged.astype(np.uint64) + np.uint64(first_seq))


def tags_at(data: Buffer, offsets: npt.NDArray[np.unsignedinteger], seqs: SeqArray) -> dict[bytes, array[int]]:
    """Tags of the `.data` frames at `offsets`, by tag, given the frames' ascending seqs.

    `ValueError` for a frame that ends outside the data or is of another seq; checksums are the caller's business.
    """
    view = memoryview(data)
    if not len(offsets):
        return {}
    if int(offsets.max()) + segment.FRAME_BYTES_MIN > len(view):
        raise ValueError("a frame begins behind the end of the data")
    heads = frame.gather(view, offsets.tolist(), segment.HEADER)
    starts = offsets.astype(np.int64) + segment.HEADER_BYTES + heads["node_len"]
    ends = starts + heads["tag_len"]
    if int(ends.max()) > len(view) or (heads["seq"] != seqs).any():
        raise ValueError("a frame ends behind the data, or is of another seq")
    found: dict[bytes, array[int]] = {}
    for start, end, seq in zip(starts.tolist(), ends.tolist(), seqs.tolist(), strict=True):
        tag = bytes(view[start:end])
        known = found.get(tag)
        if known is None:
            found[tag] = array("Q", (seq,))
        else:
            known.append(seq)
    return found


def encode_sidecar(tags: Mapping[bytes, array[int]], topic_id: int, first_seq: int) -> bytes | None:
    """The `.tag` file of a segment from absolute seqs by tag; None, and so no file, if no record has a tag."""
    if not tags:
        return None
    return sidecar.encode(tags, segment_mask(topic_id, first_seq), first_seq)


def empty_sidecar(topic_id: int, first_seq: int) -> bytes:
    """A `.tag` file that says that no record has a tag, to take the place of one that said otherwise."""
    return sidecar.encode({}, segment_mask(topic_id, first_seq), first_seq)


def build_sidecar(data: Buffer, rows: npt.NDArray[np.void], topic_id: int, first_seq: int) -> bytes | None:
    """The `.tag` file of a segment from its `.data` rows [S-187]; None where no record has a tag."""
    return encode_sidecar(tags_of(data, rows), topic_id, first_seq)


def _key(text: bytes | str) -> bytes:
    return text.encode() if isinstance(text, str) else text
