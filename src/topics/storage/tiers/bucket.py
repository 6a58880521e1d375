"""Objects below a prefix, through the one library that knows S3, GCS and Azure [S-301].

This is the only module that imports `obstore`; whoever keeps segments in a folder never loads it. Requests are retried
by the library: connection errors, timeouts and 5xx answers, three times, after 0.2 to 5 s with jitter.

An error is told in words made here, never by passing the library's text on: a store may answer with what was signed
and by which key. *Absent* is a 404 of the object and nothing else: a 404 is also the answer of a bucket that is not
there, and a HEAD does not say which, so it counts only once a listing has shown the bucket and not the key.
Synchronous, the GIL released while waiting; only threads that wait for storage call it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final, NamedTuple

import obstore
from obstore import exceptions
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from topics.errors import SettingsError, StoreDenied, StoreUnavailable
from topics.storage.tiers.answers import PIECE_BYTES, Absent, Beyond, Known
from topics.storage.tiers.place import ObjectPlace

if TYPE_CHECKING:
    from obstore.store import ClientConfig, ObjectStore, RetryConfig, S3Config

PARTS_AT_ONCE: Final = 2

_memory: dict[str, MemoryStore] = {}
"""What was put under `memory://name` stays until the process ends, as a bucket would."""

_STATUS = re.compile(r"non-2xx status code: (\d{3})")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_KIND = re.compile(r"HttpError \{\s+kind: (\w+)")
_START_BEYOND = re.compile(r"Wanted range starting at|StartTooLarge")
_METADATA = re.compile(r"169\.254\.169\.254|metadata\.google|/latest/(api/token|meta-data)")
"""Where clients look for credentials when they were given none."""
_MISSING = frozenset({"NoSuchBucket", "ContainerNotFound"})


class Patience(NamedTuple):
    """How long a request may take and how often it is tried again [S-301]."""

    connect_s: float = 3.0
    read_s: float = 30.0
    """Without a byte from the store."""
    retries: int = 3
    backoff_s: float = 0.2
    backoff_max_s: float = 5.0

    @property
    def request_s(self) -> float:
        """A whole request: a store that sends a byte now and then does not hold a thread for ever."""
        return 4 * self.read_s


class Bucket:
    """Objects below the prefix of a place. Every call may raise `StoreUnavailable`."""

    __slots__ = ("_prefix", "_store", "name")

    def __init__(self, store: ObjectStore, place: ObjectPlace) -> None:
        self.name: Final = str(place)
        self._store = store
        self._prefix = f"{place.prefix}/" if place.prefix else ""

    def put(self, key: str, data: bytes, attributes: Mapping[str, str], *, create: bool = False) -> bool:
        """Store an object in one request; False if `create` found one there already."""
        with self._told("put"):
            try:
                obstore.put(
                    self._store,
                    self._prefix + key,
                    data,
                    attributes=dict(attributes),
                    use_multipart=False,
                    mode="create" if create else "overwrite",
                )
            except exceptions.AlreadyExistsError:
                return False
        return True

    def put_pieces(self, key: str, pieces: Iterator[bytes], attributes: Mapping[str, str]) -> None:
        """Store an object in parts as `pieces` yields them; what that raises goes through, and nothing is stored."""
        with self._told("put"):
            obstore.put(
                self._store,
                self._prefix + key,
                pieces,
                attributes=dict(attributes),
                use_multipart=True,
                chunk_size=PIECE_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )

    def know(self, key: str) -> Known:
        """Size and attributes; `Absent` if there is none."""
        with self._told("head", key):
            result = obstore.get(self._store, self._prefix + key, options={"head": True})
        return Known(result.meta["size"], {name.lower(): value for name, value in result.attributes.items()})

    def read(self, key: str, offset: int, length: int) -> bytes:
        """This range, shorter if the object ends in it; `Beyond` if it ends before, `Absent` if there is none."""
        with self._told("read", key):
            return bytes(obstore.get_range(self._store, self._prefix + key, start=offset, length=length))

    def copy(self, key: str, to: str) -> None:
        """Another name for an object's bytes, made by the store; `Absent` if there is none."""
        with self._told("copy", key):
            obstore.copy(self._store, self._prefix + key, self._prefix + to)

    def delete(self, key: str) -> None:
        """Remove an object; absent is success."""
        try:
            with self._told("delete", key):
                obstore.delete(self._store, self._prefix + key)
        except Absent:
            return

    def keys(self, folder: str, after: str = "") -> Iterator[str]:
        """Keys right below a folder, in their order, from behind `folder/after` on; page by page."""
        base = f"{self._prefix}{folder}/" if folder else self._prefix
        with self._told("list"):
            for page in obstore.list(self._store, base.rstrip("/") or None, offset=base + after if after else None):
                for one in page:
                    name = one["path"].removeprefix(base)
                    if "/" not in name:
                        yield name

    def folders(self, folder: str) -> list[str]:
        """Names of what lies below a folder and has objects below it."""
        base = f"{self._prefix}{folder}"
        with self._told("list"):
            found = obstore.list_with_delimiter(self._store, base)["common_prefixes"]
        return [one.rstrip("/").rpartition("/")[2] for one in found]

    @contextmanager
    def _told(self, doing: str, key: str | None = None) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            self._judge_absent(doing, key, str(error))
            raise Absent from None
        except exceptions.BaseError as error:
            text = str(error)
            if doing == "read" and (_status(text) == 416 or _START_BEYOND.search(text)):
                raise Beyond from None
            kind = StoreDenied if _is_denied(error) else StoreUnavailable
            raise kind(f"{self.name}: cannot {doing}: {_words(error)}") from None

    def _judge_absent(self, doing: str, key: str | None, text: str) -> None:
        """Raise unless a 404 was the object's own: the bucket can be listed, and the key is not in it."""
        if key is None or _code(text) in _MISSING:
            raise StoreUnavailable(f"{self.name}: cannot {doing}: the bucket does not exist") from None
        folder, _, name = key.rpartition("/")
        if next(self.keys(folder, after=name[:-1]), None) == name:
            raise StoreUnavailable(f"{self.name}: cannot {doing}: it lists an object that it does not find") from None


