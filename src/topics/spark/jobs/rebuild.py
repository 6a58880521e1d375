"""`rebuild`: `.idx` and `.tag` files made anew from `.data` (10 §5, 06 S-130).

    with --out    the files are written there, under the names they have in the store, which is left alone
    without       they replace those of the store, where they differ; the store is locked, so no engine may have it open

What has no frame (fillers, holes) is taken from the old `.idx` or the cold tier's copy if one of them verifies, else
from old entries whose neighbours agree with the data. What is left had to be guessed, is listed, and gives status 3.
Driver only, but for the task.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from topics import paths
from topics.codec import segment as codec
from topics.codec.frame import NotAFrame
from topics.codec.segment import Footer
from topics.codec.snapshot import COLD, GAP, SEALED, SegmentRow, TopicItem
from topics.fs import OsFs, close_quietly, ensure_dir, pread_exact
from topics.spark.failure import SourceError
from topics.spark.jobs.place import Store
from topics.spark.jobs.spread import spread
from topics.spark.jobs.work import GAPS, OK, Outcome, Work
from topics.storage import tags
from topics.storage.lockfile import held
from topics.storage.reindex import Entries, find_frames, reindex
from topics.storage.segfile import SegmentFiles, entries_in
from topics.storage.tiers.reading import ColdTier
from topics.storage.view import StoreView


class Item(NamedTuple):
    """A topic whose files are to be made."""

    path: str
    out: str | None
    item: TopicItem
    cold: str | None
    store: str | None


def check(work: Work, store: Store) -> None:
    """It works on files, and on nobody else's output."""
    if work.place.path is None:
        raise SourceError("invalid_option", "--url: a server makes damaged indexes anew by itself", "use --path")
    if work.out is not None and work.fs.exists(f"{work.out}/{paths.META_DIR}"):
        raise SourceError("target_not_empty", f"{work.out} is a store", "name another --out, or leave it out")


def _items(work: Work, store: Store) -> list[Item]:
    assert work.place.path is not None
    view = StoreView(work.fs, work.place.path, cold=work.place.cold)
    wanted = {one.name for one in store.instances} if work.topics else None
    return [
        Item(work.place.path, work.out, one.item, view.cold.where, store.id)
        for one in view.topics()
        if wanted is None or one.name in wanted
    ]


def plan(work: Work, store: Store) -> dict[str, Any]:
    """What would be read and made."""
    rows = [row for one in _items(work, store) for row in one.item.segments if row.flags & SEALED]
    return {"segments": len(rows), "bytes": sum(row.data_len for row in rows), "partitions": len(_items(work, store))}


def run(work: Work, store: Store) -> Outcome:
    assert work.place.path is not None
    items = _items(work, store)
    if work.out is not None:
        told = spread(work.spark(), items, rebuilt, work.tell, "topics rebuilt") if items else []
    else:
        with held(work.fs, work.place.path):
            told = spread(work.spark(), items, rebuilt, work.tell, "topics rebuilt") if items else []
    guessed = [one for one in told if one.get("guessed")]
    changed = [one["file"] for one in told if one["changed"]]
    summary = {"segments": len(told), "changed": changed, "guessed": guessed}
    return Outcome(
        sum(one["entries"] for one in told), sum(one["bytes"] for one in told), summary, GAPS if guessed else OK
    )


def rebuilt(item: Item) -> Iterator[dict[str, Any]]:
    """The files of a topic's sealed segments. A task."""
    fs = OsFs()
    dir = f"{paths.TOPICS_DIR}/{paths.topic_dir(item.item.id)}"
    files = SegmentFiles(fs, f"{item.path}/{dir}", item.item.id)
    target = files if item.out is None else SegmentFiles(fs, f"{item.out}/{dir}", item.item.id)
    cold = ColdTier(fs, item.cold, item.store)
    if item.out is not None:
        ensure_dir(fs, target.dir)
    try:
        for row in item.item.segments:
            if row.flags & SEALED:
                yield _segment(files, target, cold, row, item.item)
    finally:
        cold.close()
    target.sync_dir()


