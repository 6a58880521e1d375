"""Snapshots: what is encoded comes back, and damaged bytes are told apart from a later version's."""

from __future__ import annotations

import random
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

import topics.codec
from topics.codec import control, snapshot
from topics.codec.snapshot import (
    CommitRow,
    DelayRow,
    DeliveryRow,
    Encoder,
    Header,
    KeyRow,
    LeaseRow,
    NotASnapshot,
    PendingDelete,
    ProducerRow,
    QueueState,
    RouterItem,
    SegmentRow,
    Snapshot,
    TopicItem,
    WalRow,
)
from topics.errors import UnsupportedFormat

DOC = Path(next(iter(topics.codec.__path__))) / "FORMAT.md"
GOLDEN = Path(__file__).parents[2] / "golden" / "codec" / "snapshot.bin"
TS = 1700000000001
STORE = "00112233445566778899aabbccddeeff"

HEADER = Header(
    id=7,
    ts=TS,
    store=STORE,
    run=3,
    boot="6f1c2d3e-boot",
    clean=False,
    next_topic_id=12,
    next_epoch=4,
    next_router_op=6,
    ckpt=91,
    cold="s3://bucket/prefix",
    commits=(CommitRow("nightly", 41, TS), CommitRow("é", 2**64 - 1, 0)),
    pending_deletes=(
        PendingDelete(10, "kitchen/oven", 3, 9, TS, 40, None, None, 41, 39, False),
        PendingDelete(10, "kitchen/oven", 3, 10, TS, None, ("Glob", "job:"), None, 50, None, False),
        PendingDelete(10, "kitchen/oven", 3, 11, TS, None, None, (3, 300, 2**63), None, 2, False),
        PendingDelete(9, "gone", 1, 1, TS, None, None, None, None, None, True),
    ),
    wal=(WalRow("shard-00", 9, 4096), WalRow("shard-63", 1, 0), WalRow("", 4, 0, 1)),
)
QUEUE = QueueState(
    cursor=52,
    dead_lettered=1,
    leases=(LeaseRow(50, "oven-2", 7 * 2**40 + 47, TS), LeaseRow(51, "", 0, 0)),
    deliveries=(DeliveryRow(50, 2),),
    delayed=(DelayRow(TS, 49),),
)
TOPICS = [
    TopicItem(
        id=10,
        name="kitchen/oven",
        epoch=3,
        cfg={"type": "queue", "ttl_ms": 0, "priority": None, "from_2031": [1, "x"]},
        config_version=2,
        base=1,
        head_seq=60,
        ckpt_seq=55,
        reserved=257,
        cap_floor=1,
        ttl_floor=31,
        delete_below=40,
        delete_number=11,
        deletes_recorded=8,
        last_write_ms=TS,
        segments=(
            SegmentRow(1, 30, 2400, snapshot.SEALED | snapshot.COLD, 0, 0, 2**64 - 1),
            SegmentRow(31, 10, 0, snapshot.SEALED | snapshot.GAP, 0, 0, 5),
            SegmentRow(41, 15, 900, 0, 13, 500, 77),
        ),
        keys=(KeyRow("shift-3/0041", 41, 2, TS),),
        producers=(ProducerRow("p", 0, 2**32, 43, 1, TS),),
        queue=QUEUE,
    ),
    TopicItem(
        id=11,
        name="t",
        epoch=1,
        cfg={},
        config_version=1,
        base=1,
        head_seq=0,
        ckpt_seq=0,
        reserved=0,
        cap_floor=1,
        ttl_floor=1,
        delete_below=1,
        delete_number=0,
        deletes_recorded=0,
        last_write_ms=0,
        segments=(),
    ),
]
CREATED: dict[str, Any] = {
    "inc": 4,
    "source": "a",
    "dest": "b",
    "source_id": 10,
    "dest_id": 11,
    "preserve_node": True,
    "preserve_tag": False,
    "create_dest": True,
    "allow_cycle": False,
    "guarantee": "exactly_once",
    "created_ms": TS,
}
ROUTERS = [
    RouterItem(
        op=4,
        name="r",
        **CREATED,
        selector=("Eq", "x"),
        new=True,
        cursor=40,
        base=0,
        position=55,
        total=9,
        dest_head=9,
    ),
    RouterItem(op=5, name="s", **CREATED, new=False, position=0, total=0, dest_head=2**64 - 1),
]

