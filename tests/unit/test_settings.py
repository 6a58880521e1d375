"""Settings are parsed strictly, name what is wrong, and never show a secret (09 §5, §6)."""

from __future__ import annotations

import ctypes
import dataclasses
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from topics import EngineConfig, settings
from topics.errors import SettingsError

NUMBERS = [row for row in settings.TABLE if row.kind in ("count", "bytes", "ms", "port")]
FLAGS = [row for row in settings.TABLE if row.kind == "flag"]
REQUEST_LIMITS = [row for row in settings.TABLE if row.group == "Request limits"]
RESOURCE_LIMITS = [row for row in settings.TABLE if row.group == "Resource limits"]


def value_of(row: settings.Setting, text: str) -> object:
    return getattr(settings.parse({row.name: text}).settings, row.field)


def refusal(env: dict[str, str]) -> SettingsError:
    with pytest.raises(SettingsError) as caught:
        settings.parse(env)
    return caught.value


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    loaded = settings.parse({})
    assert loaded.warnings == []
    assert loaded.given == frozenset()
    assert loaded.settings == settings.Settings()
    assert loaded.settings.bind == ("127.0.0.1", 4000)
    assert loaded.settings.wal_file_bytes == 67108864
    assert loaded.settings.max_total_bytes == 0
    assert loaded.settings.kernel == "auto"
    assert loaded.settings.max_fds is None


@pytest.mark.parametrize("row", settings.SERVER_TABLE, ids=lambda row: row.name)
@pytest.mark.parametrize("blank", ["", "   ", "\t"])
def test_a_blank_value_means_the_default(row: settings.Setting, blank: str) -> None:
    loaded = settings.parse({row.name: blank})
    assert getattr(loaded.settings, row.field) == row.default
    assert loaded.given == frozenset()


def test_values_are_trimmed_and_what_was_given_is_known() -> None:
    loaded = settings.parse({"TOPICS_PORT": " 5000\t", "TOPICS_DATA_DIR": " /var/lib/topics "})
    assert (loaded.settings.port, loaded.settings.data_dir) == (5000, "/var/lib/topics")
    assert loaded.given == {"TOPICS_PORT", "TOPICS_DATA_DIR"}


@pytest.mark.parametrize("row", FLAGS, ids=lambda row: row.name)
def test_flags_take_four_words_each_way_in_any_case(row: settings.Setting) -> None:
    assert all(value_of(row, word) is True for word in ("1", "true", "On", "YES"))
    assert all(value_of(row, word) is False for word in ("0", "False", "off", "nO"))
    for word in ("2", "y", "enabled", "tru"):
        error = refusal({row.name: word})
        assert error.name == row.name
        assert repr(word) in str(error)


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.name)
@pytest.mark.parametrize("text", ["x", "-1", "+1", "1.0", "1e3", "1_000", "0x10", "٣", "1 2", "1k", "9" * 5000])
def test_a_number_is_plain_decimal_digits(row: settings.Setting, text: str) -> None:
    error = refusal({row.name: text})
    assert error.name == row.name
    assert str(row.high) in str(error)
    assert len(str(error)) < 300


@pytest.mark.parametrize("row", NUMBERS, ids=lambda row: row.name)
def test_a_number_outside_its_range_is_refused_and_its_ends_are_accepted(row: settings.Setting) -> None:
    assert refusal({row.name: str(row.high + 1)}).name == row.name
    if row.low > 1:
        assert refusal({row.name: str(row.low - 1)}).name == row.name
    if row.field not in ("max_record_bytes", "max_meta_bytes", "test_min_heartbeat_ms"):
        assert value_of(row, str(row.high)) == row.high
        assert value_of(row, str(row.low)) == row.low


@pytest.mark.parametrize("row", REQUEST_LIMITS, ids=lambda row: row.name)
def test_zero_means_the_default_for_request_limits(row: settings.Setting) -> None:
    """[LIM-1]"""
    assert value_of(row, "0") == row.default != 0


@pytest.mark.parametrize("row", RESOURCE_LIMITS, ids=lambda row: row.name)
def test_zero_means_unlimited_for_resource_limits(row: settings.Setting) -> None:
    """[RES-1]"""
    assert value_of(row, "0") == 0
    assert row.zero == "unlimited"


def test_zero_shards_means_the_default_and_65_are_refused() -> None:
    row = next(row for row in settings.TABLE if row.field == "wal_shards")
    assert value_of(row, "0") == 1
    assert value_of(row, "064") == 64
    assert "1 to 64" in str(refusal({row.name: "65"}))


def test_segments_of_two_gibibytes_are_the_largest() -> None:
    """[S-127]: for the server and for an engine in the same process."""
    most = 2 << 30
    row = next(row for row in settings.TABLE if row.field == "segment_max_bytes")
    assert value_of(row, str(most)) == most == EngineConfig(segment_max_bytes=most).segment_max_bytes
    assert f"to {most}" in str(refusal({row.name: str(most + 1)}))
    with pytest.raises(SettingsError, match=f"to {most}"):
        EngineConfig(segment_max_bytes=most + 1)


