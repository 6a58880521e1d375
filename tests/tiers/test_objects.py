"""What an object store does beyond the contract of tiers [S-301]: what other clients see, what it makes of trouble."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Literal
from uuid import uuid4

import pytest
from obstore.store import MemoryStore
from xxhash import xxh3_64_hexdigest, xxh3_64_intdigest

from tests.tiers.conftest import QUICK
from tests.tiers.servers import BUCKET, S3Server
from topics.errors import StoreUnavailable
from topics.fs import File, OsFs, read_regular
from topics.storage.tiers.answers import Absent, Known
from topics.storage.tiers.bucket import Bucket
from topics.storage.tiers.object import MULTIPART_BYTES, ObjectRoot
from topics.storage.tiers.open import open_root
from topics.storage.tiers.place import ObjectPlace
from topics.storage.tiers.store import ColdRoot, SegmentId, SegmentNotFound
from topics.testing.delayedstore import DelayedRoot
from topics.testing.faultfs import Fault, FaultFs

ONE = SegmentId(1)
BIG = bytes(range(251)) * 83556
PLACE = ObjectPlace("memory", "x", "p")


@pytest.fixture
def prefix() -> str:
    return f"cold/{uuid4().hex}"


def test_other_clients_find_the_names_digests_and_lengths_of_the_contract(
    server: S3Server, prefix: str, tmp_path: Path
) -> None:
    root = open_root(server.url(prefix), OsFs(), patience=QUICK)
    root.claim("a" * 32)
    (tmp_path / "big").write_bytes(BIG)
    root.topic(10).put(SegmentId(1, 2), str(tmp_path / "big"), b"index", b"tags")
    client = server.client()
    found = {one["Key"] for one in client.list_objects_v2(Bucket=BUCKET, Prefix=prefix)["Contents"]}
    names = ("seg-0000000000000001.g0002.data", "seg-0000000000000001.idx", "seg-0000000000000001.tag")
    assert found == {f"{prefix}/.topics-store", *(f"{prefix}/topics/0000000A/{name}" for name in names)}
    for name, raw in zip(names, (BIG, b"index", b"tags"), strict=True):
        head = client.head_object(Bucket=BUCKET, Key=f"{prefix}/topics/0000000A/{name}")
        assert head["Metadata"] == {"topicsxxh3": xxh3_64_hexdigest(raw), "topicsbytes": str(len(raw))}
        assert ("-3" in head["ETag"]) == (raw is BIG), "in pieces above 16 MiB, else at once"
    assert client.get_object(Bucket=BUCKET, Key=f"{prefix}/.topics-store")["Body"].read() == b"a" * 32 + b"\n"


def test_a_digest_that_was_not_recorded_or_belongs_to_other_bytes_is_computed(server: S3Server, prefix: str) -> None:
    """[S-301] Recorded at put, or computed: other programs copy buckets, and not all keep attributes."""
    store = open_root(server.url(prefix), OsFs(), patience=QUICK).topic(10)
    store.put(ONE, BIG, b"index")
    key = f"{prefix}/topics/0000000A/seg-0000000000000001"
    stale = {"topicsxxh3": xxh3_64_hexdigest(BIG), "topicsbytes": str(len(BIG))}
    server.client().put_object(Bucket=BUCKET, Key=f"{key}.data", Body=b"other", Metadata=stale)
    server.client().put_object(Bucket=BUCKET, Key=f"{key}.idx", Body=BIG, Metadata={"topicsxxh3": "no digest"})
    assert store.digest(ONE, "data") == xxh3_64_intdigest(b"other")
    assert store.digest(ONE, "idx") == xxh3_64_intdigest(BIG)


def test_of_two_that_claim_a_root_at_once_one_gets_it(server: S3Server, prefix: str) -> None:
    """[S-14, C25]"""

    def claim(id: str) -> str:
        try:
            open_root(server.url(prefix), OsFs(), patience=QUICK).claim(id * 32)
        except StoreUnavailable as error:
            return str(error).removeprefix(root.name).strip()
        return id * 32

    root = open_root(server.url(prefix), OsFs(), patience=QUICK)

    with ThreadPoolExecutor(6) as pool:
        told = sorted(pool.map(claim, "abcdef"))
    assert told == [root.store_id(), *["was claimed by another store"] * 5]


class _Forgetful(Bucket):
    """A store that keeps bytes and loses attributes."""

    def know(self, key: str) -> Known:
        return super().know(key)._replace(attributes={})


class _Lossy(Bucket):
    """A store that says yes and keeps something else."""

    def __init__(self, kept: bytes | None) -> None:
        super().__init__(MemoryStore(), PLACE)
        self._kept = kept

    def put(self, key: str, data: bytes, attributes: Mapping[str, str], *, create: bool = False) -> bool:
        return self._kept is None or super().put(key, self._kept, {}, create=create)

    def put_pieces(self, key: str, pieces: Iterator[bytes], attributes: Mapping[str, str]) -> None:
        self.put(key, b"".join(pieces), attributes)


def test_from_a_store_that_loses_attributes_a_part_is_read_back() -> None:
    store = ObjectRoot(_Forgetful(MemoryStore(), PLACE), OsFs()).topic(10)
    store.put(ONE, BIG, b"index")
    assert store.digest(ONE, "data") == xxh3_64_intdigest(BIG)
    assert store.len(ONE, "idx") == 5


@pytest.mark.parametrize("raw", [b"data", BIG], ids=["at once", "in pieces"])
@pytest.mark.parametrize("change", ["gone", "shorter", "flipped"])
def test_a_put_that_the_store_did_not_keep_is_no_put(raw: bytes, change: str) -> None:
    """[S-311] The hot copy is unlinked on the word of this call."""
    flipped = bytearray(raw)
    flipped[len(raw) // 2] ^= 1
    kept = {"gone": None, "shorter": raw[:-1], "flipped": bytes(flipped)}[change]
    with pytest.raises(StoreUnavailable, match=r"not there after|not what was put"):
        ObjectRoot(_Lossy(kept), OsFs()).topic(10).put(ONE, raw, None)


class _Marking(OsFs):
    """A disk on which a delete mark is set each time a file is opened, for so many times."""

    def __init__(self, marks: int) -> None:
        super().__init__()
        self.marks = marks

    def open(self, path: str, mode: str) -> File:  # type: ignore[override]
        if self.marks:
            self.marks -= 1
            with Path(path).open("r+b") as file:
                file.seek(self.marks * 1000)
                file.write(b"\xd5")
        return super().open(path, mode)  # type: ignore[arg-type]


def test_a_file_that_is_marked_while_it_is_sent_is_sent_again(root: ColdRoot, tmp_path: Path) -> None:
    """The digest travels ahead of the bytes, and must be theirs. The first try is measured, then marked."""
    path = tmp_path / "big"
    path.write_bytes(BIG)
    if not isinstance(root, ObjectRoot):
        return
    store = ObjectRoot(root._bucket, _Marking(2)).topic(10)
    store.put(ONE, str(path), b"index")
    now = read_regular(str(path), len(BIG)).data
    assert now != BIG
    assert store.digest(ONE, "data") == xxh3_64_intdigest(now)
    assert store.read_range(ONE, "data", 0, len(now)) == now


def test_a_file_that_never_holds_still_is_told(tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(BIG)
    store = ObjectRoot(Bucket(MemoryStore(), PLACE), _Marking(100)).topic(10)
    with pytest.raises(StoreUnavailable, match="changed while it was sent"):
        store.put(ONE, str(path), b"index")
    assert not store.exists(ONE, "idx")


@pytest.mark.parametrize("size", [1 << 20, len(BIG)], ids=["at once", "in pieces"])
@pytest.mark.parametrize("error", ["EIO", "short", "zero"])
def test_a_fault_of_the_local_disk_at_any_read_stores_the_whole_file_or_is_told(
    size: int, error: Literal["EIO", "short", "zero"], tmp_path: Path
) -> None:
    """Read twice when it goes in pieces: once for the digest that travels ahead, once to be sent."""
    (tmp_path / "file").write_bytes(BIG[:size])
    told = 0
    for index in range(1, 10):
        store = ObjectRoot(Bucket(MemoryStore(), PLACE), FaultFs(OsFs(), [Fault("pread", index, error)])).topic(10)
        try:
            store.put(ONE, str(tmp_path / "file"), b"index")
        except StoreUnavailable:
            told += 1
            assert not store.exists(ONE, "idx")
        else:
            assert store.read_range(ONE, "data", 0, size) == BIG[:size]
            assert store.digest(ONE, "data") == xxh3_64_intdigest(BIG[:size])
    healed = error == "short" or (error == "zero" and size > MULTIPART_BYTES)  # what was sent is not what was measured
    assert (told == 0) == healed


def test_a_local_file_that_cannot_be_read_is_no_answer_of_the_store(
    server: S3Server, prefix: str, tmp_path: Path
) -> None:
    """Nothing is stored, and nothing is taken for absent."""
    root = open_root(server.url(prefix), OsFs(), patience=QUICK)
    assert isinstance(root, ObjectRoot)
    store = root.topic(10)
    with pytest.raises(StoreUnavailable, match="no-such-file"):
        store.put(ONE, str(tmp_path / "no-such-file"), b"index")
    (tmp_path / "big").write_bytes(BIG)
    while_it_is_sent = FaultFs(OsFs(), [Fault("pread", 6)])
    with pytest.raises(StoreUnavailable, match="big: "):
        ObjectRoot(root._bucket, while_it_is_sent).topic(10).put(ONE, str(tmp_path / "big"), b"index")
    assert not store.exists(ONE, "data")
    assert not store.exists(ONE, "idx")


class _Contradicting(Bucket):
    """A store that lists what it does not find, as some do right after a put."""

    def keys(self, folder: str, after: str = "") -> Iterator[str]:
        yield "seg-0000000000000001.data"


def test_an_object_that_is_listed_and_not_found_is_unknown() -> None:
    store = ObjectRoot(_Contradicting(MemoryStore(), PLACE), OsFs()).topic(10)
    with pytest.raises(StoreUnavailable, match="does not find"):
        store.exists(ONE, "data")
    assert not store.exists(ONE, "idx")
    with pytest.raises(SegmentNotFound):
        store.len(ONE, "tag")


def test_a_key_right_behind_another_is_not_taken_for_it() -> None:
    bucket = Bucket(MemoryStore(), PLACE)
    for name in ("a/b", "a/bcd", "a/bc0"):
        bucket.put(name, b"x", {})
    with pytest.raises(Absent):
        bucket.know("a/bc")


def test_a_delayed_tier_is_asked_only_after_its_delay(root: ColdRoot) -> None:
    """What the benchmark of cold reads and tests of hanging stores stand on."""
    calls: list[str] = []
    delayed = DelayedRoot(root, calls.append)
    delayed.claim("a" * 32)
    store = delayed.topic(10)
    store.put(ONE, b"data", b"i")
    assert store.read_range(ONE, "data", 0, 4) == b"data"
    assert (store.list(), store.exists(ONE, "tag"), store.len(ONE, "idx")) == ([ONE], False, 1)
    assert (delayed.store_id(), delayed.topics(), store.mutable) == ("a" * 32, [10], root.topic(10).mutable)
    store.delete(ONE)
    store.clear()
    assert calls == [
        "claim", "put", "read_range", "list", "exists", "len", "store_id", "topics", "delete", "clear",
    ]  # fmt: skip

    def refuse(call: str) -> None:
        raise StoreUnavailable(call)

    with pytest.raises(StoreUnavailable, match="digest"):
        DelayedRoot(root, refuse).topic(10).digest(ONE, "data")
