from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.storage import kit


@pytest.fixture
def disk() -> Iterator[kit.Disk]:
    """A fresh simulated disk; what its monitor objected to fails the test."""
    disk = kit.Disk()
    yield disk
    assert disk.fs.violations == []


@pytest.fixture
def run(disk: kit.Disk) -> kit.Run:
    """A shard on an empty group; helpers run at once."""
    return kit.Run(disk)


@pytest.fixture
def stepped(disk: kit.Disk) -> kit.Run:
    """A shard whose first file is open and whose helpers move only when told."""
    run = kit.Run(disk, kit.SteppedOwner())
    run.put()
    run.tick(kit.BACKGROUND_MS)
    return run
