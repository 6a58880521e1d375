"""The text that names a tier [S-302, A-7]."""

from __future__ import annotations

import pytest

from topics.errors import SettingsError
from topics.storage.tiers.place import ObjectPlace, parse


@pytest.mark.parametrize(
    ("text", "path"),
    [("cold", "cold"), ("/mnt/cold", "/mnt/cold"), ("file:///mnt/a%20b", "/mnt/a b"), ("file://localhost/c", "/c")],
)
def test_a_plain_path_and_a_file_url_are_folders(text: str, path: str) -> None:
    assert parse(text) == path


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("s3://b", ObjectPlace("s3", "b")),
        ("s3://my.bucket-1/a/b=1/", ObjectPlace("s3", "my.bucket-1", "a/b=1")),
        (
            "s3://b/p?endpoint=http://127.0.0.1:9000/&region=eu-west-1&path_style=1",
            ObjectPlace("s3", "b", "p", "http://127.0.0.1:9000", "eu-west-1", True),
        ),
        ("s3://b?endpoint=https%3A%2F%2Fminio.internal&path_style=false",
         ObjectPlace("s3", "b", "", "https://minio.internal", None, False)),
        ("gs://b/p", ObjectPlace("gs", "b", "p")),
        ("az://c/p?account=mine", ObjectPlace("az", "c", "p", account="mine")),
        ("memory://", ObjectPlace("memory", "")),
        ("memory://one/p", ObjectPlace("memory", "one", "p")),
    ],
)  # fmt: skip
def test_a_url_is_a_bucket_a_prefix_and_options(text: str, place: ObjectPlace) -> None:
    assert parse(text) == place


@pytest.mark.parametrize(
    "text",
    ["s3://b", "s3://b/a/b", "s3://b/p?endpoint=http://[::1]:9000&region=x&path_style=0", "gs://b", "memory://",
     "az://c/p?endpoint=http://h/x&account=mine"],
)  # fmt: skip
def test_what_a_place_is_called_means_that_place(text: str) -> None:
    """Snapshots and plans hold this text, and readers open it."""
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("ftp://host/x", "ftp://"),
        ("S3://bucket", "S3://"),
        ("://x", "scheme"),
        ("s3://", "bucket"),
        ("s3:///p", "bucket"),
        ("s3://b:9000/p", "bucket"),
        ("s3://[/p", "no URL"),
        ("s3://b/a//b", "prefix"),
        ("s3://b/../b", "prefix"),
        ("s3://b/a%2fb", "prefix"),
        ("s3://b/p#x", "#"),
        ("s3://b?path_style=maybe", "path_style"),
        ("s3://b?region=", "region"),
        ("s3://b?region=a&region=b", "twice"),
        ("s3://b?region", "name=value"),
        ("s3://b?endpoint=minio:9000", "endpoint"),
        ("s3://b?endpoint=http://", "endpoint"),
        ("s3://b?endpoint=http://h:99999", "endpoint"),
        ("gs://b?region=x", "unknown"),
        ("memory://x?endpoint=http://h", "no options"),
        ("file://host/c", "file:///path"),
        ("file:c://x", "scheme"),
    ],
)
def test_anything_else_is_refused_with_what_to_write_instead(text: str, told: str) -> None:
    with pytest.raises(SettingsError, match=r"^DEST: ") as caught:
        parse(text, "DEST")
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "s3://AKIAKEY:hunter2@bucket/p",
        "s3://bucket/p?access_key_id=AKIAKEY&secret_access_key=hunter2",
        "s3://bucket/p?hunter2=1",
        "s3://bucket/p?endpoint=http://AKIAKEY:hunter2@host",
        "s3://bucket/p?endpoint=http://host/?sig=hunter2",
        "az://c/p?account=x&sas=hunter2",
        "ftp://AKIAKEY:hunter2@host",
        "hunter2 is my secret://x",
    ],
)
def test_a_place_with_credentials_in_it_is_refused_without_repeating_them(text: str) -> None:
    """[A-8] Whatever is accepted is shown in snapshots, plans and logs."""
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert "hunter2" not in str(caught.value)
    assert "AKIAKEY" not in str(caught.value)
