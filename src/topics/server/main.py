"""The process behind `topics serve`: bind, recover, signals, drain, exit status (09 §4, [API-5], [API-6]).

    settings, keys, TLS ─▶ lock free? ─▶ bind ─▶ port file ─▶ accept, answering 503 ─▶ recover ─▶ ready
    SIGHUP           keys file and certificate are read again; what cannot be used changes nothing [KEY-4]
    SIGINT, SIGTERM  drain for at most 10 s, final checkpoint, exit 0; during recovery, stop it, exit 0
    a second one     exit 1 at once, without a checkpoint

    status   refusal, one line in the log without any secret [BOOT-6]
    2        bad settings, keys or certificate; beyond loopback without keys
    3        the data directory is in use, not usable, or cannot be recovered
    1        address in use, port file not writable, anything else

One coroutine takes signals and the end of recovery in turn. Main thread, but for recovery and reading of files.
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import logging
import os
import resource
import signal
import socket
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Final, Literal, NamedTuple, NoReturn

import uvloop

import topics
from topics import settings as all_settings
from topics.codec import kernel
from topics.engine.engine import Engine
from topics.errors import SettingsError, TopicsError
from topics.fs import FDS_KEPT, Fs, OsFs, fds_permit
from topics.server import bind, keys
from topics.server.logs import Logs, fields
from topics.server.memory import Memory, keep_memory
from topics.server.server import DRAIN_S, Server
from topics.server.tls import Certificate
from topics.server.watchdog import Watchdog
from topics.settings import Loaded, Settings
from topics.storage.lockfile import check_free
from topics.storage.tiers.open import open_root

log = logging.getLogger("topics.server")

RESERVED_FDS: Final = 512
FDS_MAX: Final = 1 << 20
SWITCH_S: Final = 0.001
"""After so long who has the interpreter is asked to let others go on; 5 ms by default [P-10]. The loop seldom keeps it
as long, so that helpers wait for the end of a pass; and those that rest between stretches do not need it as long."""
GC_THRESHOLD: Final = (50_000, 20, 50)
TERMINAL_EVERY_NS: Final = 100_000_000
PLAIN_EVERY_NS: Final = 5_000_000_000
CLASSES: Final = "disk unless a topic says fsync, memory or ephemeral"


class Refusal(Exception):
    """Why the process does not start, and the status it ends with."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


def serve(
    flags: Mapping[str, str], logs: Logs, *, quiet: bool = False, debug: bool = False, fs: Fs | None = None
) -> int:
    """Run the server until it is told to stop; the exit status."""
    try:
        plan = prepare(flags, logs, quiet=quiet)
        sys.setswitchinterval(SWITCH_S)
        keep_memory()
        return uvloop.run(Process(plan, logs, fs).run())
    except SettingsError as error:
        return _refused(Refusal(2, error.code, str(error)), debug=debug)
    except Refusal as refusal:
        return _refused(refusal, debug=debug)
    except Exception:
        log.exception("the server ended by an error of its own")
        return 1


def _refused(refusal: Refusal, *, debug: bool) -> int:
    told = fields(event="refused", code=refusal.code, status=refusal.status)
    log.error("%s", refusal, extra=told, exc_info=debug)
    return refusal.status


# -- before anything is opened -------------------------------------------------------------------------------------


class Plan(NamedTuple):
    """What was decided before anything was opened. Holds digests of keys, no keys [KEY-5]."""

    loaded: Loaded
    entries: list[keys.Entry]
    """Keys of the environment; those of the file are read again."""
    ring: keys.KeyRing
    addresses: list[bind.Address]
    loopback: bool
    certificate: Certificate | None
    warnings: list[str]
    banner: bool = True


