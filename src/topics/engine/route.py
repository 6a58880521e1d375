"""Routers come, change and go: put, get, list, delete (05 §2, §5, §6).

Operations on routers are carried out one after another, so the order of their numbers is that of the log [S-43]. A put
checks everything before it changes anything [RTR-4, RTR-5]; it is synced before it is answered. From the stretch that
takes a destination's head its edge exists: whatever is written to the destination from then on carries positions
[S-212 e]. A removal stops forwarding at once and brings the copies into segments before the router goes [S-212 f].
Another definition stops it too, and follows copies and positions into the log: it changes no copy there is [RTR-8].

Owner only.
"""

from __future__ import annotations

from topics.codec import control, frame
from topics.engine import copies, forward, lifecycle
from topics.engine.core import Core, Outcome, follows, guarded, once
from topics.engine.router import Edge, Position, Router
from topics.engine.topic import Lsn, Topic
from topics.errors import (
    CallerError,
    EngineClosed,
    LimitReached,
    RouterCycle,
    RouterFanIn,
    RouterNotFound,
    RouterRepoint,
    TopicNotFound,
    TopicsError,
)
from topics.model import RouterConfig, check_not_system, not_a_router, not_a_topic, valid_router_name, valid_topic_name


def put(core: Core, name: str, config: RouterConfig, done: Outcome) -> None:
    """Create a router, or replace all of it but its ends; answers `(created, RouterState)`."""
    core.routers.in_turn(lambda ended: _Put(core, name, config, ended).go_on(), done)


class _Put:
    """One put on its way: whatever it waits for, everything is checked anew behind it."""

    def __init__(self, core: Core, name: str, config: RouterConfig, done: Outcome) -> None:
        self._core = core
        self._name = name
        self._config = config
        self._done = done
        self._is_over = False
        self._made: list[Topic] = []
        """Topics created on its behalf."""
        self._paused: list[Edge] = []
        """Nothing is forwarded there until it is decided."""

    def go_on(self) -> None:
        """Check, create what is missing, then log."""
        guarded(self._go_on, self._fail)

    def _go_on(self) -> None:
        core, config = self._core, self._config
        if core.closing:
            raise EngineClosed("the engine is closing")
        for name in (config.source, config.dest):
            if name in core.gates:
                core.gates[name].append(self.go_on)
                return
        missing = self._check()
        if missing:
            lifecycle.create(core, missing[0], None, self._created)
            return
        source, dest = core.names[config.source], core.names[config.dest]
        core.in_line(dest, lambda: self._log(source, dest), self._again, quiet=True)

    def _check(self) -> list[str]:
        """Everything that may refuse it, in order [RTR-4]; which topics are missing."""
        core, name, config = self._core, self._name, self._config
        if not valid_router_name(name):
            raise not_a_router(name)
        for topic in (config.source, config.dest):
            check_not_system(topic)
            if not valid_topic_name(topic):
                raise not_a_topic(topic)
        if config.source == config.dest:
            raise CallerError("a router has two ends: source and dest must differ")
        source, dest = core.names.get(config.source), core.names.get(config.dest)
        if dest is None and not config.create_dest:
            raise TopicNotFound(config.dest)
        existing = core.routers.by_name.get(name)
        feeding = None if dest is None else core.routers.feeding.get(dest.id)
        if feeding is not None and feeding.source is not source and feeding.routers != [existing]:
            raise RouterFanIn(config.dest, feeding.source.name)
        if existing is not None and (existing.edge.source is not source or existing.edge.dest is not dest):
            raise RouterRepoint(name, existing.config.source, existing.config.dest)
        most = core.config.max_routers
        if existing is None and most and len(core.routers.by_name) >= most:
            raise LimitReached("max_routers", most)
        if source is not None and dest is not None and not config.allow_cycle:
            path = core.routers.path(source, dest, existing)
            if path is not None:
                raise RouterCycle([source.name, *path])
        missing = [topic for topic in (config.source, config.dest) if topic not in core.names]
        most = core.config.max_topics
        if missing and most and core.topic_count + len(missing) > most:
            raise LimitReached("max_topics", most)
        return missing

    def _created(self, outcome: object) -> None:
        if isinstance(outcome, Topic):
            self._made.append(outcome)
            self.go_on()
        else:
            self._fail(outcome)

    def _again(self, error: object) -> None:
        """A topic went while the router waited for its turn there, or takes nothing now."""
        if isinstance(error, TopicNotFound):
            self.go_on()
        else:
            self._fail(error)

    def _log(self, source: Topic, dest: Topic) -> None:
        """In one stretch: the topic is a destination from now on, and this is where its copies begin [S-212 e]."""
        core, config = self._core, self._config
        if core.names.get(config.source) is not source or core.names.get(config.dest) is not dest:
            self.go_on()
            return
        existing = core.routers.by_name.get(self._name)
        if existing is None or existing.edge in self._paused:
            self._define(source, dest, existing)
        else:
            self._keep_copies(existing.edge)

    def _keep_copies(self, edge: Edge) -> None:
        """A start would go on by the new definition from where it knows the router to be [RTR-8]."""
        edge.pause()
        self._paused.append(edge)
        copies.log_durably(self._core, edge, lambda error: self._fail(error) if error else self.go_on())

    def _define(self, source: Topic, dest: Topic, existing: Router | None) -> None:
        core, config, routers = self._core, self._config, self._core.routers
        new = existing is None
        op = routers.next_op
        body = control.RouterCreate(
            op=op, inc=op if existing is None else existing.body.inc, name=self._name, source=source.name,
            dest=dest.name, source_id=source.id, dest_id=dest.id, preserve_node=config.preserve_node,
            preserve_tag=config.preserve_tag, create_dest=config.create_dest, allow_cycle=config.allow_cycle,
            guarantee=config.guarantee, selector=config.filter and (config.filter.kind, config.filter.value),
            new=new, created_ms=core.clock.now_ms() if existing is None else existing.body.created_ms,
            cursor=source.head if new else None, base=dest.head if new else None,
        )  # fmt: skip
        edge = routers.edge(core, source, dest)
        if existing is None:
            router = Router(body, edge, Position(core.run, source.head, dest.head, 0))
            routers.add(router)
        else:
            router = existing
        edge.pause()

        def logged(outcome: Lsn | TopicsError | None) -> None:
            routers.next_op = op + 1
            try:
                if isinstance(outcome, TopicsError):
                    if new:
                        routers.remove(router)
                    self._fail(outcome)
                elif source.removed or dest.removed:
                    # Its definition went with the topic; who asked for it gets both anew.
                    if router in edge.routers:
                        routers.remove(router)
                    self.go_on()
                else:
                    self._defined(router, body, new)
            finally:
                edge.resume()

        guarded(lambda: log(core, body, follows(logged, self._fail)), logged)

    def _defined(self, router: Router, body: control.RouterCreate, new: bool) -> None:
        self._core.routers.by_name[self._name] = router
        router.define(body)
        self._end((new, router.state()))

    def _fail(self, error: object) -> None:
        """Nothing of it stays: topics that were made for it go again, unless somebody uses them [RTR-5]."""
        if self._is_over:
            return
        core = self._core
        for topic in self._made:
            if core.names.get(topic.name) is topic and not core.routers.edges_of(topic) and not core.closing:
                lifecycle.delete(core, topic.name, lambda outcome: None, if_empty=True)
        self._end(error)

    def _end(self, outcome: object) -> None:
        """Once: what is met behind the answer comes here, too."""
        if self._is_over:
            return
        self._is_over = True
        try:
            for edge in self._paused:
                edge.resume()
        finally:
            self._done(outcome)