def _segment(
    files: SegmentFiles, target: SegmentFiles, cold: ColdTier, row: SegmentRow, item: TopicItem
) -> dict[str, Any]:
    first = row.first
    name = f"{paths.TOPICS_DIR}/{paths.topic_dir(files.topic_id)}/{paths.segment(first, 'idx')}"
    told: dict[str, Any] = {"file": name, "changed": False, "entries": row.count, "bytes": 0, "guessed": []}
    raw = files.read(files.path(first, "idx"))
    footer = _verified(files, first, raw)
    if row.flags & GAP or (footer is not None and footer.magic == codec.GAP):
        if footer is None:
            return {**told, "guessed": [[first, first + row.count - 1]]}
        return {**told, "changed": _put(files, target, first, "idx", raw or b"")}
    made = _made(files, cold, row, raw, footer, promised=item.cfg.get("durability", "disk") in ("disk", "fsync"))
    if made is None:  # all of it is dead, and its data dropped: the index is the only witness
        told["guessed"] = [] if footer is not None else [[first, first + row.count - 1]]
        return {**told, "changed": footer is not None and _put(files, target, first, "idx", raw or b"")}
    changed = _put(files, target, first, "idx", made.idx)
    if made.tag is not None:
        changed = _put(files, target, first, "tag", made.tag) or changed
    return {**told, "changed": changed, "bytes": made.read, "guessed": made.guessed}


class Made(NamedTuple):
    """What became of a segment's data."""

    idx: bytes
    tag: bytes | None
    read: int
    guessed: list[list[int]]


def _made(
    files: SegmentFiles, cold: ColdTier, row: SegmentRow, raw: bytes | None, footer: Footer | None, *, promised: bool
) -> Made | None:
    found = _data(files, cold, row, footer)
    if found is None:
        return None
    data, generation, magic = found
    old, trusted = _witness(files, cold, row, raw, footer, generation)
    n = row.count
    frames = find_frames(data, files.mask, row.first, row.first + n - 1)
    made = reindex(data, frames, row.first, n, old, trusted=trusted, told=promised)
    entries = made.entries.copy()
    if trusted and old is not None:  # a mark of an index that verifies counts, whatever the byte in the data says
        framed = (entries["len"] != 0) & (old["len"][:n] != 0)
        entries["flags"][framed] |= old["flags"][:n][framed] & np.uint8(codec.DELETED)
    body = entries.tobytes()
    idx = body + codec.encode_footer(body, files.segment_mask(row.first), magic, generation)
    tag = tags.build_sidecar(data, frames.rows, files.topic_id, row.first)
    return Made(idx, tag, len(data), [list(one) for one in made.given_up])


def _data(
    files: SegmentFiles, cold: ColdTier, row: SegmentRow, footer: Footer | None
) -> tuple[bytes, int, bytes] | None:
    """The data of a segment, its generation and where it lies."""
    generations = files.listing()[row.first].generations if row.first in files.listing() else []
    generation = footer.generation if footer is not None else generations[-1] if generations else 0
    hot = files.read(files.path(row.first, "data", generation))
    if hot is not None:
        return hot, generation, codec.HOT
    if not (row.flags & COLD or (footer is not None and footer.magic == codec.COLD)):
        return None
    file = cold.open(files.topic_id, row.first, generation)
    if file is None:
        return None
    try:
        return pread_exact(file, file.size(), 0), generation, codec.COLD
    finally:
        close_quietly(file)


def _witness(
    files: SegmentFiles, cold: ColdTier, row: SegmentRow, raw: bytes | None, footer: Footer | None, generation: int
) -> tuple[Entries | None, bool]:
    """Entries that tell what has no frame, and whether they verified as a whole."""
    if footer is not None and raw is not None:
        return entries_in(raw, footer.n), True
    if row.flags & COLD:
        copy = cold.part(files.topic_id, row.first, generation, "idx")
        kept = _verified(files, row.first, copy)
        if kept is not None and copy is not None:
            return entries_in(copy, kept.n), True
    if raw is None:
        return None, False
    return entries_in(raw, min(row.count, len(raw) // codec.ENTRY_BYTES)), False


def _verified(files: SegmentFiles, first: int, raw: bytes | None) -> Footer | None:
    try:
        return None if raw is None else codec.read_footer(raw, files.segment_mask(first))
    except NotAFrame:
        return None


def _put(files: SegmentFiles, target: SegmentFiles, first: int, kind: paths.SegmentKind, raw: bytes) -> bool:
    """Write a file where it is wanted; whether it differs from the store's."""
    differs = files.read(files.path(first, kind)) != raw
    if target is files and not differs:
        return False
    if kind == "idx":
        target.write_footed(first, raw)
    else:
        target.write_tag(first, raw, durable=True)
    return differs
