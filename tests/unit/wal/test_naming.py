"""Names of segments (07 §1.2)."""

from __future__ import annotations

import pytest

from tests.unit.wal import kit
from topics.wal.naming import LibraryNaming, Naming, ServerNaming

NAMES: list[tuple[Naming, int, str]] = [
    (LibraryNaming(), 0, "000000.wal"),
    (LibraryNaming(), 42, "000042.wal"),
    (LibraryNaming(), 999_999, "999999.wal"),
    (LibraryNaming(), 1_000_000, "1000000.wal"),
    (ServerNaming(), 1, "wal-0000000000000001.log"),
    (ServerNaming(), 123_456, "wal-0000000000123456.log"),
]


@pytest.mark.parametrize(("naming", "id", "name"), NAMES)
def test_an_id_has_one_name_and_the_name_gives_it_back(naming: Naming, id: int, name: str) -> None:
    """07 §1.2."""
    assert (naming.name(id), naming.parse(name)) == (name, id)


@pytest.mark.parametrize("kind", [kit.LIBRARY, kit.SERVER], ids=["library", "server"])
@pytest.mark.parametrize(
    "name",
    [
        *("", "LOCK", "CURRENT", "1.wal", "00000.wal", "0000000.wal", "000000.wal.cut", "000000.wal.cut.1"),
        *("000000.wal.tmp", "000000.WAL", "-00001.wal", "+00001.wal", "000000.wal\n", " 000000.wal", "00000a.wal"),
        *("٠٠٠٠٠٠.wal", "wal-1.log", "wal-00000000000000001.log", "wal-0000000000000001.log.tmp"),
        "WAL-0000000000000001.log",
    ],
)
def test_a_name_that_is_not_ours_has_no_id(kind: kit.Kind, name: str) -> None:
    """07 §1.3: other files are ignored."""
    assert kind.naming.parse(name) is None


@pytest.mark.parametrize(("kind", "first"), [(kit.LIBRARY, 0), (kit.SERVER, 1)])
def test_the_first_segment_has_the_promised_id(kind: kit.Kind, first: int) -> None:
    """07 §1.2."""
    assert kind.naming.first_id == first
