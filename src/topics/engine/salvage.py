"""Salvage of a store whose log is damaged [S-66]: pad the log, then let an engine recover it, tell the gaps and close.

    1   the lock is taken; what cannot be mended is refused before anything changes
    2   `storage.salvage` copies and pads
    3   an engine opens with `salvage=True`: a jump in a topic's seqs becomes a gap of reason 2 that is logged, frames
        of topics whose creation was lost are skipped and counted
    4   segments that the cold tier is known not to have become damage for good [S-317]; an index that was lost is
        taken from there as it is, whether or not it knows the latest deletes [S-316]
    5   full checkpoint, snapshot, clean close: the padded files are not needed any more

Interrupted anywhere it can be repeated, also when the log needs no padding any more: step 3 may still be due. The
caller's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple, Protocol

from topics.engine.backup import as_laid_out
from topics.engine.config import EngineConfig
from topics.engine.core import Core
from topics.engine.engine import Engine, RecoveryReport
from topics.engine.topic import Topic
from topics.errors import StoreUnavailable
from topics.fs import Fs, OsFs
from topics.settings import Settings
from topics.storage.lockfile import StoreLock
from topics.storage.salvage import Plan, Salvaged, pad, plan_salvage
from topics.storage.segfile import footer_hash
from topics.storage.segments import TopicSegments
from topics.storage.tiers.relocation import adopt_stub, any_stub
from topics.storage.tiers.store import SegmentId, SegmentStore, check_owner

log = logging.getLogger("topics.engine")


class Recovered(Protocol):
    """What salvage needs of an engine."""

    recovered: RecoveryReport

    def checkpoint(self, full: bool = False) -> object: ...

    def close(self) -> object: ...


class Outcome(NamedTuple):
    """What a salvage did."""

    plan: Plan
    done: Salvaged
    lost: RecoveryReport


def salvage(
    fs: Fs,
    path: str,
    *,
    config: Settings | None = None,
    open_engine: Callable[[Fs, str], Recovered] | None = None,
    looked: Callable[[int], None] = lambda size: None,
) -> Outcome:
    """Salvage the store at `path`; `DataDirInUse` and the refusals of `plan_salvage` change nothing."""
    opened = _engine(config) if open_engine is None else open_engine
    lock = StoreLock(fs, path, "", 0)
    try:
        plan = plan_salvage(fs, path, looked)
        done = pad(fs, plan, looked)
    finally:
        lock.release()
    engine = opened(fs, path)
    try:
        if isinstance(engine, Engine):
            settle_cold(engine.core)
        engine.checkpoint(full=True)
    finally:
        engine.close()
    return Outcome(plan, done, engine.recovered)


def _engine(config: Settings | None) -> Callable[[Fs, str], Recovered]:
    """How the engine itself is opened. On the real disk it makes its own `Fs`, and asks for the machine's boot id."""

    def opened(fs: Fs, path: str) -> Engine:
        own = as_laid_out(fs, path, EngineConfig.of(config or EngineConfig()))
        return Engine.open(path, own, fs=None if isinstance(fs, OsFs) else fs, salvage=True)

    return opened


def settle_cold(core: Core) -> None:
    """Make final what the cold tier has lost; where it cannot be asked nothing is decided."""
    if core.cold.root is None:
        return
    try:
        check_owner(core.cold.root, core.cold.store_id)
        for topic in core.topics.values():
            if topic.index.segments is not None:
                _settle(core, topic, topic.index.segments, core.cold.root.topic(topic.id))
    except StoreUnavailable as error:
        log.error("the cold tier cannot be asked; nothing in it is given up: %s", error)


def _settle(core: Core, topic: Topic, segments: TopicSegments, store: SegmentStore) -> None:
    for one in segments.segments:
        if not one.cold or one.stub:
            continue
        raw = any_stub(store, segments.files, one) if one.unindexed else None
        if raw is not None:
            segments.files.write_footed(one.first, raw)
            segments.files.sync_dir()
            adopt_stub(one, raw)
            one.idx_xxh3 = footer_hash(raw)
        elif not one.unindexed and store.exists(SegmentId(one.first, one.generation), "data"):
            continue
        else:
            log.error("topic %r: segment %d is lost in the cold tier", topic.name, one.first)
            one.cold = one.unindexed = False
            one.lost = True
            segments.give_up(one)
        segments.reader.forget(one)
    if any(one.given_up for one in segments.segments):
        _write_losses(segments)
    core.touch(topic)
    topic.forget_ahead()
    topic.recount()


def _write_losses(segments: TopicSegments) -> None:
    """What was given up is said on disk, as a start does it [S-250]."""
    cycle = segments.begin()
    try:
        cycle.prepare()
        cycle.sync()
    except OSError:
        segments.abandon(cycle)
        raise
    segments.commit(cycle)
