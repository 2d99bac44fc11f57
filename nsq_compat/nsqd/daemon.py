"""One nsqd: its queue, its listeners, the order in which they start and stop, and drains."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from socket import gethostname
from typing import TYPE_CHECKING, Any

import gevent
from gevent.event import Event

from nsq_compat import NSQ_VERSION, build_line, version_line
from nsq_compat.cli.flags import load_access
from nsq_compat.cli.kinds import TLS_REQUIRED, OptionError
from nsq_compat.cli.logs import DEBUG, parse_log_level, set_level
from nsq_compat.cli.options import option_value
from nsq_compat.log.data_path import reason, resolved
from nsq_compat.log.files import Files, OsFiles
from nsq_compat.log.mirrored_files import Changes, Confirmations, MirroredFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.net.certificates import load_certificates
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import AlarmClock, BusyPoll, LoopLag, LoopTick, has_spare_cpu, turns, yield_to_loop
from nsq_compat.net.process import descriptors_left_by_clients, exempt_from_collection
from nsq_compat.net.server import ConnectionLimits, HttpServer, TcpServer
from nsq_compat.net.sockets import listen, port_of
from nsq_compat.nsqd import startup
from nsq_compat.nsqd.durability import (
    SYNC_BUCKETS,
    Checkpoints,
    Committer,
    DeadLetterSender,
    FolderWatch,
    MetadataFile,
    wait_for,
)
from nsq_compat.nsqd.http_calls import AuthServers
from nsq_compat.nsqd.lookup_peers import LookupPeers, TopicChannels
from nsq_compat.nsqd.options import PROGRAM, SYNC, NsqdOptions, complete, takeover_seconds
from nsq_compat.nsqd.statsd import StatsdPush
from nsq_compat.policy.dead_letters import DeadLetterQueues, Transfer
from nsq_compat.policy.enforcer import PolicyEnforcer
from nsq_compat.policy.policies import Policies
from nsq_compat.protocol.compression import SNAPPY_INSTALLED, SNAPPY_MISSING
from nsq_compat.protocol.durations import SECOND
from nsq_compat.protocol.frames import error_frame
from nsq_compat.protocol.lookup_commands import PeerInfo
from nsq_compat.protocol.names import address_error
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats
from nsq_compat.session.authorization import TOKEN_SECONDS, AuthFailed, Credentials, Grants, grants_of
from nsq_compat.session.http_message import HttpHandler
from nsq_compat.session.nsqd_session import NsqdSession
from nsq_compat.web.access import TokenCheck
from nsq_compat.web.application import TlsRequired
from nsq_compat.web.hosts import HostCheck
from nsq_compat.web.metrics import Metrics, count_refused, count_refused_connections
from nsq_compat.web.nsqd_api import NsqdApi
from nsq_compat.web.stats import MemoryStats

if TYPE_CHECKING:
    from nsq_compat.nsqd.mirror import Adopted, Mirror
    from nsq_compat.nsqd.standby import Standby

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long a stop waits for connections to end."""
_DRAIN_POLL_SECONDS = 0.1
_TRANSFER_SECONDS = 2.0
_POLL_SECONDS = 0.01
_WOKEN_AT_ONCE = 16
_ASKED_AT_ONCE = 4096
_TOPICS_PER_EXEMPTION = 500
"""Collecting the objects of a thousand topics takes 10 ms."""


