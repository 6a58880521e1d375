"""Damage at rest in an engine's data directory: every byte, every length, files missing and swapped (13 T6, T7).

    damaged            may lead to
    WAL file           refusal · nothing, where its content is in segments · a torn tail, behind the last flagged frame
                       of a group's last file (a cut of that file: any earlier state of its topics)
    CURRENT, STORE,    refusal or nothing
    snapshot
    .data, .idx        nothing (refilled or rebuilt) · holes of reason `corrupt` inside that segment; never a refusal
    .tag, topic.json,  nothing
    lock
    in the cold tier:  .data: as above · .idx, .tag: nothing · the store id: refusal, or cold reads that fail

Whatever happens, nothing is served wrong: every record shown is one that was acknowledged there, what was deleted stays
away, floors and heads stay, and what is missing is told. A refusal changes nothing on disk but the lock [S-65].
"""

from __future__ import annotations

import copy
import itertools
import json
import random
import struct
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

from topics import paths
from topics.codec.segment import COLD as COLD_MAGIC
from topics.codec.segment import DELETE_BYTE, HOT
from topics.engine.config import EngineConfig
from topics.engine.engine import Engine
from topics.errors import StoreUnavailable, TopicsError
from topics.testing.clock import ManualClock
from topics.testing.enginemodel import Rules, Run, Store, Topic, View
from topics.testing.enginesubject import (
    COLD,
    DIR,
    Session,
    Spec,
    difference,
    observe,
    observe_all,
    observe_rest,
    tiny,
    without_lock,
)
from topics.testing.simfs import SimFs
from topics.testing.subject import Violation
from topics.testing.unexpected import Unexpected

Kind = Literal["flip", "zero", "ones", "truncate", "missing", "swap"]
SAMPLES = ("closed", "killed", "sharded", "tiered")
BOOT = "boot-2"

_FLAG_SYNCED_PREFIX = 1 << 4
_ENTRY = struct.Struct("<IIQI")


class Damage(NamedTuple):
    """What is done to one file; `at` is the byte or the new length, `other` the file it is swapped with."""

    path: str
    kind: Kind
    at: int = 0
    other: str = ""


class Sample(NamedTuple):
    """A data directory at rest, and what is in it."""

    config: EngineConfig
    files: dict[str, bytes]
    store: Store
    past: dict[str, list[View]]
    """Every state that a topic has shown, for files that were cut."""
    now: int
    tails: dict[str, int]
    """The last file of each WAL group, and where its last flagged frame begins: behind that damage looks torn."""


def sample(kind: str) -> Sample:
    """A directory with every type of file: closed in order, or killed with records in the log, or over three shards; or
    with segments in a cold tier.
    """
    if kind == "tiered":
        return _tiered()
    config = tiny(
        wal_shards=3 if kind == "sharded" else 1,
        reserve_min=1100,
        reserve_max=1100,
        segment_max_events=4,
        checkpoint_records=1 << 20,
        reclaim_rewrite=False,
    )
    life = _Life(config)
    life.write("fsync", 6, "a", "b", None)
    life.write("disk", 2)
    life.write("capped", 7)
    life.crash()
    # The machine crash leaves a long run, which becomes a gap segment.
    life.write("disk", 6, "a", "b")
    life.write("memory", 3, "m", None)
    life.delete("fsync", "a")
    life.checkpoint()
    life.write("fsync", 5, "a", None)
    life.delete("disk", "a")
    life.checkpoint()
    life.write("fsync", 2, "c")
    life.write("capped", 2)
    life.delete("fsync", "b")
    life.write("memory", 1)
    life.sync()
    if kind == "closed":
        life.session.close()
    else:
        life.write("disk", 2)
    files = life.disk.files()
    return Sample(config, files, life.session.store, life.past, life.clock.now_ms(), dict(_tails(files)))


def _tiered() -> Sample:
    """Segments in a cold tier, whole, marked and mostly dead; with time more are moved, and some are rewritten."""
    fields: dict[str, Any] = {"cold_dir": COLD, "hot_retain_segments": 0, "segment_max_events": 3}
    life = _Life(tiny(**fields, reclaim_rewrite=False, checkpoint_records=1 << 20))
    life.write("fsync", 10, "a", "b", None)
    life.write("capped", 5)
    life.checkpoint()
    life.session.tick(6000)
    life.delete("fsync", "a")
    life.checkpoint()
    life.session.tick(6000)
    life.session.delete("fsync", seqs=[4, 5])
    life._note("fsync")
    life.write("fsync", 4, "c", None)
    life.checkpoint()
    life.session.close()
    config = tiny(**fields, checkpoint_records=1 << 20)
    return Sample(config, life.disk.files(), life.session.store, life.past, life.clock.now_ms(), {})


