"""Where a topic's bytes belong: its shard [S-70] and the masks that bind files to their place [S-135].

    shard   0 for topic 0 or one shard, else xxh3_64(le8(topic_id)) mod n
    topic   xxh3_64(le8(topic_id))              XORed into the checksums of `.data` frames
    segment xxh3_64(le8(topic_id) + le8(N))     XORed into the checksums of `.idx` footers and `.tag` files

Pure functions; any thread.
"""

from __future__ import annotations

from struct import Struct

from xxhash import xxh3_64_intdigest

_ONE = Struct("<Q")
_TWO = Struct("<QQ")


def shard_of(topic_id: int, shards: int) -> int:
    """The shard whose WAL takes a topic's frames."""
    if topic_id == 0 or shards == 1:
        return 0
    return xxh3_64_intdigest(_ONE.pack(topic_id)) % shards


def topic_mask(topic_id: int) -> int:
    """Mask of a topic's `.data` frames."""
    return xxh3_64_intdigest(_ONE.pack(topic_id))


def segment_mask(topic_id: int, first_seq: int) -> int:
    """Mask of the `.idx` footer and `.tag` file of the segment that starts at `first_seq`."""
    return xxh3_64_intdigest(_TWO.pack(topic_id, first_seq))
