"""The exception tree: one branch each, stable codes, fields that survive."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest

from topics import errors

CLASSES = [
    value
    for _, value in inspect.getmembers(errors, inspect.isclass)
    if issubclass(value, errors.TopicsError) and value.__module__ == errors.__name__
]
BRANCHES = (errors.CallerError, errors.TimingError, errors.DiskError)
WITHOUT_BRANCH = {
    errors.TopicsError,
    errors.WalError,
    errors.UnsupportedPlatform,
    errors.IllegalTransition,
    errors.ServerError,
    *BRANCHES,
}


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_every_error_belongs_to_one_branch_and_has_a_word_of_its_own(cls: type[errors.TopicsError]) -> None:
    assert cls.__doc__
    assert cls.code.replace("_", "").isalpha()
    assert cls.code.islower()
    assert "code" in vars(cls)
    branches = [branch for branch in BRANCHES if issubclass(cls, branch)]
    assert len(branches) == (cls in BRANCHES if cls in WITHOUT_BRANCH else 1)


SHARED = {"internal", "not_ready", "throttled", "topic_exists_incompatible"}
"""Codes of the wire that several causes share; the class tells them apart."""


def test_a_code_names_one_class_unless_the_wire_shares_it() -> None:
    codes = Counter(cls.code for cls in CLASSES)
    assert {code for code, count in codes.items() if count > 1} <= SHARED


def test_everything_the_log_library_raises_is_a_wal_error() -> None:
    """[W-70]"""
    named = [errors.WalIo, errors.RecordError, errors.SegmentNotFound, errors.RecordTooLarge, errors.InvalidConfig]
    named += [errors.WriteFailed, errors.WalReadOnly, errors.WalClosed, errors.WalInUse, errors.WalCorrupt]
    named += [errors.UnsupportedFormat, errors.IllegalTransition]
    assert all(issubclass(cls, errors.WalError) for cls in named)
    records = [errors.Incomplete, errors.CrcMismatch, errors.InvalidFlags, errors.InvalidCompression]
    records += [errors.CompressionFailed, errors.DecompressionFailed, errors.VarintOverflow]
    assert all(issubclass(cls, errors.RecordError) for cls in records)


def test_fields_are_typed_and_told() -> None:
    assert errors.SettingsError("TOPICS_PORT", "bad").name == "TOPICS_PORT"
    cause = OSError(5, "Input/output error")
    assert errors.WalIo(cause, "reading").error is cause
    assert str(errors.WalIo(cause, "reading")).startswith("reading: ")
    assert str(errors.WalIo(cause)) == str(cause)
    crc = errors.CrcMismatch(1, 255)
    assert (crc.expected, crc.actual) == (1, 255)
    assert "000000ff" in str(crc)
    assert errors.SegmentNotFound(4).segment_id == 4
    large = errors.RecordTooLarge(10, 5)
    assert (large.size, large.max) == (10, 5)
    assert errors.InvalidConfig("dir", "empty").field == "dir"
    assert errors.WriteFailed("no space", full=True).full is True


def test_an_unsupported_platform_is_also_an_import_error() -> None:
    """[W-12]"""
    assert issubclass(errors.UnsupportedPlatform, ImportError)
