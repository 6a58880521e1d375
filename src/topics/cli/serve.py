"""`topics serve`: the server (11 §2). Every setting but the keys themselves is a flag here, and a flag wins.

A key on the command line would be readable by everybody on the machine, so there is no flag for one; what looks like
one is refused without repeating it. Runs on the main thread; the process itself is `topics.server.main`.
"""

from __future__ import annotations

import argparse
from typing import Any, NoReturn

from topics.settings import SERVER_TABLE, Setting

_METAVAR = {"count": "N", "bytes": "BYTES", "ms": "MS", "port": "PORT", "text": "TEXT", "words": "A,B,…"}
_METAVAR_OF = {"host": "HOST", "data_dir": "DIR", "cold_dir": "DIR"} | dict.fromkeys(
    ("port_file", "api_keys_file", "tls_cert", "tls_key"), "FILE"
)
_ALIASES = {"cold_dir": ("--cold",)}
_SECRETS = ("--api-keys", "--api-key", "--key", "--token")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "topics serve [--host HOST] [--port PORT] [--data-dir DIR] [OPTION …]"
    groups: dict[str, Any] = {}
    for row in SERVER_TABLE:
        if row.flag:
            group = groups.get(row.group) or groups.setdefault(row.group, parser.add_argument_group(row.group))
            _add(group, row)
    parser.add_argument(*_SECRETS, action=_Refused, nargs="?", help=argparse.SUPPRESS)


def _add(group: Any, row: Setting) -> None:
    names = (*_ALIASES.get(row.field, ()), row.flag)
    text = row.meaning.replace("%", "%%")
    metavar = _METAVAR_OF.get(row.field) or _METAVAR.get(row.kind)
    more: dict[str, Any] = {"metavar": metavar, "default": None, "help": text}
    if row.kind == "flag":
        more |= {"metavar": "on|off", "nargs": "?", "const": "on"}
    elif row.kind == "choice":
        more["metavar"] = "|".join(row.choices)
    group.add_argument(*names, dest=f"setting_{row.field}", **more)


class _Refused(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *rest: object) -> NoReturn:
        parser.error("keys are not given as arguments; use TOPICS_API_KEYS or --api-keys-file")


def given(args: argparse.Namespace) -> dict[str, str]:
    """The flags that were given, by the names of their variables."""
    found = {row.name: getattr(args, f"setting_{row.field}", None) for row in SERVER_TABLE}
    return {name: text for name, text in found.items() if text is not None}


def run(args: argparse.Namespace) -> int:
    from topics.server import logs, main

    log = logs.to_stderr(as_json=args.json)
    try:
        return main.serve(given(args), log, quiet=args.quiet, debug=args.debug)
    finally:
        log.close()
