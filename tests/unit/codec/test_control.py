"""Control bodies: MessagePack maps with `v` in front."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.codec import samples
from topics.codec import control

pack = msgspec.msgpack.encode
u64 = st.integers(0, 2**64 - 1)

GAP = {"v": 1, "f": 1, "t": 2, "r": 0}
LEASE = {"v": 1, "e": 0, "n": "a", "l": 1}
OPEN = {"v": 1, "k": "open", "run": 1, "boot": "b", "shard": 0, "shards": 1, "file": 1, "fmt": 2}
ROW = [1] * 10

REFUSED: list[tuple[int, Any]] = [
    (12, {"f": 1, "t": 2, "r": 0}),
    (12, {"f": 1, "v": 1, "t": 2, "r": 0}),
    (12, {**GAP, "v": 2}),
    (12, {**GAP, "v": 0}),
    (12, {**GAP, "v": True}),
    (12, {**GAP, "v": "1"}),
    (12, {**GAP, "v": 1.0}),
    (12, {**GAP, "f": -1}),
    (12, {**GAP, "f": 3}),
    (12, {**GAP, "f": 1.0}),
    (12, {**GAP, "f": "1"}),
    (12, {**GAP, "f": None}),
    (12, {**GAP, "f": True}),
    (12, {**GAP, "r": 4}),
    (12, {**GAP, "o": 9}),
    (12, {"v": 1, "f": 1, "t": 2}),
    (12, [1, 1, 2, 0]),
    (12, None),
    (12, 1),
    (6, {"v": 1, "b": 5, "cf": 1, "tf": 1}),
    (6, {"v": 1, "h": 5, "cf": 1}),
    (6, {"v": 1, "h": 5, "cf": 1, "tf": 1, "k": 3}),
    (6, {"v": 1, "h": 5, "cf": 1, "tf": 1, "m": ["Like", "x"]}),
    (6, {"v": 1, "h": 5, "cf": 1, "tf": 1, "m": ["Eq"]}),
    (6, {"v": 1, "h": 5, "cf": 1, "tf": 1, "m": ["Eq", 5]}),
    (6, {"v": 1, "s": [1, -1], "cf": 1, "tf": 1}),
    (10, {**LEASE, "e": 4}),
    (10, {**LEASE, "l": "lease_2f"}),
    (10, {**LEASE, "d": -1}),
    (13, {"v": 1, "f": 1, "n": 1}),
    (13, {"v": 1, "f": 1, "n": 1, "p": "a", "e": 1}),
    (13, {"v": 1, "f": 1, "n": 1, "k": "a", "p": "a", "e": 1, "i": 1}),
    (2, {"v": 1, "name": "t", "epoch": 1}),
    (2, {"v": 1, "name": "t", "epoch": 1, "cfg": []}),
    (2, {"v": 1, "name": b"t", "epoch": 1, "cfg": {}}),
    (8, {"v": 1}),
    (8, {"v": 1, "k": "later"}),
    (8, {"v": 1, "k": 1}),
    (8, {"v": 2, "k": "sync"}),
    (8, {"v": 1, "k": "ready"}),
    (8, {**OPEN, "fmt": 3}),
    (8, {**OPEN, "fmt": 1}),
    (8, {**OPEN, "prev": [1]}),
    (8, {"v": 1, "k": "mark", "n": 1, "part": 0, "parts": 1, "topics": [ROW[:9]]}),
    (8, {"v": 1, "k": "mark", "n": 1, "part": 0, "parts": 1, "topics": [[*ROW[:9], -1]]}),
    (0, {"v": 1}),
    (1, {"v": 1}),
    (14, {"v": 1}),
    (255, {"v": 1}),
]


@pytest.mark.parametrize("body", samples.BODIES, ids=lambda body: type(body).__name__)
def test_every_body_comes_back_with_v_first_and_keys_in_table_order(body: control.Body) -> None:
    """S-41: round trip, and shortest integers because the bytes are msgspec's for the same map."""
    raw = control.encode_body(body)
    keys = list(msgspec.msgpack.decode(raw))
    assert keys[0] == "v"
    order = list(body.__struct_encode_fields__)
    assert keys[1:] == sorted(keys[1:], key=order.index)
    # msgspec chooses a map's header before it knows which keys it omits; what follows is the shortest form.
    assert raw.endswith(pack(msgspec.msgpack.decode(raw))[1:])
    assert control.decode_body(control.TYPES[type(body)], raw) == body


