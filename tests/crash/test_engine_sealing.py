"""Each sealing trigger fires on a small topic of an engine that does nothing else; the files show it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.crash.kit_engine import SegmentFiles, Store, is_whole

TICK_MS = 500
NEVER: dict[str, Any] = {"segment_max_events": 10_000, "segment_max_bytes": 1 << 26, "segment_max_age_ms": 0}


def sealed_after(store: Store, ms: int) -> tuple[list[SegmentFiles], list[SegmentFiles]]:
    """The sealed and the other segments of the topic, once that much time has passed on an idle engine."""
    store.tick(ms, TICK_MS)
    before = store.sim.files()
    found = store.segments("t", topic_id=only_topic(store))
    assert store.sim.files() == before
    return [one for one in found if one.footer is not None], [one for one in found if one.footer is None]


def only_topic(store: Store) -> int:
    (folder,) = {path.split("/")[2] for path in store.sim.files() if path.startswith("store/topics/")}
    return int(folder, 16)


def store_of_20(durability: str, **config: Any) -> Store:
    store = Store(**{**NEVER, **config}).start()
    store.put("t", durability)
    store.write("t", 20, size=200)
    return store


def read_back(store: Store) -> None:
    """Before and after every kind of restart."""
    is_whole(store, "t")
    is_whole(store.killed().start(), "t")
    store.rest()
    for fork in store.ends():
        is_whole(fork.start(), "t")
    is_whole(store.stop().start(), "t")


def is_contiguous(segments: list[SegmentFiles], last: int) -> None:
    at = 1
    for one in segments:
        assert one.first == at
        at = one.last + 1
    assert at == last + 1


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_the_count_trigger_seals_every_fifth_record(durability: str) -> None:
    """S-127, selection (1): 20 records in segments of 5; the last one is full but seals when the next entry comes."""
    store = store_of_20(durability, segment_max_events=5)
    sealed, active = sealed_after(store, 6000)
    assert [one.n for one in sealed][:3] == [5, 5, 5]
    assert [one.n for one in sealed + active] == [5, 5, 5, 5]
    is_contiguous(sealed + active, 20)
    read_back(store)


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
def test_the_byte_trigger_seals_at_a_kibibyte(durability: str) -> None:
    """S-127, selection (1): each sealed `.data` has reached the limit, and had not one record earlier."""
    store = store_of_20(durability, segment_max_bytes=1024)
    sealed, active = sealed_after(store, 6000)
    assert len(sealed) >= 3
    assert len(active) <= 1
    files = store.sim.files()
    for one in sealed:
        size = len(files[one.path("data")])
        assert 1024 <= size < 1024 + size // one.n
    is_contiguous(sealed + active, 20)
    read_back(store)


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("age_ms", [1000, 20_000])
def test_the_age_trigger_seals_an_idle_topic_whatever_its_size(age_ms: int, durability: str) -> None:
    """S-127, selection (5): sealed at most one checkpoint interval after the age of its last write."""
    store = store_of_20(durability, segment_max_age_ms=age_ms)
    sealed, active = sealed_after(store, age_ms + 5000 + TICK_MS)
    assert active == []
    assert sum(one.n for one in sealed) == 20
    is_contiguous(sealed, 20)
    read_back(store)


def test_the_age_trigger_seals_what_an_earlier_checkpoint_left_active() -> None:
    """S-127: the trigger is also checked at every checkpoint tick, so a partial segment does not stay open."""
    store = store_of_20("fsync", segment_max_age_ms=8000)
    store.engine.checkpoint(full=True)
    sealed, active = sealed_after(store, 1000)
    assert (len(sealed), [one.n for one in active]) == (0, [20])
    sealed, active = sealed_after(store, 8000 + 5000)
    assert ([one.n for one in sealed], active) == ([20], [])
    read_back(store)


def test_without_a_trigger_nothing_seals() -> None:
    """S-127: the tests above see the triggers, not the passing of time."""
    store = store_of_20("fsync")
    sealed, _ = sealed_after(store, 60_000)
    assert sealed == []
    read_back(store)


@pytest.mark.parametrize(
    "trigger", [{"segment_max_events": 5}, {"segment_max_bytes": 1024}, {"segment_max_age_ms": 1000}]
)
def test_a_seal_after_a_restart_finds_the_records_of_the_run_before(trigger: dict[str, Any]) -> None:
    """S-127, GEN-1: age is counted from the records' own time, not from the start of the process."""
    store = store_of_20("fsync")
    store.kill().start(**trigger)
    sealed, active = sealed_after(store, 6500)
    assert sealed
    is_contiguous(sealed + active, 20)
    read_back(store)
