"""The daemon as its HTTP API sees it (`web.nsqd_service.NsqdService`)."""

import logging
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass

import nsq_compat
from nsq_compat.cli.logs import parse_log_level, set_level
from nsq_compat.cli.options import option_value
from nsq_compat.log.storage import Storage
from nsq_compat.net.event_loop import let_others_run
from nsq_compat.net.process import Process
from nsq_compat.net.server import TcpServer
from nsq_compat.nsqd.drain import Drain
from nsq_compat.nsqd.lookup_peers import LookupPeers
from nsq_compat.nsqd.memory import MemoryStats
from nsq_compat.nsqd.metadata import MetadataFile
from nsq_compat.nsqd.options import PROGRAM, NsqdOptions
from nsq_compat.policy.enforcer import PolicyEnforcer
from nsq_compat.policy.policies import Policies
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.stats import ClientStats
from nsq_compat.session.nsqd_session import NsqdSession
from nsq_compat.web.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(kw_only=True, eq=False)
class Service(Process):
    """`tcp_port` and `http_port` are the bound ones: -1 for a unix socket, 0 where there is no listener."""

    now = staticmethod(time.monotonic)
    now_ns = staticmethod(time.time_ns)
    let_others_run = staticmethod(let_others_run)

    options: NsqdOptions
    broker: Broker
    storage: Storage
    metadata: MetadataFile
    lookup_peers: LookupPeers
    tcp: TcpServer[NsqdSession]
    metrics: Metrics
    drainer: Drain
    enforcer: PolicyEnforcer
    tcp_port: int
    http_port: int

    def __post_init__(self) -> None:
        self.version = nsq_compat.NSQ_VERSION
        self.version_line = nsq_compat.version_line(PROGRAM)
        self.hostname = os.uname().nodename
        self.started_at = time.time()
        self._memory = MemoryStats()

    def health(self) -> str:
        problem = self.storage.problem
        return "OK" if problem is None else f"NOK - {problem}"

    def read_errors(self) -> int:
        return self.storage.read_errors

    def producers(self) -> Sequence[ClientStats]:
        return [session.stats() for session in self.tcp.sessions if session.has_published]

    def connection_count(self) -> int:
        return len(self.tcp.sessions)

    def memory(self) -> dict[str, int]:
        return self._memory.stats()

    def config_value(self, name: str) -> object:
        if name == "drain":
            return self.draining
        if name == "policies":
            return self.enforcer.policies.written
        return option_value(self.options, name)

    def set_log_level(self, text: str) -> None:
        self.options.log_level = parse_log_level(text)
        set_level(self.options.log_level)

    def set_lookupd_addresses(self, addresses: Sequence[str] | None) -> None:
        self.options.nsqlookupd_tcp_addresses = tuple(addresses or ())
        if not self.draining:
            self.lookup_peers.set_addresses(self.options.nsqlookupd_tcp_addresses)

    def set_policies(self, written: object) -> None:
        self.enforcer.apply(Policies(written))
        log.info("NSQ: %d policies in force", len(self.enforcer.policies))

    @property
    def draining(self) -> bool:
        return self.drainer.begun

    def drain(self) -> None:
        self.drainer.begin()

    def save_metadata(self) -> None:
        self.metadata.save()