SMALL = msgspec.structs.replace(
    HEADER,
    id=1,
    boot="b",
    cold=None,
    commits=(),
    pending_deletes=(),
    wal=(WalRow("", 3, 900), WalRow("shard-01", 2, 0, 1)),
)


def golden() -> bytes:
    """Every key and kind of row once."""
    return snapshot.encode(HEADER, TOPICS, ROUTERS)


def example() -> bytes:
    """The example of FORMAT.md: one topic without a record, no router."""
    return snapshot.encode(SMALL, TOPICS[1:], [])


def signed(
    body: bytes, version: int = 3, reserved: int = 0, magic: bytes = b"SNP1", body_len: int | None = None
) -> bytes:
    """A file around any body, its checksum right."""
    head = struct.pack("<4sIII", magic, version, len(body) if body_len is None else body_len, reserved)
    return head + struct.pack("<Q", xxh3_64_intdigest(head + body)) + body


def items(*values: object) -> bytes:
    encoded = [value if isinstance(value, bytes) else msgspec.msgpack.encode(value) for value in values]
    return b"".join(struct.pack("<I", len(raw)) + raw for raw in encoded)


def split(raw: bytes) -> list[dict[str, Any]]:
    """The items as plain maps."""
    found, at = [], 24
    while at < len(raw):
        (n,) = struct.unpack_from("<I", raw, at)
        found.append(msgspec.msgpack.decode(raw[at + 4 : at + 4 + n]))
        at += 4 + n
    return found


def changed(raw: bytes) -> Iterator[bytes]:
    for at, old in enumerate(raw):
        for new in {old ^ 0x01, old ^ 0x80, 0x00, 0xFF} - {old}:
            yield raw[:at] + bytes([new]) + raw[at + 1 :]


def test_a_snapshot_decodes_to_what_was_encoded() -> None:
    """S-210, S-219: header, topics with segments, keys, producers and queue, routers with their positions."""
    header = msgspec.structs.replace(HEADER, topics=2, routers=2)
    assert snapshot.decode(golden()) == Snapshot(header, TOPICS, ROUTERS)
    assert snapshot.verify(golden()) == header
    assert snapshot.decode(memoryview(golden())) == snapshot.decode(bytearray(golden()))


def test_the_golden_snapshot_is_written_and_read() -> None:
    """S-7: a format changes only with its version."""
    assert golden() == GOLDEN.read_bytes()
    assert snapshot.decode(GOLDEN.read_bytes()).topics == TOPICS


def test_the_documented_example_is_what_the_code_writes_and_reads() -> None:
    """S-7: document, writer and test map one to one."""
    found = re.findall(r"^```hexdump snapshot\n([0-9a-f\n]+)```$", DOC.read_text(), re.MULTILINE)
    assert [bytes.fromhex(text).hex() for text in found] == [example().hex()]
    header = msgspec.structs.replace(SMALL, topics=1)
    assert snapshot.decode(bytes.fromhex(found[0])) == Snapshot(header, TOPICS[1:], [])


def test_keys_come_in_the_order_of_the_table_and_absent_ones_are_omitted() -> None:
    """06 §13: `v` in the header only; `txn`, `dp`, `idem`, `prod`, `q` when there is something to tell."""
    header, queue, plain, old, new = split(golden())
    counters = "next_topic_id next_epoch next_router_op ckpt"
    assert " ".join(header) == f"v id ts store run boot clean {counters} cold txn dp wal topics routers"
    assert header["v"] == 1
    assert header["wal"] == [["shard-00", 9, 4096], ["shard-63", 1, 0], ["", 4, 0, 1]]
    fields = "id name epoch cfg cv base head ck res cf tf db dn dr lw segs"
    assert " ".join(queue) == f"{fields} idem prod q"
    assert " ".join(queue["q"]) == "cur dl leases dv delayed"
    assert " ".join(plain) == fields
    created = "op inc name src dst sid did pn pt cd ac g f new cts cur base"
    assert " ".join(old) == f"{created} cursor total dest_head"
    assert list(new) == [key for key in old if key not in ("f", "cur", "base")]
    assert [key for key in split(example())[0] if key in ("txn", "dp")] == []
    assert split(example())[0]["cold"] is None


def test_the_router_item_has_all_keys_of_router_create() -> None:
    """06 §13: whatever is added to RouterCreate gets into snapshots."""
    created = [one.encode_name for one in msgspec.structs.fields(control.RouterCreate)]
    item = [one.encode_name for one in msgspec.structs.fields(RouterItem)]
    assert item == [*created, "cursor", "total", "dest_head"]