_CONFIGS: dict[str, dict[str, Any]] = {
    "fsync": {"durability": "fsync"},
    "disk": {"durability": "disk"},
    "memory": {"durability": "memory"},
    "capped": {"durability": "fsync", "cap_records": 3},
}


class _Life:
    """Writes a sample, checked like any other run."""

    def __init__(self, config: EngineConfig) -> None:
        self.clock = ManualClock()
        self.disk = SimFs()
        self.past: dict[str, list[View]] = {}
        self._config = config
        self._count = 0
        self.session = self._open(Store(), "boot-1")

    def _open(self, store: Store, boot: str) -> Session:
        engine = Engine.open(DIR, self._config, clock=self.clock, fs=self.disk, boot_id=boot)
        return Session(engine, store, self.clock, self._config, lambda: False)

    def _note(self, name: str) -> None:
        topic = self.session.store.topic(name)
        assert topic is not None
        self.past.setdefault(name, [topic.live.view()._replace(head=0, floor=1, runs=(), records=())])
        self.past[name].append(topic.live.view())

    def write(self, name: str, count: int, *tags: str | None) -> None:
        """Records with these tags in turn, each a write of its own."""
        for tag, _ in zip(itertools.cycle(tags or (None,)), range(count), strict=False):
            self._count += 1
            self.session.append(name, [Spec(f"{self._count}", tag)], config=_CONFIGS[name])
            self._note(name)

    def delete(self, name: str, match: str) -> None:
        self.session.delete(name, match=match)
        self._note(name)

    def checkpoint(self) -> None:
        self.clock.advance(2000)
        self.session.checkpoint(full=True)

    def sync(self) -> None:
        """Everything is synced, and a flagged frame says so [S-25]."""
        self.session.tick(1000)
        self.session.tick(30)

    def crash(self) -> None:
        """Power loss that takes nothing but the unwritten part of the reservations."""
        store = self.session.store
        self.disk = self.disk.crash_image(0, "everything")
        self.session = self._open(store, BOOT)
        rules = Rules("crash", self.clock.now_ms(), self.clock.now_ms(), self._config.reserve_max)
        self.session.store = store.judge(observe_all(self.session.engine, None), rules)
        for name in self.session.store.names():
            self._note(name)


def _tails(files: dict[str, bytes]) -> Iterator[tuple[str, int]]:
    """The last file with content of each WAL group, and the start of its last flagged frame."""
    last: dict[str, str] = {}
    for path in sorted(files):
        folder, _, name = path.rpartition("/")
        if paths.parse_wal_file(name) is not None and files[path].strip(b"\0"):
            last[folder] = path
    for path in last.values():
        data, offset, flagged = files[path], 0, 0
        while offset + 6 <= len(data) and (length := struct.unpack_from("<I", data, offset)[0]):
            if data[offset + 5] & _FLAG_SYNCED_PREFIX:
                flagged = offset
            offset += 4 + length
        yield path, flagged


def flips(one: Sample) -> Iterator[Damage]:
    """Every byte of every file: one bit, 0x00, 0xFF."""
    for path, data in one.files.items():
        for at in range(len(data)):
            for kind in ("flip", "zero", "ones"):
                yield Damage(path, kind, at)


def truncations(one: Sample) -> Iterator[Damage]:
    """Every shorter length of every file, every file missing, every two files of one type swapped."""
    for path, data in one.files.items():
        for length in range(len(data)):
            yield Damage(path, "truncate", length)
        yield Damage(path, "missing")
    for a, b in itertools.combinations(one.files, 2):
        # The copy of an index in the tier is an earlier state of the very same file, and sound.
        if _type(a) == _type(b) and _hot(a) != _hot(b):
            yield Damage(a, "swap", other=b)


def _type(path: str) -> str:
    name = path.rpartition("/")[2]
    segment = paths.parse_segment(name)
    if segment is not None:
        return segment.kind
    if paths.parse_wal_file(name) is not None:
        return "wal"
    return "snapshot" if paths.parse_snapshot(name) is not None else name


def inflict(one: Sample, damage: Damage) -> SimFs | None:
    """The sample with its damage, or `None` when that changes nothing."""
    disk = SimFs()
    disk.load(one.files)
    path, kind, at, other = damage
    act: dict[Kind, Callable[[], None]] = {
        "flip": lambda: disk.flip_bit(path, at, at % 8),
        "zero": lambda: disk.set_byte(path, at, 0),
        "ones": lambda: disk.set_byte(path, at, 0xFF),
        "truncate": lambda: disk.truncate_at_rest(path, at),
        "missing": lambda: disk.lose_file(path),
        "swap": lambda: disk.swap_files(path, other),
    }
    act[kind]()
    return None if disk.files() == one.files else disk


