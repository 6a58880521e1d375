"""The console's code as machines read it: types by `tsc --checkJs`, and a linter. Neither is needed to run it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.console.kit import HERE, TOOLS, lacking
from topics.server import static

BIN = TOOLS / ".bin"

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not BIN.exists(), reason=lacking("typescript or oxlint")
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([str(BIN / command[0]), *command[1:]], cwd=HERE, capture_output=True, text=True, check=False)


def test_types_are_right() -> None:
    done = run("tsc", "-p", "tsconfig.json")
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_type_is_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.js"
    wrong.write_text('// @ts-check\n/** @param {number} n */\nexport function f(n) { return n; }\nf("1");\n')
    done = run("tsc", "--allowJs", "--checkJs", "--noEmit", "--strict", "--ignoreConfig", str(wrong))
    assert "TS2345" in done.stdout


def test_the_linter_finds_nothing() -> None:
    done = run("oxlint", "-c", "oxlint.json", "--ignore-pattern", "**/vendor/**", "--deny-warnings", static.FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_would_find_something(tmp_path: Path) -> None:
    (tmp_path / "wrong.js").write_text("var a = 1; if (a == 2) debugger;\n")
    done = run("oxlint", "-c", "oxlint.json", str(tmp_path))
    assert done.returncode != 0
    assert "eqeqeq" in done.stdout
