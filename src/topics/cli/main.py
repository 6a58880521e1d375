"""The program `topics`: one table of commands, one policy for errors [U-3, U-10].

A row of `COMMANDS` names a module that is imported only when its command runs; `module:name` is one of several that
share it. The module, or what it names, has

    add_arguments(parser)    declares the command's arguments, nested commands included
    run(args) -> int         does the work; the result is the exit status

`--json`, `--quiet` and `--debug` belong to every parser, also to nested ones, so they may stand
before or after the command; `args.json`, `args.quiet` and `args.debug` always exist, and so does `args.prog`, the words
of the command that runs.

    status   meaning
    0        done
    1        failed: one line on stderr with the error's code and a hint
    2        wrong usage or a bad setting
    3        `serve`: the store cannot be opened; `read`, `tail` with --fail-on-gap and `export`: records are lost
    130      interrupted
    141      the reader of the output went away; nothing is printed

Runs on the main thread.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple, NoReturn, Protocol, cast

import topics
from topics.cli import spelling
from topics.cli.interrupted import Interrupted
from topics.cli.usage import UsageError
from topics.errors import CallerError, CommitFailed, DiskError, ServerError, SettingsError, TimingError, TopicsError


class Command(NamedTuple):
    """A row of the table: the command's name, its line in the help, and the module behind it."""

    name: str
    help: str
    module: str

    def load(self) -> CommandModule:
        """Import the module; only the command that runs, and the docs, do."""
        name, _, attribute = self.module.partition(":")
        module = importlib.import_module(name)
        return cast(CommandModule, getattr(module, attribute) if attribute else module)


class CommandModule(Protocol):
    """What a command's module offers."""

    def add_arguments(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, args: argparse.Namespace) -> int: ...


COMMANDS: tuple[Command, ...] = (
    Command("serve", "run the server", "topics.cli.serve"),
    Command("demo", "run a throw-away server under a small load, to look at", "topics.cli.demo"),
    Command("create", "create a topic, or replace the configuration of one", "topics.cli.topics:create"),
    Command("ls", "list topics", "topics.cli.topics:ls"),
    Command("show", "how a topic is, and how it is configured", "topics.cli.topics:show"),
    Command("config", "change members of a topic's configuration", "topics.cli.topics:config"),
    Command("rm", "delete a topic with everything in it", "topics.cli.topics:rm"),
    Command("write", "append records from a file, a pipe or the command line", "topics.cli.write"),
    Command("read", "print the records of a topic", "topics.cli.read:read"),
    Command("tail", "print the last records of topics, and follow them live", "topics.cli.read:tail"),
    Command("delete", "delete records by seq or tag, once they were shown", "topics.cli.delete"),
    Command("queue", "put, claim and settle jobs, run a command for each, bring dead letters back", "topics.cli.queue"),
    Command("router", "copy what is written to one topic into another", "topics.cli.router"),
    Command("checkpoint", "bring everything into segment files, for readers of the directory", "topics.cli.checkpoint"),
    Command("wal", "look into a write-ahead log, verify it, dump it, or see one recover", "topics.cli.wal"),
    Command("backup", "copy a running or stopped store to a folder or a bucket, verified", "topics.cli.backup"),
    Command("restore", "make a new store of a backup", "topics.cli.restore"),
    Command("doctor", "check every file of a store and say what to do; mend a damaged log", "topics.cli.doctor"),
    Command("export", "write topics to a Parquet, Arrow, CSV or JSON lines file", "topics.cli.export"),
    Command("bench", "measure a server here, and others beside it: table, JSON, plot", "topics.cli.bench"),
    Command("completion", "print a script that completes commands in bash, zsh or fish", "topics.cli.completion"),
    Command("pipeline", "jobs on Spark over whole stores: lake tables, checks, reports", "topics.cli.pipeline"),
)

