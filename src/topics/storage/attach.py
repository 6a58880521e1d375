"""Stamped segments on their way into a topic (06 §15.6, S-288 steps 3 and 4), and what is left of that at a start.

    staging/<dir>/out-<run>-<n>/          a topic's segments while they are stamped; nobody else looks there
    staging/<dir>/out/<topic id>/         the same, whole and synced: what an `attach` mark speaks of
    topics/<topic id>/                    where they belong

`arrange` brings them to the second place, before the mark; `move_in` to the third, behind it. Both may be repeated:
a rename that was done is passed over. A start finishes what a mark names; whatever else lies in `staging/` never was.

File work only: any one thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from topics import paths
from topics.codec import control
from topics.fs import Fs, close_quietly, ensure_dir
from topics.storage.descriptor import Claim, Segment
from topics.storage.stamp import Stamped

_T = TypeVar("_T")


def out_dir(staged_dir: str, topic_id: int) -> str:
    """Where a topic's segments wait for their mark, and behind it for their renames."""
    return f"{staged_dir}/{paths.OUT_DIR}/{paths.topic_dir(topic_id)}"


def begin(fs: Fs, dir: str) -> None:
    """An empty directory to stamp into."""
    remove(fs, dir)
    fs.makedirs(dir)


def arrange(fs: Fs, staged_dir: str, stamped: Iterable[tuple[int, str]]) -> None:
    """Give stamped directories the names that marks go by: every name up to the data directory's is durable then."""
    top = f"{staged_dir}/{paths.OUT_DIR}"
    fs.makedirs(top)
    for topic_id, dir in stamped:
        place = out_dir(staged_dir, topic_id)
        remove(fs, place)
        fs.rename(dir, place)
    root = staged_dir.rpartition("/")[0]
    for dir in (top, staged_dir, root, root.rpartition("/")[0]):
        fs.sync_dir(dir)


def move_in(fs: Fs, out: str, topic_dir: str, firsts: Iterable[int], *, synced: bool = True) -> None:
    """Rename segments into their topic, ascending, the `.idx` of each last; the names are durable when it is done.

    `synced` says that the files are known to be; at a start, only the process that has gone could say so.
    """
    ensure_dir(fs, topic_dir)
    there = set(fs.listdir(out)) if fs.exists(out) else set()
    for first in firsts:
        for kind in ("data", "tag", "idx"):
            name = paths.segment(first, kind)
            if name in there:
                if not synced:
                    _sync(fs, f"{out}/{name}")
                fs.rename(f"{out}/{name}", f"{topic_dir}/{name}")
                fs.point("attach.mid_rename")
    fs.sync_dir(topic_dir)
    if there:
        fs.sync_dir(out)


def finish(fs: Fs, staging_root: str, topic_dir: str, marks: Iterable[control.AttachMark]) -> None:
    """At a start: what marks of one topic say was attached goes where it belongs [S-289].

    Segments that were moved, dropped or rewritten since are not in `out/` any more, so nothing happens to them.
    """
    for mark in marks:
        out = out_dir(f"{staging_root}/{mark.dir}", mark.topic_id)
        if paths.parse_staging_dir(mark.dir) is not None and fs.exists(out):
            move_in(fs, out, topic_dir, [row.first for row in mark.segments], synced=False)


def _sync(fs: Fs, path: str) -> None:
    file = fs.open(path, "rw")
    try:
        file.fsync()
    finally:
        close_quietly(file)


def reached(ckpt_seq: int, claim: _T, marks: Iterable[control.AttachMark]) -> tuple[int, _T | Claim]:
    """How far segments reach, given the newest mark row or snapshot: an attach is a checkpoint of what it brings.

    All in front of it was sealed before it, so no segment is active behind it.
    """
    reach: tuple[int, _T | Claim] = (ckpt_seq, claim)
    for mark in marks:
        last = mark.first + mark.count - 1
        if last > reach[0]:
            reach = (last, Claim.of(last + 1, 0, b""))
    return reach


def described(made: Stamped, ts: int) -> Segment:
    """The descriptor of a stamped segment; all of it lives."""
    segment = Segment(made.first, made.count, made.data_len)
    segment.sealed, segment.idx_xxh3 = True, made.idx_xxh3
    segment.live, segment.live_bytes = made.count, made.accounted
    segment.min_ts = segment.max_ts = ts
    segment.has_tags = made.tagged
    return segment


def remove(fs: Fs, dir: str) -> None:
    """Unlink a directory of stamped segments, absent or not; other files in it stay, and it with them [S-10]."""
    if not fs.exists(dir):
        return
    for name in fs.listdir(dir):
        if paths.parse_segment(paths.parse_tmp(name) or name) is not None:
            fs.remove(f"{dir}/{name}")
    if not fs.listdir(dir):
        fs.rmdir(dir)


def clear(fs: Fs, staged_dir: str, *, keep_out: bool = False) -> None:
    """Unlink everything that stamping has left in the directory of a version, and that if it is empty then.

    `keep_out`: a mark may speak of what is in `out/`.
    """
    if not fs.exists(staged_dir):
        return
    for name in fs.listdir(staged_dir):
        path = f"{staged_dir}/{name}"
        if paths.parse_stamp_dir(name) is not None:
            remove(fs, path)
        elif name == paths.OUT_DIR and not keep_out:
            for topic in fs.listdir(path):
                if paths.parse_topic_dir(topic) is not None:
                    remove(fs, f"{path}/{topic}")
            if not fs.listdir(path):
                fs.rmdir(path)
    if not fs.listdir(staged_dir):
        fs.rmdir(staged_dir)
