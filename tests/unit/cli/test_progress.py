"""Progress of long commands, and what a terminal is spared."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from topics.cli.main import main
from topics.cli.progress import Progress
from topics.testing import ManualClock
from topics.wal import Record, Wal, WalConfig


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def told(stream: io.StringIO, *, silent: bool = False, steps: int = 4, step_ms: int = 3000) -> str:
    clock = ManualClock()
    with Progress("verify log", silent=silent, clock=clock, stream=stream) as progress:
        for _ in range(steps):
            clock.advance(step_ms)
            progress.add(5_000_000)
    return stream.getvalue()


def test_elsewhere_than_on_a_terminal_it_is_a_plain_line_now_and_then() -> None:
    """U-12."""
    assert told(io.StringIO()) == "verify log: 2 files, 10 MB done\nverify log: 4 files, 20 MB done\n"


def test_on_a_terminal_one_line_renews_itself_and_goes_in_the_end() -> None:
    """U-12."""
    text = told(Terminal(), steps=2)
    assert text == "\r\x1b[Kverify log: 1 files, 5 MB done\r\x1b[Kverify log: 2 files, 10 MB done\r\x1b[K"


def test_quiet_commands_and_short_ones_say_nothing() -> None:
    """U-10."""
    assert told(io.StringIO(), silent=True) == ""
    assert told(io.StringIO(), step_ms=1) == ""


def test_an_interrupted_command_says_how_far_it_came() -> None:
    """U-12."""
    stream = io.StringIO()
    with pytest.raises(KeyboardInterrupt), Progress("verify log", silent=False, stream=stream) as progress:
        progress.add(3_000_000)
        raise KeyboardInterrupt
    assert stream.getvalue() == "verify log: 1 files, 3 MB done when it was interrupted\n"


def test_an_interrupt_is_an_error_object_under_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """U-13."""

    def interrupted(*args: object, **kwargs: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("topics.cli.wal.survey", interrupted)
    assert main(["wal", "inspect", "x", "--json"]) == 130
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "interrupted"


def log_in(path: Path) -> None:
    wal, _ = Wal.open(WalConfig(dir=str(path)))
    wal.append(Record.put(b"k", b"v"))
    wal.close()


def test_bytes_that_would_steer_a_terminal_are_shown_not_sent(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """U-31 for the command line: lock files, paths and errors are anyone's bytes."""
    log_in(tmp_path)
    (tmp_path / "LOCK").write_bytes(b"state=\x1b]0;owned\x07" + b"x" * 100_000)
    assert main(["wal", "inspect", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert len(out) < 2000
    assert main(["wal", "inspect", "/no/such/\x1b[31mplace"]) == 1
    assert "\x1b" not in capsys.readouterr().err


def test_a_closed_standard_output_is_no_bug(tmp_path: Path) -> None:
    log_in(tmp_path)
    done = subprocess.run(
        ["/bin/sh", "-c", '"$0" -m topics wal verify "$1" >&-', sys.executable, str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_on_a_real_terminal_the_report_is_plain_text(tmp_path: Path) -> None:
    """U-12, through a pseudo-terminal."""
    log_in(tmp_path)
    leader, follower = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "topics", "wal", "verify", str(tmp_path)], stdout=follower, stderr=follower, check=False
    )
    os.close(follower)
    text = os.read(leader, 65536).decode()
    os.close(leader)
    assert done.returncode == 0
    assert "ok" in text.lower()


def test_work_whose_size_is_known_is_a_bar_on_a_terminal_and_plain_lines_elsewhere() -> None:
    """U-12: the beginning and the end are shown whatever the time."""
    for stream, text in ((Terminal(), "job: [██████······"), (io.StringIO(), "job: 1 of 4 tasks done\n")):
        clock = ManualClock()
        with Progress("job", silent=False, clock=clock, stream=stream) as progress:
            progress.at(0, 4, "tasks done")
            clock.advance(6000)
            progress.at(1, 4, "tasks done")
            progress.at(2, 4, "tasks done")
            progress.at(4, 4, "tasks done")
        said = stream.getvalue()
        assert text in said
        assert "2 of 4" not in said
        assert ("4 of 4" in said) == stream.isatty()
