"""Does what a page tells its reader to do, from top to bottom [U-41].

A page has one directory, one server and one Python. Its fenced blocks are

    python            run in one namespace
    sh, bash          run by bash; a command that fails, an HTTP status of 400 and more included, fails the page
    sql               run by the session, where the page has one
    toml, json        have to be readable
    text, ini         shown; with `title="output"` it is what the block before it printed, `…` stands for anything

An HTML comment right before a block changes that:

    <!-- not run: REASON -->          it is only looked at: Python has to compile, `topics` has to know the words
    <!-- stays until: TEXT -->        a command that does not end: it goes on beside the blocks behind it, prints TEXT
                                      at some time, and is ended by Ctrl-C

Blocks are run as they stand but for the server's address, for folders that a test may not write to, and for how long a
call waits for something new.
"""

from __future__ import annotations

import ast
import contextlib
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from tests.api.process import Served
from tests.tidy.checks import MARKED, Block, blocks
from topics.cli.main import build_parser, main
from topics.cli.usage import UsageError

WAIT_S = 60.0
ADDRESS = "127.0.0.1:4000"
PLACES = {"/var/lib/topics": "topics-data", "/mnt/": "mnt/", "/srv/": "srv/", "/lake": "lake", "/tmp/": "tmp/"}
"""Folders of other people's machines, and what stands for them in the page's directory."""
PLACE = re.compile(r"(?<![\w.~/])(?:" + "|".join(map(re.escape, PLACES)) + ")")
SHELL = ("sh", "bash")
LANGUAGES = ("python", *SHELL, "sql", "toml", "json", "text", "ini")
MARK = re.compile(r"<!-- *(not run|stays until)\b(.*?)-->")
PROLOGUE = """
[ ! -f "$PAGE_STATE" ] || . "$PAGE_STATE"
set -e -a -o pipefail
curl() {
    case " $* " in *" -sf "*) fails= ;; *) fails=--fail-with-body ;; esac
    command curl --noproxy '*' $fails "$@" && echo
}
"""
"""Variables of a block are there for the next one, as in the reader's shell."""
VARYING = (
    (re.compile(r"\b\d{13}\b"), "INSTANT"),
    (re.compile(r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?"), "INSTANT"),
    (re.compile(r"\blease_[0-9a-f]+"), "LEASE"),
)


class PageFailed(AssertionError):
    """A block does not do what the page says."""

    def __init__(self, where: str, block: Block, why: str) -> None:
        super().__init__(f"{where}:{block.line}: {why}")


class Page:
    """One walk through a page."""

    def __init__(
        self, where: str, text: str, home: Path, *, here: str = "", sql: Callable[[str], object] | None = None
    ) -> None:
        self.where = where
        self.ran = 0
        self._blocks = list(blocks(text))
        self._home = home
        self._server: Served | None = None
        self._in_process = here
        self._sql = sql
        self._names: dict[str, object] = {"__name__": "__page__"}
        self._printed = ""
        self._staying: list[tuple[Block, Staying]] = []

    def walk(self) -> int:
        """Every block in turn; how many of them ran."""
        self._prepare()
        try:
            for block in self._blocks:
                self._take(block)
            for block, staying in self._staying:
                self._end(block, staying)
        finally:
            for _, staying in self._staying:
                staying.close()
            if self._server is not None:
                self._server.close()
        return self.ran

    # -- the reader's desk -------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """What the reader has: an environment made by `make run`, and the server that it started."""
        bin = self._home / ".venv" / "bin"
        bin.mkdir(parents=True)
        for name, words in (("topics", "-m topics"), ("python", "")):
            (bin / name).write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {words} "$@"\n')
            (bin / name).chmod(0o755)
        (bin / "activate").write_text('PATH="$PWD/.venv/bin:$PATH"\n')
        if any(self._asks_a_server(block) for block in self._blocks):
            self._server = Served(self._home, "--port", "0", env=self._env()).ready()

    def _asks_a_server(self, block: Block) -> bool:
        if block.mark == "not run":
            return False
        return ADDRESS in block.text or (block.language in SHELL and bool(re.search(r"\btopics\b", block.text)))

    def _env(self) -> dict[str, str]:
        env = {
            name: value for name, value in os.environ.items() if not name.startswith(("TOPICS_", "XDG_", "NO_COLOR"))
        }
        bin = self._home / ".venv" / "bin"
        env |= {"PATH": f"{bin}:{env['PATH']}", "HOME": str(self._home), "PAGE_STATE": str(self._home / ".page-state")}
        if self._server is not None:
            env |= {"TOPICS_URL": self._server.url, "PID": str(self._server.process.pid)}
        return env

    def _here(self, text: str) -> str:
        """The block as it can be run on this machine."""
        if self._server is not None:
            text = text.replace(ADDRESS, self._server.url.removeprefix("http://"))
        if self._sql is not None:  # a session's Java has the directory it was started in
            text = text.replace('"./', f'"{self._home}/')
        text = PLACE.sub(lambda found: f"{self._home}/{PLACES[found[0]]}", text)
        return re.sub(r'(wait_ms"?[:=] ?)\d+', r"\g<1>10", text)

    # -- blocks ------------------------------------------------------------------------------------------------------

    def _take(self, block: Block) -> None:
        if block.language not in LANGUAGES:
            raise PageFailed(self.where, block, f"a block is one of {', '.join(LANGUAGES)}, not {block.language!r}")
        if block.mark == "not run":
            self._look_at(block)
        elif block.mark == "stays until":
            self._staying.append((block, Staying(self._script(block), self._env(), self._home)))
            self.ran += 1
        elif block.language == "python":
            self._printed = self._python(block)
            self.ran += 1
        elif block.language in SHELL:
            self._printed = self._shell(block)
            self.ran += 1
        elif block.language == "sql" and self._sql is not None:
            self._sql(self._here(block.text))
            self.ran += 1
        else:
            self._look_at(block)

    def _look_at(self, block: Block) -> None:
        try:
            look_at(block)
        except (ValueError, SyntaxError, UsageError) as error:
            raise PageFailed(self.where, block, f"{block.language} that cannot be read: {error}") from error
        if 'title="output"' in block.info and not alike(block.text, self._printed):
            raise PageFailed(self.where, block, f"shown is\n{block.text}\nbut printed was\n{self._printed}")

    def _python(self, block: Block) -> str:
        """Leading newlines make tracebacks point at the page's own lines."""
        code = compile("\n" * (block.line - 1) + self._here(block.text), self.where, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(code, self._names)
        return printed.getvalue()

    def _script(self, block: Block) -> str:
        return f'{PROLOGUE}{self._here(block.text)}\nexport -p >"$PAGE_STATE"\n'

    def _shell(self, block: Block) -> str:
        commands = plain_commands(self._here(block.text))
        if commands and all(words[0] == self._in_process for words in commands):
            return self._commands(block, commands)
        words = ["bash", "-c", self._script(block)]
        done = subprocess.run(
            words, cwd=self._home, env=self._env(), capture_output=True, text=True, timeout=4 * WAIT_S, check=False
        )
        if done.returncode:
            said = f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
            raise PageFailed(self.where, block, f"a command failed: {said}")
        return done.stdout

    def _commands(self, block: Block, commands: list[list[str]]) -> str:
        """Where a command would start a machine of its own: the same program, here."""
        assert self._server is not None
        address = mock.patch.dict(os.environ, {"TOPICS_URL": self._server.url})
        with address, contextlib.redirect_stdout(io.StringIO()) as printed:
            for words in commands:
                status = main(words)
                if status:
                    raise PageFailed(self.where, block, f"status {status}: topics {shlex.join(words)}")
        return printed.getvalue()

    def _end(self, block: Block, staying: Staying) -> None:
        if not staying.prints(block.reason):
            raise PageFailed(self.where, block, f"it never printed {block.reason!r}, but\n{staying.printed}")
        status = staying.interrupt()
        if status not in (0, 130):
            raise PageFailed(self.where, block, f"Ctrl-C ended it with status {status}\n{staying.printed}")


class Staying:
    """A command that goes on until Ctrl-C."""

    def __init__(self, script: str, env: dict[str, str], home: Path) -> None:
        default = (
            "import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execvp('bash', sys.argv[1:])"
        )
        # The last command takes the shell's place, so that Ctrl-C and the status are its own.
        script = re.sub(r"\n(?=topics )", "\nexec ", script)
        self._process = subprocess.Popen(
            [sys.executable, "-c", default, "bash", "-c", script], cwd=home, env=env, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.printed = ""
        self._came = threading.Condition()
        self._is_over = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._came:
                self.printed += line
                self._came.notify_all()
        with self._came:
            self._is_over = True
            self._came.notify_all()

    def prints(self, text: str) -> bool:
        """Wait for it."""
        with self._came:
            self._came.wait_for(lambda: text in self.printed or self._is_over, WAIT_S)
            return text in self.printed

    def interrupt(self) -> int:
        """Ctrl-C, and the status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(WAIT_S)

    def close(self) -> None:
        """Whatever is left of it."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait(WAIT_S)
        self._reader.join(WAIT_S)
        assert self._process.stdout is not None
        self._process.stdout.close()


def look_at(block: Block) -> None:
    """What can be said of a block without running it."""
    if block.language == "python":
        ast.parse(block.text)
    elif block.language in SHELL:
        for words in commands_of(block.text):
            named = [word for word in words if not word.startswith("-")][:1]
            build_parser(named).parse_args(words)
    elif block.language == "toml":
        tomllib.loads(block.text)
    elif block.language == "json":
        json.loads(block.text)


def _lines(script: str) -> Iterator[list[str]]:
    for line in script.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if words:
            yield words


def commands_of(script: str) -> Iterator[list[str]]:
    """What follows `topics` at the beginning of a line, variables before it left out."""
    for words in _lines(script):
        while words and re.match(r"\w+=", words[0]):
            words = words[1:]
        if words[:1] == ["topics"]:
            yield words[1:]


def plain_commands(script: str) -> list[list[str]] | None:
    """The commands of a block that has nothing but `topics` in it, or None."""
    found = list(_lines(script))
    plain = all(words[0] == "topics" and not {"|", "&&", ">", "<", ";"} & set(words) for words in found)
    return [words[1:] for words in found] if found and plain else None


def alike(shown: str, printed: str) -> bool:
    """Whether this is what was printed, but for instants and what `…` stands for."""
    for pattern, name in VARYING:
        shown, printed = pattern.sub(name, shown), pattern.sub(name, printed)
    expected = ".*".join(map(re.escape, _trimmed(shown).split("…")))
    return re.fullmatch(expected, _trimmed(printed), re.DOTALL) is not None


def _trimmed(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip().splitlines())


def bad_marks(text: str) -> list[str]:
    """Marks without a reason, and marks that stand before no block."""
    good = [match[0] for match in MARKED.finditer(text)]
    found = [f"no reason is given: {match[0]}" for match in MARK.finditer(text) if match[0] not in good]
    used = sum(bool(block.mark) for block in blocks(text))
    return [*found, *([f"{len(good) - used} marks stand before no block"] if used < len(good) else [])]


def walk(path: Path, home: Path, **options: Any) -> int:
    """Walk through a page of the repository."""
    home.mkdir(parents=True, exist_ok=True)
    return Page(path.name, path.read_text(encoding="utf-8"), home, **options).walk()
