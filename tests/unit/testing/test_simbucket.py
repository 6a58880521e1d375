"""A bucket that fails where it is told to: which requests it fails, and what they have done."""

from __future__ import annotations

import pytest

from topics.errors import StoreDenied, StoreUnavailable
from topics.storage.tiers.answers import Absent, Beyond, Known
from topics.testing import ManualClock
from topics.testing.simbucket import AWHILE, SimBucket, TierFault


def bucket(kind: str | None = None, index: int = 1) -> SimBucket:
    fault = None if kind is None else TierFault(kind, index)  # type: ignore[arg-type]
    return SimBucket(ManualClock(), fault)


def test_it_answers_as_a_bucket_does() -> None:
    one = bucket()
    assert one.put("a/x", b"0123", {"k": "v"})
    assert not one.put("a/x", b"new", {}, create=True)
    one.put_pieces("a/b/y", iter((b"0", b"1")), {})
    assert one.know("a/x") == Known(4, {"k": "v"})
    assert one.read("a/x", 2, 9) == b"23"
    with pytest.raises(Beyond):
        one.read("a/x", 4, 1)
    with pytest.raises(Absent):
        one.know("a")
    assert list(one.keys("a")) == ["x"]
    assert list(one.keys("a", after="x")) == []
    assert one.folders("a") == ["b"]
    one.delete("a/x")
    one.delete("a/x")
    assert list(one.objects) == ["a/b/y"]


def test_a_request_fails_once_with_nothing_done_or_with_everything_done() -> None:
    for kind, there in (("once", False), ("unheard", True)):
        one = bucket(kind, 2)
        one.put("x", b"", {})
        with pytest.raises(StoreUnavailable):
            one.put("y", b"", {})
        assert ("y" in one.objects) == there
        one.put("z", b"", {})
        assert one.struck == 1


def test_it_is_away_for_a_while_and_gone_until_it_is_mended() -> None:
    for kind, failures in (("away", AWHILE), ("gone", 2 * AWHILE)):
        one = bucket(kind)
        failed = 0
        for _ in range(2 * AWHILE):
            try:
                one.put("x", b"", {})
            except StoreUnavailable:
                failed += 1
        assert failed == failures
        one.mend()
        one.put("x", b"", {})


def test_deleting_is_denied_and_nothing_else_and_of_a_locked_object_alone() -> None:
    for kind in ("denied", "locked"):
        one = bucket(kind, 4)
        for key in "xyz":
            one.put(key, b"", {})
        for _ in range(2):
            with pytest.raises(StoreDenied):
                one.delete("x")
        assert list(one.keys("")) == ["x", "y", "z"]
        if kind == "denied":
            with pytest.raises(StoreDenied):
                one.delete("y")
        else:
            one.delete("y")
        assert one.struck_ns is None
        one.mend()
        one.delete("x")


def test_a_twin_is_well_and_goes_its_own_way() -> None:
    one = bucket("gone", 2)
    one.put("x", b"", {})
    twin = one.twin()
    twin.delete("x")
    assert list(one.objects) == ["x"]