def log(core: Core, body: control.RouterCreate | control.RouterDelete, done: Outcome) -> None:
    """Log an operation durably, in the group of shard 0 [S-46, S-47]."""
    if core.wal is None:
        done(None)
        return
    try:
        core.submit(0, frame.encode_control(body, 0, core.clock.now_ms(), durable=True), 1, done, durable=True)
    except TopicsError as error:
        done(error)


def get(core: Core, name: str, done: Outcome) -> None:
    """A router that has handled what its source had when it was asked for [RTR-10]; answers a `RouterState`."""
    if core.closing:
        done(EngineClosed("the engine is closing"))
        return
    router = core.routers.by_name.get(name)
    if router is None:
        done(RouterNotFound(name))
        return

    def go_on() -> None:
        found = core.routers.by_name.get(name)
        done(RouterNotFound(name) if found is None else found.state())

    forward.drain(core, router.edge.dest, go_on, done)


def listed(core: Core, prefix: str = "", source: str | None = None, dest: str | None = None) -> list[Router]:
    """Routers by name; nothing is forwarded for it [RTR-11]."""
    return [
        router
        for name, router in sorted(core.routers.by_name.items())
        if name.startswith(prefix)
        and (source is None or router.config.source == source)
        and (dest is None or router.config.dest == dest)
    ]


def delete(core: Core, name: str, done: Outcome) -> None:
    """Delete a router; answers whether there was one [RTR-13]."""
    core.routers.in_turn(lambda ended: _delete(core, name, ended), done)


def _delete(core: Core, name: str, done: Outcome) -> None:
    router = core.routers.by_name.get(name)
    if core.closing:
        done(EngineClosed("the engine is closing"))
        return
    if router is None:
        done(False)
        return
    edge: Edge = router.edge
    op = core.routers.next_op
    edge.pause()

    @once
    def over(outcome: object) -> None:
        try:
            edge.resume()
        finally:
            done(outcome)

    def kept(error: TopicsError | None) -> None:
        if error is not None:
            over(error)
        elif core.routers.by_name.get(name) is not router:
            over(True)  # it went with a topic meanwhile
        else:
            log(core, control.RouterDelete(op=op, name=name), follows(logged, over))

    def logged(outcome: Lsn | TopicsError | None) -> None:
        core.routers.next_op = op + 1
        if isinstance(outcome, TopicsError):
            over(outcome)
            return
        if core.routers.by_name.get(name) is router:
            core.routers.remove(router)
        over(True)

    def quiet() -> None:
        guarded(lambda: lifecycle.keep_copies(core, [edge], follows(kept, over)), over)

    core.in_line(edge.dest, quiet, follows(lambda error: kept(None), over), quiet=True)
