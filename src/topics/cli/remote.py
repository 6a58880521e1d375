"""Which server a command talks to, and with which key [U-11, U-14].

    address    --url, else TOPICS_URL, else the profile's, else http://127.0.0.1:4000
    key        --api-key-file (`-` is stdin), else TOPICS_API_KEY, else the profile's
    profile    --profile, else TOPICS_PROFILE, else the `default` of the file; none if there is no file

Profiles are tables of `topics.toml` in the user's configuration directory:

    default = "local"
    [profiles.plant3]
    url = "https://log.plant3.example"
    api_key_file = "/etc/topics/plant3.key"

The profile's key belongs to its address: with another address it is not sent. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import os
import sys
import tomllib
from typing import Any, Final, NamedTuple

from topics.client.sync import Client
from topics.errors import CallerError, Unreachable
from topics.fs import read_regular

DEFAULT_URL: Final = "http://127.0.0.1:4000"
KEY_BYTES_MAX: Final = 4096
PROFILES_BYTES_MAX: Final = 1 << 20


class BadProfile(CallerError):
    """A profile that is not there, or cannot be used."""

    code = "bad_profile"
    hint = "profiles are tables [profiles.NAME] of topics.toml with `url`, `api_key_file` or `api_key`"


class Profile(NamedTuple):
    """A server by name."""

    url: str | None = None
    api_key: str | None = None
    api_key_file: str | None = None


class Told(dict[str, Any]):
    """An answer; without a member that every server's has, somebody else gave it."""

    def __missing__(self, name: str) -> Any:
        raise Unreachable(f"what answers there is no topics server: its answer has no {name!r}")


class Server(Client):
    """The server of a command."""

    def call(self, *args: Any, **options: Any) -> dict[str, Any]:
        return Told(super().call(*args, **options))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that talks to a server."""
    parser.add_argument("--url", metavar="URL", help=f"the server; default: TOPICS_URL, a profile's, or {DEFAULT_URL}")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="file with the key, - for stdin; default: TOPICS_API_KEY, or a profile's"
    )
    parser.add_argument("--profile", metavar="NAME", help="a server of topics.toml; default: TOPICS_PROFILE")


def connect(args: argparse.Namespace) -> Client:
    """A client of the server that the arguments, the environment or a profile name."""
    profile = _profile(args)
    url = named_url(args) or profile.url or DEFAULT_URL
    return Server(url, _key(args, profile, is_profiles=url == profile.url))


def named_url(args: argparse.Namespace) -> str | None:
    """The address that was given by argument or environment."""
    return args.url or os.environ.get("TOPICS_URL", "").strip() or None


def is_named(args: argparse.Namespace) -> bool:
    """Whether a server was named at all: by argument, environment or profile."""
    return named_url(args) is not None or args.profile is not None or _profile(args).url is not None


def key_of(args: argparse.Namespace) -> str | None:
    """The key that was given by argument or environment."""
    return _key(args, Profile(), is_profiles=False)


def _key(args: argparse.Namespace, profile: Profile, *, is_profiles: bool) -> str | None:
    if args.api_key_file == "-":
        return sys.stdin.readline().strip() or None
    if args.api_key_file is not None:
        return _read_key(args.api_key_file)
    given = os.environ.get("TOPICS_API_KEY", "").strip()
    if given or not is_profiles:
        return given or None
    return profile.api_key or (None if profile.api_key_file is None else _read_key(profile.api_key_file))


def _read_key(path: str) -> str | None:
    try:
        return read_regular(os.path.expanduser(path), KEY_BYTES_MAX).data.decode().strip() or None
    except UnicodeDecodeError:
        raise CallerError(f"{path} holds no key: it is not text") from None


def profiles_path() -> str:
    """Where profiles are."""
    base = os.environ.get("XDG_CONFIG_HOME") or os.path.join(os.path.expanduser("~"), ".config")
    return os.path.join(base, "topics.toml")


def _profile(args: argparse.Namespace) -> Profile:
    asked = getattr(args, "profile", None) or os.environ.get("TOPICS_PROFILE", "").strip() or None
    path = profiles_path()
    try:
        text = read_regular(path, PROFILES_BYTES_MAX).data.decode()
        table = tomllib.loads(text)
    except FileNotFoundError:
        if asked is not None:
            raise BadProfile(f"there is no profile {asked!r}: {path} does not exist") from None
        return Profile()
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadProfile(f"{path}: {error}") from None
    name = asked if asked is not None else table.get("default")
    return Profile() if name is None else _checked(path, name, table.get("profiles"))


def _checked(path: str, name: object, profiles: object) -> Profile:
    found: Any = profiles.get(name) if isinstance(profiles, dict) and isinstance(name, str) else None
    if not isinstance(found, dict):
        known = ", ".join(map(str, profiles)) if isinstance(profiles, dict) else "none"
        raise BadProfile(f"there is no profile {name!r} in {path}; there is: {known}")
    for member, value in found.items():
        if member not in Profile._fields:
            raise BadProfile(f"{path}: profile {name!r} has a member {member!r} that means nothing")
        if not isinstance(value, str):
            raise BadProfile(f"{path}: {member} of profile {name!r} is no text")
    return Profile(**found)
