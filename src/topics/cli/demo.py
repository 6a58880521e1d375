"""`topics demo`: a throw-away server under a small realistic load, to look at (11 §2).

A shop: orders that must not be lost, clicks that may, sensors that expire, invoices as jobs of which some never
succeed, routers that copy, readers that follow, runs of pipelines. Everything lies in a directory that is removed at
the end. The server has the main thread; each part of the load is a thread with a seed of its own, so that two runs
write the same, and all of them share a client.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

from topics.client.body import topic_path
from topics.client.sync import Client
from topics.clock import SystemClock
from topics.errors import TopicsError
from topics.model import NewRecord, new

log = logging.getLogger("topics.demo")

OPEN: Final = "topics demo: the shop is open; Ctrl-C ends it and removes everything"
PORT: Final = 4000
START_S: Final = 60.0
POLL_S: Final = 0.02
TIMEOUT_S: Final = 30.0
SEGMENT_RECORDS: Final = "500"
"""Small, so that there are several to look at."""
PAST_ORDERS: Final = 2400
PAST_CLICKS: Final = 6000
REGIONS: Final = ("eu", "us", "ap")
GOODS: Final = ("rye loaf", "spelt loaf", "croissant", "pretzel", "baguette", "oat bread")
PAGES: Final = ("/", "/breads", "/breads/rye", "/cart", "/checkout", "/account")
TOPICS: Final[dict[str, dict[str, Any]]] = {
    "orders": {"durability": "fsync"},
    "clicks": {"cap_records": 4000},
    "sensors.oven": {"durability": "memory", "ttl_ms": 120_000},
    "invoices": {"type": "queue", "lease_ms": 8000, "max_deliveries": 3, "dead_letter": "invoices.dead"},
    "emails": {"type": "queue", "lease_ms": 15_000, "durability": "memory"},
}
ROUTERS: Final[dict[str, dict[str, Any]]] = {
    "orders->orders.eu": {"source": "orders", "dest": "orders.eu", "filter": "eu:*"},
    "orders->audit": {"source": "orders", "dest": "audit", "guarantee": "exactly_once"},
    "orders.eu->kitchen.berlin": {"source": "orders.eu", "dest": "kitchen.berlin"},
}
PAST_RUNS: Final = ((9, "archive", True), (6, "archive", True), (5, "verify-export", True), (3, "archive", False))
"""Hours ago, job, whether it ended well."""
MINUTE_MS: Final = 60_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--port", metavar="PORT", type=int, default=PORT, help="port; default 4000, 0 picks one")
    parser.add_argument("--seed", metavar="N", type=int, default=1, help="of what is written; default 1")


def run(args: argparse.Namespace) -> int:
    from topics.server import logs, main

    for name in [name for name in os.environ if name.startswith("TOPICS_")]:
        del os.environ[name]  # of another server; this one has no keys and lies elsewhere
    with tempfile.TemporaryDirectory(prefix="topics-demo-") as folder:
        port_file = Path(folder, "port")
        flags = {
            "TOPICS_PORT": str(args.port),
            "TOPICS_DATA_DIR": str(Path(folder, "data")),
            "TOPICS_PORT_FILE": str(port_file),
            "TOPICS_SEGMENT_MAX_EVENTS": SEGMENT_RECORDS,
        }
        to = logs.to_stderr(as_json=args.json)
        shop = Shop(port_file, args.seed, as_json=args.json)
        shop.open()
        try:
            return main.serve(flags, to, quiet=args.quiet, debug=args.debug)
        finally:
            shop.close()
            to.close()


class Shop:
    """Everything that happens, until it is closed."""

    def __init__(self, port_file: Path, seed: int, *, as_json: bool) -> None:
        self._port_file = port_file
        self._seed = seed
        self._as_json = as_json
        self._clock = SystemClock()
        self._over = threading.Event()
        self._client: Client | None = None
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Begin as soon as the server is ready."""
        self._start(self._begin, "demo")

    def close(self) -> None:
        """End; what is under way comes to nothing, and that is fine."""
        self._over.set()
        if self._client is not None:
            self._client.close()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _start(self, work: Callable[[], None], name: str) -> None:
        def guarded() -> None:
            try:
                work()
            except (OSError, TopicsError) as error:
                if not self._over.is_set():
                    log.warning("%s ends: %s", name, error)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait(self, seconds: float) -> bool:
        """Wait; False when it is over."""
        return not self._over.wait(seconds)

    def _begin(self) -> None:
        waited = 0.0
        while not self._port_file.exists():
            waited += POLL_S
            if waited > START_S or not self._wait(POLL_S):
                return
        # A server that is not ready yet is asked again by the client.
        url = f"http://{self._port_file.read_text().strip()}"
        client = self._client = Client(url)
        self._past(client, random.Random(self._seed))
        for at, part in enumerate((self._orders, self._clicks, self._sensors, self._readers, self._runs)):
            self._start(partial(part, client, random.Random(self._seed + at)), part.__name__)
        for number, queue in enumerate(("invoices", "invoices", "invoices", "emails")):
            self._start(partial(self._worker, client, queue, number), "worker")
        for topic in ("orders", "clicks"):
            self._start(partial(self._follow, client, topic), "follower")
        told = json.dumps({"ok": True, "url": url, "seed": self._seed})
        print(told if self._as_json else OPEN, flush=True)

    # -- before anybody looks ----------------------------------------------------------------------------------------

    def _past(self, client: Client, chance: random.Random) -> None:
        """Topics, routers, and some hours of trade."""
        for name, config in TOPICS.items():
            client.create(name, **config)
        for name, router in ROUTERS.items():
            client.route(name, **router)
        for first in range(0, PAST_ORDERS, 200):
            client.append_many("orders", [order(chance, first + at) for at in range(200)], node="shop-1")
            if first % 800 == 0:
                client.checkpoint()
        for _ in range(0, PAST_CLICKS, 500):
            client.append_many("clicks", [click(chance) for _ in range(500)], node="web-1")
        client.delete("orders", before_seq=300)
        client.delete("orders", match="us:customer-1*")
        client.checkpoint()
        now = self._clock.now_ms()
        for hours, job, ok in PAST_RUNS:
            tell_run(client, chance, job, now - hours * 60 * MINUTE_MS, ok=ok)

    # -- while somebody does -----------------------------------------------------------------------------------------

    def _orders(self, client: Client, chance: random.Random) -> None:
        number = PAST_ORDERS
        while self._wait(chance.uniform(0.03, 0.12)):
            number += 1
            client.append_many("orders", [order(chance, number)], node=f"shop-{chance.randint(1, 3)}")
            client.append("emails", {"to": f"customer-{chance.randint(1, 90)}@example.org", "order": number})
            if number % 3 == 0:
                amount = None if number % 33 == 0 else chance.randint(3, 60)
                client.append("invoices", {"order": number, "amount": amount})

    def _clicks(self, client: Client, chance: random.Random) -> None:
        while self._wait(chance.uniform(0.05, 0.25)):
            clicks = [click(chance) for _ in range(chance.randint(5, 25))]
            client.append_many("clicks", clicks, node=f"web-{chance.randint(1, 2)}")

    def _sensors(self, client: Client, chance: random.Random) -> None:
        while self._wait(0.5):
            for oven in range(1, 4):
                reading = {"oven": oven, "celsius": round(chance.gauss(228, 4), 1)}
                client.append("sensors.oven", reading, tag=f"oven:{oven}")

    def _readers(self, client: Client, chance: random.Random) -> None:
        while self._wait(0.4):
            told = client.call("GET", topic_path("orders"), query={"touch": False})
            client.page("orders", max(told["head_seq"] - chance.randint(10, 200), 0), limit=200)
            client.page("audit", limit=50)

    def _follow(self, client: Client, topic: str) -> None:
        """Take what comes, until the client is closed."""
        with client.watch({topic: "tail"}) as events:
            for _ in events:
                continue

    def _runs(self, client: Client, chance: random.Random) -> None:
        while self._wait(chance.uniform(8, 15)):
            run = started_run(client, chance, "archive", self._clock.now_ms())
            if self._wait(chance.uniform(3, 6)):
                end_run(client, chance, run, self._clock.now_ms(), ok=True)

    def _worker(self, client: Client, queue: str, number: int) -> None:
        """Takes jobs; an invoice without an amount fails every time."""
        chance = random.Random(self._seed + 100 + number)
        with client.queue(queue).worker(f"worker-{number}", 4) as jobs:
            for job in jobs:
                if not self._wait(chance.uniform(0.1, 0.6)):
                    return
                if job.data.get("amount", 1) is None:
                    jobs.nack(job, delay_ms=1500)


