"""The server's own topics: what they are like, and how the server writes to them [A-14, A-20, A-22].

    $deletes     `deletes`, the journal of deletes     fsync, 30 days
    $loss        `losses`, what topics lost             disk, 30 days
    $pipelines   clients with `write` and `admin`       defaults

They come into being with their first record. Who may do what is said beside the names, in `model`. Owner only.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from topics.engine import append as appending
from topics.engine import read as reading
from topics.engine.core import Core, Outcome
from topics.engine.records import prepare
from topics.errors import StoreUnavailable
from topics.model import DELETES, LOSS, Limits, NewRecord, TopicConfig
from topics.storage.tiers.blocks import NeedsBlocks

log = logging.getLogger("topics.engine")

KEPT_MS: Final = 30 * 86_400_000
CONFIGS: Final = {
    DELETES: TopicConfig(durability="fsync", ttl_ms=KEPT_MS),
    LOSS: TopicConfig(durability="disk", ttl_ms=KEPT_MS),
}
_LIMITS: Final = Limits(max_record_bytes=1 << 30)
"""What the server has to say has no limit of its own: what it is about was within those of clients."""
_PAGE, _PAGE_BYTES = 1000, 1 << 20


def write(core: Core, name: str, said: Sequence[tuple[str, dict[str, Any]]], done: Outcome) -> None:
    """Append what there is to say, each beside the topic it is about, which becomes its tag.

    What `$deletes` is told goes where control frames go, also while there is no space [A-20].
    """
    records = [NewRecord(data=msgspec.json.encode(data), tag=tag) for tag, data in said]
    made = appending.Write(
        name, prepare(records, _LIMITS), None, None, True, CONFIGS[name], own=True, control=name == DELETES
    )
    appending.append(core, made, done)


class _Recorded(msgspec.Struct):
    """What says which delete a record of `$deletes` is about."""

    id: int
    dn: int


_RECORDED: Final = msgspec.json.Decoder(_Recorded)


def recorded(core: Core, through: int) -> Iterator[tuple[int, int]]:
    """Topic id and number of each delete that `$deletes` has behind a seq.

    What cannot be read is recorded a second time, which is harmless [A-20].
    """
    topic = core.names.get(DELETES)
    seq = through
    while topic is not None and seq < topic.head:
        query = reading.Query.parse(DELETES, seq, None, _PAGE, _PAGE_BYTES, None, 0, _LIMITS)
        try:
            page = reading.walk(topic, query, core.cold.read())
            found = [_RECORDED.decode(record.raw_data) for record in page.records]
        except (OSError, StoreUnavailable, NeedsBlocks, msgspec.MsgspecError) as error:
            log.warning("%s behind %d is not looked at: %s", DELETES, seq, error)
            return
        yield from ((one.id, one.dn) for one in found)
        seq = page.next_from_seq