def prepare(flags: Mapping[str, str], logs: Logs, *, quiet: bool = False) -> Plan:
    """Judge settings, keys, address, certificate and descriptors; a `SettingsError` when they do not do."""
    loaded, entries = _without_secrets(all_settings.from_env(flags))
    settings = loaded.settings
    logs.set_level("warning" if quiet and settings.log_level in ("debug", "info") else settings.log_level)
    kernel.select(settings.kernel)
    if settings.cold_dir is not None:
        settings = dataclasses.replace(settings, cold_dir=_cold(settings.cold_dir))
        loaded = loaded._replace(settings=settings)
    warnings = list(loaded.warnings)
    ring = keys.KeyRing(entries)
    if settings.api_keys_file is not None:
        found = keys.load(settings.api_keys_file)
        ring = keys.KeyRing([*entries, *found.entries])
        warnings += found.warnings
    addresses = _addresses(settings)
    loopback = bind.is_loopback(addresses)
    _refuse_open_door(settings, len(ring), loopback=loopback)
    certificate = None
    if settings.tls_cert is not None and settings.tls_key is not None:
        certificate = Certificate(settings.tls_cert, settings.tls_key)
    most = descriptors_permit(settings)
    if most != settings.max_connections:
        if settings.max_connections:
            warnings.append(f"at most {most} connections instead of {settings.max_connections}: the descriptor limit")
        settings = dataclasses.replace(settings, max_connections=most)
    kept = fds_permit(settings.max_fds)
    if settings.max_fds is not None and kept != settings.max_fds:
        warnings.append(f"at most {kept} files open for reading instead of {settings.max_fds}: the descriptor limit")
    loaded = loaded._replace(settings=dataclasses.replace(settings, max_fds=kept))
    return Plan(loaded, entries, ring, addresses, loopback, certificate, warnings, banner=not quiet)


def _without_secrets(loaded: Loaded) -> tuple[Loaded, list[keys.Entry]]:
    """The keys of the environment as digests; their text is dropped [KEY-5]."""
    entries = keys.parse(loaded.settings.api_keys or "")
    all_settings.forget_api_keys()
    return loaded._replace(settings=dataclasses.replace(loaded.settings, api_keys=None)), entries


def _cold(where: str) -> str:
    """The cold tier as snapshots and plans name it: a folder by its whole path; a bad URL ends here [S-302, S-380]."""
    root = open_root(where, OsFs())
    name = root.name
    root.close()
    return name if "://" in name else os.path.abspath(name)


def _addresses(settings: Settings) -> list[bind.Address]:
    try:
        return bind.resolve(*settings.bind)
    except OSError:
        return []  # not loopback; binding says why


def _refuse_open_door(settings: Settings, count: int, *, loopback: bool) -> None:
    """[BOOT-1]"""
    if not (loopback or count or settings.allow_insecure_no_auth):
        raise SettingsError(
            "TOPICS_HOST",
            f"{settings.bind[0]} is reachable from other machines and there are no API keys; set TOPICS_API_KEYS or "
            "TOPICS_API_KEYS_FILE, bind to 127.0.0.1, or waive this with TOPICS_ALLOW_INSECURE_NO_AUTH=1",
        )


def descriptors_permit(settings: Settings) -> int:
    """How many connections fit the descriptor limit, which is raised as far as needed and permitted."""
    wanted = settings.max_connections
    reading = (FDS_KEPT if settings.max_fds is None else settings.max_fds) + settings.max_maps
    needed = min(wanted + RESERVED_FDS + reading, FDS_MAX) if wanted else FDS_MAX
    limit, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit != resource.RLIM_INFINITY and limit < needed:
        higher = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (higher, hard))
            limit = higher
        except (OSError, ValueError) as error:
            log.info("the descriptor limit stays at %d: %s", limit, error)
    if limit == resource.RLIM_INFINITY:
        return wanted
    most = limit - RESERVED_FDS if limit > RESERVED_FDS else limit // 4
    return min(wanted, most) if wanted else most


# -- the process ---------------------------------------------------------------------------------------------------


class _Halted(Exception):
    """Recovery was told to stop."""


Event = Literal["stop", "reload", "recovered"]


