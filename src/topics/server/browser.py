"""What a web page may do [API-22]: Origin, Fetch-Metadata and Host, decided before anything else.

    Origin is ours            as without it
    Origin is listed          answered with CORS headers; preflights need no key
    any other Origin          403
    no Origin, but fetched from another site      403, apart from GET of routes without data
    loopback without keys     Host must be one that cannot have been rebound

Pure functions of headers and settings.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from typing import NamedTuple

from topics.server.exchange import Headers
from topics.server.failure import Failure

ALLOW_METHODS = b"GET, HEAD, PUT, POST, DELETE"
ALLOW_HEADERS = b"Authorization, Content-Type, Content-Encoding, Idempotency-Key, Last-Event-ID"


class Policy(NamedTuple):
    """What of the settings matters here."""

    origins: frozenset[str]
    hosts: frozenset[str] | None
    """Names that `Host` may have besides addresses and localhost; None: any."""

    @classmethod
    def of(cls, origins: tuple[str, ...], hosts: tuple[str, ...], bind_host: str, *, guarded: bool) -> Policy:
        """`guarded`: bound to loopback, without keys."""
        names = frozenset(host.strip("[]").lower() for host in (bind_host, *hosts)) if guarded else None
        return cls(frozenset(origin.lower() for origin in origins), names)


class Verdict(NamedTuple):
    """What the headers of a request mean."""

    failure: Failure | None = None
    cors: Headers = ()
    preflight: bool = False


_PLAIN = Verdict()


def judge(policy: Policy, method: str, headers: Mapping[bytes, bytes], *, public: bool) -> Verdict:
    """`public`: a route that holds no data."""
    host = headers.get(b"host", b"")
    if policy.hosts is not None and not _host_is_safe(host, policy.hosts):
        return Verdict(_forbidden("this Host is not one of the server's; TOPICS_ALLOWED_HOSTS names more"))
    origin = headers.get(b"origin")
    if origin is None:
        site = headers.get(b"sec-fetch-site", b"").strip().lower()
        if site in (b"cross-site", b"same-site") and not (public and method == "GET"):
            return Verdict(_forbidden("requests of other sites are not accepted"))
        return _PLAIN
    cors: Headers = ()
    if not _is_own(origin, host):
        if "*" not in policy.origins and _text(origin) not in policy.origins:
            return Verdict(_forbidden("this Origin is not accepted; TOPICS_CORS_ORIGINS lists those that are"))
        cors = (
            (b"access-control-allow-origin", origin),
            (b"vary", b"Origin"),
            (b"access-control-expose-headers", b"Retry-After"),
        )
    preflight = method == "OPTIONS" and b"access-control-request-method" in headers
    return Verdict(None, cors, preflight)


PREFLIGHT: Headers = (
    (b"access-control-allow-methods", ALLOW_METHODS),
    (b"access-control-allow-headers", ALLOW_HEADERS),
    (b"access-control-max-age", b"600"),
)


def _forbidden(message: str) -> Failure:
    return Failure(403, "forbidden", message)


def _text(raw: bytes) -> str:
    return raw.decode("latin-1").strip().lower()


def _is_own(origin: bytes, host: bytes) -> bool:
    """Same host and port as `Host`; the scheme is ignored, but says which port is meant by none."""
    scheme, separator, authority = _text(origin).partition("://")
    if not separator or not authority:
        return False
    return _with_port(authority, scheme) == _with_port(_text(host), scheme)


def _with_port(authority: str, scheme: str) -> str:
    name, colon, port = authority.rpartition(":")
    if colon and port.isdigit() and not name.endswith(":"):
        return authority
    return f"{authority}:{443 if scheme == 'https' else 80}"


def _host_is_safe(host: bytes, names: frozenset[str]) -> bool:
    text = _text(host)
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    text = text.removesuffix(".")
    if text in names or text == "localhost" or text.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
