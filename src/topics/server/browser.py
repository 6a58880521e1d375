"""What a web page may do [API-22]: Origin, Fetch-Metadata and Host, decided before anything else.

    Origin is listed          answered with CORS headers
    Origin is ours            as without it
    any other Origin          403
    no Origin, but fetched from another site      403, apart from GET of routes without data
    loopback without keys     Host must be one that cannot have been rebound
    a preflight that got here is answered without a key

Origins are compared as scheme, host and port, so that a default port may be spelt or left out. Pure functions of
headers and settings.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final, NamedTuple

from topics.server.exchange import Headers
from topics.server.failure import Failure

ALLOW_METHODS = b"GET, HEAD, PUT, POST, DELETE"
ALLOW_HEADERS = b"Authorization, Content-Type, Content-Encoding, Idempotency-Key, Last-Event-ID"
PREFLIGHT: Headers = (
    (b"access-control-allow-methods", ALLOW_METHODS),
    (b"access-control-allow-headers", ALLOW_HEADERS),
    (b"access-control-max-age", b"600"),
)

_HOST: Final = r"(\[[0-9a-f:.]+\]|[a-z0-9_.~%!$&'()*+;=-]+)"
_AUTHORITY: Final = re.compile(_HOST + r"(?::([0-9]{0,5}))?")
_ORIGIN: Final = re.compile(r"([a-z][a-z0-9+.-]*)://" + _HOST + r"(?::([0-9]{1,5}))?")
_PORTS: Final = {"http": 80, "https": 443, "ws": 80, "wss": 443}
REMEMBERED_HOST_BYTES: Final = 300
"""Longer ones are judged each time: what a stranger sends must not fill memory."""


class Origin(NamedTuple):
    """Where a page came from."""

    scheme: str
    host: str
    port: int | None
    """None for a scheme without a port of its own, as apps in a shell of a browser have."""

    @classmethod
    def parse(cls, text: str) -> Origin | None:
        """None for what names no host: `null`, a list, rubbish."""
        found = _ORIGIN.fullmatch(text.strip().lower())
        if found is None:
            return None
        scheme, host, port = found.groups()
        return cls(scheme, _canonical(host), int(port) if port else _PORTS.get(scheme))


class Hosts(NamedTuple):
    """Names that `Host` may have besides addresses and localhost."""

    names: frozenset[str]
    endings: tuple[str, ...]
    """Of `*.example`: `.example`; of `*`: nothing, which every name ends with."""

    @classmethod
    def of(cls, listed: tuple[str, ...]) -> Hosts:
        """From settings."""
        plain = [_canonical(host.lower()).removesuffix(".") for host in listed]
        names = frozenset(host for host in plain if not host.startswith("*"))
        return cls(names, tuple(host[1:] for host in plain if host.startswith("*")))


class Policy(NamedTuple):
    """What of the settings matters here."""

    origins: frozenset[Origin | None] | None
    """Those that are listed; None: every one is."""
    hosts: Hosts | None
    """None: not bound to loopback, any name may be the server's."""

    @classmethod
    def of(cls, origins: tuple[str, ...], hosts: tuple[str, ...], bind_host: str, *, loopback: bool) -> Policy:
        """`bind_host`: the host part of `TOPICS_HOST`."""
        listed = None if "*" in origins else frozenset(map(Origin.parse, origins))
        return cls(listed, Hosts.of((bind_host, *hosts)) if loopback else None)


class Verdict(NamedTuple):
    """What the headers of a request mean."""

    failure: Failure | None = None
    cors: Headers = ()
    preflight: bool = False


PLAIN: Final = Verdict()
"""Nothing about it concerns a browser."""


def _forbidden(message: str) -> Failure:
    return Failure(403, "forbidden", message)


OTHER_ORIGIN: Final = _forbidden("this Origin is not accepted; TOPICS_CORS_ORIGINS lists those that are")
OTHER_SITE: Final = _forbidden("requests of other sites are not accepted")
OTHER_HOST: Final = _forbidden("this Host is not one of the server's; TOPICS_ALLOWED_HOSTS names more")


def judge(
    policy: Policy, method: str, headers: Mapping[bytes, bytes], *, public: bool, has_keys: bool = False
) -> Verdict:
    """`public`: a route that holds no data."""
    origin = headers.get(b"origin")
    cors: Headers = ()
    if origin is not None:
        if _is_listed(origin, policy.origins):
            cors = _cors(origin)
        elif not _is_own(origin, headers.get(b"host", b"")):
            return Verdict(OTHER_ORIGIN)
    elif headers.get(b"sec-fetch-site", b"").strip().lower() in (b"cross-site", b"same-site") and not (
        public and method == "GET"
    ):
        return Verdict(OTHER_SITE)
    if policy.hosts is not None and not has_keys and not _is_safe(headers.get(b"host", b""), policy.hosts):
        return Verdict(OTHER_HOST, cors)
    preflight = method == "OPTIONS" and b"access-control-request-method" in headers
    return Verdict(None, cors, preflight) if cors or preflight else PLAIN


def cors(policy: Policy, origin: bytes | None) -> Headers:
    """What lets the page of a listed origin read an answer that is given before its head was judged."""
    return _cors(origin) if origin is not None and _is_listed(origin, policy.origins) else ()


def _cors(origin: bytes) -> Headers:
    return (
        (b"access-control-allow-origin", origin),
        (b"vary", b"Origin"),
        (b"access-control-expose-headers", b"Retry-After"),
    )


def _is_listed(origin: bytes, listed: frozenset[Origin | None] | None) -> bool:
    if not listed:
        return listed is None
    parsed = Origin.parse(origin.decode("latin-1"))
    return parsed is not None and parsed in listed


def _is_own(origin: bytes, host: bytes) -> bool:
    """Same host and port as `Host`; the scheme is ignored, but says which port is meant by none."""
    page = Origin.parse(origin.decode("latin-1"))
    found = _AUTHORITY.fullmatch(host.decode("latin-1").strip().lower())
    if page is None or found is None:
        return False
    name, port = found.groups()
    ours = int(port) if port else _PORTS.get(page.scheme)
    return page.port is not None and (page.host, page.port) == (_canonical(name), ours)


def _is_safe(host: bytes, hosts: Hosts) -> bool:
    """Whether a name cannot have been pointed at us by somebody else."""
    return (_remembered_safe if len(host) <= REMEMBERED_HOST_BYTES else _judge_host)(host, hosts)


def _judge_host(host: bytes, hosts: Hosts) -> bool:
    found = _AUTHORITY.fullmatch(host.decode("latin-1").strip().lower())
    if found is None:
        return False
    name = _canonical(found[1]).removesuffix(".")
    if name in hosts.names or name == "localhost" or name.endswith((".localhost", *hosts.endings)):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


_remembered_safe = lru_cache(maxsize=256)(_judge_host)


def _canonical(host: str) -> str:
    """An IPv6 address without brackets, in its shortest spelling; a name as it is."""
    if not host.startswith("["):
        return host
    try:
        return ipaddress.IPv6Address(host.strip("[]")).compressed
    except ValueError:
        return host
