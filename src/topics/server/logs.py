"""The server's log: text on a terminal, JSON lines elsewhere (09 §6, [U-12]).

    {"ts":1790000123456,"level":"info","logger":"topics.server","message":"ready","topics":12,"recovery_ms":310}

Records are rendered where they are logged and written by a thread of their own, through a bounded queue: a reader that
does not read, a paused terminal or a slow disk below a log file never stops the event loop. What did not fit is counted
and told. Secrets are not logged by anybody; what looks like a presented token is blanked here all the same [KEY-5].
"""

from __future__ import annotations

import io
import json
import logging
import os
import queue
import re
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TextIO

LINES_MAX: Final = 10_000
FLUSH_S: Final = 1.0

_TOKEN = re.compile(r"(?i)(bearer\s+|[?&]token=)[^\s&\"']+")
_COLOURS = {"warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}
_CLEAR = "\r\x1b[K"


def fields(**values: object) -> dict[str, dict[str, object]]:
    """`extra=` of a log call: members of the JSON line; text leaves them out, the message says it in words."""
    return {"fields": values}


class Writer:
    """Writes lines to a stream on its own thread. Any thread may `put`."""

    def __init__(self, stream: TextIO, told: Callable[[int], str]) -> None:
        """`told`: the line that says how many were dropped."""
        self._stream = stream
        self._told = told
        self._queue: queue.Queue[str | threading.Event] = queue.Queue(LINES_MAX)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="topics-log", daemon=True)
        self._thread.start()

    def put(self, text: str) -> None:
        """Have it written; dropped when too much waits already."""
        try:
            self._queue.put_nowait(text)
        except queue.Full:
            self._dropped += 1

    def flush(self, within_s: float = FLUSH_S) -> bool:
        """Wait until what was put is written; False: the stream does not take it."""
        written = threading.Event()
        try:
            self._queue.put(written, timeout=within_s)
        except queue.Full:
            return False
        return written.wait(within_s)

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if isinstance(item, threading.Event):
                item.set()
                continue
            try:
                self._stream.write(item)
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    self._stream.write(self._told(dropped))
                self._stream.flush()
            except (OSError, ValueError):  # nobody reads any more: there is no one to tell
                self._dropped += 1


class JsonLines(logging.Formatter):
    """One object per line."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": blanked(record.getMessage()),
        }
        told.update(getattr(record, "fields", {}))
        if record.exc_info:
            told["exception"] = blanked(self.formatException(record.exc_info))
        return json.dumps(told, default=str)


class Text(logging.Formatter):
    """For people: time, level when it matters, message."""

    def __init__(self, *, colours: bool) -> None:
        super().__init__(datefmt="%H:%M:%S")
        self._colours = colours

    def format(self, record: logging.LogRecord) -> str:
        level = record.levelname.lower()
        message = printable(blanked(record.getMessage()))
        if record.levelno >= logging.WARNING:
            colour = _COLOURS[level] if self._colours else ""
            message = f"{colour}{level}:{_end(colour)} {message}"
        line = f"{self.formatTime(record, self.datefmt)} {message}"
        if record.exc_info:
            trace = blanked(self.formatException(record.exc_info))
            line += "\n" + "\n".join(printable(one) for one in trace.splitlines())
        return line


def _end(colour: str) -> str:
    return "\x1b[0m" if colour else ""


def blanked(text: str) -> str:
    """Without what looks like a presented token."""
    return _TOKEN.sub(r"\1…", text)


def printable(text: str) -> str:
    """Names are anyone's bytes: what would steer a terminal, or fake a line, is shown and not sent."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


class _Lines(logging.Handler):
    def __init__(self, put: Callable[[str], None], formatter: logging.Formatter) -> None:
        super().__init__()
        self._put = put
        self.setFormatter(formatter)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._put(self.format(record) + "\n")
        except Exception:  # noqa: BLE001 - a record that cannot be rendered must not fail what logged it
            self.handleError(record)


class _Kept(logging.Handler):
    """Warnings and worse, to be shown by the metrics [MET-6]."""

    def __init__(self, keep: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._keep = keep

    def emit(self, record: logging.LogRecord) -> None:
        if not getattr(record, "kept", False):
            self._keep(blanked(record.getMessage()))


class _Nowhere(io.StringIO):
    """Instead of a stderr that the caller closed."""

    def write(self, text: str) -> int:
        return len(text)


class Logs:
    """Where the process's log goes; one at a time, since Python has one tree of loggers."""

    def __init__(self, stream: TextIO | None, *, as_json: bool = False, env: Mapping[str, str] = os.environ) -> None:
        self.is_terminal = not as_json and stream is not None and stream.isatty()
        self._colours = self.is_terminal and not env.get("NO_COLOR") and env.get("TERM") != "dumb"
        formatter = Text(colours=self._colours) if self.is_terminal else JsonLines()
        self._writer = Writer(_Nowhere() if stream is None else stream, lambda count: _dropped(formatter, count))
        self._shown = False
        self._handlers: list[logging.Handler] = [_Lines(self._line, formatter)]
        self._root = logging.getLogger()
        self._before = (self._root.level, threading.excepthook)
        self._root.addHandler(self._handlers[0])
        self._root.setLevel(logging.WARNING)
        self.set_level("info")
        logging.captureWarnings(True)
        threading.excepthook = _log_thread_error

    def set_level(self, level: str) -> None:
        """Of our own loggers; those of libraries tell warnings and worse."""
        logging.getLogger("topics").setLevel(level.upper())

    def keep_warnings(self, keep: Callable[[str], None]) -> None:
        """Also hand every warning to `keep`, on the thread that logs it."""
        handler = _Kept(keep)
        self._handlers.append(handler)
        self._root.addHandler(handler)

    def print(self, text: str) -> None:
        """Text as it is: the banner. Only on a terminal."""
        if self.is_terminal:
            self._line(text + "\n")

    def bold(self, text: str) -> str:
        """Text that stands out where it can."""
        return f"\x1b[1m{text}\x1b[0m" if self._colours else text

    def show(self, text: str) -> None:
        """One line that the next one replaces: progress. Only on a terminal."""
        if self.is_terminal:
            self._shown = True
            self._writer.put(_CLEAR + text)

    def _line(self, text: str) -> None:
        if self._shown:
            self._shown = False
            text = _CLEAR + text
        self._writer.put(text)

    def flush(self) -> None:
        """What was logged is written, unless the stream does not take it."""
        self._writer.flush()

    def close(self) -> None:
        """Let go of Python's loggers."""
        self.flush()
        for handler in self._handlers:
            self._root.removeHandler(handler)
        level, hook = self._before
        self._root.setLevel(level)
        threading.excepthook = hook
        logging.captureWarnings(False)
        logging.getLogger("topics").setLevel(logging.NOTSET)


def _dropped(formatter: logging.Formatter, count: int) -> str:
    record = {"name": "topics.server", "levelno": logging.WARNING, "levelname": "WARNING"}
    message = {"msg": "%d log lines were dropped: nobody took them", "args": (count,)}
    return formatter.format(logging.makeLogRecord(record | message)) + "\n"


def _log_thread_error(args: threading.ExceptHookArgs, /) -> None:
    name = args.thread.name if args.thread is not None else "a thread"
    if args.exc_value is not None and args.exc_type is not SystemExit:
        info = (args.exc_type, args.exc_value, args.exc_traceback)
        logging.getLogger("topics.server").error("%s ended by an error", name, exc_info=info)


def to_stderr(*, as_json: bool) -> Logs:
    """The log of this process."""
    return Logs(sys.stderr, as_json=as_json)
