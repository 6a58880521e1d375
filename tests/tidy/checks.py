"""Rules of the code base as functions: text in, findings out.

Each returns lines such as `src/topics/wal/log.py:12: builtin open()`; an empty list is a pass. The tests
beside this file run them over the tree, and over bad snippets to show that they can fail.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
SEALED_PACKAGES = ("codec", "wal", "storage", "engine")


def tracked_files() -> list[Path]:
    """Files that are, or would be, in a commit; in an unpacked source archive, the files it came with."""
    if not (ROOT / ".git").exists():
        folders = [ROOT / name for name in ("src", "tests", "tools", "docs", "requirements", "bench")]
        found = [*ROOT.glob("*"), *(path for folder in folders for path in folder.rglob("*"))]
        return sorted(path for path in found if path.is_file() and "__pycache__" not in path.parts)
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [path for name in sorted(set(listed.split("\0"))) if name and (path := ROOT / name).is_file()]


def python_files(*folders: str) -> list[Path]:
    """Python files below the folders that exist."""
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def relative(path: Path) -> str:
    """The path as findings show it."""
    return path.relative_to(ROOT).as_posix()


def _finding(where: str, node: ast.AST, what: str) -> str:
    return f"{where}:{getattr(node, 'lineno', 1)}: {what}"


def file_and_time_access(source: str, where: str) -> list[str]:
    """`os`, `time` and builtin `open` in code that must go through the seams [W-4, S-15]."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names = [alias.name.partition(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [(node.module or "").partition(".")[0]]
        else:
            names = []
        found += [_finding(where, node, f"import of {name}") for name in names if name in _SEALED_MODULES]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open":
            found.append(_finding(where, node, "builtin open()"))
    return found


_SEALED_MODULES = frozenset({"os", "time", "pathlib", "shutil", "tempfile"})


def swallowed_errors(source: str, where: str) -> list[str]:
    """Handlers that catch a broad error and do nothing about it."""
    if "except" not in source:
        return []
    return [
        _finding(where, node, "a caught error is dropped")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and all(map(_does_nothing, node.body))
    ]


_BROAD = frozenset({"OSError", "IOError", "EnvironmentError", "Exception", "BaseException"})


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(map(_is_broad, caught.elts))
    return isinstance(caught, ast.Name) and caught.id in _BROAD


def _does_nothing(node: ast.stmt) -> bool:
    return isinstance(node, (ast.Pass, ast.Continue)) or (
        isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
    )


def missing_module_docstring(source: str, where: str) -> list[str]:
    """A module that does not say what it is."""
    return [] if ast.get_docstring(ast.parse(source)) else [f"{where}:1: module has no docstring"]


def sleeps(source: str, where: str) -> list[str]:
    """Waiting for time to pass instead of for something to happen; `asyncio.sleep(0)` only yields."""
    if "sleep" not in source:  # most files: to parse them all takes seconds
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and any(alias.name == "sleep" for alias in node.names):
            found.append(_finding(where, node, "import of sleep"))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "sleep":
            zero = len(node.args) == 1 and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0
            if not zero:
                found.append(_finding(where, node, "sleep in a test"))
    return found


def shapes_decoded_on_the_fly(source: str, where: str) -> list[str]:
    """Shapes that are first looked at when they are decoded, perhaps by two threads at once, which ends the process."""
    if "msgspec" not in source:
        return []
    return [
        _finding(where, node, f"{ast.unparse(node.func)} with a type; make a decoder on import")
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and ast.unparse(node.func) in ("msgspec.json.decode", "msgspec.msgpack.decode", "msgspec.convert")
        and (ast.unparse(node.func) == "msgspec.convert" or any(one.arg == "type" for one in node.keywords))
    ]