@pytest.mark.parametrize(
    ("host", "bind"),
    [
        ("0.0.0.0", ("0.0.0.0", 4000)),
        ("localhost:80", ("localhost", 80)),
        ("[::1]:4001", ("::1", 4001)),
        ("localhost:0", ("localhost", 0)),
    ],
)
def test_a_host_with_a_colon_is_a_complete_address(host: str, bind: tuple[str, int]) -> None:
    assert settings.parse({"TOPICS_HOST": host}).settings.bind == bind


@pytest.mark.parametrize("host", ["::1", "[::1]", "localhost:", "localhost:65536", "localhost:x", ":80", "a:1:2"])
def test_a_half_address_is_refused(host: str) -> None:
    assert refusal({"TOPICS_HOST": host}).name == "TOPICS_HOST"


def test_choices_are_words_in_any_case() -> None:
    assert settings.parse({"TOPICS_LOG_LEVEL": "DEBUG"}).settings.log_level == "debug"
    assert "pure or native or auto" in str(refusal({"TOPICS_KERNEL": "rust"}))


def test_lists_are_split_trimmed_and_checked() -> None:
    loaded = settings.parse(
        {"TOPICS_CORS_ORIGINS": "https://a.example, http://b:8080,,", "TOPICS_ALLOWED_HOSTS": "x.y"}
    )
    assert loaded.settings.cors_origins == ("https://a.example", "http://b:8080")
    assert loaded.settings.allowed_hosts == ("x.y",)
    assert settings.parse({"TOPICS_CORS_ORIGINS": "*"}).settings.cors_origins == ("*",)
    assert "'a.example'" in str(refusal({"TOPICS_CORS_ORIGINS": "https://b, a.example"}))
    assert refusal({"TOPICS_ALLOWED_HOSTS": "x:1"}).name == "TOPICS_ALLOWED_HOSTS"


@pytest.mark.parametrize(
    "cold", ["/mnt/cold", "cold", "file:///c", "s3://bucket/prefix?region=x", "gs://b", "az://c", "memory://"]
)
def test_a_cold_tier_is_a_folder_or_a_known_kind_of_url(cold: str) -> None:
    assert settings.parse({"TOPICS_COLD_DIR": cold}).settings.cold_dir == cold


@pytest.mark.parametrize("cold", ["ftp://host/x", "s3://", "S3://bucket", "://x"])
def test_a_malformed_or_unsupported_cold_url_is_refused(cold: str) -> None:
    """[S-380]"""
    assert "s3://" in str(refusal({"TOPICS_COLD_DIR": cold}))


@pytest.mark.parametrize(
    "cold", ["ftp://k:hunter2@h/x", "S3://k:hunt/hunter2@b", "ftp://h?secret=hunter2", "://a@hunter2@"]
)
def test_a_refused_url_is_shown_without_the_credentials_in_it(cold: str) -> None:
    """[A-8]"""
    told = str(refusal({"TOPICS_COLD_DIR": cold}))
    assert "hunter2" not in told
    assert f"'{cold.partition('://')[0]}://" in told


def test_certificate_and_key_come_together() -> None:
    assert refusal({"TOPICS_TLS_CERT": "c.pem"}).name == "TOPICS_TLS_KEY"
    assert refusal({"TOPICS_TLS_KEY": "k.pem"}).name == "TOPICS_TLS_CERT"
    assert settings.parse({"TOPICS_TLS_CERT": "c", "TOPICS_TLS_KEY": "k"}).settings.tls_cert == "c"


def test_record_and_meta_together_fit_a_frame() -> None:
    most = settings.RECORD_AND_META_BYTES_MAX
    fits = {"TOPICS_MAX_RECORD_BYTES": str(most - 100), "TOPICS_MAX_META_BYTES": "100"}
    assert settings.parse(fits).settings.max_meta_bytes == 100
    assert "TOPICS_MAX_META_BYTES" in str(refusal({**fits, "TOPICS_MAX_META_BYTES": "101"}))


@pytest.mark.parametrize(("text", "value"), [("0", 1), ("5", 5), ("5000", 1000)])
def test_the_heartbeat_floor_of_tests_is_clamped(text: str, value: int) -> None:
    assert settings.parse({"TOPICS_TEST_MIN_HEARTBEAT_MS": text}).settings.test_min_heartbeat_ms == value


def test_a_secret_is_kept_but_never_shown() -> None:
    """[KEY-5]"""
    loaded = settings.parse({"TOPICS_API_KEYS": "s3cret-one,s3cret-two:read"})
    assert loaded.settings.api_keys == "s3cret-one,s3cret-two:read"
    assert "s3cret" not in repr(loaded)
    error = refusal({"TOPICS_API_KEYS": "s3cret-one,s3cret\x00two"})
    assert "entry 2" in str(error)
    assert "s3cret" not in str(error)


