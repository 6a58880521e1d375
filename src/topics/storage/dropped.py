"""Segments that went since the newest snapshot: the log knows their floors before they go [S-277].

A reader without a lock finds files missing that the snapshot still lists. Either a durable mark behind the snapshot has
floors that cover them, then they were given up or deleted, or they are lost. Reading the log costs its size, so it is
asked only where segments are missing. Any thread.
"""

from __future__ import annotations

from msgspec.structs import replace

from topics.codec.control import MarkRow
from topics.codec.snapshot import TopicItem
from topics.storage.inspect_wal import Logged, check_groups
from topics.storage.snapshot import LISTINGS_MAX
from topics.storage.view import StoreView, TopicView


def marks(store: StoreView) -> dict[int, MarkRow]:
    """What the log's newest mark says of each topic that has one."""
    logged = Logged()
    snapshots = [] if store.snapshot is None else [store.snapshot]
    check_groups(store.fs, store.path, snapshots, logged, in_use=True, looked=lambda size: None)
    return {id: row for id, (_, row) in logged.claims.items()}


def raised(item: TopicItem, mark: MarkRow | None) -> TopicItem:
    """The item with the floors of a mark: floors only rise."""
    if mark is None:
        return item
    return replace(
        item,
        cap_floor=max(item.cap_floor, mark.cap_floor),
        ttl_floor=max(item.ttl_floor, mark.ttl_floor),
        delete_below=max(item.delete_below, mark.delete_below),
    )


def settled(store: StoreView, topic: TopicView) -> TopicView:
    """The topic with the floors of the log where segments are missing before all that there are.

    What it misses even then is lost. The store is looked at again as long as that brings a newer snapshot.
    """
    for _ in range(LISTINGS_MAX):
        if not topic.misses_prefix():
            return topic
        topic = TopicView(store, raised(topic.item, marks(store).get(topic.id)))
        before = store.header
        if not topic.misses_prefix() or before is None:
            return topic
        store.refresh()
        newer = next((one for one in store.topics() if one.id == topic.id), None)
        if newer is None or store.header is None or store.header.id == before.id:
            return topic
        topic = newer
    return topic