def engine_imports_in_spark(source: str, where: str) -> list[str]:
    """Only the sink and the jobs may drive an engine; the rest of `spark` reads files."""
    inside = PurePosixPath(where).parts
    if "spark" not in inside or "jobs" in inside or inside[-1] == "sink.py":
        return []
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if any((name + ".").startswith("topics.engine.") for name in names):
            found.append(_finding(where, node, "import of topics.engine"))
    return found


# The patterns are written so that they do not match themselves.
_OPEN_WORK = re.compile(r"\b(TO[D]O|FIX[M]E|X[X]X|HA[C]K)\b")
_MACHINE = re.compile(
    r"(?<![\w.])/(?:root|home/\w+|Users/\w+|work/(?:main|shared)|tmp/\w/)(?![\w-])"
    r"|(?:\.\./)?shared/(?:spec|design)\b"
    r"|\b(?:py[p]i|test\.py[p]i)\.org|pythonhost[e]d\.org|npm[j]s\.org|crate[s]\.io|maven\.org|debia[n]\.org"
    r"|--(?:extra-)?index-u[r]l|--find-link[s]\b"
)


def open_work(text: str, where: str) -> list[str]:
    """Notes to self: they belong in the issue tracker."""
    return _matches(_OPEN_WORK, text, where, "note to self")


def machine_traces(text: str, where: str) -> list[str]:
    """Paths of one machine, hosts and options of a package index."""
    return _matches(_MACHINE, text, where, "trace of a machine")


def _matches(pattern: re.Pattern[str], text: str, where: str, what: str) -> list[str]:
    return [
        f"{where}:{number}: {what}: {match[0]}"
        for number, line in enumerate(text.splitlines(), 1)
        if (match := pattern.search(line))
    ]


class Block(NamedTuple):
    """A fenced block of a page: its language, what else its fence says, the line it starts on, its text, and the mark
    before it with its reason."""

    language: str
    info: str
    line: int
    text: str
    mark: str
    reason: str


_FENCE = re.compile(r"^( *)(```+|~~~+) *([\w+-]*)([^\n]*)$")
MARKED = re.compile(r"<!-- (not run|stays until): (\S.*?) -->")


def blocks(page: str) -> Iterator[Block]:
    """The fenced blocks of a page, in order."""
    lines = page.splitlines()
    mark = reason = ""
    number = 0
    while number < len(lines):
        fence = _FENCE.match(lines[number])
        if fence is None:
            if found := MARKED.search(lines[number]):
                mark, reason = found[1], found[2]
            elif lines[number].strip():
                mark = reason = ""
            number += 1
            continue
        end = number + 1
        while end < len(lines) and lines[end].strip() != fence[2]:
            end += 1
        body = "\n".join(line.removeprefix(fence[1]) for line in lines[number + 1 : end])
        yield Block(fence[3], fence[4].strip(), number + 2, body + "\n", mark, reason)
        mark = reason = ""
        number = end + 1


_LINK = re.compile(r"(?<!\\)\[[^\]]*\]\(\s*<?([^)\s>]+)>?[^)]*\)")
_HEADING = re.compile(r"^#{1,6} +(.+?) *#* *$", re.MULTILINE)


def broken_links(page: str, path: Path) -> list[str]:
    """Relative links that lead nowhere, and anchors that no heading has."""
    found = []
    bare = re.sub(r"^( *)(```+).*?^\1\2 *$", "", page, flags=re.MULTILINE | re.DOTALL)
    for target in _LINK.findall(bare):
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        goal = (path.parent / name).resolve() if name else path
        if not goal.exists():
            found.append(f"{path.name}: broken link: {target}")
        elif anchor and goal.suffix == ".md" and anchor not in _anchors(goal.read_text(encoding="utf-8")):
            found.append(f"{path.name}: no such heading: {target}")
    return found


def _anchors(page: str) -> set[str]:
    plain = (re.sub(r"[^\w\s-]", "", heading).strip().lower() for heading in _HEADING.findall(page))
    return {re.sub(r"\s+", "-", heading) for heading in plain}
