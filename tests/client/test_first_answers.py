"""One client on many threads, from its very first answer on [U-20].

A shape that two threads decode for the first time at once ends the process: the library fills in what it knows of a
type while the other thread already looks at it.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import sys
import threading

from topics.client import answers

JOBS = b'{"claimed":[{"$seq":1,"lease_id":"a","deadline":1,"$ts":1,"deliveries":1,"data":{}}],"ready":0}'
PAGE = b'{"records":[{"$seq":1,"$ts":1,"data":{}}],"next_from_seq":1,"head_seq":1,"earliest_seq":1,"tombstone":null}'
sys.setswitchinterval(1e-6)
gate = threading.Barrier(16)


def first(number):
    gate.wait()
    answers.claimed(JOBS) if number % 2 else answers.page(PAGE)


threads = [threading.Thread(target=first, args=(number,)) for number in range(16)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.parametrize("attempt", range(4))
def test_first_answers_may_come_to_many_threads_at_once(attempt: int) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
