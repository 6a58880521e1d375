"""A cold tier that fails on its own: every request × fault, and whether work goes on afterwards (13 T4, 06 §16).

    case       a workload on an object store, with a fault that begins at one of its requests (`simbucket`); or a life,
               whose number chooses the operations and several faults, one after another
    reads      while it lasts: what a reader gets is right, and nothing is told as lost; what is here needs no tier
    restarts   never wait for the tier, and survivors of every kind show what was promised once it is back
    go on      `Progress`: then everything gets done that was held up, and nothing is left over

The disk itself is well all the time. A dry run counts the requests; then each case has a run of its own.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from topics import paths
from topics.engine import reclaim
from topics.engine.engine import Engine
from topics.engine.topic import Topic
from topics.errors import DiskError, TimingError
from topics.storage import tags
from topics.storage.descriptor import Segment
from topics.testing.clock import ManualClock
from topics.testing.enginemodel import Store, View
from topics.testing.enginesubject import DIR, OBJECTS, EngineDriver, Setup, tiny
from topics.testing.simbucket import KINDS, Kind, Request, SimBucket, TierFault
from topics.testing.simfs import SimFs
from topics.testing.subject import Violation
from topics.testing.unexpected import Unexpected

ROUND_MS = 6000
"""Time in which the relocator comes by once."""
ROUNDS = 16
"""What was held up is done within so many, whatever it was: some failures in a row end a round [S-312]."""
SWEEP_MS = 3_600_000
"""What no descriptor names is looked for once an hour [S-285]."""

_CONFIG: dict[str, Any] = {"cold_dir": OBJECTS, "hot_retain_segments": 0, "segment_max_events": 3}
WORKLOADS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "moves": ({}, ("fill", "round", "fill", "kill_reopen", "round", "fill", "round")),
    "retained": ({"hot_retain_segments": 1, "cold_cache_bytes": 0}, ("fill", "round", "fill", "round")),
    "deletes": (
        {"reclaim_rewrite": False},
        ("fill", "round", "forget_tag", "checkpoint", "close_reopen", "round", "forget_before", "checkpoint", "round"),
    ),
    "rewrites": ({}, ("fill", "round", "thin_out", "checkpoint", "round", "round", "kill_reopen", "round")),
    "prefixes": (
        {"cold_cache_bytes": 0},
        ("fill", "round", "forget_before", "checkpoint", "crash_reopen", "round", "fill", "forget_all", "checkpoint"),
    ),
    "caps": (
        {"cold_cache_bytes": 0},
        ("fill_capped", "round", "fill_capped", "checkpoint", "close_reopen", "round", "fill_capped", "round"),
    ),
    "ends": ({}, ("fill_churn", "round", "drop_churn", "kill_reopen", "fill_churn", "round", "drop_churn", "round")),
}

LIFE = "life"
"""`life 7` is a workload too."""
_LIVED: dict[str, int] = {
    "trouble": 12, "round": 5, "fill": 3, "fill_capped": 1, "fill_churn": 1, "drop_churn": 1, "checkpoint": 1,
    "snapshot": 1, "forget_tag": 1, "forget_before": 1, "forget_all": 1, "thin_out": 1, "close_reopen": 1,
    "kill_reopen": 1, "crash_reopen": 1,
}  # fmt: skip
"""The operations of a life, and how often they come."""


def workload_of(name: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Configuration and operations."""
    if not name.startswith(LIFE):
        return WORKLOADS[name]
    rng = random.Random(name)
    fields = {
        "hot_retain_segments": rng.choice((0, 1)),
        "cold_cache_bytes": rng.choice((0, 1 << 20)),
        "reclaim_rewrite": rng.random() < 0.7,
        "segment_max_events": rng.choice((2, 3, 5)),
    }
    return fields, tuple(rng.choices(list(_LIVED), list(_LIVED.values()), k=rng.randrange(10, 35)))


class Case(NamedTuple):
    """One fault in one workload; a life brings its own."""

    workload: str
    fault: TierFault | None