BUG = "this is a bug; --debug shows where it happened"
# What to do next, by error code; the branch of the error decides when a code has no line of its own.
HINTS = {
    "invalid_setting": "the settings reference lists every variable and what it accepts",
    "wal_in_use": "another process has this log open; stop it, or use a read-only command",
    "data_dir_in_use": "stop the process that has the store open, then run this again",
    "metadata_lost": "nothing was changed; restore a backup",
    "wal_corrupt": "keep a copy of the directory before anything else writes to it",
    "unsupported_format": "the files were written by a newer version; nothing was changed",
    "not_a_backup": "`topics backup DEST` makes one",
    "other_store": "each store needs a place of its own",
    "target_not_empty": "name a directory that is empty or does not exist",
    "source_damaged": "`topics doctor` tells more; the backup before stands",
    "source_changed": "run it again: what was copied is not copied again",
    "backup_damaged": "use another backup; no store was made of this one",
    "backup_in_use": "wait until the other backup is done",
    "not_local": "a backup is taken on the machine that has the files",
    "unreachable": "check the URL, and that the server runs",
    "not_found": "is the URL the server's own, without a path behind it?",
    "unauthorized": "name a key with --api-key-file or TOPICS_API_KEY",
    "forbidden": "another key may do this",
    "topic_not_found": "`topics ls` lists the topics there are",
    "router_not_found": "`topics router ls` lists the routers there are",
    "not_a_queue": "`topics create NAME --queue` makes one",
    "topic_full": "delete or claim some of what is there, or raise its cap",
    "write_failed": "free some space and try again",
    "io_error": "check the path, its permissions and the disk",
    "out_of_memory": "a file is larger than the memory it may use; is it a log?",
    "interrupted": "it can be run again",
    "demo_failed": BUG,
    "optimized": "run Python without -O and without PYTHONOPTIMIZE",
}
TOLD = ("code", "what")
"""Fields of an error that its line has already."""
_BRANCH_HINTS: tuple[tuple[type[TopicsError], str], ...] = (
    (CallerError, "correct the call and run it again"),
    (TimingError, "nothing is wrong with the call; try again later"),
    (CommitFailed, "the write may still appear, once and whole; check the disk"),
    (DiskError, "check the disk and the system's log"),
    (ServerError, "the server's log says more"),
)


TIMED = ("SPAN", "MEMBER=VALUE")
"""Arguments that are, or may be, durations."""
SPANS = "Durations: 250ms, 10s, 5m, 1h, 7d; a bare number is milliseconds."


