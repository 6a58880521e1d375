"""The program's frame: one table, lazy modules, one policy for errors [U-3, U-10]."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType

import pytest

import topics
from topics import errors
from topics.cli import main as cli
from topics.codec import kernel


@pytest.fixture
def probe(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A command `probe` with a nested command, replaced by each test's `run`."""
    module = ModuleType("probe_command")

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        nested = parser.add_subparsers(dest="action")
        inner = nested.add_parser("inner", help="nested")
        inner.add_argument("word", nargs="?")

    module.add_arguments = add_arguments  # type: ignore[attr-defined]
    module.run = lambda args: 0  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "probe_command", module)
    rows = (*cli.COMMANDS, cli.Command("probe", "for tests", "probe_command"))
    monkeypatch.setattr(cli, "COMMANDS", rows)
    return module


def raising(error: BaseException) -> Callable[[argparse.Namespace], int]:
    def run(args: argparse.Namespace) -> int:
        raise error

    return run


def test_version_and_help_go_to_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["--version"]) == 0
    with pytest.raises(SystemExit) as caught:
        cli.main(["--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert out.startswith(f"topics {topics.__version__}, {kernel.name()} kernel\n")
    assert "wal" in out


@pytest.mark.parametrize("words", [["--json", "--version"], ["--version", "--json"]])
def test_the_version_may_be_an_object(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """[U-10]"""
    assert cli.main(words) == 0
    told = json.loads(capsys.readouterr().out)
    assert told == {"ok": True, "version": topics.__version__, "kernel": kernel.name()}


def test_the_module_and_the_program_are_the_same() -> None:
    result = subprocess.run([sys.executable, "-m", "topics", "--version"], capture_output=True, text=True, check=True)
    assert result.stdout == f"topics {topics.__version__}, {kernel.name()} kernel\n"


def test_only_the_named_command_is_loaded(probe: ModuleType) -> None:
    cli.build_parser([])
    code = (
        "import sys, topics.cli.main as m\n"
        "try: m.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(any(c.module in sys.modules for c in m.COMMANDS))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize(
    "words",
    [
        ["--json", "--quiet", "--debug", "probe", "inner"],
        ["probe", "--json", "inner", "--quiet", "--debug"],
        ["probe", "inner", "--json", "--quiet", "x", "--debug"],
    ],
)
def test_common_options_stand_anywhere(probe: ModuleType, words: list[str]) -> None:
    """[U-14]"""
    seen: list[argparse.Namespace] = []
    probe.run = lambda args: seen.append(args) or 7  # type: ignore[attr-defined]
    assert cli.main(words) == 7
    assert (seen[0].json, seen[0].quiet, seen[0].debug, seen[0].action) == (True, True, True, "inner")


PLACES = {
    "write": (["orders", "f.csv"], ["--csv", "--batch", "5"], ("name", "file", "csv", "batch")),
    "config": (["orders", "ttl_ms=2h", "cap_records=1k"], ["--url", "http://h:1"], ("name", "changes", "url")),
    "tail": (["orders", "wi"], ["-n", "1", "--follow"], ("names", "count", "follow")),
    "queue put": (["bakes", "f.jsonl"], ["--tag", "a", "--json"], ("name", "file", "tag", "json")),
    "queue ack": (["bakes", "3", "4"], ["--node", "n", "--quiet"], ("name", "seqs", "node", "quiet")),
    "export": (["a", "b"], ["--out", "f", "--format=csv"], ("names", "out", "format")),
    "ls": (["or"], ["--system"], ("prefix", "system")),
}


@pytest.mark.parametrize("command", PLACES)
def test_options_stand_before_between_and_behind_arguments(command: str) -> None:
    """[U-14]"""
    plain, options, names = PLACES[command]
    found = []
    for place in range(len(plain) + 1):
        words = [*command.split(), *plain[:place], *options, *plain[place:]]
        args = vars(cli.build_parser([words[0]]).parse_args(words))
        found.append({name: args[name] for name in names})
    assert all(one == found[-1] for one in found)


@pytest.mark.parametrize("words", ["create", "config", "read", "queue claim", "queue nack", "queue work"])
def test_help_says_what_a_duration_without_a_unit_is(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """11 §2"""
    with pytest.raises(SystemExit):
        cli.main([*words.split(), "--help"])
    told = " ".join(capsys.readouterr().out.split())
    assert "250ms, 10s, 5m, 1h, 7d; a bare number is milliseconds" in told


def test_what_stands_behind_a_double_dash_is_no_option() -> None:
    """11 §2: `queue work NAME -- CMD`"""
    words = ["queue", "work", "bakes", "--node", "n", "--", "run", "-x", "--quiet", "--", "--node", "m"]
    args = cli.build_parser(["queue"]).parse_args(words)
    assert (args.name, args.node, args.quiet) == ("bakes", "n", False)
    assert args.command_words == ["run", "-x", "--quiet", "--", "--node", "m"]


@pytest.mark.parametrize("options", ["", "--node n "])
@pytest.mark.parametrize("command", ["run -- x", "run x -- --quiet -- y --", "-- run", "--", "-- --"])
def test_a_command_is_run_with_exactly_the_words_behind_the_first_double_dash(options: str, command: str) -> None:
    """11 §2: `queue work NAME -- CMD`; argparse of Python 3.11 takes one more of them for its own."""
    for head in (f"queue work {options}bakes -- ", f"queue work bakes {options}-- ", f"queue work {options}-- bakes "):
        words = (head + command).split()
        args = cli.build_parser(["queue"]).parse_args(words)
        assert (args.name, args.quiet, args.command_words) == ("bakes", False, command.split())
        assert {type(word) for word in args.command_words} == {str}


def test_a_double_dash_that_is_no_argument_is_told_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """[U-10]"""
    assert cli.main(["queue", "ack", "bakes", "--", "1", "--"]) == 2
    assert "'--'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "prog"),
    [
        ("write orders f --bogus", "topics write"),
        ("queue put bakes f g", "topics queue put"),
        ("queue --bogus put bakes", "topics queue"),
        ("tail", "topics tail"),
        ("--bogus ls", "topics"),
    ],
)
def test_wrong_usage_leads_to_the_help_of_the_command_it_is_of(
    words: str, prog: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """[U-10]"""
    assert cli.main(words.split()) == 2
    assert f"({prog} --help shows what is accepted)" in capsys.readouterr().err


def test_common_options_are_off_by_default(probe: ModuleType) -> None:
    seen: list[argparse.Namespace] = []
    probe.run = lambda args: seen.append(args) or 0  # type: ignore[attr-defined]
    assert cli.main(["probe"]) == 0
    assert (seen[0].json, seen[0].quiet, seen[0].debug) == (False, False, False)


@pytest.mark.parametrize("words", [[], ["nope"], ["probe", "nope"], ["probe", "--nope"], ["--js", "probe"]])
def test_wrong_usage_is_one_line_and_status_2(
    probe: ModuleType, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("topics: usage: ")
    assert "--help" in captured.err


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (errors.WalInUse("log is open\nelsewhere"), 1, "wal_in_use"),
        (errors.SettingsError("TOPICS_PORT", "'x' is not accepted"), 2, "invalid_setting"),
        (errors.RecordTooLarge(10, 5), 1, "record_too_large"),
        (errors.WalClosed("closed"), 1, "wal_closed"),
        (errors.CrcMismatch(1, 2), 1, "crc_mismatch"),
        (FileNotFoundError(2, "No such file or directory", "x"), 1, "io_error"),
        (ValueError("surprise"), 1, "internal"),
        (errors.WalCorrupt(), 1, "wal_corrupt"),
    ],
)
def test_an_error_is_one_line_with_code_and_hint(
    probe: ModuleType, error: Exception, status: int, code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """[U-10]"""
    probe.run = raising(error)  # type: ignore[attr-defined]
    assert cli.main(["probe"]) == status
    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line.startswith(f"topics: {code}: ")
    assert line.endswith(")\n")
    assert "Traceback" not in line


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        (errors.CommitFailed("sync: EIO"), "the write may still appear, once and whole; check the disk"),
        (errors.ServerError(500, "internal", "an unexpected error"), "the server's log says more"),
        (errors.StorageFull("full"), "check the disk and the system's log"),
        (errors.TopicsError("odd"), "this is a bug; --debug shows where it happened"),
        (ValueError("odd"), "this is a bug; --debug shows where it happened"),
    ],
)
def test_only_what_nobody_foresaw_here_is_called_a_bug(
    probe: ModuleType, error: Exception, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """[U-10]: a failing disk, and what a server says of itself, are none of this program."""
    probe.run = raising(error)  # type: ignore[attr-defined]
    assert cli.main(["probe"]) == 1
    assert capsys.readouterr().err.endswith(f" ({hint})\n")


def test_errors_under_json_are_one_object_with_their_fields(
    probe: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    """[U-13]"""
    probe.run = raising(errors.RecordTooLarge(10, 5))  # type: ignore[attr-defined]
    assert cli.main(["probe", "--json"]) == 1
    captured = capsys.readouterr()
    body = json.loads(captured.err)
    assert captured.out == ""
    assert body == {
        "error": {
            "code": "record_too_large",
            "message": "10 bytes do not fit a segment of 5",
            "detail": {"size": 10, "max": 5},
        }
    }


def test_usage_errors_under_json_are_objects_too_but_not_behind_a_double_dash(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert cli.main(["nope", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["error"]["code"] == "usage"
    assert cli.main(["nope", "--", "--json"]) == 2
    assert capsys.readouterr().err.startswith("topics: usage: ")


def test_debug_shows_the_traceback(probe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    probe.run = raising(ValueError("surprise"))  # type: ignore[attr-defined]
    assert cli.main(["probe", "--debug"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" in err
    assert err.splitlines()[-1].startswith("topics: internal: surprise")


def test_an_interrupt_ends_with_130(probe: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    probe.run = raising(KeyboardInterrupt())  # type: ignore[attr-defined]
    assert cli.main(["probe"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_python_without_asserts_is_refused() -> None:
    """(13 §6)"""
    result = subprocess.run([sys.executable, "-O", "-m", "topics", "wal"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.startswith("topics: optimized: ")
    assert result.stderr.count("\n") == 1


def test_a_reader_that_goes_away_ends_the_program_quietly() -> None:
    code = (
        "import sys, types, topics.cli.main as m\n"
        "mod = types.ModuleType('flood'); mod.add_arguments = lambda p: None\n"
        "mod.run = lambda a: [print('x' * 1000) for _ in range(10000)] and 0\n"
        "sys.modules['flood'] = mod; m.COMMANDS = (m.Command('flood', 'x', 'flood'),)\n"
        "sys.exit(m.main(['flood']))"
    )
    read_end, write_end = os.pipe()
    process = subprocess.Popen([sys.executable, "-c", code], stdout=write_end, stderr=subprocess.PIPE, text=True)
    os.close(write_end)
    os.read(read_end, 10)
    os.close(read_end)
    _, err = process.communicate()
    assert (process.returncode, err) == (141, "")