def test_defaults_and_absent_optionals_are_omitted() -> None:
    """S-41: the keys that are left are those that say something."""
    lease = control.encode_body(control.Lease(event=3, node="a", lease_id=1))
    assert msgspec.msgpack.decode(lease) == {"v": 1, "e": 3, "n": "a", "l": 1}
    create = control.encode_body(control.TopicCreate(name="t", epoch=1, cfg={}))
    assert msgspec.msgpack.decode(create) == {"v": 1, "name": "t", "epoch": 1, "cfg": {}}
    first = control.encode_body(control.OpenMark(run=1, boot="b", shard=0, shards=1, file=1))
    assert msgspec.msgpack.decode(first) == OPEN
    assert list(msgspec.msgpack.decode(first))[:2] == ["v", "k"]


def test_unknown_keys_are_ignored_and_unknown_config_names_kept() -> None:
    """S-41, S-42."""
    assert control.decode_body(12, pack({**GAP, "later": {"x": [1]}})) == control.Gap(first=1, last=2, reason=0)
    config = {"ttl_ms": 5, "later": {"x": [1, None, -3]}}
    raw = pack({"v": 1, "name": "t", "epoch": 1, "cfg": config, "zz": 1})
    topic = control.decode_body(2, raw)
    assert isinstance(topic, control.TopicCreate)
    assert topic.cfg == config
    assert msgspec.msgpack.decode(control.encode_body(topic))["cfg"] == config


@pytest.mark.parametrize(("kind", "body"), REFUSED)
def test_wrong_types_ranges_versions_and_missing_keys_are_format(kind: int, body: Any) -> None:
    """S-26 step 7, S-41: a ValueError and nothing else."""
    with pytest.raises(ValueError):  # noqa: PT011
        control.decode_body(kind, pack(body))


@pytest.mark.parametrize("kind", range(16))
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa1v",
        b"\x81\xa1v\x01\x00",
        b"\xdf\xff\xff\xff\xff",
        b"\xde\xff\xff\xa1v\x01",
        b"\x82\xa1v\x01\xa1z" + b"\x91" * 100_000,
        b"\x82\xa1v\x01\xa1k" + b"\x81\xa1a" * 50_000,
        b"\x84\xa1v\x01\xa4name\xa1t\xa5epoch\x01\xa3cfg\x81\xa1a" + b"\x91" * 100_000 + b"\xc0",
        b"\x82\xa1v\x01\xa1k\xa2\xff\xff",
        b"\x82\xa1v\x01\xa1k\xdb\xff\xff\xff\xff",
    ],
    ids=range(12),
)
def test_hostile_messagepack_is_format(kind: int, raw: bytes) -> None:
    """S-26 step 7, 13 §6: truncation, lying lengths and nesting bombs give a ValueError."""
    with pytest.raises(ValueError):  # noqa: PT011
        control.decode_body(kind, raw)


def test_a_config_that_python_cannot_hold_is_format() -> None:
    """S-42: a map as a key has no Python form."""
    with pytest.raises(ValueError, match="hashable"):
        control.decode_body(2, b"\x84\xa1v\x01\xa4name\xa1t\xa5epoch\x01\xa3cfg\x81\xa1a\x81\x80\x01")


@pytest.mark.parametrize(
    "body",
    [
        control.HeadWatermark(reserved=-1),
        control.HeadWatermark(reserved=2**64),
        control.Gap(first=1, last=2, reason=7),
        control.TopicCreate(name="t", epoch=1, cfg={"x": object()}),
        control.RouterDelete(op=1, name="\ud800"),
    ],
)
def test_a_body_that_no_start_up_could_read_is_not_encoded(body: control.Body) -> None:
    """S-41: ranges are checked on the way to the log as well."""
    with pytest.raises(ValueError):  # noqa: PT011
        control.encode_body(body)


@given(u64, u64, u64, st.text() | st.none())
def test_numbers_of_the_whole_u64_range_survive(first: int, count: int, epoch: int, key: str | None) -> None:
    """S-6, S-41."""
    pair: dict[str, Any] = {"producer": "p", "epoch": epoch, "index": first} if key is None else {"key": key}
    body = control.Dedupe(first=first, count=count, **pair)
    assert control.decode_body(13, control.encode_body(body)) == body


@given(st.integers(0, 20), st.binary(max_size=60))
def test_any_bytes_are_a_body_or_a_value_error(kind: int, raw: bytes) -> None:
    """S-26 step 7."""
    try:
        body = control.decode_body(kind, raw)
    except ValueError:
        return
    assert control.decode_body(kind, control.encode_body(body)) == body
