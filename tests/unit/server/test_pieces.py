"""A large body decoded piece by piece is what one call makes of it [P-10, API-11]."""

from __future__ import annotations

import itertools
import json
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.engine.records import ParsedRecord, Prepared, prepare, prepare_in_steps
from topics.errors import TopicsError
from topics.model import Limits
from topics.server import pieces
from topics.server.records import _WRITE, WriteBody

LIMITS = Limits(max_batch_records=20, max_record_bytes=300, max_meta_bytes=60, max_tag_bytes=12, max_node_bytes=8)


@pytest.fixture(autouse=True, scope="module")
def tiny_steps() -> Any:
    """So that short bodies have many pieces."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pieces, "STEP_BYTES", 24)
        patch.setattr(pieces, "PIECE_MAX", 400)
        patch.setattr(pieces, "_LOOKED_AT", 16)
        yield


def finished(steps: Any) -> Any:
    """What a generator returns."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def at_once(body: bytes) -> WriteBody | None:
    try:
        return _WRITE.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def in_pieces(chunks: list[bytes]) -> tuple[WriteBody, list[list[ParsedRecord]]] | None:
    """None where it is left to one call."""
    found = finished(pieces.decoded(chunks))
    try:
        return None if found is None else (_WRITE.decode(found.around), found.runs)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def assert_same(body: bytes, cuts: list[int]) -> None:
    places = [0, *sorted(cut % (len(body) + 1) for cut in cuts), len(body)]
    chunks = [body[a:b] for a, b in itertools.pairwise(places)]
    whole, found = at_once(body), in_pieces(chunks)
    if found is None:
        return
    around, runs = found
    assert around.records == []
    assert whole == msgspec.structs.replace(around, records=[one for run in runs for one in run])


