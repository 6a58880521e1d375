"""Settings: every `TOPICS_*` variable, declared once (09 §5, §6; 06 §20).

A field of `Settings` or `ClientSettings` *is* the row of the table: name, kind, default, range, unit
and meaning stand beside the type the rest of the program sees. The parser, the reference page and
the warning about misspelt names all read these rows.

    kind      accepts                                            blank or unset
    text      any text without control characters                default
    flag      1 true on yes / 0 false off no, any case           default
    count     decimal digits within the range; so do bytes, ms   default
    choice    one of the listed words, any case                  default
    words     comma-separated list                               empty list
    secret    text that is never shown, not even in an error     none

A bad value stops start-up and names the variable [A-17]; an unknown variable is warned about with the
nearest known name [ENV-3]. What `0` means is part of the row: the default for request limits [LIM-1],
unlimited for resource limits [RES-1]. Parsing is pure; only `from_env`,
`environment` and `forget_api_keys` touch the environment.

Every setting of the server but the keys themselves has a flag of `topics serve`, named after the variable:
`TOPICS_WAL_SHARDS` is `--wal-shards`. A flag wins over its variable, also when it is blank.
"""

from __future__ import annotations

import ctypes
import dataclasses
import difflib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar, cast

from topics.errors import SettingsError

PREFIX = "TOPICS_"
COUNT_MAX = 2**63 - 1
MS_MAX = 2**53
RECORD_AND_META_BYTES_MAX = 32 * 2**20 - 64 * 2**10
STRING_BYTES_MAX = 65535
SEGMENT_BYTES_MAX = 2 * 2**30

Kind = Literal["text", "flag", "count", "bytes", "ms", "port", "choice", "words", "secret"]
Zero = Literal["", "default", "unlimited", "off"]

_ON = frozenset({"1", "true", "on", "yes"})
_OFF = frozenset({"0", "false", "off", "no"})
_DIGITS = re.compile(r"[0-9]+")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_ORIGIN = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?")
_HOST = re.compile(r"\*|\[[0-9A-Fa-f:.]+\]|(\*\.)?[A-Za-z0-9._-]+")
_HOST_PORT = re.compile(r"(\[[^\]]+\]|[^:\[\]]+):([0-9]{1,5})")
_URL_SECRETS = re.compile(r"(?<=://).*@|(?<=\?).*")
_COLD_SCHEMES = ("file", "s3", "gs", "az", "memory")


class Setting(NamedTuple):
    """One row of the table."""

    name: str
    field: str
    kind: Kind
    default: object
    group: str
    meaning: str
    low: int = 0
    high: int = COUNT_MAX
    zero: Zero = ""
    choices: tuple[str, ...] = ()
    default_text: str = ""
    check: Callable[[str], str] | None = None

    @property
    def flag(self) -> str:
        """The option of `topics serve`; empty for a secret, which has none: anyone can read arguments."""
        if self.kind == "secret":
            return ""
        return "--" + self.name.removeprefix(PREFIX).lower().replace("_", "-")

    @property
    def unit(self) -> str:
        """What a number counts: bytes, ms, or nothing in particular."""
        return self.kind if self.kind in ("bytes", "ms") else ""

    @property
    def accepted(self) -> str:
        """What a value may be, in words."""
        if self.kind == "flag":
            return "1/true/on/yes or 0/false/off/no"
        if self.kind == "choice":
            return " or ".join(self.choices)
        if self.kind in ("count", "bytes", "ms", "port"):
            span = f"a whole number from {self.low} to {self.high}"
            return f"0 ({self.zero}) or {span}" if self.zero and self.low > 0 else span
        return "text without control characters"


# The helpers return the type of the field they declare, as dataclasses.field does.


def _row(kind: Kind, default: Any, meaning: str, **more: object) -> Any:
    metadata = {"kind": kind, "meaning": meaning, **more}
    return dataclasses.field(default=default, repr=kind != "secret", metadata=metadata)


def _text(default: str, meaning: str, *, check: Callable[[str], str] | None = None) -> str:
    return cast(str, _row("text", default, meaning, check=check))


def _optional(meaning: str, *, check: Callable[[str], str] | None = None) -> str | None:
    return cast("str | None", _row("text", None, meaning, check=check))


def _secret(meaning: str) -> str | None:
    return cast("str | None", _row("secret", None, meaning))