class Process:
    """One run of the server."""

    def __init__(self, plan: Plan, logs: Logs, fs: Fs | None = None) -> None:
        self._plan = plan
        self._logs = logs
        self._fs = fs or OsFs()
        self._settings = plan.loaded.settings
        # None stays None: an engine on a disk that it was given does not ask the machine for its boot id.
        self.server = Server(plan.loaded, plan.ring, loopback=plan.loopback, fs=fs)
        self._app = self.server.app
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._stopping = False
        self._halted = False
        self._told_ns = self._app.clock.monotonic_ns()

    async def run(self) -> int:
        """Until a signal; 0, or a `Refusal`."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)
        self._logs.keep_warnings(lambda message: self._keep_warning(loop, message))
        watchdog, memory = Watchdog(self._app), Memory()
        await self._open()
        watchdog.start(loop)
        memory.start(loop)
        recovery = asyncio.ensure_future(self._recover())
        recovery.add_done_callback(lambda _: self._events.put_nowait("recovered"))
        try:
            while (event := await self._events.get()) != "stop":
                if event == "reload":
                    await self._reload()
                else:
                    recovery.result()
            return await self._stop(recovery)
        finally:
            watchdog.stop()
            memory.stop()

    def _keep_warning(self, loop: asyncio.AbstractEventLoop, message: str) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._app.keep_warning, message)

    # -- starting ----------------------------------------------------------------------------------------------------

    async def _open(self) -> None:
        try:
            check_free(self._fs, self._settings.data_dir)
        except (OSError, TopicsError) as error:
            raise _storage(error) from error
        sockets = self._bound()
        where = bind.spelled(sockets[0].getsockname())
        if self._settings.port_file is not None:
            try:
                bind.write_port_file(self._fs, self._settings.port_file, where)
            except OSError as error:
                bind.close(sockets)
                message = f"TOPICS_PORT_FILE {self._settings.port_file} cannot be written: {error.strerror or error}"
                raise Refusal(1, "port_file", message) from error
        certificate = self._plan.certificate
        await self.server.listen(None if certificate is None else certificate.context, sockets)
        self._announce(f"{'http' if certificate is None else 'https'}://{where}")

    def _bound(self) -> list[socket.socket]:
        host, port = self._settings.bind
        try:
            return bind.listening(self._plan.addresses or bind.resolve(host, port))
        except OSError as error:
            why = error.strerror or str(error)
            raise Refusal(1, "bind", f"cannot listen on {bind.spelled((host, port))}: {why}") from error

    def _announce(self, url: str) -> None:
        """[ENV-2, KEY-8, ENV-3]"""
        settings, count = self._settings, len(self._app.keys)
        if self._plan.banner and self._logs.is_terminal:
            self._logs.print(self._banner(url))
        else:
            limits = {row.field: getattr(settings, row.field) for row in _limit_rows()}
            told = fields(
                event="listening", url=url, version=topics.__version__, kernel=kernel.name(), pid=os.getpid(),
                keys=count, data_dir=settings.data_dir, wal_shards=settings.wal_shards, limits=limits,
            )  # fmt: skip
            log.info("listening on %s, %d keys, data in %s", url, count, settings.data_dir, extra=told)
        if not count:
            told_off = f"authentication is OFF: whoever reaches {url} may read, write and delete everything"
            if self._logs.is_terminal and self._plan.banner and self._plan.loopback:
                self._app.keep_warning(told_off)
            else:
                self._app.warn(told_off)
        for message in self._plan.warnings:
            self._app.warn(message)

    def _banner(self, url: str) -> str:
        settings, bold = self._settings, self._logs.bold
        count = len(self._app.keys)
        auth = f"{count} API key{'s' * (count != 1)}" if count else bold("OFF: every request has full access")
        changed = [row.field for row in _limit_rows() if getattr(settings, row.field) != row.default]
        limits = ", ".join(f"{name}={getattr(settings, name)}" for name in changed) or "defaults"
        shards = f"{settings.wal_shards} log shard{'s' * (settings.wal_shards != 1)}"
        return (
            f"{bold(f'topics {topics.__version__}')} ({kernel.name()} kernel) at {bold(url)}\n"
            f"  console  {url}/console/\n"
            f"  data     {settings.data_dir}, {shards}\n"
            f"  classes  {CLASSES}\n"
            f"  auth     {auth}\n"
            f"  limits   {limits}\n"
            "Ctrl-C stops it."
        )

    async def _recover(self) -> None:
        started_ns = self._app.clock.monotonic_ns()
        try:
            engine = await self.server.recover(self._settings.data_dir, self._progress)
        except (OSError, TopicsError) as error:
            raise _storage(error) from error
        took_ms = (self._app.clock.monotonic_ns() - started_ns) // 1_000_000
        spare_the_collector()
        self._tell_recovered(engine, took_ms)

    def _progress(self, share: float) -> None:
        """On the recovery's thread."""
        if self._halted:
            raise _Halted
        now = self._app.clock.monotonic_ns()
        if now - self._told_ns < (TERMINAL_EVERY_NS if self._logs.is_terminal else PLAIN_EVERY_NS):
            return
        self._told_ns = now
        text = f"replaying the log: {share:.0%}"
        if self._logs.is_terminal:
            self._logs.show(text)
        else:
            log.info("%s", text, extra=fields(event="replaying", replay_progress=round(share, 3)))

    def _tell_recovered(self, engine: Engine, took_ms: int) -> None:
        found = engine.core.topics.values()
        classes: Counter[str] = Counter(topic.config.durability for topic in found)
        told = fields(event="ready", topics=len(found), classes=classes, recovery_ms=took_ms)
        log.info("ready after %d ms: %s", took_ms, _counted(classes), extra=told)
        lost = [gap for gap in engine.recovered.gaps if gap.reason]
        if lost:
            first = lost[0]
            self._app.warn(
                f"recovery found {len(lost)} ranges of lost records, which readers are told of; "
                f"the first: topic {first.topic!r}, seqs {first.first} to {first.last}"
            )

    # -- signals -----------------------------------------------------------------------------------------------------

    def _signalled(self, number: signal.Signals) -> None:
        if number == signal.SIGHUP:
            self._events.put_nowait("reload")
        elif not self._stopping:
            self._stopping = True
            log.info("%s: stopping", number.name, extra=fields(event="stopping"))
            self._events.put_nowait("stop")
        else:
            log.warning("%s again: leaving at once, without a checkpoint", number.name)
            self._leave(1)

    def _leave(self, status: int) -> NoReturn:
        """End now. Nothing acknowledged is lost: that is in the log already."""
        self._logs.flush()
        os._exit(status)

    async def _stop(self, recovery: asyncio.Future[None]) -> int:
        self.server.stop_listening()
        self._halted = True
        done, _ = await asyncio.wait({recovery}, timeout=DRAIN_S)
        if not done:
            log.info("recovery does not end; leaving it, the next start begins it anew")
            self._leave(0)
        error = recovery.exception()
        if error is not None and not isinstance(error, _Halted):
            raise error
        started_ns = self._app.clock.monotonic_ns()
        await self.server.drain(DRAIN_S)
        took_ms = (self._app.clock.monotonic_ns() - started_ns) // 1_000_000
        log.info("stopped after %d ms", took_ms, extra=fields(event="stopped", drain_ms=took_ms))
        return 0

    # -- rotation ----------------------------------------------------------------------------------------------------

    async def _reload(self) -> None:
        """SIGHUP [KEY-4]."""
        path = self._settings.api_keys_file
        if path is None:
            log.info("SIGHUP: there is no keys file to read again", extra=fields(event="reloaded", keys=None))
        else:
            await self._reload_keys(path)
        if self._plan.certificate is not None:
            await self._reload_certificate(self._plan.certificate)

    async def _reload_keys(self, path: str) -> None:
        before = self._app.keys
        try:
            found = await asyncio.get_running_loop().run_in_executor(None, keys.load, path)
            entries = [*self._plan.entries, *found.entries]
            if len(before) and not entries:
                raise SettingsError("TOPICS_API_KEYS_FILE", f"{path} holds no key; only a restart can do without keys")
        except SettingsError as error:
            log.error("the keys in force stay: %s", error, extra=fields(event="reload_failed"))
            return
        self.server.use_keys(keys.KeyRing(entries, before))
        for message in found.warnings:
            self._app.warn(message)
        old, new = ({key.digest for key in ring.keys} for ring in (before, self._app.keys))
        told = fields(event="reloaded", keys=len(new))
        log.info("keys read again: %d in force, %d new, %d gone", len(new), len(new - old), len(old - new), extra=told)

    async def _reload_certificate(self, certificate: Certificate) -> None:
        try:
            context = await asyncio.get_running_loop().run_in_executor(None, certificate.read_again)
        except SettingsError as error:
            log.error("the certificate in force stays: %s", error, extra=fields(event="reload_failed"))
            return
        certificate.use(context)
        log.info("certificate read again", extra=fields(event="certificate_reloaded"))


def _storage(error: OSError | TopicsError) -> Refusal:
    """[BOOT-3, BOOT-4]"""
    code = error.code if isinstance(error, TopicsError) else "io_error"
    return Refusal(3, code, f"the store cannot be opened: {error}")


def spare_the_collector() -> None:
    """What is there after recovery stays: looking through it again and again held up the loop for 20 ms [P-10].

    A write makes no cycles, so that collecting seldom costs no memory.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def _limit_rows() -> list[all_settings.Setting]:
    return [row for row in all_settings.SERVER_TABLE if row.group in ("Request limits", "Resource limits")]


def _counted(classes: Mapping[str, int]) -> str:
    total = sum(classes.values())
    parts = ", ".join(f"{count} {name}" for name, count in sorted(classes.items()))
    return f"{total} topic{'s' * (total != 1)}" + (f" ({parts})" if parts else "")
