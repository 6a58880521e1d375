"""Log lines of a program as records of a topic: a handler for the standard library's `logging` [U-23].

>>> import logging, topics
>>> from topics.logging import TopicsHandler
>>> log = topics.open(None)                      # or topics.Client("http://…")
>>> handler = TopicsHandler(log, "app-logs")
>>> logger = logging.getLogger("shop")
>>> logger.addHandler(handler)
>>> logger.warning("only %d left", 3, extra={"sku": "B-12"})
>>> handler.flush()
>>> [(line.data["level"], line.data["message"], line.data["sku"]) for line in log.read("app-logs")]
[('WARNING', 'only 3 left', 'B-12')]
>>> logger.removeHandler(handler); handler.close(); log.close()

Whoever logs never waits: lines go into a bounded line and are appended in batches by a thread of the handler's own.
What does not fit, or cannot be written, is counted and told by a line of its own as soon as one can be. Lines of this
package's own loggers are left out: writing them would make more of them. Any thread.
"""

from __future__ import annotations

import logging
import queue
import threading
import traceback
from typing import Any, Final

from topics.errors import CallerError, TopicsError
from topics.model import NewRecord, new
from topics.surface.base import Surface

LINE_MAX: Final = 10_000
BATCH: Final = 500
FLUSH_S: Final = 10.0
TAG_BYTES: Final = 256
OWN: Final = "topics"
_KNOWN: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class TopicsHandler(logging.Handler):
    """Appends log lines to a topic of a `Client` or a `Log`; the tag of a record is the name of its logger."""

    def __init__(
        self, surface: Surface, topic: str, level: int = logging.NOTSET, *, node: str | None = None,
        waiting_max: int = LINE_MAX,
    ) -> None:  # fmt: skip
        super().__init__(level)
        self.lost = 0
        """Lines that did not fit, or could not be written."""
        self._surface = surface
        self._topic = topic
        self._node = node
        self._untold = 0
        self._waiting: queue.Queue[NewRecord | threading.Event | None] = queue.Queue(waiting_max)
        self._thread = threading.Thread(target=self._run, name="topics-logging", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Put a line into the line; never waits."""
        if record.name == OWN or record.name.startswith(OWN + "."):
            return
        try:
            self._waiting.put_nowait(new(_plain(self._told(record)), _tag(record.name), self._node))
        except queue.Full:
            self._lose(1)
        except Exception:  # noqa: BLE001 - logging's own way: a line that cannot be made must not end a program
            self.handleError(record)

    def _told(self, record: logging.LogRecord) -> dict[str, Any]:
        told: dict[str, Any] = {
            "ts": int(record.created * 1000),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "where": f"{record.pathname}:{record.lineno}",
            "thread": record.threadName,
        }
        told |= {name: value for name, value in vars(record).items() if name not in _KNOWN}
        if record.exc_info and record.exc_info[0] is not None:
            told["exception"] = "".join(traceback.format_exception(*record.exc_info))
        return told

    def flush(self) -> None:
        """Wait until what was logged before is written, or given up; ten seconds at most."""
        done = threading.Event()
        if self._thread.is_alive():
            self._waiting.put(done)
            done.wait(FLUSH_S)

    def close(self) -> None:
        """Write what is left and end the thread; the surface stays open."""
        if self._thread.is_alive():
            self._waiting.put(None)
            self._thread.join(FLUSH_S)
        super().close()

    def _lose(self, count: int) -> None:
        self.lost += count
        self._untold += count

    # -- the handler's own thread ------------------------------------------------------------------------------------

    def _run(self) -> None:
        while True:
            batch: list[NewRecord] = []
            item = self._waiting.get()
            while isinstance(item, NewRecord):
                batch.append(item)
                if len(batch) >= BATCH:
                    break
                try:
                    item = self._waiting.get_nowait()
                except queue.Empty:
                    break
            self._write(batch)
            if isinstance(item, threading.Event):
                item.set()
            elif item is None:
                return

    def _write(self, batch: list[NewRecord]) -> None:
        untold, self._untold = self._untold, 0
        if untold:
            told = {"level": "WARNING", "logger": OWN, "message": f"{untold} log lines were lost", "lost": untold}
            try:
                self._surface.append(self._topic, told, tag=OWN, node=self._node)
            except TopicsError:
                self._untold += untold
        if batch:
            self._append(batch)

    def _append(self, batch: list[NewRecord]) -> None:
        """All of them; where one cannot be written, the others."""
        try:
            self._surface.append_many(self._topic, batch)
        except CallerError:
            if len(batch) == 1:
                self._lose(1)
                return
            half = len(batch) // 2
            self._append(batch[:half])
            self._append(batch[half:])
        except TopicsError:
            self._lose(len(batch))


def _tag(name: str) -> str:
    return _text(name).encode()[:TAG_BYTES].decode(errors="ignore")


def _text(value: str) -> str:
    """Text that is Unicode; what is none, of a file's name perhaps, is spelled out."""
    return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()


def _plain(value: object) -> object:
    """A value that JSON has a word for; anything else as the text it prints as."""
    if value is None or isinstance(value, (bool, int)):
        return value
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, float):
        return value if value == value and abs(value) != float("inf") else str(value)
    if isinstance(value, dict):
        return {_text(str(name)): _plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    return _text(str(value))
