"""API keys: who may do what under which names (09 §1, §2).

    entry     secret[:scopes[:prefixes]]      scopes `read+write`, prefixes `plant3:|shared.`
    Key       digest, scopes, prefixes, and the use of it: requests in flight, open streams

Only digests are kept [KEY-5]. A token is compared with every digest, in constant time and without leaving early
[KEY-6]. The ring is replaced whole on SIGHUP; what its keys have in use goes on counting. Event loop only, but for
`load`, which any thread may call.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from typing import Final, NamedTuple
from urllib.parse import unquote_to_bytes

from topics.errors import SettingsError
from topics.fs import Regular, read_regular

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


FILE_BYTES_MAX: Final = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Usage:
    """What a key has in use now. It outlives rings: what began before keys were read anew still ends [RES-3]."""

    __slots__ = ("inflight", "streams")

    def __init__(self) -> None:
        self.inflight = 0
        self.streams = 0


class Key:
    """One key. Identity is its digest [KEY-7]."""

    __slots__ = ("digest", "prefixes", "scopes", "usage")

    def __init__(self, digest: bytes, scopes: frozenset[str], prefixes: tuple[str, ...], usage: Usage) -> None:
        self.digest = digest
        self.scopes = scopes
        self.prefixes = prefixes
        self.usage = usage

    def permits(self, name: str) -> bool:
        """Whether a name begins with one of its prefixes [KEY-3]."""
        return not self.prefixes or name.startswith(self.prefixes)


class Entry(NamedTuple):
    """One parsed entry, without its secret."""

    digest: bytes
    scopes: frozenset[str]
    prefixes: tuple[str, ...]

    def __repr__(self) -> str:
        # The digest is never logged [KEY-7].
        return f"Entry(scopes={sorted(self.scopes)}, prefixes={self.prefixes})"


class KeyRing:
    """All keys in force; none means that everybody may do everything [KEY-8]."""

    def __init__(self, entries: Iterable[Entry] = (), before: KeyRing | None = None) -> None:
        last = {entry.digest: entry for entry in entries}
        self._usage: dict[bytes, Usage] = {}
        if before is not None:
            # Also of keys that are gone: one that comes back has what it had, less what has ended since.
            self._usage = {digest: one for digest, one in before._usage.items() if one.inflight or one.streams}
        self.keys = [Key(*entry, self._usage.setdefault(entry.digest, Usage())) for entry in last.values()]

    def __len__(self) -> int:
        return len(self.keys)

    def by_digest(self, digest: bytes) -> Key | None:
        """A key as it is now: its rights may have changed since it was found."""
        return next((key for key in self.keys if key.digest == digest), None)

    def find(self, token: bytes) -> Key | None:
        """The key of a token; takes the same time whichever it is, or none."""
        digest = hashlib.sha256(token).digest()
        found: Key | None = None
        for key in self.keys:
            if hmac.compare_digest(key.digest, digest):
                found = key
        return found


def presented(authorization: bytes | None, query: bytes = b"") -> bytes:
    """The token of a request, empty without one: `Bearer <token>`, else the first `token` of a query [API-7, API-8].

    `query` is given only where a token may stand in it. A header wins, whatever is in it.
    """
    if authorization is not None:
        scheme, _, token = authorization.partition(b" ")
        return token.strip(b" \t") if scheme.lower() == b"bearer" else b""
    for pair in query.split(b"&") if query else ():
        name, _, value = pair.partition(b"=")
        if _form_decoded(name) == b"token":
            return _form_decoded(value)
    return b""


def _form_decoded(text: bytes) -> bytes:
    return unquote_to_bytes(text.replace(b"+", b" "))


class Found(NamedTuple):
    """Entries of a keys file, and what is wrong with the file itself."""

    entries: list[Entry]
    warnings: list[str]


def load(path: str) -> Found:
    """Read the keys file; a `SettingsError` when it cannot be read or holds what is no entry [KEY-4, BOOT-2]."""
    variable = "TOPICS_API_KEYS_FILE"
    try:
        file: Regular = read_regular(path, FILE_BYTES_MAX)
    except OSError as error:
        raise SettingsError(variable, f"{path} cannot be read: {error.strerror or error}") from None
    warnings = [f"{path} holds API keys and is readable by others; chmod o-r"] if file.others_read else []
    entries = parse_lines(file.data.decode("utf-8-sig", "surrogateescape"), variable)
    if not entries:
        warnings.append(f"{path} holds no API key")
    return Found(entries, warnings)


def parse(text: str, variable: str = "TOPICS_API_KEYS") -> list[Entry]:
    """Entries of a comma-separated list."""
    return _entries(text.split(","), variable, "entry")


def parse_lines(text: str, variable: str = "TOPICS_API_KEYS_FILE") -> list[Entry]:
    """Entries of a file: one per line, `#` begins a comment line [KEY-4]."""
    # Not `splitlines`, which also takes a character inside a secret for the end of a line.
    lines = ["" if line.lstrip().startswith("#") else line for line in text.split("\n")]
    return _entries(lines, variable, "line")


def _entries(items: list[str], variable: str, what: str) -> list[Entry]:
    found = []
    for number, item in enumerate(items, 1):
        item = item.strip()
        if not item:
            continue
        if "," in item:
            raise SettingsError(variable, f"{what} {number} contains a comma")
        if _CONTROL.search(item):
            raise SettingsError(variable, f"{what} {number} contains a control character")
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
