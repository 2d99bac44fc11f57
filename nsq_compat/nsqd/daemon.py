"""One nsqd: its queue, its listeners, and the order in which they start and stop."""

import logging
import time

import gevent

from nsq_compat import NSQ_VERSION, version_line
from nsq_compat.cli.kinds import TLS_REQUIRED, OptionError
from nsq_compat.godata import export as go_export
from nsq_compat.log.data_path import DataPathError, DataPathLock, make_our_folder, resolved
from nsq_compat.log.files import OsFiles
from nsq_compat.log.storage import Durability, Storage
from nsq_compat.net.connection import Connection
from nsq_compat.net.event_loop import AlarmClock, BusyPoll, LoopLag, LoopTick, has_spare_cpu
from nsq_compat.net.process import descriptors_left_by_clients
from nsq_compat.net.server import HttpServer, TcpServer
from nsq_compat.net.sockets import listen, port_of
from nsq_compat.nsqd.auth import AuthServers
from nsq_compat.nsqd.drain import Drain
from nsq_compat.nsqd.durability import Checkpoints, Committer, sync_seconds
from nsq_compat.nsqd.lookup_peers import LookupPeers
from nsq_compat.nsqd.memory import TopicExemption
from nsq_compat.nsqd.metadata import MetadataFile
from nsq_compat.nsqd.options import PROGRAM, NsqdOptions, settle
from nsq_compat.nsqd.policies import DeadLetterSender, load_policies
from nsq_compat.nsqd.service import Service
from nsq_compat.nsqd.startup import load_certificates, make_http_calls, peer_info, queue_limits, restore, session_limits
from nsq_compat.nsqd.statsd import StatsdPush
from nsq_compat.nsqd.topic_channels import TopicChannels
from nsq_compat.policy.enforcer import PolicyEnforcer
from nsq_compat.protocol.compression import SNAPPY_INSTALLED, SNAPPY_MISSING
from nsq_compat.protocol.durations import SECOND
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.publish_batch import PublishBatch
from nsq_compat.session.nsqd_session import NsqdSession
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqd_api import NsqdApi, TlsRequired

log = logging.getLogger(__name__)

STOP_SECONDS = 5.0
"""How long a stop waits for connections to end."""


