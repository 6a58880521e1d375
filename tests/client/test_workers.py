"""Workers and transactions over every way to the operations (04, 02 §9) [U-24]."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

import topics
from tests.api.kit import running
from tests.client.subjects import KINDS, WAIT_S, subject
from topics import errors
from topics.client.aio import AsyncClient
from topics.clock import SystemClock
from topics.model import Job
from topics.surface import worker as surface_worker
from topics.testing import ManualClock


@pytest.fixture(scope="module", params=KINDS)
def shared(request: pytest.FixtureRequest) -> Iterator[Any]:
    with subject(request.param, None) as one:
        yield one


@pytest.fixture
def one(shared: Any) -> Any:
    return shared


@pytest.fixture
def queue(one: Any, request: pytest.FixtureRequest) -> Any:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:200]
    found = one.queue(name)
    found.create(lease_ms=60_000)
    return found


def until(condition: Callable[[], bool]) -> None:
    """Ask until it is so; there is no event to wait for."""
    end_ns = SystemClock().monotonic_ns() + int(WAIT_S * 1e9)
    while not condition():
        assert SystemClock().monotonic_ns() < end_ns


def counts(queue: Any) -> tuple[int, int, int]:
    found = queue.state().queue
    return found["ready"], found["in_flight"], found["delayed"]


def test_jobs_are_acked_as_the_next_is_asked_for_and_the_rest_is_given_back(queue: Any) -> None:
    queue.put_many([topics.new(n, tag=f"t{n}") for n in range(6)])
    with queue.worker("w1", max=4) as jobs:
        for job in jobs:
            assert job.tag == f"t{job.data}"
            assert job.deliveries == 1
            if job.data == 2:
                assert counts(queue) == (2, 2, 0)
                break
    assert counts(queue) == (3, 0, 0)
    assert jobs.settled == (3, 0, 0)


def test_an_exception_gives_the_job_back_with_a_rest_and_passes_through(queue: Any) -> None:
    queue.put_many([0, 1, 2])
    with pytest.raises(ZeroDivisionError), queue.worker("w1", max=3) as jobs:
        for job in jobs:
            1 // (1 - job.data)
    assert counts(queue) == (1, 0, 1)
    assert jobs.settled == (1, 1, 0)


def test_an_interruption_gives_the_job_back_at_once(queue: Any) -> None:
    queue.put(0)
    with pytest.raises(KeyboardInterrupt), queue.worker("w1") as jobs:
        next(jobs)
        raise KeyboardInterrupt
    assert counts(queue) == (1, 0, 0)


def test_a_worker_may_settle_jobs_itself(queue: Any) -> None:
    queue.put_many(["done", "later", "by the way"])
    with queue.worker("w1", wait=False) as jobs:
        for job in jobs:
            if job.data == "done":
                jobs.ack(job)
            elif job.data == "later":
                jobs.nack(job, delay_ms=60_000)
    assert counts(queue) == (0, 0, 1)
    assert jobs.settled == (2, 1, 0)


def test_without_waiting_it_ends_when_there_is_nothing_to_do(queue: Any) -> None:
    queue.put_many(range(25))
    with queue.worker("w1", max=10, wait=False) as jobs:
        assert [job.data for job in jobs] == list(range(25))
    assert counts(queue) == (0, 0, 0)


def test_a_worker_is_woken_by_a_new_job_and_ends_when_told(queue: Any) -> None:
    done: list[Any] = []

    def work() -> None:
        with queue.worker("w1") as jobs:
            for job in jobs:
                done.append(job.data)
                if job.data == "last":
                    jobs.stop()

    thread = threading.Thread(target=work)
    thread.start()
    queue.put("first")
    until(lambda: done == ["first"])
    queue.put("last")
    thread.join(WAIT_S)
    assert not thread.is_alive()
    assert done == ["first", "last"]
    assert counts(queue) == (0, 0, 0)


def test_a_worker_needs_a_queue(one: Any) -> None:
    one.create("no-queue")
    with pytest.raises(errors.NotAQueue), one.queue("no-queue").worker("w1") as jobs:
        next(jobs)
    with pytest.raises(errors.TopicNotFound), one.queue("nothing").worker("w1") as jobs:
        next(jobs)


def test_handlers_that_fail_do_not_end_a_run() -> None:
    with topics.open(None) as log:
        log.queue("q").create()
        log.queue("q").put_many(range(5))
        done: list[int] = []

        def handle(job: Any) -> None:
            if job.data == 2:
                raise ValueError("no")
            done.append(job.data)

        with log.queue("q").worker("w1", max=2, wait=False) as jobs:
            assert jobs.run(handle) == (4, 1, 0)
        assert done == [0, 1, 3, 4]


def test_an_asyncio_run_does_jobs_at_the_same_time() -> None:
    async def main() -> None:
        log = topics.open(None)
        queue = log.aio.queue("q")
        await queue.create()
        await queue.put_many(range(9))
        inside, most = 0, 0
        together = asyncio.Event()

        async def handle(job: Any) -> None:
            nonlocal inside, most
            inside += 1
            most = max(most, inside)
            if inside == 3:
                together.set()
            await together.wait()
            inside -= 1
            if job.data == 5:
                raise ValueError("no")

        async with queue.worker("w1", max=3, wait=False) as jobs:
            assert await jobs.run(handle) == (8, 1, 0)
        assert most == 3
        await log.aio.close()

    asyncio.run(main())


@asynccontextmanager
async def surface(kind: str) -> AsyncIterator[Any]:
    """A store or a server for this loop, `aio` or `async-client`."""
    if kind == "aio":
        async with topics.open(None).aio as one:
            yield one
        return
    with running() as server:
        async with AsyncClient(server.url) as other:
            yield other


async def acounts(queue: Any) -> tuple[int, int, int]:
    found = (await queue.state()).queue
    return found["ready"], found["in_flight"], found["delayed"]


@pytest.mark.parametrize("kind", ["aio", "async-client"])
def test_an_asyncio_run_has_no_more_jobs_in_hand_than_it_may(kind: str) -> None:
    """[U-24] Others could do them meanwhile."""

    async def main() -> None:
        async with surface(kind) as one:
            queue = one.queue("q")
            await queue.create(lease_ms=60_000)
            await queue.put_many(range(40))
            in_flight: list[int] = []

            async def handle(job: Any) -> None:
                in_flight.append((await acounts(queue))[1])

            async with queue.worker("w1", max=4, wait=False) as jobs:
                assert await jobs.run(handle) == (40, 0, 0)
            assert max(in_flight) <= 4

    asyncio.run(main())


@pytest.mark.parametrize("kind", ["aio", "async-client"])
def test_an_asyncio_run_that_is_cancelled_gives_its_jobs_back_at_once(kind: str) -> None:
    """[U-24] Those that were being done too; whoever cancels says nothing about them."""

    async def main() -> None:
        async with surface(kind) as one:
            queue = one.queue("q")
            await queue.create(lease_ms=60_000)
            await queue.put_many(range(5))
            begun: list[int] = []
            all_begun = asyncio.Event()

            async def handle(job: Any) -> None:
                begun.append(job.data)
                if len(begun) == 3:
                    all_begun.set()
                await asyncio.Event().wait()

            async def work() -> None:
                async with queue.worker("w1", max=3) as jobs:
                    await jobs.run(handle)

            working = asyncio.ensure_future(work())
            await asyncio.wait_for(all_begun.wait(), WAIT_S)
            working.cancel()
            with pytest.raises(asyncio.CancelledError):
                await working
            assert await acounts(queue) == (5, 0, 0)

    asyncio.run(main())


def test_a_job_whose_handler_was_cancelled_is_given_back_with_the_block() -> None:
    """[U-24] Neither done nor failed."""

    async def main() -> None:
        async with surface("aio") as one:
            queue = one.queue("q")
            await queue.create(lease_ms=60_000)
            await queue.put_many(range(6))

            async def handle(job: Any) -> None:
                if job.data == 1:
                    raise asyncio.CancelledError

            async with queue.worker("w1", max=2, wait=False) as jobs:
                assert await jobs.run(handle) == (5, 0, 0)
            assert await acounts(queue) == (1, 0, 0)

    asyncio.run(main())


def test_a_lease_of_any_length_is_extended_neither_all_the_time_nor_at_no_time() -> None:
    """[LSE-2] A queue makes a lease longer or shorter where it has to, and so does the pause between extensions."""
    assert surface_worker.beat_s(0) > 0.02
    assert surface_worker.beat_s(30_000) == 10.0
    assert surface_worker.beat_s(10**15) <= threading.TIMEOUT_MAX


def job(seq: int, lease_id: str) -> Job:
    return Job(
        seq=seq, lease_id=lease_id, deadline=0, ts=0, deliveries=1, tag=None, raw_data=b"1", raw_meta=None
    )  # fmt: skip


def test_a_lease_that_is_over_says_nothing_about_the_next_lease_of_its_job() -> None:
    """[EXT-1] Claimed anew while the extension of the former lease was on its way."""
    hands = surface_worker.Hands(4)
    hands.take([job(1, "first"), job(2, "second")])
    asked = hands.held()
    assert hands.begin() == job(1, "first")
    hands.done(job(1, "first"), "nacked", 1)
    hands.take([job(1, "third")])
    assert hands.lost(asked, [1, 2]) == [job(2, "second")]
    assert hands.held() == [job(1, "third")]
    assert hands.settled == (0, 1, 1)


@pytest.mark.parametrize("kind", KINDS)
def test_leases_are_kept_alive_and_what_is_lost_all_the_same_is_not_begun(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """[LSE-2, EXT-1] Time is the server's, and moved by hand."""
    clock = ManualClock()
    with subject(kind, None, clock) as one:
        queue = one.queue("q")
        queue.create(lease_ms=100)
        queue.put_many(["first", "second", "third"])
        with queue.worker("w1", max=2) as jobs:
            job = next(jobs)
            for _ in range(3):  # together far longer than a lease
                clock.advance(60)
                now_ms = clock.now_ms()
                until(lambda now_ms=now_ms: [x.deadline for x in queue.leases().leases] == [now_ms + 100] * 2)
            clock.advance(1000)
            assert [other.data for other in queue.claim("w2", max=2).jobs] == ["first", "second"]
            until(lambda: jobs.settled.lost == 1)
            job = next(jobs)
            assert jobs.settled == (0, 0, 2)
            assert job.data == "third"
        assert jobs.settled == (1, 0, 2)
        assert {lease.node for lease in queue.leases().leases} == {"w2"}
    # Whether it is: its dead letter, a cap or a delete may have taken it, or an ack whose answer was lost.
    assert "job 1: its lease was over before it was settled; it may be delivered again" in caplog.messages


