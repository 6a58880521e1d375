"""The program on a terminal: progress, colours, questions, Ctrl-C [U-12]."""

from __future__ import annotations

import codecs
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.api.kit import Running
from topics.client.sync import Client
from topics.clock import SystemClock
from topics.testing.tcpproxy import TcpProxy

WAIT_S = 60.0
TAKE_TERMINAL = (
    "import fcntl, os, signal, sys, termios; signal.signal(signal.SIGINT, signal.SIG_DFL);"
    "fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Its stdin becomes the terminal that Ctrl-C is typed on, which whoever runs the tests may have it ignore."""


class Screen:
    """A terminal with a program on it."""

    def __init__(self, words: list[str], url: str, folder: Path, variable: str) -> None:
        self._ours, theirs = pty.openpty()
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "NO_COLOR"))}
        env = {**clean, "TOPICS_URL": url, "XDG_CONFIG_HOME": str(folder), "TERM": "xterm"}
        env |= dict([variable.split("=")] if variable else [])
        self.process = subprocess.Popen(
            [sys.executable, "-c", TAKE_TERMINAL, sys.executable, "-m", "topics", *words], stdin=theirs, stdout=theirs,
            stderr=theirs, env=env, cwd=folder, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # what is read may end within a character
        self.text = ""

    def until(self, text: str) -> None:
        """Read until this is on the screen."""
        end_ns = SystemClock().monotonic_ns() + int(WAIT_S * 1e9)
        while text not in self.text:
            assert SystemClock().monotonic_ns() < end_ns, self.text
            assert self._read(), self.text

    def _read(self) -> bool:
        if not select.select([self._ours], [], [], 1.0)[0]:
            return True
        try:
            data = os.read(self._ours, 65536)
        except OSError:  # the other side is closed
            data = b""
        self.text += self._decoder.decode(data)
        return bool(data)

    def type(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def ended(self) -> int:
        """Everything it said, and its status."""
        while self._read():
            continue
        return self.process.wait(WAIT_S)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(WAIT_S)
        os.close(self._ours)


def until(holds: Callable[[], object]) -> None:
    """Wait for what another thread does in its own time."""
    end_ns = SystemClock().monotonic_ns() + int(WAIT_S * 1e9)
    while not holds():
        assert SystemClock().monotonic_ns() < end_ns, "it did not happen"


@contextmanager
def screen(words: list[str], server: Running | TcpProxy, folder: Path, variable: str = "") -> Iterator[Screen]:
    url = server.endpoint if isinstance(server, TcpProxy) else server.url
    one = Screen(words, url, folder, variable)
    try:
        yield one
    finally:
        one.close()


def test_a_write_shows_a_bar_that_goes_when_it_is_done(server: Running, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("".join(f'{{"n":{n}}}\n' for n in range(2000)))
    with screen(["write", "bar", "rows", "--batch", "100", "--rate", "2k"], server, tmp_path) as one:
        one.until("acked seq")
        one.until("#")
        assert "\r\x1b[K" in one.text
        assert "/s, acked seq" in one.text
        assert one.ended() == 0
    assert one.text.rstrip().endswith("bar: 2,000 records, up to seq 2000")


def test_ctrl_c_ends_a_write_and_says_how_far_it_came(server: Running, client: Client, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1\n" * 100_000)
    with screen(["write", "cut", "rows", "--batch", "100", "--rate", "1k"], server, tmp_path) as one:
        one.until("acked seq")
        one.type("\x03")
        assert one.ended() == 130, one.text
    told = re.search(r"topics: interrupted: (\d+) records are in cut, up to seq \1(;)?", one.text)
    assert told is not None, one.text
    assert 0 < int(told[1]) < 100_000
    # It may have been struck while a batch was on its way, and then says so.
    assert client.state("cut").count in (int(told[1]), int(told[1]) + (100 if told[2] else 0))
    assert "Traceback" not in one.text


def test_ctrl_c_says_that_a_batch_on_its_way_may_be_there(server: Running, client: Client, tmp_path: Path) -> None:
    (tmp_path / "rows").write_text("1\n" * 100_000)
    with (
        TcpProxy(server.host, server.port) as line,
        screen(["write", "under-way", "rows", "--batch", "100", "--rate", "1k"], line, tmp_path) as one,
    ):
        one.until("acked seq")
        line.stall()
        until(lambda: line.held)
        one.type("\x03")
        assert one.ended() == 130, one.text
    told = re.search(r"(\d+) records are in under-way, up to seq \1; the batch behind them may be there", one.text)
    assert told is not None, one.text
    assert client.state("under-way").count in (int(told[1]), int(told[1]) + 100)


def test_ctrl_c_ends_a_tail(server: Running, client: Client, tmp_path: Path) -> None:
    client.append("tailed", "first")
    with screen(["tail", "tailed", "-f"], server, tmp_path) as one:
        one.until('"first"')
        client.append("tailed", "second")
        one.until('"second"')
        one.type("\x03")
        assert one.ended() == 130
    assert "interrupted: tailed at seq 2" in one.text
    assert "Traceback" not in one.text


def test_gaps_are_in_colour_and_records_in_a_table(server: Running, client: Client, tmp_path: Path) -> None:
    client.create("gaps", cap_records=1)
    client.append_many("gaps", [1, 2, 3])
    with screen(["read", "gaps"], server, tmp_path) as one:
        assert one.ended() == 0
    assert "\x1b[31m       1 to 2: lost (cap)\x1b[0m" in one.text
    assert "$seq" not in one.text


@pytest.mark.parametrize("variable", ["NO_COLOR=1", "TERM=dumb"])
def test_whoever_wants_no_colours_gets_none(server: Running, client: Client, tmp_path: Path, variable: str) -> None:
    client.create("plain", cap_records=1)
    client.append_many("plain", [1, 2, 3])
    with screen(["read", "plain"], server, tmp_path, variable) as one:
        assert one.ended() == 0
    assert "       1 to " in one.text
    assert "\x1b" not in one.text


@pytest.mark.parametrize(("answer", "left"), [("n", 2), ("", 2), ("y", 0)])
def test_a_delete_asks(server: Running, client: Client, tmp_path: Path, answer: str, left: int) -> None:
    client.append_many(f"asks{answer}", [1, 2])
    with screen(["delete", f"asks{answer}", "--before", "9"], server, tmp_path) as one:
        one.until("delete 2 records")
        one.type(f"{answer}\n")
        assert one.ended() == (0 if answer == "y" else 1)
    assert client.state(f"asks{answer}").count == left


@pytest.mark.parametrize("words", [["rm", "{}"], ["delete", "{}", "--before", "9"]], ids=lambda words: words[0])
def test_who_sits_at_the_keyboard_is_asked_wherever_the_question_goes(
    server: Running, client: Client, tmp_path: Path, words: list[str]
) -> None:
    """11 §2: a line such as `2>log` takes nobody away from the terminal."""
    name = f"kept-{words[0]}"
    client.append(name, 1)
    ours, theirs = pty.openpty()
    os.write(ours, b"n\n")
    command = [sys.executable, "-m", "topics", *(word.format(name) for word in words), "--url", server.url]
    ran = subprocess.run(
        command, stdin=theirs, capture_output=True, text=True, timeout=WAIT_S, cwd=tmp_path, check=False
    )
    os.close(ours)
    os.close(theirs)
    assert (ran.returncode, client.state(name).count) == (1, 1)
    assert name in ran.stderr
    assert ran.stderr.endswith("? [y/N] ")


def test_a_worker_that_is_interrupted_gives_its_job_back(server: Running, client: Client, tmp_path: Path) -> None:
    client.create("stopped", type="queue")
    client.append_many("stopped", [1, 2])
    with screen(["queue", "work", "stopped", "--", "sh", "-c", "echo began; cat >/dev/null; read x </dev/tty"],
                server, tmp_path) as one:  # fmt: skip
        one.until("began")
        one.type("\x03")
        assert one.ended() == 130
    assert "interrupted: 0 jobs of stopped are done" in one.text
    found = client.state("stopped").queue
    assert found is not None
    assert (found["ready"], found["in_flight"]) == (2, 0)


def test_json_on_a_terminal_is_json_and_nothing_else(server: Running, tmp_path: Path) -> None:
    """[U-10]"""
    (tmp_path / "rows").write_text("1\n" * 500)
    with screen(["write", "quiet", "rows", "--json"], server, tmp_path) as one:
        assert one.ended() == 0
    assert one.text.strip() == '{"topic": "quiet", "count": 500, "first_seq": 1, "last_seq": 500}'


def test_a_tail_ends_when_nobody_reads_it_any_more(server: Running, client: Client, tmp_path: Path) -> None:
    """Without a further record that would tell it."""
    client.append("one-record", 1)
    command = f"{sys.executable} -m topics tail one-record -f --url {server.url} | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path, timeout=WAIT_S
    )
    assert result.stdout.splitlines()[-1] in ("141", str(128 + signal.SIGPIPE))
    assert result.stderr == ""


def test_output_that_nobody_reads_ends_it_quietly(server: Running, client: Client, tmp_path: Path) -> None:
    client.append_many("much", ["x" * 1000] * 1000)
    command = f"{sys.executable} -m topics read much --url {server.url} | head -1; echo ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert result.stdout.splitlines()[-1] in ("141", str(128 + signal.SIGPIPE))
    assert result.stderr == ""
