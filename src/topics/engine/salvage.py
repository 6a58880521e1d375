"""Salvage of a store whose log is damaged [S-66]: pad the log, then let an engine recover it, tell the gaps and close.

    1   the lock is taken; what cannot be mended is refused before anything changes
    2   `storage.salvage` copies and pads
    3   an engine opens with `salvage=True`: a jump in a topic's seqs becomes a gap of reason 2 that is logged, frames
        of topics whose creation was lost are skipped and counted
    4   full checkpoint, snapshot, clean close: the padded files are not needed any more

Interrupted anywhere it can be repeated, also when the log needs no padding any more: step 3 may still be due. The
caller's thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

from topics import paths
from topics.errors import TimingError
from topics.fs import Fs, OsFs, close_quietly
from topics.settings import Settings
from topics.storage.salvage import Plan, Salvaged, pad, plan_salvage


class StoreInUse(TimingError):
    """Another process holds the lock of the data directory [S-11]."""

    code = "data_dir_in_use"


class Recovered(Protocol):
    """What salvage needs of an engine."""

    def checkpoint(self, full: bool = False) -> object: ...

    def close(self) -> object: ...


class Outcome(NamedTuple):
    """What a salvage did."""

    plan: Plan
    done: Salvaged
    skipped: Mapping[int, int]
    """Frames of topics whose creation was lost, by topic id."""


def salvage(
    fs: Fs,
    path: str,
    *,
    config: Settings | None = None,
    open_engine: Callable[[Fs, str], Recovered] | None = None,
    looked: Callable[[int], None] = lambda size: None,
) -> Outcome:
    """Salvage the store at `path`; the refusals of `plan_salvage` change nothing."""
    opened = _engine(config) if open_engine is None else open_engine
    try:
        lock = fs.lock(f"{path}/{paths.LOCK_FILE}")
    except BlockingIOError:
        raise StoreInUse(f"the data directory {path} is in use by another process") from None
    try:
        plan = plan_salvage(fs, path, looked)
        done = pad(fs, plan, looked)
    finally:
        close_quietly(lock)
    engine = opened(fs, path)
    try:
        engine.checkpoint(full=True)
    finally:
        engine.close()
    skipped: Mapping[int, int] = getattr(engine, "skipped", None) or {}
    return Outcome(plan, done, dict(skipped))


def _engine(config: Settings | None) -> Callable[[Fs, str], Recovered]:
    """How the engine itself is opened; looked up first, so that its absence changes nothing."""
    engine: Any = importlib.import_module("topics.engine.engine").Engine

    def opened(fs: Fs, path: str) -> Recovered:
        # On the real disk the engine makes its own `Fs`, and takes the machine's boot id with it.
        where = {} if isinstance(fs, OsFs) else {"fs": fs}
        made: Recovered = engine.open(path, config, salvage=True, **where)
        return made

    return opened
