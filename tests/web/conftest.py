"""A daemon for the API: a real queue, and other values that a test sets."""

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest

from nsq_compat.policy.dead_letters import DeadLetterQueues, Transfer
from nsq_compat.policy.policies import Policies
from nsq_compat.queue.broker import Broker
from nsq_compat.queue.in_flight import InFlight
from nsq_compat.queue.topic import Topic
from nsq_compat.queue.values import ClientStats, QueueLimits
from nsq_compat.queue.wait_queue import Locality
from nsq_compat.session.http_message import Admission, Request, Response
from nsq_compat.web.metrics import Metrics
from nsq_compat.web.nsqd_api import NsqdApi

SECOND = 1_000_000_000
MEMORY = (
    *("heap_objects", "heap_idle_bytes", "heap_in_use_bytes", "heap_released_bytes"),
    *("gc_pause_usec_100", "gc_pause_usec_99", "gc_pause_usec_95", "next_gc_bytes", "gc_total_runs"),
)


@dataclass
class Options:
    broadcast_address: str = "node1"
    max_msg_size: int = 100
    max_body_size: int = 500
    max_rdy_count: int = 2500
    msg_timeout: int = 60 * SECOND
    max_defer_timeout: int = 3600 * SECOND
    max_req_timeout: int = 3600 * SECOND
    publishing_over_http: bool = True
    peeking_over_http: bool = True
    metrics_max_names: int = 1000
    # Only shown by /info.
    max_heartbeat_interval: int = 60 * SECOND
    max_output_buffer_size: int = 65536
    max_output_buffer_timeout: int = 30 * SECOND
    max_deflate_level: int = 6
    topology_zone: str = ""
    topology_region: str = ""


@dataclass
class Daemon:
    """Satisfies `NsqdService`."""

    broker: Broker = field(default_factory=lambda: Broker(QueueLimits()))
    options: Options = field(default_factory=Options)
    metrics: Metrics = field(default_factory=lambda: Metrics("nsqd"))
    tcp_port: int = 4150
    http_port: int = 4151
    started_at: float = 1000.0
    loop_lag: float = 1.23456
    wall_ns: int = 1127 * SECOND + 687_255_628
    health_text: str = "OK"
    connected_producers: tuple[ClientStats, ...] = ()
    config: dict[str, object] = field(default_factory=dict)
    saves: int = 0
    draining: bool = False
    monotonic: float = 50.0
    closed_clients: list[str] = field(default_factory=list)
    waited: list[float] = field(default_factory=list)
    while_waiting: Callable[[], None] = lambda: None
    standby: dict[str, Any] | None = None
    primaries: list[dict[str, Any]] | None = None
    """None without --mirror-accept."""
    adopts: Callable[[str], list[str]] = lambda identity: []

    @cached_property
    def dead_letters(self) -> DeadLetterQueues:
        return DeadLetterQueues(self.broker)

    def await_transfer(self, transfer: Transfer) -> None:
        while not transfer.is_over:
            self.dead_letters.send(self.now(), self.now_ns())

    def wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        self.waited.append(seconds)
        self.while_waiting()
        return condition()

    def call_in_turn(self, callback: Callable[[], None]) -> None:
        callback()

    def now(self) -> float:
        return self.monotonic

    def now_ns(self) -> int:
        return self.wall_ns

    def mirroring(self) -> dict[str, Any]:
        return {"standby": self.standby, "accepts": self.primaries is not None, "primaries": self.primaries or []}

    def adopt(self, identity: str) -> list[str]:
        return self.adopts(identity)

    def health(self) -> str:
        return self.health_text

    def disk_space(self) -> tuple[int, int]:
        return 2**30, 2**40

    def read_errors(self) -> int:
        return 0

    def producers(self) -> Sequence[ClientStats]:
        return self.connected_producers

    def close_client(self, address: str) -> bool:
        self.closed_clients.append(address)
        return address == "127.0.0.1:5000"

    def connection_count(self) -> int:
        return 3

    def memory(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(MEMORY)}

    def config_value(self, name: str) -> object:
        return self.config[name]

    def set_log_level(self, text: str) -> None:
        self.config["log_level"] = 1 + ["debug", "info", "warn", "error", "fatal"].index(text.lower())

    def set_lookupd_addresses(self, addresses: Sequence[str] | None) -> None:
        self.config["nsqlookupd_tcp_addresses"] = addresses

    def drain(self) -> None:
        self.draining = True
        self.config["drain"] = True

    def set_policies(self, written: object) -> None:
        self.config["policies"] = Policies(written).written

    def save_metadata(self) -> None:
        self.saves += 1


ID_RULE = (
    "id is a message's id, 16 digits 0-9 and a-f; several as id=...\\u0026id=... or in the body, one in a line, "
    "1000 at most"
)


def code(response: Response) -> tuple[int, str]:
    return response.status, response.body.decode()


def refused(status: int, name: str, explanation: str = "") -> tuple[int, str]:
    more = f',"explanation":"{explanation}"' if explanation else ""
    return status, f'{{"message":"{name}"{more}}}'


class Caller:
    """Calls an API as the server does."""

    def __init__(self, daemon: Daemon) -> None:
        self.api = NsqdApi(daemon)

    def admission(self, method: str, path: str) -> Admission:
        return self.api.admit(Request(method, path.encode(), path, b"", {}, b"", "127.0.0.1:50000"))

    def __call__(
        self, method: str, target: str, body: bytes = b"", headers: Mapping[bytes, bytes] | None = None
    ) -> Response:
        path, _, query = target.partition("?")
        raw = target.encode()
        return self.api.respond(Request(method, raw, path, query.encode(), headers or {}, body, "127.0.0.1:50000"))

    def get(self, target: str) -> Response:
        return self("GET", target)

    def post(self, target: str, body: bytes = b"") -> Response:
        return self("POST", target, body)

    def put(self, target: str, body: bytes = b"") -> Response:
        return self("PUT", target, body)


@pytest.fixture(autouse=True)
def handler_of_profiles() -> Iterator[None]:
    """A profile of this process leaves its signal ignored, which processes of later tests would inherit."""
    before = signal.getsignal(signal.SIGPROF)
    yield
    signal.signal(signal.SIGPROF, before)


@pytest.fixture
def daemon() -> Daemon:
    return Daemon()


@pytest.fixture
def call(daemon: Daemon) -> Caller:
    return Caller(daemon)


class Drain:
    """A consumer that takes all messages of a topic and returns the bodies."""

    locality = Locality.GLOBAL

    def __init__(self) -> None:
        self.in_flight = InFlight()

    def wake(self) -> None:
        pass

    def close(self) -> None:
        pass

    def begin_headers(self) -> None:
        pass

    @property
    def client(self) -> tuple[str, str]:
        return "c", "1.2.3.4:5"

    def stats(self) -> ClientStats:
        raise NotImplementedError

    def __call__(self, topic: Topic) -> list[bytes]:
        channel = topic.channel("drain")
        channel.add_consumer(self)
        return [frame[34:] for frame in channel.take(self, 10_000, 50.0, 60.0)]


@pytest.fixture
def drain() -> Drain:
    return Drain()