def _flag(default: bool, meaning: str) -> bool:
    return cast(bool, _row("flag", default, meaning))


def _choice(default: str, choices: tuple[str, ...], meaning: str) -> str:
    return cast(str, _row("choice", default, meaning, choices=choices))


def _words(meaning: str, check: Callable[[str], str]) -> tuple[str, ...]:
    return cast("tuple[str, ...]", _row("words", (), meaning, check=check))


def _count(default: int, meaning: str, low: int = 0, high: int = COUNT_MAX, zero: Zero = "") -> int:
    return cast(int, _row("count", default, meaning, low=low, high=high, zero=zero))


def _bytes(default: int, meaning: str, low: int = 0, high: int = COUNT_MAX, zero: Zero = "") -> int:
    return cast(int, _row("bytes", default, meaning, low=low, high=high, zero=zero))


def _ms(default: int, meaning: str, low: int = 0, high: int = MS_MAX, zero: Zero = "") -> int:
    return cast(int, _row("ms", default, meaning, low=low, high=high, zero=zero))


# Checks of text return what is accepted, or "" when the value is fine.


def _check_host(value: str) -> str:
    if ":" not in value:
        return ""
    match = _HOST_PORT.fullmatch(value)
    if match and int(match[2]) <= 65535:
        return ""
    return "a host name or address, or host:port ([::1]:4000 for IPv6)"


def _check_cold(value: str) -> str:
    scheme, separator, rest = value.partition("://")
    if not separator or (scheme in _COLD_SCHEMES and (rest or scheme == "memory")):
        return ""
    return f"a folder or a URL of {', '.join(s + '://' for s in _COLD_SCHEMES)}"


def _check_origin(value: str) -> str:
    return "" if value == "*" or _ORIGIN.fullmatch(value) else "* or a comma list of scheme://host[:port]"


def _check_host_name(value: str) -> str:
    if _HOST.fullmatch(value):
        return ""
    return "a comma list of host names without ports; *.example is every name below example, * any name"


