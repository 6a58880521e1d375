"""The snapshot of a backup: the store as it was at the cut, as if it had been closed there [S-319].

    header    `clean`; no cold tier; every row of the log retired: there is none
    topic     `head` = `ck`, nothing reserved, floors and leases not beyond it; segments as they were kept
    router    a position not beyond what its source and its destination have

A running server goes on between its checkpoint and the moment a topic is put into the snapshot, so what the snapshot
says about seqs above `ck` is about records that the backup does not have. Pure; any thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from topics.codec.snapshot import Header, QueueState, RouterItem, SegmentRow, Snapshot, TopicItem, WalRow

Rows = Mapping[int, Sequence[SegmentRow]]
"""By topic id."""


def cut(taken: Snapshot, rows: Rows) -> Snapshot:
    """The snapshot of a backup whose segments are these."""
    topics = [_topic(item, tuple(rows.get(item.id, ()))) for item in taken.topics]
    ends = {item.id: item.ckpt_seq for item in topics}
    routers = [_router(one, ends) for one in taken.routers if one.source_id in ends and one.dest_id in ends]
    return Snapshot(_header(taken.header, len(topics), len(routers)), topics, routers)


def _header(header: Header, topics: int, routers: int) -> Header:
    wal = tuple(WalRow(row.group, row.file_no, 0, 1) for row in header.wal)
    return replace(header, clean=True, cold=None, wal=wal, topics=topics, routers=routers)


def _topic(item: TopicItem, rows: tuple[SegmentRow, ...]) -> TopicItem:
    end = item.ckpt_seq
    return replace(
        item,
        head_seq=end,
        reserved=0,
        cap_floor=min(item.cap_floor, end + 1),
        ttl_floor=min(item.ttl_floor, end + 1),
        delete_below=min(item.delete_below, end + 1),
        segments=rows,
        queue=None if item.queue is None else _queue(item.queue, end),
    )


def _queue(queue: QueueState, end: int) -> QueueState:
    return replace(
        queue,
        cursor=min(queue.cursor, end),
        leases=tuple(row for row in queue.leases if row.seq <= end),
        deliveries=tuple(row for row in queue.deliveries if row.seq <= end),
        delayed=tuple(row for row in queue.delayed if row.seq <= end),
    )


def _router(router: RouterItem, ends: Mapping[int, int]) -> RouterItem:
    source, dest = ends[router.source_id], ends[router.dest_id]
    return replace(router, position=min(router.position, source), dest_head=min(router.dest_head, dest))
