"""The snapshot of a backup says nothing about what lies behind its cut [S-319]."""

from __future__ import annotations

from typing import Any

from topics.codec.snapshot import (
    DelayRow,
    DeliveryRow,
    Header,
    LeaseRow,
    QueueState,
    RouterItem,
    SegmentRow,
    Snapshot,
    TopicItem,
    WalRow,
    decode,
    encode,
)
from topics.storage.backup.cut import cut

ROWS = (SegmentRow(1, 20, 900, 1, 20, 300, 7),)


def topic(id: int, ckpt_seq: int, **more: Any) -> TopicItem:
    given: dict[str, Any] = {
        "id": id, "name": f"t{id}", "epoch": id, "cfg": {}, "config_version": 1, "base": 1, "head_seq": 99,
        "ckpt_seq": ckpt_seq, "reserved": 256, "cap_floor": 1, "ttl_floor": 1, "delete_below": 1, "delete_number": 3,
        "deletes_recorded": 2, "last_write_ms": 5, "segments": (),
    }  # fmt: skip
    return TopicItem(**{**given, **more})


def router(name: str, source: int, dest: int, position: int, dest_head: int) -> RouterItem:
    return RouterItem(
        op=1, inc=1, name=name, source=f"t{source}", dest=f"t{dest}", source_id=source, dest_id=dest,
        preserve_node=True, preserve_tag=True, create_dest=False, allow_cycle=False, guarantee="at_least_once",
        new=False, created_ms=1, position=position, total=position, dest_head=dest_head,
    )  # fmt: skip


def header(**more: Any) -> Header:
    given: dict[str, Any] = {
        "id": 7, "ts": 1, "store": "s" * 32, "run": 3, "boot": "b", "clean": False, "next_topic_id": 9, "next_epoch": 9,
        "next_router_op": 4, "ckpt": 5, "cold": "s3://bucket", "wal": (WalRow("shard-00", 4, 900), WalRow("", 2, 0, 1)),
    }  # fmt: skip
    return Header(**{**given, **more})


def made(*topics: TopicItem, routers: tuple[RouterItem, ...] = ()) -> Snapshot:
    found = cut(Snapshot(header(), list(topics), list(routers)), {1: ROWS})
    return decode(encode(found.header, found.topics, found.routers))


def test_the_header_is_that_of_a_store_closed_in_order_without_a_log_and_a_cold_tier() -> None:
    """S-319, S-211"""
    found = made(topic(1, 20)).header
    assert (found.clean, found.cold, found.store, found.id) == (True, None, "s" * 32, 7)
    assert found.wal == (WalRow("shard-00", 4, 0, 1), WalRow("", 2, 0, 1))
    assert (found.next_topic_id, found.next_epoch, found.next_router_op, found.run) == (9, 9, 4, 3)


def test_a_topic_ends_where_its_segments_do() -> None:
    """S-319: `head` = `ck`, nothing reserved; no floor lies behind the next seq."""
    item = made(topic(1, 20, cap_floor=61, ttl_floor=15, delete_below=22)).topics[0]
    assert (item.head_seq, item.ckpt_seq, item.reserved) == (20, 20, 0)
    assert (item.cap_floor, item.ttl_floor, item.delete_below) == (21, 15, 21)
    assert item.segments == ROWS
    assert (item.delete_number, item.deletes_recorded, item.last_write_ms) == (3, 2, 5)


def test_leases_of_jobs_behind_the_cut_are_not_there() -> None:
    """S-319"""
    queue = QueueState(
        cursor=30,
        dead_lettered=2,
        leases=(LeaseRow(20, "n", 1, 5), LeaseRow(21, "n", 2, 5)),
        deliveries=(DeliveryRow(20, 1), DeliveryRow(21, 1), DeliveryRow(5, 3)),
        delayed=(DelayRow(9, 5), DelayRow(9, 25)),
    )
    kept = made(topic(1, 20, queue=queue)).topics[0].queue
    assert kept is not None
    assert (kept.cursor, kept.dead_lettered) == (20, 2)
    assert [row.seq for row in kept.leases] == [20]
    assert [row.seq for row in kept.deliveries] == [20, 5]
    assert [row.seq for row in kept.delayed] == [5]


def test_a_router_is_not_further_than_what_it_copies_from_and_to() -> None:
    """S-212: one made while the snapshot was captured, one that is in order, one whose source is gone."""
    routers = (router("new", 1, 2, 50, 40), router("old", 1, 2, 18, 28), router("lost", 5, 2, 1, 1))
    found = made(topic(1, 20), topic(2, 30), routers=routers).routers
    assert [(one.name, one.position, one.dest_head) for one in found] == [("new", 20, 30), ("old", 18, 28)]
