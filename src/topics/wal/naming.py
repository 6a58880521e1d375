"""How segments are named: one policy per kind of log (07 §1.2). Pure; any thread."""

from __future__ import annotations

from typing import Protocol

from topics import paths


class Naming(Protocol):
    """Turns segment ids into file names and back."""

    @property
    def first_id(self) -> int:
        """Id of the first segment of an empty log."""
        ...

    def name(self, id: int) -> str: ...

    def parse(self, name: str) -> int | None:
        """The id, or `None` for a file that is none of ours."""
        ...


class LibraryNaming:
    """`000000.wal`, `000001.wal`, …; more digits beyond 999999, order numeric."""

    __slots__ = ()
    first_id = 0

    def name(self, id: int) -> str:
        return paths.library_segment(id)

    def parse(self, name: str) -> int | None:
        return paths.parse_library_segment(name)


class ServerNaming:
    """`wal-0000000000000001.log`, …: the files of a server's WAL group."""

    __slots__ = ()
    first_id = 1

    def name(self, id: int) -> str:
        return paths.wal_file(id)

    def parse(self, name: str) -> int | None:
        return paths.parse_wal_file(name)