def test_slices_give_the_same_bytes_as_one_go() -> None:
    """S-214: where the caller pauses leaves no trace."""
    encoder = Encoder(HEADER)
    for topic in TOPICS:
        encoder.add_topics([topic])
    encoder.add_topics([])
    for router in ROUTERS:
        encoder.add_routers([router])
    assert encoder.finish() == golden()


def test_an_empty_store_has_a_snapshot() -> None:
    """S-210."""
    assert snapshot.decode(snapshot.encode(SMALL, [], [])) == Snapshot(SMALL, [], [])


def test_unknown_keys_and_further_elements_are_ignored() -> None:
    """S-41: what a compatible later version adds does not hinder this one."""
    header, *rest = split(golden())
    header |= {"from_2031": [1]}
    header["wal"] = [[*row, 0, "more"] if len(row) == 3 else [*row, "more"] for row in header["wal"]]
    rest = [item | {"from_2031": {"a": None}} for item in rest]
    rest[0]["segs"] = [[*row, "more"] for row in rest[0]["segs"]]
    assert snapshot.decode(signed(items(header, *rest))) == snapshot.decode(golden())


def test_every_truncation_and_every_changed_byte_is_refused() -> None:
    """S-215: no byte of a file can change unnoticed."""
    raw = golden()
    for mutant in [*(raw[:cut] for cut in range(len(raw))), raw + b"\0", *changed(raw)]:
        with pytest.raises(NotASnapshot):
            snapshot.decode(mutant)
        with pytest.raises(NotASnapshot):
            snapshot.verify(mutant)


def test_a_right_checksum_over_wrong_bytes_never_raises_anything_else() -> None:
    """S-215: undecodable items, wrong lengths and counts."""
    body = golden()[24:]
    seen = {"snapshot": 0, "refused": 0}
    for mutant in [*(body[:cut] for cut in range(len(body))), *changed(body)]:
        try:
            snapshot.decode(signed(mutant))
            seen["snapshot"] += 1
        except (NotASnapshot, UnsupportedFormat):
            seen["refused"] += 1
    assert min(seen.values()) > 100


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="empty"),
        pytest.param(signed(golden()[24:], magic=b"SNP2"), id="magic"),
        pytest.param(signed(golden()[24:], reserved=1), id="reserved word"),
        pytest.param(signed(golden()[24:], version=2), id="earlier version"),
        pytest.param(signed(golden()[24:], body_len=2**32 - 1), id="body_len too long"),
        pytest.param(signed(golden()[24:] + b"\0", body_len=len(golden()) - 24), id="bytes behind the body"),
        pytest.param(signed(b""), id="no header item"),
        pytest.param(signed(b"\0\0\0"), id="half a length"),
        pytest.param(signed(b"\xff\xff\xff\xff"), id="item longer than the body"),
        pytest.param(signed(items(b"")), id="empty item"),
        pytest.param(signed(items([])), id="item is no map"),
        pytest.param(signed(items(b"\x82\xa1v\x01\xa1x" + b"\x91" * 100_000 + b"\x01")), id="header nested too deeply"),
        pytest.param(
            signed(items(split(example())[0], b"\x81\xa3cfg\x81\xa1x" + b"\x91" * 100_000)), id="topic nested"
        ),
        pytest.param(signed(items({**split(example())[0], "v": 0}, *split(example())[1:])), id="item version 0"),
        pytest.param(signed(items(split(example())[0])), id="fewer topics than told"),
        pytest.param(signed(items(*split(example()), {})), id="more items than told"),
        pytest.param(signed(items({**split(example())[0], "topics": 2**64 - 1})), id="absurd count"),
        pytest.param(signed(items({**split(example())[0], "topics": 0, "wal": [["../x", 1, 1]]})), id="group key"),
        pytest.param(signed(items({**split(example())[0], "topics": 0, "wal": [["", -1, 1]]})), id="negative number"),
        pytest.param(signed(items({**split(golden())[0], "routers": 0}, *split(golden())[1:2] * 2)), id="topic twice"),
    ],
)
def test_what_is_not_a_snapshot_is_refused(raw: bytes) -> None:
    """S-215, with right checksums where the file is long enough to have one."""
    with pytest.raises(NotASnapshot):
        snapshot.decode(raw)


