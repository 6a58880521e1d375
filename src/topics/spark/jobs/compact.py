"""`compact`: bytes back from segments whose records were deleted; seqs and reads stay as they are (10 §5, 02 §10).

    find       tasks read the `.idx` of every sealed segment, hot and cold: how many bytes of its data are dead
    rewrite    the server does it, `POST …/compact` [CPT-1], asked again until it is done; without a server the store is
               opened here, which takes its lock, and does the same

Where the server's files cannot be reached it finds the segments itself. Driver only, but for the task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple
from urllib.parse import quote

from topics.codec.snapshot import TopicItem
from topics.fs import OsFs
from topics.spark.failure import SourceError
from topics.spark.jobs.place import Store
from topics.spark.jobs.scrub import data_dir
from topics.spark.jobs.spread import spread
from topics.spark.jobs.work import FAILED, OK, Outcome, Work
from topics.storage.view import StoreView, TopicView

CHUNK: Final = 1000
WAIT_MS: Final = 30_000
RATIO: Final = 0.5


class Item(NamedTuple):
    """A topic to look at."""

    path: str
    item: TopicItem


class Found(NamedTuple):
    """A segment that is worth it."""

    topic: str
    first: int
    bytes: int
    dead: int


def check(work: Work, store: Store) -> None:
    """Nothing can be wrong with it before it is looked at."""


def plan(work: Work, store: Store) -> dict[str, Any]:
    """What would be rewritten."""
    found = _find(work, store)
    segments = [one._asdict() for one in found or []]
    size = sum(one.bytes for one in found or [])
    return {"partitions": len(store.instances), "bytes": size, "dead": sum(one.dead for one in found or []),
            "segments": segments, "found_by": "server" if found is None else "job"}  # fmt: skip


def run(work: Work, store: Store) -> Outcome:
    found = _find(work, store)
    names = [one.name for one in store.instances]
    if work.place.url is not None:
        told = _by_server(work, names, found)
    else:
        told = _by_engine(work, names, found or [])
    failed = [one for one in told if one["result"] in ("failed", "busy")]
    freed = sum(one["bytes_before"] - one["bytes_after"] for one in told if one["result"] == "rewritten")
    rewritten = sum(one["result"] == "rewritten" for one in told)
    summary = {"segments": told, "rewritten": rewritten, "freed_bytes": freed}
    return Outcome(rewritten, freed, summary, FAILED if failed else OK)


def _ratio(work: Work) -> float:
    given = work.options.get("min_dead_ratio")
    return RATIO if given is None else float(given)


def _find(work: Work, store: Store) -> list[Found] | None:
    """The segments that are dead enough; None if only the server can look."""
    try:
        path = data_dir(work.fs, work.place)
    except SourceError as error:
        if error.code != "not_local":
            raise
        return None
    wanted = {one.name for one in store.instances}
    items = [Item(path, one.item) for one in StoreView(work.fs, path).topics() if one.name in wanted]
    told = spread(work.spark(), items, dead, work.tell, "topics looked at") if items else []
    found = [Found(**one) for one in told]
    return [one for one in found if one.dead > 0 and one.dead >= _ratio(work) * one.bytes]


def dead(item: Item) -> Iterator[dict[str, Any]]:
    """The dead bytes of every sealed segment of a topic. A task."""
    fs = OsFs()
    topic = TopicView(StoreView(fs, item.path), item.item)
    for first, size, gone in topic.dead_bytes():
        yield Found(item.item.name, first, size, gone)._asdict()


Ask = Callable[[str, dict[str, Any]], dict[str, Any]]


def _by_server(work: Work, names: list[str], found: list[Found] | None) -> list[dict[str, Any]]:
    remote = work.place.server()

    def ask(name: str, body: dict[str, Any]) -> dict[str, Any]:
        return remote.call("POST", f"/v0/topics/{quote(name, safe='')}/compact", {**body, "wait_ms": WAIT_MS})

    try:
        return _asked(work, ask, _bodies(work, names, found))
    finally:
        remote.close()


def _by_engine(work: Work, names: list[str], found: list[Found]) -> list[dict[str, Any]]:
    from topics.engine.backup import as_laid_out
    from topics.engine.config import EngineConfig
    from topics.engine.engine import Engine

    assert work.place.path is not None
    if not found:
        return []
    config = as_laid_out(work.fs, work.place.path, EngineConfig(cold_dir=work.place.cold))
    with Engine.open(work.place.path, config) as engine:

        def ask(name: str, body: dict[str, Any]) -> dict[str, Any]:
            told = engine.compact(name, body.get("segments"), bytes_per_sec=body.get("bytes_per_sec"))
            return {"state": told.state, "segments": [one._asdict() for one in told.segments]}

        return _asked(work, ask, _bodies(work, names, found))


def _bodies(work: Work, names: list[str], found: list[Found] | None) -> list[tuple[str, dict[str, Any]]]:
    """What to ask for, topic by topic."""
    rate = work.options.get("bytes_per_sec")
    more = {} if rate is None else {"bytes_per_sec": int(rate)}
    if found is None:
        return [(name, {"min_dead_ratio": _ratio(work), **more}) for name in names]
    bodies: list[tuple[str, dict[str, Any]]] = []
    for name in names:
        firsts = [one.first for one in found if one.topic == name]
        bodies += [(name, {"segments": firsts[at : at + CHUNK], **more}) for at in range(0, len(firsts), CHUNK)]
    return bodies


def _asked(work: Work, ask: Ask, bodies: list[tuple[str, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Ask until each is done; it goes on by itself meanwhile."""
    told = []
    for done, (name, body) in enumerate(bodies):
        work.tell(done, len(bodies), "calls of compact")
        answer = ask(name, body)
        while answer["state"] == "running":
            answer = ask(name, body)
        told += [{"topic": name, **one} for one in answer["segments"]]
    work.tell(len(bodies), len(bodies), "calls of compact")
    return told