def _check_url(value: str) -> str:
    return "" if re.fullmatch(r"https?://[^/\s]+(/\S*)?", value) else "an http:// or https:// URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the engine and the server are configured with. Immutable; any thread may read it."""

    # Network, auth, process
    host: str = _text(
        "127.0.0.1",
        "Address to bind. With a `:` it is a complete `host:port` (IPv6: `[::1]:4000`) and `TOPICS_PORT` is ignored.",
        check=_check_host,
    )
    port: int = cast(int, _row("port", 4000, "Port to bind; `0` lets the system choose.", high=65535))
    port_file: str | None = _optional("After binding, the actual `host:port` is written to this file atomically.")
    api_keys: str | None = _secret("Comma-separated API keys with optional scopes and prefixes.")
    api_keys_file: str | None = _optional("File with one API key entry per line, read again on SIGHUP.")
    tls_cert: str | None = _optional("PEM certificate; needs the key as well.")
    tls_key: str | None = _optional("PEM private key; needs the certificate as well.")
    allow_insecure_no_auth: bool = _flag(False, "Permit a bind beyond loopback without any key.")
    probe_auth: bool = _flag(False, "Health and readiness probes need a valid key.")
    cors_origins: tuple[str, ...] = _words("Origins of web pages that may call the server.", _check_origin)
    allowed_hosts: tuple[str, ...] = _words(
        "Further `Host` names accepted when bound to loopback without keys; `*.example` is every name below `example`.",
        _check_host_name,
    )
    log_level: str = _choice("info", ("debug", "info", "warning", "error"), "Log verbosity.")
    kernel: str = _choice("auto", ("pure", "native", "auto"), "Which implementation of the hot loops is used.")
    test_min_heartbeat_ms: int | None = cast(
        "int | None",
        _row("ms", None, "For tests: lowers the 1000 ms floor of heartbeats; clamped to 1 to 1000.", high=MS_MAX),
    )

    # Storage
    data_dir: str = _text("./topics-data", "Directory of log, segments, snapshots and lock file; made if missing.")
    cold_dir: str | None = _optional(
        "Folder or object-store URL for old sealed segments; unset turns tiering off.", check=_check_cold
    )
    wal_shards: int = _count(1, "Independent log shards; may change between restarts.", 1, 64, "default")
    wal_file_bytes: int = _bytes(64 * 2**20, "Size of one WAL file.", 65536)
    wal_retain_files: int = _count(2, "WAL files behind the active one before old topics are checkpointed.")
    wal_init_zero: bool = _flag(True, "Write zeros into a WAL file ahead of durable writes.")
    min_free_bytes: int = _bytes(256 * 2**20, "Free space below which writes are refused as full.", zero="off")
    segment_max_events: int = _count(10_000, "Records at which a segment is sealed.", 1)
    segment_max_bytes: int = _bytes(64 * 2**20, "Size at which a segment is sealed.", high=SEGMENT_BYTES_MAX)
    segment_max_age_ms: int = _ms(3_600_000, "Age at which a partial segment is sealed.", zero="off")
    segment_mmap: bool = _flag(True, "Map sealed segments into memory; off reads them with pread.")
    checkpoint_ms: int = _ms(5_000, "Time between checkpoints.")
    recent_cache_bytes: int = _bytes(64 * 2**20, "Memory for the newest records.")
    cold_cache_bytes: int = _bytes(64 * 2**20, "Memory for blocks read from the cold tier.")
    max_maps: int = _count(8192, "Memory mappings kept open.")
    max_fds: int | None = cast(
        "int | None",
        _row(
            "count",
            None,
            "Descriptors kept open for reading; at most half the descriptor limit.",
            high=COUNT_MAX,
            default_text="the lesser of 4096 and half the descriptor limit",
        ),
    )
    hot_retain_segments: int = _count(4, "Sealed segments, newest first, that stay in the hot directory.")
    hot_retain_bytes: int = _bytes(0, "Byte bound for hot sealed segments; the stricter bound wins.", zero="off")
    reclaim_rewrite: bool = _flag(False, "Rewrite sealed segments that are mostly deleted.")
    reclaim_bytes_per_sec: int = _bytes(8 * 2**20, "Reading plus writing that rewriting may use per second.")
    assume_crash: bool = _flag(False, "Recover as after a machine crash, whatever the boot id says.")

    # Idempotency, producers, transactions
    idempotency_max_entries: int = _count(1_000_000, "Idempotency keys kept, for the whole server.")
    idempotency_max_bytes: int = _bytes(128 * 2**20, "Bytes of idempotency keys kept, for the whole server.")
    producer_ttl_ms: int = _ms(90 * 86_400_000, "Time after which an unused producer is forgotten.")
    stage_ttl_ms: int = _ms(3_600_000, "Time after which an abandoned staged write is dropped.")
    txn_wal_bytes: int = _bytes(64 * 2**20, "Staged bytes up to which a commit goes through the WAL.")

    # Request limits
    max_body_bytes: int = _bytes(64 * 2**20, "Bytes of one request body.", 1, zero="default")
    max_batch_records: int = _count(10_000, "Records in one write.", 1, zero="default")
    max_record_bytes: int = _bytes(2**20, "Bytes of one record.", 1, RECORD_AND_META_BYTES_MAX, "default")
    max_meta_bytes: int = _bytes(16_384, "Bytes of one record's meta.", 1, RECORD_AND_META_BYTES_MAX, "default")
    max_tag_bytes: int = _bytes(256, "Bytes of a tag.", 1, STRING_BYTES_MAX, "default")
    max_node_bytes: int = _bytes(128, "Bytes of a node id.", 1, STRING_BYTES_MAX, "default")
    max_limit: int = _count(1000, "Records in one read.", 1, zero="default")
    max_claim: int = _count(1000, "Jobs in one claim; seqs in one ack, nack, extend or delete.", 1, zero="default")
    max_watch_topics: int = _count(256, "Topics in one watch.", 1, zero="default")

    # Resource limits
    max_topics: int = _count(100_000, "Topics on the server.", zero="unlimited")
    max_routers: int = _count(10_000, "Routers on the server.", zero="unlimited")
    max_watch_sessions: int = _count(10_000, "Watch sessions on the server.", zero="unlimited")
    max_sse_connections: int = _count(10_000, "Open watch, work and WebSocket connections.", zero="unlimited")
    max_sse_connections_per_key: int = _count(1000, "The same, for one key.", zero="unlimited")
    max_inflight_per_key: int = _count(1000, "Requests in flight for one key.", zero="unlimited")
    max_total_bytes: int = _bytes(0, "Live bytes of all topics together.", zero="unlimited")
    max_staged_bytes: int = _bytes(4 * 2**30, "Bytes staged by uncommitted writes.", zero="unlimited")
    max_producers: int = _count(100_000, "Producers remembered.", zero="unlimited")
    max_connections: int = _count(
        20_000, "Open connections; lowered to the descriptor limit less 512.", zero="unlimited"
    )
    max_buffered_bytes: int = _bytes(512 * 2**20, "Body bytes received and not yet staged.", zero="unlimited")

    @property
    def bind(self) -> tuple[str, int]:
        """Host without brackets, and port."""
        match = _HOST_PORT.fullmatch(self.host)
        return (match[1].strip("[]"), int(match[2])) if match else (self.host, self.port)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """What selects a server for the command line; `serve` ignores all of it."""

    url: str = _text("http://127.0.0.1:4000", "Server that the commands talk to.", check=_check_url)
    api_key: str | None = _secret("API key that the commands present.")
    profile: str | None = _optional("Server of `topics.toml` that the commands talk to, unless one is named otherwise.")


