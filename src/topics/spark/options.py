"""Options of the format `topics` (10 §2): every one is checked before anything is read.

Names are not case-sensitive, as everywhere in Spark. An option nobody knows is an error: one that is silently ignored
would read other rows than were asked for. Values that carry a bound per topic are JSON objects; a topic that is not in
one has the default. Pure functions; any thread.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NamedTuple

from topics.spark.failure import SourceError
from topics.storage.view import Tags

PARTITION_BYTES: Final = 96 << 20
MIN_PARTITIONS: Final = 2
PIN_MS: Final = 600_000
PIN_MS_MAX: Final = 3_600_000
COLUMNS: Final = ("topic", "seq", "ts", "node", "tag", "data", "meta", "kind", "gap_to", "reason")
GAP_COLUMNS: Final = ("seq", "kind", "gap_to", "reason")
"""Without these a row cannot tell of a gap."""
DOCS: Final = "the options are listed in docs/guides/spark.md"

READ: Final = (
    "path", "cold", "url", "apiKey", "apiKeyFile", "topics", "subscribe", "subscribePattern", "startingSeq",
    "endingSeq", "startingTimestamp", "endingTimestamp", "tags", "node", "columns", "payload", "meta", "verify",
    "onDataLoss", "includeDeleted", "partitionBytes", "minPartitions", "pinMs",
)  # fmt: skip
PACE: Final = ("maxRecordsPerTrigger", "maxBytesPerTrigger", "minRecordsPerTrigger", "maxTriggerDelay")
"""What only a stream has."""
ENDS: Final = ("endingSeq", "endingTimestamp")
"""What a stream has not."""
MAX_TRIGGER_DELAY: Final = "15m"
LATEST: Final = -1
"""A start behind everything there is."""
_PACE_LOWER: Final = frozenset(name.lower() for name in PACE)
_UNITS_MS: Final = {"ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000}
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_U64_MAX: Final = 2**64 - 1


class Bound(NamedTuple):
    """A bound for every topic, or one per topic; None is no bound."""

    each: int | None = None
    by_topic: tuple[tuple[str, int | None], ...] = ()

    def of(self, topic: str) -> int | None:
        return dict(self.by_topic).get(topic, self.each)


class ReadOptions(NamedTuple):
    """What a reader was asked for."""

    path: str | None = None
    cold: str | None = None
    url: str | None = None
    api_key: str | None = None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    start_seq: Bound = Bound()
    end_seq: Bound = Bound()
    start_ts: Bound = Bound()
    end_ts: Bound = Bound()
    tags: Tags | None = None
    nodes: tuple[str, ...] | None = None
    columns: tuple[str, ...] = COLUMNS
    binary: bool = False
    meta_json: bool = False
    verify: bool = True
    on_data_loss: str = "fail"
    include_deleted: bool = False
    partition_bytes: int = PARTITION_BYTES
    min_partitions: int = MIN_PARTITIONS
    pin_ms: int = PIN_MS

    def __repr__(self) -> str:
        """Without the key: what is shown in logs and plans is anybody's to read."""
        shown = self._replace(api_key=None if self.api_key is None else "…")
        return f"ReadOptions({', '.join(f'{name}={value!r}' for name, value in shown._asdict().items())})"

    @property
    def all_kept(self) -> bool:
        """Whether no record is left out by its content."""
        return self.tags is None and self.nodes is None


class StreamOptions(NamedTuple):
    """What a stream was asked for; `read` is how each of its batches is read, bounds aside."""

    read: ReadOptions
    starts: Bound = Bound()
    """First seq of a new stream: None for the first there is, `LATEST` for what comes."""
    max_records: int | None = None
    max_bytes: int | None = None
    min_records: int = 0
    max_delay_ms: int = 900_000


def parse_stream(given: Mapping[str, str]) -> StreamOptions:
    """Options of a stream; `SourceError` for anything that cannot be meant."""
    values = _known(given, READ + PACE)
    for name in ENDS:
        if name in values:
            raise _bad(name, "a stream has no end", "leave it out; the trigger availableNow ends at what there is")
    starts = _seqs(values, "startingSeq", "earliest", latest=True)
    read = parse_read({name: value for name, value in values.items() if name not in (*PACE, "startingSeq")})
    return StreamOptions(
        read=read,
        starts=starts,
        max_records=_limit(values, "maxRecordsPerTrigger"),
        max_bytes=_limit(values, "maxBytesPerTrigger"),
        min_records=_limit(values, "minRecordsPerTrigger") or 0,
        max_delay_ms=_delay_ms(values),
    )


