"""The console's files as they are served (02 API-28, IDX-1; 11 U-31)."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import httpx
import pytest

from tests.api.kit import Running, running
from topics.server import static

POLICY = "default-src 'self'; frame-ancestors 'none'; base-uri 'none'"
FOLDER = Path(static.FOLDER)
VENDOR = FOLDER / "vendor"


@pytest.mark.parametrize("path", ["/", "/console"])
def test_the_server_s_address_leads_to_the_console(client: httpx.Client, path: str) -> None:
    """[API-28]"""
    answer = client.get(path)
    assert (answer.status_code, answer.headers["location"], answer.content) == (302, "/console/", b"")


def test_every_file_is_served_with_its_type_and_the_policy(client: httpx.Client) -> None:
    """[API-28, U-31] And once only: nothing is told twice in the head."""
    for name, one in static.read_files().items():
        answer = client.get(f"/console/{name}")
        assert answer.status_code == 200, name
        assert answer.content == one.body
        assert answer.headers["content-type"] == one.content_type.decode()
        assert answer.headers.get_list("cache-control") == ["no-cache"]
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "date" in answer.headers
    assert client.get("/console/").content == (FOLDER / "index.html").read_bytes()
    assert client.get("/v0/health").headers.get_list("cache-control") == ["no-store"]


def test_a_file_that_is_known_is_not_sent_again(client: httpx.Client) -> None:
    """[API-28] Its tag is strong and of its bytes."""
    answer = client.get("/console/")
    etag = answer.headers["etag"]
    assert etag.startswith('"')
    for given in (etag, f'"other", {etag}', f"W/{etag}", "*"):
        again = client.get("/console/", headers={"if-none-match": given})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", etag)
        assert again.headers["cache-control"] == "no-cache"
    for given in ('"other"', etag.strip('"'), ""):
        assert client.get("/console/", headers={"if-none-match": given}).status_code == 200
    tags = {one.etag for one in static.read_files().values()}
    assert len(tags) == len(static.read_files())


def test_head_is_answered_like_get_without_the_body(client: httpx.Client) -> None:
    """[API-21]"""
    whole, head = client.get("/console/"), client.head("/console/")
    assert (head.status_code, head.content) == (200, b"")
    for name in ("etag", "content-type", "content-length", "content-security-policy"):
        assert head.headers[name] == whole.headers[name]
    assert client.post("/console/").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/console/..", "/console/../static.py", "/console/%2e%2e/static.py", "/console/..%2fstatic.py",
        "/console/%2e%2e%2fstatic.py", "/console//etc/passwd", "/console/%2fetc%2fpasswd", "/console/./index.html",
        "/console/index.html/", "/console/index.html%00", "/console/INDEX.HTML", "/console/vendor", "/console/vendor/",
        "/console/vendor/vendor.json", "/console/vendor/LICENCES.txt", "/console/nothing.js", "/console/\\index.html",
    ],
)  # fmt: skip
def test_nothing_but_the_files_is_served(server: Running, path: str) -> None:
    """[13 §5] The path goes as it is: clients tend to tidy it up."""
    told = server.raw(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert told.startswith(b"HTTP/1.1 404 "), told[:200]


def test_files_need_no_key_and_no_recovered_store() -> None:
    """[IDX-1, API-6]"""
    with running(env={"TOPICS_API_KEYS": "secret"}, recover=False) as server, server.client() as client:
        assert client.get("/console/").status_code == 200
        assert client.get("/").status_code == 302
        assert client.get("/v0/topics").status_code == 401


def test_no_file_has_anything_inline_or_from_elsewhere() -> None:
    """[U-30, U-31] What the policy forbids would only show in a browser."""
    page = (FOLDER / "index.html").read_text(encoding="utf-8")
    assert "<style" not in page
    assert "style=" not in page
    assert " onload=" not in page
    assert page.count("<script") == page.count("<script src=") + page.count('<script type="module" src=')
    for name, one in static.read_files().items():
        text = one.body.decode()
        assert "http://" not in text.replace("http://www.w3.org/", "").replace("http://127.0.0.1:4000", ""), name
        assert "sourceMappingURL" not in text, name
        if not name.startswith("vendor/"):
            for bad in ("innerHTML", "dangerouslySetInnerHTML", "eval(", "new Function", "document.write"):
                assert bad not in text, (name, bad)


def test_foreign_files_are_those_of_the_list() -> None:
    """Version, licence and checksum of each; `python -m tools.vendor` writes them."""
    rows = {row["file"]: row for row in json.loads((VENDOR / "vendor.json").read_text(encoding="utf-8"))}
    assert set(rows) == {path.name for path in VENDOR.iterdir() if path.suffix in static.TYPES}
    licences = (VENDOR / "LICENCES.txt").read_text(encoding="utf-8")
    for name, row in rows.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == row["sha256"], name
        assert row["licence"] in ("MIT", "Apache-2.0")
        assert f"{row['package']} {row['version']}\n" in licences


def test_the_wheel_has_the_console_and_it_is_small(tmp_path: Path) -> None:
    """< 300 KiB, unpacked."""
    root = FOLDER.parents[3]
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=root, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    inside = "topics/server/console/"
    with zipfile.ZipFile(wheel) as archive:
        found = {one.filename: one.file_size for one in archive.infolist()}
    sizes = {name.removeprefix(inside): size for name, size in found.items() if name.startswith(inside)}
    assert set(static.read_files()) <= set(sizes)
    assert sum(sizes.values()) < 300 << 10
