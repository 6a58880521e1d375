"""Heads that were seen before: what a request is told by its head alone is found out once [P-10, HOTPATH].

Clients send the same head again and again. One that came in one piece and is plainly right is remembered, byte for
byte, with what it means: the parsed head, its route, and that nothing about it is refused. All of that follows from
these bytes, the settings and whether there are keys. Whatever depends on anything else is looked at for each request.

Of a head with a token in it a keyed digest is kept, and whose token it is: never the token [KEY-5]. Not remembered is
one that upgrades, expects, packs its body, comes from a web page, or has a token where it does not belong. Bounded;
when it is full it begins anew. Event loop only.
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

from topics.model import is_system_name
from topics.server import browser, records, wire
from topics.server.exchange import Head, allows_gzip
from topics.server.routes import Access, Match, resolve

if TYPE_CHECKING:
    from topics.server.browser import Policy
    from topics.server.keys import Key
    from topics.server.lines import Lines

HEADS_MAX: Final = 1024
HEAD_BYTES_MAX: Final = 1024
"""Longer ones are seldom the same twice; what strangers send must not fill memory."""
_TOKEN: Final = b"authorization"
_TELLING: Final = (b"upgrade", b"origin", b"content-encoding", b"expect", b"cookie")
"""Fields whose heads are looked at each time."""


class Known(NamedTuple):
    """A head that is plainly right, and what it means."""

    head: Head
    keep_alive: bool
    match: Match
    query: bytes
    wants_gzip: bool
    gathers: bool
    """It is that of a write without anything special about it."""
    key: Key | None
    """Whose token it has; the key permits the request."""


class Heads:
    """What was remembered."""

    def __init__(self, policy: Policy, body_bytes_max: int, *, has_keys: bool) -> None:
        self.by_bytes: dict[bytes, Known] = {}
        """Those without a token."""
        self.by_digest: dict[bytes, Known] = {}
        """Those with one."""
        self._salt = secrets.token_bytes(32)
        self._has_keys = has_keys
        self._policy = policy
        self._body_bytes_max = body_bytes_max
        self.lines: Lines | None = None
        """Which connections the kernel has, if any: it takes plain writes by itself."""

    def forget(self, *, has_keys: bool) -> None:
        """The keys are others."""
        self._has_keys = has_keys
        self.by_bytes.clear()
        self.by_digest.clear()
        if self.lines is not None:
            self.lines.forget()

    def digest(self, raw: bytes) -> bytes:
        """What a head with a token is kept by."""
        return hashlib.blake2b(raw, digest_size=16, key=self._salt).digest()

    def remember(self, raw: bytes, head: Head, keep_alive: bool, key: Key | None) -> None:
        """Remember a head that was let through just now, if it may be; `key` is whose token it has."""
        if len(raw) > HEAD_BYTES_MAX or any(name in head.headers for name in _TELLING):
            return
        path, _, query = head.target.partition(b"?")
        if b"token" in query:
            return  # nothing looks at it [API-8], but a key it may be
        match = resolve(head.method, path)
        has_token = _TOKEN in head.headers
        if has_token and self._has_keys and (key is None or match.access is not Access.KEY):
            return
        known = self._known(head, keep_alive, match, query, key)
        if known is None:
            return
        remembered = self.by_digest if has_token else self.by_bytes
        if len(remembered) >= HEADS_MAX:
            remembered.clear()
            if self.lines is not None and not has_token:
                self.lines.forget()
        by = self.digest(raw) if has_token else raw
        is_new = by not in remembered
        remembered[by] = known
        if is_new and self.lines is not None and known.gathers and keep_alive and not has_token:
            self.lines.know(raw, known)

    def _known(self, head: Head, keep_alive: bool, match: Match, query: bytes, key: Key | None) -> Known | None:
        route = match.route
        if route is None or match.failure is not None or route.token or route.stream:
            return None
        if (
            browser.judge(self._policy, head.method, head.headers, public=False, has_keys=self._has_keys)
            != browser.PLAIN
        ):
            return None
        declared, media = head.declared, head.headers.get(b"content-type")
        if declared is None or declared > self._body_bytes_max:
            return None
        match = match.without_foreign_body(media) if declared else match
        if match.unfit_type(media, empty=not declared) is not None or match.is_binary(media):
            return None
        accepted = head.headers.get(b"accept-encoding")
        wants_gzip = accepted is not None and allows_gzip(accepted)
        if _TOKEN in head.headers:
            head = head._replace(headers={name: value for name, value in head.headers.items() if name != _TOKEN})
        return Known(head, keep_alive, match, query, wants_gzip, _gathers(head, match, query), key)


def _gathers(head: Head, match: Match, query: bytes) -> bool:
    if match.route is None or match.route.handler is not records.write or not head.declared or query:
        return False
    media = wire.media_type(head.headers.get(b"content-type", b""))
    return media == b"application/json" and b"idempotency-key" not in head.headers and not is_system_name(match.name)
