"""`topics create`, `ls`, `show`, `rm`, `config`: topics of a server (11 §2). Runs on the main thread."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from typing import Any, Final

from topics.cli import output, remote, units
from topics.cli.confirm import confirmed
from topics.cli.verb import Verb
from topics.client.body import topic_path
from topics.client.sync import Client
from topics.model import TopicConfig

PAGE: Final = 1000
_UNITS: Final = {
    "ttl_ms": units.span_ms,
    "cap_records": units.count,
    "cap_bytes": units.size,
    "idempotency_window_ms": units.span_ms,
    "lease_ms": units.span_ms,
    "claim_jitter_ms": units.span_ms,
    "max_deliveries": units.count,
}
"""Members of a configuration that people write with a unit."""
_WORDS: Final = {"true": True, "false": False, "null": None, "on": True, "off": False, "yes": True, "no": False}
_NAME: Final = "name of the topic"


def _server_and_name(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help=_NAME)


# -- create ----------------------------------------------------------------------------------------------------------


def _create_arguments(parser: argparse.ArgumentParser) -> None:
    _server_and_name(parser)
    parser.add_argument("--queue", action="store_true", help="a queue of jobs instead of a log")
    for option, member, kind, metavar, text in _OPTIONS:
        parser.add_argument(option, dest=member, type=kind, metavar=metavar, help=text)
    parser.add_argument("--discard", choices=("old", "reject"), help="what a cap does; default: old")
    parser.add_argument("--durability", choices=("ephemeral", "memory", "disk", "fsync"), help="default: disk")
    parser.add_argument("--leases-durable", action="store_true", default=None, help="leases survive a restart")


_OPTIONS: Final[tuple[tuple[str, str, Callable[[str], object], str, str], ...]] = (
    ("--ttl", "ttl_ms", units.span_ms, "SPAN", "records expire after this: 1h"),
    ("--cap", "cap_records", units.count, "N", "records at most: 1M"),
    ("--cap-bytes", "cap_bytes", units.size, "SIZE", "bytes at most: 1Gi"),
    ("--priority", "priority", int, "N", "of delivery"),
    ("--idempotency-window", "idempotency_window_ms", units.span_ms, "SPAN", "how long keys are kept: 2m"),
    ("--lease", "lease_ms", units.span_ms, "SPAN", "of a claimed job: 30s"),
    ("--claim-jitter", "claim_jitter_ms", units.span_ms, "SPAN", "claims that come within this share evenly"),
    ("--max-deliveries", "max_deliveries", units.count, "N", "before a job is a dead letter"),
    ("--dead-letter", "dead_letter", str, "TOPIC", "where jobs go that failed too often"),
)
_MEMBERS: Final = (
    "ttl_ms", "cap_records", "cap_bytes", "discard", "durability", "priority", "idempotency_window_ms", "lease_ms",
    "max_deliveries", "dead_letter", "claim_jitter_ms", "leases_durable",
)  # fmt: skip


def _create(args: argparse.Namespace) -> int:
    config = {name: value for name in _MEMBERS if (value := getattr(args, name)) is not None}
    if args.queue:
        config["type"] = "queue"
    with remote.connect(args) as client:
        told = client.call("PUT", topic_path(args.name, creates=True), config)
    if args.json:
        output.answer(told)
    elif not args.quiet:
        made = "created" if told["created"] else "there already; its configuration is replaced"
        print(f"{args.name}: {made} ({told['config']['type']}, {told['config']['durability']})")
    return 0


# -- ls --------------------------------------------------------------------------------------------------------------


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    remote.add_arguments(parser)
    parser.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that begin with this")
    parser.add_argument("--system", action="store_true", help="the server's own topics too")


def entries(client: Client, path: str, member: str, query: dict[str, object]) -> Iterator[dict[str, Any]]:
    """All entries of a list, page by page."""
    cursor: str | None = None
    while True:
        told = client.call("GET", path, query={**query, "page_size": PAGE, "cursor": cursor})
        yield from told[member]
        cursor = told.get("next_cursor")
        if cursor is None:
            return


def _ls(args: argparse.Namespace) -> int:
    query = {"prefix": args.prefix or None, "system": args.system or None}
    with remote.connect(args) as client:
        found = list(entries(client, "/v0/topics", "topics", query))
    if args.json:
        output.answer({"topics": found})
    elif args.quiet:
        for one in found:
            print(one["topic"])
    else:
        rows = [
            (one["topic"], one["type"], one["durability"], one["count"], units.shown_bytes(one["bytes"]),
             one["head_seq"], output.instant(one["last_write_ts"]))
            for one in found
        ]  # fmt: skip
        output.table(("topic", "type", "class", "records", "size", "head", "last write (UTC)"), rows)
    return 0


# -- show ------------------------------------------------------------------------------------------------------------


def _show(args: argparse.Namespace) -> int:
    with remote.connect(args) as client:
        told = client.call("GET", topic_path(args.name), query={"touch": False})
    if args.json:
        output.answer(told)
        return 0
    config = told["config"]
    print(f"{args.name}: {config['type']}, durability {config['durability']}")
    seqs = f"seqs {told['earliest_seq']} to {told['head_seq']}" if told["count"] else f"head {told['head_seq']}"
    print(f"  {told['count']:,} records, {units.shown_bytes(told['bytes'])}, {seqs}")
    print(f"  first {output.instant(told['earliest_ts'])}, last write {output.instant(told['last_write_ts'])} UTC")
    if "queue" in told:
        print("  " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in told["queue"].items()))
    _show_config(config)
    return 0


def _show_config(config: dict[str, Any]) -> None:
    for name, value in config.items():
        shown = units.shown_ms(value) if name.endswith("_ms") and value else json.dumps(value)
        print(f"  {name}={shown}")


# -- rm --------------------------------------------------------------------------------------------------------------


def _rm_arguments(parser: argparse.ArgumentParser) -> None:
    _server_and_name(parser)
    parser.add_argument("--if-empty", action="store_true", help="only if it holds no records")
    parser.add_argument("--yes", action="store_true", help="do not ask; where stdin is no terminal nobody is asked")


def _rm(args: argparse.Namespace) -> int:
    path = topic_path(args.name)
    with remote.connect(args) as client:
        if not args.yes and not confirmed(f"delete the topic {args.name} with everything in it?", default=True):
            return 1
        told = client.call("DELETE", path, query={"if_empty": args.if_empty or None})
    if args.json:
        output.answer(told)
    elif not args.quiet:
        print(f"{args.name}: {'deleted' if told['deleted'] else 'there was no such topic'}")
        for router in told["routers_removed"]:
            print(f"  with the router {router}")
    return 0


# -- config ----------------------------------------------------------------------------------------------------------


def _config_arguments(parser: argparse.ArgumentParser) -> None:
    _server_and_name(parser)
    told = "what to change: ttl_ms=1h cap_records=1M"
    parser.add_argument("changes", metavar="MEMBER=VALUE", nargs="*", type=_change, help=told)


def _config(args: argparse.Namespace) -> int:
    changes = dict(args.changes)
    path = topic_path(args.name)
    with remote.connect(args) as client:
        told = client.call("GET", path, query={"touch": False})
        if changes:
            config = {**told["config"], **changes}
            if "durability" in changes:
                config.pop("durable")  # one follows from the other
            elif "durable" in changes:
                config.pop("durability")
            told = client.call("PUT", path, config)
    if args.json:
        output.answer(told)
    elif not args.quiet:
        print(f"{args.name}: {'changed' if changes else 'configuration'}")
        _show_config(told["config"])
    return 0


def _change(text: str) -> tuple[str, Any]:
    name, mark, value = text.partition("=")
    if not mark:
        raise argparse.ArgumentTypeError(f"{text!r} is no MEMBER=VALUE")
    if name not in TopicConfig.__struct_fields__:
        known = ", ".join(TopicConfig.__struct_fields__)
        raise argparse.ArgumentTypeError(f"there is no member {name!r} in a configuration; there is: {known}")
    if value in _WORDS:
        return name, _WORDS[value]
    if name in _UNITS:
        try:
            return name, _UNITS[name](value)
        except argparse.ArgumentTypeError as error:
            raise argparse.ArgumentTypeError(f"{name}: {error}") from None
    try:
        return name, int(value) if name == "priority" else value
    except ValueError:
        raise argparse.ArgumentTypeError(f"{name}: {value!r} is no whole number") from None


create = Verb(_create_arguments, _create)
ls = Verb(_ls_arguments, _ls)
show = Verb(_server_and_name, _show)
rm = Verb(_rm_arguments, _rm)
config = Verb(_config_arguments, _config)