class Loaded(NamedTuple):
    """Settings, what to warn about, and which of them were given."""

    settings: Settings
    warnings: list[str]
    given: frozenset[str]
    """Names of the variables that hold a value, or whose flag does."""
    flags: frozenset[str] = frozenset()
    """Those of them that a flag gave."""

    def source(self, name: str) -> Literal["flag", "environment", "default"]:
        """Where a variable's value comes from [SET-1]."""
        if name in self.flags:
            return "flag"
        return "environment" if name in self.given else "default"


_GROUPS = {
    "host": "Network, auth, process",
    "data_dir": "Storage",
    "idempotency_max_entries": "Idempotency, producers, transactions",
    "max_body_bytes": "Request limits",
    "max_topics": "Resource limits",
    "url": "Client",
}


def _rows(cls: type[Settings] | type[ClientSettings]) -> Iterator[Setting]:
    group = ""
    for field in dataclasses.fields(cls):
        group = _GROUPS.get(field.name, group)
        yield Setting(
            name=PREFIX + field.name.upper(), field=field.name, default=field.default, group=group, **field.metadata
        )


SERVER_TABLE: tuple[Setting, ...] = tuple(_rows(Settings))
CLIENT_TABLE: tuple[Setting, ...] = tuple(_rows(ClientSettings))
TABLE: tuple[Setting, ...] = SERVER_TABLE + CLIENT_TABLE
_KNOWN = {setting.name for setting in TABLE}


def parse(env: Mapping[str, str], flags: Mapping[str, str] | None = None) -> Loaded:
    """Settings of the engine and the server from a mapping; raises `SettingsError`.

    `flags` go by the names of their variables too, and win.
    """
    flags = flags or {}
    values, given = _parse_table(SERVER_TABLE, {name: text for name, text in env.items() if name not in flags})
    flagged, from_flags = _parse_table(SERVER_TABLE, flags, shown=lambda setting: setting.flag)
    settings = Settings(**_with_port_of_flag(values, flagged), **flagged)
    _check_together(settings)
    return Loaded(settings, _unknown(env), given | from_flags, from_flags)


def _with_port_of_flag(values: dict[str, Any], flagged: dict[str, Any]) -> dict[str, Any]:
    """A port in `TOPICS_HOST` is a port of the environment: `--port` wins over it as well."""
    match = _HOST_PORT.fullmatch(values.get("host", ""))
    if match is not None and "port" in flagged:
        return {**values, "host": f"{match[1]}:{flagged['port']}"}
    return values


def parse_client(env: Mapping[str, str]) -> ClientSettings:
    """Settings of the client from a mapping; raises `SettingsError`."""
    values, _ = _parse_table(CLIENT_TABLE, env)
    return ClientSettings(**values)


def from_env(flags: Mapping[str, str] | None = None) -> Loaded:
    """`parse` of this process's environment."""
    return parse(os.environ, flags)


def environment() -> Mapping[str, str]:
    """This process's variables, for those of other programs that count here too: profiles of AWS [S-301]."""
    return os.environ


