"""One call of a running server, for commands that need no more [U-11, U-14].

The server is named by `--url` or `TOPICS_URL`, the key by `--api-key-file` or `TOPICS_API_KEY`. An answer that is an
error is raised with the server's own code and message. Runs on the main thread.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import sys
import urllib.error
import urllib.request
from typing import Any

from topics.errors import CallerError, TimingError, TopicsError
from topics.fs import read_regular

TIMEOUT_S = 600.0
"""A checkpoint writes everything that is in the log."""
KEY_BYTES_MAX = 4096


class Unreachable(TimingError):
    """No server answers there."""

    code = "unreachable"


class Refused(TopicsError):
    """The server answered with an error."""

    def __init__(self, status: int, code: str, message: str, detail: object) -> None:
        super().__init__(message)
        self.status = status
        self.code = code  # type: ignore[misc]
        self.detail = detail


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of a command that talks to a server."""
    parser.add_argument("--url", metavar="URL", help="a running server; default: TOPICS_URL")
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="file with the key, - for stdin; default: TOPICS_API_KEY"
    )


class Server:
    """A server and the key for it."""

    def __init__(self, url: str, key: str | None) -> None:
        self.url = url.rstrip("/")
        if not self.url.startswith(("http://", "https://")):
            raise CallerError(f"{url} is no http:// or https:// URL")
        self._key = key

    @classmethod
    def of(cls, args: argparse.Namespace, url: str) -> Server:
        """The server at a URL, with the key that was given."""
        if args.api_key_file == "-":
            return cls(url, sys.stdin.readline().strip())
        if args.api_key_file is not None:
            return cls(url, read_regular(args.api_key_file, KEY_BYTES_MAX).data.decode().strip())
        return cls(url, os.environ.get("TOPICS_API_KEY", "").strip() or None)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request; the object it is answered with."""
        headers = {"accept": "application/json"}
        if self._key:
            headers["authorization"] = f"Bearer {self._key}"
        data = None
        if body is not None:
            data, headers["content-type"] = json.dumps(body).encode(), "application/json"
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return _object(answer.read())
        except urllib.error.HTTPError as error:
            with error:
                raise _refusal(error.code, error.read()) from None
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise Unreachable(f"no server answers at {self.url}: {reason}") from None


def _object(raw: bytes) -> dict[str, Any]:
    try:
        found = json.loads(raw)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise Unreachable("what answers there is no topics server")
    return found


def _refusal(status: int, raw: bytes) -> TopicsError:
    told = _object(raw).get("error")
    if not isinstance(told, dict):
        return Unreachable(f"what answers there is no topics server: status {status}")
    return Refused(status, str(told.get("code")), str(told.get("message")), told.get("detail"))
