"""Whoever walks through the pages notices what is wrong with them [U-41]."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.pages.kit import Page, PageFailed, alike, bad_marks, commands_of, plain_commands

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("curl") is None, reason="needs bash and curl"
)


def fenced(language: str, *lines: str, mark: str = "") -> str:
    return "\n".join([*([f"<!-- {mark} -->"] if mark else []), f"```{language}", *lines, "```", ""])


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def walked(home: Path, *parts: str) -> int:
    return Page("page.md", "\n".join(parts), home).walk()


def test_blocks_share_names_variables_and_files(home: Path) -> None:
    page = [
        fenced("python", "x = 1", "__import__('pathlib').Path('made').write_text('2')"),
        "text",
        fenced("python", "assert x == 1"),
    ]
    assert walked(home, *page, fenced("sh", "WHO=me; cat made"), fenced("bash", 'test "$WHO" = me')) == 4


def test_a_failing_python_block_names_its_line(home: Path) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        walked(home, "# Title", "", fenced("python", "1 / 0"))
    assert caught.traceback[-1].lineno + 1 == 4


@pytest.mark.parametrize(
    "script",
    ["false", "false\ntrue", "false | true", "no-such-command", "exit 3", 'test -n "$NEVER_SET"', "python -c 1/0"],
)
def test_a_command_that_fails_fails_the_page(home: Path, script: str) -> None:
    with pytest.raises(PageFailed, match=r"page\.md:2: a command failed"):
        walked(home, fenced("sh", script))


def test_commands_and_requests_go_to_a_server_of_the_page(home: Path) -> None:
    """And a request that is refused, or a command that is, fails it."""
    ask = "curl -s http://127.0.0.1:4000/v0/topics/"
    good = [fenced("sh", "topics write here --data 1 --quiet"), fenced("sh", f"{ask}here"),
            fenced("text", '{"topic":"here",…', ).replace("```text", '```text title="output"')]  # fmt: skip
    assert walked(home / "a", *good) == 2
    with pytest.raises(PageFailed, match="topic_not_found"):
        walked(home / "b", fenced("sh", f"{ask}absent"))
    with pytest.raises(PageFailed, match="topic_not_found"):
        walked(home / "c", fenced("sh", "topics show absent"))


def test_output_that_is_shown_is_what_was_printed(home: Path) -> None:
    shown = '```text title="output"\n1 of 2 at 1790000123456\n```\n'
    assert walked(home / "a", fenced("python", "print('1 of 2 at', 1790000999999)"), shown) == 1
    with pytest.raises(PageFailed, match="printed was\n2 of 2"):
        walked(home / "b", fenced("sh", "echo 2 of 2 at 1790000123456"), shown)


def test_a_command_that_stays_is_ended_once_it_said_what_it_should(home: Path) -> None:
    stays = fenced("sh", "topics tail here -f", mark="stays until: later")
    write = "topics write here --quiet --data"
    assert walked(home / "a", fenced("sh", f"{write} 1"), stays, fenced("sh", f"{write} '\"later\"'")) == 3
    with pytest.raises(PageFailed, match="it never printed 'later'"):
        walked(home / "b", fenced("sh", "echo sooner", mark="stays until: later"))
    with pytest.raises(PageFailed, match="it never printed 'later'"):
        walked(home / "c", fenced("sh", "topics tail absent -f", mark="stays until: later"))


def test_a_block_is_exempt_only_by_a_mark_right_before_it(home: Path) -> None:
    mark, broken = "<!-- not run: needs a cluster -->", fenced("python", "1 / 0")
    assert walked(home / "a", mark, broken) == 0
    assert walked(home / "b", mark, "", broken) == 0
    for at, before in enumerate((f"{mark}\nother text", "<!-- not run -->", "<!-- not run: -->")):
        with pytest.raises(ZeroDivisionError):
            walked(home / f"c{at}", before, broken)


def test_what_is_not_run_is_looked_at(home: Path) -> None:
    for at, (language, text) in enumerate(
        [("python", "1 +"), ("sh", "topics fly"), ("sh", "TOPICS_PORT=1 topics serve \\\n --wings 2"), ("toml", "= 1"),
         ("json", "{"), ("sh", "echo 'open")]
    ):  # fmt: skip
        with pytest.raises(PageFailed):
            walked(home / str(at), fenced(language, text, mark="not run: needs a cluster"))
    assert walked(home / "z", fenced("sh", "topics serve --port 4001  # elsewhere", mark="not run: it stays")) == 0


@pytest.mark.parametrize("language", ["", "pyton", "shell", "curl"])
def test_a_block_whose_language_nobody_knows_is_no_way_out(home: Path, language: str) -> None:
    with pytest.raises(PageFailed, match="a block is one of"):
        walked(home, fenced(language, "1 / 0"))


def test_marks_without_a_reason_or_a_block_are_found() -> None:
    assert bad_marks(fenced("sh", "x", mark="not run: needs a cluster")) == []
    assert bad_marks(fenced("sh", "x", mark="not run")) == ["no reason is given: <!-- not run -->"]
    assert bad_marks(fenced("sh", "x", mark="not run: ")) == ["no reason is given: <!-- not run:  -->"]
    assert bad_marks("<!-- not run: needs a cluster -->\ntext\n" + fenced("sh", "x")) == [
        "1 marks stand before no block"
    ]


def test_what_varies_is_alike_and_nothing_else() -> None:
    assert alike("at 2026-01-02 03:04:05.678 lease_1f", "at 2027-01-02 03:04:05.678 lease_20\n")
    assert alike('{"a":1,…}', '{"a":1,"b":2}')
    assert not alike('{"a":1,…}', '{"a":2,"b":2}')
    assert not alike("a", "ab")
    assert not alike("1 of 2", "2 of 2")


def test_commands_are_found_in_scripts() -> None:
    script = "A=1 topics ls \\\n  --json\n# topics no\nls\n"
    assert list(commands_of(script)) == [["ls", "--json"]]
    assert plain_commands("topics ls\n\ntopics show a  # that\n") == [["ls"], ["show", "a"]]
    assert plain_commands("topics ls | cat\n") is None
    assert plain_commands(script) is None
