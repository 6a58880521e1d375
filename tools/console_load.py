"""How the console bears up: frames and memory while it tails, a long list that is scrolled, and an idle page.

    python -m tools.console_load                 30 s at 1000 records/s, as [U-33] asks
    python -m tools.console_load --seconds 5

A real server in a process of its own, a real browser. Prints one JSON object; nothing is judged here, because a loaded
machine would be judged with it. Main thread, but for the writer.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, CDPSession, Page, sync_playwright

from topics.testing.httpconn import HttpConn
from topics.testing.serverproc import ServerProcess

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BATCHES_PER_S = 20
TOPICS = 10_000
IDLE_S = 30
SETTLE_S = 25
"""Until a page on which nothing happens has become as slow as it gets."""
COUNT = """() => {
  window.frames_ = []; let last = performance.now();
  const tick = (now) => { window.frames_.push(now - last); last = now; window.handle_ = requestAnimationFrame(tick); };
  window.handle_ = requestAnimationFrame(tick);
}"""
COUNTED = "() => { cancelAnimationFrame(window.handle_); return window.frames_.slice(1); }"
SCROLL = """(ms) => new Promise((resolve) => {
  const box = document.querySelector(".topics-list"); const began = performance.now();
  const step = (now) => { box.scrollTop += 400; if (now - began < ms) requestAnimationFrame(step); else resolve(); };
  requestAnimationFrame(step);
})"""


def frames(gaps: list[float]) -> dict[str, float]:
    """Frames per second: over all, and in the slowest second."""
    per_second, held, at = [], 0, 0.0
    for gap in gaps:
        held, at = held + 1, at + gap
        if at >= 1000:
            per_second.append(held * 1000 / at)
            held, at = 0, 0.0
    slowest = min(per_second) if per_second else 0.0
    late = sorted(gaps)[int(len(gaps) * 0.99)] if gaps else 0.0
    return {"mean": len(gaps) * 1000 / max(sum(gaps), 1), "slowest_second": slowest, "p99_gap_ms": late}


def heap(session: CDPSession) -> float:
    """Live JavaScript heap in MiB, rubbish taken out first."""
    session.send("HeapProfiler.collectGarbage")
    return metric(session, "JSHeapUsedSize") / (1 << 20)


def metric(session: CDPSession, name: str) -> float:
    """One of the browser's own."""
    found = {one["name"]: one["value"] for one in session.send("Performance.getMetrics")["metrics"]}
    return float(found[name])


class Writer(threading.Thread):
    """Writes records at an even rate until it is told to end."""

    def __init__(self, address: tuple[str, int], topic: str, rate: int) -> None:
        super().__init__(daemon=True)
        self._address, self._topic, self._each = address, topic, max(rate // BATCHES_PER_S, 1)
        self.over = threading.Event()
        self.written = 0

    def run(self) -> None:
        """One batch every 50 ms, however long each takes."""
        began, batch = time.monotonic(), 0
        with HttpConn(*self._address) as http:
            while not self.over.wait(max(began + batch / BATCHES_PER_S - time.monotonic(), 0)):
                batch += 1
                data = [{"n": self.written + at, "text": "x" * 100} for at in range(self._each)]
                body = {"records": [{"data": one, "tag": f"t:{at % 7}"} for at, one in enumerate(data)]}
                http.call("POST", f"/v0/topics/{self._topic}", body)
                self.written += self._each


def tailing(page: Page, session: CDPSession, writer: Writer, url: str, seconds: int) -> dict[str, Any]:
    """Follow a topic that is written to."""
    page.goto(f"{url}/console/#/topics/load")
    page.get_by_text("No record yet").wait_for()
    writer.start()
    page.locator(".rec").first.wait_for()
    page.wait_for_timeout(6000)  # until as many rows are kept as ever will be
    heaps = [heap(session)]
    busy = metric(session, "TaskDuration")
    page.evaluate(COUNT)
    for _ in range(max(seconds // 5, 1)):
        page.wait_for_timeout(min(seconds, 5) * 1000)
    gaps = page.evaluate(COUNTED)
    busy = metric(session, "TaskDuration") - busy
    heaps.append(heap(session))
    writer.over.set()
    writer.join()
    return {"records": writer.written, "fps": frames(gaps), "heap_mib": heaps, "main_thread_share": busy / seconds}


def cpu_s(browser: Browser) -> float:
    """Processor time of all processes of the browser."""
    session = browser.new_browser_cdp_session()
    told = session.send("SystemInfo.getProcessInfo")["processInfo"]
    session.detach()
    tasks = [task for one in told for task in Path(f"/proc/{one['id']}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def idle(browser: Browser, page: Page, address: str) -> float:
    """Share of one core that the whole browser uses while nothing happens."""
    page.goto("about:blank")
    if address != "about:blank":
        page.goto(address)
    page.wait_for_timeout(SETTLE_S * 1000)
    before = cpu_s(browser)
    page.wait_for_timeout(IDLE_S * 1000)
    return (cpu_s(browser) - before) / IDLE_S


def scrolling(page: Page, process: ServerProcess, url: str) -> dict[str, Any]:
    """The list of ten thousand topics."""
    with HttpConn(*process.address) as http:
        for number in range(TOPICS):
            http.call("PUT", f"/v0/topics/topic-{number:05}", {"durability": "ephemeral"})
    began = time.monotonic()
    page.goto("about:blank")
    page.goto(f"{url}/console/#/topics")
    page.get_by_role("link", name="topic-00003").wait_for()
    shown_s = time.monotonic() - began
    page.evaluate(COUNT)
    page.evaluate(SCROLL, 5000)
    return {"shown_s": shown_s, "fps": frames(page.evaluate(COUNTED)), "rows": page.locator(".cols.line").count()}


def main() -> int:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m tools.console_load", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=30)
    parser.add_argument("--rate", type=int, default=1000)
    args = parser.parse_args()
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        print("no browser is installed; apt install chromium", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        process = ServerProcess(Path(folder), {})
        try:
            process.wait_ready()
            url = f"http://{process.address[0]}:{process.address[1]}"
            with HttpConn(*process.address) as http:
                http.call("PUT", "/v0/topics/load", {"durability": "ephemeral", "cap_records": 100_000})
            browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1360, "height": 900})
            session = page.context.new_cdp_session(page)
            session.send("Performance.enable")
            told = {
                "idle_share": {
                    one: idle(browser, page, one if one == "about:blank" else f"{url}/console/{one}")
                    for one in ("about:blank", "#/", "#/topics/load")
                },
                "tail": tailing(page, session, Writer(process.address, "load", args.rate), url, args.seconds),
                "list": scrolling(page, process, url),
            }
            browser.close()
        finally:
            process.abandon()
    print(json.dumps(told, indent=2))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
