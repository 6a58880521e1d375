"""Pictures of every page of the console, from the demo: light and dark, wide and narrow.

    make screenshots        into docs/images/console
    python -m tools.screenshots --out DIR

They are looked at by people; nothing compares them. A console error or a failed request ends the run.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "docs/images/console"
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SIZES = {"wide": (1360, 900), "narrow": (380, 800)}
SCHEMES = ("light", "dark")
PAGES = {
    "overview": "#/overview",
    "topics": "#/topics",
    "topic": "#/topics/orders",
    "publish": "#/topics/orders?view=publish",
    "segments": "#/topics/clicks?view=segments",
    "config": "#/topics/invoices?view=config",
    "queues": "#/queues",
    "queue": "#/queues/invoices",
    "routers": "#/routers",
    "pipelines": "#/pipelines",
    "settings": "#/settings",
}
WARM_MS = 45_000
"""Until charts have a shape and a dead letter is there."""
SETTLE_MS = {"topics": 30_000, "queue": 30_000}
SETTLE_LEAST_MS = 4500


@contextmanager
def demo() -> Iterator[str]:
    """The demo's address."""
    command = [sys.executable, "-m", "topics", "demo", "--port", "0", "--json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    try:
        assert process.stderr is not None
        for line in process.stderr:
            told = json.loads(line)
            if told.get("event") == "listening":
                yield told["url"]
                break
    finally:
        process.terminate()
        process.communicate()


def take(browser: Browser, url: str, out: Path, *, warm_ms: int) -> list[str]:
    """All pictures; what went wrong in the browser."""
    wrong: list[str] = []
    pages: dict[tuple[str, str], Page] = {}
    for scheme in SCHEMES:
        for size, (width, height) in SIZES.items():
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.goto(f"{url}/console/")
            pages[scheme, size] = page
    next(iter(pages.values())).wait_for_timeout(warm_ms)
    for name, address in PAGES.items():
        for page in pages.values():
            page.evaluate("(to) => { location.hash = to }", address)
        next(iter(pages.values())).wait_for_timeout(SETTLE_MS.get(name, SETTLE_LEAST_MS))
        for (scheme, size), page in pages.items():
            page.screenshot(path=out / f"{name}-{scheme}-{size}.png")
    return wrong


def main() -> int:
    """Take them."""
    parser = argparse.ArgumentParser(prog="python -m tools.screenshots", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=OUT)
    parser.add_argument("--warm-ms", type=int, default=WARM_MS)
    args = parser.parse_args()
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        print("no browser is installed; apt install chromium", file=sys.stderr)
        return 1
    args.out.mkdir(parents=True, exist_ok=True)
    with demo() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        wrong = take(browser, url, args.out, warm_ms=args.warm_ms)
        browser.close()
    for line in wrong:
        print(line, file=sys.stderr)
    return int(bool(wrong))


if __name__ == "__main__":
    raise SystemExit(main())