def _limit(values: Mapping[str, str], name: str) -> int | None:
    return _number(values, name, 0, 1, 2**63 - 1) if name in values else None


def _delay_ms(values: Mapping[str, str]) -> int:
    """A number with its unit; without one it is milliseconds."""
    text = values.get("maxTriggerDelay", MAX_TRIGGER_DELAY).strip().lower()
    found = re.fullmatch(r"([0-9]{1,12}) *(ms|s|m|min|h)?", text)
    if found is None:
        raise _bad("maxTriggerDelay", f"{text!r} is no time", "write it as `90s`, `15m` or `1h`")
    return int(found[1]) * _UNITS_MS[found[2] or "ms"]


def parse_read(given: Mapping[str, str]) -> ReadOptions:
    """Options of a reader; `SourceError` for anything that cannot be meant."""
    for name in given:
        if name.lower() in _PACE_LOWER:
            raise _bad(name, "only a stream has it", "use `spark.readStream`, or leave it out")
    values = _known(given, READ)
    path, url = values.get("path"), values.get("url")
    if (path is None) == (url is None):
        raise _bad(
            "path or url", "exactly one of them is needed", "set `path` to a data directory or `url` to a server"
        )
    names, pattern = _selection(values)
    loss = _one_of(values, "onDataLoss", "fail", ("fail", "emit", "skip"))
    return ReadOptions(
        path=path,
        cold=values.get("cold"),
        url=url,
        api_key=_api_key(values),
        topics=names,
        pattern=pattern,
        start_seq=_seqs(values, "startingSeq", "earliest"),
        end_seq=_seqs(values, "endingSeq", "latest"),
        start_ts=_instants(values, "startingTimestamp", up=True),
        end_ts=_instants(values, "endingTimestamp", up=False),
        tags=_tags(values),
        nodes=_list(values, "node"),
        columns=_columns(values, loss),
        binary=_one_of(values, "payload", "string", ("string", "binary")) == "binary",
        meta_json=_one_of(values, "meta", "map", ("map", "json")) == "json",
        verify=_bool(values, "verify", True),
        on_data_loss=loss,
        include_deleted=_bool(values, "includeDeleted", False),
        partition_bytes=_number(values, "partitionBytes", PARTITION_BYTES, 1, 1 << 40),
        min_partitions=_number(values, "minPartitions", MIN_PARTITIONS, 1, 100_000),
        pin_ms=_number(values, "pinMs", PIN_MS, 0, PIN_MS_MAX),
    )


def layout_of(given: Mapping[str, str]) -> tuple[tuple[str, ...], bool, bool]:
    """Columns, whether data is binary and whether meta is text: what decides the schema."""
    values = _known(given, READ + PACE)
    loss = _one_of(values, "onDataLoss", "fail", ("fail", "emit", "skip"))
    binary = _one_of(values, "payload", "string", ("string", "binary")) == "binary"
    return _columns(values, loss), binary, _one_of(values, "meta", "map", ("map", "json")) == "json"


def _known(given: Mapping[str, str], known: tuple[str, ...]) -> dict[str, str]:
    """The options under their proper names."""
    proper = {name.lower(): name for name in known}
    values = {}
    for name, value in given.items():
        found = proper.get(name.lower())
        if found is None:
            near = difflib.get_close_matches(name.lower(), list(proper), 1)
            todo = f"did you mean `{proper[near[0]]}`?" if near else DOCS
            raise SourceError("unknown_option", f"there is no option `{name}`", todo)
        values[found] = value
    return values


def _bad(name: str, why: str, todo: str = DOCS) -> SourceError:
    return SourceError("invalid_option", f"{name}: {why}", todo)


def _selection(values: Mapping[str, str]) -> tuple[tuple[str, ...], str | None]:
    given = [name for name in ("topics", "subscribe", "subscribePattern") if name in values]
    if len(given) != 1:
        raise _bad("topics", "exactly one of `topics`, `subscribe` and `subscribePattern` is needed")
    if given[0] == "subscribePattern":
        try:
            re.compile(values["subscribePattern"])
        except re.error as error:
            raise _bad("subscribePattern", f"no regular expression: {error}") from error
        return (), values["subscribePattern"]
    names = tuple(dict.fromkeys(part.strip() for part in values[given[0]].split(",") if part.strip()))
    if not names:
        raise _bad(given[0], "no topic is named")
    return names, None


