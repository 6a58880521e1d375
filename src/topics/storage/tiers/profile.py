"""Access keys of an AWS profile [S-301]: the library below reads variables and roles, but not these files.

    AWS_ACCESS_KEY_ID                          wins: no file is read
    AWS_PROFILE                                names the profile, else `default`
    AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE   else ~/.aws/credentials, ~/.aws/config

Only keys that stand in the files are used. A profile that gets its keys elsewhere (single sign-on, a role, a program)
is refused by name if it was asked for; the default one is then passed over, as if it were not there.
"""

from __future__ import annotations

import configparser
from collections.abc import Callable, Mapping

from topics.errors import SettingsError

FILE_BYTES_MAX = 1 << 20

_NAMES = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}
"""What a profile calls it, and what the library does."""

Read = Callable[[str], bytes | None]
"""The content of a file, None if there is none; any other trouble is an `OSError`."""


def access_keys(environ: Mapping[str, str], read: Read) -> dict[str, str]:
    """Options for the library: keys and region of the profile in force; nothing where variables or roles decide."""
    asked = environ.get("AWS_PROFILE", "")
    if environ.get("AWS_ACCESS_KEY_ID") or (not asked and _other_source(environ)):
        return {}
    name = asked or "default"
    found = _profile(name, environ, read)
    if asked and not found:
        raise SettingsError("AWS_PROFILE", f"there is no profile {name!r} in the credentials or config file of AWS")
    options = {to: found[given] for given, to in _NAMES.items() if found.get(given)}
    if not {"access_key_id", "secret_access_key"} <= options.keys():
        if asked:
            raise SettingsError(
                "AWS_PROFILE",
                f"profile {name!r} holds no access keys; give them as variables "
                f"(aws configure export-credentials --profile {name} --format env)",
            )
        return {}
    if environ.get("AWS_REGION") or environ.get("AWS_DEFAULT_REGION"):
        options.pop("region", None)
    return options


def _other_source(environ: Mapping[str, str]) -> bool:
    """A machine's own identity counts before a default profile that somebody left in a home directory."""
    names = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", "AWS_SKIP_SIGNATURE")
    return any(environ.get(name) for name in names)


def _profile(name: str, environ: Mapping[str, str], read: Read) -> dict[str, str]:
    home = f"{environ.get('HOME', '')}/.aws"
    config = environ.get("AWS_CONFIG_FILE") or f"{home}/config"
    credentials = environ.get("AWS_SHARED_CREDENTIALS_FILE") or f"{home}/credentials"
    section = name if name == "default" else f"profile {name}"
    return _section(config, section, read) | _section(credentials, name, read)


def _section(path: str, name: str, read: Read) -> dict[str, str]:
    try:
        raw = read(path)
        if raw is None:
            return {}
        parsed = configparser.RawConfigParser(default_section="\0", strict=False)
        parsed.read_string(raw.decode("utf-8"))
    except OSError as error:
        raise SettingsError("AWS_PROFILE", f"{path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, configparser.Error):
        raise SettingsError("AWS_PROFILE", f"{path} is not a file of profiles") from None
    return dict(parsed[name]) if parsed.has_section(name) else {}
