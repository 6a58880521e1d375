"""Names, configuration, selectors and results: every rule by its id."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import model
from topics.codec import control
from topics.errors import CallerError, UnsupportedFormat
from topics.model import Gap, Limits, Producer, Record, Selector, TopicConfig
from topics.settings import Settings

U64_MAX = 2**64 - 1
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
    "idempotency_window_ms": 120000,
    "dedupe_node": True,
    "lease_ms": 30000,
    "claim_jitter_ms": 0,
    "max_deliveries": 0,
    "dead_letter": None,
    "leases_durable": False,
}


@pytest.mark.parametrize(
    ("name", "topic", "router"),
    [
        ("a", True, True),
        ("9", True, True),
        ("A.b_c:d-e", True, True),
        ("a" * 255, True, True),
        ("a" * 256, False, False),
        ("", False, False),
        (".a", False, False),
        ("-a", False, False),
        ("..", False, False),
        ("a b", False, False),
        ("a/b", False, False),
        ("a\n", False, False),
        ("é", False, False),
        ("aé", False, False),
        ("a\u0661", False, False),
        ("$loss", False, False),
        ("kiln-7->archive", False, True),
        (">a", False, False),
        (None, False, False),
        (b"a", False, False),
    ],
)
def test_names(name: object, topic: bool, router: bool) -> None:
    """[NAME-1, NAME-2]"""
    assert model.valid_topic_name(name) is topic
    assert model.valid_router_name(name) is router


def test_names_with_a_dollar_belong_to_the_server() -> None:
    """[A-14]"""
    assert all(map(model.is_system_name, model.SYSTEM_TOPICS))
    assert model.is_system_name("$anything")
    assert not model.is_system_name("a$")
    assert not model.is_system_name("")


@pytest.mark.parametrize("given", [None, {}, TopicConfig()])
def test_an_empty_configuration_is_all_defaults_in_the_stored_order(given: object) -> None:
    """[CFG-1, S-42]"""
    shown = TopicConfig.parse(given).as_dict()
    assert shown == DEFAULTS
    assert list(shown) == list(DEFAULTS)


def test_every_omitted_field_takes_its_default_and_unknown_members_are_ignored() -> None:
    """[CFG-1, CFG-8]"""
    config = TopicConfig.parse({"ttl_ms": 500, "colour": "red", "": None})
    assert config.as_dict() == DEFAULTS | {"ttl_ms": 500}


@pytest.mark.parametrize(
    ("given", "durability"),
    [
        ({}, "disk"),
        ({"durable": False}, "disk"),
        ({"durable": True}, "fsync"),
        ({"durable": True, "durability": None}, "fsync"),
        ({"durable": True, "durability": "disk"}, "disk"),
        ({"durable": False, "durability": "fsync"}, "fsync"),
        ({"durability": "memory"}, "memory"),
        ({"durability": "ephemeral", "durable": True}, "ephemeral"),
    ],
)
def test_durability_class(given: dict[str, object], durability: str) -> None:
    """[CFG-4, CFG-5]"""
    for config in (TopicConfig.parse(given), TopicConfig(**given)):
        assert config.durability == durability
        assert config.durable is (durability == "fsync")


@pytest.mark.parametrize(
    ("field", "given", "stored"),
    [
        ("lease_ms", 0, 100),
        ("lease_ms", 99, 100),
        ("lease_ms", 100, 100),
        ("lease_ms", 86_400_000, 86_400_000),
        ("lease_ms", U64_MAX, 86_400_000),
        ("claim_jitter_ms", 5000, 5000),
        ("claim_jitter_ms", 5001, 5000),
        ("priority", 5000, 5000),
        ("priority", -(2**31), -(2**31)),
        ("priority", 2**31 - 1, 2**31 - 1),
        ("ttl_ms", U64_MAX, U64_MAX),
    ],
)
def test_clamped_when_stored_but_for_priority(field: str, given: int, stored: int) -> None:
    """[CFG-6]"""
    assert getattr(TopicConfig.parse({field: given}), field) == stored


def test_queue_fields_are_kept_on_a_log() -> None:
    """[CFG-7]"""
    fields = {"lease_ms": 5, "claim_jitter_ms": 9, "max_deliveries": 3, "dead_letter": "dl", "leases_durable": True}
    assert TopicConfig.parse(fields, "t").as_dict() == DEFAULTS | fields | {"lease_ms": 100}


NULLABLE = {"durability", "priority", "dead_letter"}


@pytest.mark.parametrize("field", DEFAULTS)
def test_null_means_absent_for_three_fields_and_is_refused_elsewhere(field: str) -> None:
    """[CFG-8]"""
    if field in NULLABLE:
        assert TopicConfig.parse({field: None}).as_dict() == DEFAULTS
    else:
        with pytest.raises(CallerError, match=field):
            TopicConfig.parse({field: None})


COUNTS = [name for name, value in DEFAULTS.items() if type(value) is int]
FLAGS = [name for name, value in DEFAULTS.items() if type(value) is bool]
NO_COUNTS: list[object] = [True, False, -1, 2**64, 5.0, "5", [], {}]
NO_FLAGS: list[object] = [0, 1, "true", "false", []]
BAD: list[tuple[str, object]] = [
    *((name, bad) for name in COUNTS for bad in NO_COUNTS),
    *((name, bad) for name in FLAGS for bad in NO_FLAGS),
    *(("priority", bad) for bad in (True, 2**31, -(2**31) - 1, 1.0, "1")),
    *(("type", bad) for bad in ("LOG", "stream", 1, [], ["log"])),
    *(("discard", bad) for bad in ("new", True)),
    *(("durability", bad) for bad in ("Disk", "", 0, False)),
    *(("dead_letter", bad) for bad in ("", "a b", "$loss", "x" * 256, 1, False)),
]


@pytest.mark.parametrize(("field", "bad"), BAD, ids=repr)
def test_ill_typed_and_out_of_range_values_are_refused(field: str, bad: object) -> None:
    """[CFG-8, API-12]: a bool is not an integer, an integer not a bool."""
    with pytest.raises(CallerError, match=field) as caught:
        TopicConfig.parse({field: bad})
    assert caught.value.code == "invalid_request"
    with pytest.raises(CallerError):
        TopicConfig(**{field: bad})


@pytest.mark.parametrize("bad", [[], "log", 1, True, b"{}"])
def test_a_configuration_is_an_object(bad: object) -> None:
    with pytest.raises(CallerError):
        TopicConfig.parse(bad)


def test_a_queue_is_not_its_own_dead_letter_topic() -> None:
    """01 §3"""
    own = {"type": "queue", "dead_letter": "jobs"}
    for config in (own, TopicConfig(**own)):
        with pytest.raises(CallerError):
            TopicConfig.parse(config, "jobs")
        assert TopicConfig.parse(config, "Jobs").dead_letter == "jobs"
        assert TopicConfig.parse(config).dead_letter == "jobs"
    assert TopicConfig.parse({"dead_letter": "jobs"}, "jobs").type == "log"


def test_equal_configurations_are_equal_however_they_were_spelt() -> None:
    """[CFG-3]"""
    assert TopicConfig.parse({"durable": True}) == TopicConfig.parse({"durability": "fsync", "lease_ms": 30000})
    assert TopicConfig.parse({"lease_ms": 1}) == TopicConfig(lease_ms=100)


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["log", "queue"]),
        "durable": st.booleans(),
        "durability": st.sampled_from([None, "ephemeral", "memory", "disk", "fsync"]),
        "priority": st.none() | st.integers(-(2**31), 2**31 - 1),
        "dead_letter": st.none() | st.sampled_from(["a", "b.c"]),
        **{name: st.integers(0, U64_MAX) for name in COUNTS},
    },
)


@given(CONFIGS, st.dictionaries(st.text(min_size=1).filter(lambda name: name not in DEFAULTS), st.integers(0, 9)))
def test_what_is_stored_comes_back_with_the_names_only_another_version_knows(
    given: dict[str, object], extra: dict[str, int]
) -> None:
    """[S-42], through the frame that carries it."""
    config = TopicConfig.parse(given)
    assert TopicConfig.parse(config.as_dict()) == config
    body = control.TopicCreate(name="t", epoch=1, cfg=config.stored(extra))
    read = control.decode_body(2, control.encode_body(body))
    assert isinstance(read, control.TopicCreate)
    assert list(read.cfg)[:17] == list(DEFAULTS)
    assert TopicConfig.from_stored(read.cfg) == (config, extra)


def test_a_stored_value_of_another_version_is_not_guessed() -> None:
    """[S-7]"""
    with pytest.raises(UnsupportedFormat):
        TopicConfig.from_stored(DEFAULTS | {"durability": "quorum"})


def test_limits_are_the_settings_and_their_defaults_agree() -> None:
    """01 §1.1, 02 §1.9"""
    settings = Settings()
    shared = [name for name in Limits._fields if hasattr(settings, name)]
    assert len(shared) == 8
    for name in shared:
        assert getattr(Limits(), name) == getattr(settings, name)
    assert (Limits().max_meta_members, Limits().max_key_bytes) == (64, 256)


@pytest.mark.parametrize(
    ("asked", "limit", "budget"), [(0, 256, 2**20), (1, 1, 1), (1000, 1000, 1000), (U64_MAX, 1000, 8 * 2**20)]
)
def test_reads_are_clamped_never_refused(asked: int, limit: int, budget: int) -> None:
    """[RD-6]"""
    assert Limits().read_limit(asked) == limit
    assert Limits().read_bytes(asked) == budget


def test_a_default_above_the_largest_limit_is_lowered_to_it() -> None:
    """[LIM-1]"""
    assert Limits(max_limit=100).read_limit() == 100


def test_a_producer_is_an_id_and_two_numbers() -> None:
    """[A-4]"""
    given = {"id": "p", "epoch": 0, "index": U64_MAX, "more": 1}
    assert Producer.parse(given) == Producer("p", 0, U64_MAX)
    assert Producer.parse(Producer("é" * 64, 1, 2)).id == "é" * 64


@pytest.mark.parametrize(
    "bad",
    [
        {"id": "", "epoch": 0, "index": 0},
        {"id": "é" * 65, "epoch": 0, "index": 0},
        {"id": "\ud800", "epoch": 0, "index": 0},
        {"id": 1, "epoch": 0, "index": 0},
        {"id": "p", "epoch": True, "index": 0},
        {"id": "p", "epoch": 0, "index": -1},
        {"id": "p", "epoch": 2**64, "index": 0},
        {"id": "p", "epoch": 0},
        {"epoch": 0, "index": 0},
        ["p", 0, 0],
        "p",
    ],
    ids=repr,
)
def test_a_malformed_producer_is_refused(bad: object) -> None:
    """[A-4, API-12]"""
    with pytest.raises(CallerError):
        Producer.parse(bad)


@pytest.mark.parametrize(
    ("match", "stored"),
    [
        ("x", ("Eq", "x")),
        ("x*", ("Glob", "x")),
        ("*", ("Glob", "")),
        ("", ("Eq", "")),
        ("a*b", ("Eq", "a*b")),
        ("a*b*", ("Glob", "a*b")),
        ("x**", ("Glob", "x*")),
        (["tag", "Eq", "x*"], ("Eq", "x*")),
        (("tag", "Glob", "x*"), ("Glob", "x")),
        (["tag", "Glob", "*"], ("Glob", "")),
        (Selector("Glob", "x"), ("Glob", "x")),
    ],
)
def test_selectors(match: object, stored: tuple[str, str]) -> None:
    """[DEL-2, S-42]: the selector is its stored form."""
    selector = Selector.parse(match)
    assert selector == stored
    assert Selector.parse(["tag", selector.kind, selector.text]) == selector
    read = control.decode_body(
        6, control.encode_body(control.Delete(match=selector, bound=1, cap_floor=1, ttl_floor=1))
    )
    assert isinstance(read, control.Delete)
    assert read.match is not None
    assert Selector(*read.match) == selector


@pytest.mark.parametrize(
    "bad",
    [
        None,
        1,
        {},
        b"x",
        [],
        ["tag", "Eq"],
        ["tag", "Eq", "x", "y"],
        ["tag", "eq", "x"],
        ["tag", "glob", "x*"],
        ["Tag", "Eq", "x"],
        ["node", "Eq", "x"],
        ["tag", "Glob", "x"],
        ["tag", "Glob", ""],
        ["tag", "Eq", 1],
        ["tag", "Eq", None],
        "\ud800",
    ],
    ids=repr,
)
def test_anything_else_is_no_selector(bad: object) -> None:
    """[DEL-2]"""
    with pytest.raises(CallerError):
        Selector.parse(bad)


@pytest.mark.parametrize("character", ["x", "é"])
def test_a_selector_is_no_longer_than_a_tag_can_be(character: str) -> None:
    """[S-40]: with the `*` behind it, in bytes."""
    tag = character * (65_534 // len(character.encode()))
    for match in (tag, f"{tag}x", f"{tag}x*", ["tag", "Eq", f"{tag}xx"], ["tag", "Glob", f"{tag}x*"]):
        Selector.parse(match)
    for match in (f"{tag}xxx", f"{tag}xx*", ["tag", "Eq", f"{tag}xxx"], ["tag", "Glob", f"{tag}xx*"]):
        with pytest.raises(CallerError, match="at most 65536 bytes"):
            Selector.parse(match)


@pytest.mark.parametrize(
    ("match", "tag", "matches"),
    [
        ("x", "x", True),
        ("x", "X", False),
        ("x", "xy", False),
        ("x*", "x", True),
        ("x*", "xy", True),
        ("x*", "y", False),
        ("*", "", True),
        ("*", None, False),
        ("", None, False),
        ("", "", True),
        ("a*b*", "a*bc", True),
        ("a*b*", "axbc", False),
        ("é*", "e\u0301", False),
    ],
)
def test_matching_is_by_bytes_and_untagged_records_never_match(match: str, tag: str | None, matches: bool) -> None:
    """[DEL-2, DEL-3]"""
    assert Selector.parse(match).matches(tag) is matches


@pytest.mark.parametrize(
    ("prefix", "above"),
    [
        (b"a", b"b"),
        (b"", None),
        (b"\xff", None),
        (b"a\xff\xff", b"b"),
        (b"a\xfe", b"a\xff"),
        (b"\xff\x00", b"\xff\x01"),
    ],
)
def test_successor(prefix: bytes, above: bytes | None) -> None:
    """[S-188]"""
    assert model.successor(prefix) == above


@given(st.binary(max_size=3), st.binary(max_size=5))
def test_a_range_holds_exactly_what_starts_with_the_prefix(prefix: bytes, text: bytes) -> None:
    """[S-188]"""
    above = model.successor(prefix)
    assert text.startswith(prefix) == (prefix <= text and (above is None or text < above))


@given(st.text(max_size=4), st.text(max_size=6))
def test_matching_text_is_matching_its_bytes(prefix: str, tag: str) -> None:
    selector = Selector("Glob", prefix)
    assert selector.matches(tag) == tag.encode().startswith(prefix.encode())
    assert selector.matches(prefix + tag)


def test_a_record_decodes_when_asked_and_keeps_the_text() -> None:
    """[S-354]"""
    record = Record(31, 1790000123456, "dock-7", None, b'{"kg":412.50}', b'{"fw":"2.8"}')
    assert record.data == {"kg": 412.5}
    assert record.data is record.data
    assert record.meta == {"fw": "2.8"}
    assert (record.raw_data, record.raw_meta) == (b'{"kg":412.50}', b'{"fw":"2.8"}')
    assert Record(1, 2, None, None, b"null").data is None
    assert Record(1, 2, None, None, b"null").meta is None
    assert repr(Record(1, 2, None, "t", b"0")) == "Record(seq=1, ts=2, tag='t', raw_data=b'0')"


def test_records_are_equal_by_content() -> None:
    """[REC-1]"""
    one, other = (Record(1, 2, "n", "t", b"[]", b"{}") for _ in range(2))
    assert one.data == []
    assert one == other
    assert hash(one) == hash(other)
    assert one != Record(1, 2, "n", "t", b"[]")
    assert one != "record"


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"1e400", float("inf")),
        (b"[-1e400]", [float("-inf")]),
        (b"1" * 25, int("1" * 25)),
        (b"1" * 5000, float("inf")),
        (b'{"a":1,"a":2}', {"a": 2}),
    ],
    ids=["1e400", "-1e400", "25 digits", "5000 digits", "repeated member"],
)
def test_numbers_beyond_python_still_decode(raw: bytes, value: object) -> None:
    """[REC-12] stores them as written."""
    assert Record(1, 2, None, None, raw).data == value


def test_append_results_list_consecutive_seqs_or_none() -> None:
    """[SEQ-2, A-4]"""
    assert model.AppendResult(31, 33, 40, 3).seqs == [31, 32, 33]
    assert model.AppendResult(None, None, 40, 0, deduped=True).seqs is None


def test_read_results_say_how_far_they_are() -> None:
    """[CUR-5, CUR-6]"""
    behind = model.ReadResult([], 32, 40, 12)
    assert (behind.caught_up, behind.lag, behind.tombstone) == (False, 8, None)
    there = model.ReadResult([], 40, 40, 12)
    assert (there.caught_up, there.lag) == (True, 0)


def test_tombstones() -> None:
    """01 §10 and §18 rows 4 and 7"""
    lost = Gap.lost(5, 11, "ttl", 40)
    assert json.loads(msgspec.json.encode(lost)) == {
        "gap_from": 5,
        "gap_to": 11,
        "reason": "ttl",
        "missed_estimate": 7,
        "earliest_seq": 12,
        "head_seq": 40,
    }
    assert Gap.recreated(9, 4) == Gap(1, 9, "recreated", 9, 4, 9)
    assert Gap.recreated(0, 1) == Gap(1, 0, "recreated", 0, 1, 0)


def test_a_fresh_topic() -> None:
    """[STA-2]"""
    state = model.TopicState(topic="t", head_seq=0, earliest_seq=1, count=0, bytes=0, config=TopicConfig())
    assert (state.next_seq, state.type, state.last_write_ts, state.queue) == (1, "log", None, None)
