"""The code keeps its own rules; each rule is also shown a snippet that breaks it."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.tidy import checks

SRC = checks.ROOT / "src" / "topics"


def over_files(check: Callable[[str, str], list[str]], files: list[Path]) -> list[str]:
    return [found for path in files for found in check(path.read_text(encoding="utf-8"), checks.relative(path))]


def test_codec_wal_storage_and_engine_reach_files_and_time_only_through_the_seams() -> None:
    files = checks.python_files(*(f"src/topics/{name}" for name in checks.SEALED_PACKAGES))
    assert files
    assert over_files(checks.file_and_time_access, files) == []


@pytest.mark.parametrize(
    "bad",
    ["import os", "import os.path", "from os import path", "import time as t", "from time import time", "open('x')"],
)
def test_access_around_the_seams_is_found(bad: str) -> None:
    assert len(checks.file_and_time_access(bad, "x.py")) == 1


@pytest.mark.parametrize(
    "good", ["fs.open('x', 'r')", "from topics.clock import Clock", "timer = 1", "def open(): ..."]
)
def test_use_of_the_seams_is_not_mistaken_for_access_around_them(good: str) -> None:
    assert checks.file_and_time_access(good, "x.py") == []


def test_no_error_is_dropped() -> None:
    files = checks.python_files("src", "tools", "bench")
    assert over_files(checks.swallowed_errors, files) == []


@pytest.mark.parametrize(
    "handler",
    ["except OSError: pass", "except: pass", "except Exception as e: ...", "except (KeyError, OSError): pass"],
)
def test_a_dropped_error_is_found(handler: str) -> None:
    assert len(checks.swallowed_errors(f"try:\n    f()\n{handler}\n", "x.py")) == 1


def test_a_dropped_error_in_a_loop_is_found_and_a_narrow_or_handled_one_is_not() -> None:
    loop = "for x in y:\n    try:\n        f()\n    except OSError:\n        continue\n"
    assert len(checks.swallowed_errors(loop, "x.py")) == 1
    assert checks.swallowed_errors(loop.replace("OSError", "KeyError"), "x.py") == []
    assert checks.swallowed_errors(loop.replace("continue", "log(x)"), "x.py") == []


def test_every_module_says_what_it_is() -> None:
    assert over_files(checks.missing_module_docstring, checks.python_files("src", "tools", "bench")) == []
    assert checks.missing_module_docstring("x = 1\n", "x.py") == ["x.py:1: module has no docstring"]


def test_tests_wait_for_events_and_never_for_time_to_pass() -> None:
    assert over_files(checks.sleeps, checks.python_files("tests")) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("import time\ntime.sleep(1)\n", 1),
        ("from time import sleep\n", 1),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0.1)\n", 1),
        ("import asyncio\nasync def f():\n    await asyncio.sleep(0)\n", 0),
    ],
)
def test_a_sleep_is_found(source: str, count: int) -> None:
    assert len(checks.sleeps(source, "x.py")) == count


def test_shapes_are_known_before_threads_decode_them() -> None:
    assert over_files(checks.shapes_decoded_on_the_fly, checks.python_files("src/topics")) == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("msgspec.json.decode(raw, type=Page)", 1),
        ("msgspec.convert(value, Page)", 1),
        ("msgspec.json.decode(raw)", 0),
        ("PAGE = msgspec.json.Decoder(Page)", 0),
    ],
)
def test_a_shape_decoded_on_the_fly_is_found(source: str, count: int) -> None:
    assert len(checks.shapes_decoded_on_the_fly(source, "a.py")) == count


def test_only_sink_and_jobs_of_spark_import_the_engine() -> None:
    assert over_files(checks.engine_imports_in_spark, checks.python_files("src/topics/spark")) == []
    bad = "from topics.engine import Engine\n"
    assert checks.engine_imports_in_spark(bad, "src/topics/spark/batch.py")
    assert checks.engine_imports_in_spark("from topics import engine\n", "src/topics/spark/batch.py")
    assert not checks.engine_imports_in_spark(bad, "src/topics/spark/sink.py")
    assert not checks.engine_imports_in_spark(bad, "src/topics/spark/jobs/archive.py")


def lint_imports(config: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    script = "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(sys.argv[1], no_cache=True))"
    command = [sys.executable, "-c", script, str(config)]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)


def test_imports_point_the_way_the_architecture_says() -> None:
    result = lint_imports(checks.ROOT / "pyproject.toml", checks.ROOT)
    assert result.returncode == 0, result.stdout + result.stderr


FOUNDATION = ("errors", "interrupts", "clock", "fs", "paths", "settings")
LAYERS = (*FOUNDATION, "codec", "wal", "storage", "engine", "client", "spark", "server", "cli", "testing")
WRONG_WAYS = [
    ("codec", "wal"),
    ("wal", "storage"),
    ("storage", "engine"),
    ("errors", "settings"),
    ("spark", "server"),
    ("client", "server"),
    ("server", "client"),
    ("server", "spark"),
    ("client", "engine"),
    ("cli", "testing"),
    ("wal", "testing"),
]


@pytest.mark.parametrize(("importer", "imported"), WRONG_WAYS)
def test_an_import_in_the_wrong_direction_is_found(importer: str, imported: str, tmp_path: Path) -> None:
    """A package of the same shape, with planned layers present and one wrong import, breaks the same contracts."""
    make_package(tmp_path, {importer: f"import topics.{imported}\n"})
    result = lint_imports(tmp_path / "pyproject.toml", tmp_path)
    assert result.returncode == 1, result.stdout + result.stderr
    assert "BROKEN" in result.stdout


def test_planned_layers_keep_the_contracts_and_a_module_without_a_place_breaks_them(
    tmp_path: Path,
) -> None:
    make_package(tmp_path, {"server": "import topics.engine\n", "spark": "import topics.client\n"})
    assert lint_imports(tmp_path / "pyproject.toml", tmp_path).returncode == 0
    (tmp_path / "topics" / "helpers.py").write_text("")
    assert lint_imports(tmp_path / "pyproject.toml", tmp_path).returncode == 1


def make_package(folder: Path, sources: dict[str, str]) -> None:
    (folder / "pyproject.toml").write_bytes((checks.ROOT / "pyproject.toml").read_bytes())
    package = folder / "topics"
    package.mkdir()
    (package / "__init__.py").write_text("")
    for name in LAYERS:
        (package / f"{name}.py").write_text(textwrap.dedent(sources.get(name, "")))
