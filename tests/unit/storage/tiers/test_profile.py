"""Access keys of an AWS profile [S-301]."""

from __future__ import annotations

import pytest

from topics.errors import SettingsError
from topics.storage.tiers.profile import access_keys

CREDENTIALS = b"""
[default]
aws_access_key_id = DEFAULTID
aws_secret_access_key = defaultsecret%with=signs
[work]
aws_access_key_id=WORKID
aws_secret_access_key=worksecret
aws_session_token=worktoken
"""
CONFIG = b"""
[default]
region = eu-central-1
[profile work]
region = eu-west-1
[profile sso]
sso_session = company
[work]
region = not-this-one
"""
FILES = {"/u/.aws/credentials": CREDENTIALS, "/u/.aws/config": CONFIG, "/etc/keys": CREDENTIALS}
HOME = {"HOME": "/u"}
DEFAULT = {
    "access_key_id": "DEFAULTID", "secret_access_key": "defaultsecret%with=signs", "region": "eu-central-1",
}  # fmt: skip


def test_the_default_profile_is_used_when_nothing_else_is_said() -> None:
    assert access_keys(HOME, FILES.get) == DEFAULT
    assert access_keys({"HOME": "/nobody"}, FILES.get) == {}


def test_a_named_profile_brings_its_keys_token_and_region() -> None:
    assert access_keys({**HOME, "AWS_PROFILE": "work"}, FILES.get) == {
        "access_key_id": "WORKID",
        "secret_access_key": "worksecret",
        "session_token": "worktoken",
        "region": "eu-west-1",
    }


def test_files_may_lie_elsewhere_and_variables_win() -> None:
    elsewhere = {"AWS_SHARED_CREDENTIALS_FILE": "/etc/keys", "AWS_PROFILE": "work"}
    assert access_keys(elsewhere, FILES.get)["access_key_id"] == "WORKID"
    assert access_keys({**HOME, "AWS_ACCESS_KEY_ID": "x", "AWS_PROFILE": "work"}, FILES.get) == {}
    assert "region" not in access_keys({**HOME, "AWS_REGION": "us-east-2"}, FILES.get)


def test_the_identity_of_the_machine_counts_before_a_default_profile() -> None:
    given = {**HOME, "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token"}
    assert access_keys(given, FILES.get) == {}
    assert access_keys({**given, "AWS_PROFILE": "default"}, FILES.get) == DEFAULT


@pytest.mark.parametrize(("name", "told"), [("nobody", "no profile 'nobody'"), ("sso", "export-credentials")])
def test_a_profile_without_keys_is_refused_when_it_was_asked_for(name: str, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        access_keys({**HOME, "AWS_PROFILE": name}, FILES.get)


def test_a_default_profile_without_keys_is_passed_over() -> None:
    assert access_keys(HOME, {"/u/.aws/config": b"[default]\nsso_session = company\n"}.get) == {}


@pytest.mark.parametrize("raw", [b"worksecret without a section", b"\xff\xfe", b"[work]\nworksecret\n"])
def test_a_file_that_is_none_is_named_without_what_it_holds(raw: bytes) -> None:
    with pytest.raises(SettingsError, match="/etc/keys") as caught:
        access_keys({"AWS_SHARED_CREDENTIALS_FILE": "/etc/keys"}, {"/etc/keys": raw}.get)
    assert "worksecret" not in str(caught.value)


def test_a_file_that_may_not_be_read_is_told() -> None:
    def read(path: str) -> bytes | None:
        raise PermissionError(13, "Permission denied", path)

    with pytest.raises(SettingsError, match=r"cannot be read: Permission denied"):
        access_keys(HOME, read)
