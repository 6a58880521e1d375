"""`topics queue put|claim|ack|nack|work|stats|redrive`: jobs of a queue (11 §2, 04). Runs on the main thread.

work NAME -- CMD     runs CMD for each job: the payload on its stdin, TOPICS_JOB_SEQ, TOPICS_JOB_TAG, TOPICS_JOB_META,
                     TOPICS_JOB_DELIVERIES and TOPICS_QUEUE in its environment. Status 0 acks the job, any other
                     gives it back, each time for longer. Leases are kept alive meanwhile. With --json what CMD
                     prints goes to stderr.
redrive DEAD         moves dead letters back to where they came from, if that is a queue that sends its letters here: a
                     copy with a key of its own, then the letter goes. Interrupted anywhere, it is run again and copies
                     nothing twice. The key names the instance of DEAD [EPO-1], not DEAD: made anew, it has other
                     letters under the same seqs. Redrive of the console has the same keys.
"""

from __future__ import annotations

import argparse
import shutil
import socket
import sys
from collections.abc import Generator
from contextlib import closing
from typing import Any, Final

import msgspec

from topics.cli import output, remote, units, write
from topics.cli.interrupted import Interrupted
from topics.cli.progress import Progress
from topics.client.body import rows, topic_path
from topics.client.sync import Client
from topics.errors import CallerError, NotAQueue, TimingError, TopicNotFound, TopicsError
from topics.model import Job, Record, new
from topics.process import run_command
from topics.surface.worker import Worker, backoff_ms

LETTERS: Final = ("$dead_letter_from", "$dead_letter_deliveries", "$dead_letter_src_seq")
NODE_BYTES: Final = 100
AT_ONCE: Final = 100
"""Letters that are read or claimed in one call, and given back."""
_META: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(title="actions", metavar="ACTION", dest="action", required=True)
    write.add_arguments(actions.add_parser("put", help="new jobs, one per line of a file or of stdin"))
    claim = _action(actions, "claim", "lease jobs")
    claim.add_argument("--max", type=units.count, default=1, metavar="N", help="jobs at most; default: 1")
    claim.add_argument("--lease", type=units.span_ms, metavar="SPAN", help="for how long; default: the queue's")
    _seqs(_action(actions, "ack", "jobs are done"))
    nack = _action(actions, "nack", "give jobs back")
    _seqs(nack)
    nack.add_argument("--delay", type=units.span_ms, default=0, metavar="SPAN", help="until they may be claimed again")
    work = _action(actions, "work", "run a command for each job: topics queue work NAME -- CMD …")
    work.add_argument("--max", type=units.count, default=1, metavar="N", help="jobs in hand; default: 1")
    work.add_argument("--lease", type=units.span_ms, metavar="SPAN", help="of a job; default: the queue's")
    rests = "rest of a job that failed, doubled each time; default: 1s"
    work.add_argument("--backoff", type=units.span_ms, default=1000, metavar="SPAN", help=rests)
    work.add_argument("--until-empty", action="store_true", help="end when there is nothing to do")
    work.add_argument("command_words", metavar="CMD", nargs="+", help="what to run")
    stats = actions.add_parser("stats", help="how many jobs are ready, in flight and delayed")
    remote.add_arguments(stats)
    stats.add_argument("name", metavar="NAME", help="name of the queue")
    redrive = actions.add_parser("redrive", help="move dead letters back to their queues")
    remote.add_arguments(redrive)
    redrive.add_argument("name", metavar="DEAD", help="name of the dead-letter topic")
    redrive.add_argument("--dry-run", action="store_true", help="only count them")


