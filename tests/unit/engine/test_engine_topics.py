"""Topics: names, lazy creation, configuration, deletion and what a new instance starts with (01 §2, §3, §11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.unit.engine import kit
from tests.unit.engine.kit import TOPIC, Store, numbers, write
from topics.engine.engine import Engine
from topics.errors import (
    CallerError,
    LimitReached,
    RecordTooLarge,
    TopicExistsIncompatible,
    TopicNotFound,
    TopicsError,
)
from topics.model import Producer, TopicConfig, new

DEFAULTS = {
    "type": "log",
    "ttl_ms": 0,
    "cap_records": 0,
    "cap_bytes": 0,
    "discard": "old",
    "durable": False,
    "durability": "disk",
    "priority": None,
    "auto_priority": True,
    "auto_create": True,
    "idempotency_window_ms": 120_000,
    "dedupe_node": True,
    "lease_ms": 30_000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}
CHANGES: dict[str, Any] = {
    "ttl_ms": 500,
    "cap_records": 7,
    "cap_bytes": 1000,
    "discard": "reject",
    "durable": True,
    "durability": "memory",
    "priority": -5,
    "auto_priority": False,
    "auto_create": False,
    "idempotency_window_ms": 0,
    "dedupe_node": False,
    "lease_ms": 100,
    "claim_jitter_ms": 5000,
    "max_deliveries": 3,
    "dead_letter": "dead",
    "leases_durable": True,
}
BAD_NAMES = [
    "",
    "-a",
    ".a",
    "_a",
    ":a",
    "a b",
    "a/b",
    "a>b",
    "ä",
    "a\n",
    "a\0",
    "..",
    "a" * 256,
    5,
    None,
    b"a",
    "a\ud800",
]
GOOD_NAMES = ["a", "0", "A", "a.b_c:d-e", "a..", "9" * 255]


REFUSED: dict[str, Callable[[Engine], object]] = {
    "topic": lambda engine: engine.put_topic("größe"),
    "write": lambda engine: engine.append("größe", [new(1)]),
    "staged": lambda engine: engine.stage("w", 1, "p", 0, "größe", [new(1)]),
    "router": lambda engine: engine.put_router("größe", {"source": "a", "dest": "b"}),
    "source": lambda engine: engine.put_router("r", {"source": "größe", "dest": "b"}),
}


@pytest.mark.parametrize("what", REFUSED)
def test_whoever_gives_a_bad_name_is_told_what_a_name_is(what: str) -> None:
    """[NAME-1, NAME-2]"""
    kind, more = ("router", " >") if what == "router" else ("topic", "")
    rule = f"1 to 255 of A-Z a-z 0-9 . _ : -{more}, the first a letter or a digit"
    with pytest.raises(CallerError) as caught:
        REFUSED[what](Store().engine)
    assert str(caught.value) == f"'größe' is not the name of a {kind}: {rule}"


# Creation and configuration


def test_a_new_topic_has_every_default_and_is_said_to_be_created() -> None:
    """[CFG-1, TOP-2, TOP-3]"""
    engine = Store().engine
    created, config = engine.put_topic(TOPIC)
    assert created
    assert config.as_dict() == DEFAULTS
    assert engine.state(TOPIC).config == config


@pytest.mark.parametrize("given", [None, {}, TopicConfig()])
def test_an_identical_put_changes_nothing_and_is_no_creation(given: Any) -> None:
    """[CFG-1, CFG-3]"""
    engine = Store().engine
    engine.put_topic(TOPIC)
    write(engine, 1)
    with kit.nothing_changes(engine):
        assert engine.put_topic(TOPIC, given) == (False, TopicConfig())


@kit.at_every_place
def test_a_put_replaces_the_whole_configuration(place: str) -> None:
    """[CFG-1]: a field that is left out takes its default, not its previous value."""
    store = Store(place)
    store.engine.put_topic(TOPIC, {"cap_records": 5, "priority": 9, "durable": True})
    created, config = store.engine.put_topic(TOPIC, {"ttl_ms": 500})
    assert not created
    assert config.as_dict() == {**DEFAULTS, "ttl_ms": 500}
    if place != "ram":
        assert store.settle().state(TOPIC).config == config


@pytest.mark.parametrize("field", sorted(CHANGES))
def test_every_field_but_the_type_can_be_changed_and_stays_changed(field: str) -> None:
    """[CFG-2, CFG-9]"""
    store = Store()
    store.engine.put_topic(TOPIC)
    created, config = store.engine.put_topic(TOPIC, {field: CHANGES[field]})
    assert not created
    assert getattr(config, field) == CHANGES[field]
    assert store.crash().state(TOPIC).config == config


@pytest.mark.parametrize(("existing", "requested"), [("log", "queue"), ("queue", "log")])
def test_the_type_of_a_topic_cannot_be_changed(existing: str, requested: str) -> None:
    """[CFG-2]"""
    engine = Store().engine
    engine.put_topic(TOPIC, {"type": existing, "ttl_ms": 9})
    with kit.nothing_changes(engine), pytest.raises(TopicExistsIncompatible) as caught:
        engine.put_topic(TOPIC, {"type": requested, "ttl_ms": 10})
    error = caught.value
    assert error.code == "topic_exists_incompatible"
    assert (error.topic, error.existing_type, error.requested_type) == (TOPIC, existing, requested)


def test_an_empty_put_on_a_queue_asks_for_a_log_and_is_refused() -> None:
    """[CFG-1, CFG-2]: the note."""
    engine = Store().engine
    engine.put_topic(TOPIC, {"type": "queue"})
    with pytest.raises(TopicExistsIncompatible):
        engine.put_topic(TOPIC)


def test_a_changed_configuration_never_rewrites_stored_records() -> None:
    """[CFG-3]"""
    store = Store()
    engine = store.put()
    engine.append(TOPIC, [new({"a": 1}, tag="x", node="n", meta={"m": 1})])
    before = kit.everything(engine).records
    engine.put_topic(TOPIC, {"durability": "disk", "dedupe_node": False, "priority": 3})
    assert kit.everything(engine).records == before


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durability": None}, "disk"),
        ({"durability": None, "durable": True}, "fsync"),
        ({"durability": "disk", "durable": True}, "disk"),
        ({"durability": "fsync", "durable": False}, "fsync"),
        ({"durability": "memory", "durable": True}, "memory"),
        ({"durability": "ephemeral"}, "ephemeral"),
    ],
)
def test_the_durability_class_is_resolved_and_its_alias_agrees(given: dict[str, Any], durability: str) -> None:
    """[CFG-4, CFG-5]"""
    engine = Store().engine
    _, config = engine.put_topic(TOPIC, given)
    assert (config.durability, config.durable) == (durability, durability == "fsync")
    assert engine.state(TOPIC).config == config


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 86_400_001, 86_400_000),
        ("lease_ms", kit.U64_MAX, 86_400_000),
        ("claim_jitter_ms", 5001, 5000),
        ("priority", 100_000, 100_000),
        ("priority", -(2**31), -(2**31)),
        ("priority", 2**31 - 1, 2**31 - 1),
        ("ttl_ms", kit.U64_MAX, kit.U64_MAX),
        ("cap_records", kit.U64_MAX, kit.U64_MAX),
    ],
)
def test_clamped_fields_are_stored_clamped_and_priority_as_given(field: str, given: int, stored: int) -> None:
    """[CFG-6]"""
    store = Store()
    _, config = store.engine.put_topic(TOPIC, {field: given})
    assert getattr(config, field) == stored
    assert getattr(store.reopen().state(TOPIC).config, field) == stored


def test_queue_fields_are_kept_on_a_log_and_mean_nothing_there() -> None:
    """[CFG-7]"""
    engine = Store().engine
    fields = {"lease_ms": 500, "claim_jitter_ms": 5, "max_deliveries": 2, "dead_letter": TOPIC, "leases_durable": True}
    _, config = engine.put_topic(TOPIC, fields)
    assert {name: getattr(config, name) for name in fields} == fields
    write(engine, 1)
    assert kit.everything(engine).values == [1]


def test_unknown_members_are_ignored_and_null_means_absent_for_three_fields() -> None:
    """[CFG-8]"""
    engine = Store().engine
    nulls = {"durability": None, "priority": None, "dead_letter": None}
    _, config = engine.put_topic(TOPIC, {"colour": "red", **nulls})
    assert config.as_dict() == DEFAULTS


@pytest.mark.parametrize("field", sorted(set(DEFAULTS) - {"durability", "priority", "dead_letter"}))
def test_null_for_any_other_field_is_refused(field: str) -> None:
    """[CFG-8]"""
    engine = Store().engine
    with kit.invalid_request():
        engine.put_topic(TOPIC, {field: None})
    assert list(engine.topics()) == []


@pytest.mark.parametrize(
    "bad",
    [
        {"type": "list"},
        {"type": 1},
        {"discard": "new"},
        {"durability": "paper"},
        {"ttl_ms": -1},
        {"ttl_ms": 1.0},
        {"ttl_ms": True},
        {"ttl_ms": "5"},
        {"cap_records": 2**64},
        {"cap_bytes": -1},
        {"durable": 1},
        {"durable": "true"},
        {"priority": 2**31},
        {"priority": -(2**31) - 1},
        {"priority": 1.5},
        {"dead_letter": "a b"},
        {"dead_letter": 5},
        {"type": "queue", "dead_letter": TOPIC},
        [],
        "x",
        7,
    ],
)
def test_a_bad_configuration_is_refused_by_put_and_by_a_creating_write(bad: Any) -> None:
    """01 §3, [TOP-1, WR-1]"""
    engine = Store().engine
    with kit.invalid_request():
        engine.put_topic(TOPIC, bad)
    with kit.invalid_request():
        engine.append(TOPIC, [new(1)], config=bad)
    assert list(engine.topics()) == []


def test_a_bad_configuration_leaves_an_existing_topic_as_it_was() -> None:
    """[CFG-9, WR-6]"""
    engine = Store().engine
    engine.put_topic(TOPIC, {"ttl_ms": 10_000})
    write(engine, 1)
    with kit.nothing_changes(engine):
        with kit.invalid_request():
            engine.put_topic(TOPIC, {"ttl_ms": 1, "discard": "new"})
        with kit.invalid_request():
            engine.append(TOPIC, [new(2)], config={"discard": "new"})


def test_a_configuration_may_be_a_mapping_or_an_object() -> None:
    """[S-354]"""
    engine = Store().engine
    assert engine.put_topic("a", TopicConfig(ttl_ms=5))[1] == engine.put_topic("b", {"ttl_ms": 5})[1]


def test_a_configuration_change_that_cannot_be_logged_changes_nothing() -> None:
    """[CFG-9, DUR-9]"""
    store = Store()
    engine = store.put(ttl_ms=1000)
    store.fail_log_sync()
    with kit.nothing_changes(engine), pytest.raises(TopicsError):
        engine.put_topic(TOPIC, {"durability": "fsync", "ttl_ms": 2000})


def test_a_tightened_cap_and_ttl_are_enforced_right_after_the_change() -> None:
    """[CFG-9]"""
    store = Store()
    engine = store.put()
    kit.each(engine, 5)
    store.put(cap_records=2)
    assert numbers(engine) == (5, 4, 2, 2)
    assert kit.gap(engine.read(TOPIC, 0)) == (1, 3, "cap")
    store.clock.advance(100)
    store.put(ttl_ms=99)
    assert numbers(engine) == (5, 6, 0, 0)
    assert kit.gap(engine.read(TOPIC, 3)) == (4, 5, "ttl")


@kit.after_every_stop
def test_a_configuration_keeps_its_order_among_writes_and_deletes(stop: str) -> None:
    """[CFG-9]: what was evicted under an earlier, tighter cap stays evicted under the later, wider one."""
    store = Store()
    engine = store.put(cap_records=2)
    kit.each(engine, 4)
    engine.delete(TOPIC, seqs=[4])
    store.put(cap_records=4)
    kit.each(engine, 2, start=5)
    before = kit.snapshot_of(engine)
    assert kit.everything(engine).seqs == [3, 5, 6]
    assert kit.snapshot_of(store.stop(stop)) == before


def test_a_class_change_affects_later_writes_only() -> None:
    """[CFG-10]: `fsync` records keep their promise when the topic becomes `ephemeral`, what follows is not kept."""
    store = Store()
    engine = store.put()
    kit.each(engine, 3)
    store.put(durability="ephemeral")
    kit.each(engine, 2, start=4)
    assert kit.everything(engine).seqs == [1, 2, 3, 4, 5]
    engine = store.crash()
    assert kit.everything(engine).seqs == [1, 2, 3]
    assert kit.everything(engine).ranges == []
    assert engine.state(TOPIC).config.durability == "ephemeral"


def test_records_of_an_ephemeral_topic_stay_readable_after_it_becomes_durable() -> None:
    """[CFG-10, S-102]: while the process lives, and across a checkpoint."""
    store = Store()
    engine = store.put(durability="ephemeral")
    kit.each(engine, 5)
    store.put()
    kit.each(engine, 2, start=6)
    assert kit.everything(engine).seqs == [1, 2, 3, 4, 5, 6, 7]
    engine.checkpoint(full=True)
    assert kit.everything(engine).seqs == [1, 2, 3, 4, 5, 6, 7]
    assert numbers(engine) == (7, 1, 7, 7)


@pytest.mark.parametrize("stop", ["killed", "crashed", "reopened"])
def test_an_ephemeral_past_is_silent_and_the_durable_record_behind_it_is_kept(stop: str) -> None:
    """C16: `ephemeral` 1–500, change to `fsync`, write 501."""
    store = Store()
    engine = store.put(durability="ephemeral")
    engine.append(TOPIC, [new(n) for n in range(1, 501)])
    store.put()
    write(engine, 501)
    engine = store.stop(stop)
    seen = kit.everything(engine)
    assert (seen.seqs, seen.ranges) == ([501], [])
    assert numbers(engine) == (501, 501, 1, 3)


def test_writes_after_a_kill_are_visible_on_a_capped_ephemeral_topic() -> None:
    """C15: `cap_records` 10, 400 writes, a config change, kill."""
    store = Store()
    engine = store.put(durability="ephemeral", cap_records=10)
    kit.each(engine, 400)
    store.put(durability="ephemeral", cap_records=10, priority=1)
    engine = store.kill()
    head = numbers(engine).head_seq
    assert numbers(engine).count == 0
    assert write(engine, "new").seqs == [head + 1]
    assert kit.everything(engine, from_seq=head).values == ["new"]
    assert numbers(engine).count == 1


# Names


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_malformed_name_cannot_be_created(name: Any) -> None:
    """[NAME-1, NAME-3]"""
    engine = Store().engine
    with kit.invalid_request():
        engine.put_topic(name)
    with kit.invalid_request():
        engine.append(name, [new(1)])
    assert list(engine.topics()) == []


@pytest.mark.parametrize("name", [name for name in BAD_NAMES if isinstance(name, str)])
def test_a_lookup_of_a_malformed_name_finds_no_topic(name: str) -> None:
    """[NAME-3]"""
    engine = Store().engine
    for look in (engine.state, engine.read):
        with pytest.raises(TopicNotFound):
            look(name)
    with pytest.raises(TopicNotFound):
        engine.delete(name, before_seq=1)
    assert engine.delete_topic(name) is False


@pytest.mark.parametrize("name", GOOD_NAMES)
def test_a_legal_name_can_be_created_and_comes_back_after_a_restart(name: str) -> None:
    """[NAME-1]"""
    store = Store()
    assert store.engine.put_topic(name)[0]
    assert list(store.kill().topics()) == [name]


def test_names_differ_by_case() -> None:
    """[NAME-1]"""
    engine = Store().engine
    assert engine.put_topic("Ab")[0]
    assert engine.put_topic("aB")[0]
    write(engine, 1, name="Ab")
    assert numbers(engine, "aB").count == 0


def test_names_of_the_server_cannot_be_made_by_a_caller() -> None:
    """[A-14]"""
    engine = Store().engine
    with pytest.raises(TopicsError):
        engine.put_topic("$mine")
    with kit.invalid_request():
        engine.append("$mine", [new(1)])
    assert list(engine.topics()) == []


def test_a_name_never_becomes_part_of_a_path() -> None:
    """[NAME-4, S-10]"""
    store = Store()
    engine = store.put("Wonder.Name:1")
    kit.each(engine, 5, name="Wonder.Name:1")
    engine.checkpoint(full=True)
    engine.snapshot()
    assert not [path for path in store.files() if "onder" in path]
    assert [path for path in store.files() if path.startswith("topics/")]


def test_topics_are_listed_in_byte_order_by_prefix() -> None:
    """[PAG-2], S-354"""
    engine = Store().engine
    for name in ("b", "a:2", "a", "B", "a:10", "ab"):
        engine.put_topic(name)
    assert list(engine.topics()) == ["B", "a", "a:10", "a:2", "ab", "b"]
    assert list(engine.topics("a")) == ["a", "a:10", "a:2", "ab"]
    assert list(engine.topics(prefix="a:")) == ["a:10", "a:2"]
    assert list(engine.topics("x")) == []


# Lazy creation (01 §2.1)


@pytest.mark.parametrize(
    ("create", "auto_create"), [(True, None), (True, True), (True, False), (None, None), (None, True)]
)
def test_a_write_to_an_absent_topic_creates_it(create: bool | None, auto_create: bool | None) -> None:
    """01 §2.1: with the inline configuration, or the defaults."""
    engine = Store().engine
    config = None if auto_create is None else {"auto_create": auto_create, "ttl_ms": 77}
    result = write(engine, 1, create=create, config=config)
    assert (result.created, result.seqs) == (True, [1])
    expected = DEFAULTS if auto_create is None else {**DEFAULTS, "auto_create": auto_create, "ttl_ms": 77}
    assert engine.state(TOPIC).config.as_dict() == expected


@pytest.mark.parametrize(("create", "auto_create"), [(False, None), (False, True), (False, False), (None, False)])
def test_a_write_that_may_not_create_finds_no_topic(create: bool | None, auto_create: bool | None) -> None:
    """01 §2.1"""
    engine = Store().engine
    config = None if auto_create is None else {"auto_create": auto_create}
    with pytest.raises(TopicNotFound) as caught:
        write(engine, 1, create=create, config=config)
    assert (caught.value.code, caught.value.topic) == ("topic_not_found", TOPIC)
    assert list(engine.topics()) == []


@pytest.mark.parametrize("create", [None, True, False])
def test_a_write_to_an_existing_topic_ignores_create_and_config(create: bool | None) -> None:
    """01 §2.1, [NAME-6]: nor does the stored `auto_create` matter."""
    engine = Store().engine
    engine.put_topic(TOPIC, {"auto_create": False, "ttl_ms": 5000})
    result = write(engine, 1, create=create, config={"type": "queue", "ttl_ms": 1, "auto_create": False})
    assert (result.created, result.seqs) == (False, [1])
    assert (engine.state(TOPIC).config.ttl_ms, engine.state(TOPIC).config.auto_create) == (5000, False)


def test_a_write_refused_behind_the_creation_leaves_an_empty_topic() -> None:
    """[NAME-5]"""
    store = Store()
    with pytest.raises(RecordTooLarge):
        write(store.engine, 1, 2, config={"cap_records": 1, "discard": "reject"})
    assert numbers(store.engine) == (0, 1, 0, 0)
    assert numbers(store.crash()) == (0, 1, 0, 0)


@pytest.mark.parametrize("create", [1, "true", 0])
def test_create_must_be_a_bool(create: Any) -> None:
    """02 §4, [API-12]"""
    engine = Store().engine
    with kit.invalid_request():
        write(engine, 1, create=create)
    assert list(engine.topics()) == []


def test_reads_and_deletes_never_create_a_topic() -> None:
    """[NAME-7, TOP-4, DIF-1]"""
    engine = Store().engine
    with pytest.raises(TopicNotFound):
        engine.state(TOPIC)
    with pytest.raises(TopicNotFound):
        engine.read(TOPIC)
    with pytest.raises(TopicNotFound):
        engine.read(TOPIC, wait_ms=1000)
    with pytest.raises(TopicNotFound):
        engine.delete(TOPIC, match="x")
    assert engine.delete_topic(TOPIC) is False
    assert list(engine.topics()) == []


@pytest.mark.parametrize("durability", ["ephemeral", "memory", "disk", "fsync"])
def test_a_creation_is_durable_before_it_is_acknowledged(durability: str) -> None:
    """[NAME-8, DUR-9]"""
    store = Store()
    store.engine.put_topic("put", {"durability": durability, "priority": 3})
    write(store.engine, 1, name="written", config={"durability": durability, "priority": 4})
    engine = store.crash()
    assert list(engine.topics()) == ["put", "written"]
    configs = [engine.state(name).config for name in engine.topics()]
    assert [(c.durability, c.priority) for c in configs] == [(durability, 3), (durability, 4)]


def test_a_creation_that_cannot_be_logged_makes_no_topic() -> None:
    """[NAME-8, INV-3]"""
    store = Store()
    store.put("other")
    store.fail_log_sync()
    with pytest.raises(TopicsError):
        store.engine.put_topic(TOPIC)
    assert list(store.engine.topics()) == ["other"]


# Deletion and a new instance (01 §11)


@pytest.mark.parametrize("place", kit.PLACES[:-1])
def test_a_deleted_topic_is_gone_for_good(place: str) -> None:
    """[NAME-9, TOP-11]"""
    store = Store(place)
    engine = store.put()
    store.put("other")
    kit.each(engine, 8, tag="x")
    engine = store.settle()
    assert engine.delete_topic(TOPIC) is True
    assert engine.delete_topic(TOPIC) is False
    with pytest.raises(TopicNotFound):
        engine.read(TOPIC)
    engine = store.crash()
    assert TOPIC not in list(engine.topics())
    assert "other" in list(engine.topics())
    engine = store.reopen()
    assert TOPIC not in list(engine.topics())


def test_a_deletion_that_cannot_be_logged_removes_nothing() -> None:
    """[TOP-13]"""
    store = Store()
    engine = store.put()
    kit.each(engine, 3)
    store.fail_log_sync()
    with kit.nothing_changes(engine), pytest.raises(TopicsError):
        engine.delete_topic(TOPIC)


@pytest.mark.parametrize("stop", [None, *kit.STOPS])
def test_a_recreated_topic_is_a_new_instance(stop: str | None) -> None:
    """[EPO-1, NAME-9]: seqs from 1, no floors, no tags, no keys, no producers of the old one."""
    store = Store()
    engine = store.put(cap_records=2)
    kit.each(engine, 6, tag="old")
    write(engine, "k", idempotency_key="k")
    write(engine, "p", producer=Producer("p", 4, 4))
    engine.delete_topic(TOPIC)
    store.put()
    if stop:
        engine = store.stop(stop)
    assert numbers(engine) == (0, 1, 0, 0)
    assert engine.read(TOPIC).tombstone is None
    assert write(engine, "k", idempotency_key="k").seqs == [1]
    assert write(engine, "p", producer=Producer("p", 0, 9)).seqs == [2]
    assert engine.delete(TOPIC, match="old").deleted == 0
    seen = kit.everything(engine)
    assert (seen.values, seen.ranges) == (["k", "p"], [])


def test_ids_on_disk_are_never_used_again() -> None:
    """[NAME-4, S-276]"""
    store = Store()
    ids: set[str] = set()
    for n in range(4):
        engine = store.put()
        kit.each(engine, 4)
        engine.checkpoint(full=True)
        new_ids = {path.split("/")[1] for path in store.files("topic.json")}
        assert not new_ids & ids
        ids |= new_ids
        engine.delete_topic(TOPIC)
        engine.tick()
        if n % 2:
            engine = store.reopen()
    assert len(ids) == 4


def test_the_files_of_a_deleted_topic_are_removed() -> None:
    """[S-276, TOP-14]"""
    store = Store()
    engine = store.put()
    kit.each(engine, 10)
    engine.checkpoint(full=True)
    assert kit.segment_files(store)
    engine.delete_topic(TOPIC)
    store.pass_time(5000)
    assert [path for path in store.files() if path.startswith("topics/")] == []


def test_an_old_cursor_on_a_recreated_topic_is_told() -> None:
    """[EPO-3]"""
    engine = Store().put()
    kit.each(engine, 9)
    engine.delete_topic(TOPIC)
    engine.put_topic(TOPIC)
    kit.each(engine, 3)
    page = engine.read(TOPIC, 9)
    kit.check_page(page, 9)
    assert kit.gap(page) == (1, 3, "recreated")
    assert kit.seqs(page) == [1, 2, 3]


# Resource limits on topics


def test_one_topic_more_than_the_limit_is_refused_and_a_deletion_frees_its_place() -> None:
    """[TOP-1, TOP-14, RES-2, RES-4]"""
    engine = Store(max_topics=2).engine
    engine.put_topic("a")
    write(engine, 1, name="b")
    with pytest.raises(LimitReached) as caught:
        engine.put_topic("c")
    assert (caught.value.limit, caught.value.max) == ("max_topics", 2)
    with pytest.raises(LimitReached):
        write(engine, 1, name="c")
    assert list(engine.topics()) == ["a", "b"]
    assert engine.put_topic("a", {"ttl_ms": 5})[0] is False
    write(engine, 2, name="b")
    engine.delete_topic("a")
    assert engine.put_topic("c")[0]


def test_the_limit_on_topics_counts_those_found_at_start() -> None:
    """[RES-3]"""
    store = Store(max_topics=1)
    store.put()
    with pytest.raises(LimitReached):
        store.kill().put_topic("b")


def test_no_limit_on_topics_is_spelled_zero() -> None:
    """[RES-1]"""
    engine = Store(max_topics=0).engine
    for n in range(5):
        engine.put_topic(f"t{n}")
    assert len(list(engine.topics())) == 5