def connect(place: ObjectPlace, variable: str, patience: Patience, keys: Mapping[str, str] | None = None) -> Bucket:
    """The bucket of a place; nothing is asked of it. `keys`: credentials and region of a profile (S3 only)."""
    client: ClientConfig = {
        "connect_timeout": timedelta(seconds=patience.connect_s),
        "read_timeout": timedelta(seconds=patience.read_s),
        "timeout": timedelta(seconds=patience.request_s),
        "allow_http": True,  # used only by an endpoint that says http://
        "user_agent": "topics",
    }
    retry: RetryConfig = {
        "max_retries": patience.retries,
        "backoff": {
            "init_backoff": timedelta(seconds=patience.backoff_s),
            "max_backoff": timedelta(seconds=patience.backoff_max_s),
        },
    }
    try:
        return Bucket(_open(place, client, retry, keys or {}), place)
    except (exceptions.BaseError, ValueError) as error:
        raise SettingsError(variable, f"{place} cannot be used: {_first_line(error)}") from None


def _open(place: ObjectPlace, client: ClientConfig, retry: RetryConfig, keys: Mapping[str, str]) -> ObjectStore:
    if place.scheme == "s3":
        return S3Store(place.bucket, config=_s3_config(place, keys), client_options=client, retry_config=retry)
    if place.scheme == "gs":
        if place.endpoint is None:
            return GCSStore(place.bucket, client_options=client, retry_config=retry)
        return GCSStore(place.bucket, config={"base_url": place.endpoint}, client_options=client, retry_config=retry)
    if place.scheme == "az":
        given = {"account_name": place.account, "endpoint": place.endpoint}
        return AzureStore(
            place.bucket,
            config={name: value for name, value in given.items() if value is not None},  # type: ignore[arg-type]
            client_options=client,
            retry_config=retry,
        )
    return _memory.setdefault(place.bucket, MemoryStore())


def _s3_config(place: ObjectPlace, keys: Mapping[str, str]) -> S3Config:
    """A store of one's own has the bucket in the path unless told otherwise, AWS in the host name."""
    hosted = place.endpoint is None if place.path_style is None else not place.path_style
    config: S3Config = {"virtual_hosted_style_request": hosted, "disable_bulk_delete": True}
    config.update(keys)  # type: ignore[typeddict-item]
    if place.region is not None:
        config["region"] = place.region
    if place.endpoint is not None:
        scheme, _, host = place.endpoint.partition("://")
        config["endpoint"] = f"{scheme}://{place.bucket}.{host}" if hosted else place.endpoint
    return config


def _status(text: str) -> int | None:
    found = _STATUS.search(text)
    return int(found[1]) if found else None


def _code(text: str) -> str:
    found = _CODE.search(text)
    return found[1] if found else ""


def _is_denied(error: Exception) -> bool:
    denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
    return _status(str(error)) in (401, 403) or isinstance(error, denied)


def _words(error: Exception) -> str:
    """What went wrong, without a byte that the store or the library chose but the name of an S3 error code."""
    text = str(error)
    if _METADATA.search(text):
        return "no credentials were found"
    status, code = _status(text), _code(text)
    said = f"{status} {code}".strip() if status is not None else ""
    if code in _MISSING:
        return "the bucket does not exist"
    if _is_denied(error):
        return f"access is denied ({said or 'no permission'})"
    if status is not None:
        return f"it answered {said}"
    return _network_words(text)


def _network_words(text: str) -> str:
    found = _KIND.search(text)
    kind = found[1] if found else ""
    if kind == "Timeout" or "TimedOut" in text:
        return "no answer in time"
    if "ConnectionRefused" in text:
        return "connection refused"
    if "dns error" in text:
        return "the name of its host cannot be resolved"
    if "NotPartial" in text:
        return "it does not serve ranges of an object"
    if kind == "Connect":
        return "no connection"
    return "the connection broke" if kind else "the request failed"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
