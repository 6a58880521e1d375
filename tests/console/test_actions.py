"""What can be done: topics, records, routers, queues; each shows in the server, and refusals where they happened."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.console.kit import Console, ok, put, write


def test_a_topic_is_created_configured_and_deleted(console: Console, client: httpx.Client) -> None:
    """A PUT replaces all of a configuration [CFG-1], so what was not touched must be sent as it was."""
    page = console.at("#/topics")
    page.get_by_role("button", name="New topic").click()
    name = page.get_by_label("Name")
    name.fill("-bad")
    expect(page.get_by_text("Letters and digits first")).to_be_visible()
    name.fill("made.here")
    page.get_by_label("Durability").select_option("fsync")
    page.get_by_role("button", name="Create").click()
    console.heading("made.here")
    assert ok(client.get("/v0/topics/made.here"))["config"]["durability"] == "fsync"
    put(client, "made.here", durability="fsync", cap_records=77)
    page.get_by_role("link", name="Configuration").click()
    expect(page.get_by_label("Records at most")).to_have_value("77")
    page.get_by_label("Time to live").fill("banana")
    expect(page.get_by_text("A time, such as 90s or 2h.")).to_be_visible()
    expect(page.get_by_role("button", name="Save")).to_have_attribute("aria-disabled", "true")
    page.get_by_label("Time to live").fill("90s")
    expect(page.get_by_text("1 min 30 s")).to_be_visible()
    page.get_by_role("button", name="Save").click()
    expect(page.get_by_text("Saved. It is in force.")).to_be_visible()
    config = ok(client.get("/v0/topics/made.here"))["config"]
    assert (config["ttl_ms"], config["cap_records"], config["durability"]) == (90_000, 77, "fsync")
    console.allowed = ("404",)
    page.get_by_role("button", name="Delete topic").click()
    button = page.get_by_role("button", name="Delete for good")
    expect(button).to_have_attribute("aria-disabled", "true")
    page.get_by_label("Type made.here to confirm").fill("made.here")
    button.click()
    console.heading("Topics")
    assert client.get("/v0/topics/made.here").status_code == 404


def test_a_topic_is_deleted_from_the_list_after_its_name_was_typed(console: Console, client: httpx.Client) -> None:
    put(client, "listed")
    page = console.at("#/topics")
    page.get_by_role("button", name="delete listed").click()
    page.get_by_label("Type listed to confirm").fill("listed")
    page.get_by_label("Type listed to confirm").press("Enter")
    expect(page.get_by_role("link", name="listed")).to_have_count(0)
    assert client.get("/v0/topics/listed").status_code == 404


def test_records_are_deleted_by_tag_after_a_preview(console: Console, client: httpx.Client) -> None:
    """[DLR-4] The preview deletes nothing, and another selection needs another one."""
    put(client, "tagged")
    for n in range(10):
        write(client, "tagged", n, tag=f"{'a' if n < 4 else 'b'}:{n}")
    page = console.at("#/topics/tagged?view=delete")
    button = page.locator("form").get_by_role("button", name="Delete")
    page.get_by_label("Tag").fill("a:*")
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.get_by_text("4 of 10 live records would go.")).to_be_visible()
    assert ok(client.get("/v0/topics/tagged"))["count"] == 10
    page.get_by_label("Tag").fill("b:*")
    expect(button).to_have_attribute("aria-disabled", "true")
    page.get_by_label("Before seq").fill("8")
    page.get_by_role("button", name="Preview", exact=True).click()
    page.get_by_role("button", name="Delete 3 records").click()
    expect(page.get_by_text("3 records are deleted, 7 are left.")).to_be_visible()
    assert ok(client.get("/v0/topics/tagged"))["count"] == 7
    console.allowed = ("404",)
    ok(client.delete("/v0/topics/tagged"))
    page.get_by_role("button", name="Preview", exact=True).click()
    expect(page.locator("form").get_by_role("alert")).to_contain_text("topic_not_found")


def test_routers_are_added_drawn_and_removed(console: Console, client: httpx.Client) -> None:
    page = console.at("#/routers")
    page.get_by_role("button", name="New router").click()
    page.get_by_label("From topic").fill("a")
    page.get_by_label("To topic").fill("b")
    page.get_by_label("Only tags").fill("eu:*")
    page.get_by_label("Guarantee").select_option("exactly_once")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("row", name="a->b")).to_be_visible()
    expect(page.locator(".graph .node")).to_have_count(2)
    told = ok(client.get("/v0/routers/a->b"))
    assert (told["filter"], told["guarantee"]) == (["tag", "Glob", "eu:*"], "exactly_once")
    console.allowed = ("409",)
    page.get_by_role("button", name="New router").click()
    page.get_by_label("From topic").fill("b")
    page.get_by_label("To topic").fill("a")
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("router_cycle")
    page.get_by_label("may close a cycle").check()
    page.get_by_role("button", name="Add", exact=True).click()
    expect(page.get_by_role("row", name="b->a")).to_be_visible()
    page.get_by_role("button", name="remove a->b").click()
    page.get_by_label("Type a->b to confirm").fill("a->b")
    page.get_by_role("button", name="Remove", exact=True).click()
    expect(page.get_by_role("row", name="a->b")).to_have_count(0)
    assert client.get("/v0/routers/a->b").status_code == 404


def queue(client: httpx.Client, name: str, **config: object) -> None:
    put(client, name, type="queue", lease_ms=600_000, **config)
    write(client, name, *({"job": n} for n in range(3)), tag="t")


def test_a_lease_is_extended_and_a_job_given_back(console: Console, client: httpx.Client) -> None:
    queue(client, "work")
    job = ok(client.post("/v0/topics/work/claim", json={"node": "w-1", "lease_ms": 120_000}))["claimed"][0]
    page = console.at("#/queues/work")
    row = page.get_by_role("row", name="w-1")
    expect(row).to_contain_text(job["lease_id"])
    page.get_by_role("button", name="extend the lease of job 1").click()
    expect(row).to_contain_text("9 min")
    lease = ok(client.get("/v0/topics/work/leases"))["leases"][0]
    assert lease["deadline"] > job["deadline"] + 400_000
    assert lease["lease_id"] == job["lease_id"]
    page.get_by_role("button", name="nack job 1").click()
    expect(page.get_by_text("Nobody holds a job now.")).to_be_visible()
    assert ok(client.get("/v0/topics/work"))["queue"]["ready"] == 3


def test_a_lease_that_is_over_is_told_where_it_happened(console: Console, client: httpx.Client) -> None:
    queue(client, "raced")
    job = ok(client.post("/v0/topics/raced/claim", json={"node": "w"}))["claimed"][0]
    page = console.at("#/queues/raced")
    expect(page.get_by_role("button", name="nack job 1")).to_be_visible()
    console.page.route("**/raced/leases*", lambda route: route.abort())
    console.allowed = ("net::ERR_FAILED",)
    ok(client.post("/v0/topics/raced/ack", json={"node": "w", "seqs": [1], "lease_ids": [job["lease_id"]]}))
    page.get_by_role("button", name="nack job 1").click()
    expect(page.get_by_text("Job 1 is not held under this lease any more.")).to_be_visible()


def die(client: httpx.Client, name: str, jobs: int) -> None:
    """Deliver jobs once more than they may be."""
    for _ in range(2):
        for job in ok(client.post(f"/v0/topics/{name}/claim", json={"node": "w", "max": jobs}))["claimed"]:
            ok(client.post(f"/v0/topics/{name}/nack", json={"node": "w", "seqs": [job["$seq"]]}))


def is_redriven(page: Page, client: httpx.Client, name: str, count: int) -> None:
    expect(page.get_by_text("back in the queue")).to_contain_text(str(count))
    state = ok(client.get(f"/v0/topics/{name}"))
    assert state["queue"]["ready"] == count
    jobs = ok(client.post(f"/v0/topics/{name}/claim", json={"node": "w", "max": 9}))["claimed"]
    assert [(job["data"], job["$tag"], job.get("meta")) for job in jobs] == [
        ({"job": n}, "t", None) for n in range(count)
    ]


def test_dead_letters_of_a_log_are_redriven(console: Console, client: httpx.Client) -> None:
    """11 §2: back where they came from, without the three members, and gone from the dead letters."""
    queue(client, "mail", max_deliveries=1, dead_letter="mail.dead")
    die(client, "mail", 3)
    page = console.at("#/queues/mail")
    expect(page.get_by_role("region", name="dead letters").get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Redrive all").click()
    is_redriven(page, client, "mail", 3)
    expect(page.get_by_text("No job failed too often.")).to_be_visible()
    assert ok(client.get("/v0/topics/mail.dead"))["count"] == 0


def test_one_dead_letter_is_redriven(console: Console, client: httpx.Client) -> None:
    queue(client, "post", max_deliveries=1, dead_letter="post.dead")
    die(client, "post", 3)
    page = console.at("#/queues/post")
    page.get_by_role("button", name="redrive 1", exact=True).click()
    expect(page.get_by_text("1 dead letter is back in the queue.")).to_be_visible()
    assert ok(client.get("/v0/topics/post.dead"))["count"] == 2
    assert ok(client.get("/v0/topics/post"))["queue"]["ready"] == 1


def test_dead_letters_of_a_queue_are_claimed_and_acked(console: Console, client: httpx.Client) -> None:
    put(client, "dead.jobs", type="queue")
    queue(client, "fax", max_deliveries=1, dead_letter="dead.jobs")
    die(client, "fax", 3)
    page = console.at("#/queues/fax")
    expect(page.get_by_role("region", name="dead letters").get_by_role("row")).to_have_count(4)
    page.get_by_role("button", name="Redrive all").click()
    is_redriven(page, client, "fax", 3)
    assert ok(client.get("/v0/topics/dead.jobs"))["count"] == 0


def test_only_letters_of_queues_that_send_them_here_are_redriven(console: Console, client: httpx.Client) -> None:
    """[REC-11] Whoever may write there must not have others publish anywhere."""
    queue(client, "mine", max_deliveries=1, dead_letter="mine.dead")
    queue(client, "other", max_deliveries=1, dead_letter="other.dead")
    die(client, "mine", 1)
    for name in ("other", "gone", "mine.dead"):
        ok(client.post("/v0/topics/mine.dead", json={"records": [{"data": 1, "meta": {"$dead_letter_from": name}}]}))
    console.allowed = ("404",)
    page = console.at("#/queues/mine")
    page.get_by_role("button", name="Redrive all").click()
    expect(page.get_by_text("1 dead letter is back in the queue.")).to_be_visible()
    assert ok(client.get("/v0/topics/mine.dead"))["count"] == 3
    assert ok(client.get("/v0/topics/other"))["count"] == 3
    assert client.get("/v0/topics/gone").status_code == 404


ODD = (
    '{"price":1.0,"n":1e3,"p":10.00,"big":12345678901234567890,"tiny":1E-7,"list":[-0,0.10],"text":"1.0",'
    '"10":{"b":[],"2":"]},\\"{[","1":{}},"9":"\\\\","__proto__":1,"9":"\\u0041\\u2028","\\u0041":"\\/"}'
)
"""Numbers and texts that a browser would spell in another way, and names that it would put first or once."""
GIVEN = re.compile(r'"\$(seq|ts)":\d+,')
"""What the server gives a record."""


def texts(client: httpx.Client, topic: str) -> list[str]:
    """The records of a topic as the server spells them."""
    answer = client.post(f"/v0/topics/{topic}/diff", json={"from_seq": 0})
    assert answer.is_success
    rows = answer.text.split('"records":[')[1].split('],"next_from_seq"')[0]
    return rows.split("},{")


def test_a_record_is_published_as_it_was_spelled(console: Console, client: httpx.Client) -> None:
    """The page says: stored as written."""
    put(client, "spelled")
    page = console.at("#/topics/spelled?view=publish")
    page.get_by_label("Data").fill('{"price": 1.0, "n": 1e3}')
    page.get_by_label("Meta").fill('{"rate": 2.50}')
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Written as seq 1")).to_be_visible()
    page.get_by_label("Data").fill(ODD)
    page.get_by_role("button", name="Publish").click()
    expect(page.get_by_text("Written as seq 2")).to_be_visible()
    first, second = texts(client, "spelled")
    assert '"data":{"price":1.0,"n":1e3}' in first
    assert '"meta":{"rate":2.50}' in first
    assert f'"data":{ODD}' in second
    page.get_by_label("Data").fill('{"price": 1.}')
    expect(page.get_by_text("Not JSON")).to_be_visible()


@pytest.mark.parametrize("kind", ["log", "queue", "one"])
def test_a_redriven_dead_letter_is_spelled_as_it_was(console: Console, client: httpx.Client, kind: str) -> None:
    """11 §2: the same job again, from a log, from a queue, and one of its own."""
    name, dead = f"exact.{kind}", f"exact.{kind}.dead"
    put(client, dead, type="queue" if kind == "queue" else "log")
    put(client, name, type="queue", max_deliveries=1, dead_letter=dead)
    meta = '{"rate":2.50,"7":"\\u0041","6":{"b":0,"1":1e1}}'
    body = f'{{"records":[{{"data":{ODD},"meta":{meta}}},{{"data":"\\u0041"}}]}}'
    ok(client.post(f"/v0/topics/{name}", content=body, headers={"content-type": "application/json"}))
    before = [GIVEN.sub("", text) for text in texts(client, name)]
    assert f'"meta":{meta},"data":{ODD}' in before[0]
    die(client, name, 2)
    page = console.at(f"#/queues/{name}")
    button = "redrive 1" if kind == "one" else "Redrive all"
    page.get_by_role("button", name=button, exact=True).click()
    expect(page.get_by_text("back in the queue")).to_be_visible()
    if kind == "one":
        page.get_by_role("button", name="redrive 2", exact=True).click()
        expect(page.get_by_role("button", name="redrive 2", exact=True)).to_be_hidden()
    assert [GIVEN.sub("", text) for text in texts(client, name)] == before


@pytest.mark.parametrize("kind", ["log", "queue", "one"])
def test_letters_of_a_dead_letter_topic_that_was_made_anew_go_back_too(
    console: Console, client: httpx.Client, kind: str
) -> None:
    """[EPO-1, IDM-1] They have the seqs of those before, whose keys are still known."""
    console.allowed = ("404",)  # the page looks on while the topic is gone
    name = f"anew.{kind}"
    dead = f"{name}.dead".ljust(255, "x")  # as long as a name may be: a key has no more room than that
    put(client, name, type="queue", max_deliveries=1, dead_letter=dead)
    for ready in (1, 2):
        put(client, dead, type="queue" if kind == "queue" else "log")
        letter = {"data": ready, "meta": {"$dead_letter_from": name}}
        ok(client.post(f"/v0/topics/{dead}", json={"records": [letter]}))
        page = console.at(f"#/queues/{name}")
        button = "redrive 1" if kind == "one" else "Redrive all"
        page.get_by_role("button", name=button, exact=True).click()
        expect(page.get_by_text("back in the queue")).to_be_visible()
        assert ok(client.get(f"/v0/topics/{name}"))["queue"]["ready"] == ready
        ok(client.delete(f"/v0/topics/{dead}"))


def test_a_run_of_a_pipeline_appears_and_ends_by_itself(console: Console, client: httpx.Client) -> None:
    """10 K-40: one record at the start, one at the end."""
    page = console.at("#/pipelines")
    expect(page.get_by_text("No job has run yet")).to_be_visible()
    run = {"job": "archive", "run": "r-1", "topics": ["orders"], "started_ms": 1000, "ended_ms": None}
    write(client, "$pipelines", run, tag="archive")
    expect(page.get_by_text("running")).to_be_visible()
    write(client, "$pipelines", {**run, "ended_ms": 62_000, "ok": False, "error": "the bucket is gone"}, tag="archive")
    expect(page.get_by_text("failed")).to_be_visible()
    expect(page.get_by_text("the bucket is gone")).to_be_visible()
    expect(page.get_by_text("1 min 1 s")).to_be_visible()
    expect(page.locator("tbody tr")).to_have_count(1)


def test_ten_thousand_topics_are_listed_and_only_those_in_sight_exist(console: Console) -> None:
    """[U-33]"""
    entry = {"type": "log", "durability": "disk", "head_seq": 5, "earliest_seq": 1, "count": 5, "bytes": 10}
    more = {"last_write_ts": None, "earliest_ts": None, "effective_priority": 0, "durable": False}
    topics = [{"topic": f"t-{n:05}", **entry, **more} for n in range(10_000)]
    console.page.route("**/v0/topics?*", lambda route: route.fulfill(json={"topics": topics}))
    page = console.at("#/topics")
    expect(page.get_by_text("10,000", exact=True)).to_be_visible()
    assert page.locator(".cols.line").count() < 80
    page.locator(".topics-list").evaluate("(one) => { one.scrollTop = one.scrollHeight }")
    expect(page.get_by_role("link", name="t-09999")).to_be_visible()
    page.get_by_label("search topics").fill("0777")
    expect(page.get_by_role("link", name="t-07770")).to_be_visible()