class TierDriver(EngineDriver):
    """An engine whose cold tier is an object store that may fail."""

    def __init__(self, workload: str, fault: TierFault | None = None) -> None:
        fields, self.ops = workload_of(workload)
        config = tiny(**(_CONFIG | fields))
        super().__init__(Setup(config, "tiny", (config.wal_shards,)), 0)
        self.rng = random.Random(f"tier {workload}")
        self.bucket = SimBucket(self.clock, fault)

    def _begin(self, engine: Engine, store: Store) -> None:
        super()._begin(engine, store)
        self.session.meets_faults = True

    def _touched(self, names: list[str]) -> list[str]:
        return names

    def _look(self, engine: Engine) -> tuple[dict[str, View], dict[str, View]]:
        """Where the tier does not let us look, a twin is looked at, whose tier is well."""
        struck = self.bucket.struck
        try:
            return super()._look(engine)
        except (DiskError, TimingError, Violation):
            if self.bucket.struck == struck and not self._without_tier():
                raise
        self._judged = self.bucket.twin()
        twin = self._opened(self.disk.kill_image(), self._boot(again=False), ManualClock(self.clock.now_ms()))
        return super()._look(twin)

    # The operations: those of an engine that are about a tier, without chance.

    def _tagged(self, name: str) -> None:
        """Three segments of three records, some of them tagged, and one record that is not sealed yet."""
        for tag in ("a", "b:1", None):
            specs = [self._spec(20)._replace(tag=each) for each in (tag, "b:2", tag)]
            self.session.append(name, specs, config=self._zoo(name))
        self.session.append(name, [self._spec(20)], config=self._zoo(name))
        self.session.checkpoint(full=True)

    def _zoo(self, name: str) -> dict[str, Any]:
        return {"durability": "fsync", "cap_records": 7} if name == "capped" else {"durability": "fsync"}

    def _op_fill(self) -> None:
        self._tagged("fsync")

    def _op_fill_capped(self) -> None:
        self._tagged("capped")

    def _op_fill_churn(self) -> None:
        self._tagged("churn")

    def _op_drop_churn(self) -> None:
        self.session.delete_topic("churn")

    def _op_trouble(self) -> None:
        """The next fault comes soon, or the tier is well again."""
        kind = self.rng.choice((None, *dict.fromkeys(kind for kinds in KINDS.values() for kind in kinds)))
        if kind is None:
            self.bucket.mend()
        else:
            self.bucket.inject(kind, self.rng.randrange(1, 25))

    def _op_round(self) -> None:
        self.session.tick(ROUND_MS)

    def _op_checkpoint(self) -> None:
        self.session.checkpoint(full=True)

    def _forget(self, **selector: Any) -> None:
        if self.store.topic("fsync") is None:
            self._op_fill()
        self.session.delete("fsync", **selector)

    def _op_forget_tag(self) -> None:
        self._forget(match="b*")

    def _op_forget_before(self) -> None:
        self._forget(before_seq=5)

    def _op_forget_all(self) -> None:
        self._forget(before_seq=2**64 - 1)

    def _op_thin_out(self) -> None:
        """All of a segment but one record, and the whole of another."""
        self._forget(seqs=[1, 2, 4, 5, 6])


def cases(workload: str) -> Iterator[Case]:
    """Every fault that can strike in a workload."""
    if workload.startswith(LIFE):
        yield Case(workload, None)
        return
    driver = TierDriver(workload)
    _run(driver)
    for index, request in enumerate(driver.bucket.asked, 1):
        for kind in KINDS[request]:
            yield Case(workload, TierFault(kind, index))


def cases_at(workload: str, kind: Kind, request: Request) -> list[Case]:
    """Those of one kind that begin with a request of one sort."""
    driver = TierDriver(workload)
    _run(driver)
    found = [index for index, asked in enumerate(driver.bucket.asked, 1) if asked == request]
    return [Case(workload, TierFault(kind, index)) for index in found]


def run_case(case: Case) -> None:
    """Run a workload with its fault. Raises `Violation`."""
    driver = TierDriver(case.workload, case.fault)
    rng = random.Random(f"tier {case}")
    try:
        with Unexpected():
            _run(driver)
            progress = Progress(driver)
            progress.without_tier() if not driver.bucket.denies else progress.without_deletes()
            driver.judge(driver.disk.kill_image(), "kill", rng)
            driver.judge(driver.disk.crash_image(rng), "crash", rng)
            driver.bucket.mend()
            progress.complete()
            driver.must_work()
    except Exception as error:
        raise Violation.of(f"{case.workload}, {case.fault}", error) from error
    finally:
        driver.end()


