"""Backups of an engine on the simulated disk, and the stores made of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tests.crash.kit_engine import DIR, Store, read_all
from topics import paths
from topics.codec import snapshot
from topics.engine.backup import held
from topics.engine.checkpoint import Pinned
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.fs import Fs
from topics.storage.backup.depot import FolderDepot
from topics.storage.backup.restore import Restored, restore
from topics.storage.backup.take import Source, Taken, Taker
from topics.storage.inspect import inspect
from topics.testing import ManualClock, SimFs

DEST = "backup"
NEW = "restored"


def no_cold(topic_id: int, first: int, generation: int, length: int) -> bytes:
    raise AssertionError("nothing is cold")


def pin(engine: Engine, pin_ms: int = 3_600_000) -> Pinned:
    """A pinned checkpoint [A-15]."""
    found = engine._call(lambda done: engine.begin_checkpoint(done, pin_ms))
    assert isinstance(found, Pinned)
    return found


def source(fs: Fs, found: Pinned, dir: str = DIR) -> Source:
    """What a pinned snapshot names."""
    assert found.result.snapshot is not None
    name = f"{dir}/{paths.META_DIR}/{paths.snapshot(found.result.snapshot)}"
    file = fs.open(name, "r")
    return Source(fs, dir, snapshot.decode(file.pread(file.size(), 0)), no_cold)


def back_up(store: Store, fs: Fs | None = None) -> Taken:
    """Of the running engine, through a pin."""
    found = pin(store.engine)
    taken = Taker(FolderDepot(fs or store.fs, DEST)).take(source(store.fs, found))
    store.engine.release_pin(found.pin.id)
    return taken


def back_up_stopped(store: Store) -> Taken:
    """Of a store that nobody has open."""
    config, clock = EngineConfig(**store.config), ManualClock(store.clock.now_ms())
    with held(store.fs, DIR, config, clock=clock, boot_id=f"boot-{store.boot}") as taken:
        return Taker(FolderDepot(store.fs, DEST)).take(Source(store.fs, DIR, taken, no_cold))


def restored(fs: Fs, dir: str = NEW) -> Restored:
    """A new store beside the old one, in which nothing is worth more than a note."""
    made = restore(fs, FolderDepot(fs, DEST), dir)
    findings = inspect(fs, dir).findings
    assert {one.severity for one in findings} <= {"note"}, findings
    return made


def opened(fs: Fs, dir: str = NEW, **config: Any) -> Engine:
    """The engine of a restored store: another machine, as far as it can tell."""
    return Engine.open(dir, EngineConfig(**config), clock=ManualClock(), fs=fs, boot_id="elsewhere")


class Shown(NamedTuple):
    """A topic as a reader sees it."""

    records: dict[int, tuple[object, str | None]]
    gaps: list[tuple[int, int, str]]
    head: int


def shown(engine: Engine, topic: str) -> Shown:
    seen = read_all(engine, topic)
    return Shown({seq: (one.data, one.tag) for seq, one in seen.records.items()}, seen.gaps, seen.head)


def everything(engine: Engine) -> dict[str, Shown]:
    return {topic: shown(engine, topic) for topic in engine.topics()}


def at_points(sim: SimFs, name: str, call: Callable[[], None]) -> None:
    """Have something done the next time a crash point is passed."""
    done: list[str] = []

    def before(passed: Any) -> None:
        if passed[:2] == ("point", name) and not done:
            done.append(name)
            call()

    sim.before = before
