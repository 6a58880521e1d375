"""`topics router add|ls|rm`: routers of a server (11 §2, 05). Runs on the main thread."""

from __future__ import annotations

import argparse

from topics.cli import output, remote
from topics.cli.topics import entries
from topics.client.body import router_path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    add = actions.add_parser("add", help="copy what is written to SOURCE into DEST, or change such a router")
    remote.add_arguments(add)
    add.add_argument("name", metavar="NAME", help="name of the router; SOURCE->DEST is customary")
    add.add_argument("source", metavar="SOURCE", help="topic that is copied from")
    add.add_argument("dest", metavar="DEST", help="topic that is copied into")
    add.add_argument("--filter", metavar="TAG", help="copy only records with this tag; x* picks by prefix")
    add.add_argument("--drop-node", action="store_true", help="copies have no node")
    add.add_argument("--drop-tag", action="store_true", help="copies have no tag")
    add.add_argument("--no-create", action="store_true", help="DEST has to exist")
    add.add_argument("--allow-cycle", action="store_true", help="it may close a cycle")
    add.add_argument("--exactly-once", action="store_true", help="copies carry a key")
    ls = actions.add_parser("ls", help="list routers, and how far they are")
    remote.add_arguments(ls)
    ls.add_argument("prefix", metavar="PREFIX", nargs="?", default="", help="only names that begin with this")
    ls.add_argument("--source", metavar="TOPIC", help="only those that copy from this topic")
    ls.add_argument("--dest", metavar="TOPIC", help="only those that copy into this topic")
    rm = actions.add_parser("rm", help="delete a router; its copies stay")
    remote.add_arguments(rm)
    rm.add_argument("name", metavar="NAME", help="name of the router")


def run(args: argparse.Namespace) -> int:
    return {"add": _add, "ls": _ls, "rm": _rm}[args.action](args)


def _add(args: argparse.Namespace) -> int:
    config = {
        "source": args.source, "dest": args.dest, "filter": args.filter, "preserve_node": not args.drop_node,
        "preserve_tag": not args.drop_tag, "create_dest": not args.no_create, "allow_cycle": args.allow_cycle,
        "guarantee": "exactly_once" if args.exactly_once else "at_least_once",
    }  # fmt: skip
    with remote.connect(args) as client:
        told = client.call("PUT", router_path(args.name), config)
    if args.json:
        output.answer(told)
    elif not args.quiet:
        print(f"{args.name}: {'created' if told['created'] else 'replaced'}, {told['source']} -> {told['dest']}")
    return 0


def _ls(args: argparse.Namespace) -> int:
    query = {"prefix": args.prefix or None, "source": args.source, "dest": args.dest}
    with remote.connect(args) as client:
        found = list(entries(client, "/v0/routers", "routers", query))
    if args.json:
        output.answer({"routers": found})
    elif args.quiet:
        for one in found:
            print(one["router"])
    else:
        names = ("router", "source", "dest", "guarantee", "forwarded_total", "lag")
        output.table(
            ("router", "source", "dest", "guarantee", "copied", "lag"), [[one[n] for n in names] for one in found]
        )
    return 0


def _rm(args: argparse.Namespace) -> int:
    with remote.connect(args) as client:
        told = client.call("DELETE", router_path(args.name))
    if args.json:
        output.answer(told)
    elif not args.quiet:
        print(f"{args.name}: {'deleted' if told['deleted'] else 'there was no such router'}")
    return 0
