"""Stamping: frames of a staged part get their seq, `ts`, checksum and the topic's mask, in place [S-288].

What comes out is, byte for byte, what a checkpoint of the same records writes to a `.data` file. That the chunk is what
was staged is the caller's business: its frames have no checksum of their own (codec/part.py).

Whole batches; the only loop is over checksums. Pure functions; any thread.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from topics.codec import frame, kernel
from topics.codec.envelope import accounted_sizes
from topics.codec.frame import NotAFrame, Why
from topics.codec.segment import FRAME_LEN_MIN, HAS_NODE, HAS_TAG, HEADER, HEADER_BYTES, IDX

_PLACE: Final = np.dtype([("seq", "<u8"), ("ts", "<u8")])
"""What a staged frame has zeros for."""
_PLACE_AT: Final = 5
_TAIL_BYTES: Final = 9
_NOT_STAGED: Final = "not a staged frame"


def stamp(frames: bytearray, begins: list[int], first_seq: int, ts: int, mask: int) -> npt.NDArray[np.void]:
    """Give the frames at `begins`, one behind another, consecutive seqs from `first_seq` on.

    Their `.idx` entries, with offsets in `frames`. `NotAFrame`, and nothing changed, for one that is no staged frame.
    """
    if not begins:
        return np.empty(0, IDX)
    places = np.array(begins, np.int64)
    if kernel.native is not None:
        made = kernel.native.stamp(frames, places.tobytes(), first_seq, ts, mask)
        if isinstance(made, bytes):
            return np.frombuffer(bytearray(made), IDX)
        if made is not None:
            raise NotAFrame(Why.BAD, begins[made], _NOT_STAGED)
    heads = frame.gather(memoryview(frames), places, HEADER)
    sizes = heads["frame_len"].astype(np.int64) + 4
    sums = places + sizes - _TAIL_BYTES
    data = np.frombuffer(frames, np.uint8)
    _check(heads, places, data[sums[:, None] + np.arange(_TAIL_BYTES)].any(axis=1))
    stamped = np.empty(len(places), _PLACE)
    stamped["seq"] = np.arange(first_seq, first_seq + len(places), dtype=np.uint64)
    stamped["ts"] = ts
    _put(data, places + _PLACE_AT, stamped)
    view = memoryview(frames)
    spans = zip((places + 4).tolist(), sums.tolist(), strict=True)
    digests = np.array([xxh3_64_intdigest(view[start:end]) for start, end in spans], "<u8")
    _put(data, sums, digests ^ np.uint64(mask))
    around = heads["node_len"].astype(np.int64) + heads["tag_len"]
    accounted = accounted_sizes(frames, places + HEADER_BYTES + around, heads["data_len"].astype(np.int64))
    entries = np.empty(len(places), IDX)
    entries["offset"], entries["len"], entries["ts"] = places, sizes, ts
    entries["flags_ovh"] = heads["flags"].astype(np.int64) | sizes - accounted << 8
    return entries


def _check(heads: npt.NDArray[np.void], places: npt.NDArray[np.int64], signed: npt.NDArray[np.bool_]) -> None:
    """Frames that have no place yet, and whose lengths add up."""
    lens = (heads["node_len"].astype(np.int64), heads["tag_len"].astype(np.int64), heads["data_len"].astype(np.int64))
    wrong = frame.misfits(heads["frame_len"].astype(np.int64) - FRAME_LEN_MIN, heads["flags"], *lens)
    wrong |= (heads["flags"] & ~np.uint8(HAS_TAG | HAS_NODE) != 0) | signed
    wrong |= (heads["seq"] != 0) | (heads["ts"] != 0)
    found = np.flatnonzero(wrong)
    if len(found):
        raise NotAFrame(Why.BAD, int(places[found[0]]), _NOT_STAGED)


def _put(data: npt.NDArray[np.uint8], at: npt.NDArray[np.int64], values: npt.NDArray[np.generic]) -> None:
    """Write values of one size to unaligned places."""
    raw = values.view(np.uint8).reshape(len(values), -1)
    data[at[:, None] + np.arange(raw.shape[1])] = raw