def check(one: Sample, damage: Damage) -> bool:
    """Open a damaged directory and judge it; whether the damage changed anything. Raises `Violation`."""
    disk = inflict(one, damage)
    if disk is None:
        return False
    try:
        with Unexpected():
            _judge(one, damage, disk)
    except Violation as violation:
        raise Violation(f"{damage}: {violation}") from violation
    except Exception as error:
        raise Violation(f"{damage}: {error!r} leaks") from error
    return True


_MAY_REFUSE = ("wal", "snapshot", paths.CURRENT_FILE, paths.STORE_FILE, paths.COLD_STORE_FILE)


def _judge(one: Sample, damage: Damage, disk: SimFs) -> None:
    before = disk.files()
    clock = ManualClock(one.now)
    try:
        engine = Engine.open(DIR, one.config, clock=clock, fs=disk, boot_id=BOOT)
    except TopicsError as error:
        if _type(damage.path) not in _MAY_REFUSE:
            raise Violation(f"refused: {error!r}") from error
        if without_lock(disk.files()) != without_lock(before):
            raise Violation("the start was refused and changed the disk [S-65]") from error
        return
    if _type(damage.path) == paths.COLD_STORE_FILE and damage.kind == "missing":
        _tells_nothing(one, engine)
        return
    found = _seen(one, engine)
    cut = damage.path in one.tails and damage.kind in ("truncate", "missing")
    if cut:
        _was_so_once(one, found)
        return
    torn = damage.path in one.tails and damage.kind != "swap" and damage.at >= one.tails[damage.path]
    if torn and all(view in one.past.get(name, []) for name, view in found.items()):
        return
    rules = Rules("crash" if torn else "kill", one.now, one.now, one.config.reserve_max)
    store = _with_damage(one, damage, found)
    store = store.judge(found, rules)
    again = disk.kill_image()
    engine = Engine.open(DIR, one.config, clock=clock, fs=again, boot_id=BOOT)
    second = _seen(one, engine)
    if second != found:
        raise Violation(f"the second start shows {difference(found, second)} [S-249]")
    _works(one, engine, store, clock)
    if one.config.cold_dir is not None:
        _spreads_nothing(one, engine, clock)


def _tells_nothing(one: Sample, engine: Engine) -> None:
    """A tier that nobody can be sure of: what is there cannot be read now, and is not lost [S-14, S-318]."""
    for name in one.store.names():
        topic = one.store.topic(name)
        assert topic is not None
        observe_rest(engine, name, topic.live.view(), range(topic.live.head + 1))
    try:
        engine.read("fsync", 0)
    except StoreUnavailable:
        return
    raise Violation("a tier without a store id is read from [S-14]")


def _spreads_nothing(one: Sample, engine: Engine, clock: ManualClock) -> None:
    """Segments are moved, followed, mended and rewritten: no record that could be read goes, and none goes untold."""
    before = observe_all(engine, None, loose=True)
    for _ in range(12):
        engine.checkpoint(full=True)
        clock.advance(6000)
        engine.tick()
    for name, view in observe_all(engine, None, loose=True).items():
        topic, was = one.store.topic(name), before[name]
        assert topic is not None
        told, was_told = ({seq for run in each.runs for seq in range(run.first, run.last + 1)} for each in (view, was))
        shown, was_shown = ({rec.seq for rec in each.records} for each in (view, was))
        # What was deleted before its index was damaged is silent again when that is mended.
        untold = (was_told - told - shown) & topic.live.records.keys()
        if not was_shown <= shown or untold or view.floor != was.floor:
            raise Violation(f"{name!r}: work on what is damaged leaves {view}, it was {was} [S-176]")


def _seen(one: Sample, engine: Engine) -> dict[str, View]:
    """What is shown; a topic of which nothing is missing must agree with itself in every number, from every cursor.

    Of others the numbers are not held against what is shown: only reading notices some damage, and does not mark it
    [S-176].
    """
    found = observe_all(engine, None, loose=True)
    for name, view in found.items():
        topic = one.store.topic(name)
        whole = topic is not None and len(view.records) == len(topic.live.records)
        if whole and observe(engine, name, random.Random(0)) != view:
            raise Violation(f"{name!r} shows something else when it is read again")
    return found


def _whole(one: Sample, name: str, store: Store) -> bool:
    before, now = one.store.topic(name), store.topic(name)
    return before is not None and now is not None and before.live.records.keys() <= now.live.records.keys()


def _was_so_once(one: Sample, found: dict[str, View]) -> None:
    """A log that was cut shows every topic as it was at some moment: a clean prefix."""
    for name, view in found.items():
        if view not in one.past.get(name, []):
            raise Violation(f"{name!r} is shown as it never was: {view}")