# -- transactions ----------------------------------------------------------------------------------------------------


def test_a_transaction_appears_when_its_block_is_left(one: Any) -> None:
    with one.transaction("w1", 1) as txn:
        txn.append("t1", {"a": 1}, tag="x", meta={"m": 1})
        txn.append_many("t2", [1, topics.new(2, node="n")])
        txn.append("t1", 2)
        assert [name for name in one.topics("t") if name in ("t1", "t2")] == []
    result = txn.result
    assert (result.version, result.deduped) == (1, False)
    assert [(found.topic, found.count) for found in result.topics] == [("t1", 2), ("t2", 2)]
    first, second = one.page("t1").records
    assert (first.data, first.tag, first.meta, second.data) == ({"a": 1}, "x", {"m": 1}, 2)
    assert [record.node for record in one.page("t2").records] == [None, "n"]


def test_a_transaction_of_a_version_happens_once(one: Any) -> None:
    """[TXN-7] Whoever repeats a block that may have been committed appends nothing twice."""
    for _ in range(3):
        with one.transaction("w2", 5) as txn:
            txn.append_many("once", list(range(2500)))
    assert txn.result.deduped
    assert [record.data for record in one.read("once")] == list(range(2500))


def test_an_exception_leaves_nothing_behind(one: Any) -> None:
    with pytest.raises(ZeroDivisionError), one.transaction("w3", 1) as txn:
        txn.append_many("never", list(range(1500)))
        1 // 0  # noqa: B018
    assert "never" not in one.topics("never")
    assert one.writer("w3").staged in ([], ())
    assert txn.result is None


