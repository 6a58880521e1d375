"""The console's modules without views, in the browser that runs them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser

from tests.api.kit import Running
from tests.console.kit import Console, visiting


def ask(console: Console, module: str, code: str, *args: Any) -> Any:
    """Evaluate code with a module as `m` and arguments as `a`."""
    page = console.page
    if not page.url.startswith(console.url):
        console.at()
        console.heading("Overview")
    return page.evaluate(
        f"async (a) => {{ const m = await import('/console/lib/{module}.js'); return {code}; }}", list(args)
    )


@pytest.fixture(scope="module")
def console(browser: Browser, server: Running) -> Iterator[Console]:
    """One page for all: nothing here leaves a trace in it."""
    with visiting(browser, server.url) as one:
        yield one


def test_a_percentile_lies_in_its_bucket(console: Console) -> None:
    """Six within 1 ms, four up to 10, two beyond every bound."""
    histogram = {"bounds": [1, 10], "counts": [6, 4, 2], "sum": 0}
    shares = [0.0, 0.25, 0.5, 0.75, 0.9, 1.0]
    found = ask(console, "series", "a[1].map((share) => m.percentile(a[0], share))", histogram, shares)
    assert found == pytest.approx([0.0, 0.5, 1.0, 7.75, 10.0, 10.0])


def test_nothing_has_no_percentile(console: Console) -> None:
    assert ask(console, "series", "m.percentile({bounds: [1], counts: [0, 0], sum: 0}, 0.5)") is None


def test_what_was_counted_before_a_restart_does_not_count(console: Console) -> None:
    now, before = {"bounds": [1], "counts": [3, 0], "sum": 3}, {"bounds": [1], "counts": [9, 2], "sum": 50}
    assert ask(console, "series", "m.between(a[0], a[1])", now, before) == now
    assert ask(console, "series", "m.between(a[1], a[0]).counts", now, before) == [6, 2]
    assert ask(console, "series", "m.perSecond(5, 9, 1000)") is None
    assert ask(console, "series", "m.perSecond(9, 5, 2000)") == 2


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
def test_frames_are_whole_however_they_arrive(console: Console, size: int) -> None:
    """03 §3: cut anywhere, within a character too; heartbeats and the retry line are no frames."""
    text = (
        'retry: 2000\n\nid: abc\nevent: record\ndata: {"a":"ä☃\\n"}\n\n: hb\n\n'
        "id: d\nevent: caught-up\ndata: {}\n\nevent: cut"
    )
    frames = ask(
        console, "sse",
        "(() => { const p = new m.Parser(), b = new TextEncoder().encode(a[0]), out = [];"
        " for (let i = 0; i < b.length; i += a[1]) out.push(...p.feed(b.slice(i, i + a[1]))); return out; })()",
        text, size,
    )  # fmt: skip
    assert frames == [
        {"event": "record", "id": "abc", "data": '{"a":"ä☃\\n"}'},
        {"event": "caught-up", "id": "d", "data": "{}"},
    ]


@pytest.mark.parametrize(
    "text",
    ['{"a":12345678901234567890,"b":[1.5,-0.1234567890123456789]}', '["\\u2028",null,true,{}]', "9007199254740993"],
)
def test_json_is_read_and_written_digit_for_digit(console: Console, text: str) -> None:
    assert ask(console, "json", "m.encode(m.parse(a[0]))", text).replace("\u2028", "\\u2028") == text


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ('{"2":1.0,"1":[2,{"a":"]}"}],"2":"\\\\"}', [("2", "1.0"), ("1", '[2,{"a":"]}"}]'), ("2", '"\\\\"')]),
        (' { "a\\"b" : "x,\\"y\\\\\\"" , "c":{ } } ', [('a"b', '"x,\\"y\\\\\\""'), ("c", "{ }")]),
        ('[[],{"a":1},"b:c"]', [("", "[]"), ("", '{"a":1}'), ("", '"b:c"')]),
        ("{}", []),
        ("[ ]", []),
        ('"a:b,c"', []),
    ],
)
def test_what_is_sent_on_is_taken_apart_as_it_was_written(
    console: Console, text: str, parts: list[tuple[str, str]]
) -> None:
    found = ask(console, "json", "m.parts(a[0])", text)
    assert [(part["name"], part["value"]) for part in found] == parts
    assert all(part["whole"].endswith(part["value"]) for part in found)


def test_a_preview_is_short_whatever_it_shows(console: Console) -> None:
    deep = "(() => { let one = 1; for (let n = 0; n < 900; n++) one = [one]; return one; })()"
    assert len(ask(console, "json", f"m.preview({deep}, 50)")) <= 51
    assert len(ask(console, "json", "m.preview({a: 'x'.repeat(1e6)}, 50)")) <= 51
    assert ask(console, "json", "m.preview({a: [1, 'b', null]})") == '{"a":[1,"b",null]}'


AMOUNTS = (
    ("90s", "ms", 90_000), ("1.5 h", "ms", 5_400_000), ("2d", "ms", 172_800_000), ("5", "ms", 5), ("", "ms", None),
    ("64Mi", "bytes", 67_108_864), ("1MiB", "bytes", 1_048_576), ("10k", "count", 10_000), ("x", "ms", None),
    ("-1", "count", None), ("1e3", "count", None), ("9" * 20, "count", None), ("5 parsecs", "ms", None),
)  # fmt: skip


def test_amounts_are_read_as_people_write_them(console: Console) -> None:
    found = ask(console, "format", "a[0].map(([text, kind]) => m.amount(text, kind))", [one[:2] for one in AMOUNTS])
    assert found == [value for *_, value in AMOUNTS]


def test_rows_drop_the_oldest_and_keep_their_order(console: Console) -> None:
    code = (
        "(() => { const r = new m.Rows(3); for (let n = 1; n <= 5; n++) r.push(m.gapRow(n, n, 'x'));"
        " return [r.length, r.dropped, [0, 1, 2].map((at) => r.at(at).from)]; })()"
    )
    assert ask(console, "rows", code) == [3, 2, [3, 4, 5]]


def test_what_is_evicted_or_lost_is_not_called_deleted(console: Console) -> None:
    """Deleted is what somebody asked for; a segment's share of it leaves out what a cap took, and lost segments."""
    plan = {"floors": {"cap": 51, "ttl": 1, "deleted_below": 1}}
    segments = [
        {"first_seq": 1, "last_seq": 100, "records": 40, "gap": None},
        {"first_seq": 101, "last_seq": 200, "records": 100, "gap": None},
        {"first_seq": 201, "last_seq": 300, "records": 0, "gap": "crash"},
        {"first_seq": 301, "last_seq": 400, "records": 0, "gap": "deleted"},
    ]
    shares = ask(console, "../ui/ruler", "a[1].map((one) => m.deadShare(one, a[0]))", plan, segments)
    assert shares == pytest.approx([0.2, 0, 0, 1])


