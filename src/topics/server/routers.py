"""Handlers of routers: create, look at, list, delete (05 §2). Event loop only."""

from __future__ import annotations

from typing import Annotated, Any, Final

import msgspec
from msgspec import Raw

from topics.engine import route
from topics.engine.router import Router
from topics.model import Guarantee, RouterConfig, RouterState, check_not_system
from topics.server import wire
from topics.server.describe import SELECTOR, TOPIC_NAME, U64, about
from topics.server.exchange import Exchange
from topics.server.failure import forbidden
from topics.server.topics import name_of

_BODY: Final = msgspec.json.Decoder(dict[str, Raw])
_VALUE: Final = msgspec.json.Decoder(Any)


class RouterBody(msgspec.Struct):
    """A router; whatever is left out takes its default. `RouterConfig` checks it."""

    source: Annotated[str, about("topic that is copied from; created if it is absent", TOPIC_NAME)]
    dest: Annotated[str, about("topic that is copied into", TOPIC_NAME)]
    preserve_node: Annotated[bool, about("copies keep `$node`")] = True
    preserve_tag: Annotated[bool, about("copies keep `$tag`")] = True
    create_dest: Annotated[bool, about("create `dest` if it is absent")] = True
    filter: Annotated[
        str | Annotated[list[str], about("subject, operator, value", SELECTOR)] | None,
        about("copy only records with such a tag; `x*` picks by prefix"),
    ] = None
    allow_cycle: Annotated[bool, about("may close a cycle; records make eight hops at most")] = False
    guarantee: Annotated[Guarantee, about("`exactly_once` stamps copies with a key")] = "at_least_once"


class RouterAnswer(msgspec.Struct):
    """A router."""

    router: str
    source: str
    dest: str
    preserve_node: bool
    preserve_tag: bool
    filter: Annotated[list[str] | None, about("as a tuple")]
    allow_cycle: bool
    guarantee: Guarantee
    performance: wire.Performance
    created: Annotated[bool | msgspec.UnsetType, about("whether this call created it; of PUT only")] = msgspec.UNSET
    forwarded_total: Annotated[int | msgspec.UnsetType, about("copies and holes made; of GET only", U64)] = (
        msgspec.UNSET
    )


class RouterEntry(msgspec.Struct):
    """A router in a list."""

    router: str
    source: str
    dest: str
    guarantee: Guarantee
    forwarded_total: Annotated[int, about("copies and holes made", U64)]
    cursor: Annotated[int, about("highest seq of the source that is handled", U64)]
    lag: Annotated[int, about("seqs of the source that are not", U64)]


class RouterListAnswer(msgspec.Struct):
    """Routers, ascending by name."""

    routers: list[RouterEntry]
    performance: wire.Performance
    next_cursor: Annotated[str | msgspec.UnsetType, about("`cursor` of the next page, if there is one")] = msgspec.UNSET


class RouterDeleteAnswer(msgspec.Struct):
    """What deleting a router did."""

    router: str
    deleted: Annotated[bool, about("whether there was one")]
    performance: wire.Performance


def put(exchange: Exchange) -> None:
    """`PUT /v0/routers/{router}` (05 §2.1)."""
    name = name_of(exchange)
    given = wire.decode(_BODY, exchange.body)
    known = {one: wire.decode(_VALUE, given[one]) for one in RouterConfig.__struct_fields__ if one in given}
    exchange.body_done()
    config = RouterConfig.parse(known)
    for topic in (config.source, config.dest):
        _permitted(exchange, topic)
        check_not_system(topic)

    @exchange.answers
    def done(outcome: Any) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        created, state = outcome
        told = _told(state)
        body = wire.encode({"router": told.pop("router"), "created": created, **told})
        exchange.reply(201 if created else 200, wire.timed(body, exchange.elapsed_ms()))

    route.put(exchange.core, name, config, done)


def _permitted(exchange: Exchange, topic: str) -> None:
    """403 where the key's prefixes leave a topic out [PFX-2, PFX-3]."""
    if not exchange.app.permits(exchange.key, topic):
        raise forbidden("the key is not for this topic", {"topic": topic})


def _told(state: RouterState) -> dict[str, Any]:
    config = state.config
    return {
        "router": state.router,
        "source": config.source,
        "dest": config.dest,
        "preserve_node": config.preserve_node,
        "preserve_tag": config.preserve_tag,
        "filter": None if config.filter is None else ["tag", config.filter.kind, config.filter.text],
        "allow_cycle": config.allow_cycle,
        "guarantee": config.guarantee,
    }


def _check_ends(exchange: Exchange, name: str) -> None:
    """Whoever asks for a router must be allowed its topics [RTR-14]."""
    router = exchange.core.routers.by_name.get(name)
    if router is not None:
        _permitted(exchange, router.config.source)
        _permitted(exchange, router.config.dest)


def get(exchange: Exchange) -> None:
    """`GET /v0/routers/{router}` (05 §2.2)."""
    name = name_of(exchange)
    _check_ends(exchange, name)

    @exchange.answers
    def done(outcome: RouterState | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({**_told(outcome), "forwarded_total": outcome.forwarded_total})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    route.get(exchange.core, name, done)


def listing(exchange: Exchange) -> None:
    """`GET /v0/routers` (05 §2.3)."""
    query = exchange.params()
    after, size = wire.cursor_name(query.get("cursor", "")), wire.page_size(query)
    found = route.listed(exchange.core, query.get("prefix", ""), query.get("source"), query.get("dest"))
    found = [one for one in found if one.name > after and _is_visible(exchange, one)]
    told: dict[str, Any] = {"routers": [_entry(one.state()) for one in found[:size]]}
    if len(found) > size:
        told["next_cursor"] = wire.cursor_after(found[size - 1].name)
    exchange.reply(200, wire.timed(wire.encode(told), exchange.elapsed_ms()))


def _is_visible(exchange: Exchange, router: Router) -> bool:
    """Name, source and dest have to be allowed [RTR-12]."""
    names = (router.name, router.config.source, router.config.dest)
    return all(exchange.app.permits(exchange.key, name) for name in names)


def _entry(state: RouterState) -> dict[str, Any]:
    return {
        "router": state.router,
        "source": state.config.source,
        "dest": state.config.dest,
        "guarantee": state.config.guarantee,
        "forwarded_total": state.forwarded_total,
        "cursor": state.cursor,
        "lag": state.lag,
    }


def delete(exchange: Exchange) -> None:
    """`DELETE /v0/routers/{router}` (05 §2.4)."""
    name = name_of(exchange)
    _check_ends(exchange, name)

    @exchange.answers
    def done(outcome: bool | Exception) -> None:
        if isinstance(outcome, Exception):
            exchange.fail(outcome)
            return
        body = wire.encode({"router": name, "deleted": outcome})
        exchange.reply(200, wire.timed(body, exchange.elapsed_ms()))

    route.delete(exchange.core, name, done)
