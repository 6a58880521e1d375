"""API keys: who may do what under which names (09 §1, §2).

    entry     secret[:scopes[:prefixes]]      scopes `read+write`, prefixes `plant3:|shared.`
    Key       digest, scopes, prefixes, and how many of its requests are in flight

Only digests are kept [KEY-5]. A token is compared with every digest, in constant time and without leaving early
[KEY-6]. Pure, but for `read_file`; the ring is replaced whole on SIGHUP. Event loop only.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from typing import Final, NamedTuple

from topics.errors import SettingsError

READ: Final = "read"
WRITE: Final = "write"
DELETE: Final = "delete"
ADMIN: Final = "admin"
ALL_SCOPES: Final = frozenset({READ, WRITE, DELETE, ADMIN})

_TOKENS: Final[dict[str, frozenset[str]]] = {
    "read": frozenset({READ}),
    "r": frozenset({READ}),
    "write": frozenset({WRITE}),
    "w": frozenset({WRITE}),
    "rw": frozenset({READ, WRITE}),
    "delete": frozenset({DELETE}),
    "del": frozenset({DELETE}),
    "d": frozenset({DELETE}),
    "admin": frozenset({ADMIN}),
    "a": frozenset({ADMIN}),
}


class Key:
    """One key. Identity is its digest [KEY-7]."""

    __slots__ = ("digest", "inflight", "prefixes", "scopes", "streams")

    def __init__(self, digest: bytes, scopes: frozenset[str], prefixes: tuple[str, ...]) -> None:
        self.digest = digest
        self.scopes = scopes
        self.prefixes = prefixes
        self.inflight = 0
        self.streams = 0

    def permits(self, name: str) -> bool:
        """Whether a name begins with one of its prefixes [KEY-3]."""
        return not self.prefixes or name.startswith(self.prefixes)


class Entry(NamedTuple):
    """One parsed entry, without its secret."""

    digest: bytes
    scopes: frozenset[str]
    prefixes: tuple[str, ...]


class KeyRing:
    """All keys in force; none means that everybody may do everything [KEY-8]."""

    def __init__(self, entries: Iterable[Entry] = (), before: KeyRing | None = None) -> None:
        last = {entry.digest: entry for entry in entries}
        self.keys = [Key(*entry) for entry in last.values()]
        for key in self.keys:
            # Requests of a key that stays are still in flight.
            old = before._of(key.digest) if before is not None else None
            if old is not None:
                key.inflight, key.streams = old.inflight, old.streams

    def __len__(self) -> int:
        return len(self.keys)

    def _of(self, digest: bytes) -> Key | None:
        return next((key for key in self.keys if key.digest == digest), None)

    def find(self, token: bytes) -> Key | None:
        """The key of a token; takes the same time whichever it is, or none."""
        digest = hashlib.sha256(token).digest()
        found: Key | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def parse(text: str, variable: str = "TOPICS_API_KEYS") -> list[Entry]:
    """Entries of a comma-separated list."""
    return _entries(text.split(","), variable, "entry")


def parse_lines(text: str, variable: str = "TOPICS_API_KEYS_FILE") -> list[Entry]:
    """Entries of a file: one per line, `#` begins a comment line [KEY-4]."""
    lines = ["" if line.lstrip().startswith("#") else line for line in text.splitlines()]
    return _entries(lines, variable, "line")


def _entries(items: list[str], variable: str, what: str) -> list[Entry]:
    found = []
    for number, item in enumerate(items, 1):
        item = item.strip()
        if not item:
            continue
        if "," in item:
            raise SettingsError(variable, f"{what} {number} contains a comma")
        found.append(_entry(item, variable, f"{what} {number}"))
    return found


def _entry(item: str, variable: str, where: str) -> Entry:
    secret, _, rest = item.partition(":")
    scope_text, _, prefix_text = rest.partition(":")
    secret = secret.strip()
    if not secret:
        raise SettingsError(variable, f"{where} has no secret")
    scopes = _scopes(scope_text.strip(), variable, where)
    prefixes = tuple(prefix for one in prefix_text.split("|") if (prefix := one.strip()))
    return Entry(hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest(), scopes, prefixes)


def _scopes(text: str, variable: str, where: str) -> frozenset[str]:
    if not text:
        return ALL_SCOPES
    tokens = [token for one in text.split("+") if (token := one.strip().lower())]
    if not tokens:
        raise SettingsError(variable, f"{where} names no scope; an empty field means all")
    scopes: frozenset[str] = frozenset()
    for token in tokens:
        if token not in _TOKENS:
            raise SettingsError(variable, f"{where} has an unknown scope; expected read, write, delete, admin or rw")
        scopes |= _TOKENS[token]
    return scopes