def test_a_graph_with_a_cycle_has_a_place_for_every_topic(console: Console) -> None:
    edges = [{"router": f"{a}{b}", "source": a, "dest": b} for a, b in (("a", "b"), ("b", "c"), ("c", "a"), ("a", "d"))]
    code = (
        "(({nodes, width, height}) => [[...nodes.values()].map((n) => `${n.x},${n.y}`), width, height])(m.layout(a[0]))"
    )
    places, width, height = ask(console, "graph", code, edges)
    assert len(set(places)) == 4
    assert width > 0
    assert height > 0


POLLED = """(async () => {
  const real = window.setTimeout, every = 1234567, waits = [], ending = new AbortController();
  let asked = 0;
  window.setTimeout = (call, ms, ...more) => {
    if (ms % every) return real(call, ms, ...more);
    const slow = waits.push(ms / every) && ms > every;
    // What is slow for the twelfth time is woken; everything else comes at once.
    queueMicrotask(slow && asked === 12 ? m.stir : call);
    return 0;
  };
  const ask = async () => {
    asked += 1;
    if (asked === 20) ending.abort();
    return { now_ms: asked, head_seq: asked < 16 ? 1 : asked };
  };
  await m.polling(ask, every, () => undefined, ending.signal);
  window.setTimeout = real;
  return waits;
})()"""


def test_what_stays_the_same_is_asked_for_less_often_until_something_happens(console: Console) -> None:
    """[U-33] Five times slower at most; a time alone is no change. Woken, and when it changes, it is quick again."""
    slower = [1, 1, 1, 1] + [1, 1] + [1, 2] + [1, 3] + 5 * [1, 4]
    assert ask(console, "poll", POLLED) == slower + 7 * [1]