def test_values_count_as_they_were_when_they_were_appended(one: Any) -> None:
    row = {"n": 1}
    with one.transaction("w4", 1) as txn:
        txn.append("kept", row)
        row["n"] = 2
        txn.append("kept", row)
        with pytest.raises(errors.CallerError):
            txn.append("kept", object())
    assert [record.data for record in one.read("kept")] == [{"n": 1}, {"n": 2}]


def test_metadata_and_json_text_count_as_they_were_when_they_were_appended(one: Any) -> None:
    """As an append has it: bytes of any kind are JSON text, of data and of metadata."""
    meta, text = {"m": 1}, bytearray(b'{"n": 1.0}')
    with one.transaction("w7", 1) as txn:
        txn.append("told", text, meta=meta)
        meta["m"] = 2
        text[6:9] = b"2e0"
        txn.append("told", text, meta=meta)
        txn.append("told", memoryview(b"[ 3 ]"), meta=b'{ "m": 3.0 }')
        txn.append("told", 4)
        for bad in ({"meta": {"m": object()}}, {"meta": bytearray(b"{")}):
            with pytest.raises(errors.CallerError):
                txn.append("told", 5, **bad)
        with pytest.raises(errors.CallerError):
            txn.append("told", memoryview(b"{"))
    assert [(record.raw_data, record.raw_meta) for record in one.read("told")] == [
        (b'{"n":1.0}', b'{"m":1}'), (b'{"n":2e0}', b'{"m":2}'), (b"[3]", b'{"m":3.0}'), (b"4", None),
    ]  # fmt: skip


def test_large_records_go_in_several_chunks(one: Any) -> None:
    with one.transaction("w5", 1) as txn:
        txn.append_many("large", ["x" * 900_000] * 12)
    assert one.state("large").count == 12


def test_an_empty_transaction_commits_its_version(one: Any) -> None:
    with one.transaction("w6", 3) as txn:
        pass
    assert txn.result.topics in ([], ())
    assert one.writer("w6").version == 3