def _run(driver: TierDriver) -> None:
    driver.open(SimFs())
    for op in driver.ops:
        driver.do(op)


class Progress:
    """Whether an engine gets on with its work; raises `Violation` where something is held up."""

    def __init__(self, driver: TierDriver) -> None:
        self._driver = driver

    def without_tier(self) -> None:
        """Whatever the tier does, the log is trimmed [S-315]."""
        self._rounds(2)
        self._log_is_trimmed()

    def without_deletes(self) -> None:
        """Objects that may not be deleted hold up nothing but themselves [S-318]."""
        self._all_rounds()
        for topic, one in self._sealed():
            self._is_where_it_belongs(topic, one)
        locked = self._driver.bucket.locked
        if locked is not None:
            self._objects_are_those_of_segments(beside=locked)
        self._driver.session.check(self._driver.store.names(), self._driver.rng)
        self._log_is_trimmed()

    def complete(self) -> None:
        """The tier is well: everything gets done, and nothing is left over, here or there."""
        self._all_rounds()
        core = self._driver.session.engine.core
        if core.cold.drops or core.cold.clears or core.cold.is_unclaimed:
            raise Violation(
                f"still in line: {core.cold.drops}, {core.cold.clears}, unclaimed: {core.cold.is_unclaimed}"
            )
        for topic, one in self._sealed():
            self._is_where_it_belongs(topic, one)
            self._is_settled(topic, one)
        self._files_are_those_of_segments()
        self._objects_are_those_of_segments()
        self._driver.session.check(self._driver.store.names(), self._driver.rng)
        self._nothing_was_told_as_lost()
        self._log_is_trimmed()

    def _all_rounds(self) -> None:
        self._rounds(ROUNDS)
        self._driver.session.tick(SWEEP_MS)
        self._rounds(2)

    def _rounds(self, count: int) -> None:
        session = self._driver.session
        for _ in range(count):
            session.checkpoint(full=True)
            session.tick(ROUND_MS)

    def _topics(self) -> list[Topic]:
        return list(self._driver.session.engine.core.topics.values())

    def _sealed(self) -> list[tuple[Topic, Segment]]:
        """Every sealed segment with records, those that hot retention keeps left out."""
        keep = self._driver.session.engine.core.config.hot_retain_segments
        found = []
        for topic in self._topics():
            segments = topic.index.segments.segments if topic.index.segments is not None else []
            sealed = [one for one in segments if one.sealed and one.gap is None]
            kept = [one for one in sealed if one.has_data or one.cold][-keep:] if keep else []
            found += [(topic, one) for one in sealed if one not in kept]
        return found

    def _is_where_it_belongs(self, topic: Topic, one: Segment) -> None:
        """It is in the tier, and not here; where nothing lives, it is not here either [S-274, S-310]."""
        if one.live and not one.cold:
            raise Violation(f"segment {one.first} of {topic.name!r} was not moved [S-312]")
        dir = self._driver.session.engine.core.topic_dir(topic.id)
        left = [path for path in self._driver.disk.files() if _is_data(path, dir, one.first)]
        if left:
            raise Violation(f"segment {one.first} of {topic.name!r} is in the tier, and {left} are still here [S-311]")

    def _is_settled(self, topic: Topic, one: Segment) -> None:
        """Deletes have reached it, and nothing of it is lost [S-285, S-315, S-316]."""
        assert topic.index.segments is not None
        about = f"segment {one.first} of {topic.name!r}"
        if one.busy or one.lost or len(one.pending) or (one.cold and (one.behind or one.unindexed or one.untagged)):
            raise Violation(f"{about} is not settled: {[name for name in one.__slots__ if getattr(one, name) is True]}")
        if one.cold and not one.live:
            raise Violation(f"{about} is dead, and its objects are still there [S-274]")
        least = self._driver.session.engine.core.config.rewrite_min_bytes
        rewrites = self._driver.session.engine.core.config.reclaim_rewrite
        if rewrites and one.cold and reclaim.is_mostly_dead(topic.index.segments, one, least):
            raise Violation(f"{about} is mostly dead and was not rewritten [S-285]")

    def _files_are_those_of_segments(self) -> None:
        """No file, and no directory, of what is gone."""
        core = self._driver.session.engine.core
        known = {core.topic_dir(topic.id): topic.index.segments for topic in self._topics()}
        for path in self._driver.disk.files():
            dir, _, name = path.rpartition("/")
            if not path.startswith(f"{DIR}/{paths.TOPICS_DIR}/"):
                continue
            one, segments = paths.parse_segment(name), known.get(dir)
            is_known = dir in known and not paths.parse_tmp(name)
            if not is_known or (one and (segments is None or segments.find(one.first_seq) is None)):
                raise Violation(f"{path} is left over [S-275]")
        dirs = {f"{DIR}/{paths.TOPICS_DIR}/{name}" for name in self._driver.disk.listdir(f"{DIR}/{paths.TOPICS_DIR}")}
        if dirs - known.keys():
            raise Violation(f"{sorted(dirs - known.keys())} are left over [S-276]")

    def _objects_are_those_of_segments(self, beside: str | None = None) -> None:
        """The tier has what the stubs name, with the very same index, and nothing else [S-285, S-315].

        Of what lies `beside` an object that may not be deleted nothing is known: of its segment, or of its topic where
        that is gone.
        """
        objects, wanted = self._driver.bucket.objects, {paths.COLD_STORE_FILE}
        for topic in self._topics():
            segments = topic.index.segments.segments if topic.index.segments is not None else []
            wanted.update(*(self._objects_of(topic, one) for one in segments if one.cold and one.live))
        missing, over = sorted(wanted - objects.keys()), sorted(objects.keys() - wanted)
        if beside is not None:
            dir, _, file = beside.rpartition("/")
            known = {paths.topic_dir(topic.id) for topic in self._topics()}
            near = f"{dir}/{file.partition('.')[0]}" if dir.rpartition("/")[2] in known else dir
            missing, over = ([key for key in keys if not key.startswith(near)] for keys in (missing, over))
        if missing or over:
            raise Violation(f"the tier lacks {missing}, and {over} are left over [S-285]")

    def _objects_of(self, topic: Topic, one: Segment) -> set[str]:
        """The keys of a cold segment; index and tags must be those that are here."""
        files, objects = self._driver.disk.files(), self._driver.bucket.objects
        here, there = (
            self._driver.session.engine.core.topic_dir(topic.id),
            f"{paths.TOPICS_DIR}/{paths.topic_dir(topic.id)}",
        )
        idx, tag = paths.segment(one.first, "idx"), paths.segment(one.first, "tag")
        found = {name: objects[f"{there}/{name}"].data for name in (idx, tag) if f"{there}/{name}" in objects}
        if found.get(idx) != files[f"{here}/{idx}"]:
            raise Violation(f"the index of segment {one.first} of {topic.name!r} did not follow [S-315]")
        # Where a rewrite has left no tags, an empty file has taken the place of theirs in the tier.
        known = files.get(f"{here}/{tag}")
        if found.get(tag) not in ((None, tags.empty_sidecar(topic.id, one.first)) if known is None else (known,)):
            raise Violation(f"the tags of segment {one.first} of {topic.name!r} did not follow [S-285]")
        return {f"{there}/{name}" for name in (paths.segment(one.first, "data", one.generation), *found)}

    def _nothing_was_told_as_lost(self) -> None:
        """What the tier did not answer is not damaged [S-317]."""
        engine = self._driver.session.engine
        told = engine.read("$loss", 0, limit=1000).records if "$loss" in engine.topics(system=True) else []
        if damaged := [record.raw_data for record in told if b'"corrupt"' in record.raw_data]:
            raise Violation(f"told as lost, and nothing was: {damaged} [S-317]")

    def _log_is_trimmed(self) -> None:
        """What is in segments leaves the log [S-89]."""
        driver = self._driver
        for _ in range(2):
            driver.session.append("fsync", [driver._spec(driver._config.wal_file_bytes)], config=driver._zoo("fsync"))
            driver.session.snapshot()
        logs = [path for path in driver.disk.files() if paths.parse_wal_file(path.rpartition("/")[2])]
        if len(logs) > driver._config.wal_retain_files + 2:
            raise Violation(f"the log is not trimmed: {logs} [S-315]")


def _is_data(path: str, dir: str, first: int) -> bool:
    folder, _, name = path.rpartition("/")
    found = paths.parse_segment(name)
    return folder == dir and found is not None and (found.first_seq, found.kind) == (first, "data")
