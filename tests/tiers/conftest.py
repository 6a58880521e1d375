"""Servers that live as long as the session, and a tier of each kind for every test."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.tiers.servers import Moto, S3Server, SeaweedFs
from topics.fs import OsFs
from topics.storage.tiers.bucket import Patience
from topics.storage.tiers.open import open_root
from topics.storage.tiers.store import ColdRoot

QUICK = Patience(connect_s=60.0, read_s=60.0, retries=1, backoff_s=0.01, backoff_max_s=0.02)
"""For servers that are up: what takes this long on a busy machine has hung."""

KINDS: dict[str, Callable[[Path], S3Server]] = {"moto": Moto, "seaweedfs": SeaweedFs}


@pytest.fixture(scope="session")
def s3_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("s3")


@pytest.fixture(scope="session")
def moto(s3_home: Path) -> Iterator[S3Server]:
    server = Moto(s3_home / "moto")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def seaweedfs(s3_home: Path) -> Iterator[S3Server]:
    server = SeaweedFs(s3_home / "seaweedfs")
    yield server
    server.kill()


@pytest.fixture(params=["moto", "seaweedfs"])
def server(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """Each of the servers; its credentials are those of this process."""
    found: S3Server = request.getfixturevalue(request.param)
    for name, value in found.environ.items():
        monkeypatch.setenv(name, value)
    return found


@pytest.fixture(params=["folder", "memory", "moto", "seaweedfs"])
def root(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ColdRoot:
    """An empty tier of each kind."""
    prefix = f"cold/{uuid4().hex}"
    if request.param == "folder":
        return open_root(str(tmp_path / "cold"), OsFs())
    if request.param == "memory":
        return open_root(f"memory://{uuid4().hex}/cold", OsFs(), patience=QUICK)
    found: S3Server = request.getfixturevalue(request.param)
    for name, value in found.environ.items():
        monkeypatch.setenv(name, value)
    return open_root(found.url(prefix), OsFs(), patience=QUICK)
