"""The compiled kernel: which one runs, and that it never differs from the Python that specifies it."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from xxhash import xxh3_64_intdigest

from topics.codec import envelope, frame, kernel, part, segment
from topics.errors import SettingsError
from topics.model import Limits
from topics.storage import tail
from topics.testing import fuzz, parity
from topics.testing.parity import LIMITS, check_body, check_data, check_frames, check_staged, check_uploaded, using

needs_native = pytest.mark.skipif(kernel.installed() is None, reason="the native kernel is not installed")
SEED = 20260101


@pytest.fixture(autouse=True)
def _as_before() -> Any:
    with using(kernel.native):
        yield


# -- which one runs ------------------------------------------------------------------------------------------------


def test_pure_can_always_be_chosen() -> None:
    kernel.select("pure")
    assert kernel.name() == "pure"


def test_auto_leaves_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOPICS_KERNEL", raising=False)
    for chosen in (None, kernel.installed()):
        with using(chosen):
            kernel.select("auto")
            assert kernel.native is chosen


def test_auto_is_what_the_environment_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOPICS_KERNEL", "pure")
    with using(kernel.installed()):
        kernel.select("auto")
        assert kernel.name() == "pure"


def test_a_kernel_that_is_not_there_is_no_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """[A-17] Nothing falls back silently."""
    monkeypatch.setattr(kernel, "_INSTALLED", None)
    with pytest.raises(SettingsError, match="not installed"):
        kernel.select("native")


@needs_native
def test_native_can_be_chosen_where_it_is_installed() -> None:
    kernel.select("native")
    assert kernel.name() == "native"


# -- the same as its specification ---------------------------------------------------------------------------------


def plain(*records: object, **others: object) -> bytes:
    return json.dumps({"records": list(records), **others}).encode()


PLAIN = [
    plain({"data": 1}),
    plain({"data": {"a": [1.5, None, True, "é\n"]}, "tag": "t", "node": "n", "meta": {"k": {"v": [1]}}}),
    plain({"data": "x", "meta": None, "tag": None, "node": None}, {"data": []}, node="n"),
    plain({"data": 1}, idempotency_key="k", create=True, config={"type": "queue"}, disable_backpressure=True),
    plain({"data": 1}, producer={"id": "p", "epoch": 1, "index": 2}),
    plain({"data": 1, "further": [1]}, further={"a": 1}),
    b' {\n"records" : [ { "data" : [ 1 , 2 ] , "tag":"\\u00e9\\ud83d" } ] }\r\n'.replace(b"\\ud83d", b"\\ud83d\\ude00"),
    '{"records":[{"data":"日本 \\" \\\\","tag":"é"}]}'.encode(),
]


@needs_native
@pytest.mark.parametrize("body", PLAIN, ids=range(len(PLAIN)))
def test_ordinary_bodies_are_scanned_and_framed_alike(body: bytes) -> None:
    """[WR-1, REC-6, S-22, S-40] Nothing ordinary is declined: otherwise equal verdicts would mean nothing."""
    assert check_body(body)


@needs_native
@pytest.mark.parametrize("body", PLAIN, ids=range(len(PLAIN)))
def test_every_truncation_and_every_flip_of_a_body_is_judged_alike(body: bytes) -> None:
    """[API-11]"""
    for end in range(len(body.rstrip())):
        assert not check_body(body[:end])
    for at in range(len(body)):
        for bit in range(8):
            check_body(body[:at] + bytes((body[at] ^ 1 << bit,)) + body[at + 1 :])


def around(limit: int) -> list[int]:
    return [limit - 1, limit, limit + 1]


LIMITED = [
    *((plain({"data": "x" * (n - 2)}), n <= LIMITS.max_record_bytes) for n in around(LIMITS.max_record_bytes)),
    *((plain(*[{"data": 1}] * n), n <= LIMITS.max_batch_records) for n in around(LIMITS.max_batch_records)),
    *((plain({"data": 1, "tag": "t" * n}), n <= LIMITS.max_tag_bytes) for n in around(LIMITS.max_tag_bytes)),
    *((plain({"data": 1, "node": "n" * n}), n <= LIMITS.max_node_bytes) for n in around(LIMITS.max_node_bytes)),
    *((plain({"data": 1}, node="n" * n), n <= LIMITS.max_node_bytes) for n in around(LIMITS.max_node_bytes)),
    *((plain({"data": 1, "meta": {"k": "x" * (n - 8)}}), n <= LIMITS.max_meta_bytes) for n in around(40)),
    *((plain({"data": 1, "meta": {str(i): i for i in range(n)}}), n <= 3) for n in around(LIMITS.max_meta_members)),
    *((b'{"records":[{"data":%b%b}]}' % (b"[" * n, b"]" * n), n <= 256) for n in around(256)),
    (plain(), False),
    (b'{"records":[{"data":1}],"records":[{"data":1}]}', False),
    (b'{"records":[{"data":1,"data":1}]}', False),
]


@needs_native
@pytest.mark.parametrize(("body", "accepted"), LIMITED, ids=range(len(LIMITED)))
def test_limits_are_where_they_are(body: bytes, accepted: bool) -> None:
    """[REC-13] At a limit is within it; sizes are those without insignificant whitespace."""
    limits = LIMITS if b"[[" not in body else LIMITS._replace(max_record_bytes=1000)
    compact = body.replace(b": ", b":").replace(b", ", b",")
    assert check_body(compact, limits) == accepted
    assert check_body(body, limits) == accepted


@needs_native
@pytest.mark.parametrize("target", ["frames", "data", "staged", "uploaded", "log"])
def test_every_truncation_and_flip_of_frames_is_judged_alike(target: str) -> None:
    """[S-26, S-120, S-173, S-288]"""
    check, corpus = parity.corpora()[target]
    for whole in corpus[:1]:
        for end in range(len(whole) + 1):
            check(whole[:end])
        for at in range(len(whole)):
            check(whole[:at] + bytes((whole[at] ^ 1 << at % 8,)) + whole[at + 1 :])


@needs_native
@pytest.mark.parametrize("target", fuzz.beside_the_kernel(), ids=lambda target: target.name)
def test_made_and_broken_input_is_judged_alike(target: fuzz.Target) -> None:
    """13 T13; `python -m topics.testing fuzz` runs many more."""
    assert sum(fuzz.fuzz(target, SEED, 1500)) == 1500


@needs_native
def test_made_bodies_are_often_right() -> None:
    """Otherwise equal verdicts would mean little."""
    rng = random.Random(SEED)
    corpus = parity.corpora()["write body"][1]
    assert sum(check_body(parity.make_body(rng, corpus)) for _ in range(1000)) > 200


@needs_native
@pytest.mark.parametrize("check", [check_frames, check_data, check_staged, check_uploaded])
def test_nothing_at_all_is_judged_alike(check: Any) -> None:
    check(b"")


def sized(size: int, meta: bytes | None = None) -> bytes:
    return envelope.build(b'"%b"' % (b"x" * (size - 2)), meta)


UPLOADED: list[tuple[list[Any], bool]] = [
    ([(None, None, envelope.build(b"1"))], True),
    ([("n", "t", envelope.build(b'{"a":[1.0,"\\u00e9"]}', b"{}")), ("", "", envelope.build(b"null"))], True),
    ([(None, None, envelope.build(b"1"))] * LIMITS.max_batch_records, True),
    ([(None, None, envelope.build(b"1"))] * (LIMITS.max_batch_records + 1), False),
    ([(None, None, sized(LIMITS.max_record_bytes))], True),
    ([(None, None, sized(LIMITS.max_record_bytes + 1))], False),
    ([(None, None, sized(LIMITS.max_record_bytes, b"{}"))], False),
    ([("n" * LIMITS.max_node_bytes, "t" * LIMITS.max_tag_bytes, envelope.build(b"1"))], True),
    ([("n" * (LIMITS.max_node_bytes + 1), None, envelope.build(b"1"))], False),
    ([(None, "t" * (LIMITS.max_tag_bytes + 1), envelope.build(b"1"))], False),
    ([(None, None, envelope.build(b"1", b'{"a":1,"b":2,"c":3}'))], True),
    ([(None, None, envelope.build(b"1", b'{"a":1,"b":2,"c":3,"d":4}'))], False),
    ([(None, None, envelope.build(b"1", b'{"a":"%b"}' % (b"x" * LIMITS.max_meta_bytes)))], False),
    ([(None, None, b'{"d": 1}')], False),
    ([(None, None, b'{"d":1 }')], False),
    ([(None, None, b'{"d":1,"m":null}')], False),
    ([(None, None, b'{"d":1,"d":2}')], False),
    ([(None, None, b'{"d":01}')], False),
    ([(None, None, b'{"d":"\xff"}')], False),
    ([(None, None, b"")], False),
    ([], False),
]
"""Frames of a client with whether the kernel takes them; in some, nothing but a space keeps it from that."""


@needs_native
@pytest.mark.parametrize(("rows", "taken"), UPLOADED, ids=range(len(UPLOADED)))
def test_frames_of_a_client_are_taken_in_as_python_does_it(rows: list[Any], taken: bool) -> None:
    """[TXN-1, TXN-2] The same bytes and digest; what is not plainly right is left to Python."""
    sent = part.upload(rows)
    native = kernel.installed()
    assert native is not None
    assert (native.uploaded([sent], LIMITS, 1 << 20) is not None) is taken
    check_uploaded(sent)


@needs_native
def test_marks_of_the_server_are_not_taken_from_a_client() -> None:
    """[TXN-1] Seq, ts, hops and delete flag, with a checksum that covers them."""
    native = kernel.installed()
    assert native is not None
    for at in (*range(4, 21), -1):
        chunk = bytearray(part.encode([("n", "t", envelope.build(b"1"))]))
        chunk[at] |= 0x40
        chunk[-9:-1] = xxh3_64_intdigest(bytes(chunk[4:-9])).to_bytes(8, "little")
        assert native.uploaded([bytes(chunk)], LIMITS, 64) is None
        check_uploaded(bytes(chunk))


@needs_native
def test_frames_of_given_values_are_the_same() -> None:
    """[S-22, S-24] Also where a value fits none."""
    rows = parity.ROWS
    for given in (rows, rows[:1], [], [("x" * 65536, None, b"1")], [(None, "\ud800", b"1")]):
        for options in ({}, {"durable": True, "hops": 8}, {"more": True}):
            for place in ((1, 2, 3), (2**64 - 1, 2**64 - 1, 2**64 - 1), (-1, 2, 3), (1, 2, 2**64)):
                parity.same(
                    lambda given=given, place=place, options=options: frame.encode_appends(given, *place, **options)
                )


@needs_native
def test_large_input_is_worked_on_without_the_interpreter() -> None:
    """From 64 KiB on; the result is the same."""
    many = parity.ROWS[:4] * 1000
    with using(None):
        frames = frame.encode_appends(many, parity.TOPIC, 1, 5)
        offsets = frame.scan_frames(frames).rows["offset"].tolist()
        data, _ = segment.reframe(frames, offsets, parity.MASK)
    parity.same(lambda: frame.scan_frames(frames))
    parity.same(lambda: segment.reframe(memoryview(frames), offsets, parity.MASK))
    parity.same(lambda: segment.scan_data(data, parity.MASK))
    parity.check_staged(part.encode(many))
    assert check_body(plain(*({"data": "x" * 100, "tag": "t"},) * 1000), Limits())


@needs_native
def test_lengths_are_checked_before_they_are_used() -> None:
    native = kernel.installed()
    assert native is not None
    for begin, end in ((0, 9), (5, 4), (9, 9)):
        with pytest.raises(ValueError, match="range"):
            native.verify(b"12345678", begin, end)
        with pytest.raises(ValueError, match="range"):
            native.verify_data(b"12345678", 0, begin, end)
    assert native.reframe(b"1234", (2**63).to_bytes(8, "little"), 1, 0, None) == 0
    assert native.project(b"", bytes(20), 1, 1, True, True, True) is None
    assert native.project_wal(b"", (2**64 - 1).to_bytes(8, "little"), True, True, True) is None
    for at in (3, 2**60):
        with pytest.raises(ValueError, match="no entry"):
            native.page(b"", bytes(40), at, (1, 1, 1), 1, 1, True, True, True)
    assert native.page(b"", bytes(40), 2, (1, 1, 1), 1, 1, True, True, True) is None
    assert native.page(b"", b"\xff" * 16 + bytes(4), 0, (2**63, 2**63, 1), 1, 1, True, True, True) is None
    assert native.jobs(b"", (2**64 - 1).to_bytes(8, "little"), 1, 1) is None
    with pytest.raises(ValueError, match="64 bits"):
        native.jobs(b"", bytes(8), 2**64 - 1, 1)
    for seq in (4, 7, 2**64 - 1):
        with pytest.raises(ValueError, match="no entry"):
            native.mark(bytearray(40), 5, [5, seq])
    with pytest.raises(BufferError):
        native.mark(bytes(20), 5, [5])  # type: ignore[arg-type]
    with pytest.raises(BufferError):
        native.stamp(b"bytes do not change", bytes(8), 1, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="hops"):
        native.reframe(b"", bytes(16), 1, 0, b"1")
    with pytest.raises(ValueError, match="at least one"):
        native.answer_write("t", 1, 0, 1, True, b"")


# -- its stubs -------------------------------------------------------------------------------------------------------


def same_parameters(node: ast.FunctionDef, made: object, told: object, *more: str) -> None:
    """Of the stub, the module and the protocol."""
    given = [arg.arg for arg in (*node.args.posonlyargs, *node.args.args)]
    assert callable(made)
    assert callable(told)
    assert [*inspect.signature(made).parameters] == given
    assert [*inspect.signature(told).parameters] == (given if more else ["self", *given])


@needs_native
def test_the_stubs_are_those_of_the_module() -> None:
    """The stub file, the protocol in Python and the module name the same functions and parameters."""
    module = importlib.import_module("topics_kernel")
    path = Path(__file__).parents[3] / "native" / "topics_kernel.pyi"
    tree = ast.parse(path.read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if sys.platform != "linux":
        classes = {"Written": classes["Written"]}
    assert functions.keys() | classes.keys() == {name for name in vars(module) if callable(getattr(module, name))}
    systems = {"Lines", "Syncer", "Rounds"}
    assert functions.keys() == {name for name in vars(kernel.Native) if not name.startswith("_")} - systems
    for name, node in functions.items():
        same_parameters(node, getattr(module, name), getattr(kernel.Native, name))
    for name, found in classes.items():
        made, told = getattr(module, name), getattr(kernel, name)
        members = {node.name: node for node in found.body if isinstance(node, ast.FunctionDef)}
        members.pop("__new__", None)
        for member, node in members.items():
            if not node.decorator_list:
                same_parameters(node, getattr(made, member), getattr(told, member), "self")
        assert members.keys() == {name for name in vars(made) if not name.startswith("_")}
        assert members.keys() == {name for name in vars(told) if not name.startswith("_")}


AT_WORK = """
import threading
import topics_kernel

