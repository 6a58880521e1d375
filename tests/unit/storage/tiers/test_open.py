"""Opening a tier by its name [S-302]."""

from __future__ import annotations

import subprocess
import sys

import obstore
import pytest
from obstore import exceptions

from topics.errors import SettingsError, StoreDenied, StoreUnavailable
from topics.storage.tiers.bucket import Patience
from topics.storage.tiers.folder import FolderRoot
from topics.storage.tiers.object import ObjectRoot
from topics.storage.tiers.open import open_root
from topics.storage.tiers.store import SegmentId
from topics.testing.simfs import SimFs


@pytest.mark.parametrize("where", ["/cold", "file:///cold"])
def test_a_folder_is_opened_on_the_disk_that_is_given(where: str) -> None:
    fs = SimFs(seed=1)
    root = open_root(where, fs)
    assert isinstance(root, FolderRoot)
    assert root.name == "/cold"
    root.claim("a")
    assert fs.listdir("/cold") == [".topics-store"]


@pytest.mark.parametrize("where", ["s3://b/p?region=eu-west-1", "gs://b/p", "az://c/p?account=x", "memory://x/p"])
def test_a_url_opens_without_asking_anything_of_the_store(where: str) -> None:
    """[S-318] Nobody answers for these, and start-up does not wait to find out."""
    root = open_root(where, SimFs(seed=1), environ={})
    assert isinstance(root, ObjectRoot)
    assert root.name == where


def test_what_is_put_under_a_name_in_memory_is_found_by_whoever_opens_it_again() -> None:
    fs = SimFs(seed=1)
    open_root("memory://shared/p", fs).topic(1).put(SegmentId(1), b"d", b"i")
    assert open_root("memory://shared/p", fs).topics() == [1]
    assert open_root("memory://shared/q", fs).topics() == []
    assert open_root("memory://other/p", fs).topics() == []


def test_what_the_library_refuses_ends_start_up_with_its_reason() -> None:
    """[A-17]"""
    with pytest.raises(SettingsError, match=r"DEST: az://c cannot be used: .*[Aa]ccount"):
        open_root("az://c", SimFs(seed=1), variable="DEST", environ={})


def test_without_the_extra_a_url_is_refused_with_what_to_install() -> None:
    """[S-301]"""
    code = (
        "import sys; sys.modules['obstore'] = None\n"
        "from topics.storage.tiers.open import open_root\n"
        "from topics.fs import OsFs\n"
        "open_root('cold', OsFs())\n"
        "try: open_root('s3://b/p', OsFs())\n"
        "except Exception as error: print(type(error).__name__, error)\n"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.startswith("SettingsError TOPICS_COLD_DIR: s3:// needs the package obstore")
    assert "pip install 'topics[s3]'" in said


def test_whoever_uses_a_folder_never_loads_the_library() -> None:
    code = (
        "import sys, topics.engine.engine, topics.server.main\n"
        "from topics.storage.tiers.open import open_root\n"
        "from topics.fs import OsFs\n"
        "open_root('cold', OsFs())\n"
        "print('obstore' in sys.modules)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


@pytest.mark.parametrize(
    ("error", "denied"),
    [
        (exceptions.PermissionDeniedError("no"), True),
        (exceptions.UnauthenticatedError("no"), True),
        (
            exceptions.GenericError("Server returned non-2xx status code: 403 Forbidden: <Code>AccessDenied</Code>"),
            True,
        ),
        (exceptions.GenericError("Server returned non-2xx status code: 401 Unauthorized"), True),
        (exceptions.GenericError("Server returned non-2xx status code: 503 Service Unavailable"), False),
        (exceptions.GenericError("error sending request"), False),
    ],
)
def test_a_store_that_answers_no_is_told_from_one_that_does_not_answer(
    error: Exception, denied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """[S-323] The first works; nobody leaves it alone for what he may not do there."""

    def refuse(*given: object) -> None:
        raise error

    root = open_root("memory://denied/p", SimFs(seed=1))
    monkeypatch.setattr(obstore, "delete", refuse)
    with pytest.raises(StoreUnavailable, match="cannot delete") as caught:
        root.topic(1).delete(SegmentId(1))
    assert isinstance(caught.value, StoreDenied) == denied


def test_the_patience_of_the_contract_is_the_default() -> None:
    """[S-301] Connect 3 s, read 30 s, 3 retries after 0.2 to 5 s."""
    assert Patience() == (3.0, 30.0, 3, 0.2, 5.0)