def forget_api_keys() -> None:
    """Take the keys out of this process's own environment, and overwrite the copy it was started with [KEY-5]."""
    name = "TOPICS_API_KEYS"
    secret = os.environb.get(name.encode())
    if secret is None:
        return
    find = ctypes.CDLL(None).getenv
    find.argtypes, find.restype = [ctypes.c_char_p], ctypes.c_void_p
    address = find(name.encode())
    if address and ctypes.string_at(address) == secret:
        ctypes.memset(address, 0, len(secret))
    del os.environ[name]


_T = TypeVar("_T")


def _parse_table(
    table: tuple[Setting, ...], env: Mapping[str, str], shown: Callable[[Setting], str] | None = None
) -> tuple[dict[str, Any], frozenset[str]]:
    """Values by field, and the names that had one; `shown` is what an error calls a setting."""
    values: dict[str, Any] = {}
    for setting in table:
        text = env.get(setting.name, "").strip()
        if text:
            named = setting if shown is None else setting._replace(name=shown(setting))
            values[setting.field] = _value(named, text)
    return values, frozenset(PREFIX + field.upper() for field in values)


def _value(setting: Setting, text: str) -> object:
    if _CONTROL.search(text):
        raise _refusal(setting, text, setting.accepted)
    if setting.kind in ("count", "bytes", "ms", "port"):
        return _integer(setting, text)
    if setting.kind == "flag":
        return _one_of(setting, text, {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)})
    if setting.kind == "choice":
        return _one_of(setting, text, {choice: choice for choice in setting.choices})
    if setting.kind == "words":
        return _word_list(setting, text)
    if setting.check and (accepted := setting.check(text)):
        raise _refusal(setting, text, accepted)
    return text


def _integer(setting: Setting, text: str) -> object:
    # Nineteen digits hold every accepted number; the bound keeps int() from work a hostile value could ask for.
    digits = text.lstrip("0") or "0"
    if not _DIGITS.fullmatch(text) or len(digits) > 19:
        raise _refusal(setting, text, setting.accepted)
    value = int(digits)
    if value == 0 and setting.zero == "default":
        return setting.default
    if not setting.low <= value <= setting.high:
        raise _refusal(setting, text, setting.accepted)
    if setting.field == "test_min_heartbeat_ms":
        return min(max(value, 1), 1000)
    return value


def _one_of(setting: Setting, text: str, meanings: Mapping[str, _T]) -> _T:
    try:
        return meanings[text.lower()]
    except KeyError:
        raise _refusal(setting, text, setting.accepted) from None


def _word_list(setting: Setting, text: str) -> tuple[str, ...]:
    words = tuple(word for item in text.split(",") if (word := item.strip()))
    for word in words:
        if setting.check and (accepted := setting.check(word)):
            raise _refusal(setting, word, accepted)
    return words


def _refusal(setting: Setting, text: str, accepted: str) -> SettingsError:
    if setting.kind != "secret":
        shown = _URL_SECRETS.sub("…", text)  # a URL is no place for credentials, but some hold them
        shown = shown if len(shown) <= 80 else shown[:80] + "…"
        return SettingsError(setting.name, f"{shown!r} is not accepted; expected {accepted}")
    # A secret is never shown: the number of the entry says where to look.
    entry = next(n for n, item in enumerate(text.split(","), 1) if _CONTROL.search(item))
    return SettingsError(setting.name, f"entry {entry} is not accepted; expected {accepted}")


def _check_together(settings: Settings) -> None:
    if (settings.tls_cert is None) != (settings.tls_key is None):
        missing = "TOPICS_TLS_KEY" if settings.tls_key is None else "TOPICS_TLS_CERT"
        raise SettingsError(missing, "not set; certificate and key are given together or not at all")
    if settings.max_record_bytes + settings.max_meta_bytes > RECORD_AND_META_BYTES_MAX:
        raise SettingsError(
            "TOPICS_MAX_RECORD_BYTES",
            f"{settings.max_record_bytes} with {settings.max_meta_bytes} of TOPICS_MAX_META_BYTES is not accepted; "
            f"together at most {RECORD_AND_META_BYTES_MAX}",
        )


def _unknown(env: Mapping[str, str]) -> list[str]:
    warnings = []
    for name in sorted(env):
        if name.startswith(PREFIX) and name not in _KNOWN:
            nearest = difflib.get_close_matches(name, sorted(_KNOWN), n=1, cutoff=0.0)[0]
            warnings.append(f"{name} is not a known setting and is ignored; the nearest is {nearest}")
    return warnings
