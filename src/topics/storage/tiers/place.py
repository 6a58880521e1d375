"""Where a tier lies, from the text of `TOPICS_COLD_DIR` or of a backup's target [S-302, A-7].

    text                                                     is
    cold, /mnt/cold, file:///mnt/cold                        a folder
    s3://bucket/prefix?endpoint=URL&region=R&path_style=1    S3, or what speaks its protocol at `endpoint`
    gs://bucket/prefix[?endpoint=URL]                        Google Cloud Storage
    az://container/prefix?account=NAME[&endpoint=URL]        Azure Blob Storage; the account may be in its variable
    memory://name                                            objects in this process, for tests

Credentials are no part of it: a place is written to snapshots, plans, logs and errors as it is [A-8]. Text that holds
some is refused, and no refusal repeats what it refuses. Pure; any thread.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from topics.errors import SettingsError

Scheme = Literal["s3", "gs", "az", "memory"]

OPTIONS: dict[Scheme, frozenset[str]] = {
    "s3": frozenset({"endpoint", "region", "path_style"}),
    "gs": frozenset({"endpoint"}),
    "az": frozenset({"account", "endpoint"}),
    "memory": frozenset(),
}
"""What may follow the `?`."""

_FLAGS = {"1": True, "true": True, "0": False, "false": False}
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_PREFIX = re.compile(r"[A-Za-z0-9._=@+-]+")
"""One step of a prefix: what every store and client keeps as it is, without escaping."""
_WORD = re.compile(r"[A-Za-z0-9-]+")


class ObjectPlace(NamedTuple):
    """A bucket and what stands in front of every key in it."""

    scheme: Scheme
    bucket: str
    prefix: str = ""
    """Without slashes at its ends."""
    endpoint: str | None = None
    region: str | None = None
    path_style: bool | None = None
    """Whether the bucket is in the path or in the host name; None leaves it to what is usual."""
    account: str | None = None

    def __str__(self) -> str:
        """The text that means this place; it holds no credentials."""
        path = f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")
        style = None if self.path_style is None else str(int(self.path_style))
        options = {"endpoint": self.endpoint, "region": self.region, "path_style": style, "account": self.account}
        query = "&".join(f"{name}={quote(value, safe=':/[]')}" for name, value in options.items() if value is not None)
        return f"{path}?{query}" if query else path


def parse(where: str, variable: str = "TOPICS_COLD_DIR") -> ObjectPlace | str:
    """The place that is meant, a folder as its path; a `SettingsError` naming `variable` if it is none."""
    scheme, separator, _ = where.partition("://")
    if not separator:
        return where
    try:
        url = urlsplit(where)
    except ValueError:
        raise SettingsError(variable, f"it is no URL behind {_shown(scheme)}://") from None
    if "@" in url.netloc:
        raise SettingsError(variable, "a URL with credentials in it; give them by the variables of the provider")
    if scheme == "file":
        return _folder(url, variable)
    for known in OPTIONS:
        if scheme == known:
            return _objects(known, url, variable)
    raise SettingsError(
        variable, f"{_shown(scheme)}:// is no known scheme; use a folder, file://, s3://, gs://, az:// or memory://"
    )


def _folder(url: SplitResult, variable: str) -> str:
    path = unquote(url.path)
    if url.netloc not in ("", "localhost") or not path.startswith("/") or url.query or url.fragment:
        raise SettingsError(variable, "a file:// URL names a folder of this machine: file:///path")
    return path


def _objects(scheme: Scheme, url: SplitResult, variable: str) -> ObjectPlace:
    if not (_BUCKET.fullmatch(url.netloc) or (scheme == "memory" and not url.netloc)):
        raise SettingsError(variable, f"{scheme}:// needs the name of a bucket: {scheme}://bucket/prefix")
    prefix = url.path.strip("/")
    for step in prefix.split("/") if prefix else ():
        if not _PREFIX.fullmatch(step) or step in (".", ".."):
            raise SettingsError(variable, "a prefix holds only letters, digits and ._=@+- between its slashes")
    if url.fragment:
        raise SettingsError(variable, "a # has no meaning here")
    given = _options(scheme, url.query, variable)
    style = given.get("path_style")
    if style is not None and style not in _FLAGS:
        raise SettingsError(variable, "path_style is 1 or 0")
    for name in ("region", "account"):
        if name in given and not _WORD.fullmatch(given[name]):
            raise SettingsError(variable, f"{name} holds only letters, digits and -")
    return ObjectPlace(
        scheme,
        url.netloc,
        prefix,
        _endpoint(given.get("endpoint"), variable),
        given.get("region"),
        None if style is None else _FLAGS[style],
        given.get("account"),
    )


def _options(scheme: Scheme, query: str, variable: str) -> dict[str, str]:
    """The options of a URL; a name that is not known may be a secret, so it is not repeated."""
    known = OPTIONS[scheme]
    usual = f"{scheme}:// takes {', '.join(sorted(known)) or 'no options'}; credentials come from the environment"
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise SettingsError(variable, f"what follows the ? is not name=value; {usual}") from None
    given = dict(pairs)
    if len(given) != len(pairs) or not given.keys() <= known:
        raise SettingsError(variable, f"an option is unknown or given twice; {usual}")
    return given


def _endpoint(text: str | None, variable: str) -> str | None:
    if text is None:
        return None
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError:
        url, port = urlsplit(""), None
    plain = "@" not in url.netloc and not url.query and not url.fragment
    if url.scheme not in ("http", "https") or not url.hostname or not plain or port == 0:
        raise SettingsError(variable, "endpoint is an http:// or https:// URL without credentials")
    return text.rstrip("/")


def _shown(scheme: str) -> str:
    """A scheme worth repeating in an error; anything else may be anything."""
    return scheme if re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]{0,15}", scheme) else "what stands before"