@pytest.mark.parametrize("key", [key for key in split(golden())[0] if key not in ("txn", "dp", "topics", "routers")])
def test_a_header_without_a_required_key_is_refused(key: str) -> None:
    """06 §13."""
    header, *rest = split(golden())
    del header[key]
    with pytest.raises(NotASnapshot):
        snapshot.decode(signed(items(header, *rest)))


def test_a_later_version_with_a_right_checksum_is_not_damage() -> None:
    """S-7, S-215: whatever else the later version changed."""
    with pytest.raises(UnsupportedFormat):
        snapshot.decode(signed(golden()[24:], version=4))
    with pytest.raises(UnsupportedFormat):
        snapshot.verify(signed(b"something else", version=2**32 - 1, reserved=7, body_len=3))
    with pytest.raises(UnsupportedFormat):
        snapshot.decode(signed(items({"v": 2, "id": "a new type"})))
    later = bytearray(golden())
    later[4] = 4
    with pytest.raises(NotASnapshot):
        snapshot.decode(later)


@pytest.mark.parametrize(
    "wrong",
    [
        {"id": 2**64},
        {"id": -1},
        {"id": "x"},
        {"cfg": {"x": object()}},
        {"name": "\ud800"},
        {"segments": (SegmentRow(1, -1, 0, 0, 0, 0, 0),)},
        {"keys": (LeaseRow(1, "n", 1, 1),)},
    ],
)
def test_an_item_that_would_not_decode_is_not_encoded(wrong: dict[str, Any]) -> None:
    """S-213: a file that no start-up can read must not replace one that it can."""
    encoder = Encoder(HEADER)
    with pytest.raises(ValueError):  # noqa: PT011 - the type is the promise
        encoder.add_topics([msgspec.structs.replace(TOPICS[0], **wrong)])
    with pytest.raises(ValueError):  # noqa: PT011
        snapshot.encode(msgspec.structs.replace(HEADER, wal=(WalRow("", -1, 0),)), [], [])


def test_a_configuration_nested_beyond_reason_is_not_encoded() -> None:
    """S-42."""
    cfg: dict[str, Any] = {}
    for _ in range(100_000):
        cfg = {"a": cfg}
    with pytest.raises(ValueError, match="cannot be encoded"):
        Encoder(HEADER).add_topics([msgspec.structs.replace(TOPICS[0], cfg=cfg)])
    while cfg:
        cfg = cfg["a"]


def test_a_body_that_no_u32_can_tell_is_not_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    """06 §13: body_len is a u32."""
    encoder = Encoder(HEADER)
    encoder.add_topics(TOPICS)
    monkeypatch.setattr(snapshot, "BODY_BYTES_MAX", 100)
    with pytest.raises(ValueError, match="cannot hold"):
        encoder.finish()


u64s = st.integers(0, 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


@given(
    st.lists(st.builds(KeyRow, texts, u64s, u64s, u64s), max_size=4),
    st.lists(st.builds(SegmentRow, *[u64s] * 7), max_size=4),
    st.dictionaries(texts, st.none() | st.booleans() | u64s | texts | st.lists(texts, max_size=3), max_size=4),
    texts,
    u64s,
)
def test_any_topic_comes_back(
    keys: list[KeyRow], rows: list[SegmentRow], cfg: dict[str, Any], name: str, n: int
) -> None:
    """S-210."""
    topic = msgspec.structs.replace(
        TOPICS[0], keys=tuple(keys), segments=tuple(rows), cfg=cfg, name=name, id=n, head_seq=n
    )
    assert snapshot.decode(snapshot.encode(HEADER, [topic], [])).topics == [topic]


@given(st.binary(max_size=200), st.integers(0, 5), st.booleans())
def test_any_bytes_are_refused_or_decoded(raw: bytes, version: int, framed: bool) -> None:
    """S-215."""
    for mutant in (raw, signed(items(raw) if framed else raw, version)):
        try:
            snapshot.decode(mutant)
        except (NotASnapshot, UnsupportedFormat):
            continue


@pytest.mark.parametrize("seed", range(3))
def test_random_edits_under_a_right_checksum_are_refused_or_decoded(seed: int) -> None:
    """S-215: several bytes at once, lengths among them."""
    rng = random.Random(seed)
    for _ in range(1500):
        body = bytearray(golden()[24:])
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(body))
            body[at : at + rng.randrange(4)] = rng.randbytes(rng.randrange(4))
        try:
            snapshot.decode(signed(bytes(body)))
        except (NotASnapshot, UnsupportedFormat):
            continue