def _with_damage(one: Sample, damage: Damage, found: dict[str, View]) -> Store:
    """The model, with what is told as damaged taken out of the topics whose segments were hit."""
    store = Store()
    store.slots = dict(one.store.slots)
    for name, view in found.items():
        slot = one.store.slots.get(name)
        told = [run for run in view.runs if run.reason == "corrupt"]
        hit = [_span(one, path) for path in (damage.path, damage.other) if path and _owner(one, path) == name]
        if slot is None or slot.topic is None or not (told or hit):
            continue
        for run in told:
            if not all(any(first <= seq <= last for first, last in hit) for seq in range(run.first, run.last + 1)):
                raise Violation(f"{name!r}: {run} is told, but {damage.path} holds {hit} of it")
        store.slots[name] = copy.deepcopy(slot)
        topic = store.slots[name].topic
        assert topic is not None
        _lose(topic, told)
        if view.config.durability == "memory":
            # Nothing is promised about them: what cannot be read may be silent [S-130, S-246].
            topic.soft.update(seq for seq in topic.live.records if any(first <= seq <= last for first, last in hit))
        shown = {rec.seq for rec in view.records}
        for seq in shown.intersection(_unmarked(one, damage)):
            for state in (topic.base, topic.live):
                state.records = dict(sorted({**state.records, seq: topic.written[seq][-1]}.items()))
    return store


def _unmarked(one: Sample, damage: Damage) -> list[int]:
    """The record whose delete byte became 0x00: in an active segment that byte alone says whether it lives.

    So it may be back, and the start counts that as damage (06 §14 step 5). In a sealed segment the `.idx` is believed.
    """
    data, index = one.files[damage.path], one.files.get(damage.path.removesuffix(".data") + ".idx", b"")
    is_zeroed = damage.kind == "zero" and damage.path.endswith(".data") and data[damage.at] == DELETE_BYTE
    if not is_zeroed or len(index) % _ENTRY.size or index[-_ENTRY.size :].startswith((HOT, COLD_MAGIC)):
        return []
    first, _ = _span(one, damage.path)
    ends = [offset + size - 1 for offset, size, _, _ in _ENTRY.iter_unpack(index)]
    return [first + ends.index(damage.at)] if damage.at in ends else []


def _hot(path: str) -> str:
    """Where a file of the cold tier was before."""
    return f"{DIR}/{path.removeprefix(f'{COLD}/')}" if path.startswith(f"{COLD}/") else path


def _owner(one: Sample, path: str) -> str:
    """The topic that a file belongs to, by its descriptor [S-13]."""
    folder = _hot(path).rpartition("/")[0]
    descriptor = one.files.get(f"{folder}/{paths.TOPIC_FILE}")
    return "" if descriptor is None else str(json.loads(descriptor)["name"])


def _span(one: Sample, path: str) -> tuple[int, int]:
    """The seqs of the segment that a file belongs to; none for other files, nor for those that only stand by."""
    folder, _, name = _hot(path).rpartition("/")
    segment = paths.parse_segment(name)
    if segment is None or (_hot(path) != path and segment.kind != "data"):
        return 0, 0
    names = [paths.parse_segment(other.rpartition("/")[2]) for other in one.files if other.startswith(f"{folder}/")]
    later = [other.first_seq for other in names if other is not None and other.first_seq > segment.first_seq]
    return segment.first_seq, min(later, default=1 << 62) - 1


def _lose(topic: Topic, told: list[Run]) -> None:
    """Turn the records of these runs into holes, wherever the model has them."""
    for state in (topic.base, topic.live):
        runs = list(state.runs)
        for lost in told:
            state.records = {seq: rec for seq, rec in state.records.items() if not lost.first <= seq <= lost.last}
            runs = [part for run in runs for part in _outside(run, lost)] + [lost]
        state.runs = tuple(runs)


def _outside(run: Run, lost: Run) -> Iterator[Run]:
    if run.first < lost.first:
        yield run._replace(last=min(run.last, lost.first - 1))
    if run.last > lost.last:
        yield run._replace(first=max(run.first, lost.last + 1))


def _works(one: Sample, engine: Engine, store: Store, clock: ManualClock) -> None:
    """A damaged store that started goes on: every topic takes, shows and deletes records."""
    session = Session(engine, store, clock, one.config, lambda: False)
    for name in store.names():
        session.append(name, [Spec("after the damage")])
    session.checkpoint(full=True)
    sound = [name for name in store.names() if _whole(one, name, store)]
    for name in sound:
        session.delete(name, before_seq=5)
    session.check(sound, random.Random(0))