frames = topics_kernel.frame_values([(None, None, b"{}" * 40)] * 4000, 1, 1, 1, 0, False)
begun = threading.Barrier(4)


def work():
    topics_kernel.verify(frames, 0, len(frames))
    begun.wait()
    while True:
        topics_kernel.verify(frames, 0, len(frames))


for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
begun.wait()
"""


@needs_native
def test_a_process_ends_as_it_should_while_threads_work_without_the_interpreter() -> None:
    """13 §6: nobody waits for daemon threads, and what they are in the middle of must not take the process along."""
    done = subprocess.run([sys.executable, "-c", AT_WORK], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@needs_native
def test_a_scan_in_pieces_finds_what_one_in_one_go_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    """[S-26] Wherever a piece ends, within a frame that is larger than it too; behind damage nothing is found."""
    frames = b"".join(
        frame.encode_appends([(None, None, b"x" * size)], 7, seq, 1790, durable=False)
        for seq, size in enumerate((1, 40, 700, 3, 3, 260, 90), 1)
    )
    bodies = [frames, frames + bytes(99), frames[:-1], frames[:300] + b"!" + frames[301:], b"", bytes(64)]
    for pieces in (1, 50, 64, 300, 1 << 20):
        monkeypatch.setattr(frame, "SCAN_BYTES", pieces)
        for raw in bodies:
            for start in (0, 47 if raw.startswith(frames[:47]) else 0):
                check_frames(raw)
                with using(None):
                    pure = frame.scan_frames(raw, start)
                with using(kernel.installed()):
                    found = frame.scan_frames(raw, start)
                assert found.rows.tolist() == pure.rows.tolist()
                assert found[1:] == pure[1:]


@needs_native
def test_entries_made_in_pieces_are_those_made_in_one_go(monkeypatch: pytest.MonkeyPatch) -> None:
    records = [(None, "t" if n % 3 else None, b'{"d":%d}' % n) for n in range(20)]
    raw = frame.encode_appends(records, 7, 1, 1790, durable=False)
    rows = frame.scan_frames(raw).rows
    whole = tail.entries_of_rows(raw, rows)
    monkeypatch.setattr(tail, "INDEX_ROWS", 7)
    pieces = tail.entries_of_rows(raw, rows)
    assert pieces[0].tobytes() == whole[0].tobytes()
    assert pieces[1].tolist() == whole[1].tolist()