TEXTS = st.sampled_from(
    ["", "x", '},{"data":', '}],"records":[{"data":', "\\", '"', "]", "é€😀", "a" * 30, '{"records":[', '}\n,\n{"tag"']
)
KEYS = st.sampled_from(["data", "tag", "node", "meta", "records", "a", '},{"data"', "ключ"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 10**6) | st.floats(-1e9, 1e9) | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
RECORDS = st.fixed_dictionaries(
    {"data": VALUES},
    optional={
        "tag": TEXTS | st.none(),
        "node": TEXTS | st.none(),
        "meta": st.dictionaries(KEYS, VALUES, max_size=3) | st.none(),
        "more": VALUES,
    },
)
MEMBERS = {
    "node": TEXTS | st.none(),
    "idempotency_key": TEXTS | st.none(),
    "create": st.booleans() | st.none(),
    "config": st.none() | st.dictionaries(KEYS, VALUES, max_size=2),
    "other": VALUES,
    "disable_backpressure": st.booleans(),
}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """What a client might send: members in any order, white space, escapes or none."""
    rest = list(draw(st.fixed_dictionaries({}, optional=MEMBERS)).items())
    records = draw(st.lists(RECORDS, max_size=25))
    rest.insert(draw(st.integers(0, len(rest))), ("records", records))
    if draw(st.booleans()):
        rest.insert(
            draw(st.integers(0, len(rest))), draw(st.sampled_from([("records", []), ("records", [{"data": 0}])]))
        )
    style = {"ensure_ascii": draw(st.booleans()), "indent": draw(st.sampled_from([None, 0, 3]))}
    spaces = draw(st.sampled_from([(",", ":"), (", ", ": "), ("\n ,\t", " :")]))
    members = [f"{json.dumps(name)}:{json.dumps(value, separators=spaces, **style)}" for name, value in rest]
    return ("{" + spaces[0].join(members) + "}" + draw(st.sampled_from(["", "\n"]))).encode()


TOKENS = st.sampled_from(
    [
        '{"records":[', '{"data":1}', '{"data":"x"},', '{"tag":"t","data":[1]}', ",", "},{", '{"data":{"a":1},', "]",
        "}", "]}", '],"records":[', '"records":[', '"rec\\u006frds":', '{"node":"n",', '"', "\\", '"},{"data":"', " ",
        '{"data":[{"data":1},{"data":2}]}', "[", '{"data":"},{"}', ',"node":"n"}', '{"a":', "é", "1e", "nul", "{",
    ]
)  # fmt: skip
CUTS = st.lists(st.integers(0, 10**6), max_size=6)


@given(bodies(), CUTS)
def test_every_body_comes_out_as_from_one_call(body: bytes, cuts: list[int]) -> None:
    """[API-11]: repeated members, strings and payloads that look like the end of a record, any white space."""
    assert_same(body, cuts)


@given(bodies(), CUTS, st.integers(0, 10**6), st.sampled_from(["", "}", '"', "\\", ",", "]", "{", "x", "\x00"]))
def test_a_damaged_body_is_never_taken_for_a_whole_one(body: bytes, cuts: list[int], at: int, put: str) -> None:
    """[API-11]: whatever one call refuses is refused, and in its words."""
    at %= len(body)
    assert_same(body[:at] + put.encode() + body[at + 1 :], cuts)


@given(st.lists(TOKENS, max_size=24), CUTS)
@example(['{"records":[', '{"data":1}', '],"x":[{"a":1},', '{"data":2}', "]}"], [])
@example(['{"records":[', '{"data":1}', '],"records":[', '{"data":2}', "]}"], [])
def test_tokens_in_any_order_mean_the_same(tokens: list[str], cuts: list[int]) -> None:
    """[API-11]"""
    assert_same("".join(["{", *tokens] if tokens and tokens[0][0] == '"' else tokens).encode(), cuts)


@given(st.lists(TOKENS, max_size=12), st.integers(3, 30), CUTS)
def test_what_follows_ordinary_records_decides(tokens: list[str], count: int, cuts: list[int]) -> None:
    """[API-11]: cuts were made long before the end shows what the text is."""
    ordinary = ",".join(['{"data":{"kg":412.5,"line":"dock-7"},"tag":"a"}'] * count)
    assert_same(('{"records":[' + ordinary + "".join(tokens)).encode(), cuts)


@pytest.mark.parametrize("name", ["\\u0072ecords", "rec\\u006frds", "records"])
@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("cuts", [[], [10, 40, 90]])
def test_an_array_of_the_same_name_in_another_member_is_not_taken_for_the_records(
    monkeypatch: pytest.MonkeyPatch, name: str, count: int, cuts: list[int]
) -> None:
    """[API-11]: however the real one is spelt."""
    monkeypatch.setattr(pieces, "STEP_BYTES", 100)
    monkeypatch.setattr(pieces, "PIECE_MAX", 4000)
    own = ",".join(['{"data":1}'] * count)
    others = ",".join(['{"data":{"kg":412.5,"line":"dock-7"},"tag":"a"}'] * 20)
    assert_same(f'{{"{name}":[{own}],"x":{{"records":[{others}]}}}}'.encode(), cuts)
    assert_same(f'{{"x":{{"records":[{others}]}},"{name}":[{own}]}}'.encode(), cuts)


@pytest.mark.parametrize("before", ["", '"node":"n",', '"config":{"ttl_ms":5,"x":[{"a":1},{"b":2}]} , '])
@pytest.mark.parametrize("after", ["", ',"create":true', ' , "producer":{"id":"p","epoch":1,"index":2}'])
@pytest.mark.parametrize("comma", [",", " ,\n  "])
def test_an_ordinary_body_is_not_left_to_one_call(
    monkeypatch: pytest.MonkeyPatch, before: str, after: str, comma: str
) -> None:
    """[P-10]: else nothing is won."""
    monkeypatch.setattr(pieces, "STEP_BYTES", 100)
    monkeypatch.setattr(pieces, "_LOOKED_AT", 80)
    records = comma.join(['{"data":[{"n":1},{"data":"},{"}],"tag":"t"}'] * 50)
    body = f'{{{before}"records" : [{records}]{after}}}'.encode()
    found = in_pieces([body[:1000], body[1000:]])
    assert found is not None
    around, runs = found
    assert len(runs) > 5
    assert msgspec.structs.replace(around, records=[one for run in runs for one in run]) == _WRITE.decode(body)


def test_a_long_record_is_gone_through_a_few_times_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    """[P-10]: what is decoded in vain grows with the record, not with its square."""
    tried: list[int] = []
    records = pieces._records
    monkeypatch.setattr(pieces, "PIECE_MAX", 1 << 20)
    monkeypatch.setattr(pieces, "_records", lambda piece: (tried.append(len(piece)), records(piece))[1])
    inner = ",".join(['{"data":1}'] * 4000)
    body = b'{"records":[{"data":[%b]},{"data":2}]}' % inner.encode()
    assert in_pieces([body]) is not None
    assert sum(tried) < 10 * len(body)


def outcome_of(work: Any) -> Any:
    try:
        return work()
    except TopicsError as error:
        return type(error), str(error)


@given(
    st.lists(RECORDS, max_size=25),
    TEXTS | st.none(),
    st.none() | st.sampled_from(["", "k", "k" * 300]),
    st.lists(st.integers(0, 25), max_size=6),
)
def test_records_in_several_lists_are_prepared_as_in_one(
    records: list[Any], node: str | None, key: str | None, cuts: list[int]
) -> None:
    """[WR-1, REC-15]: the same write, or the same words about the first fault."""
    decoder = msgspec.json.Decoder(list[ParsedRecord])
    items = decoder.decode(json.dumps(records))
    places = [0, *sorted(min(cut, len(items)) for cut in cuts), len(items)]
    runs = [items[a:b] for a, b in itertools.pairwise(places)]
    expected = outcome_of(lambda: prepare(items, LIMITS, node, key))
    assert outcome_of(lambda: finished(prepare_in_steps(runs, LIMITS, node, key))) == expected
    assert runs == []


@given(st.lists(st.integers(0, 90_000), min_size=1, max_size=120))
def test_runs_of_a_write_are_the_write(sizes: list[int]) -> None:
    """[S-72]: every record is in one of them, in its order; only a record that is long by itself makes one long."""
    count = len(sizes)
    names = [str(n) for n in range(count)]
    whole = Prepared([None] * count, list(names), [name.encode() for name in names], sizes, sum(sizes))
    runs = list(whole.runs())
    assert [tag for run in runs for tag in run.tags] == names
    assert [text for run in runs for text in run.envelopes] == whole.envelopes
    assert sum(run.total for run in runs) == whole.total
    assert all(len(run.tags) <= 32 and (run.total <= 32 << 10 or len(run.tags) == 1) for run in runs)