class Parser(argparse.ArgumentParser):
    """A parser with the common options. Parsers nested below it are of the same class, so they have them too."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("allow_abbrev", False)
        kwargs.setdefault("conflict_handler", "resolve")
        super().__init__(*args, **kwargs)
        self.set_defaults(prog=self.prog)
        common = self.add_argument_group("common options")
        for name, text in (
            ("--json", "print machine-readable output and nothing else"),
            ("--quiet", "print less"),
            ("--debug", "show tracebacks"),
        ):
            # Suppressed defaults: a nested parser must not undo what was given before it.
            common.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=text)

    def format_help(self) -> str:
        if self.epilog is None and any(str(action.metavar) in TIMED for action in self._actions):
            self.epilog = SPANS
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        raise UsageError(message, self.prog)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Every parser, nested ones included, is asked here; what none of them knows is told by the one it came to."""
        words = list(sys.argv[1:] if args is None else args)
        if not any(action.nargs in (argparse.PARSER, argparse.REMAINDER) for action in self._actions):
            words = _guarded(self._options_first(words))
        found, unknown = super().parse_known_args(words, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        for name, value in vars(found).items():
            setattr(found, name, _plain(value))
        return found, unknown

    def _options_first(self, words: list[str]) -> list[str]:
        """Options with their values, then the rest: argparse wants what belongs to one argument in one piece."""
        if "--" in words:
            return words  # said already
        options: list[str] = []
        plain: list[str] = []
        is_value = False
        for word in words:
            is_option = self._is_option(word)
            (options if is_option or is_value else plain).append(word)
            action = self._option_string_actions.get(word) if is_option else None
            is_value = action is not None and action.nargs in (None, "?")
        return options + plain

    def _is_option(self, word: str) -> bool:
        is_number = bool(self._negative_number_matcher.match(word)) and not self._has_negative_number_optionals
        return word.startswith("-") and word != "-" and " " not in word and not is_number


class _Dashes(str):
    """A `--` behind the first one: a word like any other, but argparse before Python 3.13 drops one per argument."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = str.__hash__


def _guarded(words: list[str]) -> list[str]:
    """The words, with those behind the first `--` safe from argparse."""
    behind = words.index("--") + 1 if "--" in words else len(words)
    return words[:behind] + [_Dashes(word) if word == "--" else word for word in words[behind:]]


def _plain(value: object) -> object:
    """What argparse made of guarded words, without the guard."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return "--" if isinstance(value, _Dashes) else value


def build_parser(load: Sequence[str] | None = None) -> Parser:
    """The program's parser; the arguments of the commands named in `load` (default: all) are declared."""
    parser = Parser(prog="topics", description="A durable event log.")
    told = "show the version and which kernel runs, and exit"
    parser.add_argument("--version", action="store_true", dest="shows_version", help=told)
    parser.set_defaults(json=False, quiet=False, debug=False, run=None)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for command in COMMANDS:
        sub = commands.add_parser(command.name, help=command.help, description=_sentence(command.help))
        if load is None or command.name in load:
            module = command.load()
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    options = words[: words.index("--")] if "--" in words else words
    as_json, debug = "--json" in options, "--debug" in options
    spelling.tolerate()
    try:
        status = _dispatch(words)
        if sys.stdout is not None:  # None when the caller closed it
            sys.stdout.flush()
        return status
    except BrokenPipeError:
        _discard_stdout()
        return 141
    except KeyboardInterrupt:
        _report(Interrupted("interrupted"), as_json)
        return 130
    except Exception as error:  # noqa: BLE001  the last line of defence turns every error into one line
        if debug:
            traceback.print_exc()
        _report(error, as_json)
        if isinstance(error, Interrupted):
            return 130
        return 2 if isinstance(error, (UsageError, SettingsError)) else 1


def _dispatch(words: list[str]) -> int:
    if sys.flags.optimize:
        raise _Optimized("asserts guard the data and -O removes them")
    # No option in front of the command takes a value, so its first plain word is the command.
    named = [word for word in words if not word.startswith("-")][:1]
    parser = build_parser(named)
    args = parser.parse_args(words)
    if args.shows_version:
        return _show_version(as_json=args.json)
    if args.run is None:
        raise UsageError("a command is needed", parser.prog)
    return int(args.run(args))


def _show_version(*, as_json: bool) -> int:
    from topics.codec import kernel  # looked for only when somebody asks

    version, name = topics.__version__, kernel.name()
    told = json.dumps({"ok": True, "version": version, "kernel": name})
    print(told if as_json else f"topics {version}, {name} kernel")
    return 0


class _Optimized(TopicsError):
    """Python runs without asserts."""

    code = "optimized"


def _report(error: Exception, as_json: bool) -> None:
    code = _code(error)
    message = " ".join(str(getattr(error, "what", error)).split()) or type(error).__name__
    message = "; ".join((message, *getattr(error, "__notes__", ())))
    # Paths and names are anyone's bytes: what would steer a terminal is shown, not sent.
    message = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in message)
    if as_json:
        body = {"error": {"code": code, "message": message, "detail": _detail(error)}}
        print(json.dumps(body), file=sys.stderr)
        return
    print(f"topics: {code}: {message} ({_hint(error, code)})", file=sys.stderr)


def _code(error: Exception) -> str:
    if isinstance(error, TopicsError):
        return error.code
    if isinstance(error, MemoryError):
        return "out_of_memory"
    return "io_error" if isinstance(error, OSError) else "internal"


def _hint(error: Exception, code: str) -> str:
    if isinstance(error, UsageError):
        return f"{error.prog} --help shows what is accepted"
    if isinstance(own := getattr(error, "hint", None), str):
        return own
    if code in HINTS:
        return HINTS[code]
    return next((hint for branch, hint in _BRANCH_HINTS if isinstance(error, branch)), BUG)


def _detail(error: Exception) -> dict[str, object] | None:
    """The error's typed fields, as far as JSON has a word for them."""
    if not isinstance(error, TopicsError):
        return None
    fields: dict[str, object] = {
        name: value
        for name, value in vars(error).items()
        if not name.startswith("_")
        and name not in ("code", "what")
        and isinstance(value, (str, int, float, bool, type(None)))
    }
    return fields or None


def _discard_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:] + "."


if __name__ == "__main__":
    raise SystemExit(main())