class Daemon:
    """Owns its data path and listens from its construction on; serves between `start` and `stop`.

    It is the ``web.nsqd_service.NsqdService`` of its HTTP API. `drained` is set when a drain is done and the daemon may
    stop. The constructor raises ``OptionError``, ``CertificateError``, ``DataPathError`` and ``ListenError``, `start`
    ``MetadataError`` and ``OSError``.
    """

    now = staticmethod(time.monotonic)
    now_ns = staticmethod(time.time_ns)

    def __init__(self, options: NsqdOptions) -> None:
        self.options = options
        self.started_at = time.time()
        data_path = resolved(options.data_path)
        files: Files = OsFiles()
        self._lock = startup.lock_data_path(files, data_path)
        identity = startup.begin_epoch(files, data_path) if options.mirror_to or options.mirror_accept else None
        changes = Changes(threading.Lock())
        confirmations = Confirmations(changes)
        if options.mirror_to:
            files = MirroredFiles(files, data_path, changes)
        self.mirror: Mirror | None = None
        self.standby: Standby | None = None
        log.info("%s", version_line(PROGRAM))
        log.info("%s", build_line())
        log.info("ID: %d", options.id)
        if options.snappy and not SNAPPY_INSTALLED:
            log.warning("snappy is not offered to clients: %s", SNAPPY_MISSING)
        self._certificates = load_certificates(options)
        self._limits = startup.session_limits(options)
        self._calls = startup.make_http_calls(options)
        self._lookupd_tls = startup.make_lookupd_tls(options)
        self._auth = AuthServers(options.auth_http_addresses, options.auth_http_request_method, self._calls)
        self._access = load_access(options.access_file)
        self._token_check = TokenCheck(self._access, PROGRAM) if self._access is not None else None
        self._token_watch = gevent.Greenlet(self._watch_tokens)
        self.metrics = Metrics(PROGRAM)
        self._connection_limits = ConnectionLimits(
            options.max_connections_per_address, options.max_new_connections_per_second
        )
        count_refused_connections(self.metrics, PROGRAM, self._connection_limits.refused)
        self.memory = MemoryStats().stats
        self.loop_lag = 0.0
        self._loop_lag = LoopLag(self._observe_lag, self.metrics.observe_held)
        observe_sync = self.metrics.histogram("nsqd_fsync_seconds", "Time a sync of a log took.", SYNC_BUCKETS)
        loop = gevent.get_hub().loop
        self._storage = Storage(
            files,
            data_path,
            durability=Durability(options.durability),
            segment_size=options.max_bytes_per_file,
            commit=Committer(observe_sync, lambda: self._storage.check_folder()).commit,
            confirm=confirmations.confirm if options.mirror_to and options.mirror_mode == SYNC else None,
            wait=wait_for,
            open_files=descriptors_left_by_clients() // 2,
            later=loop.run_callback,
            at_end_of_iteration=loop.run_callback,
            clock_offset=lambda: time.time() - time.monotonic(),
        )
        self.broker = Broker(startup.queue_limits(options), self._storage)
        self.broker.observers.append(CollectionExemption(self.broker))
        self._policies = startup.load_policies(options.config)
        self._enforcer = PolicyEnforcer(self.broker, time.monotonic, time.time_ns)
        count_refused(
            self.metrics,
            "nsqd_creations_refused",
            "Topics and channels beyond a limit of a policy.",
            self._enforcer.refused_creations,
        )
        self._dead_letters = DeadLetterSender(self._enforcer.dead_letters)
        self._metadata = MetadataFile(self._storage, self.broker)
        self._folder_watch = FolderWatch(self._storage)
        self._checkpoints = Checkpoints(self.broker, self._storage, options.sync_timeout / SECOND)
        self._alarms = AlarmClock(self.broker.schedule)
        self.drained = Event()
        self.draining = False
        self._drain = gevent.Greenlet(self._wait_until_drained)
        tick = LoopTick(loop)
        if options.mirror_to and identity is not None:
            from nsq_compat.nsqd.mirror import make_mirror  # no other nsqd needs it

            self.mirror = make_mirror(
                options, files, changes, confirmations, identity, tick, describe=self._describe, forget=self._forget
            )
        if options.mirror_accept and identity is not None:
            from nsq_compat.nsqd import standby

            self.standby = standby.Standby(
                OsFiles(),
                self._storage,
                self.broker,
                identity=identity.identity,
                syncs=self._storage.durability is Durability.FSYNC,
                takeover_after=takeover_seconds(options),
                is_listed=self._is_listed,
                save=self._checkpoints.save,
                save_metadata=self._metadata.save,
                new_ids=self._enforcer.new_ids,
            )
        self._waiters: dict[Event, Callable[[], bool]] = {}
        self._is_stopping = False
        self._waker = gevent.spawn(self._wake_waiters)
        self._listen(tick)
        info = PeerInfo(
            broadcast_address=options.broadcast_address,
            hostname=gethostname(),
            http_port=options.broadcast_http_port,
            tcp_port=options.broadcast_tcp_port,
            topology_region=options.topology_region,
            topology_zone=options.topology_zone,
            version=NSQ_VERSION,
        )
        self._lookup_peers = LookupPeers(self.broker, info, tick, self._lookupd_tls, options.cluster_token)
        self._topic_channels = TopicChannels(
            self.broker, self._lookup_peers, self._calls, options.http_client_request_timeout / SECOND
        )
        self._statsd = StatsdPush(options, self.broker, self.memory) if options.statsd_address else None

    def _listen(self, tick: LoopTick) -> None:
        """Make the servers, which share `tick`, and complete the options that depend on their ports."""
        options = self.options
        make_tls = self._certificates.make_tls if self._certificates else None
        tcp_listener = listen(options.tcp_address)
        http_listener = listen(options.http_address) if options.http_address else None
        https_listener = listen(options.https_address) if options.https_address and make_tls else None
        self.tcp_port = port_of(tcp_listener)
        self.http_port = port_of(http_listener) if http_listener else 0
        complete(options, max(self.tcp_port, 0), max(self.http_port, 0))
        if problem := address_error(options.broadcast_address):
            log.warning("--broadcast-address: %s; clients that look up a topic, and nsqadmin, skip this nsqd", problem)

        syncs_first = self._storage.durability is Durability.FSYNC or self._storage.confirm is not None
        # Sessions wait only for auth servers, for the disk where it is synced before OK, and for the standby.
        waits = bool(options.auth_http_addresses) or syncs_first or options.mirror_accept
        self._publish_batch = PublishBatch(tick.call)
        # Polling gains nothing if sessions wait for the disk or for auth servers.
        polls = options.busy_poll_time > 0 or (not waits and has_spare_cpu())
        self._busy_poll = BusyPoll(options.busy_poll_time / SECOND) if polls else None
        limits = self._connection_limits
        self._tcp = TcpServer(
            tcp_listener,
            self._make_session,
            make_tls,
            session_waits=waits,
            busy_poll=self._busy_poll,
            tick=tick,
            limits=limits,
            refusal=error_frame(b"E_TOO_MANY_CONNECTIONS this address has too many connections"),
        )

        self._api = api = NsqdApi(self, self._publish_batch, self._token_check)
        handler: HttpHandler = api
        if self._token_check is not None:
            self.metrics.collect_from(partial(self._token_check.collect, api))
            names = (options.broadcast_address,)
            handler = HostCheck(api, PROGRAM, options.http_address, names, authorized_pass=True)
        is_open = options.publishing_over_http and self._token_check is None
        publishing = api.publishing if is_open and not syncs_first else None
        self._http: list[HttpServer] = []
        if http_listener and options.tls_required == TLS_REQUIRED:
            refusing = TlsRequired(port_of(https_listener) if https_listener else 0)
            self._http.append(HttpServer(http_listener, refusing, tick=tick, connection_limits=limits))
        elif http_listener:
            self._http.append(
                HttpServer(http_listener, handler, immediate=publishing, tick=tick, connection_limits=limits)
            )
        if https_listener:
            self._http.append(
                HttpServer(
                    https_listener,
                    handler,
                    name="HTTPS",
                    tls=make_tls,
                    immediate=publishing,
                    tick=tick,
                    connection_limits=limits,
                )
            )

    def _make_session(self, connection: Connection[NsqdSession], host: str, now: float, now_ns: int) -> NsqdSession:
        session = NsqdSession(
            self.broker,
            self._limits,
            peer=connection.peer,
            host=host,
            wake=connection.wake,
            abort=connection.abort,
            authorize=self._auth.authorize if self._access is None else self._authorize,
            publish_batch=self._publish_batch,
            standby=self.standby,
            now=now,
            now_ns=now_ns,
        )
        if self.options.log_level == DEBUG:
            session.trace(True)
        return session

    def start(self) -> None:
        """Restore the data path, then serve. Clients that connect meanwhile wait in the kernel's queue."""
        startup.restore(self.broker, self._storage)
        self._enforcer.apply(self._policies)
        startup.recall_ids(self.broker)
        self._dead_letters.start()
        self._metadata.start()
        self._metadata.save()
        self._folder_watch.start()
        self._checkpoints.start()
        self._alarms.start()
        self._loop_lag.start()
        if self._access is not None:
            self._token_watch.start()
        if self.mirror is not None:
            self.mirror.start(
                {
                    name: topic.store.log.found_end()
                    for name, topic in self.broker.topics.items()
                    if topic.store is not None
                }
            )
            self.mirror.was_asked.wait(self.options.mirror_timeout / SECOND)  # what was taken over is not served here
        if self.standby is not None:
            self.standby.start()
        self._lookup_peers.set_addresses(self.options.nsqlookupd_tcp_addresses)
        self._topic_channels.start()
        self._tcp.start()
        for server in self._http:
            server.start()
        if self._statsd is not None:
            self._statsd.start()

    def stop(self) -> None:
        """End every connection and then the queue, so that no message is accepted that could not be stored."""
        self._is_stopping = True
        for is_over in self._waiters:
            is_over.set()
        self._drain.kill()
        self._token_watch.kill()
        self._lookup_peers.stop()  # before connections end, so that no client is directed here
        self._calls.stop()
        self._tcp.stop(STOP_SECONDS)
        for server in self._http:
            server.stop(STOP_SECONDS)
        self._dead_letters.stop()
        self._topic_channels.stop()
        self._metadata.stop()
        log.info("NSQ: closing topics")
        self._alarms.stop()
        if self._busy_poll is not None:
            self._busy_poll.stop()
        self._loop_lag.stop()
        self._folder_watch.stop()
        self._checkpoints.stop()
        if self.standby is not None:
            self.standby.stop()  # what it takes over needs topics that are open
        self.broker.close()
        self._checkpoints.write_last()
        if self.mirror is not None:
            self.mirror.stop()
        log.info("NSQ: stopping subsystems")
        if self._statsd is not None:
            self._statsd.stop()
        self._lock.release()
        log.info("NSQ: bye")

    def reload(self) -> None:
        """Read the certificates, the access file and the policies again. If invalid, the present ones stay in force."""
        if self._certificates is None:
            log.info("TLS: no certificate to reload")
        else:
            self._certificates.reload()
        self._lookupd_tls.reload()
        if self._access is not None and self._access.reload():
            self._end_unauthorized()
        if self.options.config:
            try:
                self._apply(startup.load_policies(self.options.config))
            except OptionError as error:
                log.error("keeping the policies in force - %s", error)

    def _apply(self, policies: Policies) -> None:
        self._enforcer.apply(policies)
        log.info("NSQ: %d policies in force", len(policies))

    # --- Tokens -------------------------------------------------------------------------------------------------------

    def _authorize(self, credentials: Credentials) -> Grants:
        return self._grants(credentials.secret)

    def _grants(self, secret: bytes) -> Grants:
        """What a token permits. Raises ``AuthFailed``."""
        assert self._access is not None, "called only with an access file"
        token = self._access.tokens.find(secret, time.time())
        if token is None:
            raise AuthFailed("unknown or expired token")
        return grants_of(token, time.monotonic())

    def _watch_tokens(self) -> None:
        """End the connections of tokens that have expired."""
        while True:
            gevent.sleep(TOKEN_SECONDS)
            self._end_unauthorized()

    def _end_unauthorized(self) -> None:
        self._tcp.abort_unless(lambda session: session.may_continue(self._grants))
        self._api.end_refused()

    # --- Mirroring ----------------------------------------------------------------------------------------------------

    def _describe(self) -> dict[str, object]:
        options = self.options
        return {
            "broadcast_address": options.broadcast_address,
            "tcp_port": options.broadcast_tcp_port,
            "http_port": options.broadcast_http_port,
            "node_id": options.id,
        }

    def _forget(self, adopted: "Mapping[str, Adopted]") -> None:
        """The standby delivers what it has of these topics."""
        for name, had in adopted.items():
            yield_to_loop()
            for channel in had.channels if not self.draining else ():  # new messages are for them, too
                self.broker.topic(name, checked=False, waits=False).channel(channel, waits=False)
            topic = self.broker.topics.get(name)
            if topic is None or not had.offset:
                continue
            why = "the last message that the standby has is not there"
            try:
                if topic.forget_before(had.offset, had.last_id.encode("ascii"), time.time_ns(), had.empty_until):
                    continue
            except OSError as error:
                why = reason(error)
            log.warning("TOPIC(%s): messages are delivered here and at the standby - %s", name, why)

    def _is_listed(self, host: str, port: int) -> bool:
        """Whether an nsqlookupd lists a primary, or may do so: an nsqd that leaves is connected to none of them."""
        return self.draining or self._is_stopping or self._lookup_peers.lists(host, port, self._calls)

    def mirroring(self) -> dict[str, Any]:
        return {
            "standby": self.mirror.state_of_standby() if self.mirror is not None else None,
            "accepts": self.standby is not None,
            "primaries": self.standby.primaries() if self.standby is not None else [],
        }

    def adopt(self, identity: str) -> list[str]:
        if self.standby is None:
            raise KeyError(identity)
        return self.standby.adopt(identity)

    # --- Draining -----------------------------------------------------------------------------------------------------

    def drain(self) -> None:
        """Refuse new messages, deliver those that are left, and then set `drained`. Returns at once; cannot be undone.

        The node unregisters from nsqlookupd. Consumers are served, and others may still connect. The drain is done when
        every channel is empty, with no message in flight or deferred, or after `--drain-timeout`. Remaining messages
        stay in the data path, as after any stop.
        """
        if not self.draining:
            self.draining = True
            log.info("NSQ: draining")
            self.broker.refuse_publishing()
            self._drain.start()

    def _wait_until_drained(self) -> None:
        timeout = self.options.drain_timeout / SECOND
        deadline = time.monotonic() + timeout
        try:
            self._lookup_peers.stop()
            while any(self._undelivered()):  # the first topic with messages ends the search
                if timeout and time.monotonic() >= deadline:
                    log.warning("NSQ: drain timed out, %d messages are left", sum(self._undelivered()))
                    return
                gevent.sleep(_DRAIN_POLL_SECONDS)
            log.info("NSQ: drained")
        finally:
            self.drained.set()

    def _undelivered(self) -> Iterator[int]:
        """Numbers of messages. A topic without channels keeps its messages and is not counted."""
        for topic in self.broker.topics.values():
            if topic.channels or topic.awaits_channels:
                yield topic.depth
            for channel in topic.channels.values():
                yield channel.depth + channel.in_flight_count + channel.deferred_count

    # --- For the HTTP API ---------------------------------------------------------------------------------------------

    def health(self) -> str:
        problem = self._storage.problem
        return "OK" if problem is None else f"NOK - {problem}"

    def _observe_lag(self, seconds: float) -> None:
        self.loop_lag += seconds
        self.metrics.observe_lag(seconds)

    def disk_space(self) -> tuple[int, int]:
        try:
            found = os.statvfs(self._storage.data_path)
        except OSError:
            return 0, 0
        return found.f_bavail * found.f_frsize, found.f_blocks * found.f_frsize

    def read_errors(self) -> int:
        return self._storage.read_errors

    def producers(self) -> Iterator[ClientStats]:
        return (session.stats() for session in self._tcp.sessions if session.has_published)

    def close_client(self, address: str) -> bool:
        return self._tcp.close_client(address) or any(server.close_client(address) for server in self._http)

    def connection_count(self) -> int:
        return len(self._tcp.sessions)

    def config_value(self, name: str) -> object:
        if name == "drain":
            return self.draining
        if name == "policies":
            return self._enforcer.policies.written
        return option_value(self.options, name)

    def set_log_level(self, text: str) -> None:
        self.options.log_level = parse_log_level(text)
        set_level(self.options.log_level)
        for session in self._tcp.sessions:
            session.trace(self.options.log_level == DEBUG)

    def set_lookupd_addresses(self, addresses: Sequence[str] | None) -> None:
        self.options.nsqlookupd_tcp_addresses = tuple(addresses or ())
        if not self.draining:
            self._lookup_peers.set_addresses(self.options.nsqlookupd_tcp_addresses)

    @property
    def dead_letters(self) -> DeadLetterQueues:
        return self._enforcer.dead_letters

    def await_transfer(self, transfer: Transfer) -> None:
        self.wait_until(lambda: transfer.is_over, _TRANSFER_SECONDS)

    def call_in_turn(self, callback: Callable[[], None]) -> None:
        turns().call(callback)

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        if condition():
            return True
        if self._is_stopping:
            return False
        is_over = Event()
        self._waiters[is_over] = condition
        if self._waker.ready():
            self._waker = gevent.spawn(self._wake_waiters)
        try:
            was_true = is_over.wait(seconds) and not self._is_stopping
        finally:
            del self._waiters[is_over]
        return was_true or condition()

    def _wake_waiters(self) -> None:
        # One timer for all: thousands of clients may wait for the next message of a topic.
        while self._waiters:
            gevent.sleep(_POLL_SECONDS)
            woken = 0
            for number, (is_over, condition) in enumerate([*self._waiters.items()], 1):
                if condition():
                    is_over.set()
                    woken += 1
                # Some at a time. If they wait for the same message, the condition of the others is false then.
                if woken == _WOKEN_AT_ONCE or number % _ASKED_AT_ONCE == 0:
                    woken = 0
                    yield_to_loop()

    def set_policies(self, written: object) -> None:
        self._apply(Policies(written))

    def save_metadata(self) -> None:
        self._metadata.save()


class CollectionExemption:
    """Exempts topics from garbage collection as their number grows: collecting 20,000 of them takes 0.4 s.

    An observer of the broker. Only a new maximum of the number of topics has an effect. So if topics are created and
    deleted repeatedly, the exempted objects stay bounded, and deleted topics are collected.
    """

    def __init__(self, broker: Broker) -> None:
        self._topics = broker.topics
        self._next_count = _TOPICS_PER_EXEMPTION

    def topic_created(self, topic: Topic) -> None:
        if len(self._topics) >= self._next_count:
            self._next_count = len(self._topics) + _TOPICS_PER_EXEMPTION
            exempt_from_collection()

    def topic_deleted(self, *_: object) -> None: ...

    channel_created = channel_deleted = topic_deleted
