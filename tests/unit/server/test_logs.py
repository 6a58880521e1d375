"""The log: JSON lines or text, one line per record, nothing that steers a terminal, nothing that blocks."""

from __future__ import annotations

import io
import json
import logging
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from topics.server import logs
from topics.server.logs import Logs, fields

log = logging.getLogger("topics.server")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@contextmanager
def logging_to(stream: io.StringIO, **options: Any) -> Iterator[Logs]:
    one = Logs(stream, env={}, **options)
    try:
        yield one
    finally:
        one.close()


def lines(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_elsewhere_than_on_a_terminal_every_record_is_one_json_object() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        log.info("ready after %d ms", 3, extra=fields(event="ready", topics=2))
        log.warning("topic %r", "a\nb\x1b[31m")
        try:
            raise ValueError("odd")
        except ValueError:
            log.exception("failed")
    ready, named, failed = lines(stream)
    assert ready.pop("ts") > 1_600_000_000_000
    assert ready == {
        "level": "info", "logger": "topics.server", "message": "ready after 3 ms", "event": "ready", "topics": 2,
    }  # fmt: skip
    assert named["message"] == "topic 'a\\nb\\x1b[31m'"
    assert "ValueError: odd" in failed["exception"]


def test_on_a_terminal_it_is_text_that_cannot_be_forged_or_steered() -> None:
    stream = Terminal()
    with logging_to(stream) as one:
        log.info("name %s", "a\n00:00:00 error: all is lost\x1b[2J")
        log.error("bad")
        one.print("banner")
    first, second, third = stream.getvalue().splitlines()
    assert first.endswith("name a\\n00:00:00 error: all is lost\\x1b[2J")
    assert logs.printable("é\ud800\u202e") == "é\\ud800\\u202e"
    assert second.endswith("\x1b[31merror:\x1b[0m bad")
    assert third == "banner"


def test_colours_are_left_out_when_nobody_wants_them_and_json_wins_over_the_terminal() -> None:
    """[U-10]"""
    plain = Terminal()
    one = Logs(plain, env={"NO_COLOR": "1"})
    log.error("bad")
    one.close()
    assert "\x1b" not in plain.getvalue()
    forced = Terminal()
    with logging_to(forced, as_json=True) as one:
        one.print("banner")
        one.show("50 %")
        log.error("bad")
    assert [line["message"] for line in lines(forced)] == ["bad"]


def test_progress_is_replaced_by_what_comes_next() -> None:
    """[U-12]"""
    stream = Terminal()
    with logging_to(stream) as one:
        one.show("replaying: 10%")
        one.show("replaying: 20%")
        one.print("ready")
        one.print("more")
    assert stream.getvalue() == "\r\x1b[Kreplaying: 10%\r\x1b[Kreplaying: 20%\r\x1b[Kready\nmore\n"


@pytest.mark.parametrize(("level", "told"), [("debug", 4), ("info", 3), ("warning", 2), ("error", 1)])
def test_the_level_is_ours_and_libraries_tell_warnings(level: str, told: int) -> None:
    """(09 §6)"""
    stream = io.StringIO()
    with logging_to(stream) as one:
        one.set_level(level)
        for name in ("debug", "info", "warning", "error"):
            getattr(log, name)("x")
        logging.getLogger("asyncio").info("chatter")
    assert len(lines(stream)) == told


def test_what_looks_like_a_token_is_blanked() -> None:
    """[KEY-5]"""
    stream = io.StringIO()
    with logging_to(stream):
        log.warning("authorization: Bearer s3cret, GET /v0/watch/1?a=1&token=s3cret&b=2")
        try:
            raise ValueError("bearer s3cret")
        except ValueError:
            log.exception("failed")
    assert "s3cret" not in stream.getvalue()
    assert lines(stream)[0]["message"].endswith("&token=…&b=2")


def test_warnings_and_errors_are_kept_from_every_thread_and_once() -> None:
    """[MET-6]"""
    kept: list[str] = []
    with logging_to(io.StringIO()) as one:
        one.keep_warnings(kept.append)
        log.info("no")
        log.warning("known already", extra={"kept": True})
        thread = threading.Thread(target=log.error, args=("from a thread",))
        thread.start()
        thread.join()
        logging.getLogger("topics.engine").warning("from the engine")
    assert kept == ["from a thread", "from the engine"]


def test_errors_that_end_a_thread_and_python_warnings_are_lines_too() -> None:
    stream = io.StringIO()
    with logging_to(stream):
        thread = threading.Thread(target=lambda: 1 // 0, name="lane")  # type: ignore[arg-type, return-value]
        thread.start()
        thread.join()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            warnings.warn("old", stacklevel=1)
    ended, warned = lines(stream)
    assert ended["message"] == "lane ended by an error"
    assert "ZeroDivisionError" in ended["exception"]
    assert "old" in warned["message"]


class Stuck(io.StringIO):
    """Nobody reads it until `released`."""

    def __init__(self) -> None:
        super().__init__()
        self.released = threading.Event()

    def write(self, text: str) -> int:
        assert self.released.wait(60)
        return super().write(text)


def test_a_reader_that_does_not_read_stops_nobody_and_what_was_dropped_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """(08) A paused terminal must not pause the server."""
    monkeypatch.setattr(logs, "LINES_MAX", 10)
    stream = Stuck()
    with logging_to(stream):
        for number in range(100):
            log.info("%d", number)
        stream.released.set()
    told = lines(stream)
    [dropped] = [line for line in told if line["level"] == "warning"]
    assert told[0]["message"] == "0"
    assert int(dropped["message"].split()[0]) + len(told) - 1 == 100


def test_a_flush_gives_up_on_a_stream_that_takes_nothing() -> None:
    """[API-5] A second signal ends the process whoever reads its log."""
    stream = Stuck()
    writer = logs.Writer(stream, str)
    writer.put("one")
    assert not writer.flush(within_s=0.01)
    stream.released.set()
    assert writer.flush(60)


class Broken(io.StringIO):
    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_a_reader_that_went_away_and_a_closed_stderr_stop_nobody() -> None:
    with logging_to(Broken()):
        log.error("one")
        log.error("two")
    one = Logs(None)
    log.error("three")
    one.close()
