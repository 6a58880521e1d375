"""What is committed: no notes to self, no traces of a machine, generated files fresh, public names pinned."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from argparse import SUPPRESS
from pathlib import Path

import pytest

from tests.tidy import checks
from tools import generate
from topics.cli import main as cli


def text_files() -> list[tuple[str, str]]:
    found = []
    for path in checks.tracked_files():
        raw = path.read_bytes()
        if b"\0" not in raw:
            found.append((checks.relative(path), raw.decode("utf-8")))
    return found


def test_no_file_holds_a_note_to_self_or_a_trace_of_a_machine() -> None:
    files = text_files()
    assert "pyproject.toml" in dict(files)
    assert [line for where, text in files for line in checks.open_work(text, where)] == []
    # Cargo writes the name of the public registry beside every crate it locks.
    named = [(where, text) for where, text in files if where != "native/Cargo.lock"]
    assert [line for where, text in named for line in checks.machine_traces(text, where)] == []
    assert set(re.findall(r'source = "(.*)"', dict(files)["native/Cargo.lock"])) == {
        "registry+https://github.com/rust-lang/crate" + "s.io-index"
    }


@pytest.mark.parametrize("word", ["TO" + "DO", "FIX" + "ME"])
def test_a_note_to_self_is_found(word: str) -> None:
    assert checks.open_work(f"x = 1  # {word}: later", "x.py") == [f"x.py:1: note to self: {word}"]


@pytest.mark.parametrize(
    "trace",
    [
        "/ro" + "ot/.cache",
        "/ho" + "me/someone/src",
        "/Us" + "ers/someone",
        "see ../sha" + "red/spec/07",
        "https://py" + "pi.org/simple",
        "--index-" + "url x",
        "files.python" + "hosted.org",
    ],
)
def test_a_trace_of_a_machine_is_found(trace: str) -> None:
    assert len(checks.machine_traces(f"a line\n{trace}\n", "x.md")) == 1


@pytest.mark.parametrize("fine", ["/v0/topics", "docs/root/", "/var/lib/topics", "from PyPI", "at home/away"])
def test_ordinary_text_is_not_taken_for_a_trace(fine: str) -> None:
    assert checks.machine_traces(fine, "x.md") == []


@pytest.mark.parametrize("name", generate.FILES)
def test_a_generated_file_is_fresh(name: str) -> None:
    """`make generate` rewrites it. For `public_api.txt` that is a decision: the change goes into the changelog."""
    assert (checks.ROOT / name).read_text(encoding="utf-8") == generate.FILES[name]()


@pytest.mark.parametrize("command", cli.COMMANDS, ids=lambda command: command.name)
def test_the_reference_has_every_option_of_a_command(command: cli.Command) -> None:
    """[U-41]"""
    page = generate.cli_page()
    parser = cli.Parser(prog=f"topics {command.name}")
    command.load().add_arguments(parser)
    for path, one in [(parser.prog, parser), *generate._walk(parser, parser.prog)]:
        section = page.partition(f"\n## `{path}`\n")[2].partition("\n## ")[0]
        options = [name for action in one._actions for name in action.option_strings if action.help != SUPPRESS]
        own = set(options) - {"-h", "--help", "--json", "--quiet", "--debug"}
        assert [name for name in sorted(own) if not re.search(rf"[`, ]{name}[`, ]", section)] == [], path


def test_the_pinned_api_names_signatures_and_members() -> None:
    lines = generate.public_api().splitlines()
    assert "topics.errors" in lines
    assert "topics.errors.WriteFailed(message, *, full)" in lines
    assert "topics.errors.WriteFailed.code" in lines
    assert not any(" at 0x" in line for line in lines)


def test_importing_topics_loads_nothing_else() -> None:
    code = "import sys, topics; print(*(m for m in sys.modules if m.startswith(('topics.', 'numpy', 'msgspec'))))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


def test_lazy_names_resolve_and_unknown_ones_do_not() -> None:
    import topics

    assert topics.errors.TopicsError.code == "internal"
    assert set(topics.__all__) <= set(dir(topics))
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        topics.nope  # noqa: B018


def test_scripts_are_executable_and_locks_carry_hashes() -> None:
    for name in (".ci/run", "tools/env", "tools/lock"):
        assert os.access(checks.ROOT / name, os.X_OK), name
    for path in sorted((checks.ROOT / "requirements").glob("*.lock")):
        assert_locked(path.read_text(encoding="utf-8"), path)


def assert_locked(text: str, path: Path) -> None:
    entries = [entry for entry in text.replace("\\\n", " ").splitlines() if entry.strip() and entry.lstrip()[0] != "#"]
    assert entries
    assert all("==" in entry and "--hash=sha256:" in entry for entry in entries), path


def test_an_unpinned_lock_is_found() -> None:
    with pytest.raises(AssertionError):
        assert_locked("msgspec>=0.19\n", Path("x.lock"))
