"""Tables in Markdown, made from the stored results and from nothing else [P-1].

    docs/performance.md    between `<!-- figures: NAME -->` and `<!-- /figures -->`: every figure of a benchmark
                           between `<!-- missed -->` and `<!-- /missed -->`: every bound that does not hold
                           between `<!-- soak -->` and `<!-- /soak -->`: what half an hour under everything showed
    README.md              between `<!-- bench -->` and `<!-- /bench -->`: what decides, beside whom, won or lost

`python -m bench keep` stores results in docs/data and renews both; a test compares them with what the data say. Runs
without the kernel are stored beside those with it, as `NAME_pure`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import judge, report
from bench.machine import ROOT
from bench.measure import PEERS

DATA = ROOT / "docs/data"
PAGE = ROOT / "docs/performance.md"
README = ROOT / "README.md"
_FIGURES = re.compile(r"(<!-- figures: (\w+) -->\n).*?(<!-- /figures -->)", re.DOTALL)
_BENCH = re.compile(r"(<!-- bench -->\n).*?(<!-- /bench -->)", re.DOTALL)
_MISSED = re.compile(r"(<!-- missed -->\n).*?(<!-- /missed -->)", re.DOTALL)
_SOAK = re.compile(r"(<!-- soak -->\n).*?(<!-- /soak -->)", re.DOTALL)
SOAK = "soak.json"
"""What is stored of a soak: all but its curves."""

Results = Mapping[str, Mapping[str, Any]]


class Row(NamedTuple):
    """A row of the README: the figure of a group that begins like this."""

    what: str
    beside: str
    bench: str
    group: str
    figure: str


ONE, HUNDRED = "one-record writes, 64 connections", "100-record writes, 16 connections"
THREADS = "always, 8 threads"
MILLION, MILLIONS = "records kept", "ten times as many"
ROWS = (
    Row(ONE, "Redis Streams, `everysec`: rate", "http_write", "one record", "rate beside Redis"),
    Row(ONE, "NATS JetStream: rate", "http_write", "one record", "rate beside NATS"),
    Row(ONE, "the HTTP layer alone: CPU", "http_write", "one record", "CPU of a write"),
    Row(ONE, "Redis Streams: CPU", "http_write", "one record", "CPU beside Redis"),
    Row(HUNDRED, "Redis Streams, pipelined: rate", "http_write", "100 records", "rate beside Redis"),
    Row(HUNDRED, "NATS JetStream, pipelined: rate", "http_write", "100 records", "rate beside NATS"),
    Row("durable writes, 64 connections", "Redis, `always`: rate", "http_commit", "64 writers", "rate beside Redis"),
    Row("durable writes, 64 connections", "NATS, `sync always`: rate", "http_commit", "64 writers", "rate beside NATS"),
    Row("durable writes, 64 connections", "our own `disk`: rate", "http_commit", "64 writers", "fsync beside disk"),
    Row("durable writes, 64 connections", "Redis: CPU", "http_commit", "64 writers", "CPU beside Redis"),
    Row("a lone durable writer", "Redis, `always`: p50", "http_commit", "lone writer", "p50 beside Redis"),
    Row("a lone durable writer", "NATS, `sync always`: p50", "http_commit", "lone writer", "p50 beside NATS"),
    Row("reads of 1000 records", "`pread` and send: CPU", "http_read", "diff, limit 1000", "CPU beside pread and send"),
    Row("a delivery to 1000 streams", "a loop of writes: CPU", "sse", "SSE, 1000", "CPU per delivery"),
    Row("write to delivery, `disk`", "p50 in ms", "delivery", "delivery, disk, 1 ", "p50 ms"),
    Row("jobs: put, claim, ack", "Redis lists, one by one: rate", "queue", "produce", "rate beside Redis"),
    Row("jobs: put, claim, ack", "Redis lists, pipelined: rate", "queue", "produce", "rate beside Redis, pipelined"),
    Row("ten routers", "no routers: p50 of the answer", "routers", "fan-out of 10, without", "p50 of the answer"),
    Row("writes beside cold reads", "the same alone: p99", "cold", "cold reads", "p99 of writes"),
    Row("durable `topics.wal`, 8 threads", "a raw loop, all cores: rate", "wal_policies", "durable appends", THREADS),
    Row("durable `topics.wal`, 8 threads", "a raw loop, one core: rate", "wal_policies", "durable appends on", THREADS),
    Row("memory of 1 M records", "Redis", "retained", MILLION, "memory beside Redis"),
    Row("memory of 1 M records", "NATS", "retained", MILLION, "memory beside NATS"),
    Row("memory of 1 M records just written", "NATS", "retained", MILLION, "memory at once beside NATS"),
    Row("memory of 10 M records", "Redis", "retained", MILLIONS, "memory beside Redis"),
    Row("memory of 10 M records", "NATS", "retained", MILLIONS, "memory beside NATS"),
    Row("memory of 10 M records just written", "NATS", "retained", MILLIONS, "memory at once beside NATS"),
    Row("10 M sealed records", "bytes of memory each", "engine_memory", "memory", "bytes per record"),
    Row("restart with 1 M records", "Redis", "retained", MILLION, "restart beside Redis"),
    Row("restart with 1 M records", "NATS", "retained", MILLION, "restart beside NATS"),
    Row("restart with 10 M records", "Redis", "retained", MILLIONS, "restart beside Redis"),
    Row("restart with 10 M records", "NATS", "retained", MILLIONS, "restart beside NATS"),
    Row("recovery after a kill", "reading it", "engine_recovery", "recovery of", "open beside one XXH3 per frame"),
    Row("Spark, all columns", "Parquet: rate", "spark", "all columns", "with checksums, rate beside Parquet"),
    Row("Spark, count", "Parquet: rate", "spark", "counts", "count, rate beside Parquet"),
    Row("Spark, group by tag", "Parquet: rate", "spark", "counts", "group by, rate beside Parquet"),
    Row("archive to Parquet, 1 KiB", "MiB/s of a core", "archive", "", "1 KiB: MiB/s of a core"),
)  # fmt: skip


def stored(data: Path = DATA) -> Results:
    """The results that are kept."""
    paths = [path for path in sorted(data.glob("*.json")) if path.name != SOAK]
    found = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    return {name_of(result): result for result in found}


def name_of(result: Mapping[str, Any]) -> str:
    """What a result is stored as."""
    return str(result["bench"]) + ("_pure" if _kernel(result) == "pure" else "")


def _kernel(result: Mapping[str, Any]) -> str | None:
    """The one that it was measured with; None: it has nothing to do with one."""
    found: str | None = result["versions"].get("topics kernel")
    return found


def renew(results: Results) -> list[Path]:
    """Rewrite both pages; those that changed."""
    changed = []
    for path in (PAGE, README):
        before = path.read_text(encoding="utf-8")
        after = page(before, results, soaked()) if path == PAGE else readme(before, results)
        if after != before:
            path.write_text(after, encoding="utf-8")
            changed.append(path)
    return changed


def soaked(data: Path = DATA) -> Mapping[str, Any] | None:
    """The soak that is kept."""
    path = data / SOAK
    found: Mapping[str, Any] | None = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    return found


def page(text: str, results: Results, soak: Mapping[str, Any] | None = None) -> str:
    """The page of figures with its tables anew; every stored result has to have its place."""
    places = {found[2] for found in _FIGURES.finditer(text)}
    missing = sorted(set(results) - places)
    assert not missing, f"docs/performance.md has no place for {', '.join(missing)}"

    def table(found: re.Match[str]) -> str:
        inside = figures(results[found[2]]) if found[2] in results else "No run of this is stored yet.\n"
        return f"{found[1]}\n{inside}\n{found[3]}"

    text = _FIGURES.sub(table, text)
    text = _MISSED.sub(lambda found: f"{found[1]}\n{missed(results)}\n{found[2]}", text)
    return _SOAK.sub(lambda found: f"{found[1]}\n{soak_table(soak)}\n{found[2]}", text)


def readme(text: str, results: Results) -> str:
    """The README with its table anew."""
    assert _BENCH.search(text), "README.md has no place for the table"
    return _BENCH.sub(lambda found: f"{found[1]}\n{headlines(results)}\n{found[2]}", text)


# -- tables ----------------------------------------------------------------------------------------------------------


def figures(result: Mapping[str, Any]) -> str:
    """A table for each group of a benchmark, and where they are from."""
    tables = [_group(group) for group in result["groups"]]
    kernel, name = _kernel(result), name_of(result)
    with_kernel = f", {kernel} kernel" if kernel else ""
    when = result["started"][:10]
    link = f"[{name}.json](data/{name}.json)"
    return "\n".join([*tables, f"{link}: {when}, commit `{result['commit']}`{with_kernel}.\n"])


def _group(group: Mapping[str, Any]) -> str:
    lines = [f"| {_cell(group['name'])} | kind | figure | low – high | bound | holds |", "|---|---|---|---|---|---|"]
    for figure in group["figures"]:
        kind = figure["kind"] if figure["against"] else "value"
        lines.append(f"| {_cell(figure['name'])} | {kind} | {_measured(figure)} | {_bound(figure)} |")
    return "\n".join(lines) + "\n"


def _measured(figure: Mapping[str, Any]) -> str:
    if "median" not in figure:
        return "rejected |"
    return f"{figure['median']:.3g}{_sign(figure)} | {figure['low']:.3g} – {figure['high']:.3g}"


def _sign(figure: Mapping[str, Any]) -> str:
    return "×" if figure["against"] else ""


def _bound(figure: Mapping[str, Any]) -> str:
    if figure["bound"] is None:
        return "|"
    return f"{report.bound_text(figure)} | {HOLDS[figure['holds']]}"


HOLDS = {True: "yes", False: "**no**", None: "unknown"}


def missed(results: Results) -> str:
    """Every bound that does not hold, or of which nothing is known."""
    lines = ["| benchmark | figure | seen | bound |", "|---|---|---|---|"]
    for name, group, figure in _bounded(results):
        if not figure["holds"]:
            what = f"{_cell(group['name'])}: {_cell(figure['name'])}"
            seen = f"{figure['median']:.3g}{_sign(figure)}" if "median" in figure else "rejected"
            lines.append(f"| {name} | {what} | {seen} | {report.bound_text(figure)} |")
    return "\n".join(lines) + "\n" if len(lines) > 2 else "All bounds hold.\n"


def _bounded(results: Results) -> Iterator[tuple[str, Mapping[str, Any], Mapping[str, Any]]]:
    for name, result in results.items():
        for group in result["groups"]:
            yield from ((name, group, figure) for figure in group["figures"] if figure["bound"] is not None)


def soak_table(soak: Mapping[str, Any] | None) -> str:
    """What a soak showed: its first and last third, what was done, and its verdict."""
    if soak is None:
        return "No soak is stored yet.\n"
    lines = ["| | first third | last third | |", "|---|---|---|---|"]
    for name, (first, last) in soak["p99_ms"].items():
        lines.append(f"| p99 of {name}, ms | {first:.3g} | {last:.3g} | {last / first:.3g}× |")
    lines += ["", "| | middle third | last third |", "|---|---|---|"]
    lines += [f"| {name} | {middle:.4g} | {last:.4g} |" for name, (middle, last) in soak["held"].items()]
    done = ", ".join(f"{count:,} {name}" for name, count in sorted(soak["done"].items()))
    verdict = [f"**Failed:** {one}." for one in soak["failures"]] + [f"Not judged: {one}." for one in soak["rejected"]]
    said = " ".join(verdict) or "It passed."
    kind = f"{soak['seconds'] / 60:g} minutes, {soak['started'][:10]}, commit `{soak['commit']}`"
    said = f"{said} {soak['errors']} errors; {done}."
    return "\n".join([*lines, "", said, "", f"[{SOAK}](data/{SOAK}): {kind}.", ""])


def headlines(results: Results) -> str:
    """The table of the README."""
    lines = ["| | beside | ours | low – high | must be | |", "|---|---|---|---|---|---|"]
    missing: dict[str, None] = {}
    told = []
    for row in ROWS:
        figure = _find(results, row)
        if figure is None:
            missing[row.what] = None
            continue
        told.append(figure)
        lines.append(_line(row.what, row.beside, figure))
    lines += [
        _line(group["name"], figure["name"], figure)
        for _, group, figure in _bounded({name: one for name, one in results.items() if _kernel(one) != "pure"})
        if not figure["holds"] and figure not in told
    ]
    said = [*lines, "", _sentence([result for result in results.values() if _kernel(result) != "pure"])]
    if missing:
        said += ["", f"Not stored yet: {'; '.join(missing)}."]
    return "\n".join(said) + "\n"


def _line(what: str, beside: str, figure: Mapping[str, Any]) -> str:
    cells = (what, beside, _measured(figure), report.bound_text(figure), _won(figure))
    return "| " + " | ".join(cells) + " |"


def _sentence(results: Sequence[Mapping[str, Any]]) -> str:
    machines = sorted({f"{one['machine']['cores']} cores of {one['machine']['cpu']}" for one in results})
    return (
        f"Ratios against what ran in turn with it on {', '.join(machines)} (native kernel). Of rates "
        "more is better, of times, CPU and memory less. [All figures](docs/performance.md), with what they mean."
    )


def _find(results: Results, row: Row) -> Mapping[str, Any] | None:
    for group in results.get(row.bench, {"groups": []})["groups"]:
        if group["name"].startswith(row.group):
            for figure in group["figures"]:
                if figure["name"] == row.figure:
                    found: Mapping[str, Any] = figure
                    return found
    return None


def _won(figure: Mapping[str, Any]) -> str:
    """Whether a bound holds, and who of us and a peer is ahead."""
    if "median" not in figure:
        return "rejected: the machine did not hold still"
    said = [] if figure["bound"] is None else ["holds" if figure["holds"] else "**missed**"]
    if str(figure["against"]).startswith(PEERS):
        is_ahead = figure["median"] >= 1 if figure["kind"] == "rate" else figure["median"] <= 1
        said.append("ahead" if is_ahead else "**behind**")
    return ", ".join(said)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def keep(names: Sequence[str], source: Path, data: Path = DATA) -> Iterator[Path]:
    """Store results of full runs; those that were stored."""
    for path in sorted(source.glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        if result.get("soak") and (not names or "soak" in names):
            (data / SOAK).write_text(_summary(result), encoding="utf-8")
            yield data / SOAK
        if "groups" not in result or (names and result["bench"] not in names):
            continue
        if result["quick"]:
            raise ValueError(f"{path.name} is of a quick run, which says nothing of speed")
        kept = data / f"{name_of(result)}.json"
        kept.write_bytes(path.read_bytes())
        yield kept


def _summary(soak: Mapping[str, Any]) -> str:
    """A soak without its curves."""
    ends = {name: judge.later(values) for name, values in soak["p99_ms"].items()}
    grown = {
        name: judge.growth([value for _, value in soak["series"][name]], floor)
        for name, floor in (("own memory", judge.FLOORS["memory"]), ("descriptors", 0.0), ("threads", 0.0))
    }
    scale = {"own memory": 1 << 20}
    kept = ("soak", "seconds", "seed", "settings", "started", "machine", "commit", "versions", "done", "happened")
    told = {
        **{name: soak[name] for name in (*kept, "failures", "rejected")},
        "errors": len(soak["errors"]),
        "p99_ms": {name: [round(end.first, 3), round(end.last, 3)] for name, end in ends.items() if end is not None},
        "held": {
            name + (", MiB" if name in scale else ""): [
                round(found.middle / scale.get(name, 1), 2),
                round(found.last / scale.get(name, 1), 2),
            ]
            for name, found in grown.items()
            if found is not None
        },
    }
    return json.dumps(told, indent=1, ensure_ascii=False) + "\n"
