"""Fixtures of the write-ahead-log tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.wal import kit
from topics.codec import kernel


@pytest.fixture
def disk() -> Iterator[kit.Disk]:
    """A fresh simulated disk; what its monitor objected to in any thread fails the test."""
    disk = kit.Disk()
    yield disk
    assert disk.fs.violations == []


@pytest.fixture(params=[kit.LIBRARY, kit.SERVER], ids=["library", "server"])
def kind(request: pytest.FixtureRequest) -> kit.Kind:
    """Each kind of log: naming, codec and habits."""
    found: kit.Kind = request.param
    return found


needs_native = pytest.mark.skipif(kernel.installed() is None, reason="the native kernel is not installed")


@pytest.fixture(params=["pure", pytest.param("native", marks=needs_native)])
def kernel_used(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the kernel and without: encoding, walking and sharing are done twice."""
    monkeypatch.setattr(kernel, "native", None if request.param == "pure" else kernel.installed())