class Daemon:
    """Owns its data path and listens from its construction on; serves between `start` and `stop`.

    The constructor raises ``OptionError``, ``DataPathError`` and ``ListenError``, `start` ``MetadataError`` and
    ``OSError``.
    """

    def __init__(self, options: NsqdOptions) -> None:
        data_path = resolved(options.data_path)
        self._lock = DataPathLock(data_path)
        files = OsFiles()
        try:
            go_export.recover(files, data_path)
        except OSError as error:
            raise DataPathError(
                f"failed to look for an interrupted export - {error}; see Read errors in docs/runbook.md"
            ) from error
        make_our_folder(files, data_path)
        log.info("%s", version_line(PROGRAM))
        log.info("ID: %d", options.id)
        if options.snappy and not SNAPPY_INSTALLED:
            log.warning("snappy is not offered to clients: %s", SNAPPY_MISSING)
        self._certificates = load_certificates(options)
        self._limits = session_limits(options)
        self._calls = make_http_calls(options)
        self._auth = AuthServers(options.auth_http_addresses, options.auth_http_request_method, self._calls)
        metrics = Metrics(PROGRAM, NSQ_VERSION)
        self._loop_lag = LoopLag(metrics.observe_lag, metrics.observe_held)
        self._storage = Storage(
            files,
            data_path,
            durability=Durability(options.durability),
            segment_size=options.max_bytes_per_file,
            commit=Committer(sync_seconds(metrics)).commit,
            open_files=descriptors_left_by_clients() // 2,
            later=gevent.get_hub().loop.run_callback,
            at_end_of_iteration=gevent.get_hub().loop.run_callback,
            clock_offset=lambda: time.time() - time.monotonic(),
        )
        self._broker = Broker(queue_limits(options), self._storage)
        TopicExemption(self._broker)
        self._config = options.config
        self._policies = load_policies(options.config)
        self._enforcer = PolicyEnforcer(self._broker, time.monotonic, time.time_ns)
        self._dead_letters = DeadLetterSender(self._enforcer.dead_letters)
        self._metadata = MetadataFile(files, data_path, self._broker)
        self._checkpoints = Checkpoints(self._broker, self._storage, options.sync_timeout / SECOND)
        self._alarms = AlarmClock(self._broker.schedule)
        tcp_listener = listen(options.tcp_address)
        http_listener = listen(options.http_address) if options.http_address else None
        make_tls = self._certificates.make_tls if self._certificates else None
        https_listener = listen(options.https_address) if options.https_address and make_tls else None
        tcp_port = port_of(tcp_listener)
        http_port = port_of(http_listener) if http_listener else 0
        settle(options, max(tcp_port, 0), max(http_port, 0))
        self._lookupd_addresses = options.nsqlookupd_tcp_addresses
        self._lookup_peers = LookupPeers(self._broker, peer_info(options), options.max_body_size)
        self._topic_channels = TopicChannels(
            self._broker, self._lookup_peers, self._calls, options.http_client_request_timeout / SECOND
        )
        self.drain = Drain(self._broker, self._lookup_peers, options.drain_timeout / SECOND)
        # Sessions wait only for auth servers, and for the disk where it is synced before OK.
        waits = self._limits.auth_required or self._storage.durability is Durability.FSYNC
        tick = LoopTick(gevent.get_hub().loop)
        self._publish_batch = None if waits else PublishBatch(tick.call)
        # Where sessions wait for others anyway, polling gains nothing.
        polls = options.busy_poll_time > 0 or (not waits and has_spare_cpu())
        self._busy_poll = BusyPoll(options.busy_poll_time / SECOND) if polls else None
        self._tcp = TcpServer(
            tcp_listener,
            self._make_session,
            make_tls,
            session_waits=waits,
            busy_poll=self._busy_poll,
            tick=tick,
        )
        service = Service(
            options=options,
            broker=self._broker,
            storage=self._storage,
            metadata=self._metadata,
            lookup_peers=self._lookup_peers,
            tcp=self._tcp,
            metrics=metrics,
            drainer=self.drain,
            enforcer=self._enforcer,
            tcp_port=tcp_port,
            http_port=http_port,
        )
        api = NsqdApi(service, self._publish_batch)
        is_immediate = options.publishing_over_http and self._storage.durability is not Durability.FSYNC
        immediate = api.publishing if is_immediate else None
        self._http: list[HttpServer] = []
        if http_listener:
            gate = TlsRequired(port_of(https_listener) if https_listener else 0)
            handler = gate if options.tls_required == TLS_REQUIRED else api
            in_loop = immediate if handler is api else None
            self._http.append(HttpServer(http_listener, handler, immediate=in_loop, tick=tick))
        if https_listener:
            self._http.append(
                HttpServer(https_listener, api, name="HTTPS", tls=make_tls, immediate=immediate, tick=tick)
            )
        self._statsd = StatsdPush(options, self._broker, service.memory) if options.statsd_address else None

    def start(self) -> None:
        """Restore the data path, then serve; clients that connected meanwhile have waited in the kernel."""
        restore(self._broker, self._storage)
        self._enforcer.apply(self._policies)
        self._dead_letters.start()
        self._metadata.start()
        self._metadata.save()
        self._checkpoints.start()
        self._alarms.start()
        self._loop_lag.start()
        self._lookup_peers.start(self._lookupd_addresses)
        self._topic_channels.start()
        self._tcp.start()
        for server in self._http:
            server.start()
        if self._statsd is not None:
            self._statsd.start()

    def stop(self) -> None:
        """End every connection and then the queue, so that no message is accepted that could not be stored."""
        self.drain.stop()
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
        self._checkpoints.stop()
        self._broker.close()
        self._checkpoints.write_last()
        log.info("NSQ: stopping subsystems")
        if self._statsd is not None:
            self._statsd.stop()
        self._lock.release()
        log.info("NSQ: bye")

    def reload(self) -> None:
        """Read the certificates and policies again; those that cannot be used change nothing."""
        if self._certificates is None:
            log.info("TLS: no certificate to reload")
        else:
            self._certificates.reload()
        if self._config:
            try:
                self._enforcer.apply(load_policies(self._config))
            except OptionError as error:
                log.error("policies stay as they are - %s", error)
            else:
                log.info("NSQ: %d policies in force", len(self._enforcer.policies))

    def _make_session(self, connection: Connection[NsqdSession], host: str, now: float, now_ns: int) -> NsqdSession:
        return NsqdSession(
            self._broker,
            self._limits,
            peer=connection.peer,
            host=host,
            wake=connection.wake,
            abort=connection.abort,
            authorize=self._auth.authorize,
            publish_batch=self._publish_batch,
            now=now,
            now_ns=now_ns,
        )