# -- what is written -------------------------------------------------------------------------------------------------


def order(chance: random.Random, number: int) -> NewRecord:
    """One order of the shop."""
    customer = f"customer-{chance.randint(1, 90)}"
    goods = [{"sku": chance.choice(GOODS), "qty": chance.randint(1, 4)} for _ in range(chance.randint(1, 3))]
    data = {"order": number, "customer": customer, "items": goods, "total": round(chance.uniform(3, 48), 2)}
    return new(data, tag=f"{chance.choice(REGIONS)}:{customer}")


def click(chance: random.Random) -> NewRecord:
    """One page that somebody looked at."""
    data = {"page": chance.choice(PAGES), "ms": chance.randint(20, 900)}
    return new(data, tag=f"visitor:{chance.randint(1, 400)}")


def started_run(client: Client, chance: random.Random, job: str, started_ms: int) -> dict[str, Any]:
    """A job says that it runs (10 K-40)."""
    run = {
        "job": job, "run": f"{job}-{started_ms}-{chance.randint(100, 999)}", "store": "demo",
        "topics": ["orders", "audit"], "started_ms": started_ms, "ended_ms": None, "ok": None, "rows": None,
        "bytes": None, "out": "/srv/lake/orders", "error": None,
    }  # fmt: skip
    client.append("$pipelines", run, tag=job)
    return run


def end_run(client: Client, chance: random.Random, run: dict[str, Any], ended_ms: int, *, ok: bool) -> None:
    """And how it ended."""
    rows = chance.randint(2000, 90_000)
    done = {"ended_ms": ended_ms, "ok": ok, "rows": rows if ok else 0, "bytes": rows * 180 if ok else 0}
    error = None if ok else "store_unavailable: the bucket did not answer within 60 s"
    client.append("$pipelines", {**run, **done, "error": error}, tag=run["job"])


def tell_run(client: Client, chance: random.Random, job: str, started_ms: int, *, ok: bool) -> None:
    """A whole run of the past."""
    run = started_run(client, chance, job, started_ms)
    end_run(client, chance, run, started_ms + chance.randint(20, 200) * 1000, ok=ok)