def test_an_unknown_variable_is_warned_about_with_the_nearest_name() -> None:
    """[ENV-3]"""
    loaded = settings.parse({"TOPICS_PROT": "s3cret", "OTHER": "x", "topics_port": "x", "TOPICS_URL": "not a url"})
    assert loaded.warnings == ["TOPICS_PROT is not a known setting and is ignored; the nearest is TOPICS_PORT"]


def test_what_selects_a_server_is_no_unknown_variable() -> None:
    """[ENV-3, U-11]"""
    assert settings.parse({"TOPICS_URL": "x", "TOPICS_API_KEY": "x", "TOPICS_PROFILE": "plant3"}).warnings == []
    assert settings.parse_client({"TOPICS_PROFILE": "plant3"}).profile == "plant3"


def test_the_servers_settings_ignore_the_clients_and_the_other_way_round() -> None:
    env = {"TOPICS_URL": "https://log.example:4000", "TOPICS_API_KEY": "k", "TOPICS_PORT": "bad"}
    client = settings.parse_client(env)
    assert (client.url, client.api_key) == ("https://log.example:4000", "k")
    assert "'k'" not in repr(client)
    assert settings.parse_client({}).url == "http://127.0.0.1:4000"
    with pytest.raises(SettingsError, match="TOPICS_URL"):
        settings.parse_client({"TOPICS_URL": "log.example"})


def test_settings_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.parse({}).settings.port = 1  # type: ignore[misc]


def test_from_env_reads_the_process_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_PORT", "4321")
    assert settings.from_env().settings.port == 4321


def test_every_row_is_complete_and_named_after_its_field() -> None:
    names = [row.name for row in settings.TABLE]
    assert len(names) == len(set(names))
    for row in settings.TABLE:
        assert row.name == "TOPICS_" + row.field.upper()
        assert row.meaning.endswith(".")
        assert row.group
        assert row.accepted


@given(st.dictionaries(st.sampled_from([row.name for row in settings.SERVER_TABLE]), st.text(max_size=30)))
def test_any_text_parses_or_is_refused_by_name(env: dict[str, str]) -> None:
    refused = None
    try:
        settings.parse(env)
    except SettingsError as error:
        refused = error
    assert refused is None or (refused.name.startswith("TOPICS_") and str(refused).startswith(refused.name))


def test_a_flag_wins_over_its_variable_and_is_named_when_it_is_bad() -> None:
    """(11 §2, [SET-1])"""
    env = {"TOPICS_PORT": "1", "TOPICS_MAX_TOPICS": "2", "TOPICS_MAX_LIMIT": "3"}
    loaded = settings.parse(env, {"TOPICS_PORT": "9", "TOPICS_MAX_TOPICS": " "})
    assert (loaded.settings.port, loaded.settings.max_topics, loaded.settings.max_limit) == (9, 100_000, 3)
    sources = [loaded.source(name) for name in (*env, "TOPICS_HOST")]
    assert sources == ["flag", "default", "environment", "default"]
    assert settings.parse({"TOPICS_PORT": "x"}, {"TOPICS_PORT": "9"}).settings.port == 9
    with pytest.raises(SettingsError, match=r"^--wal-shards: '65' is not accepted"):
        settings.parse({}, {"TOPICS_WAL_SHARDS": "65"})


@pytest.mark.parametrize(
    ("host", "flags", "bind"),
    [
        ("10.0.0.1:80", {"TOPICS_PORT": "9"}, ("10.0.0.1", 9)),
        ("[::1]:80", {"TOPICS_PORT": "9"}, ("::1", 9)),
        ("10.0.0.1:80", {}, ("10.0.0.1", 80)),
        ("10.0.0.1:80", {"TOPICS_HOST": "localhost"}, ("localhost", 4000)),
        ("10.0.0.1", {"TOPICS_HOST": "localhost:7", "TOPICS_PORT": "9"}, ("localhost", 7)),
    ],
)
def test_a_port_flag_wins_over_a_port_in_the_host_variable(
    host: str, flags: dict[str, str], bind: tuple[str, int]
) -> None:
    assert settings.parse({"TOPICS_HOST": host}, flags).settings.bind == bind


def test_keys_are_taken_out_of_the_environment_and_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    """[KEY-5]"""
    monkeypatch.setenv("TOPICS_API_KEYS", "s3cret-é")
    find = ctypes.CDLL(None).getenv
    find.argtypes, find.restype = [ctypes.c_char_p], ctypes.c_void_p
    address = find(b"TOPICS_API_KEYS")
    settings.forget_api_keys()
    assert "TOPICS_API_KEYS" not in os.environ
    assert find(b"TOPICS_API_KEYS") is None
    assert b"s3cret" not in ctypes.string_at(address, 9)
    settings.forget_api_keys()
