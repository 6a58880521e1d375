"""Flags of `topics serve`: one for every setting, none for a secret (11 §2)."""

from __future__ import annotations

import pytest

from topics import settings
from topics.cli import main as cli
from topics.cli import serve


def given(*words: str) -> dict[str, str]:
    return serve.given(cli.build_parser(["serve"]).parse_args(["serve", *words]))


@pytest.mark.parametrize("row", settings.SERVER_TABLE, ids=lambda row: row.name)
def test_every_setting_but_a_secret_has_a_flag_named_after_its_variable(row: settings.Setting) -> None:
    if row.kind == "secret":
        assert row.flag == ""
        return
    assert row.flag == "--" + row.name.removeprefix("TOPICS_").replace("_", "-").lower()
    assert given(row.flag, "x") == {row.name: "x"}


def test_a_flag_that_is_on_or_off_may_stand_alone() -> None:
    assert given("--assume-crash", "--wal-init-zero", "off", "--cold", "attic", "--probe-auth") == {
        "TOPICS_ASSUME_CRASH": "on",
        "TOPICS_WAL_INIT_ZERO": "off",
        "TOPICS_COLD_DIR": "attic",
        "TOPICS_PROBE_AUTH": "on",
    }
    assert given() == {}


@pytest.mark.parametrize("words", [["--api-keys", "s3cret"], ["--api-key=s3cret"], ["--token", "s3cret"]])
def test_a_secret_is_refused_and_not_repeated(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """[KEY-5]"""
    assert cli.main(["serve", *words]) == 2
    assert "s3cret" not in capsys.readouterr().err
