"""A plan whose files a server holds while it is read, and no longer [A-8].

A server has few pins for everybody, and each holds files that would have gone. Spark's own reads cannot say when they
are through, and their pins end by themselves; whoever reads by a plan of its own gives them back. Any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from topics.fs import Fs
from topics.spark.options import ReadOptions
from topics.spark.plan import Partition, partitions
from topics.spark.reader import plan_read
from topics.spark.remote import Remote, plan_told, segments_of


@contextmanager
def held(fs: Fs, options: ReadOptions, now_ms: int) -> Iterator[list[Partition]]:
    """What tasks read; a server keeps its files until the block ends."""
    if options.url is None:
        yield plan_read(fs, options, now_ms)
        return
    remote, pins, told = Remote.of(options), [], []
    try:
        for name in options.topics if options.pattern is None else remote.topics(options.pattern):
            one = segments_of(remote, name, options)
            told.append(one)
            pins += [one["pin"]["id"]] if one.get("pin") else []
        yield partitions(*plan_told(fs, remote, told, options))
    finally:
        for pin in pins:
            remote.release(pin)
        remote.close()