def _api_key(values: Mapping[str, str]) -> str | None:
    if "apiKeyFile" not in values:
        return values.get("apiKey")
    if "apiKey" in values:
        raise _bad("apiKey", "a key and a file with a key cannot both be used")
    path = values["apiKeyFile"]
    try:
        with open(path, encoding="utf-8") as file:
            return file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise _bad("apiKeyFile", f"{path} cannot be read: {error}", "name a file that holds the key alone") from error


def _bound(values: Mapping[str, str], name: str, parse: Any) -> Bound:
    text = values.get(name, "").strip()
    if not text:
        return Bound()
    if not text.startswith("{"):
        return Bound(parse(name, text))
    try:
        members = json.loads(text)
    except ValueError as error:
        raise _bad(name, f"no JSON object: {error}") from error
    return Bound(by_topic=tuple((topic, parse(name, str(value))) for topic, value in members.items()))


def _seqs(values: Mapping[str, str], name: str, none: str, *, latest: bool = False) -> Bound:
    def parse(name: str, text: str) -> int | None:
        if text == none:
            return None
        if latest and text == "latest":
            return LATEST
        if not (_is_digits(text) and int(text) <= _U64_MAX):
            raise _bad(name, f"{text!r} is neither `{none}` nor a seq")
        return int(text)

    return _bound(values, name, parse)


def _instants(values: Mapping[str, str], name: str, *, up: bool) -> Bound:
    """Milliseconds; an instant between two of them is moved inwards."""

    def parse(name: str, text: str) -> int:
        if _is_digits(text):
            return int(text)
        try:
            instant = datetime.fromisoformat(text)
        except ValueError as error:
            raise _bad(name, f"{text!r} is neither ISO 8601 nor milliseconds since 1970") from error
        if instant.tzinfo is None:
            instant = instant.replace(tzinfo=UTC)
        micros = (instant - _EPOCH) // timedelta(microseconds=1)
        return max(-(-micros // 1000) if up else micros // 1000, 0)

    return _bound(values, name, parse)


def _list(values: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = values.get(name)
    if text is None:
        return None
    if not text.lstrip().startswith("["):
        return tuple(part.strip() for part in text.split(","))
    try:
        items = json.loads(text)
    except ValueError as error:
        raise _bad(name, f"no JSON array: {error}") from error
    if not all(isinstance(item, str) for item in items):
        raise _bad(name, "an item is not a string")
    return tuple(items)


def _tags(values: Mapping[str, str]) -> Tags | None:
    items = _list(values, "tags")
    if items is None:
        return None
    return Tags(
        tuple(item for item in items if not item.endswith("*")),
        tuple(item[:-1] for item in items if item.endswith("*")),
    )


def _columns(values: Mapping[str, str], loss: str) -> tuple[str, ...]:
    text = values.get("columns")
    if text is None:
        return COLUMNS
    named = {part.strip() for part in text.split(",") if part.strip()}
    unknown = sorted(named - set(COLUMNS))
    if unknown or not named:
        raise _bad("columns", f"there is no column `{unknown[0]}`" if unknown else "no column is named", _COLUMNS_TODO)
    missing = [name for name in GAP_COLUMNS if name not in named]
    if loss == "emit" and missing:
        raise _bad("columns", f"with onDataLoss=emit `{missing[0]}` must be among them", "add it: rows tell gaps by it")
    return tuple(name for name in COLUMNS if name in named)


_COLUMNS_TODO: Final = f"choose from {', '.join(COLUMNS)}"


def _one_of(values: Mapping[str, str], name: str, default: str, allowed: tuple[str, ...]) -> str:
    text = values.get(name, default).strip().lower()
    if text not in allowed:
        raise _bad(name, f"{text!r} is none of {', '.join(allowed)}")
    return text


def _bool(values: Mapping[str, str], name: str, default: bool) -> bool:
    return _one_of(values, name, str(default).lower(), ("true", "false")) == "true"


def _is_digits(text: str) -> bool:
    """Whether it is a number that need not be longer; Python refuses to read thousands of digits."""
    return text.isascii() and text.isdigit() and len(text) <= 20


def _number(values: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    text = values.get(name, str(default)).strip()
    if not (_is_digits(text) and low <= int(text) <= high):
        raise _bad(name, f"{text!r} is no number from {low} to {high}")
    return int(text)
