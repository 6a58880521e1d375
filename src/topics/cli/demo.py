"""`topics demo`: a throw-away server under a small realistic load, to look at (11 §2).

A shop: orders that must not be lost, clicks that may, sensors that expire, invoices as jobs of which some never
succeed, routers that copy, readers that follow, runs of pipelines. Everything lies in a directory that is removed at
the end. The server has the main thread; each part of the load is a thread with a connection of its own and a seed, so
that two runs write the same.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from topics.clock import SystemClock
from topics.errors import TopicsError

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
        log = logs.to_stderr(as_json=args.json)
        shop = Shop(port_file, args.seed)
        shop.open()
        try:
            return main.serve(flags, log, quiet=args.quiet, debug=args.debug)
        finally:
            shop.close()
            log.close()


class DemoFailed(TopicsError):
    """The server did not take what was written."""

    code = "demo_failed"


class Caller:
    """One connection, one thread."""

    def __init__(self, host: str, port: int) -> None:
        self._http = http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)

    def call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        """One request and its answer."""
        data = None if body is None else json.dumps(body)
        self._http.request(method, path, data, {} if data is None else {"content-type": "application/json"})
        answer = self._http.getresponse()
        told: dict[str, Any] = json.loads(answer.read())
        if answer.status >= 400:
            raise DemoFailed(f"{method} {path}: {told['error']['code']}: {told['error']['message']}")
        return told

    def write(self, topic: str, *records: dict[str, Any], node: str | None = None) -> None:
        """Append records."""
        self.call("POST", f"/v0/topics/{topic}?return_seqs=false", {"records": list(records), "node": node})

    def follow(self, topic: str, over: threading.Event) -> None:
        """Read a stream until it ends."""
        wid = self.call("POST", "/v0/watch", {"topics": {topic: {"tail": True}}, "heartbeat_ms": 1000})["wid"]
        self._http.request("GET", f"/v0/watch/{wid}")
        answer = self._http.getresponse()
        while not over.is_set() and answer.readline():
            continue

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()


class Shop:
    """Everything that happens, until it is closed."""

    def __init__(self, port_file: Path, seed: int) -> None:
        self._port_file = port_file
        self._seed = seed
        self._clock = SystemClock()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    def open(self) -> None:
        """Begin as soon as the server is ready."""
        self._start(self._begin, "demo")

    def close(self) -> None:
        """End; what is under way comes to nothing, and that is fine."""
        self._over.set()
        for thread in self._threads:
            thread.join(TIMEOUT_S)

    def _start(self, work: Callable[[], None], name: str) -> None:
        def guarded() -> None:
            try:
                work()
            except (OSError, http.client.HTTPException, DemoFailed) as error:
                if not self._over.is_set():
                    print(f"topics demo: {name} ends: {error}", flush=True)

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _wait(self, seconds: float) -> bool:
        """Wait; False when it is over."""
        return not self._over.wait(seconds)

    def _caller(self) -> Caller:
        host, _, port = self._port_file.read_text().strip().rpartition(":")
        return Caller(host.strip("[]"), int(port))

    def _begin(self) -> None:
        waited = 0.0
        while not self._is_ready():
            waited += POLL_S
            if waited > START_S or not self._wait(POLL_S):
                return
        http_ = self._caller()
        self._past(http_, random.Random(self._seed))
        parts = (self._orders, self._clicks, self._sensors, self._readers, self._runs)
        for at, part in enumerate(parts):
            self._start(lambda part=part, at=at: part(self._caller(), random.Random(self._seed + at)), part.__name__)  # type: ignore[misc]
        for number in range(3):
            self._start(lambda number=number: self._worker(self._caller(), "invoices", number), "worker")  # type: ignore[misc]
        self._start(lambda: self._worker(self._caller(), "emails", 9), "worker")
        self._start(lambda: self._caller().follow("orders", self._over), "follower")
        self._start(lambda: self._caller().follow("clicks", self._over), "follower")
        print("topics demo: the shop is open; Ctrl-C ends it and removes everything", flush=True)

    def _is_ready(self) -> bool:
        if not self._port_file.exists():
            return False
        try:
            return bool(self._caller().call("GET", "/v0/ready")["status"] == "ready")
        except DemoFailed:
            return False

    # -- before anybody looks ----------------------------------------------------------------------------------------

    def _past(self, caller: Caller, chance: random.Random) -> None:
        """Topics, routers, and some hours of trade."""
        for name, config in TOPICS.items():
            caller.call("PUT", f"/v0/topics/{name}", config)
        for name, router in ROUTERS.items():
            caller.call("PUT", f"/v0/routers/{name.replace('>', '%3E')}", router)
        for first in range(0, PAST_ORDERS, 200):
            caller.write("orders", *(order(chance, first + at) for at in range(200)), node="shop-1")
            if first % 800 == 0:
                caller.call("POST", "/v0/checkpoint")
        for _ in range(0, PAST_CLICKS, 500):
            caller.write("clicks", *(click(chance) for _ in range(500)), node="web-1")
        caller.call("POST", "/v0/topics/orders/delete", {"before_seq": 300})
        caller.call("POST", "/v0/topics/orders/delete", {"match": "us:customer-1*"})
        caller.call("POST", "/v0/checkpoint")
        now = self._clock.now_ms()
        for hours, job, ok in PAST_RUNS:
            tell_run(caller, chance, job, now - hours * 60 * MINUTE_MS, ok=ok)

    # -- while somebody does -----------------------------------------------------------------------------------------

    def _orders(self, caller: Caller, chance: random.Random) -> None:
        number = PAST_ORDERS
        while self._wait(chance.uniform(0.03, 0.12)):
            number += 1
            caller.write("orders", order(chance, number), node=f"shop-{chance.randint(1, 3)}")
            caller.write("emails", {"data": {"to": f"customer-{chance.randint(1, 90)}@example.org", "order": number}})
            if number % 3 == 0:
                fails = number % 33 == 0
                caller.write(
                    "invoices", {"data": {"order": number, "amount": None if fails else chance.randint(3, 60)}}
                )

    def _clicks(self, caller: Caller, chance: random.Random) -> None:
        while self._wait(chance.uniform(0.05, 0.25)):
            caller.write(
                "clicks", *(click(chance) for _ in range(chance.randint(5, 25))), node=f"web-{chance.randint(1, 2)}"
            )

    def _sensors(self, caller: Caller, chance: random.Random) -> None:
        while self._wait(0.5):
            for oven in range(1, 4):
                reading = {"oven": oven, "celsius": round(chance.gauss(228, 4), 1)}
                caller.write("sensors.oven", {"data": reading, "tag": f"oven:{oven}"})

    def _readers(self, caller: Caller, chance: random.Random) -> None:
        while self._wait(0.4):
            state = caller.call("GET", "/v0/topics/orders?touch=false")
            behind = max(state["head_seq"] - chance.randint(10, 200), 0)
            caller.call("POST", "/v0/topics/orders/diff", {"from_seq": behind, "limit": 200})
            caller.call("POST", "/v0/topics/audit/diff", {"from_seq": 0, "limit": 50})

    def _runs(self, caller: Caller, chance: random.Random) -> None:
        while self._wait(chance.uniform(8, 15)):
            started = self._clock.now_ms()
            run = started_run(caller, chance, "archive", started)
            if self._wait(chance.uniform(3, 6)):
                end_run(caller, chance, run, self._clock.now_ms(), ok=True)

    def _worker(self, caller: Caller, queue: str, number: int) -> None:
        """Takes jobs; an invoice without an amount fails every time."""
        node, chance = f"worker-{number}", random.Random(self._seed + 100 + number)
        while self._wait(0.3):
            jobs = caller.call("POST", f"/v0/topics/{queue}/claim", {"node": node, "max": 4})["claimed"]
            for job in jobs:
                if not self._wait(chance.uniform(0.1, 0.6)):
                    return
                verb = "nack" if job["data"].get("amount", 1) is None else "ack"
                body: dict[str, Any] = {"node": node, "seqs": [job["$seq"]], "lease_ids": [job["lease_id"]]}
                caller.call(
                    "POST", f"/v0/topics/{queue}/{verb}", {**body, "delay_ms": 1500} if verb == "nack" else body
                )


# -- what is written -------------------------------------------------------------------------------------------------


def order(chance: random.Random, number: int) -> dict[str, Any]:
    """One order of the shop."""
    customer = f"customer-{chance.randint(1, 90)}"
    goods = [{"sku": chance.choice(GOODS), "qty": chance.randint(1, 4)} for _ in range(chance.randint(1, 3))]
    data = {"order": number, "customer": customer, "items": goods, "total": round(chance.uniform(3, 48), 2)}
    return {"data": data, "tag": f"{chance.choice(REGIONS)}:{customer}"}


def click(chance: random.Random) -> dict[str, Any]:
    """One page that somebody looked at."""
    data = {"page": chance.choice(PAGES), "ms": chance.randint(20, 900)}
    return {"data": data, "tag": f"visitor:{chance.randint(1, 400)}"}


def started_run(caller: Caller, chance: random.Random, job: str, started_ms: int) -> dict[str, Any]:
    """A job says that it runs (10 K-40)."""
    run = {
        "job": job, "run": f"{job}-{started_ms}-{chance.randint(100, 999)}", "store": "demo",
        "topics": ["orders", "audit"], "started_ms": started_ms, "ended_ms": None, "ok": None, "rows": None,
        "bytes": None, "out": "/srv/lake/orders", "error": None,
    }  # fmt: skip
    caller.write("$pipelines", {"data": run, "tag": job})
    return run


def end_run(caller: Caller, chance: random.Random, run: dict[str, Any], ended_ms: int, *, ok: bool) -> None:
    """And how it ended."""
    rows = chance.randint(2000, 90_000)
    done = {"ended_ms": ended_ms, "ok": ok, "rows": rows if ok else 0, "bytes": rows * 180 if ok else 0}
    error = None if ok else "store_unavailable: the bucket did not answer within 60 s"
    caller.write("$pipelines", {"data": {**run, **done, "error": error}, "tag": run["job"]})


def tell_run(caller: Caller, chance: random.Random, job: str, started_ms: int, *, ok: bool) -> None:
    """A whole run of the past."""
    run = started_run(caller, chance, job, started_ms)
    end_run(caller, chance, run, started_ms + chance.randint(20, 200) * 1000, ok=ok)
