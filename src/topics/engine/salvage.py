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

from collections.abc import Callable
from typing import NamedTuple, Protocol

from topics.engine.engine import Engine, RecoveryReport
from topics.fs import Fs, OsFs
from topics.settings import Settings
from topics.storage.lockfile import StoreLock
from topics.storage.salvage import Plan, Salvaged, pad, plan_salvage


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
        engine.checkpoint(full=True)
    finally:
        engine.close()
    return Outcome(plan, done, engine.recovered)


def _engine(config: Settings | None) -> Callable[[Fs, str], Recovered]:
    """How the engine itself is opened. On the real disk it makes its own `Fs`, and asks for the machine's boot id."""
    return lambda fs, path: Engine.open(path, config, fs=None if isinstance(fs, OsFs) else fs, salvage=True)