def _action(actions: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = actions.add_parser(name, help=text)
    remote.add_arguments(parser)
    parser.add_argument("name", metavar="NAME", help="name of the queue")
    parser.add_argument("--node", metavar="NODE", help="who holds the leases; default: this machine's name")
    return parser


def _seqs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("seqs", metavar="SEQ", nargs="+", type=units.seq, help="jobs")
    parser.add_argument("--lease-id", metavar="ID", action="append", default=[], help="of each job, in the same order")


def run(args: argparse.Namespace) -> int:
    actions = {"put": write.run, "claim": _claim, "ack": _settle, "nack": _settle, "work": _work, "stats": _stats,
               "redrive": _redrive}  # fmt: skip
    return actions[args.action](args)


def _node(args: argparse.Namespace) -> str:
    return args.node if args.node is not None else f"cli-{socket.gethostname()}"[:NODE_BYTES]


def _claim(args: argparse.Namespace) -> int:
    asked = {"node": _node(args), "max": args.max, "lease_ms": args.lease}
    with remote.connect(args) as client:
        told = client.call("POST", topic_path(args.name) + "/claim", asked)
    if args.json:
        output.answer(told)
        return 0
    for job in told["claimed"]:
        data = output.printable(msgspec.json.encode(job["data"]).decode())
        print(f"{job['$seq']:>8}  {job['lease_id']}  until {output.instant(job['deadline'])}  {data}")
    if not args.quiet:
        print(f"{args.name}: {told['count']:,} claimed, {told['ready']:,} are ready", file=sys.stderr)
    return 0


def _settle(args: argparse.Namespace) -> int:
    asked: dict[str, Any] = {"node": _node(args), "seqs": args.seqs, "lease_ids": args.lease_id}
    if args.action == "nack":
        asked["delay_ms"] = args.delay
    with remote.connect(args) as client:
        told = client.call("POST", f"{topic_path(args.name)}/{args.action}", asked, repeatable=True)
    if args.json:
        output.answer(told)
    elif not args.quiet:
        print(f"{args.name}: {told[args.action + 'ed']:,} {args.action}ed")
        if told["skipped"]:
            skipped = ", ".join(map(str, told["skipped"]))
            print(f"{args.name}: not held by {asked['node']}: {skipped}", file=sys.stderr)
    return 0


def _stats(args: argparse.Namespace) -> int:
    with remote.connect(args) as client:
        told = client.call("GET", topic_path(args.name), query={"touch": False})
    if "queue" not in told:
        raise NotAQueue(args.name)
    if args.json:
        output.answer(told)
    else:
        print(
            f"{args.name}: " + ", ".join(f"{count:,} {name.replace('_', ' ')}" for name, count in told["queue"].items())
        )
    return 0


# -- work ------------------------------------------------------------------------------------------------------------


def _work(args: argparse.Namespace) -> int:
    if shutil.which(args.command_words[0]) is None:
        raise CallerError(f"there is no command {args.command_words[0]!r}")
    with remote.connect(args) as client:
        if client.state(args.name).type != "queue":
            raise NotAQueue(args.name)
        worker = client.queue(args.name).worker(
            _node(args), args.max, lease_ms=args.lease, backoff_ms=args.backoff, wait=not args.until_empty
        )
        try:
            with worker as jobs:
                for job in jobs:
                    _do(args, jobs, job)
        except KeyboardInterrupt:
            done = worker.settled
            raise Interrupted(f"{done.acked} jobs of {args.name} are done, {done.nacked} were given back") from None
        except TopicsError as error:
            error.add_note(f"{worker.settled.acked} jobs of {args.name} were done before")
            raise
    settled = worker.settled
    if args.json:
        output.answer({"ok": not settled.nacked, "topic": args.name, **settled._asdict()})
    elif not args.quiet:
        print(f"{args.name}: {settled.acked:,} done, {settled.nacked:,} failed and given back, {settled.lost:,} lost")
    return 1 if settled.nacked else 0


def _do(args: argparse.Namespace, jobs: Worker, job: Job) -> None:
    """One job; that it is done, the next one says."""
    env = _environment(args.name, job)
    status = run_command(args.command_words, job.raw_data, env, prints_to_stderr=args.json)
    if status:
        if not args.json:
            print(f"{args.name}: job {job.seq}: status {status}, delivery {job.deliveries}", file=sys.stderr)
        jobs.nack(job, delay_ms=backoff_ms(job, args.backoff))


def _environment(name: str, job: Job) -> dict[str, str]:
    told = {"TOPICS_QUEUE": name, "TOPICS_JOB_SEQ": str(job.seq), "TOPICS_JOB_DELIVERIES": str(job.deliveries)}
    if job.tag is not None and "\0" not in job.tag:
        told["TOPICS_JOB_TAG"] = job.tag
    if job.raw_meta is not None:
        told["TOPICS_JOB_META"] = job.raw_meta.decode()
    return told


# -- redrive ---------------------------------------------------------------------------------------------------------


def _redrive(args: argparse.Namespace) -> int:
    moved = left = 0
    with (
        remote.connect(args) as client,
        Progress("redriving", silent=args.json or args.quiet, unit="letters") as progress,
    ):
        is_queue = client.state(args.name).type == "queue"
        queues, instance = _Queues(client, args.name), _Instance(client, args.name)
        claims = is_queue and not args.dry_run
        try:
            with closing(_claimed(client, instance, queues) if claims else _read(client, instance)) as letters:
                for letter in letters:
                    source = queues.of(letter)
                    if source is None:
                        left += 1
                        continue
                    if not args.dry_run:
                        _move(client, instance, source, letter)
                    moved += 1
                    progress.add(len(letter.raw_data))
        except KeyboardInterrupt:
            raise Interrupted(f"{moved} letters of {args.name} were moved") from None
    if args.json:
        output.answer({"ok": True, "topic": args.name, "moved": moved, "left": left, "dry_run": args.dry_run})
    elif not args.quiet:
        done = "would go back" if args.dry_run else "went back"
        print(f"{args.name}: {moved:,} letters {done}, {left:,} are no dead letters of its queues and stay")
    return 0


class _Instance:
    """The dead-letter topic as the redrive found it: a seq names a letter of this one only [EPO-1]."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name
        self._found = self._now()

    def _now(self) -> tuple[int, int]:
        told = self._client.call("GET", topic_path(self.name) + "/segments", query={"limit": 1})
        return told["id"], told["epoch"]

    def check(self) -> None:
        """What was read up to now is of this instance, or it is refused."""
        if self._now() != self._found:
            raise TimingError(f"{self.name} was made anew while its letters were read or moved")

    def key(self, seq: int) -> str:
        """Of the copy of a letter."""
        id, epoch = self._found
        return f"redrive:{id}:{epoch}:{seq}"


def _read(client: Client, dead: _Instance) -> Generator[Record, None, None]:
    from_seq = 0
    while True:
        page = client.page(dead.name, from_seq, limit=AT_ONCE)
        dead.check()
        yield from page.records
        if page.caught_up:
            return
        from_seq = page.next_from_seq


class _Queues:
    """Whose letters a topic has: anybody who writes there may say that a record came from anywhere [REC-11]."""

    def __init__(self, client: Client, dead: str) -> None:
        self._client = client
        self._dead = dead
        self._known: dict[str, bool] = {}

    def of(self, letter: Record | Job) -> str | None:
        """The queue that a letter came from; None if it has none that sends its letters here."""
        name = (letter.meta or {}).get(LETTERS[0])
        if not isinstance(name, str):
            return None
        if name not in self._known:
            self._known[name] = self._sends(name)
        return name if self._known[name] else None

    def _sends(self, name: str) -> bool:
        try:
            state = self._client.state(name)
        except (TopicNotFound, CallerError):
            return False
        return state.type == "queue" and state.config.dead_letter == self._dead


def _claimed(client: Client, dead: _Instance, queues: _Queues) -> Generator[Job, None, None]:
    """Letters of a queue, each acked once it is moved; what does not go is given back in the end."""
    held: dict[int, Job] = {}
    node = f"redrive-{socket.gethostname()}"[:NODE_BYTES]
    try:
        while jobs := client.claim(dead.name, node, AT_ONCE).jobs:
            held.update((job.seq, job) for job in jobs)
            dead.check()
            for job in jobs:
                yield job
                if queues.of(job) is not None:
                    client.ack(dead.name, node, [job.seq], [job.lease_id])
                    del held[job.seq]
    finally:
        rest = list(held.values())
        for at in range(0, len(rest), AT_ONCE):
            some = rest[at : at + AT_ONCE]
            client.nack(dead.name, node, [job.seq for job in some], [job.lease_id for job in some])


def _move(client: Client, dead: _Instance, source: str, letter: Record | Job) -> None:
    """A copy under a key of its own, then the letter goes: repeated, nothing is there twice."""
    said = _META.decode(letter.raw_meta or b"{}")
    meta = {name: value for name, value in said.items() if name not in LETTERS}
    node = letter.node if isinstance(letter, Record) else None
    copy = new(letter.raw_data, letter.tag, node, msgspec.json.encode(meta) if meta else None)
    told = {"records": rows([copy]), "idempotency_key": dead.key(letter.seq), "create": False}
    client.call("POST", topic_path(source), told, repeatable=True)
    if isinstance(letter, Record):
        dead.check()  # a seq is all that a delete can say, and a topic made anew has it too
        client.delete(dead.name, seqs=[letter.seq])
